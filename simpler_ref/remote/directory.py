"""The directory of a run: which versions of the parent's tensors there are, and where.

It is kept in the order in which tasks are submitted, by the thread that submits them. A task that is
submitted later sees a tensor as the tasks before it will have left it; that they have ended by then
follows from the dependencies, which are those of a program without endpoints.

Rule     REMOTE-COPY-1, -3, -6, -7
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..jit import layout as L
from ..model.wire import (
    CHILD_MEMORY_AT,
    RIGHTS,
    SHAPE_AT,
    TAG_AT,
    RemoteWire,
    bytes_below,
    bytes_of,
)
from .plans import CopyPlan

HOME = -1
"""The place of the parent's own memory, where places of others are endpoints' ids."""
MOST_DROPPED = 64
"""Copies that one task tells its endpoint to forget."""
REQUEST_BYTES = 100_000
"""What it costs both ends to ask for a tensor, in bytes that could move meanwhile."""


@dataclass
class Made:
    """Versions that one place has made: from `first` to `last`.

    `is_blind`: tasks of this machine, which did not need the version before to come home.
    """

    maker: int
    first: int
    last: int
    is_blind: bool = False


class Held:
    """What is known of one tensor: a span of the parent's memory.

    Attributes
    ----------
    start, nbytes : int
        The span.
    wire : bytes
        A tensor with that span.
    key : int
        Its name in messages.
    version : int
        The one that is current once what was submitted has ended.
    maker : int
        Who makes it.
    holders : set of int
        Who has it then.
    stale : set of int
        Who may have another one.
    makers : list of Made
        Who has made which versions, oldest first.
    turn : int
        Which of an endpoint's tasks makes the current version, counted from 1.
    handle : Any
        The callable whose task makes the current version.
    """

    __slots__ = (
        *("handle", "holders", "key", "maker", "makers", "nbytes"),
        *("stale", "start", "turn", "version", "wire"),
    )

    def __init__(self, start: int, nbytes: int, wire: bytes) -> None:
        self.start, self.nbytes, self.wire = start, nbytes, wire
        self.key = secrets.randbits(63) | 1
        self.version, self.maker = 1, HOME
        self.holders, self.stale = {HOME}, set[int]()
        self.makers = [Made(HOME, 1, 1)]
        self.handle: Any = None
        self.turn = 0

    @property
    def is_home(self) -> bool:
        """Whether the parent's memory has the current version."""
        return HOME in self.holders

    @property
    def span(self) -> tuple[int, int]:
        """Its first byte, and how many there are."""
        return self.start, self.nbytes

    def make(self, maker: int, handle: Any = None) -> None:
        """Note that somebody makes a new version."""
        self.version += 1
        self.stale |= self.holders - {maker}
        is_blind = maker == HOME and not self.is_home
        self.maker, self.holders, self.handle = maker, {maker}, handle
        if self.makers[-1].maker == maker:
            self.makers[-1].last = self.version
        else:
            self.makers.append(Made(maker, self.version, self.version, is_blind))


@dataclass(frozen=True)
class Use:
    """What a task does with a tensor: `rights` are TENSOR_READ and TENSOR_WRITE.

    `start` is 0 if the runtime provides the memory. `index` is that of the tensor among the task's.
    """

    index: int
    start: int
    nbytes: int
    rights: int
    wire: bytes

    @property
    def reads(self) -> bool:
        """Whether the task reads it."""
        return bool(self.rights & L.TENSOR_READ)

    @property
    def writes(self) -> bool:
        """Whether the task writes it."""
        return bool(self.rights & L.TENSOR_WRITE)

    @property
    def span(self) -> tuple[int, int]:
        """Its first byte, and how many there are."""
        return self.start, self.nbytes

    def covers(self, held: Held) -> bool:
        """Say whether all bytes of a tensor are in it."""
        end = self.start + self.nbytes
        return self.start <= held.start and held.start + held.nbytes <= end


@dataclass
class Placed:
    """A task for an endpoint, until it is submitted."""

    where: int
    uses: Sequence[Use]
    handle: Any
    tensors: dict[int, Held] = field(default_factory=dict)
    """By the index of the use's tensor."""

    def set_turn(self, turn: int) -> None:
        """Note which of its endpoint's tasks it is."""
        for use in self.uses:
            if use.writes:
                self.tensors[use.index].turn = turn


class Directory:
    """The tensors of which endpoints have, or had, copies."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], Held] = {}
        self._spans: list[tuple[int, int]] = []
        self._longest = 0
        self._dropped: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]

    def overlapping(self, start: int, nbytes: int) -> list[Held]:
        """Return the tensors that share bytes with a span."""
        found = []
        at = bisect_left(self._spans, (start - self._longest, 0))
        for span in self._spans[at:]:
            if span[0] >= start + nbytes:
                break
            if span[0] + span[1] > start:
                found.append(self._held[span])
        return found

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
            for held in self.overlapping(use.start, use.nbytes):
                if held.is_home:
                    continue
                if held.span == use.span:
                    if where == HOME and use.reads:
                        found[held.span] = held
                        must_wait |= use.wire[TAG_AT] == L.NO_DEP
                elif use.reads or not use.covers(held):
                    found[held.span] = held
                    must_wait = True
        return list(found.values()), must_wait

    def outlook(self, uses: Iterable[Use], where: int) -> tuple[list[Held], int]:
        """Return the tensors that a task reads and endpoints had, and how many bytes would have to move.

        Each of those tensors counts as some more, since it has to be asked for. All count twice that the
        task also writes: where they are now is where they may be needed next.
        """
        needed, total = [], 0
        for use in uses:
            if use.reads and use.start:
                held = self._held.get(use.span)
                if held is not None:
                    needed.append(held)
                if held is None or where not in held.holders:
                    total += (use.nbytes + REQUEST_BYTES) * (2 if use.writes else 1)
        return needed, total

    def place(self, where: int, uses: Sequence[Use], handle: Any) -> Placed:
        """Find what a task of an endpoint will be told of its tensors.

        Raises
        ------
        ValueError
            Two of them share some bytes, but not all, and one is written: copies would not share any.
        """
        placed = Placed(where, uses, handle)
        fresh: dict[tuple[int, int], Held] = {}
        for use in uses:
            self._require_apart(use, uses)
            held = self._held.get(use.span) if use.start else None
            if held is None and use.start:
                held = fresh.get(use.span)
            if held is None:
                held = Held(use.start, use.nbytes, use.wire)
                if use.start:
                    fresh[use.span] = held
            placed.tensors[use.index] = held
        return placed

    @staticmethod
    def _require_apart(use: Use, uses: Iterable[Use]) -> None:
        if not use.start or not use.nbytes or not use.writes:
            return
        for other in uses:
            if other.span == use.span or not other.start:
                continue
            if use.start < other.start + other.nbytes and other.start < use.start + use.nbytes:
                raise ValueError(
                    f"tensors {use.index} and {other.index} share some bytes, but not all, and an "
                    "endpoint would get a copy of each: give it one tensor with all of the bytes"
                )

    def plans(self, placed: Placed, count: int) -> list[CopyPlan]:
        """Return what the endpoint is told of each of a task's `count` tensors."""
        writes = {placed.tensors[use.index].key for use in placed.uses if use.writes}
        plans = [CopyPlan()] * count
        for use in placed.uses:
            held = placed.tensors[use.index]
            plans[use.index] = CopyPlan(
                held.key,
                held.version if use.reads and use.nbytes else 0,
                held.version + 1 if held.key in writes else 0,
                held.maker + 1,
            )
        return plans

    def take_dropped(self, where: int) -> list[int]:
        """Return copies that an endpoint may forget; each is returned once."""
        keys = self._dropped.get(where, [])
        taken, self._dropped[where] = keys[:MOST_DROPPED], keys[MOST_DROPPED:]
        return taken

    # ------------------------------------------------------------ after a submit
    def note_task(self, placed: Placed, addresses: Sequence[int]) -> None:
        """Note what a task of an endpoint will have done; `addresses` has those of all its tensors."""
        made: dict[int, Held] = {}
        for use in placed.uses:
            held = placed.tensors[use.index]
            if not use.start:
                held.start = addresses[use.index]
                self.give_back(held.start, held.nbytes)
            elif use.writes:
                self._overwrite(use, held)
            if held.span not in self._held:
                self._add(held)
            if use.writes:
                made[held.key] = held
            else:
                held.holders.add(placed.where)
        for held in made.values():
            held.make(placed.where, placed.handle)

    def note_here(self, uses: Iterable[Use]) -> None:
        """Note what a task of this machine will have written."""
        for use in uses:
            if not use.writes or not use.start or not use.nbytes:
                continue
            held = self._held.get(use.span)
            self._overwrite(use, held)
            if held is not None:
                held.make(HOME)

    def forget(self, held: Held) -> None:
        """Forget a tensor."""
        self._remove(held)

    def give_back(self, start: int, nbytes: int) -> None:
        """Note that memory of a ring is a new tensor's: all tasks that have used it before have ended."""
        for held in self.overlapping(start, nbytes):
            for where in held.holders | held.stale:
                if where != HOME:
                    self._dropped.setdefault(where, []).append(held.key)
            self._remove(held)

    def _overwrite(self, use: Use, but: Held | None) -> None:
        """Forget, or note as changed, what shares bytes with a tensor that is written."""
        for held in self.overlapping(use.start, use.nbytes):
            if held is but:
                continue
            if use.covers(held):
                self._remove(held)
            else:
                held.make(HOME)

    def _add(self, held: Held) -> None:
        self._held[held.span] = held
        insort(self._spans, held.span)
        self._longest = max(self._longest, held.nbytes)

    def _remove(self, held: Held) -> None:
        del self._held[held.span]
        del self._spans[bisect_left(self._spans, held.span)]


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
