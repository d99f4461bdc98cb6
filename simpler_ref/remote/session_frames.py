"""The frames between a session and its parent: in order, with signs of life beside them.

The main thread receives and sends. A thread of its own answers signs of life, and notices when the parent
is gone, whatever the main thread does.

Rule     REMOTE-LINK-2, REMOTE-LINK-6, REMOTE-LINK-8, REMOTE-AHEAD-1, REMOTE-AHEAD-5,
         REMOTE-FAIL-5, REMOTE-HEALTH-2, REMOTE-TRUST-2, SPEED-WAIT-14
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import RemoteError
from ..system.cores import threads_on
from ..version import __version__
from ..workers.reports import cut_traceback, cut_utf8
from . import connection
from . import frames as protocol
from .connection import KeyPair, new_pair, secure_server, zmq
from .fleets import THIS_MACHINE, Manifest
from .limits import MAX_ERROR_BYTES, PROTOCOL_VERSION

log = logging.getLogger("simpler_ref")

LINGER_MS = 200
LOOK_S = 0.25
"""How often the main thread looks whether the parent is gone, while there is no frame."""
_HEADROOM = 16
GRACE_S = 1.0
"""How long the main thread may take to end once the parent is gone."""


def address_at(interface: str) -> str:
    """Return an address for a socket: what only this machine reaches needs no TCP.

    The name of a Unix socket in the abstract namespace is no file, and is gone with its process.
    """
    if interface == THIS_MACHINE:
        return f"ipc://@simpler_ref-{secrets.token_hex(16)}"
    return f"tcp://{interface}:*"


def profile() -> str:
    """Return what a HELLO says of this package."""
    return f"simpler_ref/{__version__}"


def hello(order: connection.Order, *, ready: bool) -> bytes:
    """Return the HELLO of one side of a connection, which takes tasks or does not."""
    state = protocol.ReadyState.READY if ready else protocol.ReadyState.NOT_READY
    ids = order.session_id, order.endpoint_id
    return protocol.encode_hello(
        protocol.HelloPayload(*ids, PROTOCOL_VERSION, profile(), protocol.EVERY_FEATURE, state)
    )


def cut_report(text: str, trace: str) -> str:
    """Return as much of an exception's text and traceback as an answer takes."""
    text = cut_utf8(text, MAX_ERROR_BYTES // 2).decode()
    room = MAX_ERROR_BYTES - len(text.encode()) - 1
    return f"{text}\n{cut_traceback(trace, room - _HEADROOM).decode(errors='replace')}"


class SessionFrames:
    """The frames of one session."""

    def __init__(self, manifest: Manifest, ended: int, interface: str) -> None:
        self._manifest, self._ended, self._interface = manifest, ended, interface
        self._order = connection.Order(manifest.session_id, manifest.endpoint_id)
        self._beats = connection.Order(manifest.session_id, manifest.endpoint_id)
        self._peer = b""
        self._descriptors: set[int] = set()
        """Of the connection to the parent."""
        self._waiting: deque[protocol.Frame] = deque()
        """Frames that have come while another one was served."""
        self.over = ""
        """Why the session ends; "" while it goes on."""
        self.is_closing = False
        """Whether the main thread has noticed that."""
        self.note: Callable[[int, int, int, bool], None] | None = None
        """Told of each frame while a trace is taken: its type, the number of the one that it is or
        answers, its bytes, and whether it was sent."""
        self._pair: KeyPair | None = None
        self._sockets: list[Any] = []
        self._watcher: threading.Thread | None = None

    # ------------------------------------------------------------ start and end
    def open(self, core: int | None) -> None:
        """Open the sockets, after all forks; threads that pass frames on run on `core`, if given."""
        if self._manifest.is_secure:
            self._pair = new_pair()
        with threads_on(core):
            self._context = zmq.Context()
            self._socket = self.router(stopped_s=0.0)  # the other one has the heartbeats
        self._socket.setsockopt(zmq.RCVTIMEO, int(LOOK_S * 1000))
        self._health = self.router()
        self._sockets += self._socket, self._health
        self._wake, self._woken = os.pipe()

    def router(self, **how: float) -> Any:
        """Return a socket that the parent connects to, and nobody else."""
        socket = self._context.socket(zmq.ROUTER)
        connection.prepare(socket, self._manifest.silence_s, **how)
        secure_server(socket, self._pair, {self._manifest.parent_key}, self._note_end)
        socket.bind(address_at(self._interface))
        return socket

    def addresses(self) -> tuple[str, str, str]:
        public = self._pair.public if self._pair else ""
        return self._socket.last_endpoint.decode(), self._health.last_endpoint.decode(), public

    def descriptors(self) -> tuple[int, int]:
        """Return where something can be read if there is a frame, and if the session ends."""
        return self._socket.getsockopt(zmq.FD), self._wake

    def watch(self) -> None:
        """Begin to answer signs of life, and to look out for the end of the parent."""
        self._watcher = threading.Thread(target=self._watch, name="simpler-session", daemon=True)
        self._watcher.start()

    def end(self) -> None:
        """Wake who waits for a frame; `over` says why by now."""
        self.over = self.over or "closed"
        self.is_closing = True
        if self._watcher is not None:
            os.close(self._woken)

    def close(self) -> None:
        """Close the sockets; the context stays, since the process waits for nothing."""
        for socket in self._sockets:
            socket.close(linger=LINGER_MS)

    def join(self) -> None:
        if self._watcher is not None:
            self._watcher.join(GRACE_S)

    def _watch(self) -> None:
        poller = zmq.Poller()
        for one in (self._health, self._ended, self._wake):
            poller.register(one, zmq.POLLIN)
        while self._wake not in (ready := dict(poller.poll())):
            if self._ended in ready and not os.read(self._ended, 1):
                self._lose("its starter is gone")
                break
            if self._health in ready:
                self._answer_health()

    def _note_end(self, descriptor: int) -> None:
        """On a thread that looks out for ends of connections."""
        if descriptor in self._descriptors:
            self._lose("the connection to the parent has ended")

    def _lose(self, why: str) -> None:
        """End the main thread, or else the process, since the parent is gone; unless it ends anyway."""
        if self.is_closing:
            return
        if not self.over:
            log.warning("endpoint %d ends: %s", self._manifest.endpoint_id, why)
        self.over = self.over or why
        for _ in range(2):  # the main thread has to notice, then to close
            time.sleep(GRACE_S)
            if not self.is_closing:
                break
        sys.stderr.flush()
        os._exit(0)

    def _answer_health(self) -> None:
        sender, message = self._health.recv_multipart(copy=False)
        try:
            self._beats.decode(message.bytes, protocol.FrameType.HEALTH)
        except ValueError as error:
            self._refuse(error)
            return
        self._descriptors.add(message.get(connection.SOURCE))
        clock = time.time_ns().to_bytes(8, "little")
        self._health.send_multipart(
            [sender.bytes, self._beats.encode(protocol.FrameType.HEALTH, clock)]
        )

    # ------------------------------------------------------------ greeting
    def greet(self, deadline: float) -> None:
        while not self.over:
            if time.monotonic() > deadline:
                raise RemoteError(
                    f"the parent has not greeted within {self._manifest.start_timeout_s} s"
                )
            frame = self._receive(protocol.FrameType.HELLO)
            if frame is None:
                continue
            theirs = protocol.decode_hello(frame.payload).comm_profile
            ready = theirs == profile()
            self.send(protocol.FrameType.HELLO, hello(self._order, ready=ready))
            if not ready:
                raise RemoteError(f"the parent is {theirs!r}, this is {profile()!r}")
            return

    # ------------------------------------------------------------ frames
    def send(self, kind: protocol.AnyFrameType, payload: bytes) -> None:
        raw = self._order.encode(kind, payload)
        if self.note is not None:  # what answers begins with the number of the frame that asked
            self.note(kind, int.from_bytes(payload[:8], "little"), len(raw), True)
        self._socket.send(self._peer, connection.SNDMORE)
        self._socket.send(raw)

    def has_frame(self) -> bool:
        return bool(self._waiting) or connection.has_message(self._socket)

    def next_frame(self) -> protocol.Frame | None:
        """Return the frame to be served next; SHUTDOWN goes before tasks that have not begun.

        None if there is none in a while, or one was refused.
        """
        waiting = self._waiting
        while not waiting or connection.has_message(self._socket):
            frame = self._receive()
            if frame is None or frame.header.frame_type == protocol.FrameType.SHUTDOWN:
                return frame
            waiting.append(frame)
        return waiting.popleft()

    def _receive(self, only: protocol.FrameType | None = None) -> protocol.Frame | None:
        """Return the next frame of the parent, of any type or `only` one; who sends the first is that.

        None if there is none in time, or it was refused.

        A thread that sleeps in ZeroMQ is woken sooner than one that looks again and again, and leaves
        its core to those that do the work meanwhile.
        """
        try:
            peer, *parts = connection.receive_parts(self._socket, 1)
        except zmq.Again:
            return None
        try:
            if len(parts) != 1 or peer != (self._peer or peer):
                raise ValueError("remote_wire: frame: it is not from the parent of this session")
            frame = self._order.decode(parts[0].bytes, only)
        except ValueError as error:
            self._refuse(error)
            return None
        if not self._peer:
            self._peer = peer
            self._descriptors.add(parts[0].get(connection.SOURCE))
        if self.note is not None:
            self.note(frame.header.frame_type, frame.header.sequence, len(parts[0]), False)
        return frame

    def _refuse(self, error: ValueError) -> None:
        log.warning("endpoint %d refuses: %s", self._manifest.endpoint_id, error)
