"""The files of the flags: their names and contents, the same for runs of a Worker and of a chip.

Here are what both write; one run of a trace, as the files tell it: tasks with ids of their rings,
tensors, edges, steps; and what such a run puts into the files. `chip.py` has the rest for chips. The
Orch thread's notes are in the order of what it did. So its journal, read once, gives the ring and the
number of each task, and the state of rings and scopes at each step.

Rule     FLAG-DEPS-1, FLAG-DEPS-2, FLAG-DEPS-3, FLAG-DUMP-1, FLAG-DUMP-2, FLAG-DUMP-3, FLAG-NEST-1,
         FLAG-PMU-1, FLAG-RUN-1, FLAG-RUN-5, FLAG-SCOPE-1, FLAG-SCOPE-2, FLAG-SWIM-1, FLAG-SWIM-2,
         FLAG-SWIM-3, FLAG-SWIM-4
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...jit import layout as L
from ...model.config import CallConfig
from ...model.enums import DataType
from ...model.wire import Layout, is_row_major, row_major, span_of
from ...system.types import Array
from ...trace import tables
from ...trace.tables import NOTE, TraceFile
from ...trace.timeline import TAGS, WRITING

FILES = {
    "enable_l2_swimlane": "l2_swimlane_records.json",
    "enable_dump_tensor": "args_dump/args_dump.json",
    "enable_pmu": "pmu.csv",
    "enable_dep_gen": "deps.json",
    "enable_scope_stats": "scope_stats/scope_stats.jsonl",
}
"""The file of each flag, below `output_prefix`."""
BIN = "args.bin"
BEFORE, AFTER = "before_dispatch", "after_completion"
WITHOUT_BYTES = 3
"""The level of dumps at which only types and shapes are written."""
_SCALARS = {L.SIGNED: "INT64", L.FLOAT64: "FLOAT64"}
_CLOCK_HZ = 1_000_000_000
"""Times are in ns of the system's monotonic clock."""
_READY, _DISPATCHED = tables.EVENT["inputs done"], tables.EVENT["dispatch"]
_COMPLETED = tables.EVENT["complete"], tables.EVENT["fail"]
_SUBMITTED = _, _ALLOCATED = tables.EVENT["submit"], tables.EVENT["alloc"]
_RECLAIMED = tables.EVENT["reclaim"]
_AT_ONCE = 1 << 16
"""Notes that are objects of Python at a time."""
Entry = dict[str, Any]


# ---------------------------------------------------------------- a run
@dataclass(slots=True)
class RunTensor:
    """A tensor of a task."""

    index: int
    tag: str
    address: int
    nbytes: int
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
    tensors: dict[int, RunTensor] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    @property
    def ring(self) -> int:
        return self.id >> 32


@dataclass(slots=True)
class RunBuffer:
    """Memory that tensors share, from one time that it was handed out to the next."""

    address: int
    version: int
    dtype: str
    elements: int


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
    def notes(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield kind, operand, task, time and value of the Orch thread's notes, in their order."""
        for start in range(0, len(self._orch), _AT_ONCE):
            for what, number, time, value in self._orch[start : start + _AT_ONCE].tolist():
                yield what & 0xFF, what >> 8, number, time, value

    def _walk(self) -> None:
        """Read the notes about tasks; of those whose submission was dropped nothing else is kept."""
        depth, counts = -1, [0] * L.MAX_RING_DEPTH
        for kind, operand, number, time, value in self.notes():
            if kind == L.NOTED_ARGUMENT:
                self._note_tensor(number, operand, time, value)
            elif kind == L.NOTED_SHAPE:
                self._note_shape(number, operand, time, value)
            elif kind == L.NOTED_EDGE:
                memory = operand >> 24 == L.OWED_MEMORY
                self._task(number).edges.append(Edge(value, operand & 0xFFFF, time, memory))
            elif kind in _SUBMITTED:
                ring = max(0, min(depth, self.rings - 1))
                task = self._task(number)
                task.id, counts[ring] = ring << 32 | counts[ring], counts[ring] + 1
                task.function, task.is_buffer = value, kind == _ALLOCATED
                self._place(task)
            elif kind == L.NOTED_SCOPE:
                depth = (operand & 0xFFFF) - 1 + (operand >> 16)

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
        tensor = RunTensor(index, tag, address, nbytes, dtype, item)
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


# ---------------------------------------------------------------- all files
def write_files(
    run: FlaggedRun, config: CallConfig, counters: tuple[str, ...], dumped: str | None
) -> None:
    """Write the files of a run.

    Its workers have read counters with these names, and dumped the bytes of tensors into a file.
    """
    names = {
        "level": run.level,
        "orchestrator_name": run.name,
        "callable_id_to_name": {str(i): name for i, name in enumerate(run.names)},
    }

    counted = _counted(run, len(counters) + 1)
    makers: Makers = {
        "enable_l2_swimlane": lambda level: _swimlane(run, level),
        "enable_dep_gen": lambda _: _dependencies(run),
        "enable_dump_tensor": lambda level: _arguments(run, level, dumped),
        "enable_scope_stats": lambda _: _scope_stats(run),
        "enable_pmu": lambda event_type: pmu_table(counted, counters, event_type),
    }
    write_all(config, makers, dumped, {f"name_map_{run.name}.json": json.dumps(names)})


Makers = dict[str, Callable[[int], str | dict[str, Any]]]
"""By flags, what returns the contents of their files, as text or for JSON, of the flags' values."""


def write_all(
    config: CallConfig, makers: Makers, dumped: str | None, found: dict[str, str] | None = None
) -> None:
    """Write the files of the flags that are on, others by their names, and the bytes of tensors.

    The folder is locked: of several tasks that name it the last one's files stay.
    """
    found = found or {}
    for flag, make in makers.items():
        if value := getattr(config, flag):
            made = make(value)
            if flag == "enable_l2_swimlane" and isinstance(made, dict):
                found |= swimlane_files(made)
            else:
                found[FILES[flag]] = made if isinstance(made, str) else json.dumps(made)
    folder = Path(config.output_prefix)
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        for name, text in found.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        if config.enable_dump_tensor:
            target = (folder / FILES["enable_dump_tensor"]).with_name(BIN)
            target.unlink(missing_ok=True)  # of another run
            if dumped is not None:
                shutil.copyfile(dumped, target)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- l2_swimlane_records.json
def swimlane_files(records: dict[str, Any]) -> dict[str, str]:
    """Return the contents of the file under both of its names: later viewers read another one."""
    later = {"chip_swimlane_level": records["l2_swimlane_level"]} | records
    del later["l2_swimlane_level"]
    later["aicore_tasks"] = [[*row, 0] for row in records["aicore_tasks"]]  # began when received
    name = FILES["enable_l2_swimlane"]
    return {name: json.dumps(records), name.replace("l2", "chip"): json.dumps(later)}


def swimlane(
    level: int,
    cores: int,
    ran: Sequence[Sequence[int]],
    scheduler: Iterable[Entry],
    orchestrator: Iterable[Entry],
) -> dict[str, Any]:
    """Return which core ran what, when; the phases of Scheduler and Orch thread at levels that have them.

    A row of `ran` has core, task, begin, end, when it was sent and when its end was seen; rows are sorted
    by core, then by begin.
    """
    columns = np.array(ran, np.int64).reshape(-1, 6)
    core = columns[:, 0]
    number = np.arange(len(core)) - np.searchsorted(core, core)
    metadata: dict[str, Any] = {"clock_freq_hz": _CLOCK_HZ, "num_cores": cores}
    metadata["core_types"] = ["aiv"] * cores
    tasks = np.column_stack([columns[:, :2], number, columns[:, 2:4]])
    found = {"l2_swimlane_level": level, "metadata": metadata, "aicore_tasks": tasks.tolist()}
    if level >= 2:
        found["aicpu_tasks"] = np.column_stack([core, number, columns[:, 4:]]).tolist()
    if level >= 3:
        metadata["core_to_thread"] = [0] * cores
        found["aicpu_scheduler_phases"] = [list(scheduler)]
    if level >= 4:
        found["aicpu_orchestrator_phases"] = [list(orchestrator)]
    return found


def _swimlane(run: FlaggedRun, level: int) -> dict[str, Any]:
    notes = run.of_scheduler()
    events, times = notes["what"] & 0xFF, notes[["task", "time"]]
    sent: dict[int, int] = dict(times[events == _DISPATCHED].tolist())
    seen: dict[int, int] = dict(times[np.isin(events, _COMPLETED)].tolist())
    for number, begin in run.ran[["task", "begin"]].tolist():
        if number in sent:  # a task that a worker began by itself was sent before
            sent[number] = min(sent[number], begin)
    rows = run.ran[np.lexsort((run.ran["begin"], run.ran["worker"]))]
    ran = [
        (core, run.id_of(number), begin, end, sent.get(number, begin), seen.get(number, end))
        for number, core, begin, end in rows[["task", "worker", "begin", "end"]].tolist()
    ]
    return swimlane(level, run.workers, ran, _scheduler_phases(run), _orchestrator_phases(run))


def _scheduler_phases(run: FlaggedRun) -> Iterator[Entry]:
    """Yield what the Scheduler did: each phase is as many steps of one kind as follow each other.

    It begins when the first of its tasks was due, that is had ended or was ready, or when the phase
    before it ended.
    """
    ended = dict(run.ran[["task", "end"]].tolist())
    ready: dict[int, int] = {}
    steps: list[tuple[str, int, int, int]] = []
    waiting = turn = before = 0
    for what, number, time, _ in run.of_scheduler().tolist():
        event = what & 0xFF
        if event == _READY:
            ready[number] = time
            waiting += 1
        elif event == _DISPATCHED:
            waiting -= 1
            steps.append(("dispatch", number, time, waiting))
        elif event in _COMPLETED:
            steps.append(("complete", number, time, 0))
    for kind, group in groupby(steps, key=itemgetter(0)):
        rows, is_dispatch = list(group), kind == "dispatch"
        _, number, time, _ = rows[0]
        due = (ready if is_dispatch else ended).get(number, time)
        turn += is_dispatch
        phase = {
            "kind": kind,
            "start_cycles": min(time, max(before, due)),
            "end_cycles": rows[-1][2],
            "loop_iter": turn,
            "tasks_processed": len(rows),
        }
        if is_dispatch:
            phase |= {"pop_hit": len(rows), "pop_miss": int(rows[-1][3] <= 0)}
        before = rows[-1][2]
        yield phase


def _orchestrator_phases(run: FlaggedRun) -> list[Entry]:
    """Return when the Orch thread was busy with the submission of each task."""
    phases: list[Entry] = []
    pending = 0
    for kind, _, number, time, value in run.notes():
        if kind in _SUBMITTED:
            if pending and phases[-1]["end_cycles"] > time:
                pending = 0
            pending += 1
            phase = {"submit_idx": len(phases), "task_id": run.id_of(number)}
            phases.append(phase | {"start_cycles": time, "end_cycles": time})
        elif kind in (L.NOTED_SUBMIT, L.NOTED_PLAYED):  # from this time to that value
            start = time
            for phase in phases[len(phases) - pending :]:
                if phase["end_cycles"] >= start:
                    phase["start_cycles"] = start
                    start = phase["end_cycles"]
            if pending and phases[-1]["end_cycles"] >= time:
                phases[-1]["end_cycles"] = value
            pending = 0
    return phases


# ---------------------------------------------------------------- deps.json
def dependency_task(
    task: int, scope: str, function: int, tensors: Iterable[tuple[RunTensor, int]]
) -> Entry:
    """Return the entry of a task; its tensors come with the numbers of their buffers."""
    return {
        "task_id": str(task),
        "scope": scope,
        "kernel_ids": [-1, function, -1],
        "args": [
            {"idx": one.index, "type": one.tag, "tensor_id": str(buffer)} | one.described()
            for one, buffer in tensors
        ],
    }


def dependency_buffer(number: int, address: int, version: int, dtype: str, elements: int) -> Entry:
    return {
        "tensor_id": str(number),
        "buffer_addr": str(address),
        "version": version,
        "dtype": dtype,
        "buffer_numel": str(elements),
    }


def _dependencies(run: FlaggedRun) -> dict[str, Any]:
    """Return the graph of a run, with the tensors that each edge is owed to; 64 bits are strings."""
    tasks = []
    for task in run.tasks.values():
        function = -1 if task.is_buffer else run.function_of(task)
        tensors = [(one, one.buffer) for one in task.tensors.values()]
        tasks.append(dependency_task(task.id, "auto", function, tensors))
    return {
        "tasks": tasks,
        "tensors": [
            dependency_buffer(i, one.address, one.version, one.dtype, one.elements)
            for i, one in enumerate(run.buffers)
        ],
        "edges": [
            _edge(run.tasks[edge.producer], task, edge)
            for task in run.tasks.values()
            for edge in task.edges
            if edge.producer in run.tasks and edge.tensor in task.tensors
        ],
    }


def _edge(producer: RunTask, task: RunTask, edge: Edge) -> Entry:
    """Return an edge: to the task that provided the memory, or to the last one that wrote it."""
    mine = task.tensors[edge.tensor]
    creator = edge.is_memory or producer.is_buffer
    found: Entry = {
        "pred": str(producer.id),
        "succ": str(task.id),
        "arg": edge.tensor,
        "source": "creator" if creator else "tensormap",
    }
    theirs = None if creator else _written(producer, edge)
    if theirs is not None:
        low, high = mine.address, mine.address + mine.nbytes
        covers = low <= theirs.address and theirs.address + theirs.nbytes <= high
        found["overlap"] = "covered" if covers else "other"
    found |= {"tensor_id": str(mine.buffer)} | mine.described("consumer_")
    if theirs is not None:
        found |= theirs.described("producer_")
    return found


def _written(producer: RunTask, edge: Edge) -> RunTensor | None:
    """Return the tensor through which a task is the producer of an edge."""
    for one in producer.tensors.values():
        if one.tag in WRITING and one.address <= edge.address < one.address + max(1, one.nbytes):
            return one
    return None


# ---------------------------------------------------------------- args_dump/
def manifest(level: int, entries: list[Entry], dropped: int) -> dict[str, Any]:
    """Return the manifest of what tasks read before they ran, and what they wrote."""
    tensors = sum(one["kind"] == "tensor" for one in entries)
    return {
        "dump_tensor_level": level,
        "bin_file": None if level == WITHOUT_BYTES else BIN,
        "bin_format": "little-endian elements, row by row",
        "total_args": len(entries),
        "total_tensors": tensors,
        "total_scalars": len(entries) - tensors,
        "truncated_args": sum(one["truncated"] for one in entries),
        "dropped": dropped,
        "args": entries,
    }


def tensor_entry(task: int, function: int, tensor: RunTensor, stage: str) -> Entry:
    """Return the entry of a tensor, without bytes; `task` and `function` are numbers."""
    role = "inout" if tensor.tag == "INOUT" else "input" if stage == BEFORE else "output"
    entry = blank_entry(task, function, tensor.index, "tensor", role, stage, tensor.dtype)
    entry["shape"], entry["strides"] = list(tensor.shape), list(tensor.strides)
    entry["start_offset"], entry["is_contiguous"] = tensor.start, tensor.is_contiguous
    return entry


def blank_entry(
    task: int, function: int, index: int, kind: str, role: str, stage: str, dtype: str
) -> Entry:
    """Return an entry without shape and bytes."""
    return {
        "task_id": f"{task:#x}",
        "func_id": function,
        "role": role,
        "stage": stage,
        "arg_index": index,
        "kind": kind,
        "dtype": dtype,
        "shape": [],
        "strides": [],
        "start_offset": 0,
        "is_contiguous": True,
        "truncated": False,
        "overwritten": False,
        "bin_offset": 0,
        "bin_size": 0,
    }


def scalar_entry(
    task: int, function: int, index: int, dtype: str, bits: int, dumped: str | None
) -> Entry:
    """Return the entry of a scalar, whose bytes are added to the file of dumps, if there is one."""
    octets = (bits & (1 << 64) - 1).to_bytes(L.WORD, "little")
    entry = blank_entry(task, function, index, "scalar", "input", BEFORE, dtype)
    entry["value"] = np.frombuffer(octets, dtype.lower())[0].item()
    if dumped is not None:
        with open(dumped, "ab") as file:
            entry["bin_offset"] = file.tell()
            entry["bin_size"] = file.write(octets)
    return entry


def _arguments(run: FlaggedRun, level: int, dumped: str | None) -> dict[str, Any]:
    """Return the manifest. The bytes of tensors are in a file; those of scalars are added to them.

    A group has the tensors of all members, then the scalars of all.
    """
    entries = list(_tensors_noted(run)) if level == WITHOUT_BYTES else []
    scalars = []
    for task, operand, first, second in _dumped(run):
        ids, index = (task.id, run.function_of(task)), operand & 0xFFFF
        if operand & L.DUMPED_SCALAR:
            scalars.append((task.number, operand, first, _SCALARS.get(second, "UINT64")))
        elif level != WITHOUT_BYTES and (tensor := task.tensors.get(index)) is not None:
            entry = tensor_entry(*ids, tensor, AFTER if operand & L.DUMPED_AFTER else BEFORE)
            entry["bin_offset"], entry["bin_size"] = first, second
            entry["truncated"] = second < tensor.item * math.prod(tensor.shape)
            entries.append(entry)
    after = {number: len(task.tensors) for number, task in run.tasks.items()}
    for number, _, bits, dtype in sorted(scalars):  # by task, then by member
        ids = run.id_of(number), run.function_of(run.tasks[number])
        entries.append(scalar_entry(*ids, after[number], dtype, bits, dumped))
        after[number] += 1
    return manifest(level, entries, run.dropped)


def _tensors_noted(run: FlaggedRun) -> Iterator[Entry]:
    """Yield entries for all tensors of tasks, as submit noted them."""
    for task in run.tasks.values():
        ids = task.id, run.function_of(task)
        for tensor in () if task.is_buffer else task.tensors.values():
            if not tensor.tag.startswith("OUTPUT"):
                yield tensor_entry(*ids, tensor, BEFORE)
            if tensor.tag in WRITING:
                yield tensor_entry(*ids, tensor, AFTER)


def _dumped(run: FlaggedRun) -> Iterator[tuple[RunTask, int, int, int]]:
    """Yield what workers have noted of arguments: the task, and the operand and values of the note."""
    for worker in range(run.workers):
        for what, number, first, second in run.of_worker(worker, L.NOTED_DUMPED).tolist():
            if (task := run.tasks.get(number)) is not None:
                yield task, what >> 8, first, second


# ---------------------------------------------------------------- scope_stats/scope_stats.jsonl
def scope_lines(
    lines: list[Entry], failed: bool, dropped: int, most: Sequence[Counter[str]], most_keys: int
) -> str:
    """Return the contents of the file: a summary, then its lines; `most` is of each ring."""
    summary = {
        "version": 6,
        "fatal": failed,
        "dropped": dropped,
        "total": len(lines),
        "task_window_max": [one["tasks"] for one in most],
        "heap_max": [one["heap"] for one in most],
        "dep_pool_max": [one["edges"] for one in most],
        "tensormap_max": most_keys,
    }
    return "".join(f"{json.dumps(one)}\n" for one in (summary, *lines))


def scope_line(
    site: str, phase: str, depth: int, ring: int, back: Counter[str], use: Counter[str], keys: int
) -> Entry:
    """Return a line; `use` is what the ring has handed out, `back` what it has taken back, ever."""
    return {
        "site": site,
        "phase": phase,
        "depth": depth,
        "ring": ring,
        "task_window_start": back["tasks"],
        "task_window_end": use["tasks"],
        "heap_start": back["heap"],
        "heap_end": use["heap"],
        "dep_pool_start": back["edges"],
        "dep_pool_end": use["edges"],
        "tensormap": keys,
    }


def _scope_stats(run: FlaggedRun) -> str:
    """Return what rings, edges and keys held whenever a scope began or ended."""
    use, back, most = ([Counter[str]() for _ in range(L.MAX_RING_DEPTH)] for _ in range(3))
    lines = []

    def change(ring: int, what: str, by: int) -> None:
        (use if by > 0 else back)[ring][what] += abs(by)
        most[ring][what] = max(most[ring][what], use[ring][what] - back[ring][what])

    owner: dict[int, int] = {}  # of each buffer that has a producer
    most_keys = 0
    for kind, operand, number, _, value in run.notes():
        if kind == L.NOTED_HELD:
            change(operand, "heap", value - use[operand]["heap"] + back[operand]["heap"])
        elif kind == L.NOTED_SCOPE:  # the number is that of a line, the value a count of buffers
            depth, most_keys = operand & 0xFFFF, max(most_keys, value)
            ring = max(0, min(depth, run.rings - 1))
            place = tables.line_name(run.about, number) if depth else run.site
            phase = "begin" if operand >> 16 else "end"
            lines.append(scope_line(place, phase, depth, ring, back[ring], use[ring], value))
        elif kind in (*_SUBMITTED, _RECLAIMED) and (task := run.tasks.get(number)) is not None:
            way = -1 if kind == _RECLAIMED else 1
            change(task.ring, "tasks", way)
            change(task.ring, "edges", way * len({one.producer for one in task.edges}))
            for one in task.tensors.values():
                if one.tag in WRITING and one.address:
                    if way > 0:
                        owner[one.address] = number
                    elif owner.get(one.address) == number:
                        del owner[one.address]
            most_keys = max(most_keys, len(owner))
    return scope_lines(lines, run.failed, run.dropped, most[: run.rings], most_keys)


# ---------------------------------------------------------------- pmu.csv
def pmu_table(
    rows: Iterable[tuple[int, int, int, list[int]]], names: tuple[str, ...], event_type: int
) -> str:
    """Return the contents of the file; of each row core, task, function and counts."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    ids = "thread_id", "core_id", "task_id", "func_id", "core_type"
    table.writerow((*ids, "pmu_total_cycles", *names, "event_type"))
    for core, task, function, counts in rows:
        table.writerow((0, core, f"{task:#x}", function, "aiv", *counts, event_type))
    return text.getvalue()


def _counted(run: FlaggedRun, count: int) -> Iterator[tuple[int, int, int, list[int]]]:
    for worker in range(run.workers):
        values: dict[int, dict[int, int]] = {}
        for what, number, first, second in run.of_worker(worker, L.NOTED_COUNTED).tolist():
            at = what >> 8
            values.setdefault(number, {}).update({at: first, at + 1: second})
        for number, found in values.items():
            task = run.tasks.get(number)
            function = -1 if task is None else run.function_of(task)
            yield worker, run.id_of(number), function, [found.get(i, 0) for i in range(count)]
