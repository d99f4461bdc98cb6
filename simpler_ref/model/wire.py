"""Tensors and scalars as wire bytes: the offsets of a tensor's fields, the sizes of arguments."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..jit import layout as L
from ..jit import structures

TENSOR = struct.Struct(structures.TENSOR.format)
"""data, shapes, ndims, dtype, child_memory; the padding begins with the tag on its way into submit."""
TENSOR_BYTES = TENSOR.size
_AT = structures.TENSOR.offsets
SHAPE_AT = _AT["shapes"]
CHILD_MEMORY_AT = _AT["child_memory"]
TAG_AT = _AT["padding"]
SCALAR_BYTES = L.WORD
KIND_AT = L.SCALAR_KIND * L.WORD
"""Offset of a scalar's kind on its way into submit: after its bits."""
COUNTS_BYTES = L.WORD
"""The counts of tensors and scalars, before the tensors in a mailbox."""
_PADDING = bytes(TENSOR_BYTES - TAG_AT)


def counts_of(tensors: int, scalars: int) -> int:
    """Return both counts in one number, as the kernels take them."""
    return tensors | scalars << L.HALF


def blob_bytes(counts: int) -> int:
    """Return the bytes of some tensors and scalars in a mailbox."""
    return (counts & L.LOW_HALF) * TENSOR_BYTES + (counts >> L.HALF) * SCALAR_BYTES


def tensors_of(wire: bytes, counts: int) -> bytes:
    """Return the tensors of some arguments."""
    return wire[: (counts & L.LOW_HALF) * TENSOR_BYTES]


def each_tensor(wires: bytes) -> Iterator[bytes]:
    """Yield each tensor; ignore an incomplete one at the end."""
    for at in range(0, len(wires) - TENSOR_BYTES + 1, TENSOR_BYTES):
        yield wires[at : at + TENSOR_BYTES]


def has_address(wire: bytes) -> bool:
    """Say whether a tensor has memory already."""
    return any(wire[:SHAPE_AT])


def has_layout(wire: bytes) -> bool:
    """Say whether a tensor is described by a layout."""
    return wire[TAG_AT - 2] == L.TENSOR_DESCRIBED


def layout_number(wire: bytes) -> int:
    """Return the number of a tensor's layout."""
    return int.from_bytes(wire[SHAPE_AT : SHAPE_AT + 4], "little")


def asks_for_memory(wire: bytes) -> bool:
    """Say whether the runtime has to provide a tensor's memory."""
    return wire[TAG_AT] == L.OUTPUT and not has_address(wire)


def with_tag(wire: bytes, tag: int) -> bytes:
    """Return the tensor with a tag, for submit."""
    return wire[:TAG_AT] + bytes((tag,)) + _PADDING[1:]


def without_tag(wire: bytes) -> bytes:
    """Return the tensor without its tag."""
    return wire[:TAG_AT] + _PADDING
