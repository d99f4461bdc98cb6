"""What an engine does at a moment, for people.

    words of the engine ──► EngineSnapshot ───► `Worker.top()`, its command, SIGQUIT   workers/top.py
    tasks, as `orch.ring` has them ─────────┬─► what waits for what; also on SIGQUIT   `waiting_tasks`
                                            └─► why a ring stays full                  `ring_cycle`
    what was noted of a failure ──────────────► the story in an error                  workers/failures.py

Everything is read while the engine runs on: nothing is changed, no lock is taken, and a task that ends
meanwhile may be left out.

Rule     SEE-HANG-1, -2; SEE-TOP-1
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ..model.enums import TaskState
from .introspection import RingView, mib
from .memory import Engine
from .view.activity import Running, count_tasks, running
from .view.mailbox import MailboxView
from .view.slots import Names, TaskView, group_of, unfinished

MOST_TOLD = 8
"""Tasks that a text describes."""
_UNFINISHED = (TaskState.PENDING, TaskState.READY, TaskState.RUNNING)


class AtWorker(NamedTuple):
    """What a worker has to do."""

    given: int
    """How many tasks it was sent that are not collected."""
    named: int
    """How many ready tasks wait for just this worker."""
    running: Running | None
    """The one that it runs."""


@dataclass(frozen=True, slots=True)
class RingRow:
    """What is in use of a heap ring: by how many tasks, how many bytes of its size."""

    tasks: int
    used: int
    size: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What an engine does; counts of tasks are those of the run or of the calls."""

    ended: int
    pushed: int
    """Tasks submitted in all runs, without buffers."""
    next_task_id: int
    pending: int
    """Tasks that wait for other tasks."""
    ready: int
    """Tasks that wait for a free worker."""
    live: int
    window: int
    workers: tuple[AtWorker, ...]
    rings: tuple[RingRow, ...]

    @classmethod
    def of(cls, engine: Engine) -> EngineSnapshot:
        """Look at an engine; the time it takes grows with the number of live tasks."""
        view, ended = engine.view, engine.view.ended  # first: it is not above the others then
        counts = count_tasks(engine.mem)
        boxes = [MailboxView(engine, worker) for worker in range(view.workers)]
        rings = [view.ring(number) for number in range(view.ring_count)]
        return cls(
            ended=ended,
            pushed=view.pushed,
            next_task_id=view.next_task_id,
            pending=counts.pending,
            ready=counts.ready,
            live=view.live,
            window=view.window,
            workers=tuple(
                AtWorker(box.given, named, running(engine.mem, box.start))
                for box, named in zip(boxes, counts.named, strict=True)
            ),
            rings=tuple(
                RingRow(tasks, max(0, ring.top - ring.tail), ring.size)
                for tasks, ring in zip(counts.rings, rings, strict=True)
            ),
        )


# ---------------------------------------------------------------- who waits for what
def waiting_tasks(engine: Engine, names: Names) -> list[str]:
    """Say of the oldest tasks that have not ended what they do or wait for.

    Nothing if all of them run.
    """
    looks, ids = RingView(engine, names), unfinished(engine.mem)
    found = [one for one in _looks(looks, ids[:MOST_TOLD]) if one.state in _UNFINISHED]
    if len(ids) <= MOST_TOLD and all(one.state == TaskState.RUNNING for one in found):
        return []
    lines = [f"{_called(one)} is {one.state.name}{_reason(engine, looks, one)}" for one in found]
    if len(ids) > MOST_TOLD:
        lines.append(f"and {len(ids) - MOST_TOLD} more")
    return lines


def ring_cycle(engine: Engine, names: Names, depth: int) -> list[str]:
    """Say why the oldest task of a full ring holds its memory, and what would have to happen.

    `depth` is that of the open scope, from 0. The orchestration function waits for room meanwhile.
    """
    view, looks = engine.view, RingView(engine, names)
    number = min(max(0, depth), view.ring_count - 1)
    for oldest in _looks(looks, [view.task_of(slot)[0] for slot in view.oldest_first(number)[:1]]):
        size = f" of {mib(oldest.slab.nbytes)}" if oldest.slab else ""
        what = f"ring {number}: the oldest memory{size} is that of {_called(oldest)}"
        lines = [f"{what}, {oldest.state.name}"]
        if oldest.state in _UNFINISHED:
            return [*lines, f"it must end first{_reason(engine, looks, oldest)}"]
        for one in _looks(looks, oldest.consumers[:MOST_TOLD]):
            state = f"is {one.state.name}{_reason(engine, looks, one)}"
            lines.append(f"it is kept for {_called(one)}, which {state}")
        if oldest.fanout_total + 1 - oldest.fanout_released > len(oldest.consumers):
            lines.append(
                "it is kept by its scope, which is open: a cycle, since that ends only when the "
                "orchestration function goes on, which waits for room in this ring"
            )
        return lines
    return []


def _looks(looks: RingView, tasks: Sequence[int]) -> list[TaskView]:
    """Return a look at each task that has not gone."""
    found = []
    for task in tasks:
        with suppress(KeyError):
            found.append(looks.slot_state(task))
    return found


def _called(one: TaskView) -> str:
    return f"task {one.task_id} ({'buffer' if one.callable is None else one.callable})"


def _reason(engine: Engine, looks: RingView, one: TaskView) -> str:
    """Say what a task waits for, or where it runs."""
    if one.state == TaskState.RUNNING:
        return f" on {one.worker}"
    if one.state == TaskState.READY:
        size, kind = group_of(engine.mem, one.task_id)
        if not size:
            return ": it waits for a free worker"
        pool = engine.view.pool(kind)
        free = sum(engine.view.given(worker) == 0 for worker in pool)
        return (
            f": it is a group of {size}, and {free} of the {len(pool)} workers of its pool are free"
        )
    live = [two for two in _looks(looks, one.producers) if two.state in _UNFINISHED]
    named = [f"{_called(two)} ({two.state.name})" for two in live]
    return f": it waits for {listed(named)}" if named else ""


def listed(named: Sequence[str], number: int = 0, most: int = MOST_TOLD) -> str:
    """Return a list of names, of which there may be more than are named."""
    number = max(number, len(named))
    shown = [*named[:most]]
    if number > len(shown):
        shown.append(f"{number - len(shown)} more")
    return ", ".join(shown)
