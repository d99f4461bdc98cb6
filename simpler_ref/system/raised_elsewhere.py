"""Exceptions raised in another thread, at its next line of Python."""

from __future__ import annotations

import ctypes
import threading

from .signals import signals_blocked


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
