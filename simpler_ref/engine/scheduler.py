"""The Scheduler thread: a Python thread that spends its life inside one kernel without the GIL."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from ..jit import layout as L
from .memory import TIMER_NS, Engine

JOIN_TIMEOUT_S = 10.0
log = logging.getLogger("simpler_ref")


class Describes(Protocol):
    """Who can say which group waits for its workers."""

    def describe_stuck(self) -> str:
        """Return it; nothing if there is none by now."""


class Scheduler:
    """Runs scheduler passes whenever the Orch thread is not there to run them.

    The pass itself, and how the two threads share it, is `jit/schedule.py`. The kernel comes back to
    Python only to have a group that waits too long put into words.

    Rule     SCHED-PASS-2; WM-PLACE-4
    """

    def __init__(self, engine: Engine, host: Describes) -> None:
        self._engine = engine
        self._host = host
        self._thread = threading.Thread(target=self._loop, name="simpler-scheduler", daemon=True)

    def _loop(self) -> None:
        loop, mem = self._engine.kernels.scheduler_loop, self._engine.mem
        while loop(mem, TIMER_NS) == L.STUCK:
            words = self._host.describe_stuck()
            if words:
                log.warning("%s", words)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._engine.kernels.stop_scheduler(self._engine.mem)
        self._thread.join(JOIN_TIMEOUT_S)
