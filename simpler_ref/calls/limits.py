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


@functools.cache
def _timer() -> tuple[Any, ctypes.c_void_p, int]:
    """Make the timer that ends this process, which a process forked from it does not have.

    Returns what sets it, its id, and the group that the process is in.
    """
    signal.signal(SIGNAL, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [SIGNAL])
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "timer_create"):  # glibc before 2.34
        library = ctypes.CDLL("librt.so.1", use_errno=True)
    library.timer_settime.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
    )
    timer = ctypes.c_void_p()
    event = _Event(signo=SIGNAL, notify=_SIGEV_SIGNAL)
    if library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "no timer for the time limit of a task")
    return library.timer_settime, timer, os.getpgrp()


def _join(group: int) -> None:
    with suppress(OSError):  # the task has made a session, or the group is gone
        os.setpgid(0, group)


def within(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ends this process, with what it starts until then, if it takes longer."""
    set_timer, timer, group = _timer()
    s, ns = divmod(max(1, int(seconds * 1e9)), 10**9)
    limit, never = _Times(s=s, ns=ns), _Times()

    def limited(*args: Any, **kwargs: Any) -> Any:
        _join(0)
        set_timer(timer, 0, ctypes.byref(limit), None)
        try:
            return function(*args, **kwargs)
        finally:
            set_timer(timer, 0, ctypes.byref(never), None)
            _join(group)

    return limited
