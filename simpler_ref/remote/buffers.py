"""Commands about buffers of endpoints: allocate, free, copy; and export, import, release.

Rule     REMOTE-TASK-3, REMOTE-TASK-4, REMOTE-BUF-1, REMOTE-BUF-2, REMOTE-BUF-3, REMOTE-BUF-4,
         REMOTE-BUF-5, REMOTE-BUF-6, REMOTE-BUF-7, REMOTE-MEM-2
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Protocol

from .fields import Blob, Int32, Message, Number, Octets, OneOf, Positive, Text, Uint64, refusal
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


Access = Annotated[int, Number("I", REMOTE_BUFFER_ACCESS_READ, REMOTE_BUFFER_ACCESS_READ_WRITE)]
SharedSpace = Annotated[
    RemoteAddressSpace,
    OneOf(RemoteAddressSpace, RemoteAddressSpace.REMOTE_WINDOW, RemoteAddressSpace.UB_LDST),
]
Profile = Annotated[str, Text(MAX_TRANSPORT_PROFILE_BYTES)]
Descriptor = Annotated[bytes, Blob(MAX_TRANSPORT_DESCRIPTOR_BYTES)]


class _Owned(Protocol):
    @property
    def owner_endpoint_id(self) -> int: ...

    @property
    def buffer_id(self) -> int: ...

    @property
    def generation(self) -> int: ...


class _Span(Protocol):
    @property
    def offset(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


def is_live(buffer: _Owned) -> bool:
    """Say whether ids can be those of a buffer."""
    return buffer.owner_endpoint_id >= 0 and buffer.buffer_id != 0 and buffer.generation != 0


def require_span(span: _Span, where: str) -> None:
    """Refuse bytes that end beyond 64 bits."""
    if span.offset + span.nbytes >= 1 << 64:
        raise refusal(where, f"offset {span.offset} + nbytes {span.nbytes} do not fit 64 bits")


def identity_of(buffer: _Owned) -> str:
    """Return the ids of a buffer, for a message."""
    return (
        f"owner_endpoint_id {buffer.owner_endpoint_id}, buffer_id {buffer.buffer_id}, "
        f"generation {buffer.generation}"
    )


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


def _check_export(export: ExportBufferRequest | ExportBufferResult, where: str) -> None:
    if not is_live(export):
        raise refusal(where, f"{identity_of(export)} is not a live owner buffer identity")
    require_span(export, where)


_EXPORT_REQUEST = Message("EXPORT_BUFFER", ExportBufferRequest, _check_export, reserved=True)
EXPORT_RESULT = Message("EXPORT_BUFFER result", ExportBufferResult, _check_export, reserved=True)
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
class ImportBufferResult:
    """An imported buffer, and how its importer reaches it."""

    importer_endpoint_id: Int32
    owner_endpoint_id: Int32
    buffer_id: Uint64
    generation: Uint64
    import_id: Uint64
    address_space: SharedSpace
    offset: Uint64
    nbytes: Uint64
    remote_addr: Uint64 = 0
    rkey_or_token: Uint64 = 0
    ub_ldst_va: Uint64 = 0
    access_flags: Access = REMOTE_BUFFER_ACCESS_READ_WRITE
    transport_profile: Profile = ""
    import_descriptor: Descriptor = b""


@dataclass(frozen=True)
class ReleaseImportRequest:
    """An imported buffer that its importer no longer needs."""

    importer_endpoint_id: Int32
    owner_endpoint_id: Int32
    buffer_id: Uint64
    generation: Uint64
    import_id: Uint64


def _check_import_request(request: ImportBufferRequest, where: str) -> None:
    if request.importer_endpoint_id < 0:
        raise refusal(
            where,
            f"importer_endpoint_id {request.importer_endpoint_id} is not that of a live imported buffer "
            "identity",
        )
    if request.requested_access_flags & ~request.export_desc.access_flags:
        raise refusal(
            f"{where}.requested_access_flags",
            f"{request.requested_access_flags} is asked for, {request.export_desc.access_flags} is "
            "exported",
        )


def _check_imported(imported: ImportBufferResult | ReleaseImportRequest, where: str) -> None:
    if imported.importer_endpoint_id < 0 or imported.import_id == 0 or not is_live(imported):
        raise refusal(
            where,
            f"importer_endpoint_id {imported.importer_endpoint_id}, {identity_of(imported)}, import_id "
            f"{imported.import_id} is not a live imported buffer identity",
        )


def _check_import_result(result: ImportBufferResult, where: str) -> None:
    _check_imported(result, where)
    require_span(result, where)


_IMPORT_REQUEST = Message(
    "IMPORT_BUFFER", ImportBufferRequest, _check_import_request, reserved=True
)
_IMPORT_RESULT = Message(
    "IMPORT_BUFFER result", ImportBufferResult, _check_import_result, reserved=True
)
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


def _check_live(buffer: BufferIdentity | CopyRequest, where: str) -> None:
    if not is_live(buffer):
        raise refusal(where, f"{identity_of(buffer)} is not a live owner buffer identity")


def _check_copy(copy: CopyRequest, where: str) -> None:
    _check_live(copy, where)
    require_span(copy, where)
    if copy.data and len(copy.data) != copy.nbytes:
        raise refusal(where, f"{len(copy.data)} bytes of data are not nbytes {copy.nbytes}")


ALLOC = Message("ALLOC_REMOTE_BUFFER", AllocRequest)
IDENTITY = Message("buffer", BufferIdentity, _check_live)
COPY = Message("COPY", CopyRequest, _check_copy)


def copy_parts(
    identity: tuple[int, int, int], offset: int, nbytes: int, data: bytes = b""
) -> bytes:
    """Return the payload of a COPY_TO_REMOTE or COPY_FROM_REMOTE."""
    return COPY.encode(CopyRequest(*identity, offset, nbytes, data))


# ---------------------------------------------------------------- what a program asks a link
@dataclass(frozen=True)
class Request:
    """A request that a link sends on.

    Attributes
    ----------
    view_base, view_offset, view_nbytes : int
        Where references to the memory that it provides will be, and which part of its buffer that is; a
        base of 0: it provides none.
    drops : int
        The base of references that end with it, or 0.
    """

    name: ControlName
    payload: bytes
    view_base: int = 0
    view_offset: int = 0
    view_nbytes: int = 0
    drops: int = 0
