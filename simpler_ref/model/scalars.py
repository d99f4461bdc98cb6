"""Scalars: 64 bits, and beside them their kind.

On the wire a scalar is only 64 bits. Its kind (`jit/layout.py`) is a second word on the way to a mailbox,
and in a worker a byte beside the mailbox, so that a value is read as it was added.

Rule     FLOW-BUILD-3, FLOW-SCALAR-1, FLOW-BUILD-5
"""

from __future__ import annotations

import ctypes
import struct
from operator import index
from typing import Any, TypeVar

import numpy as np

from ..jit import layout as L
from .wire import SCALAR_BYTES

INTEGER = struct.Struct("<qq")
"""A signed integer and its kind."""
NUMBER = struct.Struct("<dq")
"""A 64-bit float and its kind."""
WORD = struct.Struct("<Qq")
_SINGLE = struct.Struct("<f4xq")


class ScalarBits(int):
    """64 bits of a scalar without a kind; as a number they are unsigned.

    Added to another task, they remain bits without a kind.
    """

    __slots__ = ()


class Float32(float):
    """A scalar added as a 32-bit float; added to another task, it remains one."""

    __slots__ = ()


class BoundWord(bytes):
    """A scalar with its kind that a replay may give another value."""

    position: int
    """Its index among the scalars that a replay provides."""

    def __new__(cls, raw: bytes, position: int) -> BoundWord:
        word = super().__new__(cls, raw)
        word.position = position
        return word


B = TypeVar("B", bound="Bound")


class Bound:
    """A number that remembers the word that it was read from."""

    word: BoundWord

    def __new__(cls: type[B], value: float, word: BoundWord) -> B:
        number = super().__new__(cls, value)  # type: ignore[call-arg]
        number.word = word
        return number


class BoundInt(Bound, int):
    """A scalar of the `args` that a graph is recorded with."""


class BoundFloat(Bound, float):
    """The same, read as a float."""


# ---------------------------------------------------------------- on their way in
def scalar_wire(value: Any) -> bytes:
    """Return the 16 bytes of a scalar on its way to a mailbox: its 64 bits and its kind."""
    if isinstance(value, Bound):
        return value.word
    if isinstance(value, ScalarBits):
        return WORD.pack(value, L.RAW)
    if isinstance(value, (np.ndarray, ctypes._SimpleCData)) or hasattr(value, "data_ptr"):
        return _wire_of_content(value)
    if isinstance(value, (Float32, np.float32)):
        return _SINGLE.pack(value, L.FLOAT32)
    if isinstance(value, (float, np.float16)):
        return NUMBER.pack(value, L.FLOAT64)
    try:
        number = index(int(value) if isinstance(value, np.bool_) else value)
    except TypeError:
        raise TypeError(
            f"scalar {value!r} is a {type(value).__name__}; give an integer or a float of at most 64 "
            "bits, and convert what is none with int() or float()"
        ) from None
    if not -(1 << 63) <= number < 1 << 64:
        raise OverflowError(f"scalar {value} does not fit 64 bits")
    if number < 1 << 63:
        return INTEGER.pack(number, L.SIGNED)
    return WORD.pack(number, L.UNSIGNED)


def _wire_of_content(value: Any) -> bytes:
    """Return the wire form of the value of an array or tensor without dimensions, or of a C number."""
    if isinstance(value, ctypes._SimpleCData):
        content = value.value
        return scalar_wire(np.float32(content) if isinstance(value, ctypes.c_float) else content)
    if value.ndim != 0:
        raise TypeError(
            f"scalar {value!r} has {value.ndim} dimensions; add one number, or pass the array as a tensor"
        )
    return scalar_wire(value[()] if isinstance(value, np.ndarray) else value.item())


def scalar_to_uint64(value: Any) -> int:
    """Return the 64 bits that carry a scalar argument.

    Integers (also negative ones, in two's complement) and bools as they are; a Python or 64-bit
    numpy float as the bits of its IEEE 754 form, a `ctypes` or 32-bit numpy float as the 32 bits of
    its own in the low half, a 16-bit one as the 64-bit float of the same value.

    The result, added as a scalar, remains bits without a kind: a worker's `scalar` returns them as an
    unsigned integer, `scalar_float` as the 64-bit float that has them.

    Raises TypeError and OverflowError as `TaskArgs.add_scalar` does.
    """
    return ScalarBits.from_bytes(scalar_wire(value)[:SCALAR_BYTES], "little")


# ---------------------------------------------------------------- on their way out
def as_it_went_in(raw: bytes, kind: int) -> int | float:
    """Return a scalar from the 8 bytes that `raw` begins with."""
    if kind == L.SIGNED:
        return int.from_bytes(raw[:SCALAR_BYTES], "little", signed=True)
    if kind == L.FLOAT64:
        return float(struct.unpack_from("<d", raw)[0])
    if kind == L.FLOAT32:
        return Float32(struct.unpack_from("<f", raw)[0])
    bits = int.from_bytes(raw[:SCALAR_BYTES], "little")
    return ScalarBits(bits) if kind == L.RAW else bits


def as_float(raw: bytes, kind: int) -> float:
    if kind == L.RAW:
        kind = L.FLOAT64
    return float(as_it_went_in(raw, kind))
