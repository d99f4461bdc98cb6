"""The memory of a session: its buffers, what it has exported, and what it has imported.

Rule     REMOTE-REG-9, REMOTE-MEM-1, REMOTE-MEM-2, REMOTE-MEM-3, REMOTE-MEM-4, REMOTE-MEM-5
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..system.types import Array
from . import buffers
from .limits import MAX_FRAME_PAYLOAD_BYTES, REMOTE_BUFFER_ACCESS_READ, REMOTE_BUFFER_ACCESS_WRITE
from .mover import Mover
from .tasks import RemoteTensorDesc
from .windows import Window

PROFILE = "zmq/1"
"""How exported memory is reached; the descriptor is JSON with the address of the mover."""


@dataclass
class _Buffer:
    generation: int
    memory: Array


@dataclass
class _Import:
    """What was imported: a copy here, which tasks see, and where the memory is."""

    request: buffers.ReleaseImportRequest
    memory: Array
    address: str
    key: int
    offset: int
    access: int


class Stores:
    """Buffers, exports and imports of one session.

    `empty` returns memory that the inner Worker's tasks see.
    """

    def __init__(self, endpoint_id: int, mover: Mover, empty: Callable[[int], Array]) -> None:
        self._endpoint_id, self._mover, self._empty = endpoint_id, mover, empty
        self._buffers: dict[int, _Buffer] = {}
        self._exports: dict[int, list[int]] = {}
        """Keys of the windows of each buffer."""
        self._imports: dict[int, _Import] = {}
        self._last_buffer = self._last_export = self._last_import = 0

    # ------------------------------------------------------------ buffers
    def alloc(self, nbytes: int) -> buffers.BufferIdentity:
        """Allocate a buffer."""
        memory = self._empty(nbytes)
        self._last_buffer += 1
        generation = secrets.randbits(62) | 1
        self._buffers[self._last_buffer] = _Buffer(generation, memory)
        return buffers.BufferIdentity(self._endpoint_id, self._last_buffer, generation)

    def free(self, identity: buffers.BufferIdentity) -> None:
        """Free a buffer, and end its exports."""
        self._find(identity)
        for key in self._exports.pop(identity.buffer_id, ()):
            self._mover.withdraw(key)
        del self._buffers[identity.buffer_id]

    def write(self, copy: buffers.CopyRequest) -> None:
        """Write bytes into a buffer."""
        self._span(copy)[:] = np.frombuffer(copy.data, np.uint8)

    def read(self, copy: buffers.CopyRequest) -> bytes:
        """Return bytes of a buffer."""
        if copy.nbytes > MAX_FRAME_PAYLOAD_BYTES // 2:
            raise ValueError(f"{copy.nbytes} bytes do not fit an answer: read them in parts")
        return self._span(copy).tobytes()

    def _find(self, identity: Any) -> Array:
        found = self._buffers.get(identity.buffer_id)
        if (
            identity.owner_endpoint_id != self._endpoint_id
            or found is None
            or found.generation != identity.generation
        ):
            raise KeyError(
                f"{buffers.identity_of(identity)} is not a live buffer of endpoint {self._endpoint_id}"
            )
        return found.memory

    def _span(self, part: Any) -> Array:
        memory = self._find(part)
        if part.offset + part.nbytes > memory.nbytes:
            raise ValueError(
                f"{part.nbytes} bytes from offset {part.offset} are not all in a buffer of "
                f"{memory.nbytes}"
            )
        span: Array = memory[part.offset : part.offset + part.nbytes]
        return span

    def staged(self, token: bytes) -> bytes:
        """Return the blob that is staged under a token: the identity of a buffer."""
        return self._find(buffers.IDENTITY.decode(token)).tobytes()

    # ------------------------------------------------------------ export and import
    def export(self, request: buffers.ExportBufferRequest) -> buffers.ExportBufferResult:
        """Let other endpoints read or write a part of a buffer."""
        if request.transport_profile not in ("", PROFILE):
            raise ValueError(
                f"transport profile {request.transport_profile!r} is not known, {PROFILE!r} is"
            )
        memory = self._span(request)
        key = secrets.randbits(63) | 1
        self._mover.offer(Window(key, memory.ctypes.data, memory.nbytes, request.access_flags))
        self._exports.setdefault(request.buffer_id, []).append(key)
        self._last_export += 1
        return buffers.ExportBufferResult(
            request.owner_endpoint_id,
            request.buffer_id,
            request.generation,
            buffers.RemoteAddressSpace.REMOTE_WINDOW,
            request.offset,
            request.nbytes,
            self._last_export,
            rkey_or_token=key,
            access_flags=request.access_flags,
            transport_profile=PROFILE,
            transport_descriptor=json.dumps({"address": self._mover.address}).encode(),
        )

    def take(self, request: buffers.ImportBufferRequest) -> buffers.ImportBufferResult:
        """Import what another endpoint has exported."""
        exported, rights = request.export_desc, request.requested_access_flags
        if request.importer_endpoint_id != self._endpoint_id:
            raise ValueError(
                f"importer {request.importer_endpoint_id} is not this endpoint, {self._endpoint_id}"
            )
        if exported.transport_profile != PROFILE:
            raise ValueError(
                f"transport profile {exported.transport_profile!r} is not known, {PROFILE!r} is"
            )
        address = str(json.loads(exported.transport_descriptor)["address"])
        memory = self._empty(exported.nbytes)
        self._last_import += 1
        identity = exported.owner_endpoint_id, exported.buffer_id, exported.generation
        release = buffers.ReleaseImportRequest(self._endpoint_id, *identity, self._last_import)
        self._imports[self._last_import] = _Import(
            release, memory, address, exported.rkey_or_token, exported.offset, rights
        )
        return buffers.ImportBufferResult(
            self._endpoint_id,
            *identity,
            self._last_import,
            exported.address_space,
            exported.offset,
            exported.nbytes,
            rkey_or_token=exported.rkey_or_token,
            access_flags=rights,
            transport_profile=PROFILE,
            import_descriptor=exported.transport_descriptor,
        )

    def release(self, request: buffers.ReleaseImportRequest) -> None:
        """Forget what was imported."""
        found = self._imports.get(request.import_id)
        if found is None or found.request != request:
            raise KeyError(f"{request} is not a live import of endpoint {self._endpoint_id}")
        del self._imports[request.import_id]

    # ------------------------------------------------------------ tasks
    def address_of(self, desc: RemoteTensorDesc) -> int:
        """Return the address of a tensor in a buffer of this endpoint."""
        address: int = self._span(desc).ctypes.data
        return address

    def fetch(self, desc: RemoteTensorDesc, rights: int) -> tuple[int, Callable[[], None]]:
        """Return the address of an imported tensor, once its bytes are here, and what ends its use."""
        found = self._imports.get(desc.rkey_or_token)
        identity = desc.owner_endpoint_id, desc.buffer_id, desc.generation
        if found is None or identity != (
            found.request.owner_endpoint_id,
            found.request.buffer_id,
            found.request.generation,
        ):
            raise KeyError(
                f"{buffers.identity_of(desc)} is not a live import of endpoint {self._endpoint_id}"
            )
        if rights & ~found.access:
            raise PermissionError(
                f"a task that {'writes' if rights & REMOTE_BUFFER_ACCESS_WRITE else 'reads'} needs "
                f"more than access {found.access}, with which {buffers.identity_of(desc)} was imported"
            )
        at = desc.offset - found.offset
        if at < 0 or at + desc.nbytes > found.memory.nbytes:
            raise ValueError(
                f"{desc.nbytes} bytes from offset {desc.offset} were not all imported: "
                f"{found.memory.nbytes} from offset {found.offset} were"
            )
        address: int = found.memory.ctypes.data + at
        if rights & REMOTE_BUFFER_ACCESS_READ and desc.nbytes:
            self._mover.fetch(found.address, found.key, at, address, desc.nbytes)

        def put_back() -> None:
            if rights & REMOTE_BUFFER_ACCESS_WRITE and desc.nbytes:
                self._mover.store(found.address, found.key, at, address, desc.nbytes)

        return address, put_back

    def counts(self) -> dict[str, int]:
        """Return how many buffers, exports and imports there are."""
        return {
            "buffers": len(self._buffers),
            "buffer_bytes": sum(one.memory.nbytes for one in self._buffers.values()),
            "exports": sum(map(len, self._exports.values())),
            "imports": len(self._imports),
        }
