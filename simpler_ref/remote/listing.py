"""Replays of a graph by task lists: each endpoint gets all of its tasks at once.

The first replay goes task by task. From then on a replay is one task of the parent's: a group with a
member for each endpoint that has a list.

Rule     SPEED-LIST-1, SPEED-LIST-2, SPEED-LIST-4, SPEED-LIST-5, SPEED-LIST-7
"""

from __future__ import annotations

import ctypes
import itertools
import math
import secrets
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..callables.registry import Registry
from ..jit import layout as L
from ..jit.program import part_at
from ..model.arguments import TaskArgs
from ..model.enums import DataType, TensorArgType
from ..model.scalars import ScalarBits, scalar_wire
from ..model.tensor import ContinuousTensor
from ..model.visibility import require_visible
from ..model.wire import (
    CHILD_MEMORY_AT,
    SHAPE_AT,
    TAG_AT,
    TENSOR,
    DescribedWire,
    RemoteWire,
    bytes_of,
)
from ..orch.orchestrator import Orchestrator
from .directory import REQUEST_BYTES, Use
from .endpoints import Endpoints
from .layouts import as_bytes, layout_text
from .link_lists import HANDLE, OfLists
from .lists import (
    LIST,
    LIST_REQUEST,
    MOST_BYTES,
    PARENT,
    READS,
    WRITES,
    Get,
    ListRequest,
    ListScalar,
    ListStep,
    ListTask,
    ListUse,
    ProgramTensor,
    Show,
    TaskList,
)
from .placing import is_remote
from .recorded_steps import AllocStep, ScopeStep, Step, SubmitStep

_BITS = (1 << 64) - 1
_CONSTANT = -1
_numbers = itertools.count(1)
_CONFIGURED = L.CONFIG_MASK << L.WORD_CONFIG
MOST_COMING = 1 << 30
"""Bytes that an endpoint may get from others in a replay: they wait outside of its Worker's memory."""
TRIES = 3
"""Replays of each placement; the first one of them does not count."""


class NotListed(Exception):
    """The graph has what only a replay task by task can do."""


# ---------------------------------------------------------------- what the graph is
class _Name(NamedTuple):
    """A tensor of a graph: so many bytes from a variable, or an address, and an offset on."""

    variable: int
    offset: int
    nbytes: int

    def start(self, variables: Sequence[int]) -> int:
        """Return its first byte."""
        base = 0 if self.variable == _CONSTANT else variables[self.variable]
        return base + self.offset


class GraphUse(NamedTuple):
    """What a task does with a tensor, which has a number in the graph."""

    tensor: int
    tag: TensorArgType
    form: ContinuousTensor
    layout: str

    @property
    def reads(self) -> bool:
        """Whether the task reads it."""
        return self.tag in READS

    @property
    def writes(self) -> bool:
        """Whether the task writes it."""
        return self.tag in WRITES


class GraphTask(NamedTuple):
    """A task of the graph, and the endpoints that may run it."""

    digest: bytes
    uses: Sequence[GraphUse]
    scalars: Sequence[ListScalar]
    allowed: Sequence[int]


class _Reader:
    """Reads the steps of a recording: which tensors they name, and what of those is the program's.

    `tensors` and `scalars` are how many of them a replay provides.
    """

    def __init__(self, tensors: int, scalars: int) -> None:
        self._tensors = tensors
        self.scalars = range(tensors, tensors + 2 * scalars * L.SCALAR_WORDS)
        self.names: dict[_Name, int] = {}
        self.wires: list[bytes] = []
        """A tensor with each name."""

    def task(self, step: SubmitStep, allowed: Sequence[int]) -> GraphTask:
        """Return the task of a step."""
        count = len(step.tensors)
        where: dict[int, tuple[int, int]] = {}
        bound: dict[int, int] = {}
        for one in step.patches:
            which, octet = part_at(one.at, count)
            if which >= count:
                if one.variable not in self.scalars:
                    raise NotListed
                if not octet:
                    first = one.variable - self.scalars.start
                    bound[which - count] = first // L.SCALAR_WORDS + 1
            elif not octet:
                where[which] = one.variable, one.offset
        uses = [
            self._use(wire, where.get(i), step.outputs + i) for i, wire in enumerate(step.tensors)
        ]
        scalars = [
            ListScalar(
                int.from_bytes(raw[:8], "little"),
                int.from_bytes(raw[8:16], "little"),
                bound.get(j, 0),
            )
            for j, raw in enumerate(step.scalars)
        ]
        return GraphTask(step.handle.digest, uses, scalars, allowed)

    def _use(self, wire: bytes, where: tuple[int, int] | None, output: int) -> GraphUse:
        nbytes, tag = bytes_of(wire), TensorArgType(wire[TAG_AT])
        if (
            isinstance(wire, RemoteWire)
            or wire[CHILD_MEMORY_AT] & 1
            or tag == TensorArgType.NO_DEP
            or not nbytes
        ):
            raise NotListed
        address = int.from_bytes(wire[:SHAPE_AT], "little")
        if where is None:
            if not address and tag != TensorArgType.OUTPUT:
                raise NotListed
            where = (_CONSTANT, address) if address else (output, 0)
        name = _Name(*where, nbytes)
        if name not in self.names:
            self.names[name] = len(self.names)
            self.wires.append(wire)
        if tag == TensorArgType.OUTPUT:
            tag = TensorArgType.OUTPUT_EXISTING
        return GraphUse(self.names[name], tag, *_form(wire, nbytes))

    def is_programs(self, name: _Name) -> bool:
        """Say whether a tensor is in memory that the program has provided."""
        return name.variable < self._tensors

    def require_apart(self) -> None:
        """Refuse tensors that share some bytes of one buffer, but not all."""
        buffers = sorted(one for one in self.names if not self.is_programs(one))
        for one, other in itertools.pairwise(buffers):
            if one.variable == other.variable and other.offset < one.offset + one.nbytes:
                raise NotListed


def _form(wire: bytes, nbytes: int) -> tuple[ContinuousTensor, str]:
    """Return a tensor as a TASK has it: without address, and its layout."""
    if isinstance(wire, DescribedWire):
        try:
            return as_bytes(wire.layout, nbytes), layout_text(wire.layout)
        except TypeError:
            raise NotListed from None
    _, *sizes, ndims, dtype, _ = TENSOR.unpack(wire[: TENSOR.size])
    return ContinuousTensor(0, sizes[:ndims], DataType(dtype)), ""


# ---------------------------------------------------------------- where its tasks run
def placements(
    tasks: Sequence[GraphTask], sizes: Sequence[int], seats: Mapping[int, int]
) -> list[list[int]]:
    """Return one or two ways to place the tasks: those of each level side by side, all at one endpoint.

    `seats` has the sub workers of each endpoint.

    Rule     SPEED-LIST-2
    """
    found = [_side_by_side(tasks, sizes, seats)]
    alone = [one for one in seats if all(one in task.allowed for task in tasks)]
    if alone:
        found.append([max(alone, key=lambda one: seats[one])] * len(tasks))
    return [one for i, one in enumerate(found) if one not in found[:i]]


def _levels(tasks: Sequence[GraphTask]) -> list[list[int]]:
    made_at: dict[int, int] = {}
    levels: defaultdict[int, list[int]] = defaultdict(list)
    for i, task in enumerate(tasks):
        level = 1 + max((made_at.get(use.tensor, -1) for use in task.uses if use.reads), default=-1)
        levels[level].append(i)
        made_at.update((use.tensor, level) for use in task.uses if use.writes)
    return [levels[level] for level in sorted(levels)]


def _side_by_side(
    tasks: Sequence[GraphTask], sizes: Sequence[int], seats: Mapping[int, int]
) -> list[int]:
    """Place tasks level by level, each where the fewest bytes are missing.

    An endpoint gets as many tasks of a level as it has part of the sub workers. Of places alike the one
    is taken whose place among all is nearest to that of the task in its level.
    """
    order, total = {place: i for i, place in enumerate(seats)}, sum(seats.values())
    holders: defaultdict[int, set[int]] = defaultdict(set)
    places = [0] * len(tasks)
    for level in _levels(tasks):
        load = dict.fromkeys(seats, 0)
        room = {place: math.ceil(len(level) * one / total) for place, one in seats.items()}
        for k, i in enumerate(level):
            task, middle = tasks[i], (k + 0.5) / len(level) * len(seats) - 0.5
            free = [one for one in task.allowed if load[one] < room[one]] or task.allowed
            cost = {
                one: (_missing(task, one, holders, sizes), abs(order[one] - middle), load[one])
                for one in free
            }
            places[i] = min(cost, key=cost.__getitem__)
            load[places[i]] += 1
            for use in task.uses:
                holders[use.tensor].add(places[i])
        for i in level:
            for use in tasks[i].uses:
                if use.writes:
                    holders[use.tensor] = {places[i]}
    return places


def _missing(
    task: GraphTask, place: int, holders: Mapping[int, set[int]], sizes: Sequence[int]
) -> int:
    """Return the bytes that a task reads, others have made, and an endpoint has not.

    What the task replaces counts twice: where it is made it is needed next.
    """
    return sum(
        (sizes[use.tensor] + REQUEST_BYTES) * (2 if use.writes else 1)
        for use in task.uses
        if use.reads and holders[use.tensor] and place not in holders[use.tensor]
    )


# ---------------------------------------------------------------- what each of them does
@dataclass
class _Step:
    gets: list[Get] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    tasks: list[ListTask] = field(default_factory=list)
    shows: list[_Shown] = field(default_factory=list)


@dataclass
class _Shown:
    """A show that is being made; `step` is where it is."""

    task: int
    slot: int
    number: int
    step: int
    readers: int = 0
    stays: bool = True


@dataclass
class _Slot:
    """The memory of a tensor at an endpoint: the version in it, who uses that, what was shown of it."""

    number: int
    version: int = -1
    users: list[int] = field(default_factory=list)
    shows: list[_Shown] = field(default_factory=list)


class _Place:
    """The list of an endpoint, as it is being made."""

    def __init__(self) -> None:
        self.callables: dict[bytes, int] = {}
        self.sizes: list[int] = []
        self.slots: dict[int, _Slot] = {}
        """By tensor."""
        self.steps = [_Step()]
        self.tasks = 0
        self.step_of: list[int] = []
        """Of each task."""
        self.comes: list[tuple[int, int]] = []
        self.goes: list[tuple[int, int]] = []
        """Number and tensor of what the program gives, and of what it gets."""

    def slot(self, tensor: int, nbytes: int) -> _Slot:
        """Return the slot of a tensor."""
        if tensor not in self.slots:
            self.slots[tensor] = _Slot(len(self.sizes))
            self.sizes.append(nbytes)
        return self.slots[tensor]

    def barrier(self) -> _Step:
        """Return the step that begins here."""
        if self.steps[-1].tasks:
            self.steps.append(_Step())
        return self.steps[-1]

    def change(self, slot: _Slot) -> None:
        """Have what was shown of a slot be shown before it is changed."""
        if slot.shows:
            step = self.barrier()
            for one in slot.shows:
                one.stays = False
            step.shown += [id(one) for one in slot.shows]
            slot.shows = []

    def made(self, peers: Mapping[int, int]) -> TaskList:
        """Return the list; `peers` are the numbers that a replay gives the endpoints."""
        numbers = {
            id(show): i for i, show in enumerate(show for step in self.steps for show in step.shows)
        }
        steps = [
            ListStep(
                [replace(one, peer=peers.get(one.peer, PARENT)) for one in step.gets],
                [numbers[one] for one in step.shown],
                step.tasks,
                [
                    Show(one.task, one.slot, one.number, one.readers, one.stays)
                    for one in step.shows
                ],
            )
            for step in self.steps
        ]
        return TaskList(list(self.callables), self.sizes, steps)


class _Lists:
    """Makes the lists of a graph, task by task in the order of the recording."""

    def __init__(self, sizes: Sequence[int], programs: Collection[int]) -> None:
        self._sizes, self._programs = sizes, programs
        self.places: defaultdict[int, _Place] = defaultdict(_Place)
        self._newest: dict[int, tuple[int, int, int]] = {}
        """By tensor: its newest version, which endpoint has made it, and by which of its tasks."""
        self._shows: dict[tuple[int, int], _Shown] = {}
        """By tensor and version."""
        self._numbers = itertools.count(1)

    def add(self, at: int, task: GraphTask) -> None:
        """Add a task to the list of an endpoint."""
        place = self.places[at]
        for use in task.uses:
            if use.reads:
                self._bring(at, use.tensor)
        for tensor in {use.tensor for use in task.uses if use.writes}:
            slot = place.slot(tensor, self._sizes[tensor])
            place.change(slot)
        number = place.callables.setdefault(task.digest, len(place.callables))
        uses = [
            ListUse(place.slot(one.tensor, self._sizes[one.tensor]).number, *one[1:])
            for one in task.uses
        ]
        place.steps[-1].tasks.append(ListTask(number, uses, task.scalars))
        place.step_of.append(len(place.steps) - 1)
        for use in task.uses:
            slot = place.slots[use.tensor]
            slot.users.append(place.tasks)
            if use.writes:
                version = self._newest.get(use.tensor, (0, 0, 0))[0] + 1
                slot.version = version
                self._newest[use.tensor] = version, at, place.tasks
        place.tasks += 1

    def _bring(self, at: int, tensor: int) -> None:
        """Have the newest version of a tensor in its slot at an endpoint."""
        place = self.places[at]
        slot = place.slot(tensor, self._sizes[tensor])
        version, maker, _ = self._newest.get(tensor, (0, PARENT, 0))
        if slot.version == version:
            return
        if not version and tensor not in self._programs:
            slot.version = 0  # a buffer that nobody has written
            return
        if version:
            show = self._show(tensor)
            show.readers += 1
            number = show.number
        else:
            number = next(self._numbers)
            place.comes.append((number, tensor))
        place.change(slot)
        get = Get(slot.number, maker, number, tuple(slot.users))
        place.barrier().gets.append(get)
        slot.version, slot.users = version, []

    def _show(self, tensor: int) -> _Shown:
        version, maker, task = self._newest[tensor]
        if (tensor, version) not in self._shows:
            place = self.places[maker]
            slot, step = place.slots[tensor], place.step_of[task]
            show = _Shown(task, slot.number, next(self._numbers), step)
            slot.shows.append(show)
            place.steps[step].shows.append(show)
            self._shows[tensor, version] = show
        return self._shows[tensor, version]

    def end(self) -> None:
        """Have the program get what was made of its tensors."""
        for tensor in sorted(self._programs):
            if tensor in self._newest:
                show = self._show(tensor)
                show.readers += 1
                self.places[self._newest[tensor][1]].goes.append((show.number, tensor))


# ---------------------------------------------------------------- replays
class _Way:
    """The lists of a graph by one placement, and how fast replays are that way."""

    def __init__(self, lists: Mapping[int, _Place]) -> None:
        self.places = dict(sorted(lists.items()))
        self.number = next(_numbers)
        peers = {place: i for i, place in enumerate(self.places)}
        self.raw = {at: LIST.encode(one.made(peers)) for at, one in self.places.items()}
        self.sent: dict[int, int] = {}
        """By endpoint: the session that has its list."""
        self.runs = 0
        self.best_s = math.inf

    @property
    def fits(self) -> bool:
        """Whether frames have room for its lists, and endpoints for what they get."""
        return all(len(raw) <= MOST_BYTES for raw in self.raw.values()) and all(
            sum(one.sizes[get.slot] for step in one.steps for get in step.gets) <= MOST_COMING
            for one in self.places.values()
        )

    def note_run(self, seconds: float) -> None:
        """Note a replay; before the first one ends, the lists have to be sent."""
        self.runs += 1
        if self.runs > 1:
            self.best_s = min(self.best_s, seconds)


class ListedGraph:
    """A graph whose tasks are all for sub workers of endpoints, as lists."""

    def __init__(self, endpoints: Endpoints, reader: _Reader, tasks: Sequence[GraphTask]) -> None:
        self._endpoints = endpoints
        self._names, self._wires, self._scalars = list(reader.names), reader.wires, reader.scalars
        self._programs = [i for i, one in enumerate(self._names) if reader.is_programs(one)]
        sizes = [one.nbytes for one in self._names]
        seats = {
            place: endpoints.sub_workers_of(place)
            for place in sorted({place for one in tasks for place in one.allowed})
        }
        self.ways = []
        for places in placements(tasks, sizes, seats):
            lists = _Lists(sizes, frozenset(self._programs))
            for at, task in zip(places, tasks, strict=True):
                lists.add(at, task)
            lists.end()
            if (way := _Way(lists.places)).fits:
                self.ways.append(way)
                weakref.finalize(self, endpoints.forget_list, way.number, list(way.places))
        if not self.ways:
            raise NotListed
        self.way = self.ways[0]
        """That of the next replay."""

    @classmethod
    def of(
        cls,
        endpoints: Endpoints,
        steps: Sequence[Step],
        words: Sequence[int],
        provided: tuple[int, int],
    ) -> ListedGraph | None:
        """Return the lists of a graph that was replayed once; None if it has what lists cannot do.

        `words` are the callable words of its submits; `provided` is how many tensors and scalars a replay
        has.
        """
        reader = _Reader(*provided)
        following = iter(words)
        try:
            tasks = [
                reader.task(step, _endpoints_for(step, next(following), endpoints))
                for step in steps
                if not isinstance(step, AllocStep | ScopeStep)
            ]
            reader.require_apart()
            return cls(endpoints, reader, tasks)
        except NotListed:
            return None

    def are_all_there(self) -> bool:
        """Say whether all endpoints that have a list are still the Worker's."""
        return all(self._endpoints.has_all(way.places) for way in self.ways)

    def note_run(self, seconds: float) -> None:
        """Note how long a replay took: each placement is tried, then the fastest one stays.

        Rule     SPEED-LIST-2
        """
        self.way.note_run(seconds)
        untried = [way for way in self.ways if way.runs < TRIES]
        self.way = untried[0] if untried else min(self.ways, key=lambda way: way.best_s)

    def forget_sent(self) -> None:
        """Note that nobody knows which sessions have their lists."""
        for way in self.ways:
            way.sent.clear()

    @staticmethod
    def require_registered(registry: Registry, add_callable: Callable[..., Any]) -> None:
        """Have links know the callable of lists, between two runs."""
        if not registry.is_live(HANDLE):
            target = OfLists((), b"")
            add_callable(HANDLE, target, target.to_bytes())

    def submit(self, orch: Any, variables: Sequence[int]) -> bool:
        """Submit a replay; return False if it has to be made task by task.

        Rule     SPEED-LIST-4
        """
        endpoints, places = self._endpoints, self.way.places
        if not all(endpoints.takes_list(at, sum(one.sizes)) for at, one in places.items()):
            return False
        starts = self._starts(variables)
        if starts is None:
            return False
        for one in places.values():
            endpoints.tensors.require_not_lost(self._uses(one, starts))
        token = secrets.randbits(63) | 1
        scalars = [variables[i] & _BITS for i in self._scalars]
        members = [self._member(at, starts, scalars, token) for at in places]
        word = orch._require_handle("Graph.run", HANDLE, (), orch._next_level, L.NEXT_LEVEL)
        affinities = [at + 1 for at in places]
        if len(members) > 1:
            Orchestrator._send(orch, word, members, affinities)
        else:
            Orchestrator._send(orch, word | affinities[0] << L.WORD_WORKER, members, None)
        for at in places:
            self.way.sent[at] = endpoints.session_of(at)
        return True

    def _starts(self, variables: Sequence[int]) -> dict[int, int] | None:
        """Return where the program's tensors are; None if some share bytes, or workers do not see one."""
        starts = {i: self._names[i].start(variables) for i in self._programs}
        ordered = sorted((start, self._names[i].nbytes) for i, start in starts.items())
        for (start, nbytes), (following, _) in itertools.pairwise(ordered):
            if following < start + nbytes:
                return None
        try:
            for i, start in starts.items():
                require_visible(start, self._names[i].nbytes)
        except ValueError:
            return None
        return starts

    def _uses(self, place: _Place, starts: Mapping[int, int]) -> list[Use]:
        rights: defaultdict[int, int] = defaultdict(int)
        for _, tensor in place.comes:
            rights[tensor] |= L.TENSOR_READ
        for _, tensor in place.goes:
            rights[tensor] |= L.TENSOR_WRITE
        return [
            Use(i, starts[tensor], self._names[tensor].nbytes, right, self._wires[tensor])
            for i, (tensor, right) in enumerate(rights.items())
        ]

    def _member(
        self, at: int, starts: Mapping[int, int], scalars: Sequence[int], token: int
    ) -> TaskArgs:
        """Return the arguments of an endpoint's task: where the request is that its link reads.

        Behind the request is a byte for each tensor that comes home, where the link says whether a part
        of it has come.
        """
        endpoints, way = self._endpoints, self.way
        place = way.places[at]

        def tensors(several: Sequence[tuple[int, int]]) -> list[ProgramTensor]:
            return [
                ProgramTensor(number, starts[one], self._names[one].nbytes)
                for number, one in several
            ]

        is_known = way.sent.get(at) == endpoints.session_of(at)
        goes = tensors(place.goes)
        request = ListRequest(
            way.number,
            b"" if is_known else way.raw[at],
            token,
            endpoints.take_forgotten(at),
            list(way.places),
            scalars,
            tensors(place.comes),
            goes,
            place.tasks,
        )
        raw = LIST_REQUEST.encode(request)
        address = endpoints.keep(len(raw) + len(goes))
        ctypes.memmove(address, raw + bytes(len(goes)), len(raw) + len(goes))
        for i, one in enumerate(goes):
            endpoints.tensors.note_coming(address + len(raw) + i, one.address, one.nbytes)
        args = TaskArgs()
        args._scalars = [scalar_wire(ScalarBits(one)) for one in (address, len(raw))]
        return args


def _endpoints_for(step: SubmitStep, word: int, endpoints: Endpoints) -> list[int]:
    """Return the endpoints that may run the task of a step, which is of a function for sub workers."""
    if step.members or word & _CONFIGURED or not is_remote(step.handle):
        raise NotListed
    found = endpoints.taking_lists(step.handle)
    if not found:
        raise NotListed
    return found
