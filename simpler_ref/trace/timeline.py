"""One timeline of a Worker and all below it: child Workers, and those of endpoints, in the parent's time.

Each has a trace of its own in a file beside that of its parent. Here their tables are put together. What
the parent has keeps its numbers; tasks, runs, lines and workers of others follow.

Rule     SEE-REMOTE-2 to -4, -7
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..jit import layout as L
from ..system.types import Array
from .tables import LANES, ORCH, TABLES, TraceFile

if TYPE_CHECKING:
    from .reader import Trace

TASK_FRAMES = (2, 64, 66, 72)
"""TASK, TASK_MORE, TASK_COPIES and TASK_AFTER."""
_EXCHANGE_BITS = 47
_STRETCH_NS = 5_000_000_000
"""How long the difference of two clocks counts as one number; from one stretch to the next it changes."""
_MOST_STRETCHES = 64


# ---------------------------------------------------------------- clocks
class Clock:
    """The clock of another machine, which was asked several times for its time.

    Parameters
    ----------
    samples : sequence of (int, int, int)
        When, by the parent's clock; how far it was ahead; plus or minus what.

    Attributes
    ----------
    error_ns : int
        A time is wrong by at most so much.
    """

    def __init__(self, samples: Sequence[tuple[int, int, int]]) -> None:
        when, ahead, half = np.array(samples, np.int64).T
        self._zero, self._base = int(when[0]), int(ahead[0])  # floats have too few digits for times
        when, ahead = when - self._zero, ahead - self._base
        least, most = ahead - half, ahead + half
        count = int(np.clip(np.ptp(when) // _STRETCH_NS, 1, _MOST_STRETCHES))
        stretch = (when - when.min()) * count // (np.ptp(when) + 1)
        places, values, errors = [], [], []
        for one in np.unique(stretch):
            mine = stretch == one
            low, high = int(least[mine].max()), int(most[mine].min())
            if low > high:  # it has gained or lost time meanwhile: the quickest answer says most
                best = np.flatnonzero(mine)[half[mine].argmin()]
                low, high = int(least[best]), int(most[best])
            places.append(float(when[mine].mean()))
            values.append((low + high) / 2)
            errors.append((high - low + 1) // 2)
        self._places = np.array(places)
        self._values = np.array(values)
        found = np.interp(when, self._places, self._values)
        outside = np.maximum(np.maximum(least - found, found - most), 0).max()
        self.error_ns = int(max(errors)) + int(np.ceil(outside))

    def to_parent(self, times: Array) -> Array:
        """Return times of the parent's clock for times of this one."""
        apart = times.astype(np.int64) - (self._zero + self._base)
        ahead = np.interp(apart, self._places + self._values, self._values)
        shifted: Array = apart - np.rint(ahead).astype(np.int64) + self._zero
        return shifted


def clocks_of(parent: Trace, file: TraceFile) -> list[Clock]:
    """Return the clock of a trace; none if it is that of its parent."""
    mine, its = parent.about.get("clock"), file.about.get("clock")
    agree = all(abs(ahead) <= half for _, ahead, half in file.clocks)
    if (its and its == mine and agree) or not (its or file.clocks):
        return []
    if not file.clocks:
        raise ValueError("it does not say how its clock goes")
    return [Clock(file.clocks)]


# ---------------------------------------------------------------- children
class Child(NamedTuple):
    """A Worker below one that was traced."""

    name: str
    """As in messages: ``endpoint 0``."""
    worker: int
    """The worker of the parent that runs it."""
    trace: Trace | None
    """In the parent's time; None if it cannot be read."""
    problem: str
    """What is missing, and why; "" if nothing is."""

    @property
    def error_ns(self) -> int:
        """By how much its times may be wrong."""
        return self.trace.error_ns if self.trace is not None else 0


class Transfer(NamedTuple):
    """A tensor that was moved between the parent and an endpoint, or between two."""

    source: str
    """Who had it: the name of a worker, or "" for the machine of the parent."""
    target: str
    nbytes: int
    begin: int
    end: int

    def __str__(self) -> str:
        source, target = self.source or "this machine", self.target or "this machine"
        return f"{self.nbytes} bytes from {source} to {target}"


def short(name: str) -> str:
    """Return a worker's name without where it is."""
    return " ".join(name.split()[:2])


def children_of(trace: Trace) -> list[Child]:
    """Return the Workers below, those that could not be traced at the end."""
    files = trace.about.get("children", [])
    workers = trace.about.get("child_workers", range(len(files)))
    found = [_child(trace, worker, file) for file, worker in zip(files, workers, strict=False)]
    names = [trace.worker_name(worker) for worker in range(trace.worker_count)]
    for name, why in trace.about.get("untraced", {}).items():
        worker = names.index(name) if name in names else -1
        found.append(Child(short(name), worker, None, f"it was not traced: {why}"))
    return found


def _child(parent: Trace, worker: int, name: str) -> Child:
    called = short(parent.worker_name(worker))
    if turn := re.search(r"-(\d+)$", name):
        called += f" ({turn[1]})"
    try:
        file = TraceFile(os.path.join(os.path.dirname(parent.path), name))
        trace = type(parent)(file, (*clocks_of(parent, file), *parent.clocks))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return Child(called, worker, None, f"{os.path.basename(name)} is missing: {why}")
    problem = ""
    if not trace.is_whole:
        problem = trace.about.get("records", "it was lost, or the program did not end the trace")
        problem = f"its records are cut off: {problem}"
    return Child(called, worker, trace, problem)


# ---------------------------------------------------------------- the parts
class Part(NamedTuple):
    """A trace in the whole, and what is added to its numbers there."""

    name: str
    trace: Trace
    parent: int = -1
    """Which part is above it; -1 for the first."""
    worker: int = -1
    """By which worker of the whole its tasks come."""
    tasks: int = 0
    workers: int = 0
    runs: int = 0
    lines: int = 0
    threads: int = 0
    """What is taken from the lanes that are no workers."""

    def lane(self, lane: int) -> int:
        """Return a lane of the whole."""
        return lane - self.threads if lane < 0 else lane + self.workers

    def moved(self, name: str) -> Array:
        """Return a table with the numbers of the whole."""
        rows: Array = getattr(self.trace, name).copy()
        columns = set(rows.dtype.names or ())
        by_column = {
            **dict.fromkeys(("consumer", "producer", "first", "task"), self.tasks),
            "worker": self.workers,
            "run": self.runs,
            "line": self.lines,
        }
        if "exchange" in columns:  # those of one exchange have the same number on both sides
            link = np.where(rows["lane"] == ORCH, self.worker, rows["lane"] + self.workers)
            rows["exchange"] |= link.astype(np.int64) << _EXCHANGE_BITS
        for column, by in by_column.items():
            if column in columns:
                least = 0 if column in ("worker", "run") else 1  # below it, none is known
                rows[column] += np.where(rows[column] >= least, by, 0).astype(rows[column].dtype)
        if "lane" in columns:
            rows["lane"] += np.where(rows["lane"] < 0, -self.threads, self.workers).astype("<i4")
        return rows


def parts_of(trace: Trace) -> list[Part]:
    """Return a trace, and all below it."""
    todo: list[tuple[str, Trace, int, int]] = [("", trace, -1, -1)]
    parts: list[Part] = []
    tasks = workers = runs = lines = 0
    while todo:
        name, one, parent, worker = todo.pop(0)
        here = len(parts)
        worker += parts[parent].workers if parent >= 0 else 0
        numbers = tasks, workers, runs, lines, here * len(LANES)
        parts.append(Part(name, one, parent, worker, *numbers))
        tasks, workers = tasks + len(one.tasks), workers + one.worker_count
        runs, lines = runs + len(one.runs), lines + len(one.about.get("lines", []))
        prefix = f"{name} › " if name else ""
        todo[:0] = [
            (prefix + child.name, child.trace, here, child.worker)
            for child in one.children
            if child.trace is not None
        ]
    return parts


def put_together(trace: Trace) -> Trace:
    """Return one trace of all parts."""
    parts = parts_of(trace)
    whole = type(trace).__new__(type(trace))
    whole.path, whole.clocks, whole.parts = trace.path, (), tuple(parts)
    whole.is_whole = all(part.trace.is_whole for part in parts)
    whole.dropped = sum(part.trace.dropped for part in parts)
    whole.submits_dropped = sum(part.trace.submits_dropped for part in parts)
    whole.worker_count = sum(part.trace.worker_count for part in parts)
    tables = [{name: part.moved(name) for name in TABLES} for part in parts]
    whole.about = {**trace.about, **_told(parts), "functions": _name_functions(parts, tables)}
    for name in TABLES:
        setattr(whole, name, np.concatenate([one[name] for one in tables]))
    known = vars(whole)
    known["children"], known["whole"] = trace.children, whole
    known["within"] = _within(whole)
    known["critical_path"] = list(_path(whole))
    return whole


def _name_functions(parts: list[Part], tables: list[dict[str, Array]]) -> dict[str, str]:
    """Give each name of a function one number in all tables; return the names by these."""
    numbers: dict[str, int] = {}
    for part, mine in zip(parts, tables, strict=True):
        for rows in (mine["tasks"], mine["ran"]):
            used, at = np.unique(rows["function"], return_inverse=True)
            names = [part.trace.function_name(one) for one in used.tolist()]
            new = [numbers.setdefault(name, len(numbers)) for name in names]
            rows["function"] = np.array(new, np.int64)[at]
    return {str(number): name for name, number in numbers.items()}


def _told(parts: list[Part]) -> dict[str, Any]:
    workers, lines = [], []
    for part in parts:
        prefix = f"{part.name} › " if part.name else ""
        workers += [prefix + part.trace.worker_name(i) for i in range(part.trace.worker_count)]
        lines += part.trace.about.get("lines", [])
    vacant = [one + part.workers for part in parts for one in part.trace.about.get("vacant", [])]
    return {"workers": workers, "lines": lines, "vacant": vacant}


def _within(whole: Trace) -> Array:
    """Return for each run the number of the task that it was for the Worker above; 0 if none is known."""
    found = np.zeros(len(whole.runs), np.int64)
    for part in whole.parts[1:]:
        begins, frames = part.trace.runs["begin"], part.trace.frames
        asked = frames[~frames["sent"] & np.isin(frames["type"], TASK_FRAMES)]
        if len(asked):
            keys = asked["exchange"] | part.worker << _EXCHANGE_BITS
            numbers = [whole.task_of_exchange.get(key, 0) for key in keys.tolist()]
            mine = _last_before(begins, asked["time"], np.array(numbers))
        else:
            ran = whole.ran[whole.ran["worker"] == part.worker]
            mine = _last_before(begins, ran["begin"], ran["task"])
            mine = np.where(begins <= _last_before(begins, ran["begin"], ran["end"]), mine, 0)
        found[part.runs : part.runs + len(begins)] = mine
    return found


def _last_before(times: Array, known: Array, values: Array) -> Array:
    """Return for each of some times the value that was known last; 0 if none was."""
    order = np.argsort(known, kind="stable")
    at = np.searchsorted(known[order], times, "right")
    found: Array = np.append(0, values[order])[at]
    return found


# ---------------------------------------------------------------- the critical path
def critical_path(tasks: Array, edges: Array) -> list[int]:
    """Return the numbers of the tasks of the longest chain of dependencies, the first one first.

    A task depends only on tasks of smaller numbers, so one walk in the order of numbers suffices.
    """
    spans = np.where(tasks["begun"] > 0, np.maximum(tasks["ended"] - tasks["begun"], 0), 0)
    waits = edges[edges["kind"] != L.OWED_MEMORY]
    order = np.argsort(waits["consumer"], kind="stable")
    producers = (waits["producer"][order] - 1).tolist()
    firsts = np.searchsorted(waits["consumer"][order], np.arange(1, len(tasks) + 2)).tolist()
    longest: list[int] = spans.tolist()
    before = [-1] * len(longest)
    for task in range(len(longest)):
        best, via = 0, -1
        for producer in producers[firsts[task] : firsts[task + 1]]:
            if producer < task and longest[producer] > best:
                best, via = longest[producer], producer
        if via >= 0:
            longest[task] += best
            before[task] = via
    path = []
    at = int(np.argmax(np.array(longest))) if longest else -1
    while at >= 0:
        path.append(at + 1)
        at = before[at]
    return [one for one in reversed(path) if not tasks["buffer"][one - 1]]


def _path(whole: Trace) -> Iterator[int]:
    """Yield the critical path of the first part, and after each task that of the run that it was."""
    paths: dict[int, list[int]] = {}
    for part in whole.parts[1:]:
        paths |= _paths_of_runs(part)

    def unfold(numbers: list[int]) -> Iterator[int]:
        for number in numbers:
            yield number
            for run, *_ in whole.runs_within.get(number, ()):
                yield from unfold(paths.get(run, []))

    yield from unfold(whole.parts[0].trace.critical_path)


def _paths_of_runs(part: Part) -> dict[int, list[int]]:
    """Return the critical path of each run of a part, by numbers of the whole."""
    tasks, edges = part.trace.tasks, part.trace.edges
    found = {}
    for run in np.unique(tasks["run"]).tolist():
        mine = np.flatnonzero(tasks["run"] == run)
        low, high = int(mine[0]), int(mine[-1]) + 1
        consumers = (edges["consumer"] > low) & (edges["consumer"] <= high)
        owed = edges[consumers & (edges["producer"] > low)]
        owed["consumer"] -= low
        owed["producer"] -= low
        path = critical_path(tasks[low:high], owed)
        found[run + part.runs] = [one + low + part.tasks for one in path]
    return found
