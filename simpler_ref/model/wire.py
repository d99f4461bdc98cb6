"""Tensors and scalars as wire bytes: the offsets of a tensor's fields, the sizes of arguments.

Rule     FLOW-LAYOUT-3
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ..jit import layout as L
from ..jit import structures

TENSOR = struct.Struct(structures.TENSOR.format)
"""data, shapes, ndims, dtype, child_memory; the padding begins with the tag on its way into submit."""
TENSOR_BYTES = TENSOR.size
_AT = structures.TENSOR.offsets
SHAPE_AT = _AT["shapes"]
NUMBER_BYTES = (_AT["ndims"] - SHAPE_AT) // L.CONTINUOUS_TENSOR_MAX_DIMS
"""Bytes of a dimension, where a described tensor has the number of its layout."""
EXTENT_AT = L.TENSOR_EXTENT * L.WORD
CHILD_MEMORY_AT = _AT["child_memory"]
TAG_AT = _AT["padding"]
MARK_AT = TAG_AT + 1
"""Where a tensor on its way into submit is marked for dumps."""
SCALAR_BYTES = L.WORD
KIND_AT = L.SCALAR_KIND * L.WORD
"""Offset of a scalar's kind on its way into submit: after its bits."""
COUNTS_BYTES = L.WORD
"""The counts of tensors and scalars, before the tensors in a mailbox."""
_PADDING = bytes(TENSOR_BYTES - TAG_AT)

Layout = tuple["np.dtype[Any]", tuple[int, ...], tuple[int, ...]]
"""Element type, shape, and strides in bytes."""


class LayoutReader(Protocol):
    """Finds layouts by their numbers."""

    def read(self, number: int) -> Layout:
        """Return the layout that has a number."""


class DescribedWire(bytes):
    """A tensor that its 40 bytes cannot describe, with its layout.

    What goes to an engine has the number that the engine's layouts have for it.
    """

    layout: Layout

    def __new__(cls, wire: bytes, layout: Layout) -> DescribedWire:
        made = super().__new__(cls, wire)
        made.layout = layout
        return made

    def numbered(self, number: int) -> DescribedWire:
        octets = number.to_bytes(NUMBER_BYTES, "little")
        if self[SHAPE_AT : SHAPE_AT + NUMBER_BYTES] == octets:
            return self
        made = self[:SHAPE_AT] + octets + self[SHAPE_AT + NUMBER_BYTES :]
        return DescribedWire(made, self.layout)


class RemoteWire(bytes):
    """A tensor in an endpoint's memory, or one whose bytes travel with the task.

    Its `child_memory` byte says so from submit on, with what the task does with it.
    """

    place: Any
    """A handle of a buffer, or the bytes."""

    def __new__(cls, wire: bytes, place: Any) -> RemoteWire:
        made = super().__new__(cls, wire)
        made.place = place
        return made

    @property
    def is_inline(self) -> bool:
        return isinstance(self.place, bytes)

    @property
    def rights(self) -> int:
        """What a task with its tag does: TENSOR_READ, TENSOR_WRITE."""
        return RIGHTS[self[TAG_AT]]

    def at(self, address: int) -> RemoteWire:
        """Return it at an address, as the link of an endpoint takes it."""
        access = L.TENSOR_REMOTE | self.rights | (L.TENSOR_INLINE if self.is_inline else 0)
        octets = address.to_bytes(SHAPE_AT, "little") + self[SHAPE_AT:CHILD_MEMORY_AT]
        return RemoteWire(octets + bytes((access,)) + self[TAG_AT:], self.place)


RIGHTS = {
    L.INPUT: L.TENSOR_READ,
    L.OUTPUT: L.TENSOR_WRITE,
    L.INOUT: L.TENSOR_READ | L.TENSOR_WRITE,
    L.OUTPUT_EXISTING: L.TENSOR_WRITE,
    L.NO_DEP: L.TENSOR_READ | L.TENSOR_WRITE,
}
"""Of each tag."""


def counts_of(tensors: int, scalars: int) -> int:
    """Return both counts in one number, as the kernels take them."""
    return tensors | scalars << L.HALF


def blob_bytes(counts: int) -> int:
    return (counts & L.LOW_HALF) * TENSOR_BYTES + (counts >> L.HALF) * SCALAR_BYTES


def tensors_of(wire: bytes, counts: int) -> bytes:
    return wire[: (counts & L.LOW_HALF) * TENSOR_BYTES]


def each_tensor(wires: bytes) -> Iterator[bytes]:
    """Yield each tensor; ignore an incomplete one at the end."""
    for at in range(0, len(wires) - TENSOR_BYTES + 1, TENSOR_BYTES):
        yield wires[at : at + TENSOR_BYTES]


def has_address(wire: bytes) -> bool:
    return any(wire[:SHAPE_AT])


def has_layout(wire: bytes) -> bool:
    return wire[TAG_AT - 2] == L.TENSOR_DESCRIBED


def layout_number(wire: bytes) -> int:
    return int.from_bytes(wire[SHAPE_AT : SHAPE_AT + NUMBER_BYTES], "little")


def described(data: int, number: int, extent: int, access: int = 0) -> bytes:
    """Return a tensor that a layout describes; `extent` is how many bytes it spans."""
    sizes = number, 0, extent & L.LOW_HALF, extent >> L.HALF, 0
    return TENSOR.pack(data, *sizes, L.TENSOR_DESCRIBED, L.TENSOR_DESCRIBED, access)


def span_of(layout: Layout) -> tuple[int, int]:
    """Return the bytes of a layout below its first element, and all that it spans."""
    dtype, shape, strides = layout
    if 0 in shape:
        return 0, 0
    steps = [(size - 1) * step for size, step in zip(shape, strides, strict=True)]
    extent: int = dtype.itemsize + sum(map(abs, steps))
    return -sum(step for step in steps if step < 0), extent


def element_words(dtype: np.dtype[Any]) -> list[int]:
    """Return the words that stand for an element type in a layout: bytes, and a pickle of so many."""
    kind = pickle.dumps(dtype)
    return [len(kind), *np.frombuffer(kind + bytes(-len(kind) % L.WORD), np.int64).tolist()]


def row_major(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    for size in reversed(shape):
        strides.insert(0, itemsize)
        itemsize *= size
    return tuple(strides)


def is_row_major(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    expected = row_major(shape, itemsize)
    return 0 in shape or all(
        size == 1 or step == want for size, step, want in zip(shape, strides, expected, strict=True)
    )


def bytes_of(wire: bytes) -> int:
    if has_layout(wire):
        return int.from_bytes(wire[EXTENT_AT : EXTENT_AT + L.WORD], "little")
    _, *sizes, ndims, dtype, _ = TENSOR.unpack(wire)
    count: int = math.prod(sizes[:ndims])
    return count * L.DTYPE_SIZES[dtype]


def bytes_below(wire: bytes) -> int:
    """Return how many bytes of a tensor are below the address of its first element."""
    return span_of(wire.layout)[0] if isinstance(wire, DescribedWire) else 0


def asks_for_memory(wire: bytes) -> bool:
    return wire[TAG_AT] == L.OUTPUT and not has_address(wire)


def with_tag(wire: bytes, tag: int) -> bytes:
    """Return the tensor with a tag, for submit; a mark stays."""
    return replaced(wire, TAG_AT, bytes((tag,)) + (wire[MARK_AT:] or _PADDING[1:]))


def marked(wire: bytes) -> bytes:
    """Return the tensor with a mark: it is to be dumped."""
    return replaced(wire, MARK_AT, b"\1")


def replaced(wire: bytes, at: int, octets: bytes) -> bytes:
    """Return the tensor with some of its bytes replaced, and what it has beside them."""
    made = wire[:at] + octets + wire[at + len(octets) :]
    if isinstance(wire, DescribedWire):
        return DescribedWire(made, wire.layout)
    return RemoteWire(made, wire.place) if isinstance(wire, RemoteWire) else made


def without_tag(wire: bytes, keep_mark: bool = False) -> bytes:
    """Return the tensor without its tag, and without its mark unless a chip is to see that."""
    plain = wire[:TAG_AT] + _PADDING
    return marked(plain) if keep_mark and wire[MARK_AT : MARK_AT + 1] == b"\1" else plain
