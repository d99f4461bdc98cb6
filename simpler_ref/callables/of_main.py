"""Classes and functions of `__main__`: workers have those of their start; others travel by value.

Rule     CALL-VALUE-2
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any, Protocol

import numpy as np
from cloudpickle import cloudpickle as _tracker

from .by_value import ByValue
from .payloads import Serializer

_NAME = b"\x8c\x08__main__"
"""How a pickle names the module."""
_SHORT = 1 << 16
"""In bytes: a longer pickle is not searched for the name if the values are plain."""
_PLAIN = {np.ndarray, str, bytes, bytearray}
Reducers = Mapping[type, Callable[[Any], Any]]
"""How objects of some types are pickled."""


class Enclosing(Protocol):
    """Takes out of arguments what is not pickled."""

    @property
    def reducers(self) -> Reducers:
        """How what it takes out is pickled."""

    def begin(self) -> None:
        """Begin again."""


def inherited() -> dict[str, Any]:
    """Return what can be called of `__main__` in a process which is forked now.

    cloudpickle gets to know the classes, so that those to which a later function refers are the same.
    """
    found = {
        name: value
        for name, value in list(vars(sys.modules["__main__"]).items())
        if callable(value)
    }
    for value in found.values():
        if isinstance(value, type) and value.__module__ == "__main__":
            with suppress(AttributeError):  # another version of cloudpickle
                _tracker._get_or_create_tracker_id(value)
    return found


def _is_plain(value: Any) -> bool:
    """Say whether a value has no objects within it."""
    kind = type(value)
    return kind in _PLAIN and (kind is not np.ndarray or not value.dtype.hasobject)


class ArgumentPickler:
    """Pickles arguments, one after another.

    Parameters
    ----------
    known : Mapping[str, Any] | None
        The classes and functions of `__main__` that the workers have; None: all.
    enclosed : Enclosing
        Takes out what is not pickled.
    """

    def __init__(self, known: Mapping[str, Any] | None, enclosed: Enclosing) -> None:
        self._known, self._enclosed = known, enclosed
        self._buffer = io.BytesIO()
        self._quick = pickle.Pickler(self._buffer, 5)
        self._quick.dispatch_table = {**copyreg.dispatch_table, **enclosed.reducers}
        self._only_by_value = bool(_tracker.list_registry_pickle_by_value())

    def as_bytes(self, items: Any, values: Iterable[Any]) -> bytes:
        """Return arguments as bytes; `values` are the arguments in what is pickled."""
        if self._only_by_value:
            return self._by_value(items)
        is_plain = all(map(_is_plain, values))
        try:
            data = pickle.dumps(items, 5) if is_plain else self._quickly(items)
        except Exception:
            return self._by_value(items)
        if self._known is None or (is_plain and len(data) > _SHORT):
            return data
        return data if data.find(_NAME) < 0 else self._by_value(items)

    def _quickly(self, items: Any) -> bytes:
        buffer = self._buffer
        self._quick.clear_memo()
        buffer.seek(0)
        buffer.truncate()
        self._quick.dump(items)
        return buffer.getvalue()

    def _by_value(self, items: Any) -> bytes:
        self._enclosed.begin()
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, self._known)
        pickler.reducers = self._enclosed.reducers
        pickler.dump(items)
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


_BY_NAME = type, FunctionType, type(functools.cache(len))


class _NamesOfMain:
    """A pickler's part that pickles by name what workers have in their `__main__`."""

    def __init__(self, file: io.BytesIO, known: Mapping[str, Any] | None) -> None:
        super().__init__(file, 5)  # type: ignore[call-arg]
        self._known = known

    def reducer_override(self, value: Any) -> Any:
        if (
            isinstance(value, _BY_NAME)
            and value.__module__ == "__main__"
            and is_in_main(value, self._known)
        ):
            return NotImplemented
        return super().reducer_override(value)  # type: ignore[misc]


class _Pickler(_NamesOfMain, ByValue):
    """Pickles arguments."""

    reducers: Reducers = {}  # noqa: RUF012 (nobody changes it)

    def reducer_override(self, value: Any) -> Any:
        reduce = self.reducers.get(type(value))
        return super().reducer_override(value) if reduce is None else reduce(value)


class CallablePickler(_NamesOfMain, Serializer):
    """Pickles callables: what they refer to in shared memory goes by its address."""
