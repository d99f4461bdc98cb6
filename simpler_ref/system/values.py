"""Values that programs give: each is checked once, and the error names it and the remedy."""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

FOREVER_S = 1 << 30
"""More seconds than this are no limit; a time-out of an option is at most as long."""


def integer(name: str, value: Any) -> int:
    """Return a whole number of whatever type; an error names it `name`."""
    try:
        return operator.index(value)
    except TypeError:
        hint = "; its address is array.ctypes.data" if isinstance(value, np.ndarray) else ""
        raise TypeError(f"{name}={value!r:.60} is not a whole number{hint}") from None


def whole(name: str, value: Any, low: int, high: int) -> int:
    """Return a whole number in a range."""
    found = integer(name, value)
    if not low <= found <= high:
        raise ValueError(f"{name}={value} is out of range: {low} … {high}")
    return found


def position(what: str, i: Any, count: int) -> int:
    """Return a number in 0 … count-1, of one of `count` things.

    Raises
    ------
    IndexError, TypeError
        There is no such thing; it is no whole number.
    """
    if type(i) is int and 0 <= i < count:
        return i
    try:
        found = operator.index(i)
    except TypeError:
        raise TypeError(f"{what} index {i!r:.60} is not a whole number") from None
    if not 0 <= found < count:
        raise IndexError(f"{what} index {i} is out of range: there are {count}")
    return found


def number(name: str, value: Any, high: float, of_what: str = "") -> float:
    """Return a number in 0 … high."""
    found = _real(name, value, of_what)
    if not 0 <= found <= high:
        raise ValueError(f"{name}={value} is out of range: 0 … {high}")
    return found


def _real(name: str, value: Any, of_what: str) -> float:
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r:.60} is not a number{of_what}")
    found: Any = value
    try:
        return float(found)
    except OverflowError:
        return math.inf if found > 0 else -math.inf


def seconds(name: str, value: Any) -> float:
    """Return a number of seconds."""
    return number(name, value, FOREVER_S, " of seconds")


def positive_seconds(name: str, value: Any) -> float:
    """Return a number of seconds that is more than 0."""
    found = seconds(name, value)
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
    """Return True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r:.60} is neither True nor False")
    return value


def one_of(name: str, value: Any, choices: Iterable[str], meaning: str) -> str:
    """Return one of some words; `meaning` says what they are."""
    if value not in tuple(choices):
        raise ValueError(f"{name}={value!r:.60}: {meaning}")
    return str(value)


def text(name: str, value: Any) -> str:
    """Return a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r:.60} is no str")
    return value


def file_path(name: str, value: Any) -> str:
    """Return the path of a file, which may be an `os.PathLike`."""
    path = os.fspath(value) if hasattr(value, "__fspath__") else value
    if not isinstance(path, str) or not path:
        raise TypeError(f"{name}={value!r:.60} is no path of a file")
    return path


def items(name: str, value: Any, of_what: str) -> Iterable[Any]:
    """Return what can be gone through, and is no text."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise TypeError(f"{name}={value!r:.60} is no sequence of {of_what}: give a list")
    return value


def sizes(shape: Any) -> tuple[int, ...]:
    """Return the sizes of an array, of which one alone may be given as a number.

    Raises
    ------
    TypeError
        One is no whole number.
    """
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
