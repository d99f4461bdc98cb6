"""The Scheduler thread: a Python thread that runs one kernel, without the GIL.

Rule     SCHED-PASS-2; WM-PLACE-4
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..jit import layout as L
from .memory import TIMER_NS, Engine

JOIN_TIMEOUT_S = 10.0
log = logging.getLogger("simpler_ref")


class Scheduler:
    """Runs scheduler passes while the Orch thread does not.

    `jit/schedule.py` has the pass, and how the two threads share it. The kernel returns to Python only to
    warn of a group that waits too long.
    """

    def __init__(self, engine: Engine, describe_stuck: Callable[[], str]) -> None:
        self._engine = engine
        self._describe_stuck = describe_stuck
        self._thread = threading.Thread(target=self._loop, name="simpler-scheduler", daemon=True)

    def _loop(self) -> None:
        loop, mem = self._engine.kernels.scheduler_loop, self._engine.mem
        while loop(mem, TIMER_NS) == L.STUCK:
            text = self._describe_stuck()
            if text:
                log.warning("%s", text)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._engine.kernels.stop_scheduler(self._engine.mem)
        self._thread.join(JOIN_TIMEOUT_S)
