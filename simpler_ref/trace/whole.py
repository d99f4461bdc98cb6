"""One timeline of a Worker and all below it: child Workers, and those of endpoints, in the parent's time.

Each has a trace of its own in a file beside that of its parent. Here their tables are put together. What
the parent has keeps its numbers; tasks, runs, lines and workers of others follow.

Rule     SEE-REMOTE-2 to -4, -7
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..system.types import Array
from .clocks import Clock, SameClock
from .critical import critical_path
from .file import TraceFile
from .lanes import LANES, ORCH

if TYPE_CHECKING:
    from .reader import Trace

TASK_FRAMES = (2, 64, 66, 72)
"""TASK, TASK_MORE, TASK_COPIES and TASK_AFTER."""
COMPLETION = 5
_EXCHANGE_BITS = 47


class Below(NamedTuple):
    """A Worker below one that was traced."""

    name: str
    """As in messages: ``endpoint 0``."""
    worker: int
    """The worker of the parent that runs it."""
    file: str
    trace: Trace | None
    """In the parent's time; None if it cannot be read."""
    error_ns: int
    """Its times are wrong by at most so much."""
    problem: str
    """What is missing, and why; "" if nothing is."""


class Transfer(NamedTuple):
    """A tensor that was moved between the parent and an endpoint, or between two."""

    source: str
    """Who had it: the name of a worker, or "" for the machine of the parent."""
    target: str
    nbytes: int
    begin: int
    end: int


def short(name: str) -> str:
    """Return a worker's name without where it is."""
    return " ".join(name.split()[:2])


def children_of(trace: Trace) -> list[Below]:
    """Return the Workers below, those that could not be traced at the end."""
    found = []
    files = trace.about.get("children", [])
    for file, worker in zip(
        files, trace.about.get("child_workers", range(len(files))), strict=False
    ):
        path = os.path.join(os.path.dirname(trace.path), file)
        found.append(_read(trace, trace.worker_name(worker), worker, path))
    names = [trace.worker_name(worker) for worker in range(trace.worker_count)]
    for name, why in trace.about.get("untraced", {}).items():
        worker = names.index(name) if name in names else -1
        found.append(Below(short(name), worker, "", None, 0, f"it was not traced: {why}"))
    return found


def _read(parent: Trace, name: str, worker: int, path: str) -> Below:
    name = short(name)
    if turn := re.search(r"-(\d+)$", path):
        name += f" ({turn[1]})"
    try:
        file = TraceFile(path)
        trace = parent.below(file, clock_of(parent, file))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return Below(name, worker, path, None, 0, f"{os.path.basename(path)} is missing: {why}")
    problem = ""
    if not trace.is_whole:
        problem = trace.about.get("records", "it was lost, or the program did not end the trace")
        problem = f"its records are cut off: {problem}"
    return Below(name, worker, path, trace, trace.error_ns, problem)


def clock_of(parent: Trace, file: TraceFile) -> Clock:
    """Return the clock of a trace.

    Rule     SEE-REMOTE-3
    """
    mine, its = parent.about.get("clock"), file.about.get("clock")
    agree = all(abs(ahead) <= half for _, ahead, half in file.clocks)
    if (its and its == mine and agree) or not (its or file.clocks):
        return SameClock()
    if not file.clocks:
        raise ValueError("it does not say how its clock goes")
    return Clock(file.clocks)


# ---------------------------------------------------------------- the parts
class Part(NamedTuple):
    """A trace in the whole, and where its numbers begin there."""

    name: str
    trace: Trace
    parent: int
    """Which part is above it; -1 for the first."""
    worker: int
    """By which worker of the whole its tasks come."""
    tasks: int
    workers: int
    runs: int
    lines: int
    threads: int
    """What is added to the lanes that are no workers."""

    def lanes(self, lanes: Array) -> Array:
        """Return lanes of the whole."""
        found: Array = np.where(lanes < 0, lanes - self.threads, lanes + self.workers)
        return found

    def lane(self, lane: int) -> int:
        """Return a lane of the whole."""
        return lane - self.threads if lane < 0 else lane + self.workers


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
        tasks, workers, runs = (
            tasks + len(one.tasks),
            workers + one.worker_count,
            runs + len(one.runs),
        )
        lines += len(one.about.get("lines", []))
        prefix = f"{name} › " if name else ""
        todo[:0] = [
            (prefix + below.name, below.trace, here, below.worker)
            for below in one.children
            if below.trace is not None
        ]
    return parts


def put_together(trace: Trace) -> Trace:
    """Return one trace of all parts."""
    parts = parts_of(trace)
    whole = type(trace).__new__(type(trace))
    whole.path, whole.parts = trace.path, tuple(parts)
    whole.is_whole = all(part.trace.is_whole for part in parts)
    whole.dropped = sum(part.trace.dropped for part in parts)
    whole.submits_dropped = sum(part.trace.submits_dropped for part in parts)
    whole.worker_count = sum(part.trace.worker_count for part in parts)
    names, functions = _functions(parts)
    whole.about = {**trace.about, **_told(parts), "functions": names}
    for table in ("tasks", "ran", "edges", "arguments", "waits", "held", "scopes", "runs"):
        setattr(whole, table, np.concatenate([_moved(part, table, functions) for part in parts]))
    whole.frames = np.concatenate([_frames(parts, part) for part in parts])
    whole.moves = np.concatenate([_moved(part, "moves", functions) for part in parts])
    vars(whole)["children"] = trace.children
    vars(whole)["whole"] = whole
    vars(whole)["within"] = _within(whole)
    vars(whole)["critical_path"] = list(_path(whole))
    return whole


def _functions(parts: list[Part]) -> tuple[dict[str, str], dict[tuple[int, int], int]]:
    """Return names of functions by new numbers, and the new number of each function of each part."""
    numbers: dict[str, int] = {}
    functions: dict[tuple[int, int], int] = {}
    for which, part in enumerate(parts):
        used = np.concatenate([part.trace.tasks["function"], part.trace.ran["function"]])
        for one in np.unique(used).tolist():
            name = part.trace.function_name(one)
            functions[which, one] = numbers.setdefault(name, len(numbers))
    return {str(number): name for name, number in numbers.items()}, functions


def _told(parts: list[Part]) -> dict[str, Any]:
    workers, lines = [], []
    for part in parts:
        prefix = f"{part.name} › " if part.name else ""
        workers += [prefix + part.trace.worker_name(i) for i in range(part.trace.worker_count)]
        lines += part.trace.about.get("lines", [])
    vacant = [one + part.workers for part in parts for one in part.trace.about.get("vacant", [])]
    return {"workers": workers, "lines": lines, "vacant": vacant}


def _moved(part: Part, table: str, functions: dict[tuple[int, int], int]) -> Array:
    """Return a table of a part with the numbers of the whole."""
    rows: Array = getattr(part.trace, table).copy()
    fields = rows.dtype.names or ()
    for name, by in (("consumer", part.tasks), ("producer", part.tasks), ("first", part.tasks)):
        if name in fields:
            rows[name] += by
    if "task" in fields:
        rows["task"] += part.tasks
    if "worker" in fields:
        rows["worker"] = np.where(rows["worker"] < 0, -1, rows["worker"] + part.workers)
    if "run" in fields:
        rows["run"] = np.where(rows["run"] < 0, -1, rows["run"] + part.runs)
    if "line" in fields:
        rows["line"] = np.where(rows["line"] > 0, rows["line"] + part.lines, 0)
    if "lane" in fields:
        rows["lane"] = part.lanes(rows["lane"])
    if "function" in fields and len(rows):
        which = part.threads // len(LANES)
        used, at = np.unique(rows["function"], return_inverse=True)
        rows["function"] = np.array([functions[which, one] for one in used.tolist()])[at]
    return rows


# ---------------------------------------------------------------- frames
def _frames(parts: list[Part], part: Part) -> Array:
    """Return the frames of a part: those of one exchange have the same number on both sides."""
    rows: Array = part.trace.frames.copy()
    link = np.where(rows["lane"] == ORCH, part.worker, rows["lane"] + part.workers)
    rows["exchange"] |= link.astype(np.int64) << _EXCHANGE_BITS
    rows["task"] = np.where(rows["task"] > 0, rows["task"] + part.tasks, 0)
    rows["lane"] = part.lanes(rows["lane"])
    return rows


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


def _path(whole: Trace) -> Iterator[int]:
    """Yield the critical path of the first part, and after each task that of the run that it was."""
    paths = {part: _paths_of_runs(whole.parts[part]) for part in range(1, len(whole.parts))}
    firsts = [part.runs for part in whole.parts]

    def unfold(numbers: list[int]) -> Iterator[int]:
        for number in numbers:
            yield number
            for run, *_ in whole.runs_within.get(number, ()):
                part = int(np.searchsorted(firsts, run, "right")) - 1
                yield from unfold(paths[part].get(run, []))

    yield from unfold(whole.parts[0].trace.critical_path)


def _paths_of_runs(part: Part) -> dict[int, list[int]]:
    """Return the critical path of each run of a part, by numbers of the whole."""
    tasks, edges = part.trace.tasks, part.trace.edges
    found = {}
    for run in np.unique(tasks["run"]).tolist():
        mine = np.flatnonzero(tasks["run"] == run)
        low, high = int(mine[0]), int(mine[-1]) + 1
        owed = edges[
            (edges["consumer"] > low) & (edges["consumer"] <= high) & (edges["producer"] > low)
        ]
        owed["consumer"] -= low
        owed["producer"] -= low
        path = critical_path(tasks[low:high], owed)
        found[run + part.runs] = [one + low + part.tasks for one in path]
    return found
