"""Looks at an engine, for people: its rings and tasks, and what it does at a moment. They change nothing.

`Rings` reads the rings; `RingView`, which is `orch.ring`, also finds a task by its id::

    counts of tasks, running ones, rings ─────► `Worker.top()`, its command, SIGQUIT   `Session.top`
    tasks, as `orch.ring` has them ─────────┬─► what waits for what; also on SIGQUIT   `waiting_tasks`
                                            └─► why a ring stays full                  `ring_cycle`
    what was noted of a failure ──────────────► the story in an error                  workers/session.py

A look takes no lock while the engine runs on: `engine/view/slots.py` explains why it is consistent. A
task that ends meanwhile may be left out.

Rule     ORCH-API-5, ORCH-API-6, ORCH-BACK-4, ORCH-WINDOW-4, SEE-HANG-1, SEE-HANG-2, SEE-TOP-1
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..jit import layout as L
from ..model.enums import TaskState
from ..model.wire import asks_for_memory, bytes_of, each_tensor
from ..system.values import integer
from .memory import Engine
from .view import RingState, slots
from .view.slots import Names, Slab, SlotView, StoredArgs, TaskView

_LOOKS = len(TaskState) + 1
"""A task changes its state less often: one that changed during this many looks is gone."""
MOST_TOLD = 8
"""Tasks that a text describes."""
_UNFINISHED = (TaskState.PENDING, TaskState.READY, TaskState.RUNNING)


class Rings:
    """A read-only view of an engine's rings."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _ring(self, ring_idx: int) -> RingState:
        if not 0 <= integer("ring_idx", ring_idx) < self.ring_count():
            raise IndexError(f"ring {ring_idx} does not exist: there are {self.ring_count()}")
        return self._engine.view.ring(ring_idx)

    def ring_count(self) -> int:
        """Return how many rings there are."""
        return self._engine.view.ring_count

    def heap_base(self, ring_idx: int) -> int:
        """Return the address of a ring."""
        return self._ring(ring_idx).base

    def heap_size(self, ring_idx: int) -> int:
        """Return the bytes of a ring."""
        return self._ring(ring_idx).size

    def heap_top(self, ring_idx: int) -> int:
        """Return the offset at which the next allocation begins."""
        return self._ring(ring_idx).cursor

    def heap_tail(self, ring_idx: int) -> int:
        """Return the offset of the oldest byte in use; heap_top if there is none."""
        ring = self._ring(ring_idx)
        return ring.cursor if ring.tail == ring.top else ring.tail % ring.size

    def heap_held(self, ring_idx: int) -> int:
        """Return the bytes in use, a skipped end included."""
        ring = self._ring(ring_idx)
        return ring.top - ring.tail

    def next_task_id(self) -> int:
        """Return the id of the next allocation."""
        return self._engine.view.next_task_id


class RingView(Rings):
    """A Worker's rings and live tasks, to look at from any thread, in a run and after it."""

    def __init__(self, engine: Engine, names: Names) -> None:
        super().__init__(engine)
        self._names = names

    def slot_state(self, task_id: int) -> TaskView:
        """Return a look at a live task of the run.

        Its cost grows with the number of live tasks; the run does not wait for it. Each word is right at
        some moment of the look, and the state does not change while state and producers are read.

        Raises
        ------
        KeyError
            The task is not alive: it was not submitted yet, or it is reclaimed.
        TypeError
            `task_id` is no integer.
        """
        engine, number = self._engine, integer("task_id", task_id)
        for _ in range(_LOOKS):
            runs, slot = engine.runs, slots.find(engine.mem, number)
            if slot is None:
                break
            look = slots.look_at(engine.mem, engine.layouts, slot, number, self._names)
            if look is not None and runs == engine.runs:
                return look
        count = self.next_task_id()
        known = f"ids 0 … {count - 1} were given out" if count else "no task was submitted"
        raise KeyError(f"task {number} is not alive: in this run {known}, and what ended is gone")


@dataclass(frozen=True, slots=True)
class RingRow:
    """What is in use of a heap ring: by how many tasks, how many bytes of its size."""

    tasks: int
    used: int
    size: int


# ---------------------------------------------------------------- a ring without room
def mib(nbytes: int) -> str:
    """Return a number of bytes as text, in MiB if it is large."""
    return f"{nbytes / (1 << 20):.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes} bytes"


def requested_bytes(wire: bytes) -> int:
    """Return the ring bytes that a submit or an alloc needs."""
    asked = (bytes_of(tensor) for tensor in each_tensor(wire) if asks_for_memory(tensor))
    return sum(L.round_up(nbytes, L.HEAP_ALIGN) for nbytes in asked)


def describe_full(engine: Engine, timeout_s: float, asked: int, depth: int) -> str:
    """Say which ring is full, with which tasks, and the remedy; `depth` is the scope's, from 0."""
    view = engine.view
    number = min(max(0, depth), view.ring_count - 1)
    ring, tasks = view.ring(number), view.oldest_first(number)
    live, window, ids = view.live, view.window, view.id_window
    oldest, distance = "", 0
    if tasks:
        first = slots.read_slot(engine.mem, tasks[0])
        # the ids of a lone Ring belong to nobody's tasks: they have no states
        state = "not released" if first.state == TaskState.FREE else first.state.name
        oldest = f", the oldest is task {first.task_id} ({state})"
        distance = view.next_task_id - first.task_id
    remedy = "Give Worker(task_window=…) a larger value, or end a scope earlier"
    if view.pushed - view.taken >= L.WIRING_CAPACITY:
        return (
            f"{view.pushed - view.taken} submitted tasks wait to be wired, and the Scheduler has taken "
            f"none within {timeout_s} s"
        )
    if ids and distance >= ids:
        return (
            f"task window full: {ids} ids follow each other from the oldest live task on, and it was "
            f"not reclaimed within {timeout_s} s{oldest}. {remedy}"
        )
    if live >= window:
        return (
            f"task window full: {window} tasks are alive and none was reclaimed within "
            f"{timeout_s} s{oldest}. {remedy}"
        )
    if not tasks and asked <= ring.size:
        return (
            f"no room for the arguments or outputs of another task within {timeout_s} s: those of "
            f"{live} live tasks fill their tables. {remedy}"
        )
    return (
        f"HeapRing exhausted: ring {number} ({mib(ring.size)}) had no room"
        f"{' for ' + mib(asked) if asked else ''} within {timeout_s} s: "
        f"{mib(ring.top - ring.tail)} are held by {len(tasks)} "
        f"task{'s' if len(tasks) > 1 else ''}{oldest}. Increase heap_ring_size on Worker, or end "
        "a scope earlier"
    )


# ---------------------------------------------------------------- who waits for what
def waiting_tasks(engine: Engine, names: Names) -> list[str]:
    """Say of the oldest tasks that have not ended what they do or wait for.

    Nothing if all of them run.
    """
    looks, ids = RingView(engine, names), slots.unfinished(engine.mem)
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
        for one in _looks(looks, oldest.fanout_consumers[:MOST_TOLD]):
            state = f"is {one.state.name}{_reason(engine, looks, one)}"
            lines.append(f"it is kept for {_called(one)}, which {state}")
        if oldest.fanout_total + 1 - oldest.fanout_released > len(oldest.fanout_consumers):
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
        size, kind = one.group_size, one.worker_type
        if not size or kind is None:
            return ": it waits for a free worker"
        pool = engine.view.pool(kind)
        free = sum(engine.view.given(worker) == 0 for worker in pool)
        return (
            f": it is a group of {size}, and {free} of the {len(pool)} workers of its pool are free"
        )
    live = [two for two in _looks(looks, one.fanin_producers) if two.state in _UNFINISHED]
    named = [f"{_called(two)} ({two.state.name})" for two in live]
    return f": it waits for {listed(named)}" if named else ""


def listed(named: Sequence[str], number: int = 0, most: int = MOST_TOLD) -> str:
    """Return some names as text, with how many of `number` are not named."""
    number = max(number, len(named))
    shown = [*named[:most]]
    if number > len(shown):
        shown.append(f"{number - len(shown)} more")
    return ", ".join(shown)


__all__ = ["RingView", "Rings", "Slab", "SlotView", "StoredArgs", "TaskView"]
