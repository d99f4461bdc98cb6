"""Python's view of an engine's memory: the only code outside `jit/` that knows the offsets of words.

`View` has the words of the whole engine under plain names; `mailbox` those of one worker; `slots` those
of one task. Nothing here takes a lock: words that others write may change between two reads.

Rule     WM-PLACE-4
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ...jit import layout as L
from ...system.types import Array
from . import slots as S


class RingState(NamedTuple):
    """One heap ring, read at one moment: the words of its line, in the order of `jit/layout.py`."""

    base: int
    size: int
    top: int
    tail: int
    cursor: int
    next: int
    alive: int
    peak: int


class FirstFailure(NamedTuple):
    """The first failure of a run, as the Scheduler noted it."""

    outcome: int
    """TASK_FAILURE or ENDPOINT_FAILURE."""
    task: int
    callable: int
    """Index of its callable."""
    pool: int
    worker: int
    """The worker that ran it, -1 if none did."""
    member: int
    """Of a group, -1 for a single task."""
    exit_code: int | None
    """How its worker ended, None if that is alive."""
    message: bytes
    trace: bytes
    """What the worker has written about the exception; see `workers/reports.py`."""
    story: S.Story


class CallView(NamedTuple):
    """What is known of a call that a future refers to."""

    task: int
    """Its number in the stream."""
    key: int
    """The block of its function: its first scalar."""
    is_running: bool
    has_failed: bool
    worker: int
    """The worker that runs or ran it, -1 if none."""
    kind: int
    """Of its value, once it has ended."""
    value: int
    """The word of its value; minus the slot of the call whose failure it shares."""


class StuckGroup(NamedTuple):
    """A group that has waited too long for enough workers of its pool."""

    task: int
    callable: int
    """Index of its callable."""
    size: int
    pool: range
    limit_ns: int


def trace_size(word: int) -> int:
    """Return the bytes of a traceback, from the word before it: 0 if that exceeds the capacity."""
    return word if 0 <= word <= L.TRACE_CAPACITY else 0


def word_at(at: int) -> Any:
    """Return the property of a `View` that is a word of the header."""
    return property(lambda view: view._word(at))


def flag_at(at: int) -> Any:
    """Return the property that says whether a word of the header is not 0."""
    return property(lambda view: view._word(at) != 0)


class View:
    """The words of an engine, under plain names.

    Counts are those of the current run.
    """

    def __init__(self, mem: Array) -> None:
        self._mem = mem
        self._word: Callable[[int], int] = mem.item

    # ------------------------------------------------------------ words that `jit/layout.py` describes
    workers: int = word_at(L.WORKERS)
    ring_count: int = word_at(L.RINGS)
    window: int = word_at(L.WINDOW)
    id_window: int = word_at(L.ID_WINDOW)
    next_task_id: int = word_at(L.NEXT_TASK_ID)
    live: int = word_at(L.LIVE)
    edges: int = word_at(L.EDGE_COUNT)
    scope_depth: int = word_at(L.SCOPE_DEPTH)
    pushed: int = word_at(L.WIRING_PUSHED)
    taken: int = word_at(L.WIRING_TAKEN)
    buffers_known: int = word_at(L.MAP_COUNT)
    is_cancelled: bool = flag_at(L.CANCEL)
    has_failed: bool = flag_at(L.RUN_ERROR)
    not_noted: int = word_at(L.NOT_NOTED)
    is_traced: bool = flag_at(L.TRACING)
    ring_bytes: int = word_at(L.RING_BLOCK + L.R_SIZE)

    # ------------------------------------------------------------ workers and slots
    def pool(self, kind: int) -> range:
        return range(self._word(L.POOL_FIRST + kind), self._word(L.POOL_END + kind))

    def open_pool(self, kind: int) -> range:
        """Return those workers of a pool that take tasks which name none."""
        return range(self._word(L.POOL_FIRST + kind), self._word(L.POOL_OPEN + kind))

    def given(self, worker: int) -> int:
        """Return how many tasks a worker was sent that are not collected."""
        word = self._word
        return word(word(L.A_WORKERS) + worker * word(L.WORKER_STRIDE) + L.W_GIVEN)

    @property
    def slots(self) -> range:
        first = self._word(L.A_SLOTS)
        return range(first, first + self.window * L.SLOT_WORDS, L.SLOT_WORDS)

    def device_ns(self) -> Array:
        """Return the time that chips have ever spent on the tasks of each worker, ns."""
        first, stride = self._word(L.A_WORKERS) + L.W_DEVICE_NS, self._word(L.WORKER_STRIDE)
        times: Array = self._mem[first : first + self.workers * stride : stride].copy()
        return times

    # ------------------------------------------------------------ the run
    @property
    def ever_submitted(self) -> int:
        """How many tasks this and all earlier runs have submitted, for any thread."""
        return self._word(L.IDS_BEFORE) + self._word(L.NEXT_TASK_ID)

    def unended(self) -> list[int]:
        """Return those of `ever_submitted` that have not ended, sorted, for any thread.

        A task that ends meanwhile may be among them, and one that is submitted meanwhile may not.
        """
        before = self._word(L.IDS_BEFORE)
        return [before + id for id in S.unfinished(self._mem)]

    @property
    def ended(self) -> int:
        """How many tasks have completed or failed."""
        return self._word(L.COMPLETED_COUNT) + self._word(L.FAILED_COUNT)

    def failed_tasks(self) -> dict[int, bool] | None:
        """Return which tasks of a run have failed, and whether each may have begun; all have ended.

        Returns None if the slot of one is another task's by now; a slot that is only free still tells.
        """
        slots = S.used_slots(self._mem)
        found = slots[slots[:, L.S_BEGAN] != 0]
        if len(found) != self._word(L.FAILED_COUNT):
            return None
        began = (found[:, L.S_BEGAN] == L.MAY_HAVE_BEGUN).tolist()
        return dict(zip(found[:, L.S_ID].tolist(), began, strict=True))

    def first_failure(self) -> FirstFailure:
        """Return the run's first failure, if `has_failed`."""
        mem, word = self._mem, self._word
        callable_word, detail = word(L.ERROR_CALLABLE), word(L.ERROR_DETAIL)
        size = trace_size(word(L.ERROR_TRACE))
        first = L.ERROR_TRACE + 1
        return FirstFailure(
            outcome=word(L.RUN_ERROR),
            task=word(L.ERROR_TASK),
            callable=callable_word & L.CALLABLE_MASK,
            pool=callable_word >> L.WORD_KIND & S.KIND_MASK,
            worker=word(L.ERROR_WORKER),
            member=word(L.ERROR_MEMBER),
            exit_code=detail - L.DEATH_BIAS if detail else None,
            message=mem[L.ERROR_MSG : L.ERROR_MSG + L.ERROR_MSG_WORDS].tobytes(),
            trace=mem[first : first + -(-size // L.WORD)].tobytes()[:size],
            story=S.failure_story(mem),
        )

    def stuck_group(self) -> StuckGroup | None:
        """Return the group that a warning is due about, if there is one.

        It heads its ready chain as long as STUCK_SINCE stays the same, and its words do not change.
        """
        word = self._word
        for kind in (L.NEXT_LEVEL, L.SUB):
            since, slot = word(L.STUCK_SINCE + kind), word(L.READY_CHAINS + 2 * kind)
            if since and since == word(L.STUCK_TOLD) and slot != L.NONE:
                task, callable = self.task_of(slot)
                size, limit = word(slot + L.S_MEMBERS), word(L.STUCK_NS)
                if word(L.STUCK_SINCE + kind) == since:
                    return StuckGroup(task, callable, size, self.pool(kind), limit)
        return None

    # ------------------------------------------------------------ rings
    def ring(self, ring_idx: int) -> RingState:
        at = L.RING_BLOCK + ring_idx * L.LINE
        return RingState(*self._mem[at : at + L.LINE].tolist())

    def peaks(self) -> tuple[int, ...]:
        """Return the most bytes held at once, per ring; 0 for rings that do not exist."""
        end = L.RING_BLOCK + L.MAX_RING_DEPTH * L.LINE
        return tuple(self._mem[L.RING_BLOCK + L.R_PEAK : end : L.LINE].tolist())

    def oldest_first(self, ring_idx: int) -> list[int]:
        """Return the slots of a ring's live tasks, oldest first (on the Orch thread)."""
        mem, word, ring = self._mem, self._word, self.ring(ring_idx)
        base, mask = word(L.A_FIFO + ring_idx), word(L.FIFO_MASK + ring_idx)
        entries = base + (np.arange(ring.alive, ring.next) & mask) * L.FIFO_WORDS
        live = entries[mem[entries + L.FIFO_END] & 1 == 0]
        slots: list[int] = mem[live + L.FIFO_SLOT].tolist()
        return slots

    # ------------------------------------------------------------ queues and edges, while nothing moves
    def wiring_queue(self) -> list[int]:
        """Return the slots that wait to be wired, oldest first."""
        first = self._word(L.A_WIRING)
        waiting = range(self.taken, self.pushed)
        return [self._word(first + i % L.WIRING_CAPACITY) for i in waiting]

    def ready_queue(self, kind: int) -> list[int]:
        """Return the READY slots of a pool that name no worker, oldest first."""
        return self._chain(self._word(L.READY_CHAINS + 2 * kind), L.S_NEXT)

    def affinity_queue(self, worker: int) -> list[int]:
        """Return the READY slots that name a worker, oldest first."""
        start = self._word(L.A_WORKERS) + worker * self._word(L.WORKER_STRIDE)
        return self._chain(self._word(start + L.W_AFFINITY), L.S_NEXT)

    def consumed_list(self) -> list[int]:
        """Return the CONSUMED slots that wait for the Orch thread."""
        return self._chain(self._word(L.CONSUMED_HEAD), L.S_LINK)

    def scope(self, depth: int) -> list[int]:
        """Return the slots of an open scope, counted from 0, oldest first."""
        return self._chain(self._word(L.SCOPE_STACK + depth), L.S_LINK)[::-1]

    def _chain(self, slot: int, link: int) -> list[int]:
        found = []
        while slot != L.NONE:
            found.append(slot)
            slot = self._word(slot + link)
        return found

    def producers(self, slot: int) -> list[int]:
        """Return the slots to which a slot has an edge, those kept only for their memory included."""
        return [edge[L.EDGE_PRODUCER] for edge in S.edges_of(self._mem, slot)]

    def consumers(self, slot: int) -> list[int]:
        """Return the slots that are wired to a slot and wait for it."""
        edges = self._chain(self._word(slot + L.S_CONSUMERS), L.EDGE_NEXT)
        return [self._word(edge + L.EDGE_CONSUMER) for edge in edges]

    def map_entries(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return what the TensorMap has: (address, owner) → (slot, slot of the slab or NONE)."""
        first, size = self._word(L.MAP_BASE), (self._word(L.MAP_MASK) + 1) * L.ENTRY_WORDS
        table = self._mem[first : first + size].reshape(-1, L.ENTRY_WORDS)
        used = table[table[:, L.E_SLOT] != L.NONE].tolist()
        return {(data, owner): (slot, slab) for data, owner, slot, slab in used}

    # ------------------------------------------------------------ tasks, by what submit returned
    def pushed_as(self, number: int) -> int:
        """Return the slot of a task by how many were submitted before it: of one of the last ones."""
        return self._word(self._word(L.A_WIRING) + number % L.WIRING_CAPACITY)

    def provided(self, slot: int, tensors: int) -> bytes:
        """Return the tensors of a task just submitted, with the addresses that the runtime chose."""
        at = S.tensors_at(self._word(slot + L.S_BODY), tensors)
        wires: bytes = self._mem[at : at + tensors * L.TENSOR_WORDS].tobytes()
        return wires

    def buffer(self, slot: int) -> int:
        """Return the address of a buffer just claimed."""
        return self._word(S.tensors_at(self._word(slot + L.S_BODY), 1) + L.TENSOR_DATA)

    def is_slot(self, word: int) -> bool:
        """Say whether a number can be a slot: one read beside another thread may be invalid."""
        first = self._word(L.A_SLOTS)
        return first <= word < S.slot_at(first, self.window)

    def task_of(self, slot: int) -> tuple[int, int]:
        """Return the id of the task in a slot, and the index of its callable."""
        word = self._word(slot + L.S_CALLABLE)
        return self._word(slot + L.S_ID), word & L.CALLABLE_MASK

    def call(self, slot: int) -> CallView:
        word = self._word
        state, tensors = word(slot + L.S_STATE), word(slot + L.S_COUNTS) & L.LOW_HALF
        scalars = S.scalars_at(word(slot + L.S_BODY), tensors)
        return CallView(
            word(slot + L.S_ID),
            word(scalars + L.SCALAR_BITS),
            state == L.RUNNING,
            state == L.FAILED,
            word(slot + L.S_WORKER),
            word(slot + L.S_KIND),
            word(slot + L.S_VALUE),
        )

    def key_of(self, slot: int) -> int:
        """Return the block of a call's function; anything if the slot gets another task meanwhile."""
        with suppress(IndexError):
            return self.call(slot).key & L.CALL_KEY
        return L.NONE

    def is_pending(self, slot: int) -> bool:
        return self._word(slot + L.S_STATE) == L.PENDING

    def is_under_way(self, slot: int, task: int) -> bool:
        """Say whether a call has neither ended nor failed, whatever its slot is used for by now."""
        word = self._word
        waits_or_runs = word(slot + L.S_STATE) in (L.PENDING, L.READY, L.RUNNING)
        return waits_or_runs and word(slot + L.S_ID) == task

    def has_consumers(self, slot: int) -> bool:
        """Say whether calls that have not ended need what this one, which has ended, has returned."""
        released, total = divmod(self._word(slot + L.S_FANOUT), L.FANOUT_RELEASE)
        return total > released

    def outcome(self, slot: int) -> tuple[bool, int, int]:
        """Return whether a call that has ended has failed, and the kind and the word of its value."""
        word = self._word
        return word(slot + L.S_STATE) == L.FAILED, word(slot + L.S_KIND), word(slot + L.S_VALUE)

    def note_submit_line(self, number: int) -> None:
        """Say which line of the program submits what comes next, for a trace."""
        self._mem[L.SUBMIT_LINE] = number

    def take_notes(self, journal: int) -> Array:
        """Return the notes in a journal of an engine that has no collector, and free their room."""
        at = L.journal_offset(self._word(L.A_JOURNALS), journal)
        taken, pushed = self._word(at + L.J_TAKEN), self._word(at + L.J_PUSHED)
        mask, first = self._word(at + L.J_MASK), at + L.JOURNAL_HEAD_WORDS
        notes = self._mem[first : first + (mask + 1) * L.NOTE_WORDS].reshape(-1, L.NOTE_WORDS)
        taken_out: Array = notes[np.arange(taken, pushed) & mask]
        self._mem[at + L.J_TAKEN] = pushed
        return taken_out

    def place_rings(self, base: int, size: int) -> None:
        """Say where the heap rings of an engine are that provides addresses without memory."""
        for ring in range(self.ring_count):
            at = L.RING_BLOCK + ring * L.LINE
            self._mem[at + L.R_BASE], self._mem[at + L.R_SIZE] = base + ring * size, size

    def note_extras(self, bits: int) -> None:
        """Say what else is noted of tensors, and what workers are told: bits, see `EXTRA_SHAPES`."""
        self._mem[L.TRACE_EXTRAS] = bits

    def widen_unordered(self, low: int, high: int) -> None:
        """Say that tasks may write between two addresses at any time; see `UNORDERED_LOW`."""
        if self._word(L.UNORDERED_HIGH):
            low = min(low, self._word(L.UNORDERED_LOW))
            high = max(high, self._word(L.UNORDERED_HIGH))
        self._mem[L.UNORDERED_LOW], self._mem[L.UNORDERED_HIGH] = low, high

    def is_unordered(self, low: int, high: int) -> bool:
        """Say whether tasks may write something between two addresses at any time."""
        return low < self._word(L.UNORDERED_HIGH) and self._word(L.UNORDERED_LOW) < high

    def forget_unordered(self) -> None:
        self._mem[L.UNORDERED_LOW] = self._mem[L.UNORDERED_HIGH] = 0

    # ------------------------------------------------------------ sources of `encode`
    def write_config(self, index: int, wire: bytes) -> None:
        """Write a configuration, and the sizes that may follow it, for `encode`."""
        octets = self._mem.view(np.uint8)
        start = L.WORD * (self._word(L.A_CONFIGS) + index * L.CONFIG_ENTRY_WORDS)
        octets[start : start + L.WORD * L.CONFIG_ENTRY_WORDS] = 0
        config, env = wire[: L.CALL_CONFIG_SIZE], wire[L.CALL_CONFIG_SIZE :]
        octets[start : start + len(config)] = np.frombuffer(config, np.uint8)
        start += L.WORD * L.CONFIG_WORDS
        octets[start : start + len(env)] = np.frombuffer(env, np.uint8)

    def write_digest(self, index: int, digest: bytes) -> None:
        at = self._word(L.A_CALLABLES) + index * L.DIGEST_WORDS
        self._mem[at : at + L.DIGEST_WORDS] = np.frombuffer(digest, np.int64)


__all__ = ["FirstFailure", "RingState", "StuckGroup", "View", "trace_size"]
