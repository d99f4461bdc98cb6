"""Who waits for what, for a run in which nothing moves.

Everything here is read while the engine runs on: a task that ends meanwhile may be left out.
"""

from __future__ import annotations

from contextlib import suppress

from .introspection import RingView, mib
from .memory import Engine
from .view.slots import Names, TaskView, group_of, unfinished

MOST_TOLD = 8
"""Tasks that a report describes."""
_UNFINISHED = ("PENDING", "READY", "RUNNING")


def waiting_tasks(engine: Engine, names: Names) -> list[str]:
    """Say of the oldest tasks that have not ended what they do or wait for.

    Nothing if all of them run.

    Rule     SEE-HANG-1
    """
    looks = RingView(engine, names)
    ids = unfinished(engine.mem)
    found = [one for one in (_look(looks, task) for task in ids[:MOST_TOLD]) if one is not None]
    found = [one for one in found if one.state.name in _UNFINISHED]  # some end meanwhile
    if len(ids) <= MOST_TOLD and all(one.state.name == "RUNNING" for one in found):
        return []
    lines = [f"{_called(one)} is {one.state.name}{_reason(engine, looks, one)}" for one in found]
    if len(ids) > MOST_TOLD:
        lines.append(f"and {len(ids) - MOST_TOLD} more")
    return lines


def ring_cycle(engine: Engine, names: Names, depth: int) -> list[str]:
    """Say why the oldest task of a full ring holds its memory, and what would have to happen.

    `depth` is that of the open scope, from 0. The orchestration function waits for room meanwhile.

    Rule     SEE-HANG-2
    """
    view = engine.view
    number = min(max(0, depth), view.ring_count - 1)
    slots = view.oldest_first(number)
    if not slots:
        return []
    looks = RingView(engine, names)
    oldest = _look(looks, view.task_of(slots[0])[0])
    if oldest is None:
        return []
    size = f" of {mib(oldest.slab.nbytes)}" if oldest.slab else ""
    lines = [
        f"ring {number}: the oldest memory{size} is that of {_called(oldest)}, {oldest.state.name}"
    ]
    if oldest.state.name in _UNFINISHED:
        return [*lines, f"it must end first{_reason(engine, looks, oldest)}"]
    for task in oldest.consumers[:MOST_TOLD]:
        consumer = _look(looks, task)
        if consumer is not None:
            state = f"is {consumer.state.name}{_reason(engine, looks, consumer)}"
            lines.append(f"it is kept for {_called(consumer)}, which {state}")
    if oldest.fanout_total + 1 - oldest.fanout_released > len(oldest.consumers):
        lines.append(
            "it is kept by its scope, which is open: a cycle, since that ends only when the "
            "orchestration function goes on, which waits for room in this ring"
        )
    return lines


def _look(looks: RingView, task: int) -> TaskView | None:
    with suppress(KeyError):  # it has ended
        return looks.slot_state(task)
    return None


def _called(one: TaskView) -> str:
    return f"task {one.task_id} ({'buffer' if one.callable is None else one.callable})"


def _reason(engine: Engine, looks: RingView, one: TaskView) -> str:
    """Say what a task waits for, or where it runs."""
    if one.state.name == "RUNNING":
        return f" on {one.worker}"
    if one.state.name == "READY":
        size, kind = group_of(engine.mem, one.task_id)
        if not size:
            return ": it waits for a free worker"
        pool = engine.view.pool(kind)
        free = sum(engine.view.given(worker) == 0 for worker in pool)
        return (
            f": it is a group of {size}, and {free} of the {len(pool)} workers of its pool are free"
        )
    producers = [
        found for found in (_look(looks, task) for task in one.producers) if found is not None
    ]
    live = [two for two in producers if two.state.name in ("PENDING", "READY", "RUNNING")]
    named = [f"{_called(two)} ({two.state.name})" for two in live[:MOST_TOLD]]
    if len(live) > MOST_TOLD:
        named.append(f"{len(live) - MOST_TOLD} more")
    return f": it waits for {', '.join(named)}" if named else ""
