"""Where the tasks of a graph may run that is replayed in parts.

Several placements are made, and each is played through on paper: those that take far too long are left
out.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from .directory import REQUEST_BYTES
from .parts import PARENT, READS, WRITES, Action
from .split import PlacePart, SplitTask, split

SUBMIT_S = 1e-5
"""What it takes an endpoint to submit a task to its sub workers."""
PUSH_S = 4e-5
"""What it takes each of both sides that one pushes a tensor to the other."""
TRIP_S = 1e-4
"""How long it is under way, but for its bytes."""
BYTES_PER_S = 1e9
HOPELESS = 4.0
"""How many times as long as the best a placement may take on paper to be tried."""


class _Uses(NamedTuple):
    """The versions of tensors that a task reads, with their bytes, and those that it makes.

    `owned` are those that it reads and replaces.
    """

    reads: Sequence[tuple[int, int]]
    owned: Sequence[int]
    makes: Sequence[int]
    level: int


def partitions(
    tasks: Sequence[SplitTask],
    allowed: Sequence[Collection[int]],
    sizes: Sequence[int],
    of_parent: Collection[int],
    seats: Mapping[int, int],
    task_s: float,
) -> list[dict[int, PlacePart]]:
    """Return the parts of some placements; that which is likely to end first is first.

    Parameters
    ----------
    tasks
        The tasks; where they run is not looked at.
    allowed
        The endpoints that each may run at.
    sizes, of_parent
        See `split`.
    seats
        The sub workers of each endpoint.
    task_s
        How long a task lasts.

    Notes
    -----
    Rule     SPEED-PARTS-2
    """
    uses = _uses_of(tasks, sizes)
    tried: set[tuple[int, ...]] = set()
    found: list[tuple[float, dict[int, PlacePart]]] = []
    for places in _placements(uses, allowed, seats):
        if tuple(places) in tried:
            continue
        tried.add(tuple(places))
        placed = [one._replace(place=at) for one, at in zip(tasks, places, strict=True)]
        parts = split(placed, sizes, of_parent)
        found.append((duration_s(parts, seats, task_s), parts))
    found.sort(key=lambda one: one[0])
    return [parts for ends, parts in found if ends <= HOPELESS * found[0][0]]


# ---------------------------------------------------------------- placements
def _uses_of(tasks: Sequence[SplitTask], sizes: Sequence[int]) -> list[_Uses]:
    """Return what tasks read and make, by versions that are numbered through the graph."""
    newest: dict[int, int] = {}
    levels: dict[int, int] = {}
    found, count = [], 0
    for task in tasks:
        reads, owned = [], []
        for use in task.uses:
            if use.tag in READS:
                if use.tensor not in newest:
                    newest[use.tensor], count = count, count + 1
                reads.append((newest[use.tensor], sizes[use.tensor]))
                if use.tag in WRITES:
                    owned.append(newest[use.tensor])
        level = max((levels.get(version, -1) for version, _ in reads), default=-1) + 1
        makes = []
        for use in task.uses:
            if use.tag in WRITES:
                newest[use.tensor], count = count, count + 1
                levels[newest[use.tensor]] = level
                makes.append(newest[use.tensor])
        found.append(_Uses(reads, owned, makes, level))
    return found


def _placements(
    uses: Sequence[_Uses], allowed: Sequence[Collection[int]], seats: Mapping[int, int]
) -> Iterator[list[int]]:
    """Yield where each task runs, in several ways."""
    for place in seats:
        if all(place in one for one in allowed):
            yield [place] * len(uses)
    if len(seats) > 1:
        yield _by_level(uses, allowed, seats, _by_what_is_there)
        yield _by_level(uses, allowed, seats, _by_what_is_replaced)


Cost = Callable[[_Uses, int, Mapping[int, set[int]], int, float], tuple[float, ...]]
"""Of a task at an endpoint: by who has which version, how many tasks of its level are there, and how far
the endpoint's place among all is from that of the task in its level."""


def _by_what_is_there(
    one: _Uses, place: int, holders: Mapping[int, set[int]], load: int, far: float
) -> tuple[float, ...]:
    missing = _missing(one, place, holders)
    return missing, far, load


def _by_what_is_replaced(
    one: _Uses, place: int, holders: Mapping[int, set[int]], load: int, far: float
) -> tuple[float, ...]:
    lacks = sum(1 for version in one.owned if holders[version] and place not in holders[version])
    return lacks, load, _missing(one, place, holders), far


def _missing(one: _Uses, place: int, holders: Mapping[int, set[int]]) -> int:
    return sum(
        (nbytes + REQUEST_BYTES) * (2 if version in one.owned else 1)
        for version, nbytes in one.reads
        if place not in holders[version]
    )


def _by_level(
    uses: Sequence[_Uses],
    allowed: Sequence[Collection[int]],
    seats: Mapping[int, int],
    cost: Cost,
) -> list[int]:
    """Place tasks level by level, as many of each at an endpoint as it has part of the sub workers."""
    levels: defaultdict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(uses):
        levels[one.level].append(i)
    order, total = {place: i for i, place in enumerate(seats)}, sum(seats.values())
    holders: defaultdict[int, set[int]] = defaultdict(set)
    places = [0] * len(uses)
    for level in sorted(levels):
        load = dict.fromkeys(seats, 0)
        width = len(levels[level])
        room = {place: math.ceil(width * count / total) for place, count in seats.items()}
        for k, i in enumerate(levels[level]):
            one = uses[i]
            free = [place for place in allowed[i] if load[place] < room[place]] or allowed[i]
            middle = (k + 0.5) / width * len(seats) - 0.5
            chosen = min(
                free,
                key=lambda at: cost(one, at, holders, load[at], abs(order[at] - middle)),
            )
            places[i] = chosen
            load[chosen] += 1
            for version, _ in one.reads:
                holders[version].add(chosen)
            for version in one.makes:
                holders[version].add(chosen)
    return places


# ---------------------------------------------------------------- on paper
class _Player:
    """An endpoint that carries out its part on paper."""

    def __init__(self, part: PlacePart, seats: int, task_s: float) -> None:
        self._part, self._task_s = part.part, task_s
        self._at = 0
        self.now = self._ends = 0.0
        """When it carries out the next operation, and when all tasks so far have ended."""
        self._free = [0.0] * seats
        self._made: dict[int, float] = {}
        self._used: dict[int, float] = {}
        """When what is in memory was made, and when the last use of it has ended."""

    @property
    def is_done(self) -> bool:
        """Whether it has come to its end."""
        return self._at == len(self._part.operations)

    def play(self, arrivals: dict[int, float]) -> bool:
        """Go on until something has not been pushed; return whether anything was carried out."""
        first = self._at
        while not self.is_done:
            one = self._part.operations[self._at]
            if one.action == Action.RUN:
                self._run([(use.tensor, use.tag in WRITES) for use in one.uses])
            elif one.action == Action.RECEIVE:
                if one.peer != PARENT and one.number not in arrivals:
                    break
                self._receive(one.tensor, arrivals.get(one.number, 0.0))
            elif one.action == Action.SEND:
                arrives = self._send(one.tensor)
                if one.peer != PARENT:
                    arrivals[one.number] = arrives
            else:
                self.now = max(self.now, self._used.get(one.tensor, 0.0))
            self._at += 1
        return self._at > first

    def _receive(self, tensor: int, arrival: float) -> None:
        seconds = PUSH_S + self._part.tensors[tensor].nbytes / BYTES_PER_S
        self.now = max(self.now, arrival, self._used.get(tensor, 0.0)) + seconds
        self._made[tensor] = self._used[tensor] = self.now

    def _send(self, tensor: int) -> float:
        """Push a tensor when it is made; return when it arrives."""
        made = self._made.get(tensor, 0.0)
        seconds = PUSH_S + self._part.tensors[tensor].nbytes / BYTES_PER_S
        self.now += seconds
        self._used[tensor] = max(made, self.now) + seconds
        return self._used[tensor] + TRIP_S

    def _run(self, uses: Sequence[tuple[int, bool]]) -> None:
        self.now += SUBMIT_S
        ready = max((self._made.get(tensor, 0.0) for tensor, _ in uses), default=0.0)
        ends = max(self.now, heapq.heappop(self._free), ready) + self._task_s
        heapq.heappush(self._free, ends)
        self._ends = max(self._ends, ends)
        for tensor, writes in uses:
            self._used[tensor] = max(self._used.get(tensor, 0.0), ends)
            if writes:
                self._made[tensor] = ends

    def end(self) -> float:
        """Return when all of it has ended."""
        return max(self.now, self._ends)


def duration_s(parts: Mapping[int, PlacePart], seats: Mapping[int, int], task_s: float) -> float:
    """Return how long a replay in these parts may take."""
    players = [_Player(part, seats[place], task_s) for place, part in parts.items()]
    arrivals: dict[int, float] = {}
    while not all(one.is_done for one in players):
        went_on = [one.play(arrivals) for one in players]
        assert any(went_on), "the parts wait for each other in a circle"
    return max(one.end() for one in players)
