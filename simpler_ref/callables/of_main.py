"""Classes and functions of `__main__`: workers have those of their start; others travel by value."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

import numpy as np
from cloudpickle import cloudpickle as _tracker

from .by_value import ByValue
from .payloads import Serializer

_NAME = b"\x8c\x08__main__"
"""How a pickle names the module."""
_SHORT = 1 << 16
"""In bytes: a longer pickle is not searched for the name if the values are plain."""
_PLAIN = {np.ndarray, str, bytes, bytearray}


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


def as_bytes(items: Any, values: Iterable[Any], known: Mapping[str, Any] | None) -> bytes:
    """Return arguments as bytes.

    Parameters
    ----------
    items : Any
        What is pickled.
    values : Iterable
        The arguments in it.
    known : Mapping[str, Any] | None
        The classes and functions of `__main__` that the workers have; None: all.

    Notes
    -----
    Rule     CALL-VALUE-6
    """
    if _tracker.list_registry_pickle_by_value():
        return _by_value(items, known)
    try:
        data = pickle.dumps(items, 5)
    except Exception:
        return _by_value(items, known)
    if known is None or (len(data) > _SHORT and _PLAIN.issuperset(map(type, values))):
        return data
    return data if data.find(_NAME) < 0 else _by_value(items, known)


def _by_value(items: Any, known: Mapping[str, Any] | None) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, known).dump(items)
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


class _NamesOfMain:
    """A pickler's part that pickles by name what workers have in their `__main__`."""

    def __init__(self, file: io.BytesIO, known: Mapping[str, Any] | None) -> None:
        super().__init__(file, 5)  # type: ignore[call-arg]
        self._known = known

    def reducer_override(self, value: Any) -> Any:
        if (
            isinstance(value, (type, FunctionType))
            and value.__module__ == "__main__"
            and is_in_main(value, self._known)
        ):
            return NotImplemented
        return super().reducer_override(value)  # type: ignore[misc]


class _Pickler(_NamesOfMain, ByValue):
    """Pickles arguments."""


class CallablePickler(_NamesOfMain, Serializer):
    """Pickles callables: what they refer to in shared memory goes by its address."""
