"""Commands about buffers of endpoints: allocate, free, copy; and export, import, release.

Rule     REMOTE-TASK-3, REMOTE-TASK-4, REMOTE-BUF-1, REMOTE-BUF-2, REMOTE-BUF-3, REMOTE-BUF-4,
         REMOTE-BUF-5, REMOTE-BUF-6, REMOTE-BUF-7, REMOTE-MEM-2
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from .fields import Int32, Message, Octets, Positive, Uint64, WireError, blob, number, one_of, text
from .frames import ControlName
from .limits import (
    MAX_TRANSPORT_DESCRIPTOR_BYTES,
    MAX_TRANSPORT_PROFILE_BYTES,
    REMOTE_BUFFER_ACCESS_READ,
    REMOTE_BUFFER_ACCESS_READ_WRITE,
)


class RemoteAddressSpace(enum.IntEnum):
    """Where the memory of a remote tensor is."""

    HOST_INLINE = 1
    REMOTE_DEVICE = 2
    REMOTE_WINDOW = 3
    UB_LDST = 4


Access = Annotated[int, number("I", REMOTE_BUFFER_ACCESS_READ, REMOTE_BUFFER_ACCESS_READ_WRITE)]
SharedSpace = Annotated[
    RemoteAddressSpace, one_of(RemoteAddressSpace.REMOTE_WINDOW, RemoteAddressSpace.UB_LDST)
]
Profile = Annotated[str, text(MAX_TRANSPORT_PROFILE_BYTES)]
Descriptor = Annotated[bytes, blob(MAX_TRANSPORT_DESCRIPTOR_BYTES)]


def identity_of(buffer: Any) -> str:
    """Return the ids of a buffer, for a message."""
    return (
        f"owner_endpoint_id {buffer.owner_endpoint_id}, buffer_id {buffer.buffer_id}, "
        f"generation {buffer.generation}"
    )


def is_live(buffer: Any) -> bool:
    """Say whether ids can be those of a buffer."""
    return bool(buffer.owner_endpoint_id >= 0 and buffer.buffer_id and buffer.generation)


def require_live(buffer: Any) -> None:
    """Refuse ids that no buffer has."""
    if not is_live(buffer):
        raise WireError(f"{identity_of(buffer)} is not a live owner buffer identity")


def require_span(span: Any) -> None:
    """Refuse bytes that end beyond 64 bits."""
    if span.offset + span.nbytes >= 1 << 64:
        raise WireError(f"offset {span.offset} + nbytes {span.nbytes} do not fit 64 bits")


@dataclass(frozen=True)
class BufferIdentity:
    """A buffer of an endpoint: what FREE_REMOTE_BUFFER names, and ALLOC_REMOTE_BUFFER returns."""

    owner_endpoint_id: Int32
    buffer_id: Uint64
    generation: Uint64


# ---------------------------------------------------------------- export
@dataclass(frozen=True)
class ExportBufferRequest(BufferIdentity):
    """A part of a buffer that its owner shall export."""

    offset: Uint64
    nbytes: Positive
    access_flags: Access = REMOTE_BUFFER_ACCESS_READ_WRITE
    transport_profile: Profile = ""


@dataclass(frozen=True)
class ExportBufferResult(BufferIdentity):
    """An exported part of a buffer, and how others reach it."""

    address_space: SharedSpace
    offset: Uint64
    nbytes: Uint64
    export_id: Positive
    remote_addr: Uint64 = 0
    rkey_or_token: Uint64 = 0
    ub_ldst_va: Uint64 = 0
    access_flags: Access = REMOTE_BUFFER_ACCESS_READ_WRITE
    transport_profile: Profile = ""
    transport_descriptor: Descriptor = b""


def _check_part(part: ExportBufferRequest | ExportBufferResult | CopyRequest) -> None:
    require_live(part)
    require_span(part)


_EXPORT_REQUEST = Message("EXPORT_BUFFER", ExportBufferRequest, _check_part, reserved=True)
EXPORT_RESULT = Message("EXPORT_BUFFER result", ExportBufferResult, _check_part, reserved=True)
encode_export_buffer_request = _EXPORT_REQUEST.encode
decode_export_buffer_request = _EXPORT_REQUEST.decode
encode_export_buffer_result = EXPORT_RESULT.encode
decode_export_buffer_result = EXPORT_RESULT.decode


# ---------------------------------------------------------------- import
@dataclass(frozen=True)
class ImportBufferRequest:
    """An exported buffer that an endpoint shall import, and what it wants to do with it."""

    importer_endpoint_id: Int32
    requested_access_flags: Access
    export_desc: Annotated[ExportBufferResult, EXPORT_RESULT]


@dataclass(frozen=True)
class ReleaseImportRequest:
    """An imported buffer that its importer no longer needs."""

    importer_endpoint_id: Int32
    owner_endpoint_id: Int32
    buffer_id: Uint64
    generation: Uint64
    import_id: Uint64


@dataclass(frozen=True)
class ImportBufferResult(ReleaseImportRequest):
    """An imported buffer, and how its importer reaches it."""

    address_space: SharedSpace
    offset: Uint64
    nbytes: Uint64
    remote_addr: Uint64 = 0
    rkey_or_token: Uint64 = 0
    ub_ldst_va: Uint64 = 0
    access_flags: Access = REMOTE_BUFFER_ACCESS_READ_WRITE
    transport_profile: Profile = ""
    import_descriptor: Descriptor = b""


def _check_import_request(request: ImportBufferRequest) -> None:
    importer, asked = request.importer_endpoint_id, request.requested_access_flags
    if importer < 0:
        raise WireError(
            f"importer_endpoint_id {importer} is not that of a live imported buffer identity"
        )
    if asked & ~request.export_desc.access_flags:
        raise WireError(
            f"{asked} is asked for, {request.export_desc.access_flags} is exported",
            "requested_access_flags",
        )


def _check_imported(imported: ReleaseImportRequest) -> None:
    if imported.importer_endpoint_id < 0 or imported.import_id == 0 or not is_live(imported):
        raise WireError(
            f"importer_endpoint_id {imported.importer_endpoint_id}, {identity_of(imported)}, import_id "
            f"{imported.import_id} is not a live imported buffer identity"
        )
    if isinstance(imported, ImportBufferResult):
        require_span(imported)


_IMPORT_REQUEST = Message(
    "IMPORT_BUFFER", ImportBufferRequest, _check_import_request, reserved=True
)
_IMPORT_RESULT = Message("IMPORT_BUFFER result", ImportBufferResult, _check_imported, reserved=True)
_RELEASE_IMPORT = Message("RELEASE_IMPORT", ReleaseImportRequest, _check_imported, reserved=True)
encode_import_buffer_request = _IMPORT_REQUEST.encode
decode_import_buffer_request = _IMPORT_REQUEST.decode
encode_import_buffer_result = _IMPORT_RESULT.encode
decode_import_buffer_result = _IMPORT_RESULT.decode
encode_release_import_request = _RELEASE_IMPORT.encode
decode_release_import_request = _RELEASE_IMPORT.decode


# ---------------------------------------------------------------- memory of one endpoint
@dataclass(frozen=True)
class AllocRequest:
    """How much memory an endpoint shall provide."""

    nbytes: Positive


@dataclass(frozen=True)
class CopyRequest(BufferIdentity):
    """Bytes of a buffer to read; or, with data, to write."""

    offset: Uint64
    nbytes: Positive
    data: Octets = b""


def _check_copy(copy: CopyRequest) -> None:
    _check_part(copy)
    if copy.data and len(copy.data) != copy.nbytes:
        raise WireError(f"{len(copy.data)} bytes of data are not nbytes {copy.nbytes}")


ALLOC = Message("ALLOC_REMOTE_BUFFER", AllocRequest)
IDENTITY = Message("buffer", BufferIdentity, require_live)
COPY = Message("COPY", CopyRequest, _check_copy)


def copy_parts(
    identity: tuple[int, int, int], offset: int, nbytes: int, data: bytes = b""
) -> bytes:
    """Return the payload of a COPY_TO_REMOTE or COPY_FROM_REMOTE."""
    return COPY.encode(CopyRequest(*identity, offset, nbytes, data))


# ---------------------------------------------------------------- what a program asks a link
class Request(NamedTuple):
    """A request that a link sends on; `base` is that of references which it provides, or ends."""

    name: ControlName
    payload: bytes
    base: int = 0
