"""Whose turn it is to act as the Orch thread of a stream."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from ..engine.memory import Engine
from ..system.signals import signals_blocked


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
        self._bells: list[threading.Lock] = []
        """Of the threads that wait; each is released by the one that takes it from here."""
        self.shared = False
        """The thread that has the turn ends its wait for whichever call ends first."""

    def __enter__(self) -> None:
        """Wait for the turn."""
        try:
            if not self._lock.acquire(False):
                with self._queue:
                    wants: list[int] = []
                    try:
                        self._ask(wants)
                        self._lock.acquire()
                    finally:
                        self._want(self._mem, -len(wants))
        except BaseException:
            self.leave()
            raise

    def __exit__(self, *_: Any) -> None:
        """Give up the turn."""
        self._lock.release()
        self.tell()

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
        bell = threading.Lock()
        bell.acquire()
        wants: list[int] = []
        try:
            self._bells.append(bell)
            if not self.shared:
                self._ask(wants)
            if self._lock.acquire(False):
                self._lock.release()
            else:
                bell.acquire(timeout=timeout_s)
        finally:
            if wants:
                self._want(self._mem, -len(wants))
            with suppress(ValueError):  # it was rung
                self._bells.remove(bell)

    def _ask(self, wants: list[int]) -> None:
        """Ask the thread that has the turn to leave, and note that it was asked."""
        with signals_blocked():
            self._want(self._mem, 1)
            wants.append(1)

    def share(self) -> bool:
        """Return whether others wait, who want to be told of each call that ends."""
        self.shared = bool(self._bells)
        return self.shared

    def tell(self) -> None:
        """Let those that wait look again."""
        while self._bells:
            with suppress(IndexError):  # another thread was faster
                self._bells.pop().release()
