"""Compiled leaves: tasks that a worker runs without the interpreter and without the GIL.

A leaf is a function of arrays and numbers that numba can compile. Its annotations or its first arguments
determine its types; the code compiled for them takes a task's arguments from the mailbox, checks them,
and calls the function. The worker's loop, itself compiled, calls that code by its address
(`jit/leaves.py`).

An *entry* is compiled for arguments of some types. Given the address of an args blob, it checks that
the blob holds such arguments, reads them, calls the function, and leaves its value, if that is wanted.
What it does not take it hands on to the entry that was made before it; the first one returns ILLEGAL,
and the worker goes through Python (see `serve`). The parts of its text, in order:

    alike     tests of the blob's words: how many arguments, of which kinds
    reading   statements, which may follow what the words refer to
    fitting   tests of what was read
    values    expressions, the arguments of the function

Compiled tasks of calls have entries of their own, from the same generator.

Rule     SPEED-LEAF-1, SPEED-LEAF-2, SPEED-LEAF-4, SPEED-LEAF-7
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numba
import numpy as np
from numba import carray
from numba.core import types
from numba.core.errors import NumbaError
from numba.np.numpy_support import as_dtype

from ..jit import layout as L
from ..jit import leaves as J
from ..jit.kernel import INTERPRETED
from ..model.enums import find_dtype
from ..model.scalars import ScalarBits
from ..model.tensor import END_OF_ADDRESSES, FIRST_ADDRESS
from ..model.wire import SCALAR_BYTES, counts_of, element_words
from ..system.types import Array
from .runnable import OPTIONS, CompiledCallable, require_options, require_runnable

if TYPE_CHECKING:
    from ..engine.view.mailbox import ReceivedArgs

Kind: TypeAlias = Any
"""What a parameter takes: a numba array type or a numba number type."""

_NUMBERS: dict[Any, Kind] = {
    int: types.int64,
    float: types.float64,
    bool: types.boolean,
    np.bool_: types.boolean,
    **{
        getattr(np, one.name): one
        for one in (*types.signed_domain, *types.unsigned_domain, types.float32, types.float64)
    },
}
_NUMBER_TYPES = frozenset(_NUMBERS.values())
_ANY = (inspect.Parameter.empty, np.ndarray)
"""Annotations that leave the type to the first argument."""
_FLOATS = (types.float64, types.float32)
_MOST_ORDERS = 32
"""Combinations of orders of a leaf's arrays for which workers find code without Python."""


class Leaf(CompiledCallable):
    """A function that workers run compiled; made by `leaf`.

    Called like the function it is made from, it runs here, compiled as well. `py_func` is that.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: dict[str, Any],
        declared: tuple[Kind | None, ...] | None = None,
        kinds: tuple[Kind, ...] | None = None,
    ) -> None:
        self.py_func = function
        self.kinds = kinds
        """The numba type of each parameter, None until they are determined."""
        self.address = 0
        self._options = options
        self._settling = threading.RLock()
        self._compiled: Any = function
        self._codes: dict[tuple[Kind, ...], Any] = {}
        """The code that workers call, for arrays in different orders; each asks the one before it."""
        self._name, self._names = f"leaf {function.__qualname__}", _parameters(function)
        self._declared = _declared(function) if declared is None else declared
        functools.update_wrapper(self, function)
        if None not in self._declared:
            self.kinds = self._declared
        if declared is not None:  # it is unpickled, in a worker
            self.compile()

    def __reduce__(self) -> tuple[Any, ...]:
        # the names in annotations that are text do not travel with a function
        return Leaf, (self.py_func, self._options, self._declared, self.kinds)

    def __repr__(self) -> str:
        shown = "?" if self.kinds is None else ", ".join(map(str, self.kinds))
        return f"<{self._name}({shown})>"

    def __call__(self, *args: Any) -> Any:
        """Run the function here, compiled; the first call determines the types not annotated.

        Raises TypeError if the arguments have other types, or the leaf cannot be compiled.
        """
        self._settle([_kind_of(value) for value in args])
        return self._compiled(*args)

    # ------------------------------------------------------------ types
    def _settle(self, found: Sequence[Kind]) -> None:
        """Check the types of arguments, and compile for them, unless that is done.

        The first ones also determine the types not annotated.
        """
        if len(found) != len(self._names):
            raise TypeError(f"{self._name} takes {len(self._names)} arguments, got {len(found)}")
        with self._settling:
            wanted: Sequence[Kind] = self.kinds or [
                declared or kind for declared, kind in zip(self._declared, found, strict=True)
            ]
            for name, want, have in zip(self._names, wanted, found, strict=True):
                if not _fits(want, have):
                    raise TypeError(
                        f"{self._name}: {name} is {_text(have)}, but the leaf was compiled for "
                        f"{_text(want)}; convert it, or make another leaf of the function"
                    )
            known, self.kinds = self.kinds, tuple(wanted)
            try:
                self.compile()
            except TypeError:  # it may compile for other arguments
                self.kinds = known
                raise
            in_these_orders = tuple(
                have if isinstance(have, types.Array) else want
                for want, have in zip(wanted, found, strict=True)
            )
            if self.address and in_these_orders not in self._codes:
                self._add_code(in_these_orders)

    def compile(self) -> None:
        """Compile, if the types are determined and it is not compiled yet."""
        with self._settling:
            if self.kinds is not None and not self.address and not INTERPRETED:
                self._add_code(self.kinds)

    def _add_code(self, kinds: tuple[Kind, ...]) -> None:
        """Compile for arrays in some orders."""
        compiled = self._compiled
        if not self.address:
            compiled = numba.njit(nogil=True, **self._options)(self.py_func)
        try:
            compiled.disable_compile(False)
            compiled.compile(kinds)
            if len(self._codes) < _MOST_ORDERS:
                code = _entry(compiled, kinds, self.address)
                self.address = J.address_of_leaf(code)
                self._codes[kinds] = code
            else:
                self._codes[kinds] = None
        except Exception as error:
            raise TypeError(f"{self._name} cannot be compiled: {reason_of(error)}") from error
        finally:
            if compiled.signatures:
                compiled.disable_compile()
        self._compiled = compiled

    # ------------------------------------------------------------ in a worker
    def run_task(self, args: ReceivedArgs) -> None:
        """Run a task from Python: its types are new or wrong, or nothing is compiled here."""
        tensors = [args.tensor(i) for i in range(args.tensor_count())]
        scalars = args.scalar_count()
        if len(tensors) + scalars != len(self._names):
            raise TypeError(
                f"{self._name} takes {len(self._names)} arguments ({', '.join(self._names)}), the task "
                f"has {len(tensors)} tensors and {scalars} scalars"
            )
        arrays = [tensor.numpy() for tensor in tensors]
        for one in arrays:  # with ``check=True`` INPUTs are not writeable; the code takes one type
            one.flags.writeable = True
        known = self.kinds or self._declared
        given = [args.scalar(i) for i in range(scalars)]
        numbers = [
            kind if kind in _NUMBER_TYPES else _kind_of(value)
            for kind, value in zip(known[len(tensors) :], given, strict=True)
        ]
        self._settle([*map(_kind_of_array, arrays), *numbers])
        values = [_converted(kind, value) for kind, value in zip(numbers, given, strict=True)]
        for i, value in enumerate(values):
            if value is None:
                shown = f"{given[i]:#x}" if isinstance(given[i], ScalarBits) else repr(given[i])
                raise TypeError(
                    f"{self._name}: {self._names[len(tensors) + i]} takes {numbers[i]}, and scalar {i} "
                    f"is {shown}, which is none; add it as a number of this type"
                )
        self._compiled(*arrays, *values)  # as the compiled code takes them


def leaf(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a function of arrays and numbers a leaf that workers run compiled.

    Use it as ``@leaf`` or ``@leaf(fastmath=True)``. The parameters are the task's tensors, then its
    scalars. An array may be annotated with a numba type (``float32[:]``), a number with ``float``,
    ``int``, ``bool``, or a numpy or numba type. The first arguments determine the types not annotated: in
    a call from Python, or in each worker by its first task, which takes a moment there; a scalar without
    annotation is then an integer or a float, as `TaskArgs.scalar` returns it.

    Parameters
    ----------
    function : Callable
        A function that numba can compile; its result is not used.
    **options : Any
        For `numba.njit`: `fastmath`, `error_model`, `boundscheck`, `parallel`.

    Raises TypeError if it is no plain function, an annotation names no type, or there is no such option.
    """
    if function is None:
        return functools.partial(leaf, **options)
    if not inspect.isfunction(function):
        raise TypeError(f"leaf expects a plain function, got {type(function).__name__}")
    require_runnable("leaf", function)
    unknown = set(options) - OPTIONS
    if unknown:
        raise TypeError(f"leaf has no option {unknown.pop()!r}")
    require_options(options)
    return Leaf(function, options)


# ---------------------------------------------------------------- types of parameters
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    for one in parameters:
        if one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
            raise TypeError(
                f"leaf {function.__qualname__}: {one} cannot be a parameter of a leaf; the tensors of a "
                "task come by position, then its scalars"
            )
    return tuple(one.name for one in parameters)


def _declared(function: Callable[..., Any]) -> tuple[Kind | None, ...]:
    """Return the type each annotation names, None where there is none."""
    try:
        notes = inspect.get_annotations(function, eval_str=True)
    except Exception as error:
        raise TypeError(f"leaf {function.__qualname__}: an annotation is wrong: {error}") from error
    return tuple(
        _annotated(function, name, notes.get(name, inspect.Parameter.empty))
        for name in _parameters(function)
    )


def _annotated(function: Callable[..., Any], name: str, note: Any) -> Kind | None:
    if any(note is nothing for nothing in _ANY):
        return None
    why: TypeError | None = None
    if isinstance(note, types.Array) and note.layout != "F":
        try:
            _require_axes(note.ndim)
            as_dtype(note.dtype)
            return types.Array(note.dtype, note.ndim, "C")
        except NumbaError:
            why = TypeError(f"no array has elements of type {note.dtype}")
        except TypeError as error:
            why = error
    kind = _NUMBERS.get(note) if isinstance(note, type) else note
    if isinstance(kind, types.Type) and kind in _NUMBER_TYPES:
        return kind
    raise TypeError(
        f"leaf {function.__qualname__}: the annotation of {name}, {note!r}, names no type that a task "
        "can bring; write a numba type such as float32[:] for an array, int or float for a number"
    ) from why


def _require_axes(ndim: int) -> None:
    if ndim < 1:
        raise TypeError("a leaf takes arrays of at least one dimension: add a number as a scalar")


def _kind_of_array(array: Array) -> Kind:
    """Return the type of an array; all that it refers to can be written, as far as numba knows."""
    _require_axes(array.ndim)
    try:
        kind = numba.typeof(array)
    except (ValueError, NumbaError) as error:
        raise TypeError(f"a leaf cannot take this array of {array.dtype}: {error}") from None
    return kind.copy(readonly=False)


def _kind_of(value: Any) -> Kind:
    """Return the type of an argument of a call from Python."""
    if isinstance(value, np.ndarray):
        return _kind_of_array(value)
    kind = _NUMBERS.get(type(value))
    if kind is None and isinstance(value, (int, float)):  # a scalar of a task has a type of its own
        kind = types.float64 if isinstance(value, float) else types.int64
    if kind is None:
        raise TypeError(f"a leaf takes arrays and numbers, not {type(value).__name__}")
    return kind


def _fits(want: Kind, have: Kind) -> bool:
    if isinstance(want, types.Array) and isinstance(have, types.Array):
        return bool(want.dtype == have.dtype and want.ndim == have.ndim)
    if isinstance(want, types.Array) or isinstance(have, types.Array):
        return False
    whole = (types.Integer, types.Boolean)
    return not isinstance(want, whole) or isinstance(have, whole)


def _text(kind: Kind) -> str:
    if isinstance(kind, types.Array):
        return f"a {kind.dtype} array of {kind.ndim} dimension{'s' * (kind.ndim > 1)}"
    return f"a number ({kind})"


def _limits(kind: Kind) -> tuple[int, int]:
    """Return the limits of an integer type; of the bits, for a float type."""
    bits = 64 if kind == types.boolean else kind.bitwidth
    if str(kind).startswith("int"):
        return -(1 << bits - 1), 1 << bits - 1
    return 0, 1 << bits


def _converted(kind: Kind, value: int | float) -> Any:
    """Return a scalar as the code of `_entry` reads it from the mailbox; None if that refuses it."""
    if kind == types.boolean:
        return None if isinstance(value, float) else value != 0
    (low, high), dtype = _limits(kind), np.dtype(str(kind))
    if isinstance(value, ScalarBits):  # bits without a kind
        if dtype.itemsize < SCALAR_BYTES and not low <= value - (value >> 63 << 64) < high:
            return None
        return np.frombuffer(value.to_bytes(SCALAR_BYTES, "little")[: dtype.itemsize], dtype)[0]
    if kind in _FLOATS:
        with np.errstate(over="ignore"):
            return dtype.type(value)
    return None if isinstance(value, float) or not low <= value < high else dtype.type(value)


def reason_of(error: Exception) -> str:
    """Return the relevant line of numba's message, and its location."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = [line for line in lines if line.startswith('File "')]
    said = [line for line in lines if not line.startswith(("Failed in", "File ", "During"))]
    return f"{said[0] if said else type(error).__name__}{' — ' + where[-1] if where else ''}"


# ---------------------------------------------------------------- the code that a worker calls
_ORDERS = {"C": J.IN_C_ORDER, "F": J.IN_FORTRAN_ORDER, "A": J.IN_NO_ORDER}
"""How numba names the orders of arrays."""
_TEXT_CALLS = J.array_at, J.as_float, J.as_single, J.bits_of, J.call_leaf, J.double_of
_NAMES: dict[str, Any] = {
    **{one.__name__: one for one in (*_TEXT_CALLS, J.fits_layout, J.pointer, carray)},
    **{one.name: one for one in _NUMBER_TYPES if one != types.boolean},
    "np": np,
}
"""What the text refers to."""


class EntryCode:
    """The text of an entry for so many arrays and scalars, argument by argument."""

    def __init__(self, arrays: int, scalars: int) -> None:
        self.scalars = scalars
        self.first_scalar = 1 + arrays * L.TENSOR_WORDS
        """The word of the blob in which the scalars begin."""
        self.alike = [f"words[0] == {counts_of(arrays, scalars)}"]
        self.reading: list[str] = []
        self.fitting: list[str] = []
        self.values: list[str] = []
        self.names: dict[str, Any] = {}
        self._tensor = 1

    def _next_array(self) -> tuple[int, int, str]:
        """Return its number among the values, the word in which its tensor begins, and its address."""
        n, t = len(self.values), self._tensor
        self._tensor += L.TENSOR_WORDS
        return n, t, f"words[{t + L.TENSOR_DATA}]"

    def add_described(self, kind: Any, element: Sequence[int]) -> None:
        """Add an array that a layout describes; `element` is its element type as layouts have it."""
        n, t, data = self._next_array()
        self.names |= {f"type_{n}": kind, f"element_{n}": np.array(element, np.int64)}
        aligned = int(as_dtype(kind.dtype).alignment) if kind.aligned else 1
        self.alike += [
            f"words[{t + L.TENSOR_KIND}] & {L.TENSOR_KIND_MASK} == {L.TENSOR_DESCRIBED}",
            f"{FIRST_ADDRESS} <= {data} < {END_OF_ADDRESSES}",
        ]
        self.reading.append(
            f"r{n} = layouts + {L.WORD} * (words[{t + L.TENSOR_SHAPE}] & {L.LOW_HALF})"
        )
        self.fitting.append(
            f"fits_layout(r{n}, {data}, {kind.ndim}, {_ORDERS[kind.layout]}, {aligned}, element_{n})"
        )
        self.values.append(f"array_at(type_{n}, {data}, r{n})")

    def add_contiguous(self, kind: Any, dtype: int) -> None:
        """Add an array whose tensor has its dimensions itself."""
        n, t, data = self._next_array()
        dims = [
            f"words[{t + L.TENSOR_SHAPE + (d >> 1)}] >> {32 * (d & 1)} & {L.LOW_HALF}"
            for d in range(kind.ndim)
        ]
        empty = " or ".join(f"({dim}) == 0" for dim in dims)
        self.alike += [
            f"words[{t + L.TENSOR_KIND}] & {L.TENSOR_KIND_MASK} == {dtype}",
            f"words[{t + L.TENSOR_DIMS}] >> 32 == {kind.ndim}",
            f"({FIRST_ADDRESS} <= {data} < {END_OF_ADDRESSES} or {empty})",
        ]
        self.names[f"dtype_{n}"] = kind.dtype
        self.values.append(f"carray(pointer({data}), ({', '.join(dims)},), dtype_{n})")

    def compile(self, function: Any, answer: Sequence[str] = (), otherwise: int = 0) -> Any:
        """Compile the entry; `answer` are statements about `value`, `otherwise` the entry before it."""
        other = f"call_leaf({otherwise}, blob, layouts)" if otherwise else str(L.ILLEGAL)
        lines = [
            f"words = carray(pointer(blob), {self.first_scalar + self.scalars}, int64)",
            f"kinds = carray(pointer(blob + {J.KINDS_FROM_ARGS}), {self.scalars}, uint8)",
            f"out = carray(pointer(blob + {J.VALUE_FROM_ARGS}), 2, int64)",
            f"if not ({' and '.join(self.alike)}): return {other}",
            *self.reading,
            *([f"if not ({' and '.join(self.fitting)}): return {other}"] if self.fitting else []),
            f"value = function({', '.join(self.values)})",
            *answer,
            f"return {L.OK}",
        ]
        names = _NAMES | self.names | {"function": function}
        exec("\n    ".join(["def entry(blob, layouts):", *lines]), names)
        entry = numba.njit(nogil=True)(names["entry"])
        entry.compile((types.int64, types.int64))
        return entry


def _entry(function: Any, kinds: Sequence[Kind], otherwise: int) -> Any:
    """Return the compiled entry of a leaf; `Leaf.run_task` has the words for what that refuses."""
    arrays = [kind for kind in kinds if isinstance(kind, types.Array)]
    numbers = list(kinds[len(arrays) :])
    if any(isinstance(kind, types.Array) for kind in numbers):
        raise TypeError(
            "the tensors of a task come first, then its scalars; order the parameters so"
        )
    code = EntryCode(len(arrays), len(numbers))
    for kind in arrays:
        dtype = find_dtype(as_dtype(kind.dtype))
        if dtype is None or kind.layout != "C" or kind.ndim > L.CONTINUOUS_TENSOR_MAX_DIMS:
            code.add_described(kind, element_words(as_dtype(kind.dtype)))
        else:
            code.add_contiguous(kind, int(dtype))
    if numbers:
        code.reading.append("wrong = False")
        code.fitting.append("not wrong")
    for i, kind in enumerate(numbers):
        code.reading.append(f"w{i} = words[{code.first_scalar + i}]")
        code.reading += _lines_of_number(i, kind)
        code.values.append(f"s{i}")
    return code.compile(function, otherwise=otherwise)


def _lines_of_number(i: int, kind: Kind) -> list[str]:
    """Return the lines that make number `i` of its word and what it was added as; see `_converted`.

    They note in `wrong` whether it is none of that type: one branch for all numbers compiles in less time
    than one for each. What is in no form that they take, such as an integer of 64 bits without a sign, is
    left to Python as well.
    """
    word, was, name = f"w{i}", f"kinds[{i}]", f"s{i}"
    low, high = _limits(kind)
    outside = f"(({word} < {low}) | ({word} >= {high}))"
    if kind == types.float64:
        return [f"{name} = as_float({word}, {was})"]
    if kind == types.float32:
        return [f"wrong |= ({was} == {L.RAW}) & {outside}", f"{name} = as_single({word}, {was})"]
    lines = [f"wrong |= {was} & {0xFF & ~(L.RAW | L.SIGNED)} != 0"]
    if kind == types.boolean:
        return [*lines, f"{name} = {word} != 0"]
    if kind == types.uint64:
        lines.append(f"wrong |= ({was} != {L.RAW}) & ({word} < 0)")
    elif kind.bitwidth < 64:
        lines.append(f"wrong |= {outside}")
    return [*lines, f"{name} = {kind.name}({word})"]
