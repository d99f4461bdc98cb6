"""The memory of a session: its buffers, what it has exported, and what it has imported.

Rule     REMOTE-REG-9, REMOTE-MEM-1, REMOTE-MEM-2, REMOTE-MEM-3, REMOTE-MEM-4, REMOTE-MEM-5
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..system.types import Array, address_of
from . import tasks
from .limits import MAX_FRAME_PAYLOAD_BYTES, REMOTE_BUFFER_ACCESS_READ, REMOTE_BUFFER_ACCESS_WRITE
from .mover import Mover
from .tasks import RemoteTensorDesc
from .windows import Span, Window

PROFILE = "zmq/1"
"""How exported memory is reached; the descriptor is JSON with the address of the mover."""


class _Import(NamedTuple):
    """What was imported: a copy here, which tasks see, and the mover that has the memory."""

    made: tasks.ImportBufferResult
    memory: Array
    address: str


class Stores:
    """Buffers, exports and imports of one session.

    `empty` returns memory that the inner Worker's tasks see.
    """

    def __init__(self, endpoint_id: int, mover: Mover, empty: Callable[[int], Array]) -> None:
        self._endpoint_id, self._mover, self._empty = endpoint_id, mover, empty
        self._buffers: dict[tuple[int, ...], Array] = {}
        """By their identities."""
        self._exports: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        """The keys of the windows that each is exported in."""
        self._imports: dict[tuple[int, tuple[int, ...]], _Import] = {}
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------ buffers
    def alloc(self, nbytes: int) -> tasks.BufferIdentity:
        """Allocate a buffer."""
        memory, generation = self._empty(nbytes), secrets.randbits(62) | 1
        identity = tasks.BufferIdentity(self._endpoint_id, next(self._numbers), generation)
        self._buffers[_ids(identity)] = memory
        return identity

    def free(self, identity: tasks.BufferIdentity) -> None:
        """Free a buffer, and end its exports."""
        self._find(identity)
        for key in self._exports.pop(_ids(identity), ()):
            self._mover.withdraw(key)
        del self._buffers[_ids(identity)]

    def write(self, copy: tasks.CopyRequest) -> None:
        """Write bytes into a buffer."""
        self._span(copy)[:] = np.frombuffer(copy.data, np.uint8)

    def read(self, copy: tasks.CopyRequest) -> bytes:
        """Return bytes of a buffer."""
        if copy.nbytes > MAX_FRAME_PAYLOAD_BYTES // 2:
            raise ValueError(f"{copy.nbytes} bytes do not fit an answer: read them in parts")
        return self._span(copy).tobytes()

    def staged(self, token: bytes) -> bytes:
        """Return the blob that is staged under a token: the identity of a buffer."""
        return self._find(tasks.IDENTITY.decode(token)).tobytes()

    def address_of(self, desc: RemoteTensorDesc) -> int:
        """Return the address of a tensor in a buffer of this endpoint."""
        return address_of(self._span(desc))

    def _find(self, part: Any) -> Array:
        found = self._buffers.get(_ids(part))
        if found is None:
            raise KeyError(
                f"{tasks.identity_of(part)} is not a live buffer of endpoint {self._endpoint_id}"
            )
        return found

    def _span(self, part: Any) -> Array:
        memory = self._find(part)
        if part.offset + part.nbytes > memory.nbytes:
            raise ValueError(
                f"{part.nbytes} bytes from offset {part.offset} are not all in a buffer of "
                f"{memory.nbytes}"
            )
        span: Array = memory[part.offset : part.offset + part.nbytes]
        return span

    # ------------------------------------------------------------ export and import
    def export(self, request: tasks.ExportBufferRequest) -> tasks.ExportBufferResult:
        """Let other endpoints read or write a part of a buffer."""
        _require_profile(request.transport_profile or PROFILE)
        memory, key = self._span(request), secrets.randbits(63) | 1
        self._mover.offer(Window(key, address_of(memory), memory.nbytes, request.access_flags))
        self._exports[_ids(request)].append(key)
        return tasks.ExportBufferResult(
            *_ids(request),
            tasks.RemoteAddressSpace.REMOTE_WINDOW,
            request.offset,
            request.nbytes,
            next(self._numbers),
            rkey_or_token=key,
            access_flags=request.access_flags,
            transport_profile=PROFILE,
            transport_descriptor=json.dumps({"address": self._mover.address}).encode(),
        )

    def take(self, request: tasks.ImportBufferRequest) -> tasks.ImportBufferResult:
        """Import what another endpoint has exported."""
        exported = request.export_desc
        self._require_importer(request)
        _require_profile(exported.transport_profile)
        address = str(json.loads(exported.transport_descriptor)["address"])
        made = tasks.ImportBufferResult(
            self._endpoint_id,
            *_ids(exported),
            next(self._numbers),
            exported.address_space,
            exported.offset,
            exported.nbytes,
            rkey_or_token=exported.rkey_or_token,
            access_flags=request.requested_access_flags,
            transport_profile=PROFILE,
            import_descriptor=exported.transport_descriptor,
        )
        found = _Import(made, self._empty(made.nbytes), address)
        self._imports[made.import_id, _ids(made)] = found
        return made

    def release(self, request: tasks.ReleaseImportRequest) -> None:
        """Forget what was imported."""
        self._require_importer(request)
        self._find_import(request, request.import_id)
        del self._imports[request.import_id, _ids(request)]

    def _require_importer(self, request: Any) -> None:
        if request.importer_endpoint_id != self._endpoint_id:
            raise ValueError(
                f"importer {request.importer_endpoint_id} is not this endpoint, {self._endpoint_id}"
            )

    def _find_import(self, part: Any, number: int) -> _Import:
        found = self._imports.get((number, _ids(part)))
        if found is None:
            raise KeyError(
                f"{tasks.identity_of(part)} is not a live import of endpoint {self._endpoint_id}"
            )
        return found

    def fetch(self, desc: RemoteTensorDesc, rights: int) -> tuple[int, Callable[[], None]]:
        """Return the address of an imported tensor, once its bytes are here, and what ends its use."""
        found = self._find_import(desc, desc.rkey_or_token)
        made = found.made
        if rights & ~made.access_flags:
            raise PermissionError(
                f"a task that {'writes' if rights & REMOTE_BUFFER_ACCESS_WRITE else 'reads'} needs more "
                f"than access {made.access_flags}, with which {tasks.identity_of(desc)} was imported"
            )
        at = desc.offset - made.offset
        if at < 0 or at + desc.nbytes > made.nbytes:
            raise ValueError(
                f"{desc.nbytes} bytes from offset {desc.offset} were not all imported: "
                f"{made.nbytes} from offset {made.offset} were"
            )
        address = address_of(found.memory) + at
        spans = [Span(made.rkey_or_token, address, desc.nbytes, at)]
        if rights & REMOTE_BUFFER_ACCESS_READ and desc.nbytes:
            self._mover.fetch_all(found.address, spans)

        def put_back() -> None:
            if rights & REMOTE_BUFFER_ACCESS_WRITE and desc.nbytes:
                self._mover.store_all(found.address, spans)

        return address, put_back

    def counts(self) -> dict[str, int]:
        """Return how many buffers, exports and imports there are."""
        return {
            "buffers": len(self._buffers),
            "buffer_bytes": sum(one.nbytes for one in self._buffers.values()),
            "exports": sum(map(len, self._exports.values())),
            "imports": len(self._imports),
        }


def _ids(part: Any) -> tuple[int, int, int]:
    return part.owner_endpoint_id, part.buffer_id, part.generation


def _require_profile(name: str) -> None:
    if name != PROFILE:
        raise ValueError(f"transport profile {name!r} is not known, {PROFILE!r} is")
