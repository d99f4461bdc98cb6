"""Checks of what a program gives fleets and endpoints: each error names the value and the remedy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

MOST_PORT = (1 << 16) - 1
_TCP = re.compile(r"tcp://([^/]+):([0-9]+|\*)", re.ASCII)


def texts(name: str, value: Any, remedy: str) -> list[str]:
    """Return a list of strings.

    Raises
    ------
    TypeError
        It is one string, or has something else in it.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name}={value!r}: {remedy}")
    found = list(value)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{name}= has {one!r}: {remedy}")
    return found


def text(name: str, value: Any, remedy: str) -> str:
    """Return a string that is not empty, or the path that a value stands for.

    Raises
    ------
    TypeError, ValueError
        Another value; an empty one.
    """
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise TypeError(f"{name}={value!r}: {remedy}")
    if not found:
        raise ValueError(f"{name}={value!r}: {remedy}")
    return found


def require_address(prefix: str, value: str, *, listens: bool) -> None:
    """Refuse what is no TCP address with a port; one that listens may leave the port to the system.

    Raises
    ------
    ValueError
        The message begins with `prefix`.
    """
    found = _TCP.fullmatch(value)
    lowest = 0 if listens else 1
    port = found[2] if found else ""
    if port == "*" and listens:
        return
    if not port.isdecimal() or not lowest <= int(port) <= MOST_PORT:
        raise ValueError(
            f"{prefix} {value!r}: give tcp://HOST:PORT, a port from {lowest} to {MOST_PORT}"
        )
