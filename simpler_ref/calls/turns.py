"""Whose turn it is to act as the Orch thread of a stream.

Rule     CALL-STREAM-2
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from ..engine.memory import Engine


class Turns:
    """One thread at a time has the turn; in a block ``with turns.entrance, turns.turn:`` it has.

    A thread with the turn may wait for calls and run the Scheduler's passes meanwhile: it *helps*. It
    has left the queue before that, and ends it as soon as another one wants the turn: this one is in the
    queue before it looks whether somebody helps, and the one that is going to help says so before it
    looks at the queue. So one of them sees the other. Who has helped goes through the queue before it
    takes the turn again: otherwise it would be faster than a thread that it has just woken.

    Both locks are entered and left without a function of Python, in which a signal handler could raise:
    so an exception leaves nobody with the turn. The handler itself may take the turn of its thread again.

    Attributes
    ----------
    lock : threading.RLock
        Its owner has the turn.
    helping : bool
        A thread helps.
    shared : bool
        It stops helping whenever a call ends, since others wait for calls, too.
    """

    def __init__(self, engine: Engine) -> None:
        self._mem, self._want = engine.mem, engine.kernels.want_orch
        self._queue = threading.RLock()
        self._bells: list[Any] = []
        self.lock: Any = threading.RLock()
        self._is_mine = self.lock._is_owned  # type: ignore[attr-defined]
        self.helping = self.shared = self._comes = False

    # ------------------------------------------------------------ take the turn
    @property
    def entrance(self) -> Any:
        """The place to wait for the turn: one after another.

        A signal handler, whose thread has the turn, does not wait for those who wait for this thread.
        """
        return self.lock if self._is_mine() else self._queue

    @property
    def turn(self) -> Any:
        """The turn; a thread that helps is asked to leave, and one that is going to help sees it."""
        self._comes = True
        if self.helping:
            self._want(self._mem, 1)
        return self.lock

    # ------------------------------------------------------------ wait
    def register(self) -> Any:
        """Return a bell for a thread that is going to wait for calls: a lock; it is rung by a release."""
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        return bell

    def forget(self, bell: Any) -> None:
        """Forget a bell: its thread waits no more."""
        with suppress(ValueError):
            self._bells.remove(bell)

    def prepare(self, bell: Any = None) -> bool:
        """Get ready, with the turn, to help; say whether others wait for calls, too.

        Who comes to wait or to want the turn from now on is noticed.
        """
        self._want(self._mem, 0)
        self.shared = any(one is not bell for one in self._bells)
        return self.shared

    def begin_to_help(self) -> None:
        """Say that this thread helps; heed those who were in the queue before they could see it."""
        self.helping = True
        free = False
        try:
            free = self._queue.acquire(False)
        finally:
            try:  # noqa: SIM105 (a signal could be handled on the way into a function of Python)
                self._queue.release()
            except RuntimeError:  # another thread is in the queue
                pass
        if not free and self._comes:
            self._want(self._mem, 1)

    def try_to_take(self) -> bool:
        """Take the turn unless another thread has it that is going to ring; return whether it was taken.

        A thread that has the turn without helping is in the queue.
        """
        with self.entrance:
            self._comes = False  # this one only looks
            return bool(self.lock.acquire(False))

    def sleep(self, bell: Any, timeout_s: float) -> bool:
        """Wait until the thread that helps has seen a call end, or stops; say whether it has."""
        if not self.shared:
            self._want(self._mem, 1)
        return bool(bell.acquire(timeout=timeout_s))

    def let_others_first(self) -> None:
        """Let those who wait for calls look again, and those who want the turn have it."""
        self.tell()
        if not self._is_mine():
            with self._queue:
                self._comes = False  # this one only waits for them

    def tell(self) -> None:
        """Let those who wait for calls look again."""
        for bell in self._bells[:]:
            with suppress(RuntimeError):  # it was rung already
                bell.release()
