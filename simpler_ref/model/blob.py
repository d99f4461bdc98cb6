"""Arguments from a blob: `i32` T, `i32` S, T tensors, S scalars.

Rule     FLOW-ARGS-4
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from ..jit import layout as L
from .arguments import TaskArgs
from .tensor import ContinuousTensor
from .wire import COUNTS_BYTES, SCALAR_BYTES, TENSOR_BYTES

_COUNTS = struct.Struct("<ii")
_SCALAR = struct.Struct("<Qq")


def read_args_from_blob(blob: Any, capacity: int | None = None) -> TaskArgs:
    """Return the arguments in a blob; tags do not travel, so each tensor is an INPUT.

    Parameters
    ----------
    blob : int | buffer
        Its address, or the bytes.
    capacity : int | None
        How many bytes may be read there; by default all of a buffer, at an address as many as a
        mailbox has.

    Raises
    ------
    ValueError
        A count is negative, or the counts need more bytes than there are.
    """
    if isinstance(blob, int):
        raw = _at_address(blob, L.MAILBOX_ARGS_CAPACITY if capacity is None else capacity)
    else:
        raw = bytes(memoryview(blob).cast("B")[:capacity])
        _require(raw[:COUNTS_BYTES], len(raw))
    tensors, scalars = _COUNTS.unpack_from(raw)
    args, at = TaskArgs(), COUNTS_BYTES
    for _ in range(tensors):
        args.add_tensor(ContinuousTensor._from_wire(raw[at : at + TENSOR_BYTES]))
        at += TENSOR_BYTES
    bits = (
        int.from_bytes(raw[i : i + SCALAR_BYTES], "little") for i in range(at, at + scalars * 8, 8)
    )
    args._scalars = [_SCALAR.pack(one, L.RAW) for one in bits]
    return args


def _at_address(address: int, capacity: int) -> bytes:
    """Return the bytes of the blob at an address, which may be followed by nothing."""
    head = ctypes.string_at(address, min(capacity, COUNTS_BYTES)) if address else b""
    return ctypes.string_at(address, _require(head, capacity))


def _require(head: bytes, capacity: int) -> int:
    """Return the size of a blob, if it is not larger than its capacity."""
    if len(head) < COUNTS_BYTES:
        raise ValueError(f"an args blob begins with two counts, 8 bytes; {capacity} are there")
    tensors, scalars = _COUNTS.unpack(head)
    size: int = COUNTS_BYTES + tensors * TENSOR_BYTES + scalars * SCALAR_BYTES
    if tensors < 0 or scalars < 0 or size > capacity:
        raise ValueError(
            f"an args blob of {tensors} tensors and {scalars} scalars does not fit the {capacity} bytes "
            f"that are there: 8 + {TENSOR_BYTES} * tensors + {SCALAR_BYTES} * scalars are needed"
        )
    return size
