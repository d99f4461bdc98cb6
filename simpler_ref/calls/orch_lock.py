"""The lock of the thread that acts as the Orch thread of a stream, and how threads wait for calls.

Rule     CALL-STREAM-2
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..engine.memory import PARK_NS, Engine
from ..jit import layout as L


class OrchLock:
    """One thread at a time has the lock; in a block ``with mutex.queue, mutex.lock:`` it has.

    A thread with the lock may wait for calls and run the Scheduler's passes meanwhile: it *helps*. It
    has left the queue before that, and ends it as soon as another one wants the lock: this one is in the
    queue before it looks whether somebody helps, and the one that is going to help says so before it
    looks at the queue. So one of them sees the other. Who has helped goes through the queue before it
    takes the lock again: otherwise it would be faster than a thread that it has just woken.

    Both locks are entered and left without a function of Python, in which a signal handler could raise:
    so an exception leaves nobody with the lock. The handler itself may take the lock of its thread again.

    `prepare` is called, with the lock, before a thread helps, and returns whether there is a stream;
    `look` is called when no call has ended for a while.
    """

    def __init__(
        self, engine: Engine, prepare: Callable[[], bool], look: Callable[[], object]
    ) -> None:
        self._mem, self._view, self._kernels = engine.mem, engine.view, engine.kernels
        self._prepare, self._look = prepare, look
        self._queue = threading.RLock()
        self._events: list[Any] = []
        """Of the threads that wait for calls: locks, whose release sets them."""
        self.rlock: Any = threading.RLock()
        """Its owner has the lock."""
        self._is_mine = self.rlock._is_owned  # type: ignore[attr-defined]
        self.helping = self.shared = self._comes = False
        """A thread helps; it stops whenever a call ends, since others wait, too; one wants the lock."""

    # ------------------------------------------------------------ take the lock
    @property
    def queue(self) -> Any:
        """The place to wait for the lock: one after another.

        A signal handler, whose thread has the lock, does not wait for those who wait for this thread.
        """
        return self.rlock if self._is_mine() else self._queue

    @property
    def lock(self) -> Any:
        """The lock; a thread that helps is asked to leave, and one that is going to help sees it."""
        self._comes = True
        if self.helping:
            self._want(1)
        return self.rlock

    def _want(self, whether: int) -> None:
        self._kernels.want_orch(self._mem, whether)

    # ------------------------------------------------------------ wait
    def wait_until(
        self,
        is_over: Callable[[], bool],
        deadline: float | None = None,
        *,
        slot: int = L.NONE,
        ended: Callable[[], int] = lambda: -1,
    ) -> bool:
        """Wait until something is so; return whether it is by a deadline on the monotonic clock.

        Who makes it so without the end of a call takes the lock after that. `slot` is the call whose end
        makes it so; `ended` says how many calls have to have ended for that.
        """
        event = threading.Lock()
        event.acquire()
        self._events.append(event)
        try:
            while True:
                goal = ended()  # first: what ends from here on is above it
                if is_over():
                    return True
                rest_ns = PARK_NS
                if deadline is not None:
                    rest_ns = min(int((deadline - time.monotonic()) * 1e9), PARK_NS)
                self._help_or_sleep(event, max(rest_ns, 0), is_over, slot, goal)
                if rest_ns <= 0:
                    return is_over()
        finally:
            with suppress(ValueError):
                self._events.remove(event)

    def _help_or_sleep(
        self, event: Any, rest_ns: int, is_over: Callable[[], bool], slot: int, goal: int
    ) -> None:
        """Wait for at most `rest_ns`: as the one who helps, or until that one sets the event."""
        lock, mine, is_idle = self.rlock, False, False
        try:
            mine = lock.acquire(False) or (not self.helping and self._try_to_acquire())
            if mine and self._prepare():
                if self.hear_others(event):
                    next_end = self._view.ended + 1
                    goal = min(goal, next_end) if goal >= 0 else next_end
                if not is_over():
                    code = self.help(slot=slot, ended=goal, rest_ns=rest_ns)
                    is_idle = code == L.TIMED_OUT
        finally:
            try:  # noqa: SIM105 (a signal could be handled on the way into a function of Python)
                lock.release()
            except RuntimeError:  # another thread has the lock
                pass
        if mine:
            self.let_others_first()
        else:
            if not self.shared:
                self._want(1)
            is_idle = not event.acquire(timeout=rest_ns / 1e9)
        if is_idle and rest_ns:
            self._look()

    def hear_others(self, event: Any = None) -> bool:
        """Notice, with the lock, who comes to wait or to want it; say whether others wait for calls."""
        self._want(0)
        self.shared = any(one is not event for one in self._events)
        return self.shared

    def help(
        self, *, slot: int = L.STAY, ended: int = -1, live: int = -1, rest_ns: int = PARK_NS
    ) -> int:
        """Run passes, as the Orch thread, for at most PARK_NS or until a goal is reached."""
        self.helping = True
        try:
            self._heed_queue()
            help, slice_ns = self._kernels.help_scheduler, min(rest_ns, PARK_NS)
            return int(help(self._mem, live, ended, -1, slot, slice_ns))
        finally:
            self.helping = False

    def _heed_queue(self) -> None:
        """Leave soon if somebody was in the queue before it could be seen that this thread helps."""
        free = False
        try:
            free = self._queue.acquire(False)
        finally:
            try:  # noqa: SIM105 (a signal could be handled on the way into a function of Python)
                self._queue.release()
            except RuntimeError:  # another thread is in the queue
                pass
        if not free and self._comes:
            self._want(1)

    def _try_to_acquire(self) -> bool:
        """Take the lock unless another thread has it that will notify this one; say whether it was taken.

        A thread that has the lock without helping is in the queue.
        """
        with self.queue:
            self._comes = False  # this one only looks
            return bool(self.rlock.acquire(False))

    def let_others_first(self) -> None:
        """Let those who wait for calls look again, and those who want the lock have it."""
        self.notify()
        if not self._is_mine():
            with self._queue:
                self._comes = False  # this one only waits for them

    def notify(self) -> None:
        for event in self._events[:]:
            with suppress(RuntimeError):  # it was set already
                event.release()
