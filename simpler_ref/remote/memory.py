"""The memory of endpoints, as the program uses it: buffers, copies, exports and imports.

Rule     REMOTE-MEM-1, REMOTE-MEM-2, REMOTE-MEM-3, REMOTE-MEM-5
"""

from __future__ import annotations

import ctypes
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..jit import layout as L
from ..model.tensor import REMOTE_FIRST, REMOTE_LAST
from ..system.regions import has_memory
from ..system.values import whole
from ..workers.life import Life
from . import buffers, references
from .frames import ControlName
from .limits import SESSION
from .link import Link

MOST_BYTES = 1 << 40
_PAGE = 4096
PART = 1 << 20
"""The most bytes that the program copies at once: requests of others wait that long."""


class EndpointMemory:
    """Buffers of endpoints, by handles.

    `find` returns the link of an endpoint.
    """

    def __init__(self, life: Life, find: Callable[[int], Link]) -> None:
        self._life, self._link = life, find
        self._addresses = REMOTE_FIRST
        self._held: Counter[int] = Counter()
        """By session in which this Worker has had memory: the bytes that were allocated there."""

    def require_current(self, handle: references.RemoteBufferHandle, link: Link) -> None:
        """Refuse memory of a session that is over, or another Worker's."""
        references.require_live(handle)
        if handle.session not in self._held:
            raise ValueError(f"{handle!r} is another Worker's: use it with the one that it is from")
        if handle.session != int(link.words[SESSION]):
            handle.is_live = False
            references.require_live(handle)

    def malloc(self, worker: int, nbytes: int) -> references.RemoteBufferHandle:
        """Allocate memory of an endpoint; see `Worker.remote_malloc`."""
        link = self._link(worker)
        size = whole("nbytes", nbytes, 1, MOST_BYTES)
        base = self._take_addresses(size)
        payload = buffers.ALLOC.encode(buffers.AllocRequest(size))
        made = buffers.IDENTITY.decode(
            self._ask(link, ControlName.ALLOC_REMOTE_BUFFER, payload, base)
        )
        session = int(link.words[SESSION])
        self._held[session] += size
        return references.RemoteBufferHandle(
            *(link.number, made.owner_endpoint_id, made.buffer_id, made.generation),
            *(0, size, base, session),
        )

    def held_by(self, session: int) -> int:
        """Return how many bytes a program has allocated in a session."""
        return self._held[session]

    def _take_addresses(self, nbytes: int) -> int:
        base = self._addresses
        self._addresses += (nbytes // _PAGE + 2) * _PAGE  # with a gap before the next
        if self._addresses >= REMOTE_LAST:
            raise MemoryError(
                "all addresses for memory of endpoints were given out: make a new Worker"
            )
        return base

    def free(self, handle: references.RemoteBufferHandle) -> None:
        """Free memory of an endpoint; see `Worker.remote_free`."""
        link = self._own(handle, "remote_free", own=True)
        payload = buffers.IDENTITY.encode(buffers.BufferIdentity(*handle.identity))
        self._ask(link, ControlName.FREE_REMOTE_BUFFER, payload, handle.address)
        self._held[handle.session] -= handle.nbytes
        handle.is_live = False

    def copy_to(
        self, handle: references.RemoteBufferHandle, host_ptr: int, nbytes: int, offset: int
    ) -> None:
        """Copy memory of this process to an endpoint, in parts; see `Worker.remote_copy_to`."""
        link = self._copyable(handle, host_ptr, nbytes, offset, "remote_copy_to")
        for at in range(0, nbytes, PART):
            data = ctypes.string_at(host_ptr + at, min(PART, nbytes - at))
            payload = buffers.copy_parts(handle.identity, offset + at, len(data), data)
            self._ask(link, ControlName.COPY_TO_REMOTE, payload)

    def copy_from(
        self, handle: references.RemoteBufferHandle, host_ptr: int, nbytes: int, offset: int
    ) -> None:
        """Copy memory of an endpoint to this process, in parts; see `Worker.remote_copy_from`."""
        link = self._copyable(handle, host_ptr, nbytes, offset, "remote_copy_from")
        for at in range(0, nbytes, PART):
            size = min(PART, nbytes - at)
            payload = buffers.copy_parts(handle.identity, offset + at, size)
            data = self._ask(link, ControlName.COPY_FROM_REMOTE, payload)
            ctypes.memmove(host_ptr + at, data, size)

    def _copyable(self, handle: Any, host_ptr: Any, nbytes: Any, offset: Any, what: str) -> Link:
        link = self._own(handle, what, own=True)
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
        return link

    def export(
        self,
        handle: references.RemoteBufferHandle,
        offset: int,
        nbytes: int | None,
        access: str | int,
        transport_profile: str,
    ) -> references.RemoteBufferExport:
        """Let other endpoints import a part of a buffer; see `Worker.remote_export`."""
        link = self._own(handle, "remote_export", own=True)
        at = whole("offset", offset, 0, MOST_BYTES)
        if at >= handle.nbytes:
            raise ValueError(f"offset={at} is not in {handle!r}: give one below {handle.nbytes}")
        size = handle.nbytes - at if nbytes is None else whole("nbytes", nbytes, 1, MOST_BYTES)
        handle.require_within(at, size)
        request = buffers.ExportBufferRequest(
            *(*handle.identity, at, size, references.access_of(access), transport_profile)
        )
        payload = buffers.encode_export_buffer_request(request)
        raw = self._ask(link, ControlName.EXPORT_BUFFER, payload)
        return references.RemoteBufferExport(handle, buffers.decode_export_buffer_result(raw))

    def take(
        self, exported: references.RemoteBufferExport, worker: int, access: str | int | None
    ) -> references.RemoteBufferHandle:
        """Import what another endpoint has exported; see `Worker.remote_import`."""
        if not isinstance(exported, references.RemoteBufferExport):
            raise TypeError(
                f"remote_import expects what remote_export has returned, not {type(exported).__name__}"
            )
        link, owner, found = self._link(worker), exported.handle, exported.result
        self.require_current(owner, self._link(owner.worker))
        if link.number == owner.worker:
            raise ValueError(f"endpoint {worker} has that memory itself: use its own handle")
        rights = found.access_flags if access is None else references.access_of(access)
        if rights & ~found.access_flags:
            raise ValueError(
                f"access={access!r} is more than was exported, "
                f"{references.access_name(found.access_flags)!r}: export it with that access, or leave "
                "access= out"
            )
        request = buffers.ImportBufferRequest(link.number, rights, found)
        base = owner.address + found.offset
        payload = buffers.encode_import_buffer_request(request)
        raw = self._ask(link, ControlName.IMPORT_BUFFER, payload, base)
        made = buffers.decode_import_buffer_result(raw)
        session = int(link.words[SESSION])
        self._held[session] += 0
        return references.RemoteBufferHandle(
            *(link.number, made.owner_endpoint_id, made.buffer_id, made.generation),
            *(made.offset, made.nbytes, base, session, made.access_flags, made.import_id),
        )

    def release(self, handle: references.RemoteBufferHandle) -> None:
        """Forget what was imported; see `Worker.remote_release_import`."""
        link = self._own(handle, "remote_release_import", own=False)
        request = buffers.ReleaseImportRequest(link.number, *handle.identity, handle.import_id)
        payload = buffers.encode_release_import_request(request)
        self._ask(link, ControlName.RELEASE_IMPORT, payload, handle.address)
        handle.is_live = False

    def _own(self, handle: Any, what: str, own: bool) -> Link:
        if not isinstance(handle, references.RemoteBufferHandle):
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

    def _ask(self, link: Link, name: ControlName, payload: bytes, base: int = 0) -> bytes:
        raw = pickle.dumps(buffers.Request(name, payload, base))
        return self._life.running_manager().exchange(link.number, L.LINK_ASK, raw)
