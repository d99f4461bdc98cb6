"""The tasks of a Worker, as those see them who give memory out again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..engine.memory import PARK_NS, Engine
from ..jit import layout as L

if TYPE_CHECKING:
    from .life import Life

OTHERS_S = 0.001
"""How long a thread sleeps that is not the one whose run it waits for."""


class MemoryUsers:
    """The tasks that may use memory which the program has dropped.

    Attributes
    ----------
    patience_s : float
        How long to wait for room.

    Notes
    -----
    Rule     ORCH-ARRAY-4
    """

    def __init__(self, life: Life, engine: Engine) -> None:
        self._life, self._view = life, engine.view
        self._help, self._mem = engine.kernels.help_scheduler, engine.mem
        self.patience_s = life.options.alloc_timeout_s

    @property
    def submitted(self) -> int:
        """How many tasks were ever submitted."""
        return self._view.ever_submitted

    def unended(self) -> Sequence[int] | None:
        """Return the numbers of those that have not ended; None if all count until the end of the run.

        What endpoints have made of the program's memory comes home at the end of a run.
        """
        if self._life.running and self._life.endpoints is not None:
            return None
        return self._view.unended()

    def wait(self) -> bool:
        """Wait a while until a task has ended; return False if that is of no use."""
        life, unended = self._life, self.unended()
        if unended is None or not len(unended):
            return False
        ended = self._view.ended
        if not life.running:
            if life.stream is None:
                return False
            life.stream.wait_for_end(ended, PARK_NS, lambda: False)
        elif life.is_in_own_run():
            if self._help(self._mem, -1, ended + 1, -1, PARK_NS) in (L.TIMED_OUT, L.INTERRUPTED):
                life.live().look()
        else:
            time.sleep(OTHERS_S)
        return True
