"""What is in a TASK frame: the digest of a callable, a configuration, arguments.

Rule     REMOTE-TASK-1, REMOTE-TASK-2, REMOTE-TASK-3, REMOTE-TASK-4
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from ..callables.identity import CALLABLE_HASH_DIGEST_BYTES
from ..model.config import CallConfig
from ..model.enums import CONTINUOUS_TENSOR_MAX_DIMS, DataType
from ..model.tensor import ContinuousTensor, DescribedTensor
from . import fields
from .buffers import RemoteAddressSpace, identity_of, is_live, require_span
from .limits import MAX_INLINE_PAYLOAD_BYTES, MAX_SCALARS, MAX_STRING_BYTES, MAX_TENSORS

_COUNTS = struct.Struct("<II")
_TENSOR = struct.Struct("<Q5IIIB7s")
_NO_BYTES = bytes(7)
_CHILD_AT, _END = 33, 34
"""Offsets in the 40 bytes of a tensor in a mailbox, which begin like those of one in a frame."""
_KNOBS = struct.Struct(f"<{len(CallConfig._FIELDS)}i")
_PREFIX = fields.Text(MAX_STRING_BYTES, errors="surrogateescape")
"""A path, whose bytes need not be UTF-8."""
_ARENA = fields.Blob(MAX_INLINE_PAYLOAD_BYTES, "inline arena")
NO_OWNER = (0, -1)
"""What may stand for the owner of a tensor whose bytes are in the frame."""


@dataclass(frozen=True)
class RemoteTensorDesc:
    """Where the memory of a tensor is.

    With `HOST_INLINE` it is in the frame's inline arena, and there is no buffer; otherwise it is in a
    buffer of an endpoint.
    """

    address_space: RemoteAddressSpace
    owner_endpoint_id: fields.Int32 = 0
    buffer_id: fields.Uint64 = 0
    offset: fields.Uint64 = 0
    nbytes: fields.Uint64 = 0
    remote_addr: fields.Uint64 = 0
    rkey_or_token: fields.Uint64 = 0
    generation: fields.Uint64 = 0
    inline_payload_offset: fields.Uint64 = 0
    inline_payload_len: fields.Uint64 = 0
    flags: Annotated[int, fields.Number("Q", 0, 0)] = 0


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
def _write_config(config: CallConfig, where: str) -> bytes:
    """Return the fields of a configuration one by one, as `CallConfigWire` has them."""
    _require_config(config)
    knobs = [getattr(config, name) for name in CallConfig._FIELDS]
    return _KNOBS.pack(*knobs) + _PREFIX.write(config.output_prefix, "TASK.config.output_prefix")


def decode_call_config(reader: fields.Reader) -> CallConfig:
    """Return the configuration of the next bytes."""
    knobs = _KNOBS.unpack(reader.take(_KNOBS.size, "TASK.config"))
    config = CallConfig(**dict(zip(CallConfig._FIELDS, knobs, strict=True)))
    config.output_prefix = _PREFIX.read(reader, "TASK.config.output_prefix")
    _require_config(config)
    return config


def _require_config(config: CallConfig) -> None:
    try:
        config.validate()
    except ValueError as error:
        raise fields.refusal("TASK.config", str(error)) from None


# ---------------------------------------------------------------- tensors
def write_tensor(tensor: ContinuousTensor, where: str) -> bytes:
    """Return the bytes of a tensor without address."""
    if not isinstance(tensor, ContinuousTensor) or isinstance(tensor, DescribedTensor):
        raise fields.refusal(where, f"{tensor!r} is not a contiguous tensor of a DataType")
    if tensor.data:
        raise fields.refusal(
            f"{where}.data", f"{tensor.data:#x} is an address of this machine: it must be 0"
        )
    wire = tensor._wire
    return wire[:_CHILD_AT] + _NO_BYTES[:3] + wire[_CHILD_AT:_END] + _NO_BYTES


def decode_continuous_tensor(reader: fields.Reader, where: str = "tensor") -> ContinuousTensor:
    """Return the tensor without address of the next bytes."""
    at = reader.at
    raw = reader.take(_TENSOR.size, where)
    data, *sizes, ndims, dtype, child, reserved = _TENSOR.unpack(raw)
    if data:
        raise fields.refusal(f"{where}.data at byte {at}", f"{data:#x} is not 0")
    if ndims > CONTINUOUS_TENSOR_MAX_DIMS or any(sizes[ndims:]):
        why = f"{sizes} are not {ndims} dimensions and zeros after them"
        raise fields.refusal(f"{where}.shapes at byte {at + 8}", why)
    if dtype >= len(DataType):
        raise fields.refusal(f"{where}.dtype at byte {at + 32}", f"{dtype} is not a DataType")
    if child > 1 or reserved != _NO_BYTES:
        why = f"child_memory {child} must be 0 or 1, and {reserved.hex()} after it must be 0"
        raise fields.refusal(f"{where} at byte {at + 36}", why)
    try:
        return ContinuousTensor._from_wire(raw[:_CHILD_AT] + raw[36:37] + _NO_BYTES[:6])
    except ValueError as error:
        raise fields.refusal(f"{where} at byte {at}", str(error)) from None


# ---------------------------------------------------------------- descriptors
def _check_desc(desc: RemoteTensorDesc, arena: int, where: str) -> None:
    if desc.address_space != RemoteAddressSpace.HOST_INLINE:
        _check_handle(desc, where)
        return
    handle = desc.buffer_id, desc.offset, desc.remote_addr, desc.rkey_or_token, desc.generation
    if any(handle) or desc.owner_endpoint_id not in NO_OWNER:
        raise fields.refusal(where, f"{desc} is inline and has a buffer: its fields must be 0")
    if desc.inline_payload_len != desc.nbytes:
        raise fields.refusal(
            where, f"{desc.inline_payload_len} bytes are inline, the tensor has {desc.nbytes}"
        )
    if desc.inline_payload_offset + desc.inline_payload_len > arena:
        raise fields.refusal(
            where,
            f"{desc.inline_payload_len} bytes at {desc.inline_payload_offset} are not within the inline "
            f"arena of {arena} bytes",
        )


def _check_handle(desc: RemoteTensorDesc, where: str) -> None:
    if not is_live(desc):
        raise fields.refusal(where, f"{identity_of(desc)} is not a live owner buffer identity")
    if desc.inline_payload_offset or desc.inline_payload_len:
        raise fields.refusal(where, f"{desc} is not inline: its inline fields must be 0")
    require_span(desc, where)


def _write_sidecar(sidecar: RemoteTensorSidecar, arena: int, where: str) -> bytes:
    desc = sidecar.desc
    if sidecar.present != (desc is not None):
        raise fields.refusal(f"{where}.present", f"{sidecar.present!r} contradicts desc={desc!r}")
    if desc is None:
        return b"\0"
    raw = _DESC.write(desc, where)
    _check_desc(desc, arena, where)
    return b"\1" + raw


def _read_sidecar(reader: fields.Reader, where: str) -> RemoteTensorSidecar:
    at = reader.at
    present = reader.take(1, where)[0]
    if present > 1:
        raise fields.refusal(f"{where}.present at byte {at}", f"{present} is neither 0 nor 1")
    if not present:
        return RemoteTensorSidecar()
    return RemoteTensorSidecar(True, decode_remote_tensor_desc(reader, where))


def decode_remote_tensor_desc(reader: fields.Reader, where: str = "descriptor") -> RemoteTensorDesc:
    """Return the descriptor of the next bytes."""
    return _DESC.read(reader, where)


_DESC = fields.Message("TASK.args.remote_desc", RemoteTensorDesc)


# ---------------------------------------------------------------- arguments
def _require_counts(tensors: int, scalars: int, where: str) -> None:
    if tensors > MAX_TENSORS or scalars > MAX_SCALARS:
        raise fields.refusal(
            where,
            f"{tensors} tensors and {scalars} scalars: at most {MAX_TENSORS} and {MAX_SCALARS} are "
            "allowed",
        )


def encode_remote_task_args(args: RemoteTaskArgsWire) -> bytes:
    """Return the arguments of a task.

    Raises
    ------
    ValueError
        A tensor has an address, a descriptor contradicts itself, or there is too much of something.
    """
    tensors, sidecars, scalars = args.tensor_metadata, args.remote_desc, args.scalars
    _require_counts(len(tensors), len(scalars), "TASK.args")
    if len(sidecars) != len(tensors):
        raise fields.refusal("TASK.args", f"{len(sidecars)} sidecars for {len(tensors)} tensors")
    arena = _ARENA.write(args.inline_payload, "TASK.args.inline_payload")
    size = len(arena) - 4
    try:
        words = struct.pack(f"<{len(scalars)}Q", *scalars)
    except struct.error:
        wrong = next(one for one in scalars if not _is_u64(one))
        raise fields.refusal(
            "TASK.args.scalars", f"{wrong!r} is not an unsigned 64-bit number"
        ) from None
    return b"".join(
        (
            _COUNTS.pack(len(tensors), len(scalars)),
            *(
                write_tensor(one, f"TASK.args.tensor_metadata[{i}]")
                for i, one in enumerate(tensors)
            ),
            *(
                _write_sidecar(one, size, f"TASK.args.remote_desc[{i}]")
                for i, one in enumerate(sidecars)
            ),
            words,
            arena,
        )
    )


def _is_u64(value: object) -> bool:
    try:
        struct.pack("<Q", value)
    except struct.error:
        return False
    return True


def _read_args(reader: fields.Reader) -> RemoteTaskArgsWire:
    count, scalar_count = _COUNTS.unpack(reader.take(_COUNTS.size, "TASK.args"))
    _require_counts(count, scalar_count, "TASK.args")
    tensors = tuple(
        decode_continuous_tensor(reader, f"TASK.args.tensor_metadata[{i}]") for i in range(count)
    )
    sidecars = tuple(_read_sidecar(reader, f"TASK.args.remote_desc[{i}]") for i in range(count))
    words = reader.take(8 * scalar_count, "TASK.args.scalars")
    arena = _ARENA.read(reader, "TASK.args.inline_payload")
    for i, sidecar in enumerate(sidecars):
        if sidecar.desc is not None:
            _check_desc(sidecar.desc, len(arena), f"TASK.args.remote_desc[{i}]")
    return RemoteTaskArgsWire(tensors, sidecars, struct.unpack(f"<{scalar_count}Q", words), arena)


def decode_remote_task_args(data: bytes) -> RemoteTaskArgsWire:
    """Return the arguments of all these bytes.

    Raises
    ------
    ValueError
        These bytes are no arguments.
    """
    raw = fields.octets(data, "TASK.args")
    fields.require_payload(len(raw), "TASK.args")
    reader = fields.Reader(raw)
    args = _read_args(reader)
    reader.end("TASK.args")
    return args


# ---------------------------------------------------------------- tasks
class _Config:
    """A configuration, field by field."""

    write = staticmethod(_write_config)

    @staticmethod
    def read(reader: fields.Reader, where: str) -> CallConfig:
        """Return the configuration of the next bytes."""
        return decode_call_config(reader)


class _Args:
    """Arguments of a task."""

    @staticmethod
    def write(value: RemoteTaskArgsWire, where: str) -> bytes:
        """Return the bytes of arguments."""
        return encode_remote_task_args(value)

    @staticmethod
    def read(reader: fields.Reader, where: str) -> RemoteTaskArgsWire:
        """Return the arguments of the next bytes."""
        return _read_args(reader)


@dataclass(frozen=True)
class TaskPayloadWire:
    """A task: which callable, with which configuration and arguments."""

    callable_digest: Annotated[bytes, fields.Exactly(CALLABLE_HASH_DIGEST_BYTES)]
    config: Annotated[CallConfig, _Config()] = field(default_factory=CallConfig)
    args: Annotated[RemoteTaskArgsWire, _Args()] = field(default_factory=RemoteTaskArgsWire)


TASK = fields.Message("TASK", TaskPayloadWire)
encode_task_payload = TASK.encode
decode_task_payload = TASK.decode
