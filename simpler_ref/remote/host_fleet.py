"""Sessions of daemons that somebody has started: ``python -m simpler_ref.endpoint --listen``."""

from __future__ import annotations

import os
import socket as sockets
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..errors import RemoteError
from ..system.values import filled, flag, tcp_address, texts
from .connection import POLLIN, prepare, read_event, zmq
from .daemon import ANNOUNCED, ENDED, REFUSED, START, STOP
from .fleets import Fleet, Place, reached_at
from .keys import KeyPair, read_pair, secure_client
from .manifest import Announcement, Manifest, from_line, to_line

RECONNECT_MS = 100
REPORT_S = 0.8
_KEYS = "give the path of the file that --make-keys has made"


class HostFleet(Fleet):
    """Sessions are started by daemons, such as one on each node of a job.

    Each waits with ``python -m simpler_ref.endpoint --listen tcp://0.0.0.0:5555 --keys FILE``. A session
    ends when its parent, its daemon or the connection between them is gone.

    Parameters
    ----------
    addresses : sequence of str
        Of the daemons, such as ``["tcp://node1:5555"]``; endpoint ``i`` is at ``i % len(addresses)``.
    keys : path, optional
        The file that ``--make-keys`` has made; the daemons have the same.
    insecure : bool
        Whether to go without keys. Whoever reaches the daemons then runs programs as their user.

    Raises
    ------
    TypeError, ValueError
        No addresses, or neither keys nor `insecure`.
    OSError
        The file of keys is not there, or others can read it.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
    ) -> None:
        self.addresses = texts("addresses", addresses, "give a list of strings, tcp://HOST:PORT")
        self.size = len(self.addresses)
        for one in self.addresses:
            tcp_address("addresses= has", one, listens=False)
        if not self.addresses:
            raise ValueError("addresses=[]: give that of at least one daemon, tcp://HOST:PORT")
        if (keys is None) != flag("insecure", insecure):
            raise ValueError(
                f"keys={keys!r}, insecure={insecure!r}: give the file of keys, or insecure=True to go "
                "without"
            )
        self._pair = None if keys is None else read_pair(filled("keys", keys, _KEYS))
        if insecure:
            warnings.warn(
                f"insecure=True: whoever reaches {', '.join(self.addresses)} runs programs there",
                RuntimeWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"HostFleet({self.addresses})"

    def where(self, endpoint: int) -> str:
        """Return the address of the daemon that an endpoint is at."""
        return self.addresses[endpoint % len(self.addresses)]

    def start(self, manifest: Manifest, endpoint: int) -> DaemonPlace:
        """Have a daemon start a session, and return where it is once it has announced itself."""
        if self._pair is None and manifest.is_secure:
            raise RemoteError(
                "the keys of the session would travel in the open: give the fleet keys=, or the endpoint "
                "secure=False"
            )
        place = DaemonPlace(self.where(endpoint), self._pair, manifest)
        try:
            place.start(manifest)
        except BaseException:
            place.close()
            raise
        return place


class DaemonPlace(Place):
    """A session that a daemon has started; the connection to the daemon keeps it alive."""

    def __init__(self, address: str, pair: KeyPair | None, manifest: Manifest) -> None:
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
        if pair is not None:
            secure_client(self._socket, pair, pair.public)
        self._monitor = self._socket.get_monitor_socket()

    def start(self, manifest: Manifest) -> None:
        """Connect, ask for the session and wait for its announcement; `RemoteError` if there is none."""
        unknown = self._look_up()[1]  # it may be known by the time that the daemon is started
        self._socket.connect(self._address)
        remedy = f"is it started, with --listen, and does no firewall keep it apart?{unknown}"
        self._until("_is_connected", remedy)
        reached, _ = self._look_up()
        self._socket.send_multipart([START, to_line(manifest).encode(), reached.encode()])
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
                why = "refuses the connection: it has other keys, or one side has none (keys=, insecure=)"
            self._end(f"{self._address} {why}")

    def _end(self, why: str) -> None:
        """Note why there is no session any more; what is noted first is the cause."""
        self._ended = self._ended or why

    def why(self) -> str:
        """Return why the session has ended, with its last lines; "" while it lives."""
        while self._look(0):
            pass
        return self._ended

    def wait(self, timeout_s: float) -> bool:
        """Wait until the session has ended; return whether it has."""
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
