"""Looks at rings and tasks, for people. They change nothing.

`Rings` reads the rings; `RingView`, which is `orch.ring`, also finds a task by its id. A look takes no
lock while the engine runs on: `engine/view/slots.py` explains why it is consistent.

Rule     ORCH-API-5, -6; ORCH-BACK-4; ORCH-WINDOW-4
"""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from ..jit import layout as L
from ..model.enums import TaskState
from ..model.wire import asks_for_memory, bytes_of, each_tensor
from ..system.values import integer
from .memory import Engine
from .view import Ring as RingLook
from .view import slots
from .view.slots import Names, Slab, SlotView, TaskView

_LOOKS = len(TaskState) + 1
"""A task changes its state less often: one that changed during this many looks is gone."""


class Rings:
    """A read-only view of an engine's rings."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _ring(self, ring_idx: int) -> RingLook:
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
            is_same_run = partial(self._is_run, runs)
            look = slots.look_at(engine.mem, slot, number, self._names, is_same_run)
            if look is not None:
                return look
        count = self.next_task_id()
        known = f"ids 0 … {count - 1} were given out" if count else "no task was submitted"
        raise KeyError(f"task {number} is not alive: in this run {known}, and what ended is gone")

    def _is_run(self, runs: int) -> bool:
        return runs == self._engine.runs

    # ------------------------------------------------------------ only for a Ring on its own
    def alloc(self, *_: object, **__: object) -> NoReturn:
        """Refuse: tasks get their memory from `orch.alloc`, or as outputs."""
        raise _read_only("alloc", "call orch.alloc(shape, dtype)")

    def release(self, *_: object, **__: object) -> NoReturn:
        """Refuse: a task is reclaimed when its scope and its consumers have released it."""
        raise _read_only("release", "end the task's scope")

    def reset_to_empty(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the end of a run resets the rings."""
        raise _read_only("reset_to_empty", "the end of the run does that")

    def shutdown(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the Worker's `close` ends its rings."""
        raise _read_only("shutdown", "call Worker.close()")


def _read_only(what: str, remedy: str) -> RuntimeError:
    return RuntimeError(
        f"orch.ring.{what}: the rings of a Worker are to be looked at; {remedy}. A Ring() on its own "
        "can be changed"
    )


def view_slot(engine: Engine, slot: int) -> SlotView:
    """Read the fields of a slot that are of interest to people."""
    return slots.read_slot(engine.mem, slot)


# ---------------------------------------------------------------- a ring without room
def mib(nbytes: int) -> str:
    """Return a number of bytes as text, in MiB if it is large."""
    return f"{nbytes / (1 << 20):.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes} bytes"


def requested_bytes(wire: bytes) -> int:
    """Return the ring bytes that a submit or an alloc needs."""
    total = 0
    for tensor in each_tensor(wire):
        if asks_for_memory(tensor):
            total += L.round_up(bytes_of(tensor), L.HEAP_ALIGN)
    return total


def describe_full(engine: Engine, timeout_s: float, asked: int, depth: int) -> str:
    """Say which ring is full, with which tasks, and the remedy; `depth` is the scope's, from 0."""
    view = engine.view
    number = min(max(0, depth), view.ring_count - 1)
    ring, tasks = view.ring(number), view.oldest_first(number)
    live, window, ids = view.live, view.window, view.id_window
    oldest, distance = "", 0
    if tasks:
        first = view_slot(engine, tasks[0])
        oldest = f", the oldest is task {first.task_id} ({first.state.name})"
        distance = view.next_task_id - first.task_id
    remedy = "Give Worker(task_window=…) a larger value, or end a scope earlier"
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


__all__ = ["RingView", "Rings", "Slab", "SlotView", "TaskView", "view_slot"]
