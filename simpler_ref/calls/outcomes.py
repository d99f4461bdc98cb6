"""What a task returns or raises, as bytes that another process turns back into an object.

Small values become one word and a kind. Everything else becomes a block of memory, whose parts begin at
multiples of 64 bytes: a head (how many parts follow, and the size of each), a pickle, and the arrays that
the pickle refers to. A value that is an array needs no pickle: its head tells its type and shape.

An exception is rebuilt from its state, not by calling its class: `__init__` may have any signature. The
state has three parts: `args`; what its classes keep outside of `__dict__` (the fields of built-in
exceptions such as `OSError.errno`, and `__slots__`); and `__dict__`.

Rule     CALL-FAIL-3
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import reprlib
import struct
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..callables.pickling import ByValue, is_plain
from ..errors import RemoteTraceback, TaskError
from ..jit import layout as L
from ..system.types import Array
from ..workers.reports import (
    cut_traceback,
    cut_utf8,
    describe_exception,
    format_traceback,
    with_sources,
)
from .arguments import float_of

NONE, BOOL, INT, FLOAT = L.VALUE_NONE, L.VALUE_BOOL, L.VALUE_INT, L.VALUE_FLOAT
NUMPY_BOOL, NUMPY_INT64 = L.VALUE_NUMPY_BOOL, L.VALUE_NUMPY_INT64
NUMPY_FLOAT64, BLOCK, ERROR = L.VALUE_NUMPY_FLOAT64, L.VALUE_BLOCK, L.VALUE_ERROR
"""Kinds of outcomes; BLOCK and ERROR have a block of memory."""

ALIGNMENT = 64
"""In bytes: where the parts of a block begin."""

COPIED_BELOW = 64 << 10
"""In bytes: `decode_block` copies smaller arrays, so that they do not keep a whole block."""

TEXT_LIMIT, TRACE_LIMIT, EXCEPTION_LIMIT = 16 << 10, 64 << 10, 1 << 20
"""In bytes: of an exception's text, its traceback, and the pickled exception."""


class Outcome(NamedTuple):
    """What a task has returned or raised, ready to be written."""

    kind: int
    word: int = 0
    """The value of a small one, as a signed integer of 64 bits."""
    parts: Sequence[bytes | Array] = ()
    """Of a block, for which `write` needs so many bytes."""
    nbytes: int = 0


_NONE = Outcome(NONE)
_FALSE, _TRUE = Outcome(BOOL, 0), Outcome(BOOL, 1)
_DOUBLE, _WORD = struct.Struct("d"), struct.Struct("q")
_HEAD = struct.Struct("qq")
"""The first words of a head: how many parts follow, and the size of the pickle."""
_HEAD_ALONE = struct.Struct(f"qq{ALIGNMENT - 16}x")
_MOST_DIMS, _NAME = 16, 16
_ARRAY_HEAD = struct.Struct(f"qqq{_NAME}s{_MOST_DIMS}q")
"""The head of an array: _IS_ARRAY, where its elements begin, how many dimensions it has (inverted: the
first index runs fastest), its type and shape."""
_IS_ARRAY = -1
ARRAY_AT = -(-_ARRAY_HEAD.size // ALIGNMENT) * ALIGNMENT
"""In bytes: the elements of an array begin there in its block, or behind it."""
_JOINED_BELOW = 4096
"""In bytes: writing a shorter pickle together with its head is faster."""
_U64 = (1 << 64) - 1
_WORDS = range(-1 << 63, 1 << 63)
_NUMPY_KINDS = {np.bool_: NUMPY_BOOL, np.int64: NUMPY_INT64, np.float64: NUMPY_FLOAT64}


def encode(value: object) -> Outcome:
    """Return a value as an outcome; TypeError: it cannot be pickled."""
    kind: type = type(value)
    if value is None:
        return _NONE
    if kind is float:
        return Outcome(FLOAT, _WORD.unpack(_DOUBLE.pack(value))[0])
    if kind is int and value in _WORDS:
        return Outcome(INT, value)  # type: ignore[arg-type]
    if kind is bool:
        return _TRUE if value else _FALSE
    if kind is np.float64 or kind is np.int64 or kind is np.bool_:
        return Outcome(_NUMPY_KINDS[kind], encode(value.item()).word)  # type: ignore[attr-defined]
    if kind is np.ndarray:
        array: Any = value
        if head := array_head(array):
            raw = array.T if array.flags.fnc else array
            return Outcome(BLOCK, 0, (head, raw), ARRAY_AT + raw.nbytes)
    return _block(BLOCK, *_pickle(value))


def block_of_plain(value: object) -> tuple[tuple[bytes], int]:
    """Return the parts of a value for which `is_plain` is true, and how many bytes they have."""
    text = pickle.dumps(value, 5)
    data = _HEAD_ALONE.pack(1, len(text)) + text
    return (data,), len(data)


def array_head(value: Array, at: int = ARRAY_AT) -> bytes:
    """Return the head of an array whose elements begin there in its block.

    Nothing if its type needs more words, or it has too many dimensions.
    """
    dtype, dims, shape = value.dtype, value.ndim, value.shape
    if dtype.isbuiltin != 1 or dtype.hasobject or dims > _MOST_DIMS:
        return b""
    name = dtype.str.encode()
    form = ~dims if value.flags.fnc else dims
    rest = shape + (0,) * (_MOST_DIMS - dims)
    return _ARRAY_HEAD.pack(_IS_ARRAY, at, form, name, *rest) if len(name) <= _NAME else b""


_dtype_named = functools.lru_cache(maxsize=256)(lambda name: np.dtype(name.rstrip(b"\0").decode()))


def _array_in(memory: Any) -> Array:
    _, at, form, name, *shape = _ARRAY_HEAD.unpack_from(memory)
    dims, order = (~form, "F") if form < 0 else (form, "C")
    return _view(memory[at:], tuple(shape[:dims]), _dtype_named(name), order)


def _block(kind: int, text: bytes, buffers: Sequence[Array] = ()) -> Outcome:
    """Return the outcome of a pickle and the arrays that it refers to."""
    if not buffers:
        head = _HEAD_ALONE.pack(1, len(text))
        parts = (head + text,) if len(text) < _JOINED_BELOW else (head, text)
        return Outcome(kind, 0, parts, ALIGNMENT + len(text))
    sizes = [len(text), *[buffer.nbytes for buffer in buffers]]
    head = struct.pack(f"{1 + len(sizes)}q", len(sizes), *sizes)
    nbytes = len(head)
    for size in sizes:
        nbytes = _align(nbytes) + size
    return Outcome(kind, 0, (head, text, *buffers), nbytes)


def _align(offset: int) -> int:
    return (offset + ALIGNMENT - 1) & -ALIGNMENT


def write(parts: Sequence[bytes | Array], memory: memoryview) -> None:
    """Write the parts of an outcome into memory, which has the format "B" and room for `nbytes`."""
    offset = 0
    for part in parts:
        start = _align(offset)
        if isinstance(part, bytes):
            offset = start + len(part)
            memory[start:offset] = part
        else:
            offset = start + part.nbytes
            np.copyto(_view(memory[start:offset], part.shape, part.dtype), part)


# ---------------------------------------------------------------- pickles
_ARRAY = pickle.PickleBuffer(bytearray(1))
"""Stands for an array in a pickle."""


def _view(buffer: Any, shape: tuple[int, ...], dtype: Any, order: Any = "C") -> Array:
    view: Array = np.ndarray(shape, dtype, buffer, order=order)
    return view


def _collect(buffers: list[Array], buffer: pickle.PickleBuffer) -> None:
    """Take a buffer that an object other than an array has put beside the pickle."""
    if buffer is not _ARRAY:
        buffers.append(np.asarray(buffer.raw()))


def _reduce(value: Any, buffers: list[Array]) -> Any:
    """Pickle arrays as their shape, with the elements beside the pickle, and exceptions as their state.

    numpy does so only for writable contiguous arrays; read-only ones would come back read-only.
    """
    kind = type(value)
    if kind is np.ndarray:
        dtype = value.dtype
        if dtype.hasobject:
            return NotImplemented
        name = dtype.str if dtype.isbuiltin == 1 else dtype
        order = "F" if value.flags.fnc else "C"
        raw = value.view(f"V{dtype.itemsize}") if dtype.names else value  # copied with its gaps
        buffers.append(raw.T if order == "F" else raw)
        return _view, (_ARRAY, value.shape, name, order)
    if kind is Several:
        buffers += value.buffers
        return Several, (value.texts, value.counts, [_ARRAY] * len(value.buffers))
    if issubclass(kind, BaseException):
        own = [vars(base) for base in kind.__mro__ if _is_python(base)]
        if not any("__reduce__" in one or "__reduce_ex__" in one for one in own):
            return restore, (kind, state_of(value))
    return NotImplemented


class _Pickler(pickle.Pickler):
    """Pickles one value after another."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        self.buffers: list[Array] = []
        super().__init__(self.file, 5, buffer_callback=partial(_collect, self.buffers))

    def reducer_override(self, value: Any) -> Any:
        return _reduce(value, self.buffers)

    def take(self, value: object) -> tuple[bytes, list[Array]]:
        """Return a value as a pickle and the arrays that it refers to."""
        self.dump(value)
        taken = self.file.getvalue(), self.buffers.copy()
        self.clear_memo()
        self.file.seek(0)
        self.file.truncate()
        self.buffers.clear()
        return taken


_idle: list[_Pickler] = []
"""Picklers that no thread uses: making one takes longer than a small pickle."""


def _pickle(value: object) -> tuple[bytes, list[Array]]:
    """Return a value as a pickle and the arrays that it refers to; TypeError: it cannot be pickled."""
    if is_plain(value):
        return pickle.dumps(value, 5), []
    try:
        pickler = _idle.pop()
    except IndexError:
        pickler = _Pickler()
    try:
        taken = pickler.take(value)
        _idle.append(pickler)
        return taken
    except Exception:  # it has functions or classes that other processes cannot import
        file, buffers = io.BytesIO(), list[Array]()
    try:
        first = partial(_reduce, buffers=buffers)
        ByValue(file, first=first, buffer_callback=partial(_collect, buffers)).dump(value)
        return file.getvalue(), buffers
    except Exception as error:
        raise TypeError(
            f"a task cannot return this {type(value).__qualname__}, since it cannot be pickled "
            f"({type(error).__name__}: {error}); return numbers, arrays or other picklable values"
        ) from error


class Several:
    """Values in one outcome that are pickled one by one: they have nothing in common."""

    def __init__(
        self, texts: Sequence[bytes] = (), counts: Sequence[int] = (), buffers: Sequence[Any] = ()
    ) -> None:
        self.texts, self.counts, self.buffers = list(texts), list(counts), list(buffers)
        """The pickle of each value, and how many arrays it refers to; and all these arrays."""
        self._firsts = [0, *itertools.accumulate(self.counts)]

    def add(self, value: object) -> None:
        text, buffers = _pickle(value)
        self.texts.append(text)
        self.counts.append(len(buffers))
        self.buffers += buffers

    def __getitem__(self, place: int) -> Any:
        """Return a value, in the process that has got the outcome."""
        first = self._firsts[place]
        return _unpickle(self.texts[place], self.buffers[first : first + self.counts[place]])


# ---------------------------------------------------------------- back to objects
class _Block(np.ndarray):
    """The memory of an outcome, for as long as arrays refer to it."""

    keep: object


_OF_WORD: dict[int, Callable[[int], Any]] = {
    NONE: lambda _: None,
    BOOL: bool,
    INT: int,
    L.VALUE_UNSIGNED: lambda word: int(word) & _U64,
    FLOAT: float_of,
    NUMPY_BOOL: np.bool_,
    NUMPY_INT64: np.int64,
    NUMPY_FLOAT64: lambda word: np.float64(float_of(word)),
}


def decode_word(kind: int, word: int) -> Any:
    """Return the value of an outcome without a block."""
    return _OF_WORD[kind](word)


def size_of(memory: memoryview) -> int:
    """Return how many bytes `write` has written into a block."""
    count, size = _HEAD.unpack_from(memory)
    if count == _IS_ARRAY:
        return int(memory[_WORD.size : 2 * _WORD.size].cast("q")[0] + _array_in(memory).nbytes)
    end = _align(_WORD.size * (1 + count)) + size
    for size in struct.unpack_from(f"{count - 1}q", memory, _HEAD.size):
        end = _align(end) + size
    return int(end)


def decode_block(memory: memoryview, keep: object = None) -> tuple[Any, bool]:
    """Return the value in a block that `write` has written, and whether it refers to the block.

    `keep` lives for as long as arrays refer to the block; if it is None, all arrays are copied.
    """
    count, size = _HEAD.unpack_from(memory)
    if count == _IS_ARRAY:
        array = _array_in(memory)
        if keep is None or array.nbytes < COPIED_BELOW:
            return array.copy("K"), False
        return _array_in(_lasting(memory, keep)), True
    end = _align(_WORD.size * (1 + count)) + size
    text = memory[end - size : end]
    if count == 1:
        return _unpickle(text), False
    sizes = struct.unpack_from(f"{count - 1}q", memory, _HEAD.size)
    kept = keep is not None and max(sizes) >= COPIED_BELOW
    if kept:
        memory = _lasting(memory, keep)
    buffers: list[Any] = []
    for size in sizes:
        start = _align(end)
        end = start + size
        part = memory[start:end]
        buffers.append(part if kept and size >= COPIED_BELOW else bytearray(part))
    return _unpickle(text, buffers), kept


def _lasting(memory: memoryview, keep: object) -> memoryview:
    """Return memory that something is kept with, as long as arrays refer to it."""
    block = np.asarray(memory).view(_Block).view()  # numpy skips a base over a plain array
    block.keep = keep
    return memoryview(block)


def _unpickle(text: bytes | memoryview, buffers: Sequence[Any] = ()) -> Any:
    try:
        return pickle.loads(text, buffers=buffers)
    except Exception as error:
        raise pickle.UnpicklingError(
            f"what the task returned cannot be rebuilt in this process: {type(error).__name__}: {error}"
        ) from error


# ---------------------------------------------------------------- the state of exceptions
State = tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]
"""Of an exception: `args`, members outside of `__dict__`, `__dict__`."""

_MOST_TEXT = 4096
"""Characters that stay of a text that is too long."""
_NOT_KEPT = {"__dict__", "__weakref__", "__class__"}


def _is_python(kind: type) -> bool:
    return bool(kind.__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE


def _members(kind: type[BaseException]) -> Iterator[tuple[str, Any]]:
    """Yield name and descriptor of what the instances of a class keep outside of `__dict__`.

    The object of an `AttributeError` is left out, as pickle does: it may be large, or a module.
    """
    for base in kind.__mro__:
        for name, found in vars(base).items():
            if (
                isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType))
                and base is not BaseException
                and name not in _NOT_KEPT
                and (base, name) != (AttributeError, "obj")
            ):
                yield name, found


def state_of(exception: BaseException) -> State:
    """Return the state from which `restore` makes an equal exception."""
    members = {}
    for name, member in _members(type(exception)):
        with suppress(AttributeError):  # a slot that is not set
            value = member.__get__(exception)
            # None in a field of a built-in exception: not set
            if value is not None or _is_python(member.__objclass__):
                members[name] = value
    return exception.args, members, dict(exception.__dict__)


def restore(kind: type[BaseException], state: State) -> Any:
    """Return an exception with some state, without calling `__init__` or `__new__` of its class."""
    args, members, attributes = state
    builtin = kind
    while _is_python(builtin):
        builtin = builtin.__base__  # type: ignore[assignment]
    of_group = (members["message"], members["exceptions"]) if "exceptions" in members else ()
    made: Any = builtin.__new__(kind, *of_group)
    for name, member in _members(kind):
        if name in members:
            with suppress(AttributeError, TypeError):  # a read-only one, set by __new__
                member.__set__(made, members[name])
    made.__dict__.update(attributes)
    BaseException.__setattr__(made, "args", args)
    return made


class Remains:
    """What can be sent of an exception; unpickled, it is that exception."""

    def __init__(self, exception: BaseException) -> None:
        self._room = EXCEPTION_LIMIT // 2
        self.left: list[str] = []
        """What is left out, since it cannot be sent or is too long, and why."""
        args, members, attributes = state_of(exception)
        members = {name: one for name, one in members.items() if self._fits(name, one)}
        args = tuple(
            one if self._fits(f"args[{i}]", one) else _short(one) for i, one in enumerate(args)
        )
        attributes = {name: one for name, one in attributes.items() if self._fits(name, one)}
        self._state = args, members, attributes
        self._kind = type(exception)

    def _fits(self, name: str, value: object) -> bool:
        try:
            text, buffers = _pickle(value)
            nbytes = len(text) + sum(one.nbytes for one in buffers)
        except BaseException as error:  # whatever the value does
            self.left.append(f"{name} ({error.__cause__ or error})")
            return False
        if nbytes > self._room:
            self.left.append(f"{name} ({nbytes} bytes are too many)")
            return False
        self._room -= nbytes
        return True

    def __reduce__(self) -> Any:
        return restore, (self._kind, self._state)


def _short(value: object) -> str:
    if isinstance(value, str):
        return value[:_MOST_TEXT]
    try:
        return reprlib.repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


# ---------------------------------------------------------------- exceptions
ENDS_LOOPS = (StopIteration, StopAsyncIteration)


def encode_error(exception: BaseException) -> Outcome:
    """Return an exception as an outcome; whatever the exception does, this raises none."""
    try:
        text = describe_exception(exception)
        lines = format_traceback(exception)
    except BaseException:
        text, lines = "an exception that cannot be described", ""
    block, left = _pickle_exception(exception)
    if left:
        lines += f"left out, since the program cannot get it: {', '.join(left)}\n"
    report = cut_utf8(text, TEXT_LIMIT).decode(), cut_traceback(lines, TRACE_LIMIT).decode(), block
    return _block(ERROR, pickle.dumps(report, 5))


def error_block(exception: BaseException) -> bytes:
    """Return an exception as the block that `decode_error` reads."""
    return _bytes_of(encode_error(exception))


def report_block(text: str, trace: str, exception: bytes) -> bytes:
    """Return the block that `decode_error` reads, of an exception that was encoded before."""
    return _bytes_of(_block(ERROR, pickle.dumps((text, trace, exception), 5)))


def read_report(memory: memoryview) -> tuple[str, str, bytes]:
    """Return the text, the traceback and the pickled exception in the block of an error."""
    report: tuple[str, str, bytes] = decode_block(memory)[0]
    return report


def _bytes_of(outcome: Outcome) -> bytes:
    block = bytearray(outcome.nbytes)
    write(outcome.parts, memoryview(block))
    return bytes(block)


def _pickle_exception(exception: BaseException) -> tuple[bytes, list[str]]:
    """Return an exception as a block, and what it lacks; nothing if its type cannot be sent."""
    with suppress(BaseException):  # whatever the exception does
        if block := _block_of(exception):
            return block, []
    with suppress(BaseException):
        remains = Remains(exception)
        if block := _block_of(remains):
            return block, remains.left
    return b"", []


def _block_of(value: object) -> bytes:
    """Return a value as a block; nothing if it is too long for an exception."""
    outcome = _block(BLOCK, *_pickle(value))
    return _bytes_of(outcome) if outcome.nbytes <= EXCEPTION_LIMIT else b""


def decode_error(memory: memoryview, where: str, **details: Any) -> Exception:
    """Return the exception to raise in the program, with what is known of its task as the cause.

    It is the one of the task. One that ends programs or loops (`SystemExit`, `StopIteration`), or that
    is unknown in this process, is a `TaskError` with its text instead. `where` says which task of which
    worker it was; `details` are `task`, `callable_name`, `worker` and `pid`.
    """
    text, trace, block = read_report(memory)
    trace = with_sources(trace)
    original: object = None
    if block:
        try:
            original, _ = decode_block(memoryview(block))
        except (Exception, SystemExit):
            original = None
    if not isinstance(original, Exception) or isinstance(original, ENDS_LOOPS):
        return TaskError(f"{where}: {text}", remote_traceback=trace, **details)
    cause = RemoteTraceback(trace, where=where, **details)
    vars(BaseException)["__cause__"].__set__(original, cause)  # of a frozen one, too
    return original
