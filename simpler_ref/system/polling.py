"""Waiting for descriptors (`select.select` refuses those from 1024 on), on a second thread for something
else; who is at the other end.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any

_MOST_MS = 2**31 - 1
_END_S = 1.0
"""How long to wait for the end of a thread that has nothing left to do."""
_CREDENTIALS = struct.Struct("3i")


def wait_readable(descriptors: Iterable[int], most_s: float | None = None) -> bool:
    """Wait until one of them can be read, or is at its end, for some seconds at most; return whether."""
    poll = select.poll()
    for one in descriptors:
        poll.register(one, select.POLLIN)
    return bool(poll.poll(None if most_s is None else min(most_s * 1000, _MOST_MS)))


def other_end(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a connection, as the system knows them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _group = _CREDENTIALS.unpack(raw)
    return process, user


class WaitingThread:
    """A thread that sleeps in one place while another thread sleeps elsewhere, and wakes that one.

    It sleeps once for each time that it is armed, so it costs nothing while nobody waits: `watch` is
    called with what `arm` was given, and returns when there is something; `ring` wakes the other thread.
    """

    def __init__(self, watch: Callable[..., object], ring: Callable[[], object]) -> None:
        self._watch, self._ring = watch, ring
        self._go = threading.Semaphore(0)
        self._what: tuple[Any, ...] = ()
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._is_armed = self._is_ringing = False

    def arm(self, *what: Any) -> None:
        """Have it watch, unless it does already; only the thread that is woken calls this."""
        if self._is_armed:
            return
        self._is_armed, self._what = True, what
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="simpler_ref-lookout", daemon=True
            )
            self._thread.start()
        self._go.release()

    def has_rung(self) -> bool:
        """Say whether it has rung, or is about to, since the last time that this was asked."""
        rung, self._is_ringing = self._is_ringing, False
        return rung

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if not self._is_over:
                self._watch(*self._what)
            if self._is_over:
                return
            self._is_ringing, self._is_armed = True, False
            self._ring()

    def end(self, wake: Callable[[], None]) -> None:
        """End it; `wake` has `watch` return."""
        self._is_over = True
        if self._thread is not None:
            self._go.release()
            wake()
            self._thread.join(_END_S)
