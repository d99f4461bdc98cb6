"""Replays of recorded graphs that have tasks of endpoints: task by task, or by lists.

Of the copies at endpoints Python keeps track, not the kernels: so such a graph is carried out step by
step the first time. From then on, if that can be, each endpoint gets all of its tasks as one: the tasks
are placed together, and those of one endpoint are a *part*. A replay submits one group, whose callable is
the list of all parts; each member is a part, and has those tensors of the program that its endpoint reads
or leaves. To directory, links and engine that is a group like any other: what moves, fails or is lost
follows from that. What parts get from each other they see to: see `lists`.

Rule     SPEED-LIST-1, SPEED-LIST-2, SPEED-LIST-3, SPEED-LIST-4, SPEED-LIST-5, SPEED-LIST-6,
         SPEED-LIST-7, SPEED-REPLAY-12
"""

from __future__ import annotations

import itertools
import math
import pickle
import secrets
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

from ..callables.identity import CallableHandle, CallableKind
from ..errors import CallableError, ControlError
from ..jit import layout as L
from ..jit.program import Patch, part_at
from ..model.arguments import TaskArgs
from ..model.enums import DataType, TensorArgType
from ..model.scalars import WORD, scalar_wire
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
    replaced,
)
from ..orch.listening import RecordedArgs
from ..orch.orchestrator import Orchestrator
from ..orch.recording import Graph, OpRecorder
from ..orch.runs import RunTiming
from .callables import LIST_VERSION, Registration, registering
from .directory import REQUEST_BYTES
from .endpoints import Endpoints
from .limits import MAX_TENSORS
from .link_tasks import Planned
from .lists import (
    LIST,
    MOST_BYTES,
    ListGet,
    ListPart,
    ListScalar,
    ListTask,
    ListUse,
    TaskList,
)
from .placing import PlacingOrchestrator, is_remote
from .tasks import as_bytes, layout_text

_BITS = (1 << 64) - 1
_CONSTANT = -1
_CONFIGURED = L.CONFIG_MASK << L.WORD_CONFIG
TRIES = 3
"""Replays of each placement; the first one of them does not count."""


class NotListed(Exception):
    """The graph has what only a replay task by task can do."""


# ---------------------------------------------------------------- what the graph is
class SubmitStep(NamedTuple):
    """A submit; see `ProgramWriter.submit`. Without members it is a task that is no group.

    `members` has the counts of tensors and scalars of each member, and its worker plus one.
    """

    handle: CallableHandle
    tensors: Sequence[bytes]
    scalars: Sequence[bytes]
    members: Sequence[tuple[int, int]]
    patches: Sequence[Patch]
    outputs: int

    def arguments(self, variables: Sequence[int]) -> list[TaskArgs]:
        """Return the arguments of each member, for these variables."""
        parts = [*self.tensors, *self.scalars]
        tensor, scalar = 0, len(self.tensors)
        for one in self.patches:
            which, octet = part_at(one.at, scalar)
            value = variables[one.variable] + one.offset & _BITS
            parts[which] = replaced(parts[which], octet, value.to_bytes(L.WORD, "little"))
        made = []
        whole = scalar | len(self.scalars) << L.HALF
        for counts, _ in self.members or [(whole, 0)]:
            args = TaskArgs()
            args._tensors = parts[tensor : tensor + (counts & L.LOW_HALF)]
            args._scalars = parts[scalar : scalar + (counts >> L.HALF)]
            tensor, scalar = tensor + len(args._tensors), scalar + len(args._scalars)
            made.append(args)
        return made

    def submit(self, orch: PlacingOrchestrator, word: int, variables: list[int]) -> None:
        """Submit it, at the endpoints that are chosen now if it is for endpoints.

        The variables of its outputs get the addresses that the runtime has provided.
        """
        orch._handle = self.handle
        members = self.arguments(variables)
        orch._send(*orch._chosen(word, members, [one for _, one in self.members] or None))
        if self.outputs >= 0:
            for i, wire in enumerate(wire for one in members for wire in one._tensors):
                variables[self.outputs + i] = int.from_bytes(wire[:SHAPE_AT], "little")


Step = SubmitStep | Callable[[PlacingOrchestrator, list[int]], object]


class _Name(NamedTuple):
    """A tensor of a graph: so many bytes from a variable, or an address, and an offset on."""

    variable: int
    offset: int
    nbytes: int

    def start(self, variables: Sequence[int]) -> int:
        base = 0 if self.variable == _CONSTANT else variables[self.variable]
        return base + self.offset


class GraphTask(NamedTuple):
    """A task of the graph, and the endpoints that may run it."""

    digest: bytes
    uses: Sequence[ListUse]
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

    def task(self, step: SubmitStep, allowed: Sequence[int]) -> GraphTask:
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
            ListScalar(word, kind, bound.get(j, 0))
            for j, (word, kind) in enumerate(map(WORD.unpack, step.scalars))
        ]
        return GraphTask(step.handle.digest, uses, scalars, allowed)

    def _use(self, wire: bytes, where: tuple[int, int] | None, output: int) -> ListUse:
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
        self.names.setdefault(name, len(self.names))
        if tag == TensorArgType.OUTPUT:
            tag = TensorArgType.OUTPUT_EXISTING
        return ListUse(self.names[name], tag, *_form(wire, nbytes))

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


# ---------------------------------------------------------------- parts
class Part:
    """What one endpoint does in a replay: `named` are the tensors that its task has."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.tasks: list[ListTask] = []
        self.named: dict[int, TensorArgType] = {}

    def tensors(self) -> set[int]:
        return {*self.named, *(use.tensor for task in self.tasks for use in task.uses)}


class _Version(NamedTuple):
    """A version of a tensor: how parts get it, None of what the program has, or nobody; who has it."""

    get: ListGet | None
    holders: set[int]


class Cutter:
    """Cuts a graph whose tasks are placed into parts, in the order of the recording.

    A tensor of the program that a task writes is one of the endpoint that writes it last, which has it
    from the program if any task reads that before; others get it from there. So no two tasks of a replay
    have a tensor that one of them writes.
    """

    def __init__(
        self, tasks: Sequence[GraphTask], places: Sequence[int], programs: Collection[int]
    ) -> None:
        self.parts = [Part(place) for place in sorted(set(places))]
        index = {part.place: i for i, part in enumerate(self.parts)}
        placed = [(index[place], task) for place, task in zip(places, tasks, strict=True)]
        self._programs = set(programs)
        self._versions: dict[int, _Version] = {}
        self._writers = {use.tensor: i for i, task in placed for use in task.uses if use.writes}
        self.digests: dict[bytes, int] = {}
        for i, task in placed:
            self._add(i, task)
        for tensor, i in self._writers.items():
            if tensor in self._programs:
                reads = tensor in self.parts[i].named
                tag = TensorArgType.INOUT if reads else TensorArgType.OUTPUT_EXISTING
                self.parts[i].named[tensor] = tag

    def _add(self, i: int, task: GraphTask) -> None:
        part = self.parts[i]
        gets = [get for use in task.uses if use.reads for get in self._gets(i, use.tensor)]
        number = self.digests.setdefault(task.digest, len(self.digests))
        part.tasks.append(ListTask(number, task.uses, task.scalars, gets))
        for use in task.uses:
            if use.writes:
                made = ListGet(use.tensor, i, len(part.tasks))
                self._versions[use.tensor] = _Version(made, {i})

    def _gets(self, i: int, tensor: int) -> list[ListGet]:
        """Return what a part gets so that a task can read a tensor."""
        version = self._versions.get(tensor)
        if version is None:
            version, writer = _Version(None, set()), self._writers.get(tensor)
            if tensor in self._programs and writer is not None:
                self._name(writer, tensor)
                version = _Version(ListGet(tensor, writer, 0), {writer})
            self._versions[tensor] = version
        if version.get is None:
            self._name(i, tensor)
        elif i not in version.holders:
            version.holders.add(i)
            return [version.get]
        return []

    def _name(self, i: int, tensor: int) -> None:
        if tensor in self._programs:
            self.parts[i].named[tensor] = TensorArgType.INPUT


def list_of(cut: Cutter, sizes: Sequence[int]) -> TaskList:
    """Return the parts as a message; `sizes` are the bytes of tensors."""
    parts = [ListPart(list(one.named), one.tasks) for one in cut.parts]
    return TaskList(list(cut.digests), sizes, parts)


# ---------------------------------------------------------------- replays
class _Way:
    """The parts of a graph by one placement, and how fast replays are that way."""

    def __init__(self, parts: Sequence[Part], sizes: Sequence[int], raw: bytes) -> None:
        self.parts = parts
        self.places = [one.place for one in parts]
        self.wires = [
            [(tensor, _octets(sizes[tensor], tag)) for tensor, tag in one.named.items()]
            for one in parts
        ]
        """Of each part: its tensors, and what their bytes are behind the address."""
        self.room = {
            one.place: sum(L.round_up(sizes[tensor], L.HEAP_ALIGN) for tensor in one.tensors())
            for one in parts
        }
        """By endpoint: the bytes that it needs."""
        kind = CallableKind.PYTHON_IMPORT
        command = registering(kind, raw, raw, version=LIST_VERSION)
        hashid = f"sha256:{sha256(raw).hexdigest()}"
        self.described = Registration(tuple(self.places), command).named(
            hashid, kind, "a list of tasks"
        )
        self.handle = self.described[0]
        self.took_s: list[float] = []
        """How long its first replays have taken: the first one makes memory, so it does not count."""


class ListedGraph:
    """A graph whose tasks are all for sub workers of endpoints, as lists."""

    def __init__(self, endpoints: Endpoints, reader: _Reader, tasks: Sequence[GraphTask]) -> None:
        self._endpoints = endpoints
        self._names, self._scalars = list(reader.names), reader.scalars
        self._programs = [i for i, one in enumerate(self._names) if reader.is_programs(one)]
        seats = {
            place: endpoints.link(place).spec.sub_workers
            for place in sorted({place for one in tasks for place in one.allowed})
        }
        sizes = [one.nbytes for one in self._names]
        self.ways = []
        for places in placements(tasks, sizes, seats):
            cut = Cutter(tasks, places, self._programs)
            if any(len(one.named) > MAX_TENSORS for one in cut.parts):
                continue
            raw = LIST.encode(list_of(cut, sizes))
            if len(raw) <= MOST_BYTES and len(cut.parts) < len(tasks):
                self.ways.append(_Way(cut.parts, sizes, raw))
        if not self.ways:
            raise NotListed
        handles = [way.handle for way in self.ways]
        weakref.finalize(self, endpoints.dropped_lists.extend, handles)
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
                if isinstance(step, SubmitStep)
            ]
            reader.require_apart()
            return cls(endpoints, reader, tasks)
        except NotListed:
            return None

    @property
    def is_possible(self) -> bool:
        """Whether all endpoints that have a list are still the Worker's."""
        return all(self._endpoints.has_all(way.room) for way in self.ways)

    def register(self, is_live: Callable[[Any], bool], add_callable: Callable[..., Any]) -> None:
        """Have endpoints know the list of the next replay, between two runs, if they are all there.

        Of the placements that have room each is tried, then the fastest one stays.
        """
        able = [way for way in self.ways if self._has_room(way)]
        if not able:
            return
        untried = [way for way in able if len(way.took_s) < TRIES]
        way = self.way = untried[0] if untried else min(able, key=lambda way: min(way.took_s[1:]))
        if not is_live(way.handle):
            add_callable(*way.described)

    def _has_room(self, way: _Way) -> bool:
        return all(self._endpoints.takes_list(*one) for one in way.room.items())

    def submit(self, orch: PlacingOrchestrator, variables: Sequence[int]) -> bool:
        """Submit a replay; return False if it has to be made task by task."""
        way, tensors = self.way, self._endpoints.tensors
        starts = self._starts(variables)
        if starts is None or not self._has_room(way) or way.handle not in orch._next_level:
            return False
        scalars = b"".join(
            (variable & _BITS).to_bytes(L.WORD, "little")
            for variable in variables[self._scalars.start : self._scalars.stop]
        )
        heads = {i: start.to_bytes(SHAPE_AT, "little") for i, start in starts.items()}
        members = []
        for wires in way.wires:
            args = TaskArgs()
            args._tensors = [heads[one] + rest for one, rest in wires]
            members.append(args)
        word = orch._require_handle("Graph.run", way.handle, (), orch._next_level, L.NEXT_LEVEL)

        def submit(sent: list[TaskArgs], where: list[int]) -> None:
            key = secrets.randbits(63) | 1
            told = [TaskArgs() for _ in sent]
            for part, (one, args) in enumerate(zip(sent, told, strict=True)):
                words = [int.from_bytes(raw[: L.WORD], "little") for raw in one._scalars]
                its = one._tensors, words, way.handle.digest, part, key, where, scalars
                raw = pickle.dumps(Planned(tensors.run_number, *its))  # no mailbox has room for it
                args._scalars = [scalar_wire(tensors.keep(raw)), scalar_wire(len(raw))]
            Orchestrator._send(orch, word, told, [one + 1 for one in where])

        orch._handle = way.handle
        try:
            orch._place_and_submit(members, way.places, submit)
        except MemoryError:
            return False
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


def _octets(nbytes: int, tag: TensorArgType) -> bytes:
    """Return a tensor of bytes without its address."""
    return bytes(ContinuousTensor(0, (nbytes,), DataType.UINT8)._tagged(tag))[SHAPE_AT:]


def _endpoints_for(step: SubmitStep, word: int, endpoints: Endpoints) -> list[int]:
    """Return the endpoints that may run the task of a step, which is of a function for sub workers."""
    if step.members or word & _CONFIGURED or not is_remote(step.handle):
        raise NotListed
    if not endpoints.registration(step.handle).is_inner or (
        step.handle.kind == CallableKind.CHIP_CALLABLE
    ):
        raise NotListed
    found = [one for one in endpoints.present(step.handle) if endpoints.takes_list(one, 0)]
    if not found:
        raise NotListed
    return found


class StepRecorder(OpRecorder):
    """An OpRecorder that keeps the steps, too."""

    def __init__(self, args: RecordedArgs | None) -> None:
        super().__init__(args)
        self.steps: list[Step] = []

    def _note_task(self, *parts: Any) -> None:
        self.steps.append(SubmitStep(*parts))

    def buffer(self, tensor: ContinuousTensor) -> int:
        """Write an alloc; return an address."""
        variable = self.variables

        def claim(orch: PlacingOrchestrator, variables: list[int]) -> None:
            variables[variable] = orch._claim(tensor).data

        self.steps.append(claim)
        return super().buffer(tensor)

    def scope(self, begins: bool) -> None:
        """Write the beginning of a scope, or its end."""
        self.steps.append(lambda orch, _: orch._open_scope() if begins else orch._close_scope())
        super().scope(begins)


class PlacedGraph(Graph):
    """A graph of a Worker that has endpoints; it may have no task for them."""

    def __init__(
        self, add_callable: Callable[..., Any], life: Any, recorder: Any, *rest: Any
    ) -> None:
        super().__init__(life, recorder, *rest)
        self._add_callable = add_callable
        of_endpoints = any(is_remote(handle) for handle, _ in self._handles)
        self._steps: list[Step] = recorder.steps if of_endpoints else []
        self._listed: ListedGraph | None = None
        self._was_run = self._was_read = False
        """Whether it was replayed once; and read, for lists at the endpoints that there are."""
        self._went_by_lists = False
        """Whether it did the last time."""

    def _run(self, bound: TaskArgs | None, start: int) -> RunTiming:
        self._prepare_lists()
        timing = super()._run(bound, start)
        self._was_run = True
        if self._listed is None or not self._went_by_lists:
            return timing
        if len(self._listed.way.took_s) < TRIES:
            self._listed.way.took_s.append(timing.host_wall_ns / 1e9)
        return replace(timing, tasks=self.tasks)

    def _play(self, orch: Orchestrator) -> None:
        if not self._steps:
            super()._play(orch)
            return
        assert isinstance(orch, PlacingOrchestrator)
        variables = self._variables.tolist()
        orch.one_by_one = lambda: self._play_steps(orch, variables)
        self._went_by_lists = self._listed is not None and self._listed.submit(orch, variables)
        if not self._went_by_lists:
            orch.one_by_one()

    def _play_steps(self, orch: PlacingOrchestrator, variables: list[int]) -> None:
        """Carry it out step by step. What a recording has checked is not checked again."""
        orch._require_mine()
        words = iter(self._words())
        for step in self._steps:
            if isinstance(step, SubmitStep):
                step.submit(orch, next(words), variables)
            else:
                step(orch, variables)

    def _prepare_lists(self) -> None:
        """Make the lists for the second replay: sessions have been started by then."""
        life = self._life
        options = life.options
        if options.check or options.track_reads:
            return  # a list has only the order that follows from its data
        if not self._steps or not self._was_run:
            return
        assert isinstance(life.endpoints, Endpoints)
        while life.endpoints.dropped_lists:
            dropped = life.endpoints.dropped_lists.pop()
            with suppress(CallableError, ControlError):  # an endpoint is lost: it has none
                if life.registry.is_live(dropped):
                    life.registry.discard(dropped, life.installer, life.running)
        if self._listed is not None and not self._listed.is_possible:
            self._listed, self._was_read = None, False
        if not self._was_read:
            self._was_read = True
            mine = self._args
            provided = (0, 0) if mine is None else (len(mine._tensors), len(mine._scalars))
            with suppress(KeyError):  # which the run will raise
                self._listed = ListedGraph.of(life.endpoints, self._steps, self._words(), provided)
        if self._listed is not None:
            with suppress(CallableError, ControlError):  # so this replay goes task by task
                self._listed.register(life.registry.is_live, self._add_callable)
