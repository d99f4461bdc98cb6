"""The code between a mailbox and a compiled function: one generator for leaves and compiled tasks.

An *entry* is compiled for arguments of some types. Given the address of an args blob, it checks that
the blob holds such arguments, reads them, calls the function, and leaves its value, if that is wanted.
What it does not take it hands on to the entry that was made before it; the first one returns ILLEGAL,
and the worker goes through Python (see `serve`). The parts of its text, in order:

    alike     tests of the blob's words: how many arguments, of which kinds
    reading   statements, which may follow what the words refer to
    fitting   tests of what was read
    values    expressions, the arguments of the function
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba import carray
from numba.core import types
from numba.np.numpy_support import as_dtype

from ..jit import layout as L
from ..jit.leaves import (
    IN_C_ORDER,
    IN_FORTRAN_ORDER,
    IN_NO_ORDER,
    KINDS_FROM_ARGS,
    VALUE_FROM_ARGS,
    array_at,
    as_float,
    as_single,
    bits_of,
    call_leaf,
    double_of,
    fits_layout,
    pointer,
)
from ..model.tensor import END_OF_ADDRESSES, FIRST_ADDRESS
from ..model.wire import counts_of

_ORDERS = {"C": IN_C_ORDER, "F": IN_FORTRAN_ORDER, "A": IN_NO_ORDER}
"""How numba names the orders of arrays."""
_NAMES: dict[str, Any] = {
    **{one.__name__: one for one in (array_at, as_float, as_single, bits_of, call_leaf, carray)},
    **{one.__name__: one for one in (double_of, fits_layout, pointer)},
    **{
        one.name: one
        for one in (*types.signed_domain, *types.unsigned_domain, types.float32, types.float64)
    },
    "np": np,
}
"""What the text refers to."""


class EntryCode:
    """The text of an entry for so many arrays and scalars, argument by argument."""

    def __init__(self, arrays: int, scalars: int) -> None:
        self.scalars = scalars
        self.first_scalar = 1 + arrays * L.TENSOR_WORDS
        """The word of the blob in which the scalars begin."""
        self.alike = [f"words[0] == {counts_of(arrays, scalars)}"]
        self.reading: list[str] = []
        self.fitting: list[str] = []
        self.values: list[str] = []
        self.names: dict[str, Any] = {}
        self._tensor = 1

    def next_tensor(self) -> int:
        """Return the word in which the next tensor begins."""
        self._tensor += L.TENSOR_WORDS
        return self._tensor - L.TENSOR_WORDS

    def add_described(self, kind: Any, element: Sequence[int]) -> None:
        """Add an array that a layout describes; `element` is its element type as layouts have it."""
        n, t = len(self.values), self.next_tensor()
        self.names |= {f"type_{n}": kind, f"element_{n}": np.array(element, np.int64)}
        data = f"words[{t + L.TENSOR_DATA}]"
        aligned = int(as_dtype(kind.dtype).alignment) if kind.aligned else 1
        self.alike += [
            f"words[{t + L.TENSOR_KIND}] & {L.TENSOR_KIND_MASK} == {L.TENSOR_DESCRIBED}",
            f"{FIRST_ADDRESS} <= {data} < {END_OF_ADDRESSES}",
        ]
        self.reading.append(
            f"r{n} = layouts + {L.WORD} * (words[{t + L.TENSOR_SHAPE}] & {L.LOW_HALF})"
        )
        self.fitting.append(
            f"fits_layout(r{n}, {data}, {kind.ndim}, {_ORDERS[kind.layout]}, {aligned}, element_{n})"
        )
        self.values.append(f"array_at(type_{n}, {data}, r{n})")

    def add_contiguous(self, kind: Any, dtype: int) -> None:
        """Add an array whose tensor has its dimensions itself."""
        n, t = len(self.values), self.next_tensor()
        data = f"words[{t + L.TENSOR_DATA}]"
        dims = [
            f"words[{t + L.TENSOR_SHAPE + (d >> 1)}] >> {32 * (d & 1)} & {L.LOW_HALF}"
            for d in range(kind.ndim)
        ]
        empty = " or ".join(f"({dim}) == 0" for dim in dims)
        self.alike += [
            f"words[{t + L.TENSOR_KIND}] & {L.TENSOR_KIND_MASK} == {dtype}",
            f"words[{t + L.TENSOR_DIMS}] >> 32 == {kind.ndim}",
            f"({FIRST_ADDRESS} <= {data} < {END_OF_ADDRESSES} or {empty})",
        ]
        self.names[f"dtype_{n}"] = kind.dtype
        self.values.append(f"carray(pointer({data}), ({', '.join(dims)},), dtype_{n})")

    def compile(self, function: Any, answer: Sequence[str] = (), otherwise: int = 0) -> Any:
        """Compile the entry; `answer` are statements about `value`, `otherwise` the entry before it."""
        other = (
            f"return call_leaf({otherwise}, blob, layouts)" if otherwise else f"return {L.ILLEGAL}"
        )
        lines = [
            f"words = carray(pointer(blob), {self.first_scalar + self.scalars}, int64)",
            f"kinds = carray(pointer(blob + {KINDS_FROM_ARGS}), {self.scalars}, uint8)",
            f"packed = carray(pointer(blob + {KINDS_FROM_ARGS}), {-(-self.scalars // L.WORD)}, int64)",
            f"out = carray(pointer(blob + {VALUE_FROM_ARGS}), 2, int64)",
            f"if not ({' and '.join(self.alike)}): {other}",
            *self.reading,
            *([f"if not ({' and '.join(self.fitting)}): {other}"] if self.fitting else []),
            f"value = function({', '.join(self.values)})",
            *answer,
            f"return {L.OK}",
        ]
        names = _NAMES | self.names | {"function": function}
        exec("\n    ".join(["def entry(blob, layouts):", *lines]), names)
        entry = numba.njit(nogil=True)(names["entry"])
        entry.compile((types.int64, types.int64))
        return entry
