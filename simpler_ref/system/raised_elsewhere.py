"""Exceptions that are raised in another thread, at its next line of Python."""

from __future__ import annotations

import ctypes
import threading

from .signals import signals_blocked


class _Nothing(BaseException):
    """What this thread raises in itself, and catches."""


def raise_in(thread: threading.Thread, exception: type[BaseException]) -> None:
    """Have an exception raised in a thread, if it runs."""
    _set(thread.ident, ctypes.py_object(exception))


def take_back(thread: threading.Thread) -> None:
    """Undo `raise_in`, if the thread has not come to it.

    The interpreter notes that an exception waits for some thread, and takes the note away when one is
    raised, not when it is taken back. In a process with that note, and in those it forks, Python 3.11
    hangs in the first function that is traced, under a debugger for instance. So one is raised here.
    """
    _set(thread.ident, None)
    with signals_blocked():
        try:
            _set(threading.get_ident(), ctypes.py_object(_Nothing))
            for _ in range(1000):  # it comes before a jump backwards at the latest
                pass
        except _Nothing:
            pass


def _set(thread: int | None, exception: object) -> None:
    if thread is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
