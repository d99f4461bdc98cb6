"""Tensors: they describe memory, and own none.

Rule     HIER-API-1, ORCH-CHECK-7, REMOTE-ARGS-1, FLOW-DATA-3, FLOW-DATA-4, FLOW-DATA-5, FLOW-DATA-6,
         FLOW-DATA-8, FLOW-LAYOUT-1, FLOW-LAYOUT-3, ORCH-MISUSE-3
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence, Sized
from operator import index
from typing import Any, TypeAlias

import numpy as np

from ..jit import layout as L
from ..system.types import Array
from ..system.values import whole
from . import wire as W
from .enums import DataType, TensorArgType, any_dtype, find_dtype, numpy_dtype, to_dtype
from .wire import CHILD_MEMORY_AT, SHAPE_AT, TAG_AT, TENSOR, DescribedWire, Layout

Tensor: TypeAlias = "ContinuousTensor | Array | Any"


_U64_MASK = (1 << 64) - 1
_TAGS = {int(tag): W.with_tag(b"", tag) for tag in TensorArgType}
"""A tensor's padding on its way into submit."""
_NO_SIZES = (0,) * L.CONTINUOUS_TENSOR_MAX_DIMS
REMOTE_FIRST, REMOTE_LAST = 1 << 62, 0x7000 << 48
"""Substitute addresses for memory of endpoints, never used twice."""
RECORDED_FIRST, RECORDED_LAST = 0x7FF9 << 48, 0x7FFF << 48
"""Substitute addresses for memory that a recorded graph will have: no machine has memory there, and as
numbers they are unlikely as scalars (they are not-a-numbers)."""


_FIELDS = "data", "shapes", "dtype", "child_memory"


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
        shapes: Sequence[int] = (),
        dtype: DataType = DataType.FLOAT32,
        child_memory: bool = False,
        *,
        keep: Any = None,
    ) -> None:
        try:
            sizes = tuple(map(index, shapes))
        except TypeError:
            raise TypeError(f"shape {shapes!r:.60} must be a sequence of integers") from None
        kind = to_dtype(dtype)
        if len(sizes) > L.CONTINUOUS_TENSOR_MAX_DIMS:
            raise ValueError(
                f"a tensor has at most {L.CONTINUOUS_TENSOR_MAX_DIMS} dimensions, this one has "
                f"{len(sizes)} {sizes}; reshape it, or name its type as numpy does"
            )
        padded = sizes + _NO_SIZES[len(sizes) :]
        try:
            wire = TENSOR.pack(data, *padded, len(sizes), kind, bool(child_memory))
        except (struct.error, TypeError):
            whole("address", data, 0, _U64_MASK)
            raise ValueError(f"shape {sizes} has a dimension outside 0 … 2**32-1") from None
        if math.prod(sizes) * L.DTYPE_SIZES[kind] >= 1 << 62:
            raise ValueError(f"a tensor of shape {sizes} does not fit an address space")
        self._fill(data, sizes, kind, bool(child_memory), keep, wire)

    def _fill(
        self, data: int, sizes: tuple[int, ...], kind: Any, child: bool, keep: Any, wire: bytes
    ) -> None:
        head = wire[:TAG_AT]
        write = object.__setattr__
        write(self, "data", data)
        write(self, "shapes", sizes)
        write(self, "dtype", kind)
        write(self, "child_memory", child)
        write(self, "_keep", keep)
        write(self, "_wire", wire)
        is_plain = type(wire) is bytes  # `TaskArgs` sees by an empty dict which one is not
        write(self, "_wires", {tag: head + _TAGS[tag] for tag in _TAGS} if is_plain else {})

    def _at_address(self, data: int, keep: Any) -> ContinuousTensor:
        """Return the same tensor at an address; `keep` keeps its memory alive."""
        tensor = object.__new__(type(self))
        wire = W.replaced(self._wire, 0, data.to_bytes(SHAPE_AT, "little"))
        tensor._fill(data, self.shapes, self.dtype, self.child_memory, keep, wire)
        return tensor

    def __setattr__(self, name: str, value: Any) -> None:
        """Set data, shapes, dtype or child_memory; tasks that have the tensor keep what they got."""
        if type(self) is not ContinuousTensor or name not in _FIELDS:
            kind = type(self).__name__
            raise AttributeError(f"{name!r} of a {kind} cannot be set; make another tensor")
        if RECORDED_FIRST <= self.data < RECORDED_LAST:
            raise AttributeError("this tensor is part of a recording, and cannot be changed")
        fields: dict[str, Any] = {one: getattr(self, one) for one in _FIELDS}
        made = ContinuousTensor(**fields | {name: value})
        keep = self._keep if name == "shapes" else None
        self._fill(made.data, made.shapes, made.dtype, made.child_memory, keep, made._wire)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.data, self.shapes, self.dtype, self.child_memory)

    @classmethod
    def make(
        cls,
        data: int,
        shapes: Sequence[int],
        dtype: Any,
        child_memory: bool = False,
        *,
        strides: Sequence[int] | None = None,
    ) -> ContinuousTensor:
        """Describe memory by hand. The address is not checked.

        Parameters
        ----------
        data : int
            Address of the first element.
        shapes : Sequence[int]
            The dimensions.
        dtype : DataType or numpy.dtype
            One of `DataType`, or any of numpy's without Python objects. What `DataType` cannot say, and
            more than five dimensions, makes a `DescribedTensor`, which chips do not take; with a
            `DataType` and without strides, more dimensions are refused.
        child_memory : bool
            The address is in a next-level worker's memory.
        strides : Sequence[int], optional
            Bytes from one element to the next along each dimension; None: it is contiguous.
        """
        many = isinstance(shapes, Sized) and len(shapes) > L.CONTINUOUS_TENSOR_MAX_DIMS
        if strides is None and (not many or isinstance(dtype, DataType)):
            kind = find_dtype(dtype)
            if kind is not None:
                return cls(data, shapes, kind, child_memory)
        if child_memory:
            raise ValueError(
                f"child memory has contiguous tensors of DataType with at most "
                f"{L.CONTINUOUS_TENSOR_MAX_DIMS} dimensions, not {any_dtype(dtype)} of shape "
                f"{tuple(shapes)} and strides {strides}: describe its bytes as UINT8"
            )
        return describe(data, shapes, any_dtype(dtype), strides)

    @property
    def is_read_only(self) -> bool:
        """Whether it is an INPUT, and its task must not write it: only with ``check=True``."""
        return self._wire[CHILD_MEMORY_AT] == L.TENSOR_READ_ONLY

    @property
    def ndims(self) -> int:
        """Number of dimensions."""
        return len(self.shapes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each dimension."""
        return W.row_major(self.shapes, L.DTYPE_SIZES[self.dtype])

    def nbytes(self) -> int:
        """Return the bytes of the tensor: elements times element size."""
        return math.prod(self.shapes) * L.DTYPE_SIZES[self.dtype]

    def _span(self) -> tuple[int, int]:
        """Return the lowest address, and how many bytes the tensor spans."""
        return self.data, self.nbytes()

    def _tagged(self, tag: int) -> bytes:
        """Return the tensor with a tag, for submit."""
        if self._wires:
            return self._wires[tag]
        return W.replaced(self._wire, TAG_AT, bytes((tag,)))

    def _note(self, at: int, octets: bytes) -> None:
        """Put something into the padding, for submit."""
        for tag, wire in self._wires.items():
            self._wires[tag] = W.replaced(wire, at, octets)

    def numpy(self) -> Array:
        """Return a numpy array over the same memory, without a copy.

        Raises ValueError if the tensor has no address, or one in a chip's memory.
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
    def _from_wire(cls, wire: bytes, layouts: W.LayoutReader | None = None) -> ContinuousTensor:
        """Return the tensor of 40 bytes; `layouts` are those of the engine that it went through."""
        data, *sizes, ndims, dtype, child = TENSOR.unpack(wire)
        if ndims > L.CONTINUOUS_TENSOR_MAX_DIMS or child > 1:
            if isinstance(wire, DescribedWire):
                return DescribedTensor(data, wire.layout, child)
            if W.has_layout(wire) and layouts is not None:
                return DescribedTensor(data, layouts.read(W.layout_number(wire)), child)
            if child == L.TENSOR_READ_ONLY and ndims <= L.CONTINUOUS_TENSOR_MAX_DIMS:
                return ReadOnlyTensor(data, sizes[:ndims], DataType(dtype))
            raise ValueError(
                f"{wire.hex()} is no tensor: it has {ndims} dimensions and child_memory {child}; at "
                f"most {L.CONTINUOUS_TENSOR_MAX_DIMS} and 1 are known"
            )
        return cls(data, sizes[:ndims], DataType(dtype), bool(child))


class ReadOnlyTensor(ContinuousTensor):
    """An INPUT, as a task of a Worker with ``check=True`` gets it."""

    __slots__ = ()

    is_read_only = True

    def numpy(self) -> Array:
        """Return a numpy array over the same memory that cannot be written."""
        array = super().numpy()
        array.flags.writeable = False
        return array


class DescribedTensor(ContinuousTensor):
    """A tensor that `DataType`, five dimensions and contiguous memory cannot describe.

    Its layout, which is element type, a dtype of numpy, shape and strides, travels beside the 40 bytes.
    Workers of the host take it, chips do not.
    """

    __slots__ = ()

    _wire: DescribedWire

    def __init__(self, data: int, layout: Layout, access: int = 0) -> None:
        whole("address", data, 0, _U64_MASK)
        below, extent = W.span_of(layout)
        if not data and below:
            raise ValueError(
                f"a tensor that is to get memory has no negative strides, and these are {layout[2]}: "
                "reverse the array in the tasks"
            )
        if extent >= 1 << 62:
            raise ValueError(
                f"a tensor of shape {layout[1]} and strides {layout[2]} does not fit an address space"
            )
        wire = DescribedWire(W.described(data, 0, extent, access), layout)
        self._fill(data, layout[1], layout[0], False, None, wire)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each dimension."""
        return self._wire.layout[2]

    def nbytes(self) -> int:
        """Return the bytes of its elements; how many it spans depends on the strides."""
        return math.prod(self.shapes) * self._wire.layout[0].itemsize

    def _span(self) -> tuple[int, int]:
        below, extent = W.span_of(self._wire.layout)
        return self.data - below, extent

    def _note(self, at: int, octets: bytes) -> None:
        object.__setattr__(self, "_wire", W.replaced(self._wire, at, octets))

    def numpy(self) -> Array:
        """Return a numpy array over the same memory, with these strides."""
        if not FIRST_ADDRESS <= self.data < END_OF_ADDRESSES:
            self._require_memory()
        dtype, shape, strides = self._wire.layout
        array = view_memory(self.data, shape, dtype, self._keep, strides)
        if self.is_read_only:
            array.flags.writeable = False
        return array

    def __repr__(self) -> str:
        dtype, shape, strides = self._wire.layout
        return f"DescribedTensor({self.data:#x}, {shape}, {dtype}, strides={strides})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DescribedTensor)
            and self._wire == other._wire
            and self._wire.layout == other._wire.layout
        )

    def __hash__(self) -> int:
        return hash(self._wire)

    def __reduce__(self) -> tuple[Any, ...]:
        return DescribedTensor, (self.data, self._wire.layout)


class RemoteTensor(ContinuousTensor):
    """A tensor that no process of this machine reads or writes at its address.

    It is in a buffer of an endpoint (`place` is its handle), or its bytes travel with a task (`place` is
    these). See `RemoteTensorRef`.
    """

    __slots__ = ()

    _wire: W.RemoteWire

    def _fill(
        self, data: int, sizes: tuple[int, ...], kind: Any, child: bool, keep: Any, wire: bytes
    ) -> None:
        super()._fill(data, sizes, kind, child, keep, W.RemoteWire(wire, keep))

    def _note(self, at: int, octets: bytes) -> None:
        raise TypeError(f"{self!r} cannot be part of a recording")

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{self!r} cannot be pickled: its handle belongs to one Worker")

    def numpy(self) -> Array:
        """Refuse: its memory is elsewhere."""
        raise ValueError(
            f"{self!r} is in an endpoint's memory; copy it with Worker.remote_copy_from"
        )


def describe(
    data: int, shape: Sequence[int], dtype: np.dtype[Any], strides: Sequence[int] | None = None
) -> ContinuousTensor:
    """Return the tensor for memory: a ContinuousTensor if that can describe it."""
    try:
        sizes = tuple(map(index, shape))
        steps = W.row_major(sizes, dtype.itemsize)
        if strides is not None:
            steps = tuple(map(index, strides))
    except TypeError:
        raise TypeError(
            f"shape {shape!r} and strides {strides!r} must be sequences of integers"
        ) from None
    if len(steps) != len(sizes):
        raise ValueError(f"{len(steps)} strides {steps} for {len(sizes)} dimensions {sizes}")
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape {sizes} has a negative dimension")
    if len(sizes) > MOST_DIMS:
        raise ValueError(f"numpy has at most {MOST_DIMS} dimensions, this one has {len(sizes)}")
    kind = find_dtype(dtype)
    few = len(sizes) <= L.CONTINUOUS_TENSOR_MAX_DIMS
    if kind is not None and few and W.is_row_major(sizes, steps, dtype.itemsize):
        return ContinuousTensor(data, sizes, kind)
    return DescribedTensor(data, (dtype, sizes, steps))


def require_plain(members: Sequence[Sequence[bytes]], who: str) -> None:
    for wires in members:
        for i, wire in enumerate(wires):
            if isinstance(wire, DescribedWire):
                raise TypeError(f"{who}: tensor {i} {why_not_plain(wire.layout)}")


def why_not_plain(layout: Layout) -> str:
    """Say why `ContinuousTensor` cannot describe a layout, and what to do."""
    dtype, shape, strides = layout
    if find_dtype(dtype) is None:
        names = ", ".join(kind.name for kind in DataType)
        return f"has elements of type {dtype}, which DataType lacks; convert it to one of {names}"
    if len(shape) > L.CONTINUOUS_TENSOR_MAX_DIMS:
        return (
            f"has {len(shape)} dimensions {shape}, and at most {L.CONTINUOUS_TENSOR_MAX_DIMS} are "
            "taken here; reshape it"
        )
    return (
        f"has shape {shape} and strides {strides}, which is not contiguous; pass a copy that is, "
        "Worker.share(np.ascontiguousarray(array))"
    )


MOST_DIMS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
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
    if not data and not dtype.itemsize:  # elements without bytes were given no memory
        data, keep = FIRST_ADDRESS, None
    base = FIRST_ADDRESS if keep is None else keep.ctypes.data
    view: Array = np.ndarray(
        shape, dtype, buffer=_memory if keep is None else keep, offset=data - base, strides=strides
    )
    return view


def share_bytes(one: Array, other: Array, most_work: Any = 100_000) -> bool:
    """Say whether two arrays share a byte; yes, if numpy needs more than so many steps to find out."""
    try:
        return bool(np.shares_memory(one, other, most_work))
    except RuntimeError:  # TooHardError, which moved between versions of numpy
        return True
