"""Frames, and what is in those that greet, command and answer.

Rule     REMOTE-FRAME-1, REMOTE-FRAME-2, REMOTE-FRAME-4, REMOTE-FRAME-6, REMOTE-FRAME-7, REMOTE-FRAME-8
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from . import fields
from .fields import WireError
from .limits import FRAME_HEADER_BYTES, MAGIC, MAX_ERROR_BYTES, PROTOCOL_VERSION

_HEADER = struct.Struct("<4sIIQiQII")


class FrameType(enum.IntEnum):
    """What a frame is about."""

    HELLO = 1
    TASK = 2
    CONTROL = 3
    CONTROL_REPLY = 4
    COMPLETION = 5
    HEALTH = 6
    SHUTDOWN = 7


class OwnFrameType(enum.IntEnum):
    """Frames beyond version 1 of the protocol; only this package has them."""

    RUN = 64
    """A TASK and what a mailbox has beside it, or the call of a function; DONE answers it."""
    COUNTERS = 65
    """What the session has moved and holds, as JSON after a u64 sequence; asked without a payload."""
    DONE = 68
    """What became of a RUN: the value of a call, or an error."""
    VALUE_TAKEN = 69
    """The parent has a value that a call has returned; not answered."""
    TRACE = 70
    """A trace of the session's Worker begins or ends; answered."""


EVERY_FEATURE = (1 << 64) - 1
"""What HELLOs say of features: all are there, since both sides have the same version of this package."""


class ControlName(enum.IntEnum):
    """What a CONTROL frame asks for."""

    UNREGISTER_CALLABLE = 1
    PREPARE_REGISTER_CALLABLE = 2
    COMMIT_REGISTER_CALLABLE = 3
    ABORT_REGISTER_CALLABLE = 4
    PREPARE_CALLABLE = 5
    ALLOC_REMOTE_BUFFER = 6
    FREE_REMOTE_BUFFER = 7
    COPY_TO_REMOTE = 8
    COPY_FROM_REMOTE = 9
    EXPORT_BUFFER = 10
    IMPORT_BUFFER = 11
    RELEASE_IMPORT = 12
    COMM_INIT = 13
    ALLOC_DOMAIN = 14
    RELEASE_DOMAIN = 15


class ReadyState(enum.IntEnum):
    """Whether the sender of a HELLO takes tasks."""

    NOT_READY = 0
    READY = 1


# ---------------------------------------------------------------- frames
AnyFrameType = FrameType | OwnFrameType
_TYPES: dict[int, AnyFrameType] = {
    one.value: one for kind in (FrameType, OwnFrameType) for one in kind
}


class FrameHeader(NamedTuple):
    """What the header of a frame says beside magic and version; an encoder counts the payload itself."""

    frame_type: Annotated[AnyFrameType, fields.one_of(*_TYPES.values())]
    session_id: fields.Uint64
    endpoint_id: fields.Int32
    sequence: fields.Uint64
    payload_bytes: fields.Uint32 = 0
    flags: Annotated[int, fields.number("I", 0, 0)] = 0


_FIELDS = fields.Message("frame", FrameHeader)
"""Tells which field of a header is wrong. One that is right is packed and unpacked in one step."""


class Frame(NamedTuple):
    """A frame: its header, and its payload as bytes."""

    header: FrameHeader
    payload: bytes = b""


def encode_frame(header: FrameHeader, payload: bytes = b"") -> bytes:
    """Return a frame; `ValueError` if a number or the payload is too large."""
    raw = fields.octets(payload, "frame", "payload")
    fields.require_payload(len(raw), "frame")
    kind, session, endpoint, sequence, _, flags = header
    try:
        head = _HEADER.pack(
            MAGIC, PROTOCOL_VERSION, kind, session, endpoint, sequence, len(raw), flags
        )
    except struct.error:
        _FIELDS.encode(header)
        raise
    if flags or kind not in _TYPES:
        _FIELDS.encode(header)
    return head + raw


def decode_frame_header(data: bytes) -> FrameHeader:
    """Return the header in 40 bytes; `ValueError` if they are none."""
    raw = fields.octets(data, "frame")
    if len(raw) != FRAME_HEADER_BYTES:
        raise WireError(f"a header has {FRAME_HEADER_BYTES} bytes, these are {len(raw)}", "frame")
    magic, version, kind, session, endpoint, sequence, size, flags = _HEADER.unpack(raw)
    if magic != MAGIC:
        raise WireError(f"{magic!r} is not {MAGIC!r}", "frame", "magic", at=0)
    if version != PROTOCOL_VERSION:
        raise WireError(f"{version} is not {PROTOCOL_VERSION}", "frame", "version", at=4)
    if kind not in _TYPES:
        raise WireError(f"{kind} is the type of no frame", "frame", "type", at=8)
    if flags:
        raise WireError(f"{flags:#x} is not 0", "frame", "flags", at=36)
    fields.require_payload(size, "frame", "payload_bytes", at=32)
    return FrameHeader(_TYPES[kind], session, endpoint, sequence, size)


def decode_frame(data: bytes) -> Frame:
    """Return the frame of all these bytes; `ValueError` if they are none, or more than one."""
    raw = fields.octets(data, "frame")
    header = decode_frame_header(raw[:FRAME_HEADER_BYTES])
    payload = raw[FRAME_HEADER_BYTES:]
    if len(payload) != header.payload_bytes:
        why = f"a payload of {header.payload_bytes} bytes is announced, {len(payload)} follow"
        raise WireError(why, "frame")
    return Frame(header, payload)


# ---------------------------------------------------------------- HELLO
@dataclass(frozen=True)
class HelloPayload:
    """How an endpoint presents itself."""

    session_id: fields.Uint64
    endpoint_id: fields.Int32
    protocol_version: fields.Uint32 = PROTOCOL_VERSION
    comm_profile: fields.ShortText = ""
    feature_flags: fields.Uint64 = 0
    ready_state: ReadyState = ReadyState.READY


_HELLO = fields.Message("HELLO", HelloPayload)
encode_hello = _HELLO.encode
decode_hello = _HELLO.decode


# ---------------------------------------------------------------- COMPLETION
@dataclass(frozen=True)
class CompletionPayload:
    """How a task ended: error code 0 is success."""

    sequence: fields.Uint64
    error_code: fields.Int32
    error_message: Annotated[str, fields.text(MAX_ERROR_BYTES, "completion error message")] = ""


_COMPLETION = fields.Message("COMPLETION", CompletionPayload)
encode_completion = _COMPLETION.encoder()
decode_completion = _COMPLETION.decode


# ---------------------------------------------------------------- CONTROL and CONTROL_REPLY
@dataclass(frozen=True)
class ControlPayload:
    """A request: its name, the version of its form, and the request as bytes."""

    control_name: ControlName
    control_version: Annotated[int, fields.VERSION]
    command_bytes: fields.Octets = b""


_CONTROL = fields.Message("CONTROL", ControlPayload)
encode_control = _CONTROL.encoder()
decode_control = _CONTROL.decode


@dataclass(frozen=True)
class ControlReplyPayload:
    """The answer to a request: error code 0 is success."""

    sequence: fields.Uint64
    control_name: ControlName
    control_version: fields.Uint32
    error_code: fields.Int32
    error_message: Annotated[str, fields.text(MAX_ERROR_BYTES, "control reply error message")] = ""
    result_bytes: fields.Octets = b""


_CONTROL_REPLY = fields.Message("CONTROL_REPLY", ControlReplyPayload)
encode_control_reply = _CONTROL_REPLY.encoder()
decode_control_reply = _CONTROL_REPLY.decode
