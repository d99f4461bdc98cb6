"""What is in a TASK frame, layouts of tensors beside it, and commands about buffers of endpoints.

A layout is what the documents' formats do not have of a tensor: element type, shape and strides. A
message has no pickles, so the element type is written as numpy's files have it.

Rule     REMOTE-TASK-1, REMOTE-TASK-2, REMOTE-TASK-3, REMOTE-TASK-4, REMOTE-TASK-8, REMOTE-BUF-1,
         REMOTE-BUF-2, REMOTE-BUF-3, REMOTE-BUF-4, REMOTE-BUF-5, REMOTE-BUF-6, REMOTE-BUF-7, REMOTE-MEM-2
"""

from __future__ import annotations

import enum
import json
import math
import struct
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from ..callables.identity import CALLABLE_HASH_DIGEST_BYTES
from ..model.config import CallConfig
from ..model.enums import CONTINUOUS_TENSOR_MAX_DIMS, DataType
from ..model.tensor import ContinuousTensor, DescribedTensor
from ..model.wire import Layout, has_layout, layout_number, row_major, span_of
from . import fields
from .fields import Int32, Kind, Message, Positive, Reader, Uint64, WireError, blob, number, text
from .frames import ControlName
from .limits import (
    MAX_INLINE_PAYLOAD_BYTES,
    MAX_SCALARS,
    MAX_STRING_BYTES,
    MAX_TENSORS,
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
_SHARED = RemoteAddressSpace.REMOTE_WINDOW, RemoteAddressSpace.UB_LDST
SharedSpace = Annotated[RemoteAddressSpace, fields.one_of(*_SHARED)]
Profile = Annotated[str, text(MAX_TRANSPORT_PROFILE_BYTES)]
Descriptor = Annotated[bytes, blob(MAX_TRANSPORT_DESCRIPTOR_BYTES)]


def identity_of(buffer: Any) -> str:
    return (
        f"owner_endpoint_id {buffer.owner_endpoint_id}, buffer_id {buffer.buffer_id}, "
        f"generation {buffer.generation}"
    )


def _is_live(buffer: Any) -> bool:
    return bool(buffer.owner_endpoint_id >= 0 and buffer.buffer_id and buffer.generation)


def _require_live(buffer: Any) -> None:
    """Refuse ids that no buffer has."""
    if not _is_live(buffer):
        raise WireError(f"{identity_of(buffer)} is not a live owner buffer identity")


def _require_span(span: Any) -> None:
    if span.offset + span.nbytes >= 1 << 64:
        raise WireError(f"offset {span.offset} + nbytes {span.nbytes} do not fit 64 bits")


def _require_part(part: Any) -> None:
    _require_live(part)
    _require_span(part)


@dataclass(frozen=True)
class BufferIdentity:
    """A buffer of an endpoint: what FREE_REMOTE_BUFFER names, and ALLOC_REMOTE_BUFFER returns."""

    owner_endpoint_id: Int32
    buffer_id: Uint64
    generation: Uint64


# ---------------------------------------------------------------- export of buffers
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


_EXPORT_REQUEST = Message("EXPORT_BUFFER", ExportBufferRequest, _require_part, reserved=True)
EXPORT_RESULT = Message("EXPORT_BUFFER result", ExportBufferResult, _require_part, reserved=True)
encode_export_buffer_request = _EXPORT_REQUEST.encode
decode_export_buffer_request = _EXPORT_REQUEST.decode
encode_export_buffer_result = EXPORT_RESULT.encode
decode_export_buffer_result = EXPORT_RESULT.decode


# ---------------------------------------------------------------- import of buffers
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
    if imported.importer_endpoint_id < 0 or imported.import_id == 0 or not _is_live(imported):
        raise WireError(
            f"importer_endpoint_id {imported.importer_endpoint_id}, {identity_of(imported)}, import_id "
            f"{imported.import_id} is not a live imported buffer identity"
        )
    if isinstance(imported, ImportBufferResult):
        _require_span(imported)


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
class CopyRequest(BufferIdentity):
    """Bytes of a buffer to read; or, with data, to write."""

    offset: Uint64
    nbytes: Positive
    data: fields.Octets = b""


def _check_copy(copy: CopyRequest) -> None:
    _require_part(copy)
    if copy.data and len(copy.data) != copy.nbytes:
        raise WireError(f"{len(copy.data)} bytes of data are not nbytes {copy.nbytes}")


ALLOC = fields.POSITIVE.called("ALLOC_REMOTE_BUFFER.nbytes")
IDENTITY = Message("buffer", BufferIdentity, _require_live)
COPY = Message("COPY", CopyRequest, _check_copy)


# ---------------------------------------------------------------- what a program asks a link
class Request(NamedTuple):
    """A request that a link sends on; `base` is that of references which it provides, or ends."""

    name: ControlName
    payload: bytes
    base: int = 0


# ---------------------------------------------------------------- where tensors are
@dataclass(frozen=True)
class RemoteTensorDesc:
    """Where the memory of a tensor is.

    With `HOST_INLINE` it is in the frame's inline arena, and there is no buffer; otherwise it is in a
    buffer of an endpoint.
    """

    address_space: RemoteAddressSpace
    owner_endpoint_id: Int32 = 0
    buffer_id: Uint64 = 0
    offset: Uint64 = 0
    nbytes: Uint64 = 0
    remote_addr: Uint64 = 0
    rkey_or_token: Uint64 = 0
    generation: Uint64 = 0
    inline_payload_offset: Uint64 = 0
    inline_payload_len: Uint64 = 0
    flags: Annotated[int, number("Q", 0, 0)] = 0


@dataclass(frozen=True)
class RemoteTensorSidecar:
    """What travels beside a tensor: where its memory is, or nothing, and whether it is there."""

    present: bool = False
    desc: RemoteTensorDesc | None = None


@dataclass(frozen=True)
class RemoteTaskArgsWire:
    """Arguments of a task: tensors with address 0, a sidecar for each, scalars, bytes of inline tensors.

    Decoded ones are tuples.
    """

    tensor_metadata: Sequence[ContinuousTensor] = ()
    remote_desc: Sequence[RemoteTensorSidecar] = ()
    scalars: Sequence[int] = ()
    inline_payload: bytes = b""


# ---------------------------------------------------------------- configuration
_KNOBS = struct.Struct(f"<{len(CallConfig._FIELDS)}i")
_PREFIX = text(MAX_STRING_BYTES, errors="surrogateescape")
"""A path, whose bytes need not be UTF-8."""


def _require_valid(config: CallConfig) -> None:
    try:
        config.validate()
    except ValueError as error:
        raise WireError(str(error)) from None


def _write_config(config: CallConfig) -> bytes:
    _require_valid(config)
    knobs = [getattr(config, name) for name in CallConfig._FIELDS]
    return _KNOBS.pack(*knobs) + _PREFIX.write(config.output_prefix)


def decode_call_config(reader: Reader) -> CallConfig:
    """Return the configuration of the next bytes."""
    knobs = _KNOBS.unpack(reader.take(_KNOBS.size))
    config = CallConfig(**dict(zip(CallConfig._FIELDS, knobs, strict=True)))
    config.output_prefix = _PREFIX.read(reader)
    _require_valid(config)
    return config


_CONFIG = Kind(_write_config, decode_call_config)


# ---------------------------------------------------------------- tensors
_TENSOR_FORM = struct.Struct("<Q5IIIB7s")
"""A tensor without address."""
_CHILD_AT, _CHILD_END = 33, 34
"""Offsets in the 40 bytes of a tensor in a mailbox, which begin like those of one in a frame."""


def _write_tensor(value: ContinuousTensor) -> bytes:
    if not isinstance(value, ContinuousTensor) or isinstance(value, DescribedTensor):
        raise WireError(f"{value!r} is not a contiguous tensor of a DataType")
    if value.data:
        raise WireError(f"{value.data:#x} is an address of this machine: it must be 0", "data")
    wire = value._wire
    return wire[:_CHILD_AT] + bytes(3) + wire[_CHILD_AT:_CHILD_END] + bytes(7)


def decode_continuous_tensor(reader: Reader) -> ContinuousTensor:
    """Return the tensor of the next bytes."""
    at = reader.at
    raw = reader.take(_TENSOR_FORM.size)
    data, *sizes, ndims, dtype, child, reserved = _TENSOR_FORM.unpack(raw)
    if data:
        raise WireError(f"{data:#x} is not 0", "data", at=at)
    if ndims > CONTINUOUS_TENSOR_MAX_DIMS or any(sizes[ndims:]):
        why = f"{sizes} are not {ndims} dimensions and zeros after them"
        raise WireError(why, "shapes", at=at + 8)
    if dtype >= len(DataType):
        raise WireError(f"{dtype} is not a DataType", "dtype", at=at + 32)
    if child > 1 or any(reserved):
        why = f"child_memory {child} must be 0 or 1, and {reserved.hex()} after it must be 0"
        raise WireError(why, at=at + 36)
    try:
        return ContinuousTensor._from_wire(raw[:_CHILD_AT] + raw[36:37] + bytes(6))
    except ValueError as error:
        raise WireError(str(error)) from None


TENSOR = Kind(_write_tensor, decode_continuous_tensor)
_DESC = Message("descriptor", RemoteTensorDesc)
decode_remote_tensor_desc = _DESC.read


def _write_sidecar(value: RemoteTensorSidecar) -> bytes:
    if value.present != (value.desc is not None):
        raise WireError(f"{value.present!r} contradicts desc={value.desc!r}", "present")
    return b"\0" if value.desc is None else b"\1" + _DESC.write(value.desc)


def _read_sidecar(reader: Reader) -> RemoteTensorSidecar:
    present = reader.take(1)[0]
    if present > 1:
        raise WireError(f"{present} is neither 0 nor 1", "present", at=reader.at - 1)
    return RemoteTensorSidecar(True, _DESC.read(reader)) if present else RemoteTensorSidecar()


_SIDECAR = Kind(_write_sidecar, _read_sidecar)


# ---------------------------------------------------------------- arguments
_COUNTS = struct.Struct("<II")
_ARENA = blob(MAX_INLINE_PAYLOAD_BYTES, "inline arena")


def _require_counts(tensors: int, scalars: int) -> None:
    if tensors > MAX_TENSORS or scalars > MAX_SCALARS:
        raise WireError(
            f"{tensors} tensors and {scalars} scalars: at most {MAX_TENSORS} and {MAX_SCALARS} are "
            "allowed"
        )


def _write_args(value: RemoteTaskArgsWire) -> bytes:
    tensors, sidecars, scalars = value.tensor_metadata, value.remote_desc, value.scalars
    _require_counts(len(tensors), len(scalars))
    if len(sidecars) != len(tensors):
        raise WireError(f"{len(sidecars)} sidecars for {len(tensors)} tensors")
    raw = (
        _COUNTS.pack(len(tensors), len(scalars)),
        fields.write_each(TENSOR, tensors, "tensor_metadata"),
        fields.write_each(_SIDECAR, sidecars, "remote_desc"),
        fields.write_each(fields.U64, scalars, "scalars"),
        _ARENA.write(value.inline_payload),
    )
    _require_descs(value)
    return b"".join(raw)


def _read_args(reader: Reader) -> RemoteTaskArgsWire:
    count, scalar_count = _COUNTS.unpack(reader.take(_COUNTS.size))
    _require_counts(count, scalar_count)
    args = RemoteTaskArgsWire(
        fields.read_each(TENSOR, reader, count, "tensor_metadata"),
        fields.read_each(_SIDECAR, reader, count, "remote_desc"),
        fields.read_each(fields.U64, reader, scalar_count, "scalars"),
        _ARENA.read(reader),
    )
    _require_descs(args)
    return args


def _require_descs(args: RemoteTaskArgsWire) -> None:
    """Refuse a descriptor that contradicts itself, or the inline arena."""
    for i, sidecar in enumerate(args.remote_desc):
        if sidecar.desc is not None:
            try:
                _require_desc(sidecar.desc, len(args.inline_payload))
            except WireError as error:
                raise error.within(f"remote_desc[{i}]") from None


def _require_desc(desc: RemoteTensorDesc, arena: int) -> None:
    at, size = desc.inline_payload_offset, desc.inline_payload_len
    if desc.address_space != RemoteAddressSpace.HOST_INLINE:
        _require_part(desc)
        if at or size:
            raise WireError(f"{desc} is not inline: its inline fields must be 0")
        return
    handle = desc.buffer_id, desc.offset, desc.remote_addr, desc.rkey_or_token, desc.generation
    if any(handle) or desc.owner_endpoint_id not in (0, -1):
        raise WireError(f"{desc} is inline and has a buffer: its fields must be 0")
    if size != desc.nbytes:
        raise WireError(f"{size} bytes are inline, the tensor has {desc.nbytes}")
    if at + size > arena:
        raise WireError(f"{size} bytes at {at} are not within the inline arena of {arena} bytes")


_ARGS = Kind(_write_args, _read_args, "TASK.args")
encode_remote_task_args = _ARGS.encode
decode_remote_task_args = _ARGS.decode


# ---------------------------------------------------------------- tasks
@dataclass(frozen=True)
class TaskPayloadWire:
    """A task: which callable, with which configuration and arguments."""

    callable_digest: Annotated[bytes, fields.exactly(CALLABLE_HASH_DIGEST_BYTES)]
    config: Annotated[CallConfig, _CONFIG] = field(default_factory=CallConfig)
    args: Annotated[RemoteTaskArgsWire, _ARGS] = field(default_factory=RemoteTaskArgsWire)


TASK = Message("TASK", TaskPayloadWire)
encode_task_payload = TASK.encode
decode_task_payload = TASK.decode


# ---------------------------------------------------------------- layouts
_MOST_DIMS = 64


@lru_cache(256)
def layout_text(layout: Layout) -> str:
    """Return a layout as it travels; `TypeError` if it has gaps, or elements that cannot be written."""
    dtype, shape, strides = layout
    if not is_whole(layout):
        raise TypeError(
            f"it has shape {shape} and strides {strides}, and an endpoint gets a copy of its memory from "
            "the first byte to the last, which must all be its own: give a contiguous array"
        )
    descr = repr(dtype_to_descr(dtype))
    if dtype.hasobject or _dtype_of(descr) != dtype:
        raise TypeError(f"element type {dtype!r} cannot be written into a message: give its bytes")
    return json.dumps([descr, shape, strides])


@lru_cache(256)
def read_layout(text: str, nbytes: int | None = None) -> Layout:
    """Return the layout of a tensor, of so many bytes if they are given, or raise `ValueError`."""
    try:
        descr, shape, strides = json.loads(text)
        layout = _dtype_of(descr), _numbers(shape), _numbers(strides)
    except Exception as error:
        raise ValueError(f"{text!r:.200} is no layout: {error}") from None
    dtype, sizes, steps = layout
    fits = len(sizes) == len(steps) <= _MOST_DIMS and min(sizes, default=0) >= 0
    if nbytes is None:
        nbytes = size_of(layout)
    if dtype.hasobject or not fits or span_of(layout) != (0, nbytes):
        raise ValueError(f"{text!r:.200} is no layout of {nbytes} bytes")
    return layout


def size_of(layout: Layout) -> int:
    """Return how many bytes the elements of a tensor have."""
    dtype, shape, _ = layout
    return math.prod(shape) * dtype.itemsize


def is_whole(layout: Layout) -> bool:
    """Say whether all bytes that an array spans are its own, and none lies below its first element."""
    return span_of(layout) == (0, size_of(layout))


def copied_layout(layout: Layout) -> Layout:
    """Return the layout of an array's copy: its own, or that of its elements in C order."""
    if is_whole(layout):
        return layout
    dtype, shape, _ = layout
    return dtype, shape, row_major(shape, dtype.itemsize)


def layout_of(layouts: Any, wire: bytes) -> Layout:
    if has_layout(wire):
        found: Layout = layouts.read(layout_number(wire))
        return found
    array = ContinuousTensor._from_wire(wire).numpy()
    return array.dtype, array.shape, array.strides


def as_bytes(layout: Layout, nbytes: int) -> ContinuousTensor:
    """Return what stands for a tensor that only a layout describes: the bytes of its elements."""
    size = max(1, layout[0].itemsize)
    return ContinuousTensor(0, (nbytes // size, size), DataType.UINT8)


def _dtype_of(descr: str) -> np.dtype[Any]:
    return descr_to_dtype(literal_eval(descr))


def _numbers(values: Any) -> tuple[int, ...]:
    if not all(type(one) is int and abs(one) < 1 << 62 for one in values):
        raise ValueError(f"{values} are not numbers")
    return tuple(values)
