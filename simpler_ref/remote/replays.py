"""Replays of recorded graphs that have tasks of endpoints: task by task, or by lists.

Of the copies at endpoints Python keeps track, not the kernels: so such a graph is carried out step by
step the first time. From then on, if that can be, each endpoint gets many of its tasks as one: the tasks
are placed together, and those that one endpoint runs without anything of another one are a *part*. A
replay submits each part as one task of its endpoint, whose callable is the list of all parts and whose
tensors are those of the part. To directory, links and sessions that is a task like any other: what
moves, fails or is lost follows from that.

Rule     SPEED-LIST-1, SPEED-LIST-2, SPEED-LIST-3, SPEED-LIST-4, SPEED-LIST-5, SPEED-LIST-6,
         SPEED-LIST-7, SPEED-REPLAY-12
"""

from __future__ import annotations

import itertools
import math
import pickle
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

from ..callables.identity import CallableHandle, CallableKind, TargetNamespace
from ..errors import CallableError, ControlError
from ..jit import layout as L
from ..jit.program import part_at
from ..model.arguments import TaskArgs
from ..model.enums import DataType, TensorArgType
from ..model.scalars import scalar_wire
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
from ..orch.listening import RecordedArgs
from ..orch.orchestrator import Orchestrator
from ..orch.recording import Graph, OpRecorder
from ..orch.runs import RunTiming
from .callables import Registration, RemoteRegistryTarget, encode_register_callable_command
from .directory import REQUEST_BYTES
from .endpoints import Endpoints
from .layouts import as_bytes, layout_text
from .lists import (
    LIST,
    LIST_VERSION,
    MOST_BYTES,
    READS,
    WRITES,
    ListPart,
    ListScalar,
    ListTask,
    ListUse,
    TaskList,
)
from .placing import AllocStep, PlacingOrchestrator, ScopeStep, Step, SubmitStep, is_remote

_BITS = (1 << 64) - 1
_CONSTANT = -1
_CONFIGURED = L.CONFIG_MASK << L.WORD_CONFIG
MOST_TENSORS = 128
"""Of a part: the arguments of a task have room for them, and for what its link is told of each; and for
a token, see `leave`."""
MOST_SCALARS = 256
"""Of a graph: a mailbox has room for all of them, each as two kinds of number, beside so many tensors."""
PART_S = 1.0
"""About how long a part lasts at most: nothing ends it before, and a failure costs all of it."""
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
        self.names.setdefault(name, len(self.names))
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


# ---------------------------------------------------------------- parts
class Part:
    """Tasks that an endpoint runs as one, and what they do with each tensor together.

    Those that are `left` there by the parts before it need not be named; see `leave`.
    """

    def __init__(self, place: int) -> None:
        self.place = place
        self.tasks: list[GraphTask] = []
        self.tags: dict[int, TensorArgType] = {}
        self.left: set[int] = set()

    @property
    def named(self) -> list[int]:
        """The tensors that its task has."""
        return [one for one in self.tags if one not in self.left]

    def add(self, task: GraphTask) -> None:
        """Add a task, behind those that are in it."""
        self.tasks.append(task)
        for tensor in {use.tensor for use in task.uses}:
            mine = [use for use in task.uses if use.tensor == tensor]
            before = self.tags.get(tensor)
            reads = any(use.reads for use in mine) if before is None else before in READS
            writes = before in WRITES or any(use.writes for use in mine)
            self.tags[tensor] = _TAGS[reads, writes]

    def has_to_come_before(self, task: GraphTask) -> bool:
        """Say whether a task of another endpoint uses what a task of it has written, or writes it."""
        found = ((self.tags.get(use.tensor), use.writes) for use in task.uses)
        return any(tag is not None and (writes or tag in WRITES) for tag, writes in found)

    def has_room(self, task: GraphTask, most: int) -> bool:
        """Say whether one more task fits."""
        tensors = self.tags.keys() | {use.tensor for use in task.uses}
        return len(self.tasks) < most and len(tensors) <= MOST_TENSORS


_TAGS = {
    (True, False): TensorArgType.INPUT,
    (True, True): TensorArgType.INOUT,
    (False, True): TensorArgType.OUTPUT_EXISTING,
}


def parts_of(tasks: Sequence[GraphTask], places: Sequence[int], most: int) -> list[Part]:
    """Return the parts of a graph whose tasks are placed, in an order in which they can be submitted.

    Of the parts that are still open none uses what another one writes. So when a task needs that of
    some, they are closed first; and so is its own, which need not wait for them.

    Rule     SPEED-LIST-3
    """
    closed: list[Part] = []
    opened: dict[int, Part] = {}
    for place, task in zip(places, tasks, strict=True):
        ending = [at for at, one in opened.items() if at != place and one.has_to_come_before(task)]
        mine = opened.get(place)
        if mine is not None and (ending or not mine.has_room(task, most)):
            ending.append(place)
        closed += [opened.pop(at) for at in ending]
        opened.setdefault(place, Part(place)).add(task)
    return [*closed, *opened.values()]


def leave(parts: Sequence[Part], programs: Collection[int], tokens: Mapping[int, int]) -> None:
    """Note which tensors need not be named, since no other endpoint uses them before or after a part.

    So of a tensor that an endpoint changes again and again, nobody is told until another one needs it.
    Those of the program are always named. The parts of an endpoint that leave something are ordered by a
    tensor that all of them change: `tokens` has one for each endpoint.

    Rule     SPEED-LIST-3
    """
    uses: defaultdict[int, list[Part]] = defaultdict(list)
    for part in parts:
        for tensor in part.tags.keys() - set(programs):
            uses[tensor].append(part)
    for tensor, its in uses.items():
        for before, part, after in zip(its, its[1:], [*its[2:], its[-1]], strict=False):
            if before.place == part.place == after.place:
                part.left.add(tensor)
    places = {part.place for part in parts if part.left}
    for part in parts:
        if part.place in places:
            part.tags[tokens[part.place]] = TensorArgType.INOUT


def list_of(parts: Sequence[Part], sizes: Sequence[int]) -> TaskList:
    """Return the parts as a message; `sizes` are the bytes of tensors."""
    callables: dict[bytes, int] = {}
    made = []
    for part in parts:
        left = sorted(part.left)
        index = {tensor: i for i, tensor in enumerate([*part.named, *left])}
        tasks = [
            ListTask(
                callables.setdefault(task.digest, len(callables)),
                [ListUse(index[one.tensor], *one[1:]) for one in task.uses],
                task.scalars,
            )
            for task in part.tasks
        ]
        made.append(ListPart(part.named, left, tasks))
    return TaskList(list(callables), sizes, made)


# ---------------------------------------------------------------- replays
class _Way:
    """The parts of a graph by one placement, and how fast replays are that way."""

    def __init__(self, parts: Sequence[Part], sizes: Sequence[int], raw: bytes) -> None:
        self.parts = parts
        self.wires = [
            [(one, _octets(sizes[one], part.tags[one])) for one in part.named] for part in parts
        ]
        """Of each part: its tensors, and what their bytes are behind the address."""
        self.room: dict[int, int] = {}
        """By endpoint: the bytes that it needs, as it keeps what it has to the end of a replay."""
        for place in {one.place for one in parts}:
            its = [one.tags.keys() for one in parts if one.place == place]
            largest = max(sum(sizes[tensor] for tensor in one) for one in its)
            together = sum(L.round_up(sizes[tensor], L.HEAP_ALIGN) for tensor in set().union(*its))
            self.room[place] = max(2 * largest, together)
        digest = sha256(raw)
        self.handle = CallableHandle(
            f"sha256:{digest.hexdigest()}",
            CallableKind.PYTHON_IMPORT,
            TargetNamespace.REMOTE_TASK_DISPATCHER,
            "a list of tasks",
        )
        command = encode_register_callable_command(
            RemoteRegistryTarget.REMOTE_TASK_DISPATCHER,
            CallableKind.PYTHON_IMPORT,
            digest.digest(),
            LIST_VERSION,
            raw,
        )
        self.registration = Registration(tuple(sorted(self.room)), command)
        self.runs = 0
        self.best_s = math.inf

    def note_run(self, seconds: float) -> None:
        """Note a replay; before the first one ends, memory is made for its tensors."""
        self.runs += 1
        if self.runs > 1:
            self.best_s = min(self.best_s, seconds)


class ListedGraph:
    """A graph whose tasks are all for sub workers of endpoints, as lists.

    `task_s` is about how long a task lasts.
    """

    def __init__(
        self, endpoints: Endpoints, reader: _Reader, tasks: Sequence[GraphTask], task_s: float
    ) -> None:
        self._endpoints = endpoints
        self._names, self._scalars = list(reader.names), reader.scalars
        self._programs = [i for i, one in enumerate(self._names) if reader.is_programs(one)]
        seats = {
            place: endpoints.sub_workers_of(place)
            for place in sorted({place for one in tasks for place in one.allowed})
        }
        sizes = [one.nbytes for one in self._names]
        tokens = {place: len(sizes) + i for i, place in enumerate(seats)}
        sizes = self._sizes = [*sizes, *[L.WORD] * len(tokens)]
        self._buffers = [i for i in range(len(sizes)) if i not in set(self._programs)]
        rounded = [L.round_up(sizes[one], L.HEAP_ALIGN) for one in self._buffers]
        *self._offsets, self._room = itertools.accumulate(rounded, initial=0)
        if len(self._scalars) > 2 * L.SCALAR_WORDS * MOST_SCALARS:
            raise NotListed
        most = max(1, int(PART_S / task_s))
        self.ways = []
        for places in placements(tasks, sizes, seats):
            parts = parts_of(tasks, places, most)
            leave(parts, self._programs, tokens)
            raw = LIST.encode(list_of(parts, sizes))
            if len(raw) <= MOST_BYTES and len(parts) < len(tasks):
                self.ways.append(_Way(parts, sizes, raw))
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
        task_s: float,
    ) -> ListedGraph | None:
        """Return the lists of a graph that was replayed once; None if it has what lists cannot do.

        `words` are the callable words of its submits; `provided` is how many tensors and scalars a replay
        has; `task_s` is about how long a task lasts.
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
            return cls(endpoints, reader, tasks, task_s)
        except NotListed:
            return None

    @property
    def is_possible(self) -> bool:
        """Whether all endpoints that have a list are still the Worker's."""
        return all(self._endpoints.has_all(way.room) for way in self.ways)

    def note_run(self, seconds: float) -> None:
        """Note how long a replay took."""
        self.way.note_run(seconds)

    def register(self, is_live: Callable[[Any], bool], add_callable: Callable[..., Any]) -> None:
        """Have endpoints know the list of the next replay, between two runs, if they are all there.

        Of the placements that have room each is tried, then the fastest one stays.

        Rule     SPEED-LIST-2
        """
        able = [way for way in self.ways if self._has_room(way)]
        if not able:
            return
        untried = [way for way in able if way.runs < TRIES]
        way = self.way = untried[0] if untried else min(able, key=lambda way: way.best_s)
        if not is_live(way.handle):
            add_callable(way.handle, way.registration, pickle.dumps(way.registration))

    def _has_room(self, way: _Way) -> bool:
        return all(self._endpoints.takes_list(*one) for one in way.room.items())

    def submit(self, orch: Any, variables: Sequence[int]) -> bool:
        """Submit a replay; return False if it has to be made task by task.

        Rule     SPEED-LIST-4
        """
        way = self.way
        starts = self._starts(variables)
        if starts is None or not self._has_room(way) or way.handle not in orch._next_level:
            return False
        try:
            first = self._endpoints.keep(max(1, self._room))
        except MemoryError:  # in rings, scopes that have ended make room
            return False
        starts |= {i: first + at for i, at in zip(self._buffers, self._offsets, strict=True)}
        scalars = [
            (variables[i] & _BITS).to_bytes(8, "little")
            + (variables[i + 1] & _BITS).to_bytes(8, "little")
            for i in self._scalars[:: L.SCALAR_WORDS]
        ]
        heads = {i: start.to_bytes(SHAPE_AT, "little") for i, start in starts.items()}
        word = orch._require_handle("Graph.run", way.handle, (), orch._next_level, L.NEXT_LEVEL)
        for number, part in enumerate(way.parts):
            args = TaskArgs()
            args._tensors = [heads[one] + rest for one, rest in way.wires[number]]
            args._scalars = [scalar_wire(number), *scalars]
            orch._handle = way.handle
            orch._send(word | (part.place + 1) << L.WORD_WORKER, [args], None)
        for i in self._buffers:  # nobody reads them after that
            self._endpoints.tensors.directory.give_back(starts[i], self._sizes[i])
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
    found = endpoints.taking_lists(step.handle)
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
        self.steps.append(AllocStep(tensor, self.variables))
        return super().buffer(tensor)

    def scope(self, begins: bool) -> None:
        """Write the beginning of a scope, or its end."""
        self.steps.append(ScopeStep(begins))
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
        self._task_s = self._unlisted_s = math.inf
        """About how long its tasks last, and how long when they made no lists; infinite before that."""
        self._went_by_lists = False
        """Whether it did the last time."""

    def _run(self, bound: TaskArgs | None, start: int) -> RunTiming:
        self._prepare_lists()
        timing = super()._run(bound, start)
        seconds = timing.host_wall_ns / 1e9
        self._task_s = min(
            self._task_s, seconds / max(1, self.tasks)
        )  # the first may start sessions
        if self._listed is None or not self._went_by_lists:
            return timing
        self._listed.note_run(seconds)
        return replace(timing, tasks=self.tasks)

    def _play(self, orch: Orchestrator) -> None:
        if not self._steps:
            super()._play(orch)
            return
        assert isinstance(orch, PlacingOrchestrator)
        variables = self._variables.tolist()
        self._went_by_lists = self._listed is not None and self._listed.submit(orch, variables)
        if not self._went_by_lists:
            orch._play_steps(self._steps, self._words(), variables)

    def _prepare_lists(self) -> None:
        """Make the lists for the second replay: how long tasks last is known by then."""
        life = self._life
        options = life.options
        if options.check or options.track_reads:
            return  # a list has only the order that follows from its data
        if not self._steps or self._task_s == math.inf:
            return
        assert isinstance(life.endpoints, Endpoints)
        for dropped in life.endpoints.take_dropped_lists():
            with suppress(CallableError, ControlError):  # an endpoint is lost: it has none
                if life.registry.is_live(dropped):
                    life.registry.discard(dropped, life.installer, life.running)
        if self._listed is not None and not self._listed.is_possible:
            self._listed = None
        if self._listed is None and self._task_s < self._unlisted_s / 2:
            mine = self._args
            provided = (0, 0) if mine is None else (len(mine._tensors), len(mine._scalars))
            with suppress(KeyError):  # which the run will raise
                self._listed = ListedGraph.of(
                    life.endpoints, self._steps, self._words(), provided, self._task_s
                )
                self._unlisted_s = self._task_s if self._listed is None else math.inf
        if self._listed is not None:
            with suppress(CallableError, ControlError):  # so this replay goes task by task
                self._listed.register(life.registry.is_live, self._add_callable)
