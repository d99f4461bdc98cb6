"""The lock of the thread that acts as the Orch thread of a stream.

Rule     CALL-STREAM-2
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from ..engine.memory import Engine


class OrchLock:
    """One thread at a time has the lock; in a block ``with mutex.queue, mutex.lock:`` it has.

    A thread with the lock may wait for calls and run the Scheduler's passes meanwhile: it *helps*. It
    has left the queue before that, and ends it as soon as another one wants the lock: this one is in the
    queue before it looks whether somebody helps, and the one that is going to help says so before it
    looks at the queue. So one of them sees the other. Who has helped goes through the queue before it
    takes the lock again: otherwise it would be faster than a thread that it has just woken.

    Both locks are entered and left without a function of Python, in which a signal handler could raise:
    so an exception leaves nobody with the lock. The handler itself may take the lock of its thread again.

    Attributes
    ----------
    rlock : threading.RLock
        Its owner has the lock.
    helping : bool
        A thread helps.
    shared : bool
        It stops helping whenever a call ends, since others wait for calls, too.
    """

    def __init__(self, engine: Engine) -> None:
        self._mem, self._want = engine.mem, engine.kernels.want_orch
        self._queue = threading.RLock()
        self._events: list[Any] = []
        self.rlock: Any = threading.RLock()
        self._is_mine = self.rlock._is_owned  # type: ignore[attr-defined]
        self.helping = self.shared = self._comes = False

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
            self._want(self._mem, 1)
        return self.rlock

    # ------------------------------------------------------------ wait
    def register(self) -> Any:
        """Return an event for a thread that is going to wait for calls: a lock, whose release sets it."""
        event = threading.Lock()
        event.acquire()
        self._events.append(event)
        return event

    def forget(self, event: Any) -> None:
        """Forget an event: its thread waits no more."""
        with suppress(ValueError):
            self._events.remove(event)

    def prepare(self, event: Any = None) -> bool:
        """Get ready, with the lock, to help; say whether others wait for calls, too.

        Who comes to wait or to want the lock from now on is noticed.
        """
        self._want(self._mem, 0)
        self.shared = any(one is not event for one in self._events)
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

    def try_to_acquire(self) -> bool:
        """Take the lock unless another thread has it that will notify this one; say whether it was taken.

        A thread that has the lock without helping is in the queue.
        """
        with self.queue:
            self._comes = False  # this one only looks
            return bool(self.rlock.acquire(False))

    def sleep(self, event: Any, timeout_s: float) -> bool:
        """Wait until the thread that helps has seen a call end, or stops; say whether it has."""
        if not self.shared:
            self._want(self._mem, 1)
        return bool(event.acquire(timeout=timeout_s))

    def let_others_first(self) -> None:
        """Let those who wait for calls look again, and those who want the lock have it."""
        self.notify()
        if not self._is_mine():
            with self._queue:
                self._comes = False  # this one only waits for them

    def notify(self) -> None:
        """Let those who wait for calls look again."""
        for event in self._events[:]:
            with suppress(RuntimeError):  # it was set already
                event.release()
