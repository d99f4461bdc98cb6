"""Worker(check=True): submits that would race are refused, in runs, recordings and dry runs.

Each submit, buffer and scope goes through a `Check`, and its usual way. Tasks, dependencies and memory
are those without the check. A `History` has what the tasks of a run do with which bytes.

The dependencies are those of the design documents: a task that looks an address up waits for the last
task that has written there. The *lineage* of a task is what it waits for in the end, and itself. An
earlier task that is missing there may run at the same time, unless a drain lies between both. So what
counts is what waits for what, and not which task happens to end first.

Plain Python, for debugging: some microseconds for each tensor of a task.

Rule     ORCH-CHECK-1, ORCH-CHECK-5, ORCH-CHECK-7, ORCH-CHECK-9, ORCH-READS-1, SEE-INPUT-3
"""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
import sys
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from ..engine.view.layouts import loops_of
from ..errors import HazardError
from ..jit import layout as L
from ..model import wire as W
from ..model.arguments import TaskArgs, note_outputs, parts_of
from ..model.enums import TensorArgType
from ..model.tensor import FIRST_ADDRESS, ContinuousTensor, share_bytes, view_memory
from ..model.wire import Layout, span_of
from ..system.types import Array
from ..workers.session import Session

_OURS = __name__.partition(".")[0] + "."
_MOST_PLACES = 3
"""Lines that messages name for a submit: it, and what has called its function, and so on."""
_BUFFER_AT = W.TAG_AT + 2
"""Where a tensor's wire has the number of its buffer; submit drops it with the tag."""
_READ_ONLY = bytes([L.TENSOR_READ_ONLY])
HOST = -1
"""The memory of the host; that of a next-level worker has its number."""
_READS = (L.INPUT, L.INOUT)
_WRITES = (L.OUTPUT, L.INOUT, L.OUTPUT_EXISTING)
_numbers = itertools.count(1)
"""Of buffers, in all runs of all Workers: the low 32 bits are used."""
_DOES = {L.INPUT: "reads", L.INOUT: "updates", L.OUTPUT: "writes", L.OUTPUT_EXISTING: "writes"}
_SMALLEST_BITS = 6
"""The cells of tensors of 64 bytes and less have 64 bytes."""
Order = list[tuple[int, ...]]
"""What each task waits for directly, by places in the order since the last drain."""


class Lineage:
    """What some tasks wait for, directly and through others, and the tasks themselves.

    It is found as far as it is asked for, from the last task on: who asks for a recent task has looked at
    few others.
    """

    __slots__ = ("_found", "_order", "_todo", "first")

    def __init__(self, order: Order, first: Iterable[int]) -> None:
        self.first = tuple(first)
        self._order = order
        self._found = set(self.first)
        self._todo = [-place for place in self.first]
        heapq.heapify(self._todo)

    def __contains__(self, place: int) -> bool:
        if place in self._found:
            return True
        while self._todo and -self._todo[0] > place:
            for one in self._order[-heapq.heappop(self._todo)]:
                if one not in self._found:
                    self._found.add(one)
                    heapq.heappush(self._todo, -one)
        return place in self._found


class CheckedTask(NamedTuple):
    """A task, as messages name it."""

    number: int
    """Its id in the run."""
    turn: int
    """How many tasks there were before it since the last drain."""
    name: str
    """Of its callable."""
    place: str
    """The file and line that submitted it."""

    def __str__(self) -> str:
        return f"task {self.number} ({self.name})"


class CheckedTensor(NamedTuple):
    """One tensor of a task, and its tag."""

    tag: int
    memory: int
    """Whose memory it is in; see `HOST`."""
    start: int
    end: int
    buffer: int = 0
    """The number of the buffer that it is; 0 if it does not say."""
    below: int = 0
    """Bytes from its lowest address to its first element."""
    layout: Layout | None = None
    """Which of the bytes between start and end it has; None: all."""
    child_memory: bool = False

    @property
    def data(self) -> int:
        return self.start + self.below

    @property
    def nbytes(self) -> int:
        return self.end - self.start


@functools.lru_cache(1 << 12)
def _has_gaps(layout: Layout) -> bool:
    dtype, shape, strides = layout
    return loops_of(shape, strides, dtype.itemsize) != (span_of(layout)[1], [])


Form = tuple[int, int, "Layout | None"]
"""Bytes, and `below` and `layout` of a `CheckedTensor`; without layout it counts from its lowest byte."""


class CheckedUse(NamedTuple):
    """What a task does with a tensor."""

    task: CheckedTask
    tensor: CheckedTensor

    def __str__(self) -> str:
        tag = TensorArgType(self.tensor.tag).name
        return (
            f"{self.task}: {tag} of {self.tensor.nbytes} bytes at {self.tensor.start:#x}, "
            f"submitted at {self.task.place}"
        )


@dataclass(eq=False, slots=True)
class Owner:
    """A task or `alloc` with memory in a ring, which stays until its scope and those that keep it end."""

    place: str
    buffers: list[CheckedBuffer] = field(default_factory=list)
    keepers: set[int] = field(default_factory=set)
    """The places in the order of all tasks that keep it."""
    users: list[CheckedUse] = field(default_factory=list)
    """Those that use its memory and do not keep it."""


@dataclass(eq=False, slots=True)
class CheckedBuffer:
    """Memory that the runtime has provided."""

    number: int
    start: int
    end: int
    owner: Owner


_start_of = operator.attrgetter("start")


class CheckedPlan(NamedTuple):
    """A submit that was found to be right."""

    task: CheckedTask
    tensors: list[CheckedTensor]
    lineage: Lineage
    keeps: list[Owner]


# ---------------------------------------------------------------- bytes
def share(one: CheckedTensor, other: CheckedTensor) -> bool:
    """Say whether two tensors of one memory have a byte in common; yes, if that is too hard to say."""
    if one.start >= other.end or other.start >= one.end:
        return False
    if one.layout is None and other.layout is None:
        return True
    return _views_share(one.start - other.start, _form(one), _form(other))


def _form(tensor: CheckedTensor) -> Form:
    return tensor.nbytes, 0 if tensor.layout is None else tensor.below, tensor.layout


@functools.lru_cache(1 << 16)
def _views_share(distance: int, form: Form, other: Form) -> bool:
    """Say whether two views have a byte in common, the first of which begins `distance` bytes later."""
    base = FIRST_ADDRESS - min(0, distance)
    return share_bytes(_view(base + distance, form), _view(base, other))


def _view(start: int, form: Form) -> Array:
    """Return an array as if it were somewhere: to compare only."""
    nbytes, below, layout = form
    dtype, shape, strides = layout or (np.dtype(np.uint8), (nbytes,), (1,))
    return view_memory(start + below, shape, dtype, strides=strides)


@dataclass(eq=False, slots=True)
class _Record:
    """The bytes of one tensor, and those who have used just these since they were overwritten."""

    tensor: CheckedTensor
    near: list[_Record]
    """Those that share a byte with it, itself included."""
    writer: CheckedUse | None = None
    readers: list[CheckedUse] = field(default_factory=list)
    read_before: list[int] = field(default_factory=list)
    """If reads are tracked: the places in the order of those that read until the last writer wrote."""

    def all_reads(self) -> list[int]:
        """Return the places in the order of the tasks that the next writer waits for."""
        return [*self.read_before, *(use.task.turn for use in self.readers)]

    def add_reader(self, use: CheckedUse, lineage: Lineage) -> None:
        self.read_before = [place for place in self.read_before if place not in lineage]
        last = self.readers[-1].task.turn if self.readers else None
        if last is not None and (last == use.task.turn or last in lineage):
            self.readers[-1] = use  # who waits for this one waits for that one, too
        else:
            self.readers.append(use)


class Bytes:
    """Who has written and read the bytes of one memory last: a record for each tensor.

    Records are found by place, as accesses are in `jit/hazards.py`: those of about the same size are in a
    grid, whose cells are a bit larger than they are, in the cell where they begin.
    """

    def __init__(self, track_reads: bool) -> None:
        self._track_reads = track_reads
        self._records: dict[Any, _Record] = {}
        self._grids: dict[int, dict[int, list[_Record]]] = {}

    def _near(self, tensor: CheckedTensor) -> list[_Record]:
        """Return the records that share a byte with a tensor."""
        if known := self._records.get(_bytes_of(tensor)):
            return known.near
        found = []
        for bits, cells in self._grids.items():
            first, last = (tensor.start >> bits) - 1, tensor.end - 1 >> bits
            near = range(first, last + 1) if last - first < len(cells) else cells
            for cell in near:
                found += [one for one in cells.get(cell, ()) if share(one.tensor, tensor)]
        return found

    def before(self, tensor: CheckedTensor, lineage: Lineage) -> Iterator[CheckedUse]:
        """Yield the uses that a task with this tensor has to come after, and does not.

        Who has overwritten all of its bytes came after those before.
        """
        near = self._near(tensor)
        writers = (one.writer for one in near if one.writer and _covers(one.tensor, tensor))
        since = max((use.task.turn for use in writers), default=0)
        for one in near:
            uses = [one.writer] if one.writer else []
            if tensor.tag in _WRITES:
                uses += one.readers
            yield from (use for use in uses if since <= use.task.turn not in lineage)

    def readers(self, tensor: CheckedTensor) -> Iterator[int]:
        """Yield the places in the order of the tasks that read bytes of a tensor."""
        for one in self._near(tensor):
            yield from one.all_reads()

    def add(self, use: CheckedUse, lineage: Lineage) -> None:
        tensor = use.tensor
        record = self._records.get(_bytes_of(tensor)) or self._make(tensor)
        if tensor.tag not in _WRITES:
            record.add_reader(use, lineage)
            return
        # only who reads it, too, has waited for the readers, if reads are tracked
        keeps_reads = self._track_reads and tensor.tag not in _READS
        for one in record.near:
            if _covers(tensor, one.tensor):
                one.read_before = one.all_reads() if keeps_reads else []
                one.writer, one.readers = None, []
        record.writer = use
        if self._track_reads and not keeps_reads:
            record.read_before = [use.task.turn]

    def _make(self, tensor: CheckedTensor) -> _Record:
        record = _Record(tensor, self._near(tensor))
        for one in record.near:
            one.near.append(record)
        record.near.append(record)
        self._records[_bytes_of(tensor)] = record
        self._cell(tensor).append(record)
        return record

    def _cell(self, tensor: CheckedTensor) -> list[_Record]:
        bits = max(_SMALLEST_BITS, (tensor.nbytes - 1).bit_length())
        return self._grids.setdefault(bits, {}).setdefault(tensor.start >> bits, [])

    def forget(self, start: int, end: int) -> None:
        for gone in list(self._near(CheckedTensor(L.NO_DEP, HOST, start, end))):
            del self._records[_bytes_of(gone.tensor)]
            self._cell(gone.tensor).remove(gone)
            for one in gone.near:
                if one is not gone:
                    one.near.remove(gone)


def _bytes_of(tensor: CheckedTensor) -> tuple[int, int, Layout | None]:
    return tensor.start, tensor.end, tensor.layout


def _covers(one: CheckedTensor, other: CheckedTensor) -> bool:
    if one.layout is None:
        return one.start <= other.start and other.end <= one.end
    return _bytes_of(one) == _bytes_of(other)


# ---------------------------------------------------------------- a run
class History:
    """The tasks of a run, or of a recording, in the order in which they are submitted.

    `rings` has the addresses of the memory that the runtime provides; with `track_reads`, a task that
    writes waits for those that read the same bytes before.
    """

    def __init__(self, rings: Iterable[tuple[int, int]] = (), track_reads: bool = False) -> None:
        self._rings = list(rings)
        self._track_reads = track_reads
        self._bytes: dict[int, Bytes] = {}
        self._producers: dict[tuple[int, int], tuple[int | None, Owner | None]] = {}
        self._buffers: list[CheckedBuffer] = []
        """Those of open scopes, by their starts."""
        self._scopes: list[list[Owner]] = [[]]
        self._tasks = 0
        self._order: Order = []

    # ------------------------------------------------------------ submits
    def plan(self, name: str, place: str, tensors: Sequence[CheckedTensor]) -> CheckedPlan:
        """Return what a submit would do, and change nothing; a HazardError if it must not be."""
        task = CheckedTask(self._tasks, len(self._order), name, place)
        producers: dict[int, None] = {}
        keeps: dict[Owner, None] = {}
        for one in tensors:
            if one.tag in _READS and one.data and one.nbytes:
                before, owner = self._producers.get((one.memory, one.data), (None, None))
                if before is not None:
                    producers[before] = None
                if owner is not None:
                    keeps[owner] = None
                if (buffer := self._buffer_of(one)) is not None and buffer.start == one.data:
                    keeps[buffer.owner] = None
            waits = one.memory == HOST or not one.child_memory
            if self._track_reads and waits and one.tag in _WRITES and one.data:
                known = self._bytes.get(one.memory)
                producers |= dict.fromkeys(known.readers(one) if known and one.nbytes else ())
        lineage = Lineage(self._order, producers)
        used = [one for one in tensors if one.tag != L.NO_DEP]
        for one in used:
            if self._is_given_back(one):
                raise _after_scope(CheckedUse(task, one))
        for one in used:
            known = self._bytes.get(one.memory)
            for use in known.before(one, lineage) if known and one.data and one.nbytes else ():
                raise _race(use, CheckedUse(task, one))
        return CheckedPlan(task, list(tensors), lineage, list(keeps))

    def add(self, plan: CheckedPlan, provided: Sequence[tuple[int, int]]) -> None:
        """Note a task that was submitted, and the buffers that it was provided with: tensor, address."""
        task, tensors, lineage, keeps = plan
        self._tasks += 1
        self._order.append(lineage.first)
        own = Owner(task.place) if provided else None
        for i, address in provided:
            one = tensors[i]
            tensors[i] = one._replace(start=address, end=address + one.nbytes)
            if own is not None:
                self._provide(own, tensors[i].start, tensors[i].end)
        if own is not None:
            self._scopes[-1].append(own)
        for owner in keeps:
            owner.keepers.add(task.turn)
        if self._track_reads:  # what a task itself overwrites it reads all the same
            tensors = sorted(tensors, key=lambda one: (one.tag in _READS) + (one.tag == L.INPUT))
        for one in tensors:
            if one.tag == L.NO_DEP or not one.start or not one.nbytes:
                continue
            use = CheckedUse(task, one)
            known = self._bytes.setdefault(one.memory, Bytes(self._track_reads))
            known.add(use, lineage)
            if one.tag in _WRITES:
                self._producers[one.memory, one.data] = task.turn, own
            buffer = self._buffer_of(one)
            if buffer is not None and buffer.owner is not own and buffer.owner not in keeps:
                buffer.owner.users.append(use)

    def alloc(self, place: str, start: int, nbytes: int) -> int:
        """Note a buffer that the runtime has provided; return its number."""
        self._tasks += 1
        if not nbytes:
            return 0
        owner = Owner(place)
        self._scopes[-1].append(owner)
        self._producers[HOST, start] = None, owner
        return self._provide(owner, start, start + nbytes)

    def drain(self) -> None:
        self._bytes.clear()
        self._order = []
        self._producers = {
            key: (None, owner) for key, (_, owner) in self._producers.items() if owner is not None
        }
        for owners in self._scopes:
            for owner in owners:
                owner.keepers.clear()
                owner.users.clear()

    # ------------------------------------------------------------ memory of the rings
    def open_scope(self) -> None:
        self._scopes.append([])

    def require_kept(self) -> None:
        """Refuse to end a scope whose memory would be given back while tasks may use it."""
        for owner in self._scopes[-1]:
            kept = Lineage(self._order, owner.keepers)
            for use in owner.users:
                if use.task.turn not in kept:
                    raise _after_scope(use, owner)

    def close_scope(self) -> None:
        for owner in self._scopes.pop():
            for buffer in owner.buffers:
                self._buffers.remove(buffer)
                if HOST in self._bytes:
                    self._bytes[HOST].forget(buffer.start, buffer.end)

    def _provide(self, owner: Owner, start: int, end: int) -> int:
        buffer = CheckedBuffer(next(_numbers) & L.LOW_HALF, start, end, owner)
        owner.buffers.append(buffer)
        insort(self._buffers, buffer, key=_start_of)
        return buffer.number

    def _buffer_of(self, tensor: CheckedTensor) -> CheckedBuffer | None:
        at = bisect_right(self._buffers, tensor.start, key=_start_of) - 1
        if at < 0 or tensor.memory != HOST:
            return None
        buffer = self._buffers[at]
        return buffer if tensor.end <= buffer.end and tensor.start < buffer.end else None

    def _is_given_back(self, one: CheckedTensor) -> bool:
        """Say whether a tensor is in memory of the rings that no open scope has."""
        if one.memory != HOST or not one.nbytes:
            return False
        if not any(first <= one.start < end for first, end in self._rings):
            return False
        buffer = self._buffer_of(one)
        return buffer is None or (one.buffer != 0 and one.buffer != buffer.number)


# ---------------------------------------------------------------- messages
def _race(earlier: CheckedUse, later: CheckedUse) -> HazardError:
    first, second = earlier.tensor, later.tensor
    nbytes = f"{min(first.end, second.end) - max(first.start, second.start)}"
    if first.layout or second.layout:
        nbytes = f"up to {nbytes}"
    what = "read" if second.tag not in _WRITES else "write"
    of = "write" if first.tag in _WRITES else "read"
    if of == "read":
        remedy = (
            f"Let {later.task} also take, as INPUT, a tensor that {earlier.task} writes; or write into "
            "another array; or call orch.drain() before"
        )
        if first.data == second.data:
            remedy = (
                "Tag the tensor INOUT in both tasks, or give the Worker track_reads=True: they run in "
                f"this order then. Or: {remedy}"
            )
    elif first.data == second.data:
        remedy = f"Tag it INOUT in {later.task}, so that it waits for the writer before"
    else:
        remedy = (
            f"Only tensors at the same address depend on each other: let {later.task} also take, as "
            f"INPUT, the tensor at {first.data:#x}; or call orch.drain() before"
        )
    message = (
        f"{what} after {of}: {later.task} {_DOES[second.tag]} {nbytes} bytes that {earlier.task} "
        f"{_DOES[first.tag]}, and does not wait for it\n  {earlier}\n  {later}\n{remedy}."
    )
    tasks, places = zip(
        *((use.task.number, use.task.place) for use in (earlier, later)), strict=True
    )
    return HazardError(message, kind=f"{what} after {of}", tasks=tasks, places=places)


def _after_scope(use: CheckedUse, owner: Owner | None = None) -> HazardError:
    """Return the error for memory given back before a task uses it, or, with its owner, meanwhile."""
    does = f"{_DOES[use.tensor.tag]} {use.tensor.nbytes} bytes"
    if owner is None:
        message = (
            f"{use.task} {does} of a ring that belong to no buffer of an open scope: their scope has "
            f"ended, or they are of an earlier run\n  {use}\n"
            "Take the buffer from a scope that is open as long as tasks are given it."
        )
    else:
        message = (
            f"the scope ends while {use.task} may not have ended, which {does} of its memory and does "
            f"not keep it\n  {use}\n  the buffer: from {owner.place}\n"
            "Give the task the whole buffer, tagged INPUT or INOUT, or one after it; or call "
            "orch.drain() before the scope ends."
        )
    kind = "use after scope"
    task = use.task
    return HazardError(f"{kind}: {message}", kind=kind, tasks=(task.number,), places=(task.place,))


# ---------------------------------------------------------------- an Orchestrator's submits
class Check:
    """What was submitted and provided so far; refuses what would race.

    Tasks are provided with the rings of a session, and with `memory`: the first address of each, and the
    one after the last. `note_unordered` is told of bytes that tasks may write while others have them as
    INPUT.
    """

    def __init__(
        self, session: Session, note_unordered: Callable[[int, int], None], *memory: tuple[int, int]
    ) -> None:
        heap = session.engine.heap
        rings = [(heap.ctypes.data, heap.ctypes.data + heap.nbytes), *memory]
        self.history = History(rings, session.options.track_reads)
        self._note_unordered = note_unordered
        self._view = session.engine.view
        self.places: dict[int, str] = {}
        """Where each task of the run was submitted."""

    def forget(self) -> None:
        self.history = History()

    def submit(
        self,
        name: str,
        members: Sequence[TaskArgs],
        workers: Sequence[int],
        send: Callable[[list[TaskArgs]], None],
        *,
        guards: bool,
    ) -> None:
        """Submit a task or a group that races with none.

        `workers` has the worker of each member, plus one. `send` is given the arguments as they are sent:
        with `guards`, INPUTs say that they must not be written.
        """
        tensors = [
            _tensor_of(wire, worker - 1)
            for one, worker in zip(members, workers, strict=False)
            for wire in one._tensors
        ]
        plan = self.history.plan(name, caller(), tensors)
        self._find_unordered(members, plan)
        sent = [_sent(one, guards) for one in members]
        send(sent)
        wires = parts_of(sent)[0]
        note_outputs(members, b"".join(wires))
        provided = [
            (i, int.from_bytes(wire[: W.SHAPE_AT], "little"))
            for i, (wire, planned) in enumerate(zip(wires, plan.tensors, strict=True))
            if W.has_address(wire) and not planned.start
        ]
        self.places[self._view.next_task_id - 1] = sys.intern(plan.task.place)
        self.history.add(plan, provided)

    def _find_unordered(self, members: Sequence[TaskArgs], plan: CheckedPlan) -> None:
        """Find what tasks may write while others have it as INPUT: nothing is wrong then."""
        numbers = [k for k, one in enumerate(members) for _ in one._tensors]
        tensors = list(zip(numbers, plan.tensors, strict=True))
        for k, one in tensors:
            if one.memory != HOST or not one.data:
                continue
            writers = (o for j, o in tensors if j != k and o.data and o.tag != L.INPUT)
            if one.tag == L.NO_DEP or (
                one.tag == L.INPUT and any(share(one, other) for other in writers)
            ):
                self._note_unordered(one.start, one.end)

    def claim(self, buffer: ContinuousTensor) -> ContinuousTensor:
        """Return a buffer that was provided, with the number that it has from now on."""
        number = self.history.alloc(caller(), buffer.data, buffer.nbytes())
        buffer._note(_BUFFER_AT, number.to_bytes(len(buffer._wire) - _BUFFER_AT, "little"))
        return buffer

    def require_kept(self) -> None:
        """Refuse to end a scope whose memory tasks may still use, and do not keep."""
        if sys.exc_info()[1] is None:  # an exception goes before
            self.history.require_kept()


def _sent(args: TaskArgs, guards: bool) -> TaskArgs:
    """Return arguments as they are sent: with `guards`, INPUTs say that they must not be written."""
    sent = TaskArgs()
    sent._tensors, sent._scalars = args._tensors.copy(), args._scalars
    for i, wire in enumerate(sent._tensors):
        if guards and wire[W.TAG_AT] == L.INPUT and not wire[W.CHILD_MEMORY_AT]:
            sent._tensors[i] = W.replaced(wire, W.CHILD_MEMORY_AT, _READ_ONLY)
    return sent


def _tensor_of(wire: bytes, worker: int) -> CheckedTensor:
    """Return a tensor of a task; `worker` is the one whose memory `child_memory` means."""
    data, *_, child = W.TENSOR.unpack(wire)
    below, layout = 0, None
    if isinstance(wire, W.DescribedWire):
        below = span_of(wire.layout)[0]
        layout = wire.layout if _has_gaps(wire.layout) else None
    span = data - below, data - below + W.bytes_of(wire)
    number = int.from_bytes(wire[_BUFFER_AT:], "little")
    memory = worker if child else HOST
    return CheckedTensor(wire[W.TAG_AT], memory, *span, number, below, layout, child == 1)


def caller() -> str:
    """Return file and line of the innermost call from outside this package, and of those around it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    places: list[str] = []
    while frame is not None and not is_ours(frame) and len(places) < _MOST_PLACES:
        places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return ", called at ".join(places)


def is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_OURS)
