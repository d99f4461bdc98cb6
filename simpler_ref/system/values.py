"""Values that programs give: each is checked once, and the error names it and the remedy."""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

FOREVER_S = 1 << 30
"""More seconds than this are no limit; a time-out of an option is at most as long."""
_MOST_PORT = (1 << 16) - 1
_TCP = re.compile(r"tcp://([^/]+):([0-9]+|\*)", re.ASCII)


def integer(name: str, value: Any) -> int:
    """Return a whole number of whatever type; an error names it `name`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        hint = "; its address is array.ctypes.data" if isinstance(value, np.ndarray) else ""
        raise TypeError(f"{name}={value!r:.60} is not a whole number{hint}") from None


def whole(name: str, value: Any, low: int, high: int) -> int:
    found = integer(name, value)
    if not low <= found <= high:
        raise ValueError(f"{name}={value} is out of range: {low} … {high}")
    return found


def position(what: str, i: Any, count: int) -> int:
    """Return a number in 0 … count-1, of one of `count` things; an IndexError if there is none."""
    if type(i) is int and 0 <= i < count:
        return i
    try:
        found = operator.index(i)
    except TypeError:
        raise TypeError(f"{what} index {i!r:.60} is not a whole number") from None
    if not 0 <= found < count:
        raise IndexError(f"{what} index {i} is out of range: there are {count}")
    return found


def number(name: str, value: Any, low: float, high: float, of_what: str = "") -> float:
    found = _real(name, value, of_what)
    if not low <= found <= high:
        raise ValueError(f"{name}={value} is out of range: {low} … {high}")
    return found


def _real(name: str, value: Any, of_what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r:.60} is not a number{of_what}")
    found: Any = value
    try:
        return float(found)
    except OverflowError:
        return math.inf if found > 0 else -math.inf


def seconds(name: str, value: Any, low: float = 0, high: float = FOREVER_S) -> float:
    return number(name, value, low, high, " of seconds")


def positive_seconds(name: str, value: Any, high: float = FOREVER_S) -> float:
    found = seconds(name, value, 0, high)
    if not found:
        raise ValueError(f"{name} is {value}; give a positive number of seconds")
    return found


def limit(name: str, value: Any) -> float | None:
    """Return how many seconds to wait at most; None: without a limit.

    It is over at once if it is negative, as with `concurrent.futures`.
    """
    if value is None:
        return None
    found = _real(name, value, " of seconds; leave it out, or give None, to wait without a limit")
    if math.isnan(found):
        raise ValueError(
            f"{name}={value} is no time: give a number of seconds, or None for no limit"
        )
    return None if found > FOREVER_S else max(found, 0.0)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r:.60} is neither True nor False")
    return value


def one_of(name: str, value: Any, choices: Iterable[str], meaning: str) -> str:
    if value not in tuple(choices):
        raise ValueError(f"{name}={value!r:.60}: {meaning}")
    return str(value)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r:.60} is no str")
    return value


def filled(name: str, value: Any, remedy: str) -> str:
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise TypeError(f"{name}={value!r:.60}: {remedy}")
    if not found:
        raise ValueError(f"{name}={value!r}: {remedy}")
    return found


def texts(name: str, value: Any, remedy: str) -> list[str]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name}={value!r:.60}: {remedy}")
    found = list(value)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{name}= has {one!r:.60}: {remedy}")
    return found


def tcp_address(what: str, value: str, *, listens: bool) -> str:
    """Return a TCP address with a port; one that listens may leave the port to the system."""
    found = _TCP.fullmatch(value)
    port, lowest = found[2] if found else "", 0 if listens else 1
    if port == "*" and listens:
        return value
    if not port.isdecimal() or not lowest <= int(port) <= _MOST_PORT:
        raise ValueError(
            f"{what} {value!r}: give tcp://HOST:PORT, a port from {lowest} to {_MOST_PORT}"
        )
    return value


def file_path(name: str, value: Any) -> str:
    """Return the path of a file, which may be an `os.PathLike`."""
    path = os.fspath(value) if hasattr(value, "__fspath__") else value
    if not isinstance(path, str) or not path:
        raise TypeError(f"{name}={value!r:.60} is no path of a file")
    return path


def items(name: str, value: Any, of_what: str) -> Iterable[Any]:
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise TypeError(f"{name}={value!r:.60} is no sequence of {of_what}: give a list")
    return value


def sizes(shape: Any) -> tuple[int, ...]:
    """Return the sizes of an array, of which one alone may be given as a number."""
    try:
        if isinstance(shape, (bool, str, bytes, bytearray, dict, set, frozenset)):
            raise TypeError
        if hasattr(shape, "__index__") and not getattr(shape, "ndim", 0):
            return (operator.index(shape),)
        return tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(
            f"shape {shape!r:.60} must be a sequence of integers, or an integer"
        ) from None
