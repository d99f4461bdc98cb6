"""A stream of tasks by hand, as far as hazards go: each waits for the conflicts that the kernels find.

`Stream` plays the Scheduler too: tasks start in any order that the conflicts allow, complete or fail, and
a task that needs a failed one fails without a start. It ends once all that it waited for has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from simpler_ref.engine.view.layouts import Layouts
from simpler_ref.jit import hazards, ring, slots, tensors
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T

from .kernels import Kernels
from .support import Arg, small_engine, unmap

k = Kernels(hazards, ring, slots, tensors)
READING = (T.INPUT, T.INOUT)
WRITING = (T.INOUT, T.OUTPUT, T.OUTPUT_EXISTING)
Use = tuple[T, np.ndarray]
"""What a task does with an array."""


def octets(array: np.ndarray) -> frozenset[int]:
    """Return the address of each byte of an array."""
    places = np.array(array.__array_interface__["data"][0])
    for size, step in zip(array.shape, array.strides, strict=True):
        places = places[..., None] + np.arange(size) * step
    return frozenset((places[..., None] + np.arange(array.itemsize)).ravel().tolist())


@dataclass(eq=False)
class Task:
    """A task of a stream, and what the kernels said that it waits for."""

    name: str
    slot: int
    uses: list[tuple[T, frozenset[int]]]
    conflicts: dict[Task, int] = field(default_factory=dict)
    waits: set[Task] = field(default_factory=set)
    """What has not ended yet."""
    consumers: list[Task] = field(default_factory=list)
    state: int = L.PENDING
    ended: bool = False

    def bytes(self, tags: Iterable[T]) -> set[int]:
        """Return the bytes that it uses with some tags."""
        return set().union(*(places for tag, places in self.uses if tag in tags))

    @property
    def needs(self) -> set[Task]:
        return {task for task, kind in self.conflicts.items() if kind == L.NEEDS}


class Stream:
    """Tasks in an engine of their own."""

    def __init__(self, window: int = 64) -> None:
        self.engine = small_engine(window=window, heap=1024, sub=1)
        self.mem = self.engine.mem
        self.geometry = self.mem[: L.ORCH].copy()
        self.layouts = Layouts(self.engine.mem)
        self.tasks: list[Task] = []
        self.by_slot: dict[int, Task] = {}

    # ------------------------------------------------------------ arguments
    def described(self, tag: T, array: np.ndarray) -> bytes:
        """Return a tensor with a layout."""
        number = self.layouts.number(array.dtype, array.shape, array.strides)
        kind = L.TENSOR_DESCRIBED | tag << L.TENSOR_TAG_SHIFT
        data = array.__array_interface__["data"][0]
        return np.array([data, number, 0, 0, kind], np.int64).tobytes()

    def wire(self, uses: Iterable[Use | Arg]) -> bytes:
        return b"".join(use.wire() if type(use) is Arg else self.described(*use) for use in uses)

    # ------------------------------------------------------------ Orch thread
    def conflicts(self, *uses: Use | Arg) -> list[tuple[int, int]]:
        """Return what a task with these tensors would wait for: slots, and NEEDS or ORDER."""
        count = k.collect_conflicts(self.mem, self.wire(uses), len(uses))
        at = int(self.mem[L.A_CONFLICTS])
        records = self.mem[at : at + count * L.CONFLICT_WORDS].reshape(count, L.CONFLICT_WORDS)
        return [(slot, kind) for slot, kind, _ in records.tolist()]

    def kinds(self, *uses: Use | Arg) -> dict[str, int]:
        """Return the names of the tasks that one with these tensors would wait for, and how."""
        found = self.conflicts(*uses)
        assert len(dict(found)) == len(found), "a task is there twice"
        return {self.by_slot[slot].name: kind for slot, kind in found}

    def submit(self, name: str, *uses: Use | Arg) -> Task:
        """Submit a task: find its conflicts, reference them, note its accesses."""
        while not k.has_access_room(self.mem, len(uses)):
            before = self.accesses
            self.reclaim(k.drop_over(self.mem, L.NONE))
            assert self.accesses < before
        found, slot = self.conflicts(*uses), k.alloc(self.mem, 0, -1)
        assert slot > 0, slot
        k.prepare(self.mem, slot, 0, 0, 0)
        views = [use for use in uses if not isinstance(use, Arg)]
        task = Task(name, slot, [(tag, octets(view)) for tag, view in views])
        for other, kind in found:
            assert k.acquire_ref(self.mem, other)
            task.conflicts[self.by_slot[other]] = kind
        self.reclaim(k.note_accesses(self.mem, slot, self.wire(uses), len(uses)))
        assert k.step(self.mem, slot, slots.SUBMIT) == L.OK
        self.by_slot[slot] = task
        self.tasks.append(task)
        task.waits = {other for other in task.conflicts if not other.ended}
        for other in task.waits:
            other.consumers.append(task)
        self._set_fanin(task)
        if any(other.state == L.FAILED for other in task.needs):
            self._poison(task)
        self._end_if_over(task)
        return task

    def reclaim(self, slot: int) -> int:
        """Reclaim a chain of consumed slots; return how many."""
        count = 0
        while slot != L.NONE:
            after = int(self.mem[slot + L.S_LINK])
            assert k.step(self.mem, slot, slots.RECLAIM) == L.OK
            k.release(self.mem, slot)
            del self.by_slot[slot]
            slot = after
            count += 1
        return count

    @property
    def accesses(self) -> int:
        return int(self.mem[L.ACCESS_COUNT])

    # ------------------------------------------------------------ Scheduler and workers
    def _set_fanin(self, task: Task) -> None:
        self.mem[task.slot + L.S_FANIN] = len(task.waits)

    def _poison(self, task: Task) -> None:
        if task.state == L.PENDING:
            assert k.step(self.mem, task.slot, slots.POISON) == L.OK
            task.state = L.FAILED

    def _end_if_over(self, task: Task) -> None:
        """Tell the consumers of a task that has ended, and drop its references."""
        if task.ended or task.waits or task.state not in (L.COMPLETED, L.FAILED):
            return
        task.ended = True
        for consumer in task.consumers:
            if task.state == L.FAILED and consumer.conflicts[task] == L.NEEDS:
                self._poison(consumer)
            consumer.waits.remove(task)
            self._set_fanin(consumer)
            self._end_if_over(consumer)
        for other in [*task.conflicts, task]:
            if k.release_ref(self.mem, other.slot):
                self.mem[other.slot + L.S_LINK] = L.NONE
                self.reclaim(other.slot)

    def can_start(self) -> list[Task]:
        return [task for task in self.tasks if task.state == L.PENDING and not task.waits]

    def start(self, task: Task) -> None:
        assert not task.waits
        for event in (slots.INPUTS_DONE, slots.DISPATCH):
            assert k.step(self.mem, task.slot, event) == L.OK
        task.state = L.RUNNING

    def finish(self, task: Task, *, fails: bool = False) -> None:
        """Have a task end, which has started or can."""
        if task.state == L.PENDING:
            self.start(task)
        assert k.step(self.mem, task.slot, slots.FAIL if fails else slots.COMPLETE) == L.OK
        task.state = L.FAILED if fails else L.COMPLETED
        self._end_if_over(task)

    def close(self) -> None:
        """Let everything end, forget it, check that nothing is left, and give the memory back."""
        try:
            for task in self.tasks:
                if not task.ended:
                    self.finish(task)
            self.reclaim(k.forget_all(self.mem))
            assert (self.accesses, self.by_slot, int(self.mem[L.LIVE])) == (0, {}, 0)
            assert self.mem[: L.ORCH].tolist() == self.geometry.tolist()
            assert not self.mem[int(self.mem[L.A_CELLS]) : int(self.mem[L.A_GRIDS])].any()
        finally:
            unmap(self.engine)
            self.mem = self.layouts = None
