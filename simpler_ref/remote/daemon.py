"""What waits on a machine for parents that ask for sessions, and starts a subprocess for each.

A request is two parts after its kind: the manifest, and the address at which the parent reaches this
machine. While the connection lives the daemon holds the session's standard input; so a session ends when
its parent, its connection or the daemon does.

Rule     REMOTE-TRUST-1, REMOTE-TRUST-3
"""

from __future__ import annotations

import logging
import socket as sockets
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from ..errors import RemoteError
from ..system.values import tcp_address
from .connection import REFUSALS, log_refusal, prepare, read_event, zmq
from .fleets import SessionProcess, read_manifest, session_command
from .keys import KeyPair, secure_server
from .manifest import Manifest, allows, to_line

log = logging.getLogger("simpler_ref")
START, STOP = b"start", b"stop"
"""What parents say."""
ALIVE, ANNOUNCED, REFUSED, ENDED = b"alive", b"announced", b"refused", b"ended"
"""What the daemon says."""
SILENCE_S = 2.0
STOP_S = 5.0
TICK_MS = 250
MOST_UNREAD = 64
WILDCARDS = ("0.0.0.0", "*")


@dataclass
class _Hosted:
    """A session, and the connection that has asked for it."""

    client: bytes
    place: SessionProcess
    is_announced: bool = False
    has_ended: bool = False

    def news(self) -> tuple[bytes, str]:
        """Return what the parent is told now: the daemon's word, and more about it."""
        try:
            if not self.is_announced and self.place.announced(0):
                self.is_announced = True
                return ANNOUNCED, to_line(self.place.announcement)
        except RemoteError as error:
            return REFUSED, str(error)
        why = self.place.why()
        self.has_ended = bool(why)
        return (ENDED, why) if why else (ALIVE, "")


class Daemon:
    """Starts sessions for parents that connect, at an address such as ``tcp://0.0.0.0:5555``.

    Both sides have the keys `pair`; with None whoever connects is a parent. Sessions may import callables
    from `modules`, accept serialised ones, and have connections in the open, as far as their parents and
    this side agree. `address` is where it waits.
    """

    def __init__(
        self,
        listen: str,
        pair: KeyPair | None,
        *,
        modules: Iterable[str] = (),
        serialized: bool = False,
        insecure: bool = False,
    ) -> None:
        tcp_address("cannot listen at", listen, listens=True)
        self._modules, self._serialized, self._insecure = tuple(modules), serialized, insecure
        self._hosted: dict[bytes, _Hosted] = {}
        self._seen: set[int] = set()
        self._is_over = False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        # how long a parent may be silent is said with its heartbeats, and its session notices it, too
        prepare(self._socket, SILENCE_S, stopped_s=0.0)
        self._socket.setsockopt(zmq.TCP_MAXRT, 0)
        self._socket.sndhwm = MOST_UNREAD
        self._socket.router_mandatory = True
        if pair is not None:
            secure_server(self._socket, pair, {pair.public})
        try:
            self._socket.bind(listen)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise RemoteError(f"cannot listen at {listen!r}: {error}") from None
        self.address: str = self._socket.last_endpoint.decode()
        self._monitor = self._socket.get_monitor_socket(REFUSALS)
        self._interface: str = self.address.partition("//")[2].rpartition(":")[0]

    def serve(self) -> None:
        """Start and end sessions until `end`."""
        while not self._is_over:
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            poller.register(self._monitor, zmq.POLLIN)
            for one in self._hosted.values():
                if not one.has_ended:  # else its parent does not read: each tick is soon enough
                    poller.register(one.place.fileno(), zmq.POLLIN)
            poller.poll(TICK_MS)
            while self._socket.poll(0):
                self._obey(*self._socket.recv_multipart())
            while self._monitor.poll(0):
                read_event(self._monitor)
                log_refusal()
            for one in list(self._hosted.values()):
                self._tell(one)

    def end(self) -> None:
        """Let `serve` return; for handlers of signals, whose exceptions finalisers would drop."""
        self._is_over = True

    def close(self) -> None:
        """End all sessions."""
        self._context.destroy(linger=0)
        ends = [self._end(client) for client in list(self._hosted)]
        for end in ends:
            end.join()

    def _obey(self, client: bytes, kind: bytes = b"", *parts: bytes) -> None:
        if kind == STOP and not parts:
            if client in self._hosted:
                self._hosted[client].place.end()
        elif kind == START and len(parts) == 2:
            self._start(client, parts[0], parts[1].decode(errors="replace"))
        else:
            log.warning("refused a message of %d parts that is no request", len(parts) + 1)

    def _start(self, client: bytes, line: bytes, reached: str) -> None:
        """Start a session, or tell why not."""
        try:
            manifest = self.allowed(read_manifest(line))
            if client in self._hosted or manifest.session_id in self._seen:
                raise RemoteError(f"session {manifest.session_id} has been asked for before")
            command = session_command(self._listening_address(reached))
            self._hosted[client] = _Hosted(client, SessionProcess(command, manifest))
            self._seen.add(manifest.session_id)
        except (RemoteError, ValueError) as error:
            log.warning("refused a request for a session: %s", error)
            with suppress(zmq.ZMQError):  # it may have gone
                self._socket.send_multipart([client, REFUSED, str(error).encode()], zmq.NOBLOCK)

    def _tell(self, one: _Hosted) -> None:
        """Tell a parent about its session, and end the session if the parent cannot be told."""
        word, more = one.news()
        try:
            self._socket.send_multipart([one.client, word, more.encode()], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                log.info("%s ends: its parent is gone", one.place.name)
                self._end(one.client)
            return  # the parent does not read: later
        if word in (REFUSED, ENDED):
            self._end(one.client, 0)

    def _end(self, client: bytes, timeout_s: float = STOP_S) -> threading.Thread:
        """Let a thread wait for the end of a session, and kill it after that time."""
        place = self._hosted.pop(client).place
        thread = threading.Thread(target=place.stop, args=(timeout_s,), name="simpler-end")
        thread.start()
        return thread

    def allowed(self, manifest: Manifest) -> Manifest:
        """Return what of a manifest this side allows as well; refuse what it does not."""
        if not manifest.is_secure and not self._insecure:
            raise RemoteError(
                "the parent asks for connections without encryption (secure=False): start this endpoint "
                "with --insecure as well, or leave that out"
            )
        if manifest.worker.get("device_ids") and not self._serialized:
            raise RemoteError(
                "the parent asks for chips, whose callables are machine code and can do anything: start "
                "this endpoint with --allow-serialized, or leave device_ids out"
            )
        return replace(
            manifest,
            modules=common_modules(manifest.modules, self._modules),
            serialized=manifest.serialized and self._serialized,
            path=(),
        )

    def _listening_address(self, reached: str) -> str:
        """Return the address of sessions: the one that the parent reaches, if it is of this machine."""
        if self._interface not in WILDCARDS:
            return self._interface
        with suppress(OSError), sockets.socket() as attempt:
            attempt.bind((reached, 0))
            return reached
        return WILDCARDS[0]


def common_modules(some: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that two lists allow, each with those below them."""
    found = {
        lower
        for one in some
        for other in others
        for lower, upper in ((one, other), (other, one))
        if allows(upper, lower)
    }
    return tuple(sorted(found))
