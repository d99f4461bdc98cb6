"""Daemons: what waits on a machine for parents that ask for sessions, and the fleet that asks them.

A daemon starts a subprocess for each. A request is two parts after its kind: the manifest, and the
address at which the parent reaches this machine. While the connection lives the daemon holds the
session's standard input; so a session ends when its parent, its connection or the daemon does.

Rule     REMOTE-TRUST-1, REMOTE-TRUST-3
"""

from __future__ import annotations

import logging
import os
import socket as sockets
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..errors import RemoteError
from ..system.values import filled, tcp_address, texts
from .connection import (
    POLLIN,
    KeyPair,
    prepare,
    read_event,
    read_pair,
    secure_client,
    secure_server,
    zmq,
)
from .fleets import (
    Announcement,
    Fleet,
    Manifest,
    Place,
    SessionProcess,
    allows,
    from_line,
    reached_at,
    read_manifest,
    session_command,
    to_line,
)

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
RECONNECT_MS = 100
REPORT_S = 0.8
_KEYS = "give the path of the file that --make-keys has made"


# ---------------------------------------------------------------- the daemon
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

    Both sides have the keys `pair`. Sessions may import callables from `modules`, accept serialised ones,
    and have connections in the open, as far as their parents and this side agree. `address` is where it
    waits.
    """

    def __init__(
        self,
        listen: str,
        pair: KeyPair,
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
        secure_server(self._socket, pair, {pair.public})
        try:
            self._socket.bind(listen)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise RemoteError(f"cannot listen at {listen!r}: {error}") from None
        self.address: str = self._socket.last_endpoint.decode()
        self._interface: str = self.address.partition("//")[2].rpartition(":")[0]

    def serve(self) -> None:
        """Start and end sessions until `end`."""
        while not self._is_over:
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            for one in self._hosted.values():
                if not one.has_ended:  # else its parent does not read: each tick is soon enough
                    poller.register(one.place.fileno(), zmq.POLLIN)
            poller.poll(TICK_MS)
            while self._socket.poll(0):
                self._obey(*self._socket.recv_multipart())
            for one in list(self._hosted.values()):
                self._tell(one)

    def end(self) -> None:
        """Let `serve` return; for handlers of signals, whose exceptions finalisers would drop."""
        self._is_over = True

    def close(self) -> None:
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


# ---------------------------------------------------------------- the fleet
class HostFleet(Fleet):
    """Sessions are started by daemons, such as one on each node of a job.

    Each waits with ``python -m simpler_ref.endpoint --listen tcp://0.0.0.0:5555 --keys FILE``. A session
    ends when its parent, its daemon or the connection between them is gone.

    Parameters
    ----------
    addresses : sequence of str
        Of the daemons, such as ``["tcp://node1:5555"]``; endpoint ``i`` is at ``i % len(addresses)``.
    keys : path
        The file that ``--make-keys`` has made; the daemons have the same.

    Raises
    ------
    TypeError, ValueError
        No addresses, or no path.
    OSError
        The file of keys is not there, or others can read it.
    """

    def __init__(self, addresses: Sequence[str], *, keys: str | os.PathLike[str]) -> None:
        self.addresses = texts("addresses", addresses, "give a list of strings, tcp://HOST:PORT")
        self.size = len(self.addresses)
        for one in self.addresses:
            tcp_address("addresses= has", one, listens=False)
        if not self.addresses:
            raise ValueError("addresses=[]: give that of at least one daemon, tcp://HOST:PORT")
        self._pair = read_pair(filled("keys", keys, _KEYS))

    def __repr__(self) -> str:
        return f"HostFleet({self.addresses})"

    def where(self, endpoint: int) -> str:
        return self.addresses[endpoint % len(self.addresses)]

    def start(self, manifest: Manifest, endpoint: int) -> DaemonPlace:
        return DaemonPlace(self.where(endpoint), self._pair, manifest).started()


class DaemonPlace(Place):
    """A session that a daemon starts; the connection to the daemon keeps it alive.

    `line` is closed with it: another connection, by which somebody has lent the daemon.
    """

    def __init__(
        self, address: str, pair: KeyPair, manifest: Manifest, line: sockets.socket | None = None
    ) -> None:
        self._manifest, self._line = manifest, line
        self.name = f"endpoint {manifest.endpoint_id} of {address}"
        self._address = address
        self._host = address.partition("//")[2].rpartition(":")[0]
        self._deadline = time.monotonic() + manifest.start_timeout_s
        self._lock = threading.RLock()
        self._silence_s, self._begun = manifest.silence_s, 0.0
        self._is_connected = False
        self._announced, self._ended = False, ""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        prepare(self._socket, manifest.silence_s)
        self._socket.reconnect_ivl = RECONNECT_MS  # the daemon may be starting
        # no limit of messages: where there is one and it is reached, heartbeats are not read either
        secure_client(self._socket, pair, pair.public)
        self._monitor = self._socket.get_monitor_socket()

    def started(self) -> DaemonPlace:
        """Have the session started, and return this; `RemoteError` if there is no announcement."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        unknown = self._look_up()[1]  # it may be known by the time that the daemon is started
        self._socket.connect(self._address)
        remedy = f"is it started, with --listen, and does no firewall keep it apart?{unknown}"
        self._until("_is_connected", remedy)
        reached, _ = self._look_up()
        self._socket.send_multipart([START, to_line(self._manifest).encode(), reached.encode()])
        self._deadline += REPORT_S  # for the daemon's report of a session that is late
        self._until("_announced", "give start_timeout_s= a larger value")

    def _look_up(self) -> tuple[str, str]:
        """Return the address of the daemon's host, and why there is none."""
        try:
            return sockets.gethostbyname(self._host), ""
        except OSError as error:
            return "", f" {self._host}: {error.strerror}"

    def _until(self, done: str, remedy: str) -> None:
        while not getattr(self, done):
            rest = self._deadline - time.monotonic()
            if self._ended or rest <= 0:
                why = self._ended or f"no answer in time; {remedy}"
                raise RemoteError(f"{self.name} could not be started: {why}")
            self._look(rest)

    def _look(self, timeout_s: float) -> bool:
        """Note what has happened, after at most that time; return whether anything has."""
        with self._lock:
            if self._context.closed:
                return False
            sources = [(one, POLLIN) for one in (self._socket, self._monitor)]
            ready = dict(zmq.zmq_poll(sources, int(timeout_s * 1000)))
            if self._socket in ready:
                self._note_message(*self._socket.recv_multipart())
            elif self._monitor in ready:
                self._note_event(read_event(self._monitor)[0])
            return bool(ready)

    def _note_message(self, word: bytes, more: bytes = b"", *_: Any) -> None:
        if word == ANNOUNCED:
            found = from_line(Announcement, more)
            self.announcement = reached_at(found, self._host)
            self.name += f" (pid {found.pid} on {found.host})"
            self._announced = True
        elif word in (REFUSED, ENDED):
            self._end(more.decode(errors="replace"))

    def _note_event(self, event: int) -> None:
        if event == zmq.EVENT_CONNECTED:
            self._begun = time.monotonic()
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._is_connected = True
        elif event == zmq.EVENT_DISCONNECTED and self._is_connected:
            self._end(f"the connection to {self._address} is lost")
        elif event in (
            zmq.EVENT_DISCONNECTED,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        ):
            if time.monotonic() - self._begun > self._silence_s / 2:
                why = f"was silent for {self._silence_s} s: is it stopped, or no daemon?"
            else:
                why = "refuses the connection: it has other keys, or is no daemon"
            self._end(f"{self._address} {why}")

    def _end(self, why: str) -> None:
        """Note why there is no session any more; what is noted first is the cause."""
        self._ended = self._ended or why

    def why(self) -> str:
        while self._look(0):
            pass
        return self._ended

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self._ended and (rest := deadline - time.monotonic()) > 0:
            self._look(rest)
        return bool(self._ended)

    def stop(self, timeout_s: float) -> None:
        """End the session; the daemon kills it if it takes longer than that."""
        with self._lock, suppress(zmq.ZMQError):
            if not self.why():
                self._socket.send(STOP, zmq.NOBLOCK)
        self.wait(timeout_s)
        self.close()

    def close(self) -> None:
        """Close the connection, without which there is no session."""
        with self._lock:
            self._end("it was stopped")
            self._socket.disable_monitor()
            self._monitor.close()
            self._context.destroy(linger=0)
        if self._line is not None:
            self._line.close()
