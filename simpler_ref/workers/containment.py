"""Containment: keeps what a task leaves behind in its worker away from the tasks that follow.

A task is foreign code. It may fork, and its child then returns into the worker's loop. It may install a
signal handler, a timer, a trace function or a low recursion limit, which may raise after the task has
ended. Here the loop distinguishes the processes, and restores the worker's state of its start.

Rule     WM-LEFT-1, WM-LEFT-2
"""

from __future__ import annotations

# the module `signal` makes an enum of every number, which costs more than the calls
import _signal  # type: ignore[import-not-found]
import atexit
import ctypes
import functools
import logging
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import process, util
from typing import Any, NoReturn

from ..jit.kernel import INTERPRETED
from ..system.signals import signals_blocked

log = logging.getLogger("simpler_ref")

MOST_TRIALS = 100
"""Exceptions in a row between two tasks after which a worker gives up: the cause is permanent."""

_NUMBERS = tuple(
    int(number) for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)
)
"""The signals that can have a handler, except real-time ones."""
_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, which the module mmap does not name


def flush_output() -> None:
    """Flush stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, absent, or a user's own object
            stream.flush()


def keep_result(kernel: Callable[..., int]) -> Callable[..., int]:
    """Return a kernel whose result is not lost if a signal handler raises at its end.

    The result of a compiled one is safe if it is taken from an iterator. For an interpreted one, the next
    call only returns the result that was not taken.
    """
    if not INTERPRETED:
        return kernel
    results: list[int] = []

    def call(*args: Any) -> int:
        if not results:
            with signals_blocked():
                results.append(kernel(*args))
        return results.pop()

    return call


# ---------------------------------------------------------------- children of a task
class Origin:
    """Distinguishes a worker's process from one that a task has forked, by any means.

    Attributes
    ----------
    here : ctypes.c_bool
        True in the worker's process and False in any other: it is in a page that a fork wipes. ``if not
        here`` costs 5 ns, a thirtieth of a call to `os.getpid`.
    """

    def __init__(self) -> None:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_WIPE_ON_FORK)
        self.here = ctypes.c_bool.from_buffer(page)
        self.here.value = True

    def require(self, exception: BaseException | None = None) -> None:
        """End this process if it is the child of a task: the task's copy has returned, or raised."""
        if not self.here:
            end_child(exception)


def end_child(exception: BaseException | None) -> NoReturn:
    """End a process that a task has forked, as Python does, without touching anything of the worker."""
    status = 1
    try:
        if exception is None:
            status = 0
        elif not isinstance(exception, SystemExit):
            sys.excepthook(type(exception), exception, exception.__traceback__)
        elif exception.code is None or isinstance(exception.code, int):
            status = (exception.code or 0) & 0xFF
        else:
            print(exception.code, file=sys.stderr)
        flush_output()
    finally:
        os._exit(status)


# ---------------------------------------------------------------- what a worker does when it ends
def forget_endings() -> None:
    """Leave to the program what it wants done at its own end, and to end its own children."""
    atexit._clear()
    process._children = set()  # type: ignore[attr-defined]
    util._finalizer_registry.clear()  # type: ignore[attr-defined]
    util._run_after_forkers()  # type: ignore[attr-defined]
    if isinstance(
        threading.main_thread(), threading._DummyThread
    ):  # Python 3.11 cannot end with it
        threading._main_thread = threading._MainThread()  # type: ignore[attr-defined]


def end_as_python_does() -> None:
    """Do what Python does at the end of a process: join threads and children, call atexit."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    util._exit_function()  # type: ignore[attr-defined]
    flush_output()


# ---------------------------------------------------------------- what a task has changed
class Beginning:
    """The state at a worker's start that a task can change with effect on other tasks.

    In a thread only the thread's own state: signals belong to the process.

    Attributes
    ----------
    hold : Callable[[], object]
        Block all signals until `restore`. It is not Python code, so no handler runs before it has taken
        effect.
    """

    def __init__(self, in_thread: bool) -> None:
        self._in_thread = in_thread
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        self._recursion = sys.getrecursionlimit()
        self._handlers: dict[int, Any] = {}
        self.hold: Callable[[], object] = bool
        if not in_thread:
            self._handlers = {number: _signal.getsignal(number) for number in _NUMBERS}
            self._mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
            self.hold = functools.partial(_signal.pthread_sigmask, signal.SIG_BLOCK, _NUMBERS)

    def restore(self) -> None:
        """Restore the state of the start; drop pending signals."""
        self.hold()
        if sys.gettrace() is not self._trace:
            sys.settrace(self._trace if callable(self._trace) else None)
        if sys.getprofile() is not self._profile:  # that of cProfile cannot be replaced
            sys.setprofile(self._profile if callable(self._profile) else None)
        if self._in_thread:
            return
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            _signal.setitimer(timer, 0)
        if sys.getrecursionlimit() < self._recursion:
            sys.setrecursionlimit(self._recursion)
        for number, handler in self._handlers.items():
            if handler is not None and _signal.getsignal(number) is not handler:
                _signal.signal(number, _signal.SIG_IGN)
                _signal.signal(number, handler)
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def contain(self, exception: BaseException, worker: str, before: str) -> None:
        """Log an exception raised between two tasks, fail no task, and remove its cause.

        `before` is the callable of the last task, for the message.
        """
        self.restore()
        if self._in_thread and isinstance(exception, SystemExit):
            return  # meant for a task that has ended
        where = f"{worker} (pid {os.getpid()})"
        log.warning(
            "%s: %s was raised between two tasks, by something that a task has left behind; the last "
            "one was %s. No task failed for it, and the worker has the signal handlers, timers and "
            "trace functions of its start again",
            where,
            type(exception).__name__,
            before or "none",
            exc_info=exception,
        )
