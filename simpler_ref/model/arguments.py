"""The arguments of a task: tensors with tags, then scalars.

Tags are read once, by submit; what reaches the worker has none.

Rule     ORCH-TAG-8, ORCH-ARRAY-2, ORCH-MISUSE-3, ORCH-MISUSE-4, FLOW-ARGS-4, FLOW-BUILD-1, FLOW-BUILD-2,
         FLOW-BUILD-5, FLOW-SCALAR-1
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy import ndarray

from ..jit import layout as L
from ..system.values import position
from . import wire as W
from .enums import DataType, TensorArgType
from .scalars import INTEGER, NUMBER, ScalarBits, as_float, as_it_went_in, scalar_wire
from .tensor import ContinuousTensor, DescribedTensor, RemoteTensor, Tensor
from .visibility import Doubts, current, from_numpy, make_tensor
from .wire import COUNTS_BYTES, KIND_AT, SCALAR_BYTES, SHAPE_AT, TAG_AT, TENSOR_BYTES

_I64_FIRST, _I64_LAST = -(1 << 63), (1 << 63) - 1
_pack_integer, _pack_number = INTEGER.pack, NUMBER.pack
_SIGNED, _FLOAT64 = L.SIGNED, L.FLOAT64
_COUNTS = struct.Struct("<ii")


WRITES = (L.OUTPUT, L.INOUT, L.OUTPUT_EXISTING)
"""Tags of tensors that a task writes."""
TENSOR_AFTER_SCALAR = "cannot add tensor after scalar: add all tensors first"


class TaskArgs:
    """The arguments of one task: tensors with tags, then scalars.

    An orchestration function builds it; a worker reads it, during the call.
    """

    __slots__ = ("_doubts", "_kept", "_scalars", "_tensors")

    _tensors: list[bytes]
    _scalars: Sequence[bytes]
    """A list from the first scalar on; each with its kind, 16 bytes."""
    _doubts: Doubts | None
    """Arrays added outside of a run: submit checks them with its own Worker."""
    _kept: Any
    """None, or a tuple of what has the memory of tensors, and so on: `(…, owner)`."""

    def __init__(self) -> None:
        self._tensors = []
        self._kept = None
        self._scalars = ()
        self._doubts = None

    def add_tensor(self, tensor: Tensor, tag: TensorArgType = TensorArgType.INPUT) -> None:
        """Append a tensor: a ContinuousTensor, or an array in shared memory, any view of it.

        Raises RuntimeError after `add_scalar`, since tensors come first; what `make_tensor` does; and
        ValueError if `tag` is no TensorArgType, or one that writes, and the array is read-only.
        """
        if self._scalars:
            raise RuntimeError(TENSOR_AFTER_SCALAR)
        if type(tensor) is not ContinuousTensor:
            owner = tensor
            if isinstance(tensor, ndarray):
                if tag and not tensor.flags.writeable:
                    require_reads(tensor, tag)
                tensor = from_numpy(tensor)
            else:
                tensor = make_tensor(tensor)
                if isinstance(tensor, RemoteTensor):
                    self._doubt(is_remote=True)
            self._kept = self._kept, owner
            if current.check is None and not isinstance(tensor, RemoteTensor):
                spans = self._doubts.spans if self._doubts else ()
                self._doubt(spans=(*spans, tensor._span()))
        try:
            self._tensors.append(tensor._wires[tag])
        except (KeyError, TypeError):
            self._tensors.append(tensor._tagged(check_tag(tag)))
            if isinstance(tensor, DescribedTensor) and not (
                self._doubts and self._doubts.has_layouts
            ):
                self._doubt(has_layouts=True)

    def _doubt(self, **more: Any) -> None:
        # a new one: another TaskArgs may have it, too
        self._doubts = replace(self._doubts or Doubts(), **more)

    def add_scalar(self, value: SupportsIndex | float) -> None:
        """Append a scalar: an integer, a bool, or a float, of Python, numpy or `ctypes`.

        The worker gets 64 bits (see `scalar_to_uint64`) and their kind: `scalar` and `scalar_float`
        return the value.

        Raises TypeError if it is neither an integer nor a float of at most 64 bits; OverflowError if it
        is an integer that does not fit 64 bits.
        """
        if type(value) is int and _I64_FIRST <= value <= _I64_LAST:
            raw = _pack_integer(value, _SIGNED)
        elif type(value) is float:
            raw = _pack_number(value, _FLOAT64)
        else:
            raw = scalar_wire(value)
        if self._scalars:
            self._scalars.append(raw)  # type: ignore[attr-defined]
        else:
            self._scalars = [raw]

    def tensor(self, i: int) -> ContinuousTensor:
        """Return tensor `i`. Raises IndexError if there is none."""
        wire = self._tensors[position("tensor", i, len(self._tensors))]
        if isinstance(wire, W.RemoteWire):
            data, *sizes, ndims, dtype, _ = W.TENSOR.unpack(wire)
            return RemoteTensor(data, sizes[:ndims], DataType(dtype), keep=wire.place)
        return ContinuousTensor._from_wire(wire)

    def scalar(self, i: int) -> int | float:
        """Return scalar `i` as it was added: an int, or a float of the same value.

        Bits without a kind (see `scalar_to_uint64`) are returned as an unsigned integer.

        Raises IndexError if there is none.
        """
        raw = self._scalars[position("scalar", i, len(self._scalars))]
        return as_it_went_in(raw, raw[KIND_AT])

    def scalar_float(self, i: int) -> float:
        """Return scalar `i` as a float; integers are converted.

        Bits without a kind are returned as the 64-bit float that has these bits.

        Raises IndexError if there is none.
        """
        raw = self._scalars[position("scalar", i, len(self._scalars))]
        return as_float(raw, raw[KIND_AT])

    def tag(self, i: int) -> TensorArgType:
        """Return the tag of tensor `i`."""
        return TensorArgType(self._tensors[position("tag", i, len(self._tensors))][TAG_AT])

    def set_tag(self, i: int, tag: TensorArgType) -> None:
        """Change the tag of tensor `i`."""
        wire = self._tensors[position("tag", i, len(self._tensors))]
        self._tensors[i] = W.with_tag(wire, check_tag(tag))

    def dump(self, *tensors: int | Tensor) -> None:
        """Mark tensors: with ``CallConfig.enable_dump_tensor=1`` only these are written into files.

        They are given by their numbers, or as they were added; none: all that were added so far.

        Raises IndexError if there is no tensor of that number; ValueError if there is none at that
        address; and what `make_tensor` does.
        """
        wires = self._tensors
        found = [i for one in tensors for i in self._places(one)] if tensors else range(len(wires))
        for i in found:
            wires[i] = W.marked(wires[i])

    def _places(self, tensor: int | Tensor) -> list[int]:
        if isinstance(tensor, int):
            return [position("tensor", tensor, len(self._tensors))]
        if not isinstance(tensor, ContinuousTensor):
            tensor = make_tensor(tensor)
        address = tensor._tagged(L.INPUT)[:SHAPE_AT]
        found = [i for i, wire in enumerate(self._tensors) if wire[:SHAPE_AT] == address]
        if not found:
            raise ValueError(f"{tensor!r} is not among these arguments: add it before dump")
        return found

    def tensor_count(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)

    def scalar_count(self) -> int:
        """Return the number of scalars."""
        return len(self._scalars)

    def clear(self) -> None:
        """Remove everything."""
        self._tensors.clear()
        self._scalars = ()
        self._doubts = self._kept = None

    def __len__(self) -> int:
        return len(self._tensors) + len(self._scalars)

    def __repr__(self) -> str:
        return f"TaskArgs({self.tensor_count()} tensors, {self.scalar_count()} scalars)"


def require_reads(array: Any, tag: Any, what: str = "this array") -> None:
    """Refuse a tag, or one of several, that lets a task write a read-only array."""
    written = next((one for one in np.ravel(tag).tolist() if one in WRITES), None)
    if written is not None:
        name = TensorArgType(written).name
        raise ValueError(
            f"{what} of shape {array.shape}, tagged {name}: the array is read-only, and its tag lets the "
            "task write it: tag it INPUT if the task only reads, or give the array that it is a view of, "
            "or a copy (Worker.share(array))"
        )


def check_tag(tag: Any) -> int:
    try:
        return int(TensorArgType(tag))
    except ValueError:
        raise ValueError(
            f"{tag!r} is no TensorArgType; use INPUT, OUTPUT, INOUT, OUTPUT_EXISTING or NO_DEP"
        ) from None


# ---------------------------------------------------------------- of a whole submit
Members: TypeAlias = Sequence[TaskArgs]
"""The arguments of each member of a group; of a task that is no group its own, or none."""
Workers: TypeAlias = Sequence[int] | None
"""The worker of each member of a group, plus one, 0 for any; None: it is no group."""
_MEMBER = struct.Struct("<QQ")
"""Of each member of a group: its counts of tensors and scalars, and its worker plus one."""


def parts_of(members: Members) -> tuple[list[bytes], list[bytes]]:
    """Return the tensors and the scalars of all members of a group, or of a task."""
    tensors: list[bytes] = []
    scalars: list[bytes] = []
    for one in members:
        tensors += one._tensors
        scalars += one._scalars
    return tensors, scalars


def table_of(members: Members, workers: Workers) -> list[tuple[int, int]]:
    """Return the counts and the worker, plus one, of each member; nothing of what is no group."""
    if workers is None:
        return []
    counts = [W.counts_of(len(one._tensors), len(one._scalars)) for one in members]
    return list(zip(counts, workers, strict=True))


def submit_words(members: Members, workers: Workers) -> tuple[int, bytes]:
    """Return what a submit takes of a task or a group: its counts, and tensors, scalars and members."""
    tensors, scalars = parts_of(members)
    words = tensors + scalars
    if workers is not None:
        words += [_MEMBER.pack(*one) for one in table_of(members, workers)]
    return len(tensors) | len(scalars) << L.HALF, b"".join(words)


def note_outputs(members: Members, wires: bytes) -> None:
    """Write the addresses that the runtime has provided into arguments; `wires` are their tensors."""
    at = 0
    for args in members:
        for i, wire in enumerate(args._tensors):
            if wire[TAG_AT] == L.OUTPUT and not any(wire[:SHAPE_AT]):
                args._tensors[i] = W.replaced(wire, 0, wires[at : at + SHAPE_AT])
            at += TENSOR_BYTES


# ---------------------------------------------------------------- from a blob
def read_args_from_blob(blob: Any, capacity: int | None = None) -> TaskArgs:
    """Return the arguments in a blob; tags do not travel, so each tensor is an INPUT.

    Raises ValueError if a count is negative, or they need more bytes than there are.

    Parameters
    ----------
    blob : int | buffer
        Its address, or the bytes.
    capacity : int | None
        How many bytes may be read there; by default all of a buffer, at an address as many as a
        mailbox has.
    """
    if isinstance(blob, int):  # which may be followed by nothing
        capacity = L.MAILBOX_ARGS_CAPACITY if capacity is None else capacity
        raw = ctypes.string_at(blob, min(capacity, COUNTS_BYTES)) if blob else b""
    else:
        raw = bytes(memoryview(blob).cast("B")[:capacity])
        capacity = len(raw)
    if len(raw) < COUNTS_BYTES:
        raise ValueError(f"an args blob begins with two counts, 8 bytes; {capacity} are there")
    tensors, scalars = _COUNTS.unpack_from(raw)
    end = COUNTS_BYTES + tensors * TENSOR_BYTES
    size = end + scalars * SCALAR_BYTES
    if tensors < 0 or scalars < 0 or size > capacity:
        raise ValueError(
            f"an args blob of {tensors} tensors and {scalars} scalars does not fit the {capacity} bytes "
            f"that are there: 8 + {TENSOR_BYTES} * tensors + {SCALAR_BYTES} * scalars are needed"
        )
    if isinstance(blob, int):
        raw = ctypes.string_at(blob, size)
    args = TaskArgs()
    for wire in W.each_tensor(raw[COUNTS_BYTES:end]):
        args.add_tensor(ContinuousTensor._from_wire(wire))
    for bits in struct.unpack_from(f"<{scalars}Q", raw, end):
        args.add_scalar(ScalarBits(bits))
    return args
