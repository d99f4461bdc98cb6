"""Which endpoint is likely to begin a task first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from .counters import TASKS, UNMOVED, UNMOVED_NS
from .directory import HOME, Placed
from .link import Link

TASK_S = 1e-3
"""What a task is taken to last at an endpoint that has run none."""
BYTES_PER_S = 1e8
"""How fast tensors are taken to move: the cores at both ends have work meanwhile."""


class Outlook(Protocol):
    """Knows which tensors a task needs that others make, and which bytes an endpoint misses."""

    def outlook(self, uses: Any, where: int) -> tuple[Sequence[Any], int]:
        """Return both."""


class Queues:
    """The tasks that wait for each endpoint, as the thread that submits them counts.

    Rule     REMOTE-COPY-7
    """

    def __init__(self, link: Callable[[int], Link], directory: Outlook) -> None:
        self._link, self._directory = link, directory
        self._given: dict[int, int] = {}

    def begin_run(self, links: Iterable[Link]) -> None:
        """Begin with empty queues."""
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
        counted = int(words[UNMOVED])
        mean_s = int(words[UNMOVED_NS]) / counted / 1e9 if counted else TASK_S
        return max(0, turn - int(words[TASKS])) * mean_s

    def note_given(self, placed: Placed) -> None:
        """Note that an endpoint was given a task."""
        placed.set_turn(self.take_turn(placed.where))

    def take_turn(self, number: int) -> int:
        """Note that an endpoint was given a task, and return which one of its tasks it is."""
        turn = self._given[number] = self._given.get(number, 0) + 1
        return turn
