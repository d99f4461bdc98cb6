"""What surrounds a task that has failed: its state then, what it waited for, what waits for it.

The Scheduler keeps this of a run's first failure in words of its own, since the slot may have another
task when Python looks. A call keeps its slot as long as its future refers to it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...jit import layout as L
from ...model.enums import TaskState
from ...system.types import Array
from .slots import edges_of, used_slots


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
    """Return the story of the run's first failure.

    Rule     SEE-STORY-1
    """
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
    """Return the story of a call that has failed by itself.

    Rule     SEE-STORY-2
    """
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
