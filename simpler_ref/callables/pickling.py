"""Pickling of callables and arguments: cloudpickle, and what this package does differently.

Functions and classes that other processes cannot import travel by value, arrays in shared memory by
address. Workers have the functions and classes of `__main__` of their start; later ones travel by value.

Rule     FLOW-PAYLOAD-4, WM-RANDOM-1, CALL-VALUE-2, WM-START-3
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import BuiltinMethodType, CodeType, FunctionType, MethodType
from typing import Any, ClassVar, TypeAlias

import numpy as np
from cloudpickle import cloudpickle
from numpy.lib.array_utils import byte_bounds

from ..model.tensor import ContinuousTensor, view_memory
from ..model.visibility import is_shared
from ..system.regions import is_private

_reduce = cloudpickle.Pickler.dispatch_table[CodeType]
_BY_NAME = type, FunctionType, type(functools.cache(len))
_NOTHING: Mapping[str, Any] = {}
Reduce: TypeAlias = Callable[[Any], Any]
Reducers: TypeAlias = Mapping[type, Reduce]
"""How objects of some types are pickled."""


def _code_of(filename: str, make: Any, parts: tuple[Any, ...]) -> CodeType:
    made: CodeType = make(*parts)
    return made.replace(co_filename=filename)


def _reduce_with_filename(code: CodeType) -> tuple[Any, ...]:
    return _code_of, ("".join(code.co_filename), *_reduce(code))


def module_with(method: Any) -> Any:
    """Return the module whose global generator a method is of; None if it is of none."""
    owner = getattr(method, "__self__", None)
    for name, attribute in (("random", "_inst"), ("numpy.random.mtrand", "_rand")):
        module = sys.modules.get(name)
        if owner is not None and module is not None and owner is getattr(module, attribute, None):
            return module
    return None


# ---------------------------------------------------------------- functools.lru_cache
_Remembering = type(functools.cache(len))


def _is_importable(function: Any) -> bool:
    """Say whether pickle finds a function by its name in any process."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function and function.__module__ != "__main__"


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
    each worker draws from its own.

    Parameters
    ----------
    known : Mapping or None
        The classes and functions of `__main__` that the workers have, which go by name; None: all.
    first : Callable
        Returns how an object is pickled in another way than usual, or NotImplemented.
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
        """Return how an object is pickled in another way than usual."""
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
        if type(obj) is _Remembering and not _is_importable(obj):
            about = obj.cache_parameters(), obj.__name__, obj.__qualname__
            return _remembering, about, obj.__wrapped__, None, None, _complete
        return super().reducer_override(obj)

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_with_filename}, cloudpickle.Pickler.dispatch_table
    )


def pickled(value: Any, first: Reduce, known: Mapping[str, Any] | None = _NOTHING) -> bytes:
    """Return a value as `ByValue` pickles it."""
    buffer = io.BytesIO()
    ByValue(buffer, known, first).dump(value)
    return buffer.getvalue()


def is_in_main(value: Any, known: Mapping[str, Any] | None) -> bool:
    """Say whether the workers find the same in their `__main__`, by its name."""
    found: Any = sys.modules["__main__"]
    top, *_ = names = value.__qualname__.split(".")
    if known is not None and known.get(top) is not getattr(found, top, known):
        return False
    for name in names:
        found = getattr(found, name, None)
    return found is value


# ---------------------------------------------------------------- callables, and arrays in shared memory
def _view_shared(
    span: tuple[int, int, int], shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any
) -> Any:
    """Return an array over shared memory that this process has mapped, too."""
    low, nbytes, offset = span
    if not is_shared(low, nbytes):
        raise ValueError(
            f"the {nbytes} bytes at {low:#x}, an array that the callable refers to, are not in this "
            "process: it was mapped after the workers were started, or it is shared by other means; "
            "let the callable refer to an array of Worker.share or Worker.empty"
        )
    memory = view_memory(low, (nbytes,), np.dtype(np.uint8))
    return np.ndarray(shape, dtype, buffer=memory, offset=offset, strides=strides)


def _view_of(reduced: tuple[Any, tuple[Any, ...]], readonly: bool) -> memoryview:
    """Return what `ByAddress` makes of a memoryview."""
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
CONTAINERS = frozenset((tuple, list, dict))
_MOST_PLAIN, _DEEPEST = 512, 8
"""How long a text or a container is at most that is looked through, and how deep they are."""


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


def is_plain(value: Any, depth: int = _DEEPEST) -> bool:
    """Say whether pickle itself can make a value: numbers, short texts, and small containers of them."""
    kind = type(value)
    if kind in _NUMBERS:
        return True
    if kind is str or kind is bytes:
        return len(value) <= _MOST_PLAIN
    if kind not in CONTAINERS or len(value) > _MOST_PLAIN or not depth:
        return False
    for one in (*value, *value.values()) if kind is dict else value:
        if not is_plain(one, depth - 1):
            return False
    return True


def _has_no_objects(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return kind is not np.ndarray or not value.dtype.hasobject
    return is_plain(value)


class ArgumentPickler:
    """Pickles arguments, one after another.

    Parameters
    ----------
    known : Mapping or None
        See `ByValue`.
    reducers : Mapping
        How objects of some types are pickled.
    begin : Callable
        Called if what was met so far is pickled once more.
    """

    def __init__(
        self,
        known: Mapping[str, Any] | None,
        reducers: Reducers,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._known, self._reducers, self._begin = known, reducers, begin
        self._buffer = io.BytesIO()
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

    @functools.cached_property
    def _quick(self) -> pickle.Pickler:
        made = pickle.Pickler(self._buffer, 5)
        made.dispatch_table = {**copyreg.dispatch_table, **self._reducers}
        return made

    def _quickly(self, items: Any) -> bytes:
        buffer = self._buffer
        self._quick.clear_memo()
        buffer.seek(0)
        buffer.truncate()
        self._quick.dump(items)
        return buffer.getvalue()

    def _by_value(self, items: Any) -> bytes:
        self._begin()
        return pickled(items, self._reduce, self._known)

    def _reduce(self, value: Any) -> Any:
        reduce = self._reducers.get(type(value))
        return NotImplemented if reduce is None else reduce(value)
