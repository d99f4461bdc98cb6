"""Whose turn it is to act as the Orch thread of a stream."""

from __future__ import annotations

import threading
from typing import Any

from ..engine.memory import Engine


class Turns:
    """One thread at a time has the turn; in a ``with`` block it has.

    A thread with the turn may wait for calls and run the Scheduler's passes meanwhile; it ends this as
    soon as another one wants to have the turn. An exception that a signal handler raises, at any
    instruction, leaves nobody with the turn; the handler itself may take the turn of its thread again.

    Rule     CALL-STREAM-3
    """

    def __init__(self, engine: Engine) -> None:
        self._mem, self._want = engine.mem, engine.kernels.want_orch
        self._lock = threading.RLock()
        self._queue = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self.shared = False
        """The thread that has the turn ends its wait for whichever call ends first."""

    def __enter__(self) -> None:
        """Wait for the turn."""
        try:
            if not self._lock.acquire(False):
                with self._queue:
                    self._want(self._mem, 1)
                    try:
                        self._lock.acquire()
                    finally:
                        self._want(self._mem, -1)
        except BaseException:
            self.leave()
            raise

    def __exit__(self, *_: Any) -> None:
        """Give up the turn."""
        self._lock.release()
        if self._waiting:
            self._tell()

    def take(self) -> bool:
        """Take the turn if no other thread has it; `leave` must follow, whatever comes in between."""
        return self._lock.acquire(False)

    def leave(self) -> None:
        """Give up the turn, if this thread has it."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self.__exit__()

    def let_others_first(self) -> None:
        """Wait until those that waited for the turn have had it."""
        with self._queue:
            pass

    def wait_for_another(self, timeout_s: float) -> None:
        """Wait until the thread that has the turn has seen a call end, or gives it up."""
        with self._changed:
            self._waiting += 1
            urges = not self.shared
            if urges:
                self._want(self._mem, 1)
            try:
                if self._lock.acquire(False):
                    self._lock.release()
                else:
                    self._changed.wait(timeout_s)
            finally:
                if urges:
                    self._want(self._mem, -1)
                self._waiting -= 1

    def share(self) -> bool:
        """Return whether others wait, who want to be told of each call that ends."""
        self.shared = self._waiting > 0
        return self.shared

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
