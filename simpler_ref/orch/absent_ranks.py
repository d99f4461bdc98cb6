"""Ranks of a communication domain that others wait for, and that will not come.

Once a run has failed or is cancelled, nothing more is submitted. A rank then comes only if a task of it
runs or may still start: one whose producer has failed, that was cancelled or that was never submitted
does not. If all ranks that run sleep in waits, and none was woken between two looks, they wait for those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine.memory import Engine
from ..engine.view.mailbox import MailboxView
from ..engine.view.slots import UnfinishedTask, unfinished_next_level

if TYPE_CHECKING:
    from ..native_chip.domains import DomainMemory
    from .domains import ChipDomainContext

Woken = list[tuple[int, int]]
"""The chips whose ranks run, and how often each was woken."""


class AbsentRanks:
    """One look at the tasks of a run that has failed or is cancelled, by the Orch thread.

    Rule     WM-DOMAIN-15
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cancelled = engine.view.is_cancelled
        self._tasks: dict[int, list[UnfinishedTask]] = defaultdict(list)
        """Those that were given a scalar, a `device_ctx` perhaps."""
        for task in unfinished_next_level(engine.mem):
            for bits in set(task.scalars):
                self._tasks[bits].append(task)

    def look(
        self, memory: DomainMemory, contexts: Mapping[int, ChipDomainContext], before: Woken
    ) -> tuple[Woken, str | None]:
        """Return what the next look has to know, and which ranks will not come, None if all may.

        `contexts` are those of the domain's chips, and `before` is what the last look has returned.
        """
        running = [chip for chip, one in contexts.items() if self._runs(chip, one.device_ctx)]
        absent = [chip for chip in contexts if chip not in running]
        woken = [(chip, memory.sleeps(contexts[chip].domain_rank)) for chip in running]
        is_over = not any(self._may_start(chip, contexts[chip].device_ctx) for chip in absent)
        if not absent or not is_over or any(times < 0 for _, times in woken):
            return [], None
        if not woken or woken != before:
            return woken, None
        names = ", ".join(f"rank {contexts[chip].domain_rank} (chip {chip})" for chip in absent)
        return woken, f"{names} will not come: no task of it runs or can start any more"

    def _runs(self, chip: int, device_ctx: int) -> bool:
        """Say whether a chip runs a task of its rank; a member may have ended before its group."""
        oldest = MailboxView(self._engine, chip).oldest_task()
        return oldest is not None and any(
            one.is_running and one.task_id == oldest[0] for one in self._tasks.get(device_ctx, ())
        )

    def _may_start(self, chip: int, device_ctx: int) -> bool:
        """Say whether a chip will get a task of its rank, or has one behind another task."""
        return not self._cancelled and any(
            not one.is_running or self._engine.view.given(chip) > 1
            for one in self._tasks.get(device_ctx, ())
        )
