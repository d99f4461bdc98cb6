"""What a task may leave behind in its worker, kept away from the tasks that follow.

A task is foreign code. It may fork, and its child then comes back where only the worker belongs. It may
install a signal handler, a timer, a trace function or a low recursion limit, and what these raise may
come when the task has ended. The loop of a worker knows at every moment what it owes to whom; here is
how it tells the processes apart, and how it becomes again what it was at its start.
"""

from __future__ import annotations

# the module `signal` makes an enum of every number, which costs more than the calls
import _signal  # type: ignore[import-not-found]
import ctypes
import functools
import logging
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any, NoReturn

from ..jit.kernel import INTERPRETED
from ..system.signals import signals_blocked

log = logging.getLogger("simpler_ref")

MOST_TRIALS = 100
"""Exceptions in a row between two tasks after which a worker gives up: something lasting is wrong."""

_NUMBERS = tuple(
    int(number) for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)
)
"""The signals for which there can be a handler; real-time ones do not matter here."""
_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, which the module mmap does not name


def flush_output() -> None:
    """Write out what Python has buffered for the terminal, if there is one."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, absent, or somebody's own object
            stream.flush()


def keep_result(kernel: Callable[..., int]) -> Callable[..., int]:
    """Return a kernel whose result a signal handler that raises at its end cannot take away.

    A compiled one is that already, for whoever takes its result from an iterator. Of an interpreted one
    the next call returns the result that was not taken, and does nothing else.
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
    """Tells a worker's process from one that a task has forked, however it has.

    Attributes
    ----------
    here : ctypes.c_bool
        True in the worker's process and False in any other: it stands in a page that a fork wipes. ``if
        not here`` costs 5 ns, a thirtieth of asking the system for the process's number.

    Notes
    -----
    Rule     WM-LEFT-1
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
    """End a process that a task has forked, as Python ends one, and touch nothing that is the worker's.

    Rule     WM-LEFT-1
    """
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


# ---------------------------------------------------------------- what a task has changed
class Beginning:
    """What a worker had at its start and a task can change so that it reaches other tasks.

    In a thread it is what belongs to the thread alone: signals are the whole process's.

    Attributes
    ----------
    hold : Callable[[], object]
        Let no signal in before `restore`. It is not Python code, so nothing comes before it has taken
        effect.

    Notes
    -----
    Rule     WM-LEFT-2
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
        """Go back to what was at the start; what has come and waits is forgotten."""
        self.hold()
        if sys.gettrace() is not self._trace:
            sys.settrace(self._trace if callable(self._trace) else None)
        if sys.getprofile() is not self._profile:  # that of cProfile can only be left where it is
            sys.setprofile(self._profile if callable(self._profile) else None)
        if self._in_thread:
            return
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            _signal.setitimer(timer, 0)
        if sys.getrecursionlimit() < self._recursion:
            sys.setrecursionlimit(self._recursion)
        for number in self._changed():
            _signal.signal(number, _signal.SIG_IGN)
            _signal.signal(number, self._handlers[number])
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _changed(self) -> Iterator[int]:
        for number, handler in self._handlers.items():
            if handler is not None and _signal.getsignal(number) is not handler:
                yield number

    def blame(self, exception: BaseException) -> None:
        """Add to an exception whose handler has raised it, if that is one which a task has installed.

        It may have been another task: nobody knows whom a signal was meant for.

        Rule     WM-LEFT-4
        """
        if not hasattr(exception, "add_note"):  # Python 3.10
            return
        installed: dict[CodeType, str] = {}
        for number in self._changed():
            code = getattr(_signal.getsignal(number), "__code__", None)
            if code is not None:
                installed[code] = f"the handler of {signal.Signals(number).name}"
        if not installed:
            return
        trace = exception.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if code in installed:
                exception.add_note(
                    f"It was raised by {installed[code]}, {code.co_name} ({code.co_filename}, line "
                    f"{code.co_firstlineno}), which this task or an earlier one of the same worker has "
                    "installed."
                )
                return
            trace = trace.tb_next

    def contain(self, exception: BaseException, worker: str, before: str) -> None:
        """Deal with what was raised between two tasks: no task fails, and it shall not come again.

        `before` is the callable of the last task, for the message.

        Rule     WM-LEFT-2
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
