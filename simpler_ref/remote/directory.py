"""The directory: which versions of the parent's tensors there are, and where; who begins a task first.

It is kept in the order in which tasks are submitted, by the thread that submits them. A task that is
submitted later sees a tensor as the tasks before it will have left it; that they have ended by then
follows from the dependencies, which are those of a program without endpoints.

A run and a stream of calls have one each. In a run a version stays where it was made until somebody else
needs it, and the program writes nothing meanwhile. What a call writes is in the program's memory when the
call has ended, so that always has the current version; but the program may write an array once all calls
that use it have ended, so what endpoints have of it is right only as long as one of them has not.

Rule     CALL-FAR-3, CALL-FAR-4, CALL-FAR-8, CALL-FAR-11, REMOTE-COPY-1, REMOTE-COPY-3, REMOTE-COPY-6,
         REMOTE-COPY-7
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..jit import layout as L
from ..model.tensor import share_bytes, view_memory
from ..model.wire import (
    CHILD_MEMORY_AT,
    RIGHTS,
    SHAPE_AT,
    TAG_AT,
    Layout,
    RemoteWire,
    bytes_below,
    bytes_of,
    span_of,
)
from ..system.types import Array
from .limits import TASK_NS, TASKS
from .tasks import size_of

HOME = -1
"""The place of the parent's own memory, where places of others are endpoints' ids."""
MOST_DROPPED = 64
"""Copies that one task tells its endpoint to forget."""
REQUEST_BYTES = 100_000
"""What it costs both ends to ask for a tensor, in bytes that could move meanwhile."""
TASK_NS_UNKNOWN = 10**6
"""What a task is taken to last at an endpoint that has run none."""
BYTES_PER_S = 1e8
"""How fast tensors are taken to move: the cores at both ends have work meanwhile."""
_MOST_WORK = 1 << 12
"""Of numpy's search for a byte that two arrays share; beyond that they count as sharing some."""
_FEW = 64
Name = tuple[Any, ...]
"""What tensors are known by: the span of one that has all of its bytes; else the layout, too."""


# ---------------------------------------------------------------- what links are told
class CopyPlan(NamedTuple):
    """A tensor of a task: its key (0: it is no copy), the versions that the task reads and makes, and
    which endpoint has made the first, plus one; 0: the parent.
    """

    key: int = 0
    reads: int = 0
    makes: int = 0
    source: int = 0


class Plan(NamedTuple):
    """What the link of an endpoint is told of a task or a call.

    `tensors` has a `CopyPlan` for each tensor. `run` numbers runs and streams of calls: copies of an
    earlier one are stale. `dropped` are keys that the session forgets.
    """

    run: int
    tensors: Sequence[CopyPlan]
    dropped: Sequence[int] = ()
    goes_home: bool = False
    """The task only brings its tensor home."""
    only: tuple[int, int] | None = None
    """The endpoint, and the sub worker there, that alone may run a call."""

    def words(self) -> list[int]:
        """Return it as words; the last one is how many there are before it."""
        only = 0 if self.only is None else (self.only[0] << L.HALF | self.only[1]) + 1
        told = [self.run << 1 | self.goes_home, only, len(self.dropped), *self.dropped]
        for one in self.tensors:
            told += one.key, one.reads << L.HALF | one.makes, one.source
        return [*told, len(told)]

    @classmethod
    def take(cls, words: list[int], kinds: list[int]) -> Plan:
        """Take it out of the scalars of a task, where the block of a call's data may follow it."""
        end = len(words) - (kinds[len(words) - 1] == L.PAYLOAD)
        start = end - 1 - words[end - 1]
        head, only, count, *rest = words[start : end - 1]
        del words[start:end], kinds[start:end]
        low = L.LOW_HALF
        tensors = [
            CopyPlan(rest[i], rest[i + 1] >> L.HALF, rest[i + 1] & low, rest[i + 2])
            for i in range(count, len(rest), 3)
        ]
        where = None if not only else ((only - 1) >> L.HALF, (only - 1) & low)
        return cls(head >> 1, tensors, rest[:count], bool(head & 1), where)


# ---------------------------------------------------------------- what is known of tensors
@dataclass(slots=True)
class Made:
    """Versions that one place has made, from `first` to `last`.

    `task`: that of an endpoint without which there is none of them; −1 if there is no such task.
    `is_blind`: tasks of this machine, which did not need the version before to come home.
    """

    maker: int
    first: int
    last: int
    is_blind: bool = False
    task: int = -1


@dataclass(eq=False, slots=True)
class Use:
    """What a task does with a tensor: `rights` are TENSOR_READ and TENSOR_WRITE.

    `index` is that of the tensor among the task's. `start` is 0 until the runtime has provided the
    memory. `layout` is that of a tensor with gaps. A use of the value of a call has the call's `slot`.
    """

    index: int
    start: int
    nbytes: int
    rights: int
    wire: bytes = b""
    layout: Layout | None = None
    slot: int = 0

    reads: bool = field(init=False)
    writes: bool = field(init=False)

    def __post_init__(self) -> None:
        self.reads = bool(self.rights & L.TENSOR_READ)
        self.writes = bool(self.rights & L.TENSOR_WRITE)

    @property
    def name(self) -> Name:
        if self.layout is None:
            return self.start, self.nbytes
        return self.start, self.nbytes, span_of(self.layout)[0], *self.layout

    @property
    def size(self) -> int:
        """The bytes of its elements."""
        return self.nbytes if self.layout is None else size_of(self.layout)

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.nbytes

    def covers(self, other: Use) -> bool:
        end = self.start + self.nbytes
        return self.start <= other.start and other.start + other.nbytes <= end

    def shares(self, other: Use) -> bool:
        """Say whether it shares bytes with another one; if either has gaps, whether it may."""
        if self.start >= other.start + other.nbytes or other.start >= self.start + self.nbytes:
            return False
        if self.layout is None and other.layout is None:
            return True
        return share_bytes(self._view(), other._view(), _MOST_WORK)

    def _view(self) -> Array:
        if self.layout is None:
            return view_memory(self.start, (self.nbytes,), np.dtype(np.uint8))
        dtype, shape, strides = self.layout
        return view_memory(self.start + span_of(self.layout)[0], shape, dtype, strides=strides)


@dataclass(eq=False, slots=True)
class Held:
    """What is known of one tensor, of which `use` is the first: one of the parent, or a call's value."""

    use: Use
    key: int = field(default_factory=lambda: secrets.randbits(63) | 1)
    """Its name in messages."""
    version: int = 1
    """The one that is current once what was submitted has ended."""
    maker: int = HOME
    """Who makes it."""
    handle: Any = None
    """The callable whose task makes it."""
    turn: int = 0
    """Which of its endpoint's tasks that is, counted from 1."""
    holders: set[int] = field(default_factory=lambda: {HOME})
    """Who has it then."""
    stale: set[int] = field(default_factory=set)
    """Who may have another one."""
    makers: list[Made] = field(default_factory=lambda: [Made(HOME, 1, 1)])
    """Who has made which versions, oldest first."""
    users: list[tuple[int, int]] = field(default_factory=list)
    """The calls that use it: slot and number of each."""
    most: int = _FEW
    """How many users there may be before those are left out whose calls have ended."""

    @property
    def is_home(self) -> bool:
        return HOME in self.holders

    @property
    def span(self) -> tuple[int, int]:
        return self.use.span

    def make(self, maker: int, handle: Any = None, task: int = -1, reads: bool = False) -> None:
        """Note that somebody makes a new version, by a task that reads the one before or does not."""
        self.version += 1
        self.stale |= self.holders - {maker}
        is_blind = maker == HOME and not self.is_home
        self.maker, self.holders, self.handle = maker, {maker}, handle
        if self.makers[-1].maker == maker:
            self.makers[-1].last = self.version
            if not reads:  # so it does not fail with those before
                self.makers[-1].task = -1
        else:
            self.makers.append(Made(maker, self.version, self.version, is_blind, task))


Placed = Sequence[tuple[Use, Held]]
"""What a task does with which tensors."""


def require_apart(members: Sequence[Sequence[Use]], what: str = "tensors {} and {}") -> None:
    """Refuse a task of which some tensors share bytes that it writes: each would get a copy of its own.

    The same tensor may be named several times, but not by several members of a group.
    """
    uses = [(i, use) for i, its in enumerate(members) for use in its if use.start and use.nbytes]
    met: list[tuple[int, Use]] = []
    reach = 0
    for i, use in sorted(uses, key=lambda one: one[1].start):
        if use.start >= reach:
            met = []
        for j, other in met:
            if not (use.writes or other.writes) or (i == j and use.name == other.name):
                continue
            if not use.shares(other):
                continue
            if i != j:
                raise ValueError(
                    f"members {min(i, j)} and {max(i, j)} of the group name the same bytes, which one of "
                    "them writes, and each would get a copy of its own at its endpoint: give each member "
                    "a part of its own"
                )
            both = what.format(*sorted((use.index, other.index)))
            raise ValueError(
                f"{both} share some bytes, and are not the same, and an endpoint would get a copy of "
                "each: give it one that has all of the bytes"
            )
        met.append((i, use))
        reach = max(reach, use.start + use.nbytes)


class Directory:
    """The tensors of which endpoints have, or had, copies; and the tasks that wait for each endpoint.

    `links` returns those of the endpoints. `is_under_way` says of a call, by slot and number, whether it
    has not ended: then it is the directory of a stream of calls, otherwise that of runs.
    """

    def __init__(
        self,
        links: Callable[[], Sequence[Any]],
        is_under_way: Callable[[int, int], bool] | None = None,
    ) -> None:
        self._links, self._is_under_way = links, is_under_way
        self._words: dict[int, Any] = {}
        """The counters of each endpoint's link."""
        self._given: Counter[int] = Counter()
        """How many tasks each was given, counted as its link does."""
        self.clear()

    def empty_queues(self) -> None:
        """Begin with no task that waits."""
        self._words = {link.number: link.words for link in self._links()}
        self._given = Counter({one: int(words[TASKS]) for one, words in self._words.items()})

    def clear(self) -> None:
        self._held: dict[Name, Held] = {}
        self._sorted: list[tuple[int, int, int, Held]] = []
        """The same: first byte and how many of each, its id, and it."""
        self._longest = 0
        self.values: dict[int, Held] = {}
        """The values of calls, which have no address, by the slots of these."""
        self._retired: deque[Held] = deque()
        """Those of which endpoints forget their copies, once no call uses them."""
        self._dropped: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Held]:
        return iter([one for *_, one in self._sorted])

    def overlapping(self, start: int, nbytes: int) -> list[Held]:
        """Return those that share bytes with a span."""
        at = bisect_left(self._sorted, (start - self._longest,))
        end = bisect_left(self._sorted, (start + nbytes,))
        return [held for first, size, _, held in self._sorted[at:end] if first + size > start]

    # ------------------------------------------------------------ before a submit
    def to_bring_home(self, uses: Iterable[Use], where: int) -> tuple[list[Held], bool]:
        """Return the tensors that must come home before a task, and whether it must wait for that.

        A tensor that the task itself names comes home, or not, before it by its own dependencies. One
        that shares bytes with what it names has none to the task.
        """
        found: dict[tuple[int, int], Held] = {}
        must_wait = False
        for use in uses:
            if not use.start or not use.nbytes:
                continue
            for held in self.overlapping(*use.span):
                if held.is_home:
                    continue
                if held.span == use.span:
                    if where == HOME and use.reads:
                        found[held.span] = held
                        must_wait |= use.wire[TAG_AT] == L.NO_DEP
                elif use.reads or not use.covers(held.use):
                    found[held.span] = held
                    must_wait = True
        return list(found.values()), must_wait

    def start_s(self, number: int, uses: Iterable[Use]) -> float:
        """Estimate in how many seconds an endpoint would begin a task.

        What the task reads is made when the queue of its maker has come to that: an endpoint whose
        queue ends with that task can begin this one no later than any other. Then it has to move. What
        the task also writes counts twice: where it is now is where it may be needed next. Each tensor of
        a run counts as some more, since it has to be asked for.
        """
        wait_s, missing = self._wait_s(number, self._given[number]), 0
        extra = REQUEST_BYTES if self._is_under_way is None else 0
        for use in uses:
            if use.reads and (use.start or use.slot):
                held = self.values.get(use.slot) if use.slot else self._current(use)
                if held is not None and held.maker != HOME:
                    wait_s = max(wait_s, self._wait_s(held.maker, held.turn))
                if held is None or number not in held.holders:
                    missing += (use.size + extra) * (2 if use.writes else 1)
        return wait_s + missing / BYTES_PER_S

    def _wait_s(self, number: int, turn: int) -> float:
        """Estimate how long an endpoint takes to end so many tasks, counted from its first."""
        words = self._words[number]
        return max(0, turn - int(words[TASKS])) * (int(words[TASK_NS]) or TASK_NS_UNKNOWN) / 1e9

    def _current(self, use: Use) -> Held | None:
        """Return what is known of a tensor; if no call uses it, the program may have changed it."""
        held = self._held.get(use.name)
        if held is None or self._is_under_way is None or self._is_used(held):
            return held
        self._retire(held)
        return None

    def _is_used(self, held: Held) -> bool:
        users = held.users
        while users and not self._is_under_way(*users[-1]):  # type: ignore[misc]
            users.pop()
        return bool(users)

    def place(self, uses: Sequence[Use]) -> Placed:
        """Return what is known of the tensors of a task for an endpoint, or will be."""
        fresh: dict[Name, Held] = {}
        placed = []
        for use in uses:
            held = (self._current(use) or fresh.get(use.name)) if use.start else None
            if held is None:
                held = fresh[use.name] = Held(use)
            placed.append((use, held))
        return placed

    def plan(
        self,
        run: int,
        where: int,
        placed: Placed,
        count: int,
        only: tuple[int, int] | None = None,
    ) -> Plan:
        """Return what an endpoint is told of a task with `count` tensors: see `Plan`."""
        writes = {held.key for use, held in placed if use.writes}
        plans = [CopyPlan()] * count
        for use, held in placed:
            plans[use.index] = CopyPlan(
                held.key,
                held.version if use.reads and use.nbytes else 0,
                held.version + 1 if held.key in writes else 0,
                held.maker + 1 if self._is_under_way is None else 0,
            )
        while self._retired and not self._is_used(self._retired[0]):
            gone = self._retired.popleft()
            for one in gone.holders | gone.stale:
                if one != HOME:
                    self._dropped.setdefault(one, []).append(gone.key)
        return Plan(run, plans, self._dropped.get(where, [])[:MOST_DROPPED], only=only)

    # ------------------------------------------------------------ after a submit
    def note_task(
        self,
        where: int,
        placed: Placed,
        handle: Any = None,
        call: tuple[int, int] | None = None,
        task: int = -1,
    ) -> int:
        """Note what a task of an endpoint will have done, or a call, of which there are slot and number.

        All of its tensors have memory by now; `task` is its number. Returns which of the endpoint's tasks
        it is.
        """
        self._given[where] += 1
        turn = self._given[where]
        if placed or call is not None:  # so there was a plan
            del self._dropped.get(where, [])[:MOST_DROPPED]
        made: dict[int, tuple[Held, bool]] = {}
        for use, held in placed:
            if use.writes:
                held.turn = turn
                self._overwrite(use, held)
                made[held.key] = held, use.reads
            else:
                held.holders.add(where)
            if held.use.name not in self._held:
                self._held[held.use.name] = held
                insort(self._sorted, (*held.span, id(held), held))
                self._longest = max(self._longest, held.span[1])
            if call is not None:
                self._note_user(held, call)
        for held, reads in made.values():
            held.make(where, handle, task, reads)
            if call is not None:  # its end leaves the version in this machine's memory
                del held.makers[:-1]
        return turn

    def _note_user(self, held: Held, call: tuple[int, int]) -> None:
        held.users.append(call)
        if len(held.users) > held.most:
            held.users = [one for one in held.users if self._is_under_way(*one)]  # type: ignore[misc]
            held.most = max(_FEW, 2 * len(held.users))

    def note_here(self, uses: Iterable[Use]) -> None:
        """Note what a task of this machine will have written."""
        for use in uses:
            if use.writes and use.start and use.nbytes:
                held = self._held.get(use.name)
                self._overwrite(use, held)
                if held is not None:
                    held.make(HOME)

    def forget(self, held: Held) -> None:
        del self._held[held.use.name]
        del self._sorted[bisect_left(self._sorted, (*held.span, id(held)))]

    def give_back(self, start: int, nbytes: int) -> None:
        """Note that memory of a ring is a new tensor's: all tasks that have used it before have ended."""
        for held in self.overlapping(start, nbytes):
            self._retire(held)

    def _retire(self, held: Held) -> None:
        """Forget a tensor, and have endpoints forget it."""
        self.forget(held)
        self._retired.append(held)

    def _overwrite(self, use: Use, but: Held | None) -> None:
        """Forget, or note as changed, what shares bytes with a tensor that is written."""
        for held in self.overlapping(*use.span):
            if held is but:
                continue
            if self._is_under_way is not None:
                if held.use.shares(use):
                    self._retire(held)
            elif use.covers(held.use):
                self.forget(held)
            else:
                held.make(HOME)


def uses_of(wires: Sequence[bytes]) -> list[Use]:
    """Return what a task does with those of its tensors that are in this machine's memory."""
    found = []
    for i, wire in enumerate(wires):
        if isinstance(wire, RemoteWire) or wire[CHILD_MEMORY_AT] & 1:
            continue
        address = int.from_bytes(wire[:SHAPE_AT], "little")
        start = address - bytes_below(wire) if address else 0
        found.append(Use(i, start, bytes_of(wire), RIGHTS[wire[TAG_AT]], wire))
    return found
