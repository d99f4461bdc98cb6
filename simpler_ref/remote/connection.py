"""One connection between a parent and a session: frames in order, and how its end is noticed.

ZeroMQ carries the frames, and its heartbeats tell a silent peer; they are answered by a thread of its own
that needs no lock of Python's. A connection is never made again: who has lost it has lost the session.

Rule     REMOTE-LINK-7, REMOTE-FAIL-4, REMOTE-HEALTH-1
"""

from __future__ import annotations

import importlib
import logging
import math
import struct
from typing import Any

from ..errors import RemoteError
from .fields import WireError
from .frames import AnyFrameType, Frame, FrameHeader, FrameType, decode_frame, encode_frame
from .limits import FRAME_HEADER_BYTES, MAX_FRAME_PAYLOAD_BYTES

log = logging.getLogger("simpler_ref")


class _Zmq:
    """pyzmq, imported when something of it is first used: a program may do without."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = importlib.import_module("zmq")
        except ImportError as error:
            raise RemoteError(
                f"endpoints need pyzmq ({error}): pip install 'simpler_ref[remote]'"
            ) from error
        vars(self).update(vars(module))
        return getattr(module, name)


zmq: Any = _Zmq()

HEARTBEAT_MS = 200
LOOKS_MS = 3000
EVENTS, POLLIN, SNDMORE = 15, 1, 2
"""ZMQ's constants as numbers: pyzmq's enumerations are slow, and so are its multipart calls."""
SOURCE = 2
"""ZMQ_SRCFD: of a message, the descriptor of the connection that it came from."""
_EVENT = struct.Struct("=HI")


def prepare(socket: Any, silence_s: float, *, stopped_s: float | None = None) -> None:
    """Set what all sockets between parents, sessions and daemons have in common.

    To send is to queue a message, or fails with `zmq.Again` where the connection has ended. The system
    ends a connection on which nothing gets through for `silence_s`. ZeroMQ ends one to a process that is
    stopped after `stopped_s`, None: as soon. Its heartbeats wait behind messages, which must take less
    time; 0 leaves them out, where another connection has them.
    """
    silence_ms = _without_last_beat(silence_s)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDTIMEO, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_HEADER_BYTES + MAX_FRAME_PAYLOAD_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    socket.setsockopt(zmq.HANDSHAKE_IVL, int(silence_s * 1000))
    stopped_ms = silence_ms if stopped_s is None else _without_last_beat(stopped_s)
    # Where nothing is sent, the system looks once a second, and would end the connection after one look
    # in vain, during a cut of half a second: without heartbeats it has time for more of them.
    socket.setsockopt(zmq.TCP_MAXRT, silence_ms if stopped_ms else silence_ms + LOOKS_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, max(1, math.ceil(silence_s)))
    if stopped_ms:
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, stopped_ms)
        socket.setsockopt(zmq.HEARTBEAT_TTL, stopped_ms)


def _without_last_beat(limit_s: float) -> int:
    """Return how many milliseconds may pass once a sign of life is due: the last one is old then."""
    return max(HEARTBEAT_MS, int(limit_s * 1000) - HEARTBEAT_MS) if limit_s else 0


def has_message(socket: Any) -> bool:
    """Say whether a message is there."""
    return bool(socket.getsockopt(EVENTS) & POLLIN)


def receive_parts(socket: Any, most_copied: int = 1 << 30) -> list[Any]:
    """Return the next message; `zmq.Again` if there is none in the time that the socket allows.

    Its parts are bytes; those behind the first `most_copied` are ZeroMQ's frames.
    """
    parts: list[Any] = []
    while True:
        frame = socket.recv(copy=False)
        parts.append(frame.bytes if len(parts) < most_copied else frame)
        if not frame.more:
            return parts


REFUSALS = 0x0800 | 0x2000
"""ZMQ's EVENT_HANDSHAKE_FAILED_NO_DETAIL, of a client that has noticed first, and _PROTOCOL."""


def log_refusal() -> None:
    """Log that a monitor tells of a client that is not admitted: one of `REFUSALS`.

    One that only has a key of its own that is not admitted is logged where that is asked about.
    """
    log.warning(
        "refused a connection: it has other keys, or one side has none, or it ended before that was known"
    )


def read_event(monitor: Any, flags: int = 0) -> tuple[int, int]:
    """Return what a monitor tells next: an event, and its number, such as a connection's descriptor."""
    event, number = _EVENT.unpack(monitor.recv_multipart(flags)[0])
    return event, number


class Order:
    """The frames of one connection: numbered in both directions, of one session and endpoint."""

    def __init__(self, session_id: int, endpoint_id: int) -> None:
        self.session_id, self.endpoint_id = session_id, endpoint_id
        self.sent = self.received = 0
        self.bytes_sent = self.bytes_received = 0

    def encode(self, kind: AnyFrameType, payload: bytes = b"") -> bytes:
        """Return the next frame to send."""
        self.sent += 1
        raw = encode_frame(FrameHeader(kind, self.session_id, self.endpoint_id, self.sent), payload)
        self.bytes_sent += len(raw)
        return raw

    def decode(self, raw: bytes, only: FrameType | None = None) -> Frame:
        """Return a frame that has come, of any type or `only` one.

        `ValueError`, and no change, if it is none, of another session or endpoint, or not the next one.
        """
        frame = decode_frame(raw)
        header = frame.header
        if header.session_id != self.session_id:
            raise WireError(f"{header.session_id} is not {self.session_id}", "frame", "session_id")
        if header.endpoint_id != self.endpoint_id:
            raise WireError(
                f"{header.endpoint_id} is not {self.endpoint_id}", "frame", "endpoint_id"
            )
        if header.sequence != self.received + 1:
            raise WireError(f"{header.sequence} is not {self.received + 1}", "frame", "sequence")
        if only is not None and header.frame_type != only:
            raise WireError(f"{header.frame_type.name} is not {only.name}", "frame", "type")
        self.received += 1
        self.bytes_received += len(raw)
        return frame
