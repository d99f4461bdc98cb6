"""Replays of a graph in parts: each endpoint gets all of its tasks at once.

The first replay goes task by task. From then on a replay is one task of the parent's: a group with a
member for each endpoint that has a part of the graph.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import secrets
import weakref
from collections.abc import Callable, Sequence
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
from ..orch.steps import AllocStep, ScopeStep, Step, SubmitStep
from .directory import HOME, Placed, Use
from .endpoints import Endpoints
from .layouts import as_bytes, layout_text
from .limits import MAX_TENSORS
from .link_parts import HANDLE, OfParts
from .partition import partitions
from .parts import (
    MOST_BYTES,
    PART,
    PART_REQUEST,
    NamedTensor,
    PartRequest,
    PartScalar,
)
from .placing import is_remote
from .pushes import MOST_EARLY_BYTES
from .split import PlacePart, SplitTask, SplitUse

_BITS = (1 << 64) - 1
_CONSTANT = -1
TRIES = 3
"""Replays of each placement; the first one of them does not count."""
_numbers = itertools.count(1)
_CONFIGURED = L.CONFIG_MASK << L.WORD_CONFIG


class _Name(NamedTuple):
    """A tensor of a graph: so many bytes from a variable, or an address, and an offset on."""

    variable: int
    offset: int
    nbytes: int

    def start(self, variables: Sequence[int]) -> int:
        """Return its first byte."""
        base = 0 if self.variable == _CONSTANT else variables[self.variable]
        return base + self.offset


class NotParted(Exception):
    """The graph has what only a replay task by task can do."""


class _Reader:
    """Reads the steps of a recording: which tensors they name, and what of those is the parent's.

    `tensors` and `scalars` are how many of them a replay provides.
    """

    def __init__(self, tensors: int, scalars: int) -> None:
        self._tensors = tensors
        self._first_scalar = tensors
        self._end_of_scalars = tensors + 2 * scalars * L.SCALAR_WORDS
        self.names: dict[_Name, int] = {}
        self.wires: list[bytes] = []
        """A tensor with each name."""

    def task(self, step: SubmitStep) -> SplitTask:
        """Return the task of a step."""
        count = len(step.tensors)
        where: dict[int, tuple[int, int]] = {}
        bound: dict[int, int] = {}
        for one in step.patches:
            which, octet = part_at(one.at, count)
            if which >= count:
                if not self._first_scalar <= one.variable < self._end_of_scalars:
                    raise NotParted
                if not octet:
                    bound[which - count] = (one.variable - self._first_scalar) // L.SCALAR_WORDS + 1
            elif not octet:
                where[which] = one.variable, one.offset
        uses = [
            self._use(wire, where.get(i), step.outputs + i) for i, wire in enumerate(step.tensors)
        ]
        scalars = [
            PartScalar(*_scalar_words(raw), bound.get(j, 0)) for j, raw in enumerate(step.scalars)
        ]
        return SplitTask(HOME, step.handle.digest, uses, scalars)

    def _use(self, wire: bytes, where: tuple[int, int] | None, output: int) -> SplitUse:
        nbytes, tag = bytes_of(wire), TensorArgType(wire[TAG_AT])
        if (
            isinstance(wire, RemoteWire)
            or wire[CHILD_MEMORY_AT] & 1
            or tag == TensorArgType.NO_DEP
            or not nbytes
        ):
            raise NotParted
        address = int.from_bytes(wire[:SHAPE_AT], "little")
        if where is None:
            if not address and tag != TensorArgType.OUTPUT:
                raise NotParted
            where = (_CONSTANT, address) if address else (output, 0)
        name = _Name(*where, nbytes)
        if name not in self.names:
            self.names[name] = len(self.names)
            self.wires.append(wire)
        if tag == TensorArgType.OUTPUT:
            tag = TensorArgType.OUTPUT_EXISTING
        return SplitUse(self.names[name], tag, *_form(wire, nbytes))

    def is_of_parent(self, name: _Name) -> bool:
        """Say whether a tensor is in memory that the program has provided."""
        return name.variable < self._tensors

    def require_apart(self) -> None:
        """Refuse tensors that share some bytes of one buffer, but not all."""
        buffers = sorted(one for one in self.names if not self.is_of_parent(one))
        for one, other in itertools.pairwise(buffers):
            if one.variable == other.variable and other.offset < one.offset + one.nbytes:
                raise NotParted


def _form(wire: bytes, nbytes: int) -> tuple[ContinuousTensor, str]:
    """Return a tensor as a TASK has it: without address, and its layout."""
    if isinstance(wire, DescribedWire):
        try:
            return as_bytes(wire.layout, nbytes), layout_text(wire.layout)
        except TypeError:
            raise NotParted from None
    _, *sizes, ndims, dtype, _ = TENSOR.unpack(wire[: TENSOR.size])
    return ContinuousTensor(0, sizes[:ndims], DataType(dtype)), ""


def _scalar_words(raw: bytes) -> tuple[int, int]:
    return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:16], "little")


class _Way:
    """A graph in parts, by one placement, and how fast replays are that way."""

    def __init__(self, parts: dict[int, PlacePart]) -> None:
        self.parts = parts
        self.number = next(_numbers)
        self.raw = {place: PART.encode(one.part) for place, one in parts.items()}
        self.nbytes = {place: one.nbytes for place, one in parts.items()}
        """By endpoint: how much memory its part needs."""
        self.sent: dict[int, int] = {}
        """By endpoint: the session that has its part."""
        self.runs = 0
        self.best_s = math.inf

    @property
    def fits(self) -> bool:
        """Whether frames have room for it, and sessions for what is pushed to them.

        Rule     SPEED-PARTS-4
        """
        return all(
            len(self.raw[place]) <= MOST_BYTES
            and len(one.named) <= MAX_TENSORS
            and one.received <= MOST_EARLY_BYTES
            for place, one in self.parts.items()
        )

    def note_run(self, seconds: float) -> None:
        """Note a replay; in the first one, the parts had to be sent."""
        self.runs += 1
        if self.runs > 1:
            self.best_s = min(self.best_s, seconds)


class PartedGraph:
    """A graph whose tasks are all for sub workers of endpoints, in parts.

    Rule     SPEED-PARTS-1, -2, -4, -5
    """

    def __init__(
        self,
        endpoints: Endpoints,
        reader: _Reader,
        tasks: Sequence[SplitTask],
        allowed: Sequence[Sequence[int]],
        scalars: int,
    ) -> None:
        self._endpoints = endpoints
        self._names = list(reader.names)
        self._wires = reader.wires
        self._scalars = range(
            reader._first_scalar, reader._first_scalar + 2 * scalars * L.SCALAR_WORDS
        )
        of_parent = [i for i, one in enumerate(self._names) if reader.is_of_parent(one)]
        self._of_parent = of_parent
        sizes = [one.nbytes for one in self._names]
        places = sorted({place for one in allowed for place in one})
        seats = {place: endpoints.sub_workers_of(place) for place in places}
        task_s = endpoints.queues.shortest_task_s(places)
        found = partitions(tasks, allowed, sizes, frozenset(of_parent), seats, task_s)
        self._ways = [way for way in map(_Way, found) if way.fits]
        if not self._ways:
            raise NotParted
        self._way = self._ways[0]
        for way in self._ways:
            weakref.finalize(self, endpoints.forget_part, way.number, list(way.parts))

    @classmethod
    def of(
        cls,
        endpoints: Endpoints,
        steps: Sequence[Step],
        words: Sequence[int],
        provided: tuple[int, int],
    ) -> PartedGraph | None:
        """Return the parts of a graph that was replayed once; None if it has what parts cannot do.

        `words` are the callable words of its submits; `provided` is how many tensors and scalars a replay
        has.
        """
        reader = _Reader(*provided)
        tasks, allowed = [], []
        following = iter(words)
        try:
            for step in steps:
                if isinstance(step, AllocStep | ScopeStep):
                    continue
                word = next(following)
                allowed.append(_endpoints_for(step, word, endpoints))
                tasks.append(reader.task(step))
            reader.require_apart()
            return cls(endpoints, reader, tasks, allowed, provided[1])
        except NotParted:
            return None

    @property
    def parts(self) -> dict[int, PlacePart]:
        """The part of each endpoint, by the placement of the next replay."""
        return self._way.parts

    def are_all_there(self) -> bool:
        """Say whether all endpoints that have a part are still the Worker's."""
        return self._endpoints.has_all(self.parts)

    def note_run(self, seconds: float) -> None:
        """Note how long a replay took: each placement is tried, then the fastest one stays.

        Rule     SPEED-PARTS-2
        """
        self._way.note_run(seconds)
        untried = [way for way in self._ways if way.runs < TRIES]
        self._way = untried[0] if untried else min(self._ways, key=lambda way: way.best_s)

    def forget_sent(self) -> None:
        """Note that nobody knows which sessions have their parts."""
        for way in self._ways:
            way.sent.clear()

    @staticmethod
    def require_registered(registry: Registry, add_callable: Callable[..., Any]) -> None:
        """Have links know the callable of parts, between two runs."""
        if not registry.is_live(HANDLE):
            target = OfParts((), b"")
            add_callable(HANDLE, target, target.to_bytes())

    def submit(self, orch: Any, variables: Sequence[int]) -> bool:
        """Submit a replay; return False if it has to be made task by task.

        Rule     SPEED-PARTS-1, -4
        """
        endpoints, way = self._endpoints, self._way
        if not all(endpoints.takes_part(at, nbytes) for at, nbytes in way.nbytes.items()):
            return False
        starts = self._starts(variables)
        if starts is None:
            return False
        directory = endpoints.tensors.directory
        token = secrets.randbits(63) | 1
        placed = [self._placed(place, one, starts) for place, one in way.parts.items()]
        for one in placed:
            endpoints.tensors.require_not_lost(list(one.uses))
        members, coming = [], []
        for one in placed:
            args, partly = self._member(one, variables, token)
            members.append(args)
            coming.append(partly)
        word = orch._require_handle("Graph.run", HANDLE, (), orch._next_level, L.NEXT_LEVEL)
        affinities = [one.where + 1 for one in placed]
        if len(members) > 1:
            Orchestrator._send(orch, word, members, affinities)
        else:
            Orchestrator._send(orch, word | affinities[0] << L.WORD_WORKER, members, None)
        for one, partly in zip(placed, coming, strict=True):
            endpoints.queues.note_given(one)
            directory.note_task(one, [use.start for use in one.uses], partly)
            way.sent[one.where] = endpoints.session_of(one.where)
        return True

    def _starts(self, variables: Sequence[int]) -> dict[int, int] | None:
        """Return where the parent's tensors are; None if some share bytes, or workers do not see one."""
        starts = {i: self._names[i].start(variables) for i in self._of_parent}
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

    def _placed(self, place: int, part: PlacePart, starts: dict[int, int]) -> Placed:
        uses = [
            Use(
                i,
                starts[one.tensor],
                self._names[one.tensor].nbytes,
                one.reads * L.TENSOR_READ | one.makes * L.TENSOR_WRITE,
                self._wires[one.tensor],
            )
            for i, one in enumerate(part.named)
        ]
        directory = self._endpoints.tensors.directory
        return directory.place(place, uses, HANDLE, are_apart=True)

    def _member(
        self, placed: Placed, variables: Sequence[int], token: int
    ) -> tuple[TaskArgs, dict[int, int]]:
        """Return the arguments of an endpoint's task: where the request is that its link reads.

        Behind the request is a byte for each tensor that comes home, where the link says whether a part
        of it has come; return also where, by the index of the tensor.

        Rule     SPEED-PARTS-6
        """
        endpoints, place, way = self._endpoints, placed.where, self._way
        directory = endpoints.tensors.directory
        plans = directory.plans(placed, len(placed.uses))
        is_known = way.sent.get(place) == endpoints.session_of(place)
        request = PartRequest(
            endpoints.tensors.run_number,
            directory.take_dropped(place),
            [
                NamedTensor(use.start, use.nbytes, plan.key, plan.reads, plan.makes)
                for use, plan in zip(placed.uses, plans, strict=True)
            ],
            way.number,
            b"" if is_known else way.raw[place],
            token,
            list(way.parts),
            [variables[i] & _BITS for i in self._scalars],
            endpoints.take_forgotten(place),
            way.parts[place].tasks,
            way.parts[place].goes,
        )
        raw = PART_REQUEST.encode(request)
        goes = way.parts[place].goes
        address = endpoints.keep(len(raw) + len(goes))
        ctypes.memmove(address, raw + bytes(len(goes)), len(raw) + len(goes))
        args = TaskArgs()
        args._scalars = [scalar_wire(ScalarBits(one)) for one in (address, len(raw))]
        return args, {one: address + len(raw) + i for i, one in enumerate(goes)}


def _endpoints_for(step: SubmitStep, word: int, endpoints: Endpoints) -> list[int]:
    """Return the endpoints that may run the task of a step, which is of a function for sub workers."""
    if step.members or word & _CONFIGURED or not is_remote(step.handle):
        raise NotParted
    found = endpoints.taking_parts(step.handle)
    if not found:
        raise NotParted
    return found


__all__ = ["PartedGraph"]
