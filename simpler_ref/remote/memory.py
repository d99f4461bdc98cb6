"""Memory of endpoints, as a program names and uses it: buffers, tensors in them, exports and imports.

Rule     REMOTE-ARGS-1, REMOTE-ARGS-4, REMOTE-MEM-1, REMOTE-MEM-2, REMOTE-MEM-3, REMOTE-MEM-5
"""

from __future__ import annotations

import ctypes
import math
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.enums import DataType, TensorArgType, any_dtype, find_dtype
from ..model.tensor import REMOTE_FIRST, REMOTE_LAST, RemoteTensor
from ..system.regions import has_memory
from ..system.values import sizes, whole
from . import limits, tasks
from .frames import ControlName

if TYPE_CHECKING:
    from ..workers.life import Life
    from .link import Link

MOST_BYTES = 1 << 40
_PAGE = 4096
PART = 1 << 20
"""The most bytes that the program copies at once: requests of others wait that long."""
ACCESS = "read", "write", "readwrite"
"""The names of the accesses 1, 2 and 3."""


def access_of(access: str | int) -> int:
    """Return the number of an access; `ValueError` if it is none."""
    for number, name in enumerate(ACCESS, limits.REMOTE_BUFFER_ACCESS_READ):
        if access in (name, number):
            return number
    raise ValueError(f"access={access!r}: it is one of {', '.join(map(repr, ACCESS))}")


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
    nbytes: int
    address: int
    session: int
    offset: int = 0
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
    result: tasks.ExportBufferResult

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


# ---------------------------------------------------------------- the buffers of a Worker
class EndpointMemory:
    """Buffers of endpoints, by handles, as `RemoteMethods` uses them.

    `find` returns the link of an endpoint.
    """

    def __init__(self, life: Life, find: Callable[[int], Link]) -> None:
        self._life, self._link = life, find
        self._addresses = REMOTE_FIRST
        self.held: Counter[int] = Counter()
        """By session in which this Worker has had memory: the bytes that were allocated there."""

    def require_current(self, handle: RemoteBufferHandle, link: Link) -> None:
        """Refuse memory of a session that is over, or another Worker's."""
        require_live(handle)
        if handle.session not in self.held:
            raise ValueError(f"{handle!r} is another Worker's: use it with the one that it is from")
        if handle.session != int(link.words[limits.SESSION]):
            handle.is_live = False
            require_live(handle)

    def take_addresses(self, nbytes: int) -> int:
        """Return the first of addresses for memory of an endpoint."""
        base = self._addresses
        self._addresses += (nbytes // _PAGE + 2) * _PAGE  # with a gap before the next
        if self._addresses >= REMOTE_LAST:
            raise MemoryError(
                "all addresses for memory of endpoints were given out: make a new Worker"
            )
        return base

    def handle(
        self, link: Link, made: Any, nbytes: int, base: int, **more: int
    ) -> RemoteBufferHandle:
        """Return a handle of memory that an endpoint has allocated, or imported."""
        session = int(link.words[limits.SESSION])
        self.held[session] += 0 if more else nbytes
        return RemoteBufferHandle(
            *(link.number, made.owner_endpoint_id, made.buffer_id, made.generation),
            *(nbytes, base, session),
            **more,  # type: ignore[arg-type]
        )

    def own(self, handle: Any, what: str, own: bool = True) -> Link:
        """Return the link of a buffer that its owner has, or of an import; refuse anything else."""
        if not isinstance(handle, RemoteBufferHandle):
            raise TypeError(
                f"{what} expects a handle from Worker.{'remote_malloc' if own else 'remote_import'}, not "
                f"{type(handle).__name__}"
            )
        if own == bool(handle.import_id):
            raise ValueError(
                f"{handle!r} is {'an import' if own else 'no import'}: {what} is for "
                f"{'the owner of a buffer' if own else 'imports'}"
            )
        link = self._link(handle.worker)
        self.require_current(handle, link)
        return link

    def ask(self, link: Link, name: ControlName, payload: bytes, base: int = 0) -> bytes:
        raw = pickle.dumps(tasks.Request(name, payload, base))
        return self._life.running_manager().exchange(link.number, L.LINK_ASK, raw)

    def copy(
        self, handle: RemoteBufferHandle, host_ptr: int, nbytes: int, offset: int, to: bool
    ) -> None:
        """Copy memory of this process to an endpoint, or from there, in parts."""
        link = self.own(handle, "remote_copy_to" if to else "remote_copy_from")
        whole("host_ptr", host_ptr, 1, (1 << 64) - 1)
        handle.require_within(
            whole("offset", offset, 0, MOST_BYTES), whole("nbytes", nbytes, 0, MOST_BYTES)
        )
        self._life.live()
        if not has_memory(host_ptr, nbytes):
            raise ValueError(
                f"host_ptr={host_ptr:#x}: this process has no {nbytes} bytes there; an array's address "
                "is array.ctypes.data"
            )
        name = ControlName.COPY_TO_REMOTE if to else ControlName.COPY_FROM_REMOTE
        for at in range(0, nbytes, PART):
            size = min(PART, nbytes - at)
            data = ctypes.string_at(host_ptr + at, size) if to else b""
            copy = tasks.CopyRequest(*handle.identity, offset + at, size, data)
            came = self.ask(link, name, tasks.COPY.encode(copy))
            if not to:
                ctypes.memmove(host_ptr + at, came, size)
