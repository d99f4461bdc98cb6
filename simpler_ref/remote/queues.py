"""Which endpoint is likely to begin a task first.

Rule     REMOTE-COPY-7
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from .directory import HOME, Directory, Placed
from .limits import BUSY_NS, TASKS
from .link import Link

TASK_S = 1e-3
"""What a task is taken to last at an endpoint that has run none."""
MEMORY = 32
"""For how many tasks the mean of those before counts, against tasks since queues were empty last."""
BYTES_PER_S = 1e8
"""How fast tensors are taken to move: the cores at both ends have work meanwhile."""


class _Pace:
    """How long the tasks of an endpoint last, of late: its first ones may be slow."""

    def __init__(self) -> None:
        self._mean_s = TASK_S
        self._weight = self._count = self._ns = 0

    def mean_s(self, words: Any) -> float:
        """Return the mean in seconds, by the counters of the endpoint's link."""
        count, ns = int(words[TASKS]) - self._count, int(words[BUSY_NS]) - self._ns
        if count <= 0:
            return self._mean_s
        return (self._weight * self._mean_s + ns / 1e9) / (self._weight + count)

    def begin(self, words: Any) -> None:
        """Let the tasks so far count as those before."""
        count, ns = int(words[TASKS]), int(words[BUSY_NS])
        if count > self._count:
            self._mean_s = self.mean_s(words)
            self._weight = min(MEMORY, self._weight + count - self._count)
        self._count, self._ns = count, ns  # which begin anew with the link


class Queues:
    """The tasks that wait for each endpoint, as the thread that submits them counts."""

    def __init__(self, link: Callable[[int], Link], directory: Directory) -> None:
        self._link, self._directory = link, directory
        self._given: dict[int, int] = {}
        self._paces: defaultdict[int, _Pace] = defaultdict(_Pace)

    def begin_run(self, links: Iterable[Link]) -> None:
        """Begin with empty queues."""
        links = list(links)
        for link in links:
            self._paces[link.number].begin(link.words)
        self._given = {link.number: int(link.words[TASKS]) for link in links}

    def start_s(self, number: int, uses: Any) -> float:
        """Estimate in how many seconds an endpoint would begin a task.

        What the task reads is made when the queue of its maker has come to that: an endpoint whose
        queue ends with that task can begin this one no later than any other.
        """
        needed, missing = self._directory.outlook(uses, number)
        waits = [self._wait_s(number, self._given.get(number, 0))]
        waits += [self._wait_s(held.maker, held.turn) for held in needed if held.maker != HOME]
        return max(waits) + missing / BYTES_PER_S

    def _wait_s(self, number: int, turn: int) -> float:
        """Estimate how long an endpoint takes to end so many tasks, counted from its first."""
        words = self._link(number).words
        return max(0, turn - int(words[TASKS])) * self._paces[number].mean_s(words)

    def note_given(self, placed: Placed) -> int:
        """Note that an endpoint was given a task, and return which one of its tasks it is."""
        turn = self._given[placed.where] = self._given.get(placed.where, 0) + 1
        placed.set_turn(turn)
        return turn
