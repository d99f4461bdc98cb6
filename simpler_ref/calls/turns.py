"""Whose turn it is to act as the Orch thread of a stream."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from ..engine.memory import Engine


class Turns:
    """One thread at a time has the turn; in a block ``with turns.entrance, turns.turn:`` it has.

    A thread with the turn may wait for calls and run the Scheduler's passes meanwhile: it *helps*. It
    ends this as soon as another one wants the turn. Both locks are entered and left without a function
    of Python, in which a signal handler could raise: so an exception leaves nobody with the turn. The
    handler itself may take the turn of its thread again.

    Attributes
    ----------
    lock : threading.RLock
        Its owner has the turn.
    helping : bool
        A thread helps.
    shared : bool
        It stops helping whenever a call ends, since others wait for calls, too.

    Notes
    -----
    Rule     CALL-STREAM-3
    """

    def __init__(self, engine: Engine) -> None:
        self._mem, self._want = engine.mem, engine.kernels.want_orch
        self._queue = threading.Lock()
        self._bells: list[Any] = []
        self.lock = threading.RLock()
        self.helping = self.shared = False

    # ------------------------------------------------------------ take the turn
    @property
    def entrance(self) -> Any:
        """The place to wait for a thread that helps: one after another; without one, the turn itself.

        Nothing comes between this answer and its use, not even another thread.
        """
        return self._queue if self.helping else self.lock

    @property
    def turn(self) -> Any:
        """The turn; a thread that helps is asked to leave."""
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

    def may_help(self, bell: Any = None) -> bool:
        """Say, to a thread with the turn, whether it may help: nobody wants the turn.

        Who comes to want it from now on is noticed.
        """
        self._want(self._mem, 0)
        self.shared = any(one is not bell for one in self._bells)
        return not self._queue.locked()

    def sleep(self, bell: Any, timeout_s: float) -> None:
        """Wait until the thread that helps has seen a call end, or stops."""
        if not self.shared:
            self._want(self._mem, 1)
        bell.acquire(timeout=timeout_s)

    def let_others_first(self) -> None:
        """Let those who wait for calls look again, and those who want the turn have it."""
        self.tell()
        with self._queue:
            pass

    def tell(self) -> None:
        """Let those who wait for calls look again."""
        for bell in self._bells[:]:
            with suppress(RuntimeError):  # it was rung already
                bell.release()
