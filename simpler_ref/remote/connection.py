"""Connections: frames in order, how the end of one is noticed, and who may connect.

ZeroMQ carries the frames, and its heartbeats tell a silent peer; they are answered by a thread of its own
that needs no lock of Python's. A connection is never made again: who has lost it has lost the session.

With CURVE, a server proves with its secret key that it is the one whose public key the client has; a
client proves with its own that it is one of those that the server admits. All between them is encrypted.

Rule     REMOTE-LINK-7, REMOTE-FAIL-4, REMOTE-HEALTH-1, REMOTE-TRUST-1, REMOTE-TRUST-2
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import struct
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ..errors import RemoteError
from .fields import WireError
from .frames import AnyFrameType, Frame, FrameHeader, FrameType, decode_frame, encode_frame
from .limits import FRAME_HEADER_BYTES, MAX_FRAME_PAYLOAD_BYTES

if TYPE_CHECKING:
    from zmq import Context, Socket

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
_NUMBERS = FrameHeader._fields[1:4]
"""Of a frame: its session, its endpoint, and which frame it is."""


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
        due = self.session_id, self.endpoint_id, self.received + 1
        for name, found, wanted in zip(_NUMBERS, header[1:4], due, strict=True):
            if found != wanted:
                raise WireError(f"{found} is not {wanted}", "frame", name)
        if only is not None and header.frame_type != only:
            raise WireError(f"{header.frame_type.name} is not {only.name}", "frame", "type")
        self.received += 1
        self.bytes_received += len(raw)
        return frame


# ---------------------------------------------------------------- who may connect
class KeyPair(NamedTuple):
    """A public and a secret CURVE key, of 40 characters each."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r}, secret=…)"


def new_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def write_pair(path: str | os.PathLike[str]) -> KeyPair:
    """Make a pair, and write its secret key into a new file that only this user can read."""
    pair = new_pair()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(pair.secret + "\n")
    return pair


def read_pair(path: str | os.PathLike[str]) -> KeyPair:
    """Return the pair whose secret key is in a file, which nobody else may read."""
    mode = os.stat(path).st_mode & 0o777
    if mode & 0o077:
        raise PermissionError(
            f"others can read the secret key in {os.fspath(path)} (mode {mode:04o}): chmod 600 it, or"
            " make another with python -m simpler_ref.endpoint --make-keys FILE"
        )
    secret = Path(path).read_text(errors="replace").strip()
    try:
        return KeyPair(zmq.curve_public(secret.encode("ascii")).decode(), secret)
    except (ValueError, zmq.ZMQError):
        raise ValueError(
            f"no key of 40 characters in {os.fspath(path)} ({len(secret)} characters): make one with"
            " python -m simpler_ref.endpoint --make-keys FILE"
        ) from None


def secure_server(
    socket: Socket[Any],
    pair: KeyPair | None,
    admitted: Collection[str],
    on_end: Callable[[int], None] = lambda descriptor: None,
) -> None:
    """Let a socket admit only clients that have one of some keys; to be called before it is bound.

    Clients in the open are refused as well; without a pair, all others are. `admitted` is looked at
    whenever a client connects: one that is removed from a set is refused from then on, but keeps the
    connection it has. For `on_end` see `look_out`.
    """
    if pair is not None:
        socket.curve_secretkey = pair.secret.encode()
        socket.curve_publickey = pair.public.encode()
        socket.curve_server = True
        domain = b"simpler_ref-%d" % next(_NUMBERS_OF_DOMAINS)
        doorkeeper(socket.context)[domain] = admitted
        socket.zap_domain = domain
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody is admitted when nobody answers
    look_out(socket, on_end)


def look_out(socket: Socket[Any], on_end: Callable[[int], None]) -> None:
    """Log which clients a socket refuses, and tell the descriptor of each connection that has ended.

    On a thread for that, which ends with the socket. Who only has a key of its own that is not admitted
    is logged where that is asked about.
    """
    address = f"inproc://simpler_ref-monitor-{int(socket.fd)}"
    socket.monitor(address, zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED | _REFUSALS)
    monitor = _socket_of_thread(socket.context, zmq.PAIR)
    monitor.connect(address)
    threading.Thread(
        target=_follow, args=(monitor, on_end), name="simpler-monitor", daemon=True
    ).start()


def _socket_of_thread(context: Context[Any], kind: int) -> Socket[Any]:
    """Return a socket that its own thread closes: destroy() closes those of the context itself."""
    made: Socket[Any] = zmq.Context.shadow(context.underlying).socket(kind)
    made.linger = 0
    return made


_REFUSALS = 0x0800 | 0x2000
"""ZMQ's EVENT_HANDSHAKE_FAILED_NO_DETAIL, of a client that has noticed first, and _PROTOCOL."""


def _follow(monitor: Socket[Any], on_end: Callable[[int], None]) -> None:
    with suppress(zmq.ZMQError):  # the context is being terminated, which waits for this
        while True:
            event, number = read_event(monitor)
            if event == zmq.EVENT_MONITOR_STOPPED:
                break
            if event == zmq.EVENT_DISCONNECTED:
                on_end(number)
            else:
                log.warning(
                    "refused a connection: it has other keys, or one side has none, or it ended before "
                    "that was known"
                )
    monitor.close()


def secure_client(socket: Socket[Any], pair: KeyPair, server_key: str) -> None:
    """Let a socket connect to one server only, which must admit its key; to be called before it does."""
    socket.curve_secretkey = pair.secret.encode()
    socket.curve_publickey = pair.public.encode()
    socket.curve_serverkey = server_key.encode()


_LOCK = threading.Lock()
_NUMBERS_OF_DOMAINS = count(1)
_ADMITTED: WeakKeyDictionary[Context[Any], dict[bytes, Collection[str]]] = WeakKeyDictionary()


def doorkeeper(context: Context[Any]) -> dict[bytes, Collection[str]]:
    """Return who is admitted to each domain of a context, whose servers a thread answers by that."""
    with _LOCK:
        if context not in _ADMITTED:
            _ADMITTED[context] = {}
            questions = _socket_of_thread(context, zmq.REP)
            questions.bind("inproc://zeromq.zap.01")
            args = questions, _ADMITTED[context]
            threading.Thread(target=_answer, args=args, name="simpler-keys", daemon=True).start()
        return _ADMITTED[context]


def _answer(questions: Socket[Any], admitted: dict[bytes, Collection[str]]) -> None:
    """Answer whether a client may connect (ZeroMQ RFC 27), until the context ends."""
    from zmq.utils import z85

    with suppress(zmq.ZMQError):  # the context is being terminated, which waits for this
        while True:
            version, request, domain, address, _, mechanism, *key = questions.recv_multipart()
            public = z85.encode(key[0]).decode() if mechanism == b"CURVE" else None
            ok = public in admitted.get(domain, ())
            if public and not ok:
                log.warning(
                    "refused a connection from %s: the key %s is not admitted",
                    address.decode(),
                    public,
                )
            verdict = [b"200", b"OK"] if ok else [b"400", b"not admitted"]
            questions.send_multipart([version, request, *verdict, b"", b""])
    questions.close()
