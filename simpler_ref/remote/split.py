"""Splitting a graph into parts: what each endpoint does in a replay, and what it pushes to others.

The tasks are taken in the order of the recording. Whoever has made the version of a tensor that a task of
another endpoint reads pushes it there, once, right after the task that has made it. So nobody asks for
anything, and no part waits for what comes later: the parts together cannot wait in a circle. Within a
part, tasks that do not need what it waits for come first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..jit import layout as L
from ..model.enums import TensorArgType
from ..model.tensor import ContinuousTensor
from .directory import HOME
from .parts import (
    PARENT,
    READS,
    TOGETHER_BYTES,
    WRITES,
    Action,
    Operation,
    Part,
    PartScalar,
    PartTensor,
    PartUse,
)

AHEAD_BYTES = 16 << 20
"""Of tensors of the parent's for later tasks that are taken before one that another endpoint pushes."""
MOST_DEAD_BYTES = 16 << 20
"""Of memory that could be used again if all tasks had ended; then a part waits for that."""


class SplitUse(NamedTuple):
    """What a task does with a tensor, which has a number in the graph."""

    tensor: int
    tag: TensorArgType
    form: ContinuousTensor
    layout: str


class SplitTask(NamedTuple):
    """A task of the graph, and where it runs."""

    place: int
    digest: bytes
    uses: Sequence[SplitUse]
    scalars: Sequence[PartScalar]


class NamedUse(NamedTuple):
    """A tensor of the parent's: whether a part reads what is there, and makes the last version."""

    tensor: int
    reads: bool
    makes: bool


class PlacePart(NamedTuple):
    """The part of one endpoint, and which of the graph's tensors a replay has to name, in this order.

    What comes from the parent is first, in the order in which it is needed. `goes` are the places of what
    goes there, in the order in which it is made.
    """

    part: Part
    named: Sequence[NamedUse]
    goes: Sequence[int]
    tasks: int

    @property
    def nbytes(self) -> int:
        """How much memory it needs."""
        return sum(L.round_up(one.nbytes, L.HEAP_ALIGN) for one in self.part.tensors)

    @property
    def received(self) -> int:
        """How many bytes are pushed to it."""
        tensors = self.part.tensors
        return sum(
            tensors[one.tensor].nbytes
            for one in self.part.operations
            if one.action == Action.RECEIVE and one.peer != PARENT
        )


class _Op(NamedTuple):
    """An operation before its tensors have memory."""

    operation: Operation
    touches: Sequence[int]
    """The graph's tensors, in the order of the operation's uses, or the one."""


@dataclass
class _Place:
    """A part that is being made: its tasks, what comes before each, and what is pushed after it."""

    tasks: list[SplitTask] = field(default_factory=list)
    before: defaultdict[int, list[_Op]] = field(default_factory=lambda: defaultdict(list))
    after: defaultdict[int, list[_Op]] = field(default_factory=lambda: defaultdict(list))
    reads: list[int] = field(default_factory=list)
    """Of the parent's tensors, those of which it needs what is there, in the order of its tasks."""
    changes: set[int] = field(default_factory=set)
    """Those of which it makes, or gets, another version."""


@dataclass
class _Version:
    """The newest version of a tensor: who has made it by which of its tasks, and who has it."""

    maker: int = HOME
    task: int = 0
    holders: set[int] = field(default_factory=set)


def split(
    tasks: Sequence[SplitTask], sizes: Sequence[int], of_parent: Collection[int]
) -> dict[int, PlacePart]:
    """Return the part of each endpoint that has a task.

    Parameters
    ----------
    tasks
        The tasks, in an order in which they could run one after the other.
    sizes
        The bytes of each tensor.
    of_parent
        The tensors in the parent's memory. Others have memory while the graph runs.

    Notes
    -----
    Rule     SPEED-PARTS-2, -3
    """
    order = sorted({one.place for one in tasks})
    peers = {place: i for i, place in enumerate(order)}
    places = {place: _Place() for place in order}
    versions: defaultdict[int, _Version] = defaultdict(_Version)
    pushes = 0
    for task in tasks:
        place = places[task.place]
        number = len(place.tasks)
        place.tasks.append(task)
        for use in task.uses:
            version = versions[use.tensor]
            if use.tag not in READS or task.place in version.holders:
                continue
            version.holders.add(task.place)
            if version.maker != HOME:
                pushes += 1
                send = _exchange(Action.SEND, use.tensor, peers[task.place], pushes)
                take = _exchange(Action.RECEIVE, use.tensor, peers[version.maker], pushes)
                places[version.maker].after[version.task].append(send)
                place.before[number].append(take)
                place.changes.add(use.tensor)
            elif use.tensor in of_parent:
                place.reads.append(use.tensor)
                place.before[number].append(_exchange(Action.RECEIVE, use.tensor, PARENT))
        for use in task.uses:
            if use.tag in WRITES:
                versions[use.tensor] = _Version(task.place, number, {task.place})
                place.changes.add(use.tensor)
    made: dict[int, set[int]] = {place: set() for place in places}
    for tensor in sorted(of_parent):
        version = versions[tensor]
        if version.maker != HOME:
            made[version.maker].add(tensor)
            send = _exchange(Action.SEND, tensor, PARENT)
            places[version.maker].after[version.task].append(send)
    return {place: _part_of(one, sizes, made[place]) for place, one in places.items()}


def _exchange(action: Action, tensor: int, peer: int, number: int = 0) -> _Op:
    return _Op(Operation(action, peer=peer, number=number), [tensor])


def _part_of(place: _Place, sizes: Sequence[int], made: set[int]) -> PlacePart:
    """Return a part whose tensors have memory; `made` are those of which it makes the last version."""
    callables = {digest: i for i, digest in enumerate(dict.fromkeys(t.digest for t in place.tasks))}
    ops = _in_order(place, callables, sizes)
    order = [*place.reads, *sorted(made.difference(place.reads))]
    named = [NamedUse(one, one in place.reads, one in made) for one in order]
    memory = _Memory(named, sizes, ops)
    operations = [one for i, op in enumerate(ops) for one in memory.give_to(i, op)]
    spoiled = [i for i, one in enumerate(named) if one.tensor in place.changes and not one.makes]
    part = Part(list(callables), memory.tensors, operations, spoiled)
    numbers = {one: i for i, one in enumerate(order)}
    goes = [numbers[op.touches[0]] for op in ops if _is_with_parent(op, Action.SEND)]
    return PlacePart(part, named, goes, len(place.tasks))


def _is_with_parent(op: _Op, action: Action) -> bool:
    return op.operation.action == action and op.operation.peer == PARENT


def _in_order(place: _Place, callables: Mapping[bytes, int], sizes: Sequence[int]) -> list[_Op]:
    """Return the operations of a part.

    A task comes as soon as it may: behind the last of what it needs from other endpoints. So none waits
    for what only tasks before it need.
    """
    takes, batches = _batches(place, sizes)
    ops: list[_Op] = []
    sent: set[int] = set()
    for batch, taken in zip(batches, [[], *takes], strict=True):
        ops += taken
        sent -= {take.touches[0] for take in taken}
        for i in batch:
            task = place.tasks[i]
            changed = sent.intersection(use.tensor for use in task.uses if use.tag in WRITES)
            ops += [_Op(Operation(Action.WAIT), [tensor]) for tensor in sorted(changed)]
            uses = [PartUse(0, use.tag, use.form, use.layout) for use in task.uses]
            run = Operation(Action.RUN, callables[task.digest], uses, task.scalars)
            ops += [_Op(run, [use.tensor for use in task.uses]), *place.after[i]]
            sent = sent.difference(changed).union(one.touches[0] for one in place.after[i])
    return ops


class _Group:
    """Tensors of the parent's that a part takes together; `first` is the task that needs them first."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.takes: list[_Op] = []
        self.nbytes = 0


def _groups(place: _Place, sizes: Sequence[int]) -> deque[_Group]:
    """Return what a part takes from the parent, in order.

    Rule     SPEED-PARTS-10
    """
    found: deque[_Group] = deque()
    for i in range(len(place.tasks)):
        for take in place.before[i]:
            if not _is_with_parent(take, Action.RECEIVE):
                continue
            nbytes = sizes[take.touches[0]]
            if not found or found[-1].nbytes + nbytes > TOGETHER_BYTES:
                found.append(_Group(i))
            found[-1].takes.append(take)
            found[-1].nbytes += nbytes
    return found


def _taken(place: _Place, sizes: Sequence[int]) -> Iterator[tuple[int, list[_Op]]]:
    """Yield what a part takes together, in order, each with the task that needs it first.

    What the parent has does not wait behind what others have yet to make.
    """
    groups = _groups(place, sizes)
    for i in range(len(place.tasks)):
        pushed = [one for one in place.before[i] if not _is_with_parent(one, Action.RECEIVE)]
        ahead = 0
        while groups and (groups[0].first <= i or (pushed and ahead < AHEAD_BYTES)):
            group = groups.popleft()
            ahead += group.nbytes if group.first > i else 0
            yield i, group.takes[::-1]  # those before the last have come when it has
        for one in pushed:
            yield i, [one]


def _batches(place: _Place, sizes: Sequence[int]) -> tuple[list[list[_Op]], list[list[int]]]:
    """Return what a part takes, in order, and the tasks that may run before and after each of that.

    Rule     SPEED-PARTS-8
    """
    takes: defaultdict[int, list[list[_Op]]] = defaultdict(list)
    for i, taken in _taken(place, sizes):
        takes[i].append(taken)
    order: list[list[_Op]] = []
    batches: list[list[int]] = [[]]
    made: defaultdict[int, int] = defaultdict(int)
    used: defaultdict[int, int] = defaultdict(int)
    """By tensor: the batch in which it was made last, and the last one that uses it."""
    for i, task in enumerate(place.tasks):
        for taken in takes[i]:
            order.append(taken)
            batches.append([])
            for one in taken:
                made[one.touches[0]] = used[one.touches[0]] = len(order)
        batch = max(
            ((used if use.tag in WRITES else made)[use.tensor] for use in task.uses), default=0
        )
        batches[batch].append(i)
        for use in task.uses:
            used[use.tensor] = max(used[use.tensor], batch)
            if use.tag in WRITES:
                made[use.tensor] = batch
    return order, batches


class _Memory:
    """Gives memory to the tensors of a part, also what others have used that are of no use any more.

    Tasks that have used it must have ended by then: an operation waits for that.
    """

    def __init__(self, named: Sequence[NamedUse], sizes: Sequence[int], ops: Sequence[_Op]) -> None:
        self.tensors = [PartTensor(sizes[one.tensor], i + 1) for i, one in enumerate(named)]
        self._place = {one.tensor: i for i, one in enumerate(named)}
        self._sizes = sizes
        self._kept = set(self._place)
        self._last = {tensor: i for i, op in enumerate(ops) for tensor in op.touches}
        self._free: defaultdict[int, deque[int]] = defaultdict(deque)
        self._dead: deque[tuple[int, int]] = deque()
        """What no later operation uses, by size; tasks may. The oldest is first."""
        self._dead_bytes = 0

    def give_to(self, i: int, op: _Op) -> Iterator[Operation]:
        """Yield operation `i` with the numbers of its memory; before it, some that wait if that helps."""
        one = op.operation
        if one.action == Action.RUN and self._dead_bytes > MOST_DEAD_BYTES:
            yield from self._free_dead()
        numbers = [self._number(tensor) for tensor in op.touches]
        for tensor in dict.fromkeys(op.touches):
            if self._last[tensor] == i and tensor not in self._kept:
                self._dead.append((self._sizes[tensor], self._place.pop(tensor)))
                self._dead_bytes += self._sizes[tensor]
        if one.action != Action.RUN:
            yield Operation(one.action, tensor=numbers[0], peer=one.peer, number=one.number)
            return
        uses = [
            PartUse(number, use.tag, use.form, use.layout)
            for number, use in zip(numbers, one.uses, strict=True)
        ]
        yield Operation(one.action, one.callable, uses, one.scalars)

    def _free_dead(self) -> Iterator[Operation]:
        """Free the older half of what is dead: its tasks are the likeliest to have ended."""
        while self._dead_bytes > MOST_DEAD_BYTES // 2:
            size, number = self._dead.popleft()
            self._dead_bytes -= size
            self._free[size].append(number)
            yield Operation(Action.WAIT, tensor=number)

    def _number(self, tensor: int) -> int:
        if tensor not in self._place:
            free = self._free[self._sizes[tensor]]
            if free:
                self._place[tensor] = free.popleft()
            else:
                self._place[tensor] = len(self.tensors)
                self.tensors.append(PartTensor(self._sizes[tensor]))
        return self._place[tensor]
