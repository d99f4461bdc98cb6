"""Messages while a run waits: which tasks run where, what a group waits for, what the user can do.

Everything here is read while others write. A task that ends meanwhile may be left out, or named although
it has just ended; only messages depend on that.

Rule     ORCH-TELL-1, SEE-HANG-1, WM-LEFT-2, WM-PLACE-4
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator

from ..engine.introspection import listed, waiting_tasks
from ..engine.memory import Engine
from ..engine.view.mailbox import MailboxView
from ..engine.view.slots import Names
from ..jit import layout as L
from .manager import WorkerManager

log = logging.getLogger("simpler_ref")

STALL_S = 30.0
"""Seconds without the end of a task after which it is told what runs and what waits."""
_NOBODY_WAITED_S = 2.0
"""Seconds without a look after which what was seen before says nothing: nobody has waited meanwhile."""
OF_RUN = "Ctrl-C cancels the run, a second one ends the task"
OF_CALLS = "@task(timeout=…) ends calls that take too long"


class Watch:
    """The running tasks, for messages.

    `names` knows what messages call callables and workers.
    `stall_s` is after how long without the end of a task it tells of a stall; None: STALL_S.
    """

    def __init__(
        self, engine: Engine, manager: WorkerManager, names: Names, stall_s: float | None = None
    ) -> None:
        self._stall_s = STALL_S if stall_s is None else stall_s
        self._reported = False
        self._engine = engine
        self._manager = manager
        self._names = names
        self._told_interrupt = False
        self._done = -1
        self._since = self._looked = 0.0

    def look(self, failure: BaseException | None = None, remedy: str = OF_RUN) -> None:
        """Log the messages that are due; a waiting thread calls this about ten times a second.

        `failure` is the exception that has cancelled the run, if any, and `remedy` what ends a task.
        """
        if failure is not None and not isinstance(failure, Exception) and not self._told_interrupt:
            self._told_interrupt = True
            again = "Ctrl-C again" if isinstance(failure, KeyboardInterrupt) else "Ctrl-C"
            self.tell_running(type(failure).__name__, again)
        now, before = time.monotonic(), self._looked
        done, self._looked = self._engine.view.ended, now
        if done != self._done or now - before > _NOBODY_WAITED_S:
            self._done, self._since, self._reported = done, now, False
        elif now - self._since >= self._stall_s and not self._reported:
            self._reported = True
            self._report(remedy)

    def tell_running(self, why: str, remedy: str) -> None:
        """Log what is waited for although all else is cancelled, and what to press so that it ends."""
        running = list(self.running())
        if not running:
            return
        count = f"{len(running)} running task{'s' * (len(running) > 1)}"
        ends = "kills their workers"
        if self._manager.in_threads:
            ends = "ends them at their next line of Python"
        log.warning(
            "%s: waiting for %s: %s; %s %s",
            why,
            count,
            listed([f"{task} on {name}" for _, task, name in running]),
            remedy,
            ends,
        )

    def _report(self, remedy: str) -> None:
        """Log what runs and what waits for what, once until a task ends."""
        running = list(self.running())
        lines = [f"{task} is RUNNING on {name}" for _, task, name in running]
        if waiting := waiting_tasks(self._engine, self._names):
            lines = [*dict.fromkeys([*lines, *waiting]), self.stuck_group()]
        if running:
            pid = self._manager.pids.get(running[0][0], os.getpid())
            lines.append(f"`py-spy dump --pid {pid}` shows what a worker does; {remedy}")
        if lines:
            text = "\n  ".join(filter(None, lines))
            log.warning("no task has ended for %g s:\n  %s", self._stall_s, text)

    # ------------------------------------------------------------ running tasks
    def running(self) -> Iterator[tuple[int, str, str]]:
        """Yield each worker that has tasks, and what messages call the oldest of these and the worker."""
        names = self._names
        for worker in range(len(self._manager.kinds)):
            oldest = MailboxView(self._engine, worker).oldest_task()
            if oldest and worker not in self._manager.dead:
                task, index, key = oldest
                called = f"task {task} ({names.callable_name(index, key)})"
                yield worker, called, names.worker_name(worker)

    def ran_before(self, worker: int) -> str:
        """Name the last task that a worker ended before it died, if there is any.

        An earlier task may be the cause of a death.
        """
        found = MailboxView(self._engine, worker).ran_last()
        if not found:
            return ""
        task, index = found
        return f"; before that it had run task {task} ({self._names.callable_name(index, L.NONE)})"

    # ------------------------------------------------------------ groups
    def stuck_group(self) -> str:
        """Return a message about the group that has waited too long, if there is one."""
        group = self._engine.view.stuck_group()
        if group is None:
            return ""
        busy = [
            f"{name} with {task}" for worker, task, name in self.running() if worker in group.pool
        ]
        called = self._names.callable_name(group.callable, L.NONE)
        return (
            f"task {group.task} ({called}), a group of {group.size}, has "
            f"waited {group.limit_ns / 1e9:g} s for its workers; busy are "
            f"{', '.join(busy) or 'none'}. It starts when enough of them have ended; a larger "
            "pool lets it start earlier"
        )
