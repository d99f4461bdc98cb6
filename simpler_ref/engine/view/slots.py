"""The words of tasks: looks at slots that are consistent although the engine runs on meanwhile.

A slot may get another task between two reads. Therefore a look uses no word as an offset before it knows
the task: ids are never reused in a run, so a slot that has the same id and is not FREE before and after
has the same task, and what submit wrote has not changed. Words that do change are read singly, between
two equal reads of the state.

What is told of a failed task is noted before its own words and edges change. A call keeps its slot as
long as its future refers to it.

Rule     ORCH-API-6, SEE-STORY-1, SEE-TOP-1
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...jit import layout as L
from ...jit import submit
from ...model.config import RUNTIME_ENV_SIZE, CallConfig, read_config
from ...model.enums import TaskState, WorkerType
from ...model.scalars import as_it_went_in
from ...model.tensor import ContinuousTensor
from ...model.wire import CHILD_MEMORY_AT, LayoutReader, bytes_of, replaced, without_tag
from ...system.types import Array

KIND_MASK = 0xF
"""The bits of the worker type in a callable word, shifted."""
_RING_BITS = 3
RING_MASK = (1 << _RING_BITS) - 1
"""The bits of the ring in S_RING; the position in its FIFO is above them."""
_LOOKS_AT_WORKER = 16
"""A worker that ends so many tasks during a look at it has none that runs for a time to be told."""


class SlotView(NamedTuple):
    """A look at one live slot."""

    task_id: int
    state: TaskState
    ring_idx: int
    ring_slot_idx: int
    """Its position in the ring's FIFO; a later look may find a lower one."""
    fanout_total: int
    fanout_released: int


class Slab(NamedTuple):
    """The ring memory of a task."""

    address: int
    nbytes: int
    """Each part rounded up to 1024."""


class Names(Protocol):
    """Knows the names of callables and workers."""

    def callable_name(self, word: int, key: int) -> str:
        """Return the name of the callable in a callable word.

        `key` is the block of a call's function.
        """

    def worker_name(self, worker: int) -> str:
        """Return what messages call a worker."""


class StoredArgs(NamedTuple):
    """The arguments of a task, or of a member of a group, as its slot has them: without tags."""

    tensors: tuple[ContinuousTensor, ...]
    scalars: tuple[int | float, ...]


class TaskView(NamedTuple):
    """A look at one live task: a submitted task, a group, or a buffer from `orch.alloc`.

    Its fields have the names of the design documents.
    """

    task_id: int
    state: TaskState
    fanin_count: int
    """Distinct producers that its submit found, owners of the slabs it reads included."""
    fanin_released: int
    """How many of these it does not wait for: they have finished."""
    fanout_total: int
    """References of its scope and its consumers."""
    fanout_released: int
    """References released, its own included."""
    fanin_producers: tuple[int, ...]
    """Ids of its producers, in the order of its tensors; none once it has finished and released them."""
    fanout_consumers: tuple[int, ...]
    """Ids of the tasks that depend on it and have not finished, in order."""
    callable: str | None
    """Name of its callable; None for a buffer."""
    worker: str | None
    """The worker it was sent to, of a group one of them; None if it was not sent."""
    worker_type: WorkerType | None
    """The pool it goes to; None for a buffer."""
    config: CallConfig | None
    """Its configuration; None for a buffer."""
    group_size: int
    """How many members it has; 0 unless it is a group."""
    sub_complete_count: int
    """How many of them have ended."""
    workers: tuple[str | None, ...]
    """Of each member the worker that it was sent to, None if it was not sent."""
    task_args_list: tuple[StoredArgs, ...]
    """The arguments of each member; of a single task its own."""
    output_keys: tuple[tuple[int, int], ...]
    """Address and owner, −1 for the host, of each buffer that it became the producer of."""
    ring_idx: int
    ring_slot_idx: int
    """Its position in the ring's FIFO; a later look may find a lower one."""
    slab: Slab | None
    """Memory that the runtime has provided for it."""

    @property
    def task_args(self) -> StoredArgs | None:
        """The arguments of a single task; None for a group, whose members have their own."""
        return None if self.group_size else self.task_args_list[0]


# ---------------------------------------------------------------- offsets
def slot_at(first: int, number: int) -> int:
    return first + number * L.SLOT_WORDS


def tensors_at(body: int, tensors: int) -> int:
    """Return the offset of the tensors in a body: after the words of its output mask."""
    return body + -(-tensors // L.MASK_TENSORS)


def scalars_at(body: int, tensors: int) -> int:
    return tensors_at(body, tensors) + tensors * L.TENSOR_WORDS


def _edges_at(words: Any) -> Any:
    """Return the offset of the edges in a body, from the words of a slot, or from those of many slots."""
    tensors, scalars = words[L.S_COUNTS] & L.LOW_HALF, words[L.S_COUNTS] >> L.HALF
    members = words[L.S_MEMBERS] * L.MEMBER_WORDS
    return scalars_at(0, tensors) + scalars * L.SCALAR_WORDS + members


def used_slots(mem: Array) -> Array:
    """Return the slots that were ever used in this run, a row each."""
    first, used = mem.item(L.A_SLOTS), min(mem.item(L.SLOTS_USED), mem.item(L.WINDOW))
    return mem[first : slot_at(first, used)].reshape(-1, L.SLOT_WORDS)


# ---------------------------------------------------------------- one task
def read_slot(mem: Array, slot: int) -> SlotView:
    """Read the fields of a slot that are of interest to people."""
    fanout, position = mem.item(slot + L.S_FANOUT), mem.item(slot + L.S_RING)
    return SlotView(
        task_id=mem.item(slot + L.S_ID),
        state=TaskState(mem.item(slot + L.S_STATE)),
        ring_idx=position & RING_MASK,
        ring_slot_idx=position >> _RING_BITS,
        fanout_total=fanout & L.FANOUT_TOTAL_MASK,
        fanout_released=fanout >> L.HALF,
    )


def find(mem: Array, task_id: int) -> int | None:
    if not 0 <= task_id < mem[L.NEXT_TASK_ID]:
        return None
    slots = used_slots(mem)
    rows = np.flatnonzero((slots[:, L.S_ID] == task_id) & (slots[:, L.S_STATE] != L.FREE))
    return slot_at(mem.item(L.A_SLOTS), int(rows[0])) if len(rows) else None


def look_at(
    mem: Array, layouts: LayoutReader, slot: int, task_id: int, names: Names
) -> TaskView | None:
    """Return a look at the task found in a slot; None if it has changed meanwhile."""
    state = mem.item(slot + L.S_STATE)
    copy: list[int] = mem[slot : slot + L.S_INLINE].tolist()

    def is_same() -> bool:
        now = mem.item(slot + L.S_ID), mem.item(slot + L.S_STATE)
        return now == (task_id, state) and state != L.FREE

    if not is_same():  # before any of its words is used as an offset
        return None
    start, copy[L.S_BODY] = copy[L.S_BODY], L.S_INLINE
    count = copy[L.S_EDGES] & L.LOW_HALF
    size = submit.edges_at(copy, 0) + count * L.EDGE_WORDS - L.S_INLINE
    copy += mem[start : start + size].tolist()  # with its body: a slot at 0, as kernels read it
    edges = edges_of(copy, 0) if L.PENDING <= state <= L.RUNNING else []
    producers = [edge[L.EDGE_PRODUCER] for edge in edges]
    ids: list[int] = mem.take([one + L.S_ID for one in producers], mode="clip").tolist()
    states = mem.take([one + L.S_STATE for one in producers], mode="clip").tolist()
    found = consumers(mem, slot)
    callable, worker = copy[L.S_CALLABLE], copy[L.S_WORKER]
    members = range(submit.members_at(copy, 0), submit.edges_at(copy, 0), L.MEMBER_WORDS)
    try:
        stored = _stored_args(copy, members, layouts)
        config = None if callable < 0 else _config(mem, callable >> L.WORD_CONFIG & L.CONFIG_MASK)
    except Exception:  # its layouts and its configuration are forgotten once it has gone
        return None
    if not is_same():
        return None
    waits = [edge[L.EDGE_CONSUMER] != L.NONE for edge in edges]
    live = sum(w and s < L.COMPLETED for w, s in zip(waits, states, strict=True))
    sent_to = [(copy[at + L.MEMBER_WORKER] >> L.HALF) - 1 for at in members]
    has_scalars, scalar = copy[L.S_COUNTS] >> L.HALF, submit.scalars_at(copy, 0)
    key = copy[scalar + L.SCALAR_BITS] & L.CALL_KEY if has_scalars else L.NONE
    keys, slab = _outputs(copy)
    return TaskView(
        task_id=task_id,
        state=TaskState(state),
        fanin_count=count,
        fanin_released=count - live,
        fanout_total=copy[L.S_FANOUT] & L.FANOUT_TOTAL_MASK,
        fanout_released=copy[L.S_FANOUT] >> L.HALF,
        fanin_producers=tuple(ids),
        fanout_consumers=found,
        callable=None if callable < 0 else names.callable_name(callable, key),
        worker=None if worker < 0 else names.worker_name(worker),
        worker_type=None if callable < 0 else WorkerType(callable >> L.WORD_KIND & KIND_MASK),
        config=config,
        group_size=len(members),
        # S_LEFT counts from when they are sent
        sub_complete_count=len(members) - (copy[L.S_LEFT] & L.LOW_HALF)
        if members and worker >= 0
        else 0,
        workers=tuple(None if one < 0 else names.worker_name(one) for one in sent_to),
        task_args_list=stored,
        output_keys=keys,
        ring_idx=copy[L.S_RING] & RING_MASK,
        ring_slot_idx=copy[L.S_RING] >> _RING_BITS,
        slab=slab,
    )


def _config(mem: Array, index: int) -> CallConfig:
    start = mem.item(L.A_CONFIGS) + index * L.CONFIG_ENTRY_WORDS
    octets = mem[start : start + L.CONFIG_ENTRY_WORDS].tobytes()
    env = L.WORD * L.CONFIG_WORDS
    return read_config(octets[: L.CALL_CONFIG_SIZE], octets[env : env + RUNTIME_ENV_SIZE])


def _stored_args(copy: list[int], members: range, layouts: LayoutReader) -> tuple[StoredArgs, ...]:
    """Return the arguments of each member, or of a single task."""
    first, end = submit.tensors_at(copy, 0), submit.scalars_at(copy, 0)
    tensors = (
        _tensor(copy[at : at + L.TENSOR_WORDS], layouts) for at in range(first, end, L.TENSOR_WORDS)
    )
    scalars = (
        as_it_went_in(
            copy[at + L.SCALAR_BITS].to_bytes(L.WORD, "little", signed=True),
            copy[at + L.SCALAR_KIND],
        )
        for at in range(end, submit.members_at(copy, 0), L.SCALAR_WORDS)
    )
    counts = [copy[at + L.MEMBER_COUNTS] for at in members] or [copy[L.S_COUNTS]]
    return tuple(
        StoredArgs(tuple(islice(tensors, one & L.LOW_HALF)), tuple(islice(scalars, one >> L.HALF)))
        for one in counts
    )


def _tensor(words: list[int], layouts: LayoutReader) -> ContinuousTensor:
    """Return a tensor, of whose memory is only told whether it is a next-level worker's."""
    wire = np.array(words, np.int64).tobytes()
    child = bytes((wire[CHILD_MEMORY_AT] & 1,))
    return ContinuousTensor._from_wire(without_tag(replaced(wire, CHILD_MEMORY_AT, child)), layouts)


def _outputs(copy: list[int]) -> tuple[tuple[tuple[int, int], ...], Slab | None]:
    """Return the keys of what a task has become the producer of, and its memory, which is contiguous."""
    keys: dict[tuple[int, int], None] = {}
    address, total = 0, 0
    tensors = range(submit.tensors_at(copy, 0), submit.scalars_at(copy, 0), L.TENSOR_WORDS)
    for i, t in enumerate(tensors):
        mask = copy[copy[L.S_BODY] + i // L.MASK_TENSORS] >> i % L.MASK_TENSORS
        if mask & 1:
            data = copy[t + L.TENSOR_DATA] & (1 << 64) - 1
            keys[data, submit.owner_of(copy, 0, t, i)] = None
        if mask >> L.SLAB_BIT & 1:
            wire = np.array(copy[t : t + L.TENSOR_WORDS], np.int64).tobytes()
            address = address or copy[t + L.TENSOR_DATA]
            total += L.round_up(bytes_of(wire), L.HEAP_ALIGN)
    return tuple(keys), Slab(address, total) if total else None


def edges_of(mem: Any, slot: int) -> list[list[int]]:
    """Return the edges to the task in a slot that cannot change meanwhile, or in a copy."""
    first, count = submit.edges_at(mem, slot), mem[slot + L.S_EDGES] & L.LOW_HALF
    words = np.array(mem[first : first + count * L.EDGE_WORDS], np.int64)
    edges: list[list[int]] = words.reshape(-1, L.EDGE_WORDS).tolist()
    return edges


def consumers(mem: Array, slot: int) -> tuple[int, ...]:
    """Return the ids of the tasks that have an edge to a slot and have not finished.

    A row whose id is the same before and after, and whose task has not finished, has the same task.
    """
    slots = used_slots(mem)
    rows = np.flatnonzero(_is_unfinished(slots[:, L.S_STATE]))
    words = slots[rows, : L.S_INLINE]
    is_same = (slots[rows, L.S_ID] == words[:, L.S_ID]) & _is_unfinished(slots[rows, L.S_STATE])
    rows, words = rows[is_same], words[is_same]
    first = words[:, L.S_BODY] + _edges_at(words.T)
    edges = words[:, L.S_EDGES] & L.LOW_HALF
    start = np.cumsum(edges) - edges  # of each task's edges among all of them
    at = np.repeat(first - start * L.EDGE_WORDS, edges) + np.arange(edges.sum()) * L.EDGE_WORDS
    which = np.repeat(np.arange(len(rows)), edges)
    found = which[mem.take(at + L.EDGE_PRODUCER, mode="clip") == slot]
    ids = words[found, L.S_ID]
    still = (slots[rows[found], L.S_ID] == ids) & _is_unfinished(slots[rows[found], L.S_STATE])
    return tuple(np.unique(ids[still]).tolist())


def unfinished(mem: Array) -> list[int]:
    """Return the ids of the tasks that have not ended, in order."""
    slots = used_slots(mem)
    ids: list[int] = slots[_is_unfinished(slots[:, L.S_STATE]), L.S_ID].tolist()
    return sorted(ids)


def live(mem: Array) -> list[int]:
    """Return the ids of the tasks that are not FREE, in order."""
    slots = used_slots(mem)
    ids: list[int] = slots[slots[:, L.S_STATE] != L.FREE, L.S_ID].tolist()
    return sorted(ids)


def _is_unfinished(states: Array) -> Array:
    found: Array = (states >= L.PENDING) & (states <= L.RUNNING)
    return found


# ---------------------------------------------------------------- what goes on
def running(mem: Array, start: int) -> tuple[int, int, int, int] | None:
    """Return the task that the worker whose words begin at `start` runs; None if it runs none.

    Behind its id are the index of its callable, the key of its function if it is a call, and when it
    began, by the monotonic clock, ns, a few ms too early at most.

    The frame is that of the same task before and after, or the look is made again. A worker writes when
    a task began after it has received it, and 0 before it answers.
    """
    for _ in range(_LOOKS_AT_WORKER):
        seen = _frame_words(mem, start)
        if seen is None:
            return None
        frame, _, slot, since = seen
        box = frame + L.W_MAILBOX
        tensors = mem.item(box + L.MAIL_COUNTS) & L.LOW_HALF
        tensors = min(tensors, L.MAILBOX_WORDS // L.TENSOR_WORDS)
        key = mem.item(box + L.MAIL_TENSORS + tensors * L.TENSOR_WORDS) & L.CALL_KEY
        callable = mem.item(slot + L.S_CALLABLE) & L.CALLABLE_MASK
        found = mem.item(slot + L.S_ID), callable, key, since
        if seen == _frame_words(mem, start):
            return found
    return None


def _frame_words(mem: Array, start: int) -> tuple[int, int, int, int] | None:
    """Return frame, how often it was filled, task and beginning; None while no task runs there."""
    at = mem.item(start + L.W_AT)
    if at % L.WORKER_WORDS or not 0 <= at < mem.item(L.WORKER_STRIDE):
        return None
    frame = start + at
    state = mem.item(frame + L.W_MAILBOX + L.MAIL_STATE) & L.LOW_HALF
    since, slot = mem.item(start + L.W_SINCE), mem.item(frame + L.W_SLOT)
    first = mem.item(L.A_SLOTS)
    is_slot = first <= slot < slot_at(first, mem.item(L.WINDOW))
    if state != L.TASK_READY or since <= 0 or not is_slot:
        return None
    return frame, mem.item(frame + L.W_FILLED), slot, since


def count_tasks(mem: Array) -> tuple[int, int, list[int], list[int]]:
    """Count the tasks that wait for others, and for a worker; the latter that name each; those in rings.

    These include ended ones. The time it takes grows with the number of live tasks.
    """
    slots, workers = used_slots(mem), mem.item(L.WORKERS)
    states, places = slots[:, L.S_STATE].copy(), slots[:, L.S_RING]
    is_live = (states > L.FREE) & (states != L.CONSUMED)
    ready = slots[states == L.READY, L.S_CALLABLE]
    named = (ready >> L.WORD_WORKER & L.WORKER_MASK)[ready >= 0]
    rings = places[is_live] & RING_MASK
    return (
        int(np.count_nonzero(states == L.PENDING)),
        int(np.count_nonzero(states == L.READY)),
        np.bincount(named[named <= workers], minlength=workers + 1)[1:].tolist(),
        np.bincount(rings, minlength=mem.item(L.RINGS))[: mem.item(L.RINGS)].tolist(),
    )


# ---------------------------------------------------------------- tasks that have failed
Others = tuple[int, list[tuple[int, "int | None"]]]
"""How many tasks one depends on, or depend on it; of the first of them the id, and the index of the
callable: None of a buffer, or if unknown."""


class Story(NamedTuple):
    """What surrounds a task that has failed."""

    state: TaskState
    needed: Others
    """What it waited for."""
    needing: Others
    """What waits for it."""


def failure_story(mem: Array) -> Story:
    """Return the story of the run's first failure."""
    others = (_others_at(mem, at) for at in (L.ERROR_NEEDED, L.ERROR_NEEDING))
    return Story(TaskState(mem.item(L.ERROR_STATE)), *others)


def _others_at(mem: Array, at: int) -> Others:
    number = mem.item(at)
    words = mem[at + 1 : at + 1 + 2 * min(number, L.MOST_TOLD)].tolist()
    pairs = zip(words[::2], words[1::2], strict=True)
    return number, [(one, None if w < 0 else w & L.CALLABLE_MASK) for one, w in pairs]


def call_story(mem: Array, slot: int) -> Story:
    """Return the story of a call that has failed by itself."""
    needed = _needed(mem, slot)
    slots = used_slots(mem)
    shares = (slots[:, L.S_STATE] == L.FAILED) & (slots[:, L.S_ORIGIN] == -slot)
    shares[(slot - mem.item(L.A_SLOTS)) // L.SLOT_WORDS] = False
    needing = slots[np.flatnonzero(shares), L.S_ID].tolist()
    return Story(TaskState.FAILED, _others(needed), _others(needing))


def _needed(mem: Array, slot: int) -> list[int]:
    """Return the ids of the producers of a call.

    It refers to them, so that their slots keep their tasks, until it notes their ids instead.
    """
    producers = [one[L.EDGE_PRODUCER] + L.S_ID for one in edges_of(mem, slot)]
    ids: list[int] = mem.take(producers, mode="clip").tolist() if producers else []
    noted = [-1 - one[L.EDGE_NEXT] for one in edges_of(mem, slot)]
    return [id if after < 0 else after for id, after in zip(ids, noted, strict=True)]


def _others(ids: list[int]) -> Others:
    found = sorted(set(ids))
    return len(found), [(one, None) for one in found[: L.MOST_TOLD]]
