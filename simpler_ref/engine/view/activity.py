"""What an engine does at the moment, for people: nothing is changed, and no lock is taken.

What is said of one worker's task belongs together. Counts of tasks are made while these go on: each task
is counted as it was at some moment of the look.

Rule     SEE-TOP-1, -2
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...jit import layout as L
from ...system.types import Array
from .slots import used_slots

_STATE_MASK = 0xFFFFFFFF
_RING_MASK = 7
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

    Rule     SEE-TOP-2
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
    state = mem.item(frame + L.W_MAILBOX + L.MAIL_STATE) & _STATE_MASK
    since, slot = mem.item(start + L.W_SINCE), mem.item(frame + L.W_SLOT)
    first = mem.item(L.A_SLOTS)
    is_slot = first <= slot < first + mem.item(L.WINDOW) * L.SLOT_WORDS
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
    """Count the live tasks; the time it takes grows with their number.

    Rule     SEE-TOP-3
    """
    slots, workers = used_slots(mem), mem.item(L.WORKERS)
    states, places = slots[:, L.S_STATE].copy(), slots[:, L.S_RING]
    is_live = (states > L.FREE) & (states != L.CONSUMED)
    ready = slots[states == L.READY, L.S_CALLABLE]
    named = (ready >> L.WORD_WORKER & L.WORKER_MASK)[ready >= 0]
    rings = places[is_live] & _RING_MASK
    return TaskCounts(
        pending=int(np.count_nonzero(states == L.PENDING)),
        ready=int(np.count_nonzero(states == L.READY)),
        named=np.bincount(named[named <= workers], minlength=workers + 1)[1:].tolist(),
        rings=np.bincount(rings, minlength=mem.item(L.RINGS))[: mem.item(L.RINGS)].tolist(),
    )
