"""Memory of endpoints, as a parent names it: handles of buffers, and tensors in them.

Rule     REMOTE-ARGS-1, REMOTE-ARGS-4, REMOTE-MEM-1, REMOTE-MEM-2
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.enums import DataType, TensorArgType, any_dtype, find_dtype
from ..model.tensor import RemoteTensor
from ..system.values import sizes, whole
from . import limits
from .buffers import ExportBufferResult

ACCESS = {
    "read": limits.REMOTE_BUFFER_ACCESS_READ,
    "write": limits.REMOTE_BUFFER_ACCESS_WRITE,
    "readwrite": limits.REMOTE_BUFFER_ACCESS_READ_WRITE,
}


def access_of(access: str | int) -> int:
    """Return the number of an access; `ValueError` if it is none."""
    for name, number in ACCESS.items():
        if access in (name, number):
            return number
    raise ValueError(f"access={access!r}: it is one of {', '.join(map(repr, ACCESS))}")


def access_name(number: int) -> str:
    """Return the name of an access."""
    return next(name for name, one in ACCESS.items() if one == number)


@dataclass(eq=False, repr=False, slots=True)
class RemoteBufferHandle:
    """A buffer in an endpoint's memory, or a part of one that was imported; `Worker.remote_malloc` and
    `Worker.remote_import` return it.

    Attributes
    ----------
    worker : int
        The endpoint whose tasks can use it.
    owner : int
        The endpoint that has the memory; another one if it is an import.
    buffer_id, generation : int
        Its identity at the owner. The generation is unlike that of any other buffer.
    offset, nbytes : int
        Which bytes of it.
    access : int
        1 to read, 2 to write, 3 for both.
    import_id : int
        0 for the owner's own.
    is_live : bool
        It was neither freed nor released, and its endpoint has not been lost.
    """

    worker: int
    owner: int
    buffer_id: int
    generation: int
    offset: int
    nbytes: int
    address: int
    session: int
    access: int = limits.REMOTE_BUFFER_ACCESS_READ_WRITE
    import_id: int = 0
    is_live: bool = True

    @property
    def identity(self) -> tuple[int, int, int]:
        """The buffer, as messages name it: its owner, its number there, its generation."""
        return self.owner, self.buffer_id, self.generation

    def require_within(self, offset: int, nbytes: int) -> None:
        """Refuse bytes that are not all in it."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"{nbytes} bytes from offset {offset} are not all in {self!r}")

    def __repr__(self) -> str:
        kind = f"imported by endpoint {self.worker}, " if self.import_id else ""
        state = "" if self.is_live else ", no longer live"
        return (
            f"<RemoteBufferHandle of {self.nbytes} bytes, {kind}endpoint {self.owner}, buffer "
            f"{self.buffer_id}, generation {self.generation}{state}>"
        )


@dataclass(eq=False, repr=False, slots=True)
class RemoteBufferExport:
    """A part of a buffer that other endpoints may import; `Worker.remote_export` returns it."""

    handle: RemoteBufferHandle
    result: ExportBufferResult

    def __repr__(self) -> str:
        return f"<RemoteBufferExport of {self.result.nbytes} bytes of {self.handle!r}>"


class RemoteTensorRef(RemoteTensor):
    """A tensor in an endpoint's memory, for the arguments of its tasks.

    Parameters
    ----------
    handle : RemoteBufferHandle
        The buffer.
    offset : int
        Bytes from the begin of what the handle stands for.
    shape : Sequence[int]
        The dimensions, at most five.
    dtype : DataType or numpy.dtype
        One of `DataType`.

    Raises
    ------
    TypeError, ValueError
        No handle of a live buffer; the tensor is not all in it; no element type of `DataType`.
    """

    __slots__ = ()

    def __init__(
        self,
        handle: RemoteBufferHandle,
        offset: int = 0,
        shape: Sequence[int] | int | None = None,
        dtype: Any = DataType.UINT8,
    ) -> None:
        if not isinstance(handle, RemoteBufferHandle):
            raise TypeError(
                f"a RemoteTensorRef needs a handle from Worker.remote_malloc or remote_import, not "
                f"{type(handle).__name__}"
            )
        require_live(handle)
        kind = _element(dtype)
        at = whole("offset", offset, 0, handle.nbytes)
        dims = _sizes(shape, (handle.nbytes - at) // L.DTYPE_SIZES[kind])
        handle.require_within(at, math.prod(dims) * L.DTYPE_SIZES[kind])
        super().__init__(handle.address + at, dims, kind, keep=handle)

    @classmethod
    def host_inline(
        cls, data: Any, shape: Sequence[int] | int | None = None, dtype: Any = None
    ) -> RemoteTensor:
        """Return a tensor whose bytes travel with the task, which can only read it.

        Parameters
        ----------
        data : bytes or numpy.ndarray
            The bytes, at most 1 MiB for all tensors of a task; copied at once.
        shape : Sequence[int], optional
            The dimensions; of an array its own, else one dimension of all elements.
        dtype : DataType or numpy.dtype, optional
            One of `DataType`; of an array its own, else UINT8.
        """
        if isinstance(data, np.ndarray):
            shape = data.shape if shape is None else shape
            dtype = data.dtype if dtype is None else dtype
            data = np.ascontiguousarray(data).tobytes()
        try:
            octets = bytes(memoryview(data))
        except TypeError:
            raise TypeError(
                f"host_inline needs bytes or an array, not {type(data).__name__}"
            ) from None
        if len(octets) > limits.MAX_INLINE_PAYLOAD_BYTES:
            raise ValueError(
                f"{len(octets)} bytes do not travel with a task, at most "
                f"{limits.MAX_INLINE_PAYLOAD_BYTES} do: use remote_malloc and remote_copy_to"
            )
        kind = _element(DataType.UINT8 if dtype is None else dtype)
        size = L.DTYPE_SIZES[kind]
        dims = _sizes(shape, len(octets) // size)
        if math.prod(dims) * size != len(octets):
            raise ValueError(f"{len(octets)} bytes are no {kind.name} tensor of shape {dims}")
        return RemoteTensor(0, dims, kind, keep=octets)


def _sizes(shape: Sequence[int] | int | None, default: int) -> tuple[int, ...]:
    """Return the dimensions; by default one of so many elements."""
    if shape is None:
        return (default,)
    found = sizes(shape)
    if any(one < 0 for one in found):
        raise ValueError(f"shape={shape!r} has a dimension below 0")
    return found


def _element(dtype: Any) -> DataType:
    kind = find_dtype(dtype)
    if kind is None:
        raise TypeError(
            f"{any_dtype(dtype)} is no element type that messages have: describe its bytes as UINT8"
        )
    return kind


def require_live(handle: RemoteBufferHandle) -> None:
    """Refuse a buffer that is gone."""
    if not handle.is_live:
        raise ValueError(f"{handle!r}: it was freed or released, or its endpoint was lost")


class RemoteTaskArgs(TaskArgs):
    """Arguments for a task of an endpoint: a `TaskArgs` that takes what an endpoint can reach."""

    __slots__ = ()

    def add_tensor(self, tensor: Any, tag: TensorArgType = TensorArgType.INPUT) -> None:
        """Append a `RemoteTensorRef`; see `TaskArgs.add_tensor`."""
        if not isinstance(tensor, RemoteTensor):
            raise TypeError(
                f"an endpoint does not see {type(tensor).__name__} of this machine: give a "
                "RemoteTensorRef, or RemoteTensorRef.host_inline for few bytes"
            )
        super().add_tensor(tensor, tag)
