"""Types of annotations; where an array has its elements."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_DATA_AT = object.__basicsize__
"""Offset of the address of the elements in numpy's `PyArrayObject`: its first field after the head."""


def address_of(array: Array) -> int:
    """Return the address of an array's first element: `array.ctypes.data` in a seventh of the time."""
    return ctypes.c_size_t.from_address(id(array) + _DATA_AT).value
