"""Tells other processes of the same user, and who sends SIGQUIT, what the open Workers of this one do.

A thread sleeps in `accept` on a socket while a Worker is open. The socket has a name in the abstract
namespace: the system forgets it with the process, however that ends. A forked process has neither.

SIGQUIT is handled while a Worker is open that was started on the main thread, and only if the program has
no handler of its own, of Python or of C.

Rule     SEE-HANG-4, SEE-TOP-4
"""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol

from ..system.signals import do_nothing, signals_blocked
from .top import Top

log = logging.getLogger("simpler_ref")

NAME = "\0simpler_ref.top.{pid}"
"""The name of the socket. The system says who has it: one that another process took is not believed."""
FORMAT = 1
"""Version of the answers."""
_PATIENCE_S = 1.0
"""How long the thread waits for one that has asked to read the answer."""
_FORKED_S = 0.1
"""How long a process that was just forked may have the socket of a Worker closed since, and its name."""
_CREDENTIALS = struct.Struct("3i")
_MAY_PASS = errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM
"""Errors of `accept` after which it may succeed later: descriptors or memory are short at the moment."""
TWICE_S = 1.0
"""A second SIGQUIT within this time ends the program."""


class _Open(Protocol):
    """A Worker that has been started."""

    def look(self) -> Top | None: ...

    def report(self) -> str: ...

    def nested(self) -> Iterator[Any]: ...


_open: weakref.WeakKeyDictionary[_Open, bool] = weakref.WeakKeyDictionary()
"""The first one comes first; whether it was started on the main thread."""
_server: _TopServer | None = None
_lock = threading.RLock()
_last_quit = float("-inf")


class _TopServer:
    """The socket of this process, and the thread that answers there."""

    def __init__(self) -> None:
        self._closing = False
        self._connection: socket.socket | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bind(time.monotonic() + _FORKED_S)
            self._socket.listen(8)
            self._thread = threading.Thread(target=self._serve, name="simpler-top", daemon=True)
            self._thread.start()
        except BaseException:
            self._socket.close()
            raise

    def _bind(self, until: float) -> None:
        while True:
            try:
                return self._socket.bind(NAME.format(pid=os.getpid()))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                    raise
                time.sleep(0.001)

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
                if self._closing or error.errno not in _MAY_PASS:
                    return
                time.sleep(0.1)  # nothing tells when there are descriptors again
                continue
            with self._connection as connection, suppress(OSError):  # who asks may go away
                connection.settimeout(_PATIENCE_S)
                if peer_of(connection)[1] == os.geteuid():
                    connection.sendall(_answer())
                connection.shutdown(socket.SHUT_WR)  # a process forked meanwhile may have it, too


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end, as the system knows them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _group = _CREDENTIALS.unpack(raw)
    return process, user


# ---------------------------------------------------------------- the Workers of this process
def listen(worker: _Open) -> None:
    """Answer for a Worker that has been started."""
    global _server
    is_handled = _handle_sigquit()
    with signals_blocked(), _lock:  # or an interrupt could leave a thread that nobody knows
        _open[worker] = _open.get(worker, False) or is_handled
        if _server is None:
            try:
                _server = _TopServer()
            except (OSError, RuntimeError) as error:  # no name, descriptor or thread can be had
                log.warning("`python -m simpler_ref top` will not find this process: %s", error)


def leave(worker: _Open) -> None:
    """Answer for a Worker no longer; after the last one, close the socket."""
    global _server, _last_quit
    with signals_blocked():
        with _lock:
            _open.pop(worker, None)
            is_handled = any(_open.values())
            closing, _server = (None, _server) if _open else (_server, None)
        if closing is not None:
            closing.close()  # without the lock, which its thread may want
    if not is_handled and _is_main_thread():
        _give_sigquit_back()
        _last_quit = float("-inf")


def leave_to_parent() -> None:
    """In a process just forked: answer for nobody."""
    global _server, _lock
    _lock = threading.RLock()
    _open.clear()
    if _server is not None:
        _server.abandon()
        _server = None


def _outermost() -> list[_Open]:
    """Return the open Workers, but for those in threads, which are below their parents."""
    with _lock:
        workers = list(_open)
    inner = {below for worker in workers for below in worker.nested()}
    return [worker for worker in workers if worker not in inner]


def _answer() -> bytes:
    """Return what is sent to one who asks: it must not end the thread."""
    told: dict[str, Any] = {"format": FORMAT, "pid": os.getpid()}
    try:
        looks = [worker.look() for worker in _outermost()]
        told["workers"] = [asdict(one) for one in looks if one is not None]
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
    return json.dumps(told).encode()


# ---------------------------------------------------------------- SIGQUIT
def has_own_handler() -> bool:
    """Say whether the program handles or ignores SIGQUIT, also below Python, as faulthandler does."""
    bit = 1 << signal.SIGQUIT - 1
    with open("/proc/self/status") as lines:
        masks = [line.split()[1] for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(int(mask, 16) & bit for mask in masks)


def ignore_sigquit() -> None:
    """In a process that will fork workers: ignore SIGQUIT, which a terminal sends to all processes."""
    if signal.getsignal(signal.SIGQUIT) is _report or not has_own_handler():
        signal.signal(signal.SIGQUIT, do_nothing)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _handle_sigquit() -> bool:
    """Handle SIGQUIT if this is the main thread, and the program does nothing else then; say so."""
    if not _is_main_thread():
        return False
    if signal.getsignal(signal.SIGQUIT) is not _report:
        if has_own_handler():
            return False
        signal.signal(signal.SIGQUIT, _report)
    return True


def _give_sigquit_back() -> None:
    if signal.getsignal(signal.SIGQUIT) is _report:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def _report(_number: int, _frame: object) -> None:
    """Log what the Workers do; end the program at a second signal, or if none is open any more."""
    global _last_quit
    reports = [text for worker in _outermost() if (text := worker.report())]
    before, _last_quit = _last_quit, time.monotonic()
    if not reports or _last_quit - before < TWICE_S:
        _give_sigquit_back()
        os.kill(os.getpid(), signal.SIGQUIT)
        return
    for report in reports:
        log.warning("%s", report)
