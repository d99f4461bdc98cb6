"""What the tasks of a run have read and made: what is lost with an endpoint can be computed again.

The tasks are noted in the order in which they are submitted. Once all have ended, `Lineage.replay` says
which of them have to run again, and which version of each tensor has to be in the memory of this machine
before: it begins with the tasks that have failed and the newest versions that are gone, and goes back to
versions that still exist.

Rule     REMOTE-RETRY-1, REMOTE-RETRY-2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .directory import HOME, CopyPlan, Spans, Use

UNKNOWN = -1
"""In place of a version: a transfer into the memory was cut short."""


class Gone(Exception):
    """What a task would read does not exist any more, nor anything that it could be computed from."""


@dataclass(eq=False)
class Track:
    """A tensor, and who has made which version of it; version 0 is what there was before.

    `depth` is that of the scope whose end takes its memory; 0: none does, and there was something in it
    before. `is_over`: it has ended.
    """

    start: int
    nbytes: int
    depth: int = 0
    makers: list[Logged | None] = field(default_factory=lambda: [None])
    is_over: bool = False

    @property
    def last(self) -> int:
        """The version that is current once what was submitted has ended."""
        return len(self.makers) - 1

    @property
    def span(self) -> tuple[int, int]:
        """Its first byte, and how many there are."""
        return self.start, self.nbytes

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the tensor of {self.nbytes} bytes at {self.start:#x}"


Version = tuple[Track, int]


@dataclass(eq=False)
class Logged:
    """A task: its number, the places of its members, what it reads and makes, how often it ran again.

    `submit` is what submits it again, None if nothing can. `brings`: it only brings a version home.
    """

    number: int
    places: Sequence[int]
    again: int = 0
    submit: Any = None
    reads: list[Version] = field(default_factory=list)
    makes: list[Version] = field(default_factory=list)
    brings: Version | None = None

    @property
    def is_here(self) -> bool:
        """Whether this machine runs it."""
        return self.places[0] == HOME


@dataclass(frozen=True)
class Rescue:
    """A version that comes home from an endpoint, which has it under a key and a version of its own."""

    track: Track
    version: int
    endpoint: int
    key: int
    theirs: int


@dataclass(frozen=True)
class Replay:
    """What is done about a loss: versions come home first, then tasks run again, in this order."""

    rescues: list[Rescue]
    tasks: list[Logged]
    remade: list[Track]
    """What these make of which a task that has ended had made some."""

    @property
    def tracks(self) -> list[Track]:
        """All tensors that these use."""
        both = [one for task in self.tasks for one in (*task.reads, *task.makes)]
        return list(dict.fromkeys(track for track, _ in both))


class Lineage:
    """The tasks of a run since all tensors were last at home; each may run again `retries` times."""

    def __init__(self, retries: int) -> None:
        self.retries = retries
        self.clear()

    def clear(self) -> None:
        """Begin anew: all has ended well, and is at home."""
        self._tasks: list[Logged] = []
        self._tracks: dict[tuple[int, int], Track] = {}
        self._spans = Spans[Track]()
        self._over: list[Track] = []
        self._names: dict[tuple[int, int], Version] = {}
        """What is meant by a key and a version of the directory."""
        self._now: dict[Track, int] = {}
        """What is in the memory of this machine by other ways than tasks."""
        self.unclear = ""
        """Why nothing can be said of what tasks have read and made."""

    def __len__(self) -> int:
        return len(self._tasks)

    # ------------------------------------------------------------ memory of scopes
    def note_memory(self, start: int, nbytes: int, depth: int) -> None:
        """Note that memory was given to a new tensor, until the scope of a depth ends."""
        for track in self._spans.overlapping(start, nbytes):
            self._end(track)
        self._add(Track(start, nbytes, depth))

    def end_scope(self, depth: int) -> None:
        """Note that the scope of a depth has ended."""
        for track in list(self._tracks.values()):
            if track.depth >= depth:
                self._end(track)

    def _end(self, track: Track) -> None:
        track.is_over = True
        self._over.append(track)
        del self._tracks[track.span]
        self._spans.remove(track)

    def _add(self, track: Track) -> Track:
        self._tracks[track.span] = track
        self._spans.add(track)
        return track

    # ------------------------------------------------------------ tasks
    def note_task(
        self, task: Logged, uses: Iterable[Sequence[Use]], plans: Iterable[Sequence[CopyPlan]]
    ) -> None:
        """Note a task: what each member does with tensors, and what its endpoint is told of them."""
        written: dict[Track, list[tuple[int, int]]] = {}
        for its, told in zip(uses, plans, strict=True):
            for use in its:
                if use.nbytes:
                    self._note_use(task, use, told[use.index] if told else CopyPlan(), written)
        for track, names in written.items():
            track.makers.append(task)
            task.makes.append((track, track.last))
            for name in names:
                self._names[name] = track, track.last
        self._tasks.append(task)

    def _note_use(
        self, task: Logged, use: Use, plan: CopyPlan, written: dict[Track, list[tuple[int, int]]]
    ) -> None:
        found = self._spans.overlapping(*use.span)
        own = self._tracks.get(use.span)
        others = [one for one in found if one is not own and one.last]
        if others and use.writes:
            self.unclear = "a task has written a part of a tensor that another one has written"
        depth = max((one.depth for one in found), default=0)
        track = own or self._add(Track(*use.span, depth))
        if use.reads:
            task.reads += [(one, one.last) for one in (track, *others)]
            if plan.reads and not others:
                self._names[plan.key, plan.reads] = track, track.last
        if use.writes:
            names = written.setdefault(track, [])
            if plan.makes:
                names.append((plan.key, plan.makes))

    def note_bringing(self, number: int, place: int, key: int, version: int) -> None:
        """Note a task that brings a version home."""
        brings = self._names.get((key, version))
        if brings is None:
            self.unclear = "a tensor comes home that no task of the log has made"
        self._tasks.append(Logged(number, (place,), brings=brings))

    def note_here(self, key: int, version: int) -> None:
        """Note that this machine's memory has a version; `UNKNOWN`: a transfer into it was cut short."""
        if version == UNKNOWN:
            for (one, _), (track, _) in self._names.items():
                if one == key:
                    self.note_unknown(track)
        elif (key, version) in self._names:
            self._now.update([self._names[key, version]])

    def note_unknown(self, track: Track) -> None:
        """Note that nobody knows what is in this machine's memory of a tensor."""
        self._now[track] = UNKNOWN

    # ------------------------------------------------------------ after a loss
    def failed(self, outcomes: Mapping[int, bool]) -> list[Logged]:
        """Return the tasks that have failed, by their numbers."""
        return [one for one in self._tasks if one.number in outcomes]

    def replay(
        self,
        outcomes: Mapping[int, bool],
        held: Mapping[int, Mapping[int, int]],
    ) -> Replay:
        """Return what has to be done so that all is as if nothing had been lost.

        Parameters
        ----------
        outcomes
            The numbers of the tasks that have failed, and whether each may have begun.
        held
            The version of each key that the sessions which live have.

        Raises
        ------
        Gone
            That is impossible.
        """
        if self.unclear:
            raise Gone(self.unclear)
        return _Search(self, outcomes, held).replay()

    def at_home(self, outcomes: Mapping[int, bool]) -> dict[Track, int]:
        """Return the version of each tensor in this machine's memory, where that is not 0."""
        home: dict[Track, int] = {}
        for task in self._tasks:
            if task.number in outcomes:
                continue
            if task.brings is not None:
                home[task.brings[0]] = task.brings[1]
            elif task.is_here:
                home.update(task.makes)
        return home | self._now


class _Search:
    """The search for what has to run again."""

    def __init__(
        self,
        lineage: Lineage,
        outcomes: Mapping[int, bool],
        held: Mapping[int, Mapping[int, int]],
    ) -> None:
        self._lineage, self._outcomes = lineage, outcomes
        self._home = lineage.at_home(outcomes)
        self._at: dict[Version, tuple[int, int, int]] = {}
        for endpoint, versions in held.items():
            for name in versions.items():
                if name in lineage._names:
                    self._at[lineage._names[name]] = endpoint, *name
        self._again: set[Logged] = set()

    def replay(self) -> Replay:
        lineage = self._lineage
        for task in lineage.failed(self._outcomes):
            if task.brings is None:
                self._add(task)
        for track in lineage._tracks.values():
            if not self._exists(track, track.last):
                self._add(self._maker(track, track.last))
        count = -1
        while count < len(self._again):
            count = len(self._again)
            bases, firsts = self._extent()
            self._widen(bases, firsts)
        tasks = [task for task in lineage._tasks if task in self._again]
        remade = [one for one, first in firsts.items() if self._had_made(one, first)]
        return Replay(list(self._rescues(bases, firsts)), tasks, remade)

    def _had_made(self, track: Track, first: int) -> bool:
        makers = track.makers[first:]
        return any(one is None or one.number not in self._outcomes for one in makers)

    def _exists(self, track: Track, version: int) -> bool:
        if (track, version) in self._at or _is_anything(track, version):
            return True
        return not track.is_over and self._home.get(track, 0) == version

    @staticmethod
    def _maker(track: Track, version: int) -> Logged:
        maker = track.makers[version]
        if maker is None:
            raise Gone(
                f"{track.name} is overwritten, and a task that would have to run again reads it"
            )
        return maker

    def _add(self, task: Logged) -> None:
        """Have a task run again, and those that make what it reads, if that is gone."""
        waiting = [task]
        while waiting:
            task = waiting.pop()
            if task in self._again:
                continue
            self._require_may(task)
            self._again.add(task)
            waiting += [self._maker(*one) for one in task.reads if not self._exists(*one)]

    def _require_may(self, task: Logged) -> None:
        began = self._outcomes.get(task.number, True)
        if task.submit is None:
            raise Gone(
                f"task {task.number} uses memory of an endpoint, which cannot be computed again"
            )
        if began and task.again >= self._lineage.retries:
            raise Gone(f"task {task.number} has run {task.again + 1} times")

    def _extent(self) -> tuple[dict[Track, int], dict[Track, int]]:
        """Return of each tensor the version that has to exist, and the first that is made again."""
        bases: dict[Track, int] = {}
        firsts: dict[Track, int] = {}
        for task in self._again:
            for track, version in task.reads:
                if track.makers[version] not in self._again:
                    bases[track] = min(bases.get(track, version), version)
            for track, version in task.makes:
                firsts[track] = min(firsts.get(track, version), version)
        return bases, firsts

    def _widen(self, bases: dict[Track, int], firsts: dict[Track, int]) -> None:
        """Have all later versions of a tensor made again of which an earlier one is needed, or made."""
        for track in {**bases, **firsts}:
            end = track.last + 1
            first = min(bases.get(track, track.last) + 1, firsts.get(track, end))
            for version in range(first, end):
                self._add(self._maker(track, version))

    def _rescues(self, bases: dict[Track, int], firsts: dict[Track, int]) -> Iterator[Rescue]:
        for track in dict.fromkeys([*self._lineage._tracks.values(), *bases]):
            target = bases.get(track, UNKNOWN if track in firsts else track.last)
            if target == UNKNOWN or _is_anything(track, target):
                continue
            if not track.is_over and self._home.get(track, 0) == target:
                continue
            endpoint, key, theirs = self._at[track, target]
            yield Rescue(track, target, endpoint, key, theirs)


def _is_anything(track: Track, version: int) -> bool:
    """Say whether a version is what happened to be in memory that a scope has given out."""
    return version == 0 and track.depth > 0


__all__ = ["Gone", "Lineage", "Logged", "Replay", "Rescue", "Track"]
