"""Looks at rings and tasks, for people: they read, and change nothing.

`Rings` reads the rings' words; `RingView`, which is `orch.ring`, also finds a task by its id. A look
takes no lock and the engine goes on meanwhile, so a slot may change hands between two reads. Therefore
a look follows no word before it knows whose it was: ids are never used twice in a run, so a slot that
has the same id and is not FREE before and after is the same task's, and what submit wrote into it has
not changed. What does change is read as single words, between two equal reads of the state.
"""

from __future__ import annotations

import operator
from typing import NamedTuple, NoReturn, Protocol

import numpy as np

from ..jit import layout as L
from ..model.enums import TaskState
from ..model.tensor import ContinuousTensor
from ..model.wire import asks_for_memory, each_tensor
from ..system.types import Array
from .memory import Engine

_LOW = 0xFFFFFFFF
_LOOKS = len(TaskState) + 1
"""A task changes its state less often: one that so many looks found changed is gone."""


class Names(Protocol):
    """What knows how callables and workers are called."""

    def _callable_name(self, word: int) -> str: ...

    def _worker_name(self, worker: int) -> str: ...


class SlotView(NamedTuple):
    """A look at one live slot."""

    task_id: int
    state: TaskState
    ring_idx: int
    ring_slot_idx: int
    """Its place in the ring's FIFO; a later look may find it further ahead."""
    fanout_total: int
    fanout_released: int


class Slab(NamedTuple):
    """The ring memory of a task."""

    address: int
    nbytes: int
    """With each piece rounded up to 1024."""


class TaskView(NamedTuple):
    """A look at one live task: a submitted task, a group, or a buffer from `orch.alloc`."""

    task_id: int
    state: TaskState
    fanin: int
    """Distinct producers that its submit found, owners of the slabs it reads included."""
    fanin_live: int
    """Producers it waits for that have not finished."""
    fanout_total: int
    """References taken by its scope and its consumers."""
    fanout_released: int
    """References given back, its own included."""
    producers: tuple[int, ...]
    """Ids of its producers, in the order of its tensors; none once it has finished and let go of them."""
    consumers: tuple[int, ...]
    """Ids of the tasks that depend on it and have not finished, in order."""
    callable: str | None
    """Name of what it runs; None for a buffer."""
    worker: str | None
    """The worker it was given to, of a group one of them; None if it was given to none."""
    ring_idx: int
    ring_slot_idx: int
    """Its place in the ring's FIFO; a later look may find it further ahead."""
    slab: Slab | None
    """Memory that the runtime has provided for it."""


class Rings:
    """The rings of an engine, to look at.

    Rule     ORCH-API-5
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _word(self, ring_idx: int, field: int) -> int:
        if not 0 <= ring_idx < self._engine.mem[L.RINGS]:
            raise IndexError(f"ring {ring_idx} does not exist: there are {self.ring_count()}")
        return L.RING_BLOCK + ring_idx * L.LINE + field

    def ring_count(self) -> int:
        """Return how many rings there are."""
        return int(self._engine.mem[L.RINGS])

    def heap_base(self, ring_idx: int) -> int:
        """Return the address of a ring."""
        return int(self._engine.mem[self._word(ring_idx, L.R_BASE)])

    def heap_size(self, ring_idx: int) -> int:
        """Return the bytes of a ring."""
        return int(self._engine.mem[self._word(ring_idx, L.R_SIZE)])

    def heap_top(self, ring_idx: int) -> int:
        """Return the offset at which the next allocation begins."""
        return int(self._engine.mem[self._word(ring_idx, L.R_CURSOR)])

    def heap_tail(self, ring_idx: int) -> int:
        """Return the offset of the oldest byte still held; heap_top if there is none."""
        tail = int(self._engine.mem[self._word(ring_idx, L.R_TAIL)])
        top = int(self._engine.mem[self._word(ring_idx, L.R_TOP)])
        return self.heap_top(ring_idx) if tail == top else tail % self.heap_size(ring_idx)

    def heap_held(self, ring_idx: int) -> int:
        """Return the bytes held, the skipped end of a lap included."""
        mem = self._engine.mem
        return int(mem[self._word(ring_idx, L.R_TOP)] - mem[self._word(ring_idx, L.R_TAIL)])

    def next_task_id(self) -> int:
        """Return the id the next allocation gets."""
        return int(self._engine.mem[L.NEXT_TASK_ID])


class RingView(Rings):
    """A Worker's rings and live tasks, to look at from any thread, in a run and after it.

    Rule     ORCH-API-5 to -7
    """

    def __init__(self, engine: Engine, names: Names) -> None:
        super().__init__(engine)
        self._names = names

    def slot_state(self, task_id: int) -> TaskView:
        """Return a look at a task of the run that is alive.

        It costs as much as there are tasks alive, and the run nothing. Each word of it is right at some
        moment of the look, and while state and producers are read the state does not change.

        Raises
        ------
        KeyError
            The task is not alive: it was not submitted yet, or it is reclaimed.
        TypeError
            `task_id` is no integer.

        Notes
        -----
        Rule     ORCH-API-6
        """
        number = operator.index(task_id)
        for _ in range(_LOOKS):
            look = self._look(number)
            if look is not None:
                return look
        raise self._gone(number)

    def _gone(self, task_id: int) -> KeyError:
        count = self.next_task_id()
        known = f"ids 0 … {count - 1} were given out" if count else "no task was submitted"
        return KeyError(f"task {task_id} is not alive: in this run {known}, and what ended is gone")

    def _look(self, task_id: int) -> TaskView | None:
        """Return a look; None if the task has changed meanwhile.

        Rule     ORCH-API-6
        """
        mem, runs = self._engine.mem, self._engine.runs
        slot = _find(mem, task_id)
        if slot is None:
            raise self._gone(task_id)
        state = int(mem[slot + L.S_STATE])
        words: list[int] = mem[slot : slot + L.S_INLINE].tolist()

        def is_same() -> bool:
            now = int(mem[slot + L.S_ID]), int(mem[slot + L.S_STATE])
            return now == (task_id, state) and state != L.FREE and runs == self._engine.runs

        if not is_same():  # before any of its words is followed
            return None
        body: list[int] = mem[words[L.S_BODY] : words[L.S_BODY] + _body_words(words)].tolist()
        edges = _edges(words, body) if L.PENDING <= state <= L.RUNNING else []
        held = [edge[L.EDGE_PRODUCER] for edge in edges]
        ids: list[int] = mem.take([one + L.S_ID for one in held], mode="clip").tolist()
        states = mem.take([one + L.S_STATE for one in held], mode="clip").tolist()
        consumers = _consumers(mem, slot)
        if not is_same():
            return None
        waits = [edge[L.EDGE_CONSUMER] != L.NONE for edge in edges]
        worker, word = words[L.S_WORKER], words[L.S_CALLABLE]
        return TaskView(
            task_id=task_id,
            state=TaskState(state),
            fanin=words[L.S_EDGES] & _LOW,
            fanin_live=sum(w and s < L.COMPLETED for w, s in zip(waits, states, strict=True)),
            fanout_total=words[L.S_FANOUT] & L.FANOUT_TOTAL_MASK,
            fanout_released=words[L.S_FANOUT] >> 32,
            producers=tuple(ids),
            consumers=consumers,
            callable=None if word < 0 else self._names._callable_name(word),
            worker=None if worker < 0 else self._names._worker_name(worker),
            ring_idx=words[L.S_RING] & 7,
            ring_slot_idx=words[L.S_RING] >> 3,
            slab=_slab(words, body),
        )

    # ------------------------------------------------------------ what only a Ring on its own does
    def alloc(self, *_: object, **__: object) -> NoReturn:
        """Refuse: tasks get their memory from `orch.alloc`, or as outputs.

        Rule     ORCH-API-7
        """
        raise _read_only("alloc", "call orch.alloc(shape, dtype)")

    def release(self, *_: object, **__: object) -> NoReturn:
        """Refuse: a task is reclaimed when its scope and its consumers have let go.

        Rule     ORCH-API-7
        """
        raise _read_only("release", "end the task's scope")

    def reset_to_empty(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the end of a run resets the rings.

        Rule     ORCH-API-7
        """
        raise _read_only("reset_to_empty", "the end of the run does that")

    def shutdown(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the Worker's `close` ends its rings.

        Rule     ORCH-API-7
        """
        raise _read_only("shutdown", "call Worker.close()")


def _read_only(what: str, remedy: str) -> RuntimeError:
    return RuntimeError(
        f"orch.ring.{what}: the rings of a Worker are to be looked at; {remedy}. A Ring() on its own "
        "can be changed"
    )


# ---------------------------------------------------------------- one slot
def view_slot(engine: Engine, slot: int) -> SlotView:
    """Read the fields of a slot that are of interest to people."""
    mem = engine.mem
    fanout = int(mem[slot + L.S_FANOUT])
    place = int(mem[slot + L.S_RING])
    return SlotView(
        task_id=int(mem[slot + L.S_ID]),
        state=TaskState(int(mem[slot + L.S_STATE])),
        ring_idx=place & 7,
        ring_slot_idx=place >> 3,
        fanout_total=fanout & L.FANOUT_TOTAL_MASK,
        fanout_released=fanout >> 32,
    )


def _slots(mem: Array) -> Array:
    """Return the slots that were ever used in this run, a row each."""
    first, used = int(mem[L.A_SLOTS]), min(int(mem[L.SLOTS_USED]), int(mem[L.WINDOW]))
    return mem[first : first + used * L.SLOT_WORDS].reshape(-1, L.SLOT_WORDS)


def _find(mem: Array, task_id: int) -> int | None:
    """Return the slot of a live task."""
    if not 0 <= task_id < mem[L.NEXT_TASK_ID]:
        return None
    slots = _slots(mem)
    rows = np.flatnonzero((slots[:, L.S_ID] == task_id) & (slots[:, L.S_STATE] != L.FREE))
    return int(mem[L.A_SLOTS]) + int(rows[0]) * L.SLOT_WORDS if len(rows) else None


def _mask_words(tensors: int) -> int:
    return -(-tensors // L.MASK_TENSORS)


def _body_words(words: list[int]) -> int:
    """Return how many words the body of a slot has; see `body_words` in `jit/submit.py`."""
    return _edges_at(words) + (words[L.S_EDGES] & _LOW) * L.EDGE_WORDS


def _edges_at(words: list[int]) -> int:
    """Return where the edges begin in a body."""
    tensors, scalars = words[L.S_COUNTS] & _LOW, words[L.S_COUNTS] >> 32
    members = words[L.S_MEMBERS] * L.MEMBER_WORDS
    arguments = tensors * L.TENSOR_WORDS + scalars * L.SCALAR_WORDS
    return _mask_words(tensors) + arguments + members


def _edges(words: list[int], body: list[int]) -> list[list[int]]:
    first = _edges_at(words)
    return [body[at : at + L.EDGE_WORDS] for at in range(first, len(body), L.EDGE_WORDS)]


def _slab(words: list[int], body: list[int]) -> Slab | None:
    """Return the memory that a task's claim has brought it: its pieces follow each other."""
    tensors = words[L.S_COUNTS] & _LOW
    address, total = 0, 0
    for i in range(tensors):
        bit = L.SLAB_BIT + i % L.MASK_TENSORS
        if body[i // L.MASK_TENSORS] >> bit & 1:
            at = _mask_words(tensors) + i * L.TENSOR_WORDS
            wire = np.array(body[at : at + L.TENSOR_WORDS], np.int64).tobytes()
            address = address or body[at + L.TENSOR_DATA]
            total += L.round_up(ContinuousTensor._from_wire(wire).nbytes(), L.HEAP_ALIGN)
    return Slab(address, total) if total else None


def _consumers(mem: Array, slot: int) -> tuple[int, ...]:
    """Return the ids of the tasks that have an edge to a slot and have not finished.

    A row whose id is the same before and after, and whose task has not finished, has not changed hands.
    """
    slots = _slots(mem)
    rows = np.flatnonzero(_is_unfinished(slots[:, L.S_STATE]))
    words = slots[rows, : L.S_INLINE]
    is_same = (slots[rows, L.S_ID] == words[:, L.S_ID]) & _is_unfinished(slots[rows, L.S_STATE])
    rows, words = rows[is_same], words[is_same]
    tensors, scalars = words[:, L.S_COUNTS] & _LOW, words[:, L.S_COUNTS] >> 32
    arguments = tensors * L.TENSOR_WORDS + scalars * L.SCALAR_WORDS
    arguments += words[:, L.S_MEMBERS] * L.MEMBER_WORDS
    first = words[:, L.S_BODY] - -tensors // L.MASK_TENSORS + arguments
    edges = words[:, L.S_EDGES] & _LOW
    start = np.cumsum(edges) - edges  # of each task's edges among all of them
    at = np.repeat(first - start * L.EDGE_WORDS, edges) + np.arange(edges.sum()) * L.EDGE_WORDS
    which = np.repeat(np.arange(len(rows)), edges)
    found = which[mem.take(at + L.EDGE_PRODUCER, mode="clip") == slot]
    ids = words[found, L.S_ID]
    still = (slots[rows[found], L.S_ID] == ids) & _is_unfinished(slots[rows[found], L.S_STATE])
    return tuple(np.unique(ids[still]).tolist())


def _is_unfinished(states: Array) -> Array:
    found: Array = (states >= L.PENDING) & (states <= L.RUNNING)
    return found


# ---------------------------------------------------------------- a ring without room
def mib(nbytes: int) -> str:
    """Return a number of bytes in words, in MiB if it is large."""
    return f"{nbytes / (1 << 20):.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes} bytes"


def requested_bytes(wire: bytes) -> int:
    """Return the ring bytes a submit or an alloc asks for."""
    total = 0
    for tensor in each_tensor(wire):
        if asks_for_memory(tensor):
            nbytes = ContinuousTensor._from_wire(tensor).nbytes()
            total += L.round_up(nbytes, L.HEAP_ALIGN)
    return total


def describe_full(engine: Engine, timeout_s: float, asked: int, depth: int) -> str:
    """Say which ring is full of what, and what to do about it; `depth` is that of the scope, from 0.

    Rule     ORCH-BACK-4; ORCH-WINDOW-4
    """
    mem, rings = engine.mem, Rings(engine)
    ring = min(max(0, depth), rings.ring_count() - 1)
    slots = _live_of(mem, ring)
    live, window, ids = int(mem[L.LIVE]), int(mem[L.WINDOW]), int(mem[L.ID_WINDOW])
    oldest, ahead = "", 0
    if slots:
        view = view_slot(engine, slots[0])
        oldest = f", the oldest is task {view.task_id} ({view.state.name})"
        ahead = rings.next_task_id() - view.task_id
    remedy = "Give Worker(task_window=…) a larger value, or end a scope earlier"
    if ids and ahead >= ids:
        return (
            f"task window full: {ids} ids follow each other from the oldest live task on, and it was "
            f"not reclaimed within {timeout_s} s{oldest}. {remedy}"
        )
    if live >= window:
        return (
            f"task window full: {window} tasks are alive and none was reclaimed within "
            f"{timeout_s} s{oldest}. {remedy}"
        )
    if not slots and asked <= rings.heap_size(ring):
        return (
            f"no room for the arguments or outputs of another task within {timeout_s} s: those of "
            f"{live} live tasks fill their tables. {remedy}"
        )
    return (
        f"HeapRing exhausted: ring {ring} ({mib(rings.heap_size(ring))}) had no room"
        f"{' for ' + mib(asked) if asked else ''} within {timeout_s} s: "
        f"{mib(rings.heap_held(ring))} are held by {len(slots)} "
        f"task{'s' if len(slots) > 1 else ''}{oldest}. Increase heap_ring_size on Worker, or end "
        "a scope earlier"
    )


def _live_of(mem: Array, ring: int) -> list[int]:
    """Return the slots of a ring's live tasks, oldest first (on the Orch thread)."""
    r = L.RING_BLOCK + ring * L.LINE
    base, mask = int(mem[L.A_FIFO + ring]), int(mem[L.FIFO_MASK + ring])
    positions = np.arange(int(mem[r + L.R_ALIVE]), int(mem[r + L.R_NEXT]))
    entries = base + (positions & mask) * L.FIFO_WORDS
    live = entries[mem[entries + L.FIFO_END] & 1 == 0]
    slots: list[int] = mem[live + L.FIFO_SLOT].tolist()
    return slots


__all__ = ["RingView", "Rings", "Slab", "SlotView", "TaskView", "view_slot"]
