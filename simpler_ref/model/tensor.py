"""Tensors: they describe memory, and own none.

Rule     HIER-API-1
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from operator import index
from typing import Any, TypeAlias

import numpy as np

from ..jit import layout as L
from ..system.types import Array
from .enums import DataType, TensorArgType, numpy_dtype, to_dtype
from .wire import SHAPE_AT, TAG_AT, TENSOR, with_tag

Tensor: TypeAlias = "ContinuousTensor | Array | Any"


_U64_MASK = (1 << 64) - 1
_TAGS = {int(tag): with_tag(b"", tag) for tag in TensorArgType}
"""A tensor's padding on its way into submit."""
_NO_SIZES = (0,) * L.CONTINUOUS_TENSOR_MAX_DIMS
RECORDED_FIRST, RECORDED_LAST = 0x7FF9 << 48, 0x7FFF << 48
"""Substitute addresses for memory that a recorded graph will have: no machine has memory there, and as
numbers they are unlikely as scalars (they are not-a-numbers)."""


class ContinuousTensor:
    """A contiguous, row-major tensor at an address, at most five dimensions; owns no memory.

    Attributes
    ----------
    data : int
        Address of the first element; 0 for an OUTPUT that the runtime provides.
    shapes : tuple[int, ...]
        The dimensions.
    ndims : int
    dtype : DataType
    child_memory : bool
        True if the address is in the memory of a next-level worker, not of the host.

    Notes
    -----
    Rule     FLOW-DATA-3, -5
    """

    __slots__ = ("_keep", "_wire", "_wires", "child_memory", "data", "dtype", "shapes")

    data: int
    shapes: tuple[int, ...]
    dtype: DataType
    child_memory: bool
    _wire: bytes
    _wires: dict[int, bytes]
    _keep: Any

    def __init__(
        self,
        data: int = 0,
        shapes: Sequence[int] = (0,),
        dtype: DataType = DataType.FLOAT32,
        child_memory: bool = False,
        *,
        keep: Any = None,
    ) -> None:
        try:
            sizes = tuple(map(index, shapes))
        except TypeError:
            raise TypeError(f"shape {shapes!r} must be a sequence of integers") from None
        kind = to_dtype(dtype)
        if len(sizes) > L.CONTINUOUS_TENSOR_MAX_DIMS:
            raise ValueError(
                f"a tensor has at most {L.CONTINUOUS_TENSOR_MAX_DIMS} dimensions, this one has "
                f"{len(sizes)} {sizes}; reshape it"
            )
        padded = sizes + _NO_SIZES[len(sizes) :]
        try:
            wire = TENSOR.pack(data, *padded, len(sizes), kind, bool(child_memory))
        except struct.error:
            if not 0 <= data <= _U64_MASK:
                raise ValueError(f"address {data} is not an unsigned 64-bit number") from None
            raise ValueError(f"shape {sizes} has a dimension outside 0 … 2**32-1") from None
        if math.prod(sizes) * L.DTYPE_SIZES[kind] >= 1 << 62:
            raise ValueError(f"a tensor of shape {sizes} does not fit an address space")
        self._fill(data, sizes, kind, bool(child_memory), keep, wire)

    def _fill(
        self, data: int, sizes: tuple[int, ...], kind: DataType, child: bool, keep: Any, wire: bytes
    ) -> None:
        head = wire[:TAG_AT]
        write = object.__setattr__
        write(self, "data", data)
        write(self, "shapes", sizes)
        write(self, "dtype", kind)
        write(self, "child_memory", child)
        write(self, "_keep", keep)
        write(self, "_wire", wire)
        write(self, "_wires", {tag: head + _TAGS[tag] for tag in _TAGS})

    def _at_address(self, data: int, keep: Any) -> ContinuousTensor:
        """Return the same tensor at an address; `keep` keeps its memory alive."""
        tensor = object.__new__(ContinuousTensor)
        wire = data.to_bytes(SHAPE_AT, "little") + self._wire[SHAPE_AT:]
        tensor._fill(data, self.shapes, self.dtype, self.child_memory, keep, wire)
        return tensor

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a ContinuousTensor cannot be changed (tried to set {name!r})")

    @classmethod
    def make(
        cls, data: int, shapes: Sequence[int], dtype: DataType, child_memory: bool = False
    ) -> ContinuousTensor:
        """Describe memory by hand. The address is not checked.

        Rule     FLOW-DATA-4
        """
        return cls(data, shapes, dtype, child_memory)

    @property
    def ndims(self) -> int:
        """Number of dimensions."""
        return len(self.shapes)

    def nbytes(self) -> int:
        """Return the bytes of the tensor: elements times element size."""
        return math.prod(self.shapes) * L.DTYPE_SIZES[self.dtype]

    def numpy(self) -> Array:
        """Return a numpy array over the same memory, without a copy.

        Raises
        ------
        ValueError
            If the tensor has no address, or one in a chip's memory.

        Notes
        -----
        Rule     FLOW-DATA-6
        """
        if self.child_memory:
            raise ValueError("this tensor is in a next-level worker's memory; copy it from there")
        if not FIRST_ADDRESS <= self.data < END_OF_ADDRESSES:
            self._require_memory()
        return view_memory(self.data, self.shapes, numpy_dtype(self.dtype), self._keep)

    def _require_memory(self) -> None:
        if self.data == 0 and self.nbytes() > 0:
            raise ValueError(
                "this tensor has no memory yet: the runtime provides it when it is submitted"
            )
        if RECORDED_FIRST <= self.data < RECORDED_LAST:
            raise ValueError(
                "this tensor has no memory: it is part of a recording, and has some only while the "
                "tasks of the graph run"
            )
        if self.nbytes() > 0:
            raise ValueError(f"this tensor is at {self.data:#x}, where no program has memory")

    def __repr__(self) -> str:
        where = ", child_memory=True" if self.child_memory else ""
        return f"ContinuousTensor({self.data:#x}, {self.shapes}, {self.dtype.name}{where})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContinuousTensor) and self._wire == other._wire

    def __hash__(self) -> int:
        return hash(self._wire)

    @classmethod
    def _from_wire(cls, wire: bytes) -> ContinuousTensor:
        data, *sizes, ndims, dtype, child = TENSOR.unpack(wire)
        if ndims > L.CONTINUOUS_TENSOR_MAX_DIMS or child > 1:
            if child == L.TENSOR_READ_ONLY and ndims <= L.CONTINUOUS_TENSOR_MAX_DIMS:
                return ReadOnlyTensor(data, sizes[:ndims], DataType(dtype))
            raise ValueError(
                f"{wire.hex()} is no tensor: it has {ndims} dimensions and child_memory {child}; at "
                f"most {L.CONTINUOUS_TENSOR_MAX_DIMS} and 1 are known"
            )
        return cls(data, sizes[:ndims], DataType(dtype), bool(child))


class ReadOnlyTensor(ContinuousTensor):
    """An INPUT, as a task of a Worker with ``check=True`` gets it.

    Rule     ORCH-CHECK-7
    """

    __slots__ = ()

    def numpy(self) -> Array:
        """Return a numpy array over the same memory that cannot be written."""
        array = super().numpy()
        array.flags.writeable = False
        return array


FIRST_ADDRESS, END_OF_ADDRESSES = 4096, 1 << 47
"""The range of addresses that memory of a program can have."""
_memory: Any = (ctypes.c_char * (END_OF_ADDRESSES - FIRST_ADDRESS)).from_address(FIRST_ADDRESS)
"""The whole address space as one buffer: numpy makes views of it faster than of anything else."""


def view_memory(
    data: int,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    keep: Any = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Return an array over memory at an address; it keeps `keep` alive."""
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    base = FIRST_ADDRESS if keep is None else keep.ctypes.data
    view: Array = np.ndarray(
        shape, dtype, buffer=_memory if keep is None else keep, offset=data - base, strides=strides
    )
    return view
