"""The arguments of a call as they travel: tensors of arrays, words of numbers, one pickle of all else.

Shared arrays and futures within lists, dicts and other objects are taken out by the pickler as it meets
them. The call has them beside its arguments, so it waits for who writes the arrays and for the futures,
and the worker puts them back: the arrays themselves, which it cannot write, and the futures' values.

Rule     CALL-ARRAY-1, CALL-ARRAY-8, CALL-INNER-1, CALL-INNER-2, CALL-VALUE-1, CALL-VALUE-2
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from struct import iter_unpack
from typing import Any, NoReturn

from numpy import asarray, generic, ndarray
from numpy.lib.array_utils import byte_bounds

from ..callables.pickling import ArgumentPickler
from ..jit import layout as L
from ..model.scalars import INTEGER, NUMBER
from ..model.visibility import as_array
from ..model.wire import with_tag
from ..workers.session import Session
from .arguments import (
    ARRAY,
    CALL_KEY,
    FALSE,
    INLINE_BYTES,
    INNER_ARRAY,
    INNER_VALUE,
    ITEM,
    MOST_ARGUMENTS,
    NONE,
    READ_ARRAY,
    TRUE,
    VALUE,
    SentArrays,
    head_words,
    inline,
)
from .futures import Future, Lease, itself
from .signatures import MISSING, Mode, Parameter
from .tasks import Task, here

_CONSTANTS = {None: NONE, True: TRUE, False: FALSE}
_NUMBERS = {bool, int, float}
_FORMS = {
    mode: (ARRAY if mode in (Mode.OUT, Mode.INOUT) else READ_ARRAY, with_tag(b"", tag))
    for mode, tag in (
        (Mode.VALUE, L.INPUT),
        (Mode.IN, L.INPUT),
        (Mode.OUT, L.OUTPUT_EXISTING),
        (Mode.INOUT, L.INOUT),
    )
}
"""The code of an array, and what follows its tensor without a tag."""
_I64_FIRST, _I64_LAST = -(1 << 63), (1 << 63) - 1
_MOST_HEADS = 4096
_MOST_TAKEN_OUT = 16
"""More arrays and futures than these are not taken out: the call waits for all others."""
_INPUT = with_tag(b"", L.INPUT)
_integer, _number = INTEGER.pack, NUMBER.pack
_Form = tuple[int, bytes, Parameter]


Packed = tuple[int, bytes, bytes, list[tuple[Future, int]], int]
"""The arguments of a call, as they travel:

- the counts of tensors and scalars, and the bytes of both;
- names and values that are pickled, if they need a block;
- the futures whose values the worker gets, with their slots: so the call needs them still to be there;
- the epoch of the arrays, in which the tensors mean what they should.
"""


class TooManyError(Exception):
    """Arguments enclose more than fits beside them, or shared memory in a form that is only copied."""


class RefusedError(Exception):
    """What is within an argument cannot be sent, and `error` says why; it is no failure to pickle.

    The call of a future has failed, an array must not be used, or there is no room for its layout.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class NeededError(RefusedError):
    """A future among the arguments of a call has failed; `error` is its own."""


def value_of(future: Future) -> Any:
    try:
        return future.result()
    except Exception as error:
        if future._error is not error:  # it is not the call that has failed
            raise
        raise NeededError(error) from None


class CallPlan:
    """What is known of a task's calls before the first one.

    `key` is the number under which workers find the function. Only `workers` may run its calls, in turn;
    none: all of them. A lease holds the block of the function, which has `nbytes`; None: that lasts.
    `reads` are tensors of the shared arrays that the function refers to, each with its tag.
    """

    __slots__ = (
        *("forms", "has_gaps", "heads", "is_plain", "key", "lease", "nbytes", "reads", "signature"),
        *("task", "workers"),
    )

    def __init__(
        self,
        task: Task,
        key: int,
        workers: tuple[int, ...],
        lease: Lease | None,
        nbytes: int,
        reads: tuple[bytes, ...],
        is_inherited: bool,
    ) -> None:
        self.task = task if is_inherited else None  # which workers call that are threads
        self.key, self.lease, self.nbytes, self.reads = key, lease, nbytes, reads
        self.has_gaps = sum(one is MISSING for one in task.signature.defaults) > 1
        """Whether a call may leave out a value and give a later one."""
        self.workers = cycle([one + 1 << L.WORD_WORKER for one in workers]) if workers else None
        """Bits for a call's word."""
        self.signature = task.signature
        self.is_plain = task.signature.is_plain
        self.forms = tuple([(*_FORMS[one.mode], one) for one in task.signature.parameters])
        self.heads: dict[tuple[int, ...], tuple[bytes, int]] = {}
        """The first words, and how many they are, of calls with some codes."""

    def head(self, form: list[int]) -> tuple[bytes, int]:
        """Return the first words of a call, and how many they are."""
        named, *codes = form
        if len(codes) > MOST_ARGUMENTS:
            raise ValueError(f"{len(codes)} arguments are too many: at most {MOST_ARGUMENTS}")
        if len(self.heads) >= _MOST_HEADS:
            self.heads.clear()
        words = head_words(self.key, codes, named)
        made = b"".join([_integer(word, L.SIGNED) for word in words]), len(words)
        self.heads[tuple(form)] = made
        return made


class Packer:
    """Packs the arguments of a Worker's calls, some once all calls that were submitted have ended."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._arrays: SentArrays = stream._arrays
        self._session: Session = stream._session

    def pack(self, plan: CallPlan, bound: tuple[Any, ...]) -> Packed:
        """Return the arguments of a call, as they travel.

        Other threads may end the stream meanwhile, or fetch the values of futures among the arguments.
        """
        epoch, known, _ = self._arrays.now
        names: tuple[str, ...] = ()
        if not plan.is_plain or (plan.has_gaps and any(one is MISSING for one in bound)):
            flat, names = plan.signature.flatten(bound)
            given: Iterable[tuple[_Form, Any]] = [
                ((*_FORMS[one.mode], one), value) for one, value in flat
            ]
        else:
            while bound and bound[-1] is MISSING:
                bound = bound[:-1]
            given = zip(plan.forms, bound)  # noqa: B905 (0.1 us)
        form = [len(names)]
        parts: list[bytes] = []
        scalars: list[bytes] = []
        items: list[Any] = []
        futures: list[tuple[Future, int]] = []
        for (code, tag, parameter), value in given:
            kind = type(value)
            if kind is ndarray:
                sent = known.get(id(value))
                if sent is not None:
                    array, shape, strides, dtype, wire = sent
                    if (
                        array() is value
                        and shape == value.shape
                        and strides == value.strides
                        and dtype is value.dtype
                        and (code != ARRAY or value.flags.writeable)
                    ):
                        form.append(code)
                        parts += wire, tag
                        continue
                form.append(self._add_array(code, tag, parameter, value, parts, items))
            elif code == ARRAY and (kind in _NUMBERS or kind is Future):
                self._refuse_to_write(parameter, value)
            elif kind is float:
                form.append(VALUE)
                scalars.append(_number(value, L.FLOAT64))
            elif kind is int and _I64_FIRST <= value <= _I64_LAST:
                form.append(VALUE)
                scalars.append(_integer(value, L.SIGNED))
            elif value is None or kind is bool:
                form.append(_CONSTANTS[value])
            elif kind is Future:
                stream, slot = value._stream, value._slot
                if slot and stream is not None and stream._arrays is self._arrays:
                    form.append(VALUE)  # of this stream, and not fetched: the worker has the slot
                    scalars.append(_integer(slot, L.FUTURE))
                    futures.append((value, slot))
                else:
                    form.append(ITEM)
                    items.append(value_of(value))
            elif kind is Lease:
                form.append(VALUE)
                scalars.append(_integer(value.offset, L.FETCHED | L.VALUE_BLOCK))
            elif parameter.mode is not Mode.VALUE:
                form.append(self._add_array(code, tag, parameter, value, parts, items))
            else:
                form.append(ITEM)
                items.append(value)
        data = b""
        if items or names:
            data, enclosed = self._pickle(plan, bound, names, items)
            if enclosed.codes:
                form[1:1] = enclosed.codes
                parts = enclosed.parts + parts
                scalars = enclosed.scalars + scalars
                futures += enclosed.futures
            if len(data) <= INLINE_BYTES:
                words = inline(data)
                scalars += [_integer(*one, L.SIGNED) for one in iter_unpack("<q", words)]
                data = b""
        parts += plan.reads  # behind those of arguments: the worker only has the call wait for them
        counts = len(parts) >> 1
        head, heads = plan.heads.get(tuple(form)) or plan.head(form)
        parts.append(head)
        counts |= heads + len(scalars) << L.HALF
        return counts, b"".join(parts + scalars), data, futures, epoch

    def forward(self, plan: CallPlan, call: tuple[Any, ...]) -> Packed:
        """Return the arguments of a call as they travel here; see `Stream.forward`."""
        arrays, (head, *others), kinds, data = call
        epoch = self._arrays.now.epoch
        parts: list[bytes] = []
        for one, tag in arrays:
            parts += self._arrays.wire(one), with_tag(b"", tag)
        parts += plan.reads
        words = head & ~CALL_KEY | plan.key, *others
        counts = len(parts) >> 1 | len(words) << L.HALF
        scalars = [_integer(*one) for one in zip(words, kinds, strict=True)]
        return counts, b"".join(parts + scalars), data, [], epoch

    def _pickle(
        self, plan: CallPlan, bound: tuple[Any, ...], names: tuple[str, ...], items: list[Any]
    ) -> tuple[bytes, Enclosed]:
        """Return values as bytes, and what was taken out of them; say which cannot be pickled."""
        try:
            return self._take_out((names, tuple(items)), items)
        except NeededError:
            raise
        except RefusedError as refused:
            raise refused.error from None
        except Exception:
            left_out = (MISSING,) * (len(plan.forms) - len(bound))
            flat, named = plan.signature.flatten(bound + left_out)
            where = [one.name for one, _ in flat[: len(flat) - len(named)]]
            for name, (_, value) in zip([*where, *named], flat, strict=True):
                try:
                    if any(value is one for one in items):
                        self._take_out(value, (value,))
                except Exception as error:
                    raise TypeError(
                        f"{name}: this {type(value).__qualname__} cannot be pickled "
                        f"({type(error).__name__}: {error}); pass numbers, arrays or other picklable "
                        "values, from which the task makes it"
                    ) from error
            raise

    def _take_out(self, items: Any, values: Iterable[Any]) -> tuple[bytes, Enclosed]:
        try:
            enclosed = Enclosed(self._arrays)
            return self._pickler(enclosed).as_bytes(items, values), enclosed
        except TooManyError:
            self._stream.wait_for_submitted()
            enclosed = Enclosed(self._arrays, most=0)
            return self._pickler(enclosed).as_bytes(items, values), enclosed

    def _pickler(self, enclosed: Enclosed) -> ArgumentPickler:
        ways = enclosed.reducers, enclosed.begin, enclosed.derived, enclosed.look
        return ArgumentPickler(self._session.inherited, *ways)

    def pickle_each(self, items: Iterable[Any]) -> list[bytes] | None:
        """Return arguments as bytes, one by one; None if they have shared arrays or futures within."""
        enclosed = Enclosed(self._arrays)
        pickler = self._pickler(enclosed)
        made = []
        try:
            for item in items:
                made.append(pickler.as_bytes(item, (item,)))
                if enclosed.codes:
                    return None
        except TooManyError:
            return None
        return made

    def _refuse_to_write(self, parameter: Parameter, value: Any) -> NoReturn:
        what, remedy = f"{value!r}", "pass an array, Worker.share(…)"
        if isinstance(value, Future):
            what, remedy = "the value of a call", "pass Worker.share(future.result())"
        raise TypeError(
            f"{parameter.name}: the task writes there, and {what} is no shared array: {remedy}; "
            f"or annotate {parameter.name} with In, or not at all, and return what is made of it"
        )

    def _add_array(
        self,
        code: int,
        tag: bytes,
        parameter: Parameter,
        value: Any,
        parts: list[bytes],
        items: list[Any],
    ) -> int:
        """An array that workers do not share is copied if it is only read."""
        if code == ARRAY and isinstance(value, ndarray) and not value.flags.writeable:
            raise ValueError(
                f"{parameter.name}: this array of shape {value.shape} is read-only, and the task writes "
                f"there: annotate {parameter.name} with In if it only reads, or pass the array that this "
                "one is a view of, or a copy (Worker.share(array))"
            )
        try:
            parts += self._arrays.wire(value), tag
        except (TypeError, ValueError) as error:
            mode = parameter.mode
            if mode is Mode.VALUE or (mode is Mode.IN and isinstance(value, ndarray | generic)):
                items.append(value)
            elif mode is Mode.IN and is_like_an_array(value):
                given = asarray(value) if isinstance(value, memoryview) else value
                items.append(Viewed(parameter.name, given))
            else:
                raise type(error)(f"{parameter.name}: {error}") from None
            return ITEM
        return code


# ---------------------------------------------------------------- what arguments have within them
class Enclosed:
    """What is taken out of the arguments of a call: at most so much; 0: all is copied."""

    def __init__(self, arrays: SentArrays, most: int = _MOST_TAKEN_OUT) -> None:
        self._arrays, self._most = arrays, most
        self._arena, _ = arrays.memory
        self.reducers: dict[type, Callable[[Any], Any]] = {
            ndarray: self._array,
            Future: self._future,
            Lease: self._lease,
            memoryview: self._bytes,
        }
        self.begin()

    def begin(self) -> None:
        """Begin to pickle: nothing is taken out yet; see `Packer.pack` for what these are."""
        self.codes: list[int] = []
        self.parts: list[bytes] = []
        self.scalars: list[bytes] = []
        self.futures: list[tuple[Future, int]] = []

    def _array(self, found: Any) -> Any:
        try:
            wire = self._arrays.wire(found)
        except (TypeError, ValueError):  # it is copied, as any object is
            return found.__reduce_ex__(5)
        except (RuntimeError, MemoryError) as error:
            raise RefusedError(error) from None
        if not self._most:
            return _read_only, (found.copy(),)
        self.parts += wire, _INPUT
        return self._take_out(INNER_ARRAY)

    def derived(self, found: Any) -> Any:
        """Return how a masked array, a matrix, or the like is pickled: as it is, once that is written."""
        self._require_written(found.view(ndarray))
        self._require_written(getattr(found, "_mask", None))
        return found.__reduce_ex__(5)

    def look(self, found: pickle.PickleBuffer) -> bool:
        """Have memory pickled that some other object refers to, as a column does, once it is written."""
        self._require_written(asarray(found.raw()))
        return True

    def _bytes(self, found: memoryview) -> Any:
        self._require_written(asarray(found))
        return bytes, (found.tobytes(),)

    def _require_written(self, array: Any) -> None:
        """Have the call wait for all others if it copies from an array of the Worker's."""
        if self._most and isinstance(array, ndarray):
            start, end = self._arena
            if start <= byte_bounds(array)[0] < end:
                raise TooManyError

    def _future(self, future: Future) -> Any:
        stream, slot = future._stream, future._slot
        if not slot or stream is None or stream._arrays is not self._arrays or not self._most:
            try:
                return itself, (value_of(future),)
            except Exception as error:
                raise RefusedError(error) from None
        self.scalars.append(INTEGER.pack(slot, L.FUTURE))
        self.futures.append((future, slot))
        return self._take_out(INNER_VALUE)

    def _lease(self, lease: Lease) -> Any:
        self.scalars.append(INTEGER.pack(lease.offset, L.FETCHED | L.VALUE_BLOCK))
        return self._take_out(INNER_VALUE)

    def _take_out(self, code: int) -> Any:
        if len(self.codes) >= self._most:
            raise TooManyError
        self.codes.append(code)
        return _taken_out, (len(self.codes) - 1,)


# ---------------------------------------------------------------- lists and tables for `In`
_LIKE_ARRAYS = "__array__", "__array_interface__", "__dlpack__"


def is_like_an_array(value: Any) -> bool:
    """Say whether numpy makes an array of something as a rule: a list, a column, a table."""
    if isinstance(value, list | tuple | range | memoryview | array):
        return True
    return not isinstance(value, generic) and any(hasattr(value, name) for name in _LIKE_ARRAYS)


class Viewed:
    """An argument for `In` that the worker makes an array of: what is within it may be shared."""

    def __init__(self, *about: Any) -> None:
        self._about = about

    def __reduce__(self) -> Any:
        return _viewed, self._about


def _viewed(name: str, value: Any) -> Any:
    try:
        found = as_array(value)
    except ValueError as error:
        raise ValueError(f"{name}: numpy makes no array of it: {error}") from None
    if found.dtype.hasobject:
        raise TypeError(f"{name}: numpy makes an array of Python objects of it, not of numbers")
    return found


# ---------------------------------------------------------------- in the worker
def _read_only(found: Any) -> Any:
    found.flags.writeable = False
    return found


def _taken_out(number: int) -> Any:
    return here.enclosed[number]


def load(
    data: Any, codes: Iterable[int], arrays: Iterator[Any], values: Iterator[Any]
) -> tuple[tuple[str, ...], list[Any]]:
    """Return the names and the arguments that were pickled, and put back what was taken out of them."""
    try:
        here.enclosed = [next(arrays if code == INNER_ARRAY else values) for code in codes]
        names, items = pickle.loads(data)
    finally:
        here.enclosed = ()
    return names, items
