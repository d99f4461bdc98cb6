"""Protects code from signal handlers that raise, as that of Ctrl-C does.

Rule     ORCH-RUN-8
"""

from __future__ import annotations

# the module `signal` makes an enum of every number, which costs more than the calls
import _signal  # type: ignore[import-not-found]
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_NUMBERS = tuple(sorted(map(int, signal.valid_signals() - _FAULTS), reverse=True))
"""Those that come from outside; Ctrl-C comes last."""


@contextmanager
def signals_blocked() -> Iterator[set[int]]:
    """Let no signal handler run on this thread; threads started here never run one.

    Yields the mask that is restored afterwards. ``@signals_blocked()`` does so for a function.

    The mask is not enough: another thread of the process, for instance of a numeric library, may receive
    the signal, and Python then runs the handler on the main thread. So handlers are also set aside, and
    signals that came meanwhile are raised again at the end.
    """
    mask: set[int] = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        _signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
        if threading.current_thread() is not threading.main_thread():
            yield mask
            return
        came: list[int] = []
        try:
            _set_aside(lambda number, _frame: came.append(number))
            yield mask
        finally:
            put_handlers_back()
            for number in came:
                signal.raise_signal(number)  # it is delivered when the mask is restored
    finally:
        _signal.pthread_sigmask(signal.SIG_SETMASK, mask)


Failures = tuple[BaseException, ...]
MOST_FAILURES = 100
"""How many exceptions `until_done` goes on after: many more than signals raise."""
MOST_SIGNALS = 5
"""The same where each attempt may take long."""


def until_done(
    act: Callable[[Failures], None], failures: Failures, pid: int, most: int = MOST_FAILURES
) -> Failures:
    """Call `act` with the exceptions raised so far, until it raises none; return all of them.

    A signal handler may raise while an earlier signal is handled: handlers run in calls, and at a loop's
    jump backwards, which no `try` inside the loop covers. Hence the second loop. Only a third signal at
    that point escapes. The last failure is raised, and nothing is called, in a process forked meanwhile,
    which is not `pid`, and after as many as `most`: an error that comes each time must not go on forever.
    """
    try:
        while True:
            try:
                while os.getpid() == pid and len(failures) < most:
                    try:
                        act(failures)
                        for earlier, later in pairwise(failures):
                            later.__context__ = earlier
                        return failures
                    except BaseException as error:
                        failures = (*failures, error)
                break
            except BaseException as error:
                failures = (*failures, error)
        raise failures[-1]
    finally:
        del failures  # they refer to this frame


_aside: list[dict[int, Any]] = []
"""Signal handlers set aside, by number; the innermost `signals_blocked` is the last."""


def _set_aside(note: Callable[[int, Any], None]) -> None:
    handlers: dict[int, Any] = {}
    _aside.append(handlers)
    for number in _NUMBERS:
        handler = _signal.getsignal(number)
        if callable(handler):
            handlers[number] = handler
            _signal.signal(number, note)


def put_handlers_back(all_of_them: bool = False) -> None:
    """Undo the last `_set_aside`; in a process just forked, all of them."""
    raised: BaseException | None = None
    while _aside:
        for number, handler in _aside.pop().items():
            while _signal.getsignal(number) is not handler:
                try:
                    _signal.signal(number, handler)
                except BaseException as error:  # by a handler just restored
                    raised = error
        if not all_of_them:
            break
    if raised is not None:
        raise raised


def do_nothing(_number: int, _frame: object) -> None:
    """Handle a signal that is for the program, in its workers.

    Unlike `signal.SIG_IGN` it does not reach the programs that tasks start.
    """


# ---------------------------------------------------------------- exceptions in other threads
class _Nothing(BaseException):
    """Raised by this thread in itself, and caught."""


def raise_in(thread: threading.Thread, exception: type[BaseException]) -> None:
    """Raise an exception in a thread, if it runs."""
    _set(thread.ident, ctypes.py_object(exception))


def take_back(thread: threading.Thread) -> None:
    """Undo `raise_in`, if the thread has not raised the exception.

    The interpreter has a flag for pending exceptions, which it clears when one is raised, not when it is
    taken back. In a process with that flag, and in those it forks, Python 3.11 hangs in the first
    function that is traced, under a debugger for instance. So one is raised here.
    """
    _set(thread.ident, None)
    with signals_blocked():
        try:
            _set(threading.get_ident(), ctypes.py_object(_Nothing))
            for _ in range(1000):  # it is raised at a jump backwards at the latest
                pass
        except _Nothing:
            pass


def _set(thread: int | None, exception: object) -> None:
    if thread is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
