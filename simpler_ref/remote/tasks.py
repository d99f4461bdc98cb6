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
from .buffers import RemoteAddressSpace, require_live, require_span
from .fields import WireError
from .limits import MAX_INLINE_PAYLOAD_BYTES, MAX_SCALARS, MAX_STRING_BYTES, MAX_TENSORS


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
    flags: Annotated[int, fields.number("Q", 0, 0)] = 0


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
class _Config:
    """A configuration, field by field, as `CallConfigWire` has it."""

    _KNOBS = struct.Struct(f"<{len(CallConfig._FIELDS)}i")
    _PREFIX = fields.text(MAX_STRING_BYTES, errors="surrogateescape")
    """A path, whose bytes need not be UTF-8."""

    def write(self, value: CallConfig) -> bytes:
        """Return the bytes of a configuration."""
        self._require(value)
        knobs = [getattr(value, name) for name in CallConfig._FIELDS]
        return self._KNOBS.pack(*knobs) + self._PREFIX.write(value.output_prefix)

    def read(self, reader: fields.Reader) -> CallConfig:
        """Return the configuration of the next bytes."""
        knobs = self._KNOBS.unpack(reader.take(self._KNOBS.size))
        config = CallConfig(**dict(zip(CallConfig._FIELDS, knobs, strict=True)))
        config.output_prefix = self._PREFIX.read(reader)
        self._require(config)
        return config

    def _require(self, config: CallConfig) -> None:
        try:
            config.validate()
        except ValueError as error:
            raise WireError(str(error)) from None


# ---------------------------------------------------------------- tensors
class _Tensor:
    """A tensor without address."""

    _FORM = struct.Struct("<Q5IIIB7s")
    _CHILD_AT, _END = 33, 34
    """Offsets in the 40 bytes of a tensor in a mailbox, which begin like those of one in a frame."""

    def write(self, value: ContinuousTensor) -> bytes:
        """Return the bytes of a tensor."""
        if not isinstance(value, ContinuousTensor) or isinstance(value, DescribedTensor):
            raise WireError(f"{value!r} is not a contiguous tensor of a DataType")
        if value.data:
            raise WireError(f"{value.data:#x} is an address of this machine: it must be 0", "data")
        wire = value._wire
        return wire[: self._CHILD_AT] + bytes(3) + wire[self._CHILD_AT : self._END] + bytes(7)

    def read(self, reader: fields.Reader) -> ContinuousTensor:
        """Return the tensor of the next bytes."""
        at = reader.at
        raw = reader.take(self._FORM.size)
        data, *sizes, ndims, dtype, child, reserved = self._FORM.unpack(raw)
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
            return ContinuousTensor._from_wire(raw[: self._CHILD_AT] + raw[36:37] + bytes(6))
        except ValueError as error:
            raise WireError(str(error)) from None


TENSOR = _Tensor()
_DESC = fields.Message("descriptor", RemoteTensorDesc)


class _Sidecar:
    """What travels beside a tensor: whether a descriptor follows, and that."""

    def write(self, value: RemoteTensorSidecar) -> bytes:
        """Return the bytes of a sidecar."""
        if value.present != (value.desc is not None):
            raise WireError(f"{value.present!r} contradicts desc={value.desc!r}", "present")
        return b"\0" if value.desc is None else b"\1" + _DESC.write(value.desc)

    def read(self, reader: fields.Reader) -> RemoteTensorSidecar:
        """Return the sidecar of the next bytes."""
        present = reader.take(1)[0]
        if present > 1:
            raise WireError(f"{present} is neither 0 nor 1", "present", at=reader.at - 1)
        return RemoteTensorSidecar(True, _DESC.read(reader)) if present else RemoteTensorSidecar()


def _check_desc(desc: RemoteTensorDesc, arena: int) -> None:
    """Refuse a descriptor that contradicts itself, or an inline arena of so many bytes."""
    at, size = desc.inline_payload_offset, desc.inline_payload_len
    if desc.address_space != RemoteAddressSpace.HOST_INLINE:
        require_live(desc)
        require_span(desc)
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


# ---------------------------------------------------------------- arguments
class _Args(fields.Whole[RemoteTaskArgsWire]):
    """Arguments of a task."""

    name = "TASK.args"
    _COUNTS = struct.Struct("<II")
    _SIDECAR = _Sidecar()
    _ARENA = fields.blob(MAX_INLINE_PAYLOAD_BYTES, "inline arena")

    def write(self, value: RemoteTaskArgsWire) -> bytes:
        """Return the bytes of arguments."""
        tensors, sidecars, scalars = value.tensor_metadata, value.remote_desc, value.scalars
        _require_counts(len(tensors), len(scalars))
        if len(sidecars) != len(tensors):
            raise WireError(f"{len(sidecars)} sidecars for {len(tensors)} tensors")
        raw = (
            self._COUNTS.pack(len(tensors), len(scalars)),
            fields.write_each(TENSOR, tensors, "tensor_metadata"),
            fields.write_each(self._SIDECAR, sidecars, "remote_desc"),
            fields.write_each(fields.U64, scalars, "scalars"),
            self._ARENA.write(value.inline_payload),
        )
        self._require_descs(value)
        return b"".join(raw)

    def read(self, reader: fields.Reader) -> RemoteTaskArgsWire:
        """Return the arguments of the next bytes."""
        count, scalar_count = self._COUNTS.unpack(reader.take(self._COUNTS.size))
        _require_counts(count, scalar_count)
        args = RemoteTaskArgsWire(
            fields.read_each(TENSOR, reader, count, "tensor_metadata"),
            fields.read_each(self._SIDECAR, reader, count, "remote_desc"),
            fields.read_each(fields.U64, reader, scalar_count, "scalars"),
            self._ARENA.read(reader),
        )
        self._require_descs(args)
        return args

    def _require_descs(self, args: RemoteTaskArgsWire) -> None:
        for i, sidecar in enumerate(args.remote_desc):
            if sidecar.desc is not None:
                try:
                    _check_desc(sidecar.desc, len(args.inline_payload))
                except WireError as error:
                    raise error.within(f"remote_desc[{i}]") from None


def _require_counts(tensors: int, scalars: int) -> None:
    if tensors > MAX_TENSORS or scalars > MAX_SCALARS:
        raise WireError(
            f"{tensors} tensors and {scalars} scalars: at most {MAX_TENSORS} and {MAX_SCALARS} are "
            "allowed"
        )


_CONFIG, _ARGS = _Config(), _Args()
decode_call_config = _CONFIG.read
decode_continuous_tensor = TENSOR.read
decode_remote_tensor_desc = _DESC.read
encode_remote_task_args = _ARGS.encode
decode_remote_task_args = _ARGS.decode


# ---------------------------------------------------------------- tasks
@dataclass(frozen=True)
class TaskPayloadWire:
    """A task: which callable, with which configuration and arguments."""

    callable_digest: Annotated[bytes, fields.exactly(CALLABLE_HASH_DIGEST_BYTES)]
    config: Annotated[CallConfig, _CONFIG] = field(default_factory=CallConfig)
    args: Annotated[RemoteTaskArgsWire, _ARGS] = field(default_factory=RemoteTaskArgsWire)


TASK = fields.Message("TASK", TaskPayloadWire)
encode_task_payload = TASK.encode
decode_task_payload = TASK.decode
