"""What an engine does at the moment, and what surrounds a task that has failed, for people.

Nothing is changed, and no lock is taken.

What is said of one worker's task belongs together. Counts of tasks are made while these go on: each task
is counted as it was at some moment of the look.

Of a run's first failure the Scheduler keeps what surrounded its task in words of its own, since the slot
may have another task when Python looks. A call keeps its slot as long as its future refers to it.

Rule     SEE-STORY-1; SEE-TOP-1
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...jit import layout as L
from ...model.enums import TaskState
from ...system.types import Array
from .slots import RING_MASK, edges_of, slot_at, used_slots

_LOOKS = 16
"""A worker that ends so many tasks during a look at it has none that runs for a time to be told."""


class Running(NamedTuple):
    """The task that a worker runs."""

    task: int
    callable: int
    """Index of its callable."""
    key: int
    """Of a call: the block of its function."""
    since_ns: int
    """When it began, by the monotonic clock, a few ms too early at most."""


class TaskCounts(NamedTuple):
    """How many of the live tasks are what."""

    pending: int
    """They wait for other tasks."""
    ready: int
    """They wait for a free worker."""
    named: list[int]
    """How many of the ready ones name each worker."""
    rings: list[int]
    """How many, ended ones included, have a place in each ring."""


def running(mem: Array, start: int) -> Running | None:
    """Return the task that the worker whose words begin at `start` runs; None if it runs none.

    The frame is that of the same task before and after, or the look is made again. A worker writes when
    a task began after it has received it, and 0 before it answers.
    """
    for _ in range(_LOOKS):
        seen = _frame_words(mem, start)
        if seen is None:
            return None
        found = _read(mem, *seen)
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


def _read(mem: Array, frame: int, _filled: int, slot: int, since: int) -> Running:
    callable = mem.item(slot + L.S_CALLABLE) & L.CALLABLE_MASK
    box = frame + L.W_MAILBOX
    tensors = min(mem.item(box + L.MAIL_COUNTS) & L.LOW_HALF, L.MAILBOX_WORDS // L.TENSOR_WORDS)
    key = mem.item(box + L.MAIL_TENSORS + tensors * L.TENSOR_WORDS) & L.CALL_KEY
    return Running(mem.item(slot + L.S_ID), callable, key, since)


def count_tasks(mem: Array) -> TaskCounts:
    """Count the live tasks; the time it takes grows with their number."""
    slots, workers = used_slots(mem), mem.item(L.WORKERS)
    states, places = slots[:, L.S_STATE].copy(), slots[:, L.S_RING]
    is_live = (states > L.FREE) & (states != L.CONSUMED)
    ready = slots[states == L.READY, L.S_CALLABLE]
    named = (ready >> L.WORD_WORKER & L.WORKER_MASK)[ready >= 0]
    rings = places[is_live] & RING_MASK
    return TaskCounts(
        pending=int(np.count_nonzero(states == L.PENDING)),
        ready=int(np.count_nonzero(states == L.READY)),
        named=np.bincount(named[named <= workers], minlength=workers + 1)[1:].tolist(),
        rings=np.bincount(rings, minlength=mem.item(L.RINGS))[: mem.item(L.RINGS)].tolist(),
    )


# ---------------------------------------------------------------- tasks that have failed
class Others(NamedTuple):
    """Tasks that one depends on, or that depend on it."""

    number: int
    first: list[tuple[int, int | None]]
    """Ids of the first of them, and the index of each one's callable: None of a buffer, or if unknown."""


class Story(NamedTuple):
    """What surrounds a task that has failed."""

    state: TaskState
    needed: Others
    """What it waited for."""
    needing: Others
    """What waits for it."""


def failure_story(mem: Array) -> Story:
    """Return the story of the run's first failure."""
    return Story(
        TaskState(mem.item(L.ERROR_STATE)),
        _others_at(mem, L.ERROR_NEEDED),
        _others_at(mem, L.ERROR_NEEDING),
    )


def _others_at(mem: Array, at: int) -> Others:
    number = mem.item(at)
    words = mem[at + 1 : at + 1 + 2 * min(number, L.MOST_TOLD)].tolist()
    pairs = zip(words[::2], words[1::2], strict=True)
    return Others(number, [(one, None if w < 0 else w & L.CALLABLE_MASK) for one, w in pairs])


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
    return Others(len(found), [(one, None) for one in found[: L.MOST_TOLD]])
