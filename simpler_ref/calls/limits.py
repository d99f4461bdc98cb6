"""Time limits of tasks, in their workers: a timer of the system ends the process of a call.

So a limit holds whatever the task does, also in native code that keeps the interpreter's lock, and
whatever the program does meanwhile. The worker stops the timer itself, so no later call is hit.

Meanwhile the process leads a group of its own, in which is what the call starts: the fork server ends the
rest of it before it reaps the process (`fork_server.py`).

Rule     CALL-LIMIT-1
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

SIGNAL = signal.SIGRTMAX
"""Ends the process: nothing else sends it, and nothing in a worker handles it."""
MOST_S = 1e9
_SIGEV_SIGNAL = 0


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Times(ctypes.Structure):
    _fields_ = (
        ("again_s", ctypes.c_long),
        ("again_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


class Timer:
    """A timer that ends this process; a process forked from it has none."""

    def __init__(self) -> None:
        signal.signal(SIGNAL, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [SIGNAL])
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "timer_create"):  # glibc before 2.34
            library = ctypes.CDLL("librt.so.1", use_errno=True)
        self._set = library.timer_settime
        self._set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._id = ctypes.c_void_p()
        self._group = os.getpgrp()
        event = _Event(signo=SIGNAL, notify=_SIGEV_SIGNAL)
        if library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "no timer for the time limit of a task")

    def start(self, seconds: float) -> None:
        """End this process after some time, with what it starts until then, unless `stop` comes first."""
        self._join(0)
        s, ns = divmod(max(1, int(seconds * 1e9)), 10**9)
        self._set(self._id, 0, ctypes.byref(_Times(s=s, ns=ns)), None)

    def stop(self) -> None:
        """Let the process go on."""
        self._set(self._id, 0, ctypes.byref(_Times()), None)
        self._join(self._group)

    @staticmethod
    def _join(group: int) -> None:
        with suppress(OSError):  # the task has made a session, or the group is gone
            os.setpgid(0, group)


@functools.cache
def _timer() -> Timer:
    return Timer()


def within(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ends this process if it takes longer."""
    timer = _timer()

    def limited(*args: Any, **kwargs: Any) -> Any:
        timer.start(seconds)
        try:
            return function(*args, **kwargs)
        finally:
            timer.stop()

    return limited
