"""Pickling of callables and arguments: cloudpickle, and what this package does differently.

Functions and classes that other processes cannot import travel by value, arrays in shared memory by
address. Workers have the functions and classes of `__main__` of their start; later ones travel by value.
A serialised callable has an envelope, and is staged in a file for workers that run already.

Rule     REMOTE-REG-11, FLOW-PAYLOAD-1, FLOW-PAYLOAD-2, FLOW-PAYLOAD-3, FLOW-PAYLOAD-4, FLOW-UNDO-3,
         WM-RANDOM-1, CALL-VALUE-2, WM-START-3, WM-THREAD-3
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import io
import itertools
import os
import pickle
import struct
import sys
import threading
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import BuiltinMethodType, CodeType, FunctionType, MethodType
from typing import Any, ClassVar, TypeAlias

import numpy as np
from cloudpickle import cloudpickle
from numpy.lib.array_utils import byte_bounds

from ..jit import layout as L
from ..model.tensor import ContinuousTensor, view_memory
from ..model.visibility import is_shared
from ..system.regions import covers, is_private, spans
from ..system.signals import signals_blocked
from ..system.types import Array
from .identity import _CLOUDPICKLE, _mismatch, build_python_serialized_descriptor

_reduce = cloudpickle.Pickler.dispatch_table[CodeType]
_Remembering = type(functools.cache(len))
_BY_NAME = type, FunctionType, _Remembering
_NOTHING: Mapping[str, Any] = {}
Reduce: TypeAlias = Callable[[Any], Any]
Reducers: TypeAlias = Mapping[type, Reduce]
"""How objects of some types are pickled."""


def _code_of(filename: str, make: Any, parts: tuple[Any, ...]) -> CodeType:
    made: CodeType = make(*parts)
    return made.replace(co_filename=filename)


def module_with(method: Any) -> Any:
    """Return the module whose global generator a method is of; None if it is of none."""
    owner = getattr(method, "__self__", None)
    for name, attribute in (("random", "_inst"), ("numpy.random.mtrand", "_rand")):
        module = sys.modules.get(name)
        if owner is not None and module is not None and owner is getattr(module, attribute, None):
            return module
    return None


def find_imported(module: str, name: str) -> Any:
    """Return what a module has under a name; None if it has nothing, or was not imported.

    To import it again would wait for a thread that still does so, and that may wait for this call.
    """
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


# ---------------------------------------------------------------- functools.lru_cache
def _remembering(parameters: dict[str, Any], name: str, qualname: str) -> Any:
    """Return a function that remembers its values; what it calls comes later, as it may refer to it."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return vars(wrapped)["function"](*args, **kwargs)

    wrapped.__name__, wrapped.__qualname__ = name, qualname
    return functools.lru_cache(**parameters)(wrapped)


def _complete(made: Any, function: Any) -> None:
    made.__wrapped__.function = function


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with the names of the files that functions are from.

    Tracebacks need them; cloudpickle 3.1.3 and later leave them out.
    Functions of the global generators, such as `random.random`, are methods. They go by name, so that
    each worker draws from its own. So do the classes and functions of `__main__` in `known`, which the
    workers have; None: all. `first` returns how an object is pickled otherwise, or NotImplemented.
    """

    def __init__(
        self,
        file: io.BytesIO,
        known: Mapping[str, Any] | None = _NOTHING,
        first: Reduce = lambda _: NotImplemented,
        **options: Any,
    ) -> None:
        super().__init__(file, 5, **options)
        self._known, self._first = known, first

    def reducer_override(self, obj: Any) -> Any:
        reduced = self._first(obj)
        if reduced is not NotImplemented:
            return reduced
        if (
            isinstance(obj, _BY_NAME)
            and obj.__module__ == "__main__"
            and is_in_main(obj, self._known)
        ):
            return NotImplemented
        if isinstance(obj, BuiltinMethodType | MethodType) and (module := module_with(obj)):
            return getattr, (module, obj.__name__)
        if type(obj) is _Remembering:
            module, name = obj.__module__, obj.__qualname__
            if module == "__main__" or find_imported(module, name) is not obj:
                about = obj.cache_parameters(), obj.__name__, name
                return _remembering, about, obj.__wrapped__, None, None, _complete
        return super().reducer_override(obj)

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: lambda code: (_code_of, ("".join(code.co_filename), *_reduce(code)))},
        cloudpickle.Pickler.dispatch_table,
    )


def pickled(
    value: Any, first: Reduce, known: Mapping[str, Any] | None = _NOTHING, **options: Any
) -> bytes:
    buffer = io.BytesIO()
    ByValue(buffer, known, first, **options).dump(value)
    return buffer.getvalue()


def is_in_main(value: Any, known: Mapping[str, Any] | None) -> bool:
    """Say whether the workers find the same in their `__main__`, by its name."""
    top = value.__qualname__.split(".")[0]
    if known is not None and known.get(top) is not getattr(sys.modules["__main__"], top, known):
        return False
    return find_imported("__main__", value.__qualname__) is value


# ---------------------------------------------------------------- callables, and arrays in shared memory
def _view_shared(
    span: tuple[int, int, int], shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any
) -> Any:
    """Return an array over shared memory that this process has mapped, too."""
    low, nbytes, offset = span
    is_known = covers(spans(), low, nbytes) is not None  # the others take milliseconds to find
    if not is_known and not is_shared(low, nbytes):
        raise ValueError(
            f"the {nbytes} bytes at {low:#x}, an array that the callable refers to, are not in this "
            "process: it was mapped after the workers were started, or it is shared by other means; "
            "let the callable refer to an array of Worker.share or Worker.empty"
        )
    memory = view_memory(low, (nbytes,), np.dtype(np.uint8))
    return np.ndarray(shape, dtype, buffer=memory, offset=offset, strides=strides)


def _view_of(reduced: tuple[Any, tuple[Any, ...]], readonly: bool) -> memoryview:
    make, about = reduced
    view = memoryview(make(*about))
    return view.toreadonly() if readonly else view


class ByAddress:
    """Has arrays in shared memory pickled by address, not copied.

    Two closures over two shared arrays are two callables, whatever the arrays contain. On another machine
    an address means nothing, or something else: what goes `to_endpoints` must have none.
    """

    def __init__(self, *, to_endpoints: bool = False) -> None:
        self._to_endpoints = to_endpoints
        self.shared: list[tuple[int, int]] = []
        """Address and bytes of those that were met."""

    def __call__(self, obj: Any) -> Any:
        """Return how an object is pickled, NotImplemented if it is another one."""
        if type(obj) is memoryview:
            reduced = self(np.asarray(obj))
            return reduced if reduced is NotImplemented else (_view_of, (reduced, obj.readonly))
        if type(obj) is np.ndarray and obj.nbytes and not is_private(obj):
            low, high = byte_bounds(obj)
            if is_shared(low, high - low):
                self._require_address_to_mean_something()
                self.shared.append((low, high - low))
                offset = obj.__array_interface__["data"][0] - low
                span = low, high - low, offset
                return _view_shared, (span, obj.shape, obj.strides, obj.dtype)
        if type(obj) is ContinuousTensor:
            if obj.data:
                self._require_address_to_mean_something()
            return ContinuousTensor._from_wire, (obj._wire,)
        return NotImplemented

    def _require_address_to_mean_something(self) -> None:
        if self._to_endpoints:
            raise TypeError(
                "it refers to memory of this machine, which an endpoint does not see: give it the array "
                "as an argument"
            )


# ---------------------------------------------------------------- classes and functions of `__main__`
_NAME = b"\x8c\x08__main__"
"""How a pickle names the module."""
_SHORT = 1 << 16
"""In bytes: a longer pickle is not searched for the name if the values are plain."""
_PLAIN = {np.ndarray, str, bytes, bytearray}
_NUMBERS = {int, float, bool, type(None)}
_CONTAINERS = frozenset((tuple, list, dict))
PICKLED = dict.fromkeys((str, bytes, *_CONTAINERS))
"""Types of plain values that are no numbers."""
_MOST_PLAIN, _OF_ITSELF = 512, 4
"""How long texts and containers are at most together, and what each adds of itself: so none is deep."""


def inherited() -> dict[str, Any]:
    """Return what can be called of `__main__` in a process which is forked now.

    cloudpickle gets to know the classes, so that those to which a later function refers are the same.
    """
    names = list(vars(sys.modules["__main__"]).items())
    found = {name: value for name, value in names if callable(value)}
    for value in found.values():
        if isinstance(value, type) and value.__module__ == "__main__":
            with suppress(AttributeError):  # another version of cloudpickle
                cloudpickle._get_or_create_tracker_id(value)
    return found


def is_plain(value: Any) -> bool:
    """Say whether pickle itself can make a value: numbers, and short texts and containers of them.

    It looks at no more than about as many parts as fit beside a call, however often one is in another.
    """
    left, parts = _MOST_PLAIN, [value]
    for one in parts:
        kind = type(one)
        if kind in _NUMBERS:
            continue
        if kind is not str and kind is not bytes and kind not in _CONTAINERS:
            return False
        left -= len(one) + _OF_ITSELF
        if left < 0:
            return False
        if kind in _CONTAINERS:
            parts += one
            if kind is dict:
                parts += one.values()
    return True


def _has_no_objects(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return kind is not np.ndarray or not value.dtype.hasobject
    return is_plain(value)


class _Table(dict[type, Reduce]):
    """What reduces objects, by type; arrays of a class derived from numpy's, if anything, `derived`."""

    derived: Reduce | None = None

    def __missing__(self, kind: type) -> Reduce:
        if self.derived is None or not issubclass(kind, np.ndarray):
            raise KeyError(kind)
        return self.derived


class ArgumentPickler:
    """Pickles arguments, one after another; `begin` is called if what was met is pickled once more.

    `derived` reduces arrays of a class derived from numpy's. `look` is shown the memory of which other
    objects put a copy into the pickle, and returns True.
    """

    def __init__(
        self,
        known: Mapping[str, Any] | None,
        reducers: Reducers,
        begin: Callable[[], None] = lambda: None,
        derived: Reduce | None = None,
        look: Callable[[pickle.PickleBuffer], bool] | None = None,
    ) -> None:
        self._known, self._reducers, self._begin = known, reducers, begin
        self._derived, self._look = derived, look
        self._buffer = io.BytesIO()
        self._quick: pickle.Pickler | None = None
        self._only_by_value = bool(cloudpickle.list_registry_pickle_by_value())

    def as_bytes(self, items: Any, values: Iterable[Any]) -> bytes:
        """Return arguments as bytes; `values` are the arguments in what is pickled."""
        if self._only_by_value:
            return self._by_value(items)
        are_plain = all(map(_has_no_objects, values))
        try:
            data = pickle.dumps(items, 5) if are_plain else self._quickly(items)
        except Exception:
            return self._by_value(items)
        if self._known is None or (are_plain and len(data) > _SHORT):
            return data
        return data if data.find(_NAME) < 0 else self._by_value(items)

    def _quickly(self, items: Any) -> bytes:
        if self._quick is None:
            self._quick = pickle.Pickler(self._buffer, 5, buffer_callback=self._look)
            table = _Table({**copyreg.dispatch_table, **self._reducers})
            table.derived = self._derived
            self._quick.dispatch_table = table
        self._quick.clear_memo()
        self._buffer.seek(0)
        self._buffer.truncate()
        self._quick.dump(items)
        return self._buffer.getvalue()

    def _by_value(self, items: Any) -> bytes:
        self._begin()
        return pickled(items, self._reduce, self._known, buffer_callback=self._look)

    def _reduce(self, value: Any) -> Any:
        reduce = self._reducers.get(type(value))
        if reduce is None and isinstance(value, np.ndarray):
            reduce = self._derived
        return NotImplemented if reduce is None else reduce(value)


# ---------------------------------------------------------------- large arrays, copied once
def _view(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, mode: str
) -> Array:
    """Return, in a worker, an array over the memory of one that is shared."""
    array = view_memory(address, shape, dtype, strides=strides)
    if mode == "c":
        return np.array(array)
    array.flags.writeable = mode in ("r+", "w+")
    return array


class SharedArrays:
    """The arrays of some pickles for the workers of this machine, each copied once.

    Pickles have the addresses, since no task is to write there. The copies last as long as this, and as
    calls that were submitted by then; an array must not change meanwhile. Arrays of fewer bytes than
    `least` are pickled, unless they are shared already. The mode is as that of `numpy.memmap`: "r", for
    arrays that tasks cannot write; "r+"; "c", for copies.
    """

    def __init__(self, stream: Any, least: float, mode: str = "r", *, of_shared: str = "r") -> None:
        self._session = stream._session
        self._least, self._mode, self._of_shared = least, mode, of_shared
        self._copies: dict[int, tuple[weakref.ref[Any], Array]] = {}
        """By the ids of the arrays that they are copies of."""
        self.reducers: Reducers = {np.ndarray: self.reduce, np.memmap: self.reduce}
        self._lock = threading.Lock()

    def pickle(self, value: Any) -> bytes:
        """Return a value as bytes, for a call that is submitted before this is given up."""
        with self._lock:
            pickler = ArgumentPickler({}, self.reducers)  # what __main__ has may be new since
            return pickler.as_bytes(value, (value,))

    def reduce(self, array: Any) -> Any:
        if array.dtype.hasobject or not array.nbytes:
            return array.__reduce_ex__(5)
        if self._is_shared(array):
            mode = self.mode_of_shared(array)
        elif array.nbytes < self._least:
            return self.reduce_small(array)
        else:
            array, mode = self._copy(array), self._mode
        address = array.__array_interface__["data"][0]
        return _view, (address, array.shape, array.strides, array.dtype, mode)

    def _is_shared(self, array: Any) -> bool:
        """Say whether workers see an array; the system is asked if that may be, for milliseconds."""
        low, high = byte_bounds(array)
        if any(start <= low < end for start, end in self._session.own_memory):
            return True
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        is_numpys = root.flags.owndata or array.nbytes < self._least
        return not is_numpys and is_shared(low, high - low)

    def mode_of_shared(self, array: Any) -> str:
        return self._of_shared

    def reduce_small(self, array: Any) -> Any:
        return array.__reduce_ex__(5)

    def _copy(self, array: Any) -> Array:
        key, copies = id(array), self._copies
        of, copy = copies.get(key, (None, array))
        if of is None or of() is not array:
            copy = self._session.arena.copy(array)
            copies[key] = weakref.ref(array, lambda _: copies.pop(key, None)), copy
        return copy


# ---------------------------------------------------------------- serialised callables
BY_REGISTRATION = b"by registration only: "
"""First bytes of the substitute for a callable that cannot be serialised; 16 that are unlike all others,
and why it cannot be, follow."""
MOST_WHY = 500


def serialize(target: Callable[..., Any], *, to_endpoints: bool = False) -> bytes:
    """Return the bytes that identify a callable.

    `to_endpoints`: none is an address of this machine.
    Workers forked after its registration still inherit a callable that cloudpickle cannot serialise (with
    a lock or a socket in a closure); only that registration identifies it.
    """
    try:
        return pickled(target, ByAddress(to_endpoints=to_endpoints))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:MOST_WHY]
        return BY_REGISTRATION + os.urandom(16) + why.encode(errors="replace")


def why_not_serialised(raw: bytes) -> str | None:
    """Return cloudpickle's error if `serialize` has returned a substitute; None if it has not."""
    if not raw.startswith(BY_REGISTRATION):
        return None
    why = raw[len(BY_REGISTRATION) + 16 :].rstrip(b"\0")  # a block has some behind it
    return why.decode(errors="replace")


def require_serialised(name: str, payload: bytes, running: bool = False) -> None:
    """Refuse a callable that cannot be sent to running workers, or to a fresh interpreter."""
    why = why_not_serialised(payload)
    if why is None:
        return
    where = "workers in a fresh interpreter"
    remedy = "make what it needs in the task, or give Worker(start_method='fork')"
    if running:
        where = "workers that run already"
        remedy = "register it before Worker.start or the first run"
    raise TypeError(f"{name} cannot be serialised for {where} ({why}); {remedy}")


# ---------------------------------------------------------------- payloads for running workers
_ENVELOPE = struct.Struct("<4sBBHQ")
_MAGIC = b"SPYC"
_ENVELOPE_VERSION = 1


def _head_of(payload: bytes) -> bytes:
    return _ENVELOPE.pack(_MAGIC, _ENVELOPE_VERSION, _CLOUDPICKLE, 0, len(payload))


def pack_payload(payload: bytes) -> bytes:
    """Put serialised Python into its envelope."""
    return _head_of(payload) + payload


def parse_python_callable_payload(payload: bytes) -> bytes:
    """Check an envelope and return the serialised Python in it.

    Raises CallableError HASHID_DESCRIPTOR_MISMATCH if it is none of this version, or has another length.
    """
    head, inner = payload[: _ENVELOPE.size], payload[_ENVELOPE.size :]
    if head != _head_of(inner):
        raise _mismatch(f"{head!r} begins no envelope of {len(inner)} bytes of serialised Python")
    return inner


_OBJECT = "object:"
_objects: dict[int, Any] = {}
_object_numbers = itertools.count()


@contextmanager
def staged(payload: bytes) -> Iterator[str]:
    """Keep bytes in shared memory and yield the name by which another process opens it.

    The memory has no name in the file system that a killed process could leave behind: other processes
    open it through this one. An answer can take the place of a request, see `answer_staged`.
    """
    fd = -1
    try:
        with signals_blocked():  # or a descriptor could leak
            fd = os.memfd_create("simpler-payload", os.MFD_CLOEXEC)
        with open(fd, "wb", closefd=False) as file:
            file.write(payload)
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        if fd >= 0:
            os.close(fd)


def answer_staged(name: str, size: int, answer: Callable[[bytes], bytes]) -> int:
    """Replace a request in shared memory with the answer, and return the answer's size."""
    result = answer(read_staged(name, size))
    with open(name, "r+b", buffering=0) as file:
        file.truncate(0)
        file.write(result)
    return len(result)


@contextmanager
def staged_object(target: Any) -> Iterator[str]:
    """Pass an object itself to workers that are threads of this process."""
    number = next(_object_numbers)
    _objects[number] = target
    try:
        yield f"{_OBJECT}{number}"
    finally:
        del _objects[number]


def read_staged(name: str, size: int) -> bytes:
    """Return the bytes staged under a name, if there are as many as announced."""
    try:
        # without waiting for the other end if it is a pipe
        with open(name, "rb", opener=lambda path, how: os.open(path, how | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno()).st_size
            raw = file.read(size) if size == found else b""
    except (OSError, ValueError) as error:
        raise _mismatch(f"nothing is staged as {name!r}: {error}") from None
    if not size == found == len(raw):
        raise _mismatch(f"{size} bytes were announced, {found} are staged")
    return raw


def read_payload(name: str, size: int, command: int, digest: bytes) -> Any:
    """Return the callable staged under a name, after checking it against its digest."""
    if name.startswith(_OBJECT):
        number = name.removeprefix(_OBJECT)
        if not number.isdecimal() or int(number) not in _objects:
            raise _mismatch(f"no object is staged as {name!r}")
        return _objects[int(number)]
    return load_payload(read_staged(name, size), command == L.CTRL_REGISTER, digest)


def load_payload(raw: bytes, chip: bool, digest: bytes) -> Any:
    """Return the callable serialised as some bytes, after checking them against its digest."""
    if chip:
        return raw
    payload = parse_python_callable_payload(raw)
    if hashlib.sha256(build_python_serialized_descriptor(payload)).digest() != digest:
        raise _mismatch("the payload is not the callable its digest stands for")
    return pickle.loads(payload)
