"""The Scheduler thread: a Python thread that spends its life inside one kernel without the GIL."""

from __future__ import annotations

import threading

from .engine import TIMER_NS, Engine

JOIN_TIMEOUT_S = 10.0


class Scheduler:
    """Runs scheduler passes whenever the Orch thread is not there to run them.

    The pass itself, and how the two threads share it, is `jit/schedule.py`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = threading.Thread(
            target=engine.kernels.scheduler_loop,
            args=(engine.mem, TIMER_NS),
            name="simpler-scheduler",
            daemon=True,
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._engine.kernels.stop_scheduler(self._engine.mem)
        self._thread.join(JOIN_TIMEOUT_S)
