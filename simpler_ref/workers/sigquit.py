"""SIGQUIT: a report of what the open Workers of this process do and wait for.

The handler is there while a Worker is open that was started on the main thread, and only if the program
has none of its own, of Python or of C.

Rule     SEE-HANG-4
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from ..system.signals import do_nothing

log = logging.getLogger("simpler_ref")

TWICE_S = 1.0
"""A second signal within this time ends the program."""


class _Reporting(Protocol):
    pid: int

    def report(self) -> str: ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_last = float("-inf")


def has_own_handler() -> bool:
    """Say whether the program handles or ignores SIGQUIT, also below Python, as faulthandler does."""
    bit = 1 << signal.SIGQUIT - 1
    with open("/proc/self/status") as lines:
        masks = [line.split()[1] for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(int(mask, 16) & bit for mask in masks)


def listen(session: _Reporting) -> None:
    """Report on a Worker when SIGQUIT comes, unless the program does something else then."""
    if session in _open or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGQUIT) is not _tell:
        if has_own_handler():
            return
        signal.signal(signal.SIGQUIT, _tell)
    _open.add(session)


def leave(session: _Reporting) -> None:
    """Report no longer on a Worker; after the last one SIGQUIT is as it was."""
    global _last
    _open.discard(session)
    if not _open and threading.current_thread() is threading.main_thread():
        _give_back()
        _last = float("-inf")


def be_worker() -> None:
    """In a process that will fork workers: ignore SIGQUIT, which a terminal sends to all processes."""
    if signal.getsignal(signal.SIGQUIT) is _tell or not has_own_handler():
        signal.signal(signal.SIGQUIT, do_nothing)


def _give_back() -> None:
    if signal.getsignal(signal.SIGQUIT) is _tell:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def _tell(_number: int, _frame: object) -> None:
    """Log the reports; end the program at a second signal, or if no Worker here is open any more."""
    global _last
    mine: list[Callable[[], str]] = [one.report for one in list(_open) if one.pid == os.getpid()]
    before, _last = _last, time.monotonic()
    if not mine or _last - before < TWICE_S:
        _give_back()
        os.kill(os.getpid(), signal.SIGQUIT)
        return
    for report in mine:
        log.warning("%s", report())
