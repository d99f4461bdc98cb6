"""One run of a trace, as its flags' files tell it: tasks with ids of their rings, tensors, edges, steps.

The Orch thread's notes are in the order of what it did. So its journal, read once, gives the ring and the
number of each task, and the state of rings and scopes at each step.

Rule     FLAG-DEPS-2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...jit import layout as L
from ...model.enums import DataType
from ...model.wire import Layout, is_row_major, row_major, span_of
from ...system.types import Array
from ...trace import tables
from ...trace.tables import NOTE, TraceFile
from ...trace.timeline import TAGS


@dataclass(slots=True)
class RunTensor:
    """A tensor of a task."""

    index: int
    tag: str
    address: int
    nbytes: int
    is_marked: bool
    dtype: str
    item: int
    """Bytes of an element."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    """In elements."""
    start: int = 0
    """Elements of its buffer before its first."""
    buffer: int = 0
    """Number of its buffer."""

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements follow each other, row by row."""
        return is_row_major(self.shape, self.strides, 1)

    def described(self, prefix: str = "") -> dict[str, Any]:
        """Return what files say of its elements; 64-bit numbers are strings."""
        return {
            f"{prefix}dtype": self.dtype,
            f"{prefix}shape": list(self.shape),
            f"{prefix}start_offset": str(self.start),
            f"{prefix}strides": list(self.strides),
        }


class Edge(NamedTuple):
    """A task depends on another."""

    producer: int
    tensor: int
    address: int
    is_memory: bool


@dataclass(slots=True)
class RunTask:
    """A task of the run."""

    number: int
    id: int = -1
    """Its ring, shifted by 32 bits, and its number there."""
    function: int = 0
    is_buffer: bool = False
    submitted: int = 0
    tensors: dict[int, RunTensor] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    @property
    def ring(self) -> int:
        """Its ring."""
        return self.id >> 32


@dataclass(slots=True)
class RunBuffer:
    """Memory that tensors share, from one time that it was handed out to the next."""

    address: int
    version: int
    dtype: str
    elements: int


class Step(NamedTuple):
    """Something that the Orch thread did, in the order in which it did it."""

    what: str
    """submit, reclaim, held, scope, span."""
    task: RunTask | None
    first: int
    """Of held: the ring. Of a scope: its depth. Of a span: when it began."""
    second: int
    """Of held: bytes. Of a scope: whether it was opened. Of a span: when it ended."""
    line: int = 0
    buffers: int = 0
    """How many buffers had a producer."""


class FlaggedRun:
    """The last run of a trace, which was that of `function`; `layouts` returns the layout of a number."""

    def __init__(
        self,
        file: TraceFile,
        layouts: Callable[[int], Layout],
        function: Callable[..., Any],
        failed: bool,
    ) -> None:
        code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.site = "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        """Where the function begins, whose scope is the outermost one."""
        self.failed = failed
        self.about, self.dropped = file.about, sum(file.dropped.values())
        self.level: int = self.about["level"]
        self.rings: int = self.about["rings"]
        self._functions = {int(key): i for i, key in enumerate(self.about["functions"])}
        self.names: list[str] = list(self.about["functions"].values())
        self._layouts = layouts
        self._file, orch = file, file.journal(L.JOURNAL_OF_ORCH)
        begun = np.flatnonzero(orch["what"] == L.NOTED_RUN | 1 << 8)
        self._orch = orch[begun[-1] :] if len(begun) else np.empty(0, NOTE)
        self.first = int(self._orch["task"][0]) if len(begun) else 1
        self.tasks: dict[int, RunTask] = {}
        self.buffers: list[RunBuffer] = []
        self._known: dict[int, int] = {}
        self.steps: list[Step] = []
        self._walk()
        self.tasks = {number: one for number, one in self.tasks.items() if one.id >= 0}
        ran = tables.ran_of(file)
        self.ran: Array = ran[ran["task"] >= self.first]
        journals = (one - L.JOURNALS_OF_WORKERS + 1 for one in file.journals)
        self.workers: int = max(len(self.about["workers"]), *journals, 0)

    def of_worker(self, worker: int, kind: int) -> Array:
        """Return the notes of a kind that a worker made about tasks of this run."""
        own = self._file.journal(L.JOURNALS_OF_WORKERS + worker)
        rows: Array = own[(own["what"] & 0xFF == kind) & (own["task"] >= self.first)]
        return rows

    def of_scheduler(self) -> Array:
        """Return the Scheduler's notes about tasks of this run."""
        notes = self._file.journal(L.JOURNAL_OF_SCHEDULER)
        rows: Array = notes[notes["task"] >= self.first]
        return rows

    def id_of(self, number: int) -> int:
        """Return the id of a task by its number in the trace; -1 if its submission was not noted."""
        task = self.tasks.get(number)
        return -1 if task is None else task.id

    def function_of(self, task: RunTask) -> int:
        """Return the number of a task's function; -1 if it is not known."""
        return self._functions.get(task.function, -1)

    # ------------------------------------------------------------ the Orch thread's notes
    def _walk(self) -> None:
        """Read the Orch thread's notes; of tasks whose submission was dropped nothing else is kept."""
        depth, counts = -1, [0] * L.MAX_RING_DEPTH
        submit, alloc, reclaim = (tables.EVENT[one] for one in ("submit", "alloc", "reclaim"))
        for note in self._orch:
            what, number, time, value = note.item()
            kind, operand = what & 0xFF, what >> 8
            if kind == L.NOTED_ARGUMENT:
                self._note_tensor(number, operand, time, value)
            elif kind == L.NOTED_SHAPE:
                self._note_shape(number, operand, time, value)
            elif kind == L.NOTED_EDGE:
                memory = operand >> 24 == L.OWED_MEMORY
                self._task(number).edges.append(Edge(value, operand & 0xFFFF, time, memory))
            elif kind in (submit, alloc):
                ring = max(0, min(depth, self.rings - 1))
                task = self._task(number)
                task.id, counts[ring] = ring << 32 | counts[ring], counts[ring] + 1
                task.function, task.submitted = value, time
                task.is_buffer = kind == alloc
                self._place(task)
                self.steps.append(Step("submit", task, time, time))
            elif kind == reclaim:
                if self.id_of(number) >= 0:
                    self.steps.append(Step("reclaim", self.tasks[number], time, time))
            elif kind == L.NOTED_HELD:
                self.steps.append(Step("held", None, operand, value))
            elif kind == L.NOTED_SCOPE:
                opened = operand >> 16
                depth = (operand & 0xFFFF) - 1 + opened
                step = Step("scope", None, operand & 0xFFFF, opened, number, value)
                self.steps.append(step)
            elif kind in (L.NOTED_SUBMIT, L.NOTED_PLAYED):
                self.steps.append(Step("span", None, time, value))

    def _task(self, number: int) -> RunTask:
        task = self.tasks.get(number)
        if task is None:
            task = self.tasks[number] = RunTask(number)
        return task

    def _note_tensor(self, number: int, operand: int, address: int, nbytes: int) -> None:
        kind = operand >> 40 & L.TENSOR_DTYPE_MASK
        dtype, item = "", 1  # of a described one its layout says
        if kind < len(L.DTYPE_SIZES):
            dtype, item = DataType(kind).name, L.DTYPE_SIZES[kind]
        index, tag = operand & 0xFFFF, TAGS[operand >> 16 & 0xF]
        marked = bool(operand >> 21 & 1)
        tensor = RunTensor(index, tag, address, nbytes, marked, dtype, item)
        self._task(number).tensors[index] = tensor

    def _note_shape(self, number: int, operand: int, first: int, second: int) -> None:
        tensor = self._task(number).tensors.get(operand & 0xFFFF)
        if tensor is None:
            return
        dims = operand >> 16 & 0xFF
        if dims == L.TENSOR_DESCRIBED:
            dtype, shape, strides = self._layouts(first & L.LOW_HALF)
            tensor.dtype, tensor.item = _name_of(dtype), max(1, dtype.itemsize)
            tensor.shape, tensor.strides = shape, tuple(one // tensor.item for one in strides)
            tensor.start = span_of((dtype, shape, strides))[0] // tensor.item
            return
        halves = [first, first >> 32, second, second >> 32, operand >> 24]
        tensor.shape = tuple(one & L.LOW_HALF for one in halves[:dims])
        tensor.strides = row_major(tensor.shape, 1)

    # ------------------------------------------------------------ buffers
    def _place(self, task: RunTask) -> None:
        """Say in which buffer each tensor of a task lies: in that of the tensor that began there before.

        An OUTPUT is new, and so is a buffer from `alloc`: these have versions of their own.
        """
        for tensor in task.tensors.values():
            low = tensor.address - tensor.start * tensor.item
            found = self._known.get(low)
            if found is None or tensor.tag == "OUTPUT":
                version = 0 if found is None else self.buffers[found].version + 1
                found = self._known[low] = len(self.buffers)
                self.buffers.append(RunBuffer(low, version, tensor.dtype, 0))
            buffer = self.buffers[found]
            buffer.elements = max(buffer.elements, tensor.nbytes // tensor.item)
            tensor.buffer = found


def _name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of an element type in capital letters; numpy's code of other than numbers."""
    is_plain = dtype.kind in "biufc" and dtype.isnative
    return dtype.name.upper() if is_plain else str(dtype.str)
