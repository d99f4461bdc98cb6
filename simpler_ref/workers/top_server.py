"""Answers other processes of the same user that ask what the open Workers of this one do.

A thread sleeps in `accept` on a socket while a Worker is open. The socket has a name in the abstract
namespace: the system forgets it with the process, however that ends. A forked process has neither.

Rule     SEE-TOP-4
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..system.signals import signals_blocked
from . import top

if TYPE_CHECKING:
    from .life import Life

log = logging.getLogger("simpler_ref")

NAME = "simpler_ref.top.{pid}."
"""How names of sockets begin; what follows is random, so that nobody can take a name beforehand."""
FORMAT = 1
"""Version of the answers."""
_PATIENCE_S = 1.0
"""How long the thread waits for one that has asked to read the answer."""
_CREDENTIALS = struct.Struct("3i")

_open: list[weakref.ref[Life]] = []
_listener: Listener | None = None
_lock = threading.RLock()


class Listener:
    """The socket of this process, and the thread that answers there."""

    def __init__(self, answer: Callable[[], bytes]) -> None:
        self._answer = answer
        self._closing = False
        self._connection: socket.socket | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name = NAME.format(pid=os.getpid()) + os.urandom(8).hex()
            self._socket.bind("\0" + name)
            self._socket.listen(8)
            self._thread = threading.Thread(target=self._serve, name="simpler-top", daemon=True)
            self._thread.start()
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """End the thread, and forget the name."""
        self._closing = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # `accept` returns
        try:
            if self._thread is not threading.current_thread():
                self._thread.join()
        finally:
            self._socket.close()

    def abandon(self) -> None:
        """In a process just forked: leave all of it to the parent."""
        self._socket.close()
        if self._connection is not None:
            self._connection.close()

    def _serve(self) -> None:
        while True:
            try:
                self._connection, _ = self._socket.accept()
            except OSError as error:
                if self._closing or not _may_pass(error):
                    return
                time.sleep(0.1)  # nothing tells when there are descriptors again
                continue
            with self._connection as connection, suppress(OSError):  # who asks may go away
                connection.settimeout(_PATIENCE_S)
                if peer_of(connection)[1] == os.geteuid():
                    connection.sendall(self._answer())
                connection.shutdown(socket.SHUT_WR)  # a process forked meanwhile may have it, too


def _may_pass(error: OSError) -> bool:
    """Say whether `accept` may succeed later: descriptors or memory are short at the moment."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end, as the system knows them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _group = _CREDENTIALS.unpack(raw)
    return process, user


# ---------------------------------------------------------------- the Workers of this process
def listen(life: Life) -> None:
    """Answer for a Worker that has been started."""
    global _listener
    with signals_blocked(), _lock:  # or an interrupt could leave a thread that nobody knows
        if life not in _lives():
            _open.append(weakref.ref(life))
        if _listener is None:
            try:
                _listener = Listener(_answer)
            except (OSError, RuntimeError) as error:  # no descriptor, or no thread, can be had
                log.warning("`python -m simpler_ref top` will not find this process: %s", error)


def leave(life: Life) -> None:
    """Answer for a Worker no longer; after the last one, close the socket."""
    global _listener
    with signals_blocked():
        with _lock:
            _open[:] = [one for one in _open if one() not in (None, life)]
            if _open or _listener is None:
                return
            closing, _listener = _listener, None
        closing.close()  # without the lock, which its thread may want


def leave_to_parent() -> None:
    """In a process just forked: answer for nobody."""
    global _listener, _lock
    _lock = threading.RLock()
    _open.clear()
    if _listener is not None:
        _listener.abandon()
        _listener = None


def _lives() -> list[Life]:
    return [life for life in (one() for one in list(_open)) if life is not None]


def outermost() -> list[top.Top]:
    """Return what each open Worker of this process does; those in threads are below their parents."""
    lives = _lives()
    inner = {below._life for life in lives for below in life.tree.nested()}
    return [one for life in lives if life not in inner for one in top.look_if_open(life)]


def _answer() -> bytes:
    """Return what is sent to one who asks: it must not end the thread."""
    told: dict[str, Any] = {"format": FORMAT, "pid": os.getpid()}
    try:
        told["workers"] = [top.as_data(one) for one in outermost()]
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
    return json.dumps(told).encode()
