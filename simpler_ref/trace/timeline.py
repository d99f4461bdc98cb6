"""One timeline of a Worker and all below it: child Workers, and those of endpoints, in the parent's time.

Each has a trace of its own in a file beside that of its parent. `Timeline.whole` puts their tables
together. What the parent has keeps its numbers; tasks, runs, lines and workers of others follow.

Rule     SEE-READ-1, SEE-REMOTE-2, SEE-REMOTE-3, SEE-REMOTE-4, SEE-REMOTE-7, SEE-WHY-1
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..jit import layout as L
from ..model.wire import span_of
from ..system.types import Array
from .tables import (
    EXCHANGE_BITS,
    GOALS,
    LANES,
    ORCH,
    TABLES,
    TIMES,
    WAITED,
    Clock,
    TraceFile,
    TraceFileError,
    critical_path,
    line_name,
    tables_of,
)

TAGS = ("INPUT", "OUTPUT", "INOUT", "OUTPUT_EXISTING", "NO_DEP")
WRITING = ("OUTPUT", "INOUT", "OUTPUT_EXISTING")
"""Those that write."""
KINDS = ("data", "order", "future", "memory")
"""Of dependencies; see `Dependency.kind`."""
OUTCOMES = UNFINISHED, SUCCEEDED, FAILED = "unfinished", "completed", "failed"
QUICK_NS = 1000
"""A wait that is shorter is not worth a line."""
TASK_FRAMES = (2, 64)
"""TASK and RUN."""
ANSWERS = {5: "COMPLETION", 68: "DONE"}
"""The type of a frame that says that a task has ended."""


# ---------------------------------------------------------------- what a timeline has
class Child(NamedTuple):
    """A Worker below one that was traced."""

    name: str
    """As in messages: ``endpoint 0``."""
    worker: int
    """The worker of the parent that runs it."""
    trace: Timeline | None
    """In the parent's time; None if it cannot be read."""
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

    def __str__(self) -> str:
        source, target = self.source or "this machine", self.target or "this machine"
        return f"{self.nbytes} bytes from {source} to {target}"


class Part(NamedTuple):
    """A trace in the whole, and what is added to its numbers there."""

    name: str
    trace: Timeline
    worker: int = -1
    """By which worker of the whole its tasks come; -1 for the first."""
    tasks: int = 0
    workers: int = 0
    runs: int = 0
    lines: int = 0
    threads: int = 0
    """What is taken from the lanes that are no workers."""

    def below(self, name: str) -> str:
        return f"{self.name} › {name}" if self.name else name

    def moved(self, table: str) -> Array:
        """Return a table with the numbers of the whole."""
        rows: Array = getattr(self.trace, table).copy()
        columns = set(rows.dtype.names or ())
        if "exchange" in columns:  # those of one exchange have the same number on both sides
            link = np.where(rows["lane"] == ORCH, self.worker, self.workers)
            rows["exchange"] += link.astype(np.int64) << EXCHANGE_BITS
        for column, by, least in (
            *((name, self.tasks, 1) for name in ("consumer", "producer", "first", "task")),
            *(("line", self.lines, 1), ("worker", self.workers, 0), ("run", self.runs, 0)),
        ):
            if column in columns:  # below the least number, none is known
                rows[column] += np.where(rows[column] >= least, by, 0).astype(rows[column].dtype)
        if "lane" in columns:
            rows["lane"] += np.where(rows["lane"] < 0, -self.threads, self.workers).astype("<i4")
        return rows


class Timeline:
    """The tables of a trace file, or of several that were put together; see `Trace`."""

    TIMES = TIMES
    tasks: Array
    ran: Array
    edges: Array
    arguments: Array
    waits: Array
    held: Array
    scopes: Array
    runs: Array
    frames: Array
    moves: Array

    def __init__(self, file: TraceFile, above: Timeline | None = None, worker: int = -1) -> None:
        """Read the tables of a file; one of a Worker below another by the clock of that, which ran it."""
        self.path, self.about, self.is_whole = file.path, file.about, file.is_whole
        self._clocks_below = file.clocks()
        self._paths: tuple[str, ...] = (file.path, *(above._paths if above is not None else ()))
        """Its file, and those of all above it."""
        self.dropped = sum(file.dropped.values())
        clocks = () if above is None else (*above._clocks_of(file, worker), *above.clocks)
        self.clocks: tuple[Clock, ...] = clocks
        """What makes its times those of the uppermost Worker, in this order."""
        self.parts: tuple[Part, ...] = ()
        journals = (journal - L.JOURNALS_OF_WORKERS + 1 for journal in file.journals)
        self.worker_count = max(len(self.about.get("workers", [])), 0, *journals)
        tables = tables_of(file)
        for rows in tables.values():
            for column in {*TIMES, "begin", "end", "time"} & set(rows.dtype.names or ()):
                for clock in clocks:
                    rows[column] = np.where(rows[column] > 0, clock.to_parent(rows[column]), 0)
        self._take(tables)

    def _take(self, tables: dict[str, Array]) -> None:
        for name, rows in tables.items():
            setattr(self, name, rows)
        self.moves = self.moves[np.argsort(self.moves["begin"], kind="stable")]
        # who asks or who answers knows the task: the frames of an exchange are all about it
        _, exchange = np.unique(self.frames["exchange"], return_inverse=True)
        task = np.zeros(len(self.frames), np.int64)
        np.maximum.at(task, exchange, self.frames["task"])
        self.frames["task"] = task[exchange]

    # ------------------------------------------------------------ those below
    @cached_property
    def children(self) -> list[Child]:
        """The traces of the Workers below this one, from the files beside this one, in its time."""
        files = self.about.get("children", [])
        workers = self.about.get("child_workers", range(len(files)))
        found = [self._child(*one) for one in zip(workers, files, strict=False)]
        names = [self.worker_name(worker) for worker in range(self.worker_count)]
        for name, why in self.about.get("untraced", {}).items():
            worker = names.index(name) if name in names else -1
            found.append(Child(_short(name), worker, None, f"it was not traced: {why}"))
        return found

    def _child(self, worker: int, name: str) -> Child:
        called = _short(self.worker_name(worker))
        if turn := re.search(r"-(\d+)$", name):
            called += f" ({turn[1]})"
        path = os.path.join(os.path.dirname(self.path), os.path.basename(name))
        cut_off = self.about.get("cut_off", {}).get(name)
        try:
            if path in self._paths:
                raise TraceFileError(f"{path} is that of a Worker above")
            trace = type(self)(TraceFile(path), self, worker)
        except (OSError, ValueError) as error:
            why = cut_off or (error.strerror if isinstance(error, OSError) else str(error))
            return Child(called, worker, None, f"{os.path.basename(name)} is missing: {why}")
        problem = ""
        if not trace.is_whole:
            lost = "it was lost, or the program did not end the trace"
            problem = f"its records are cut off: {cut_off or lost}"
        return Child(called, worker, trace, problem)

    def _clocks_of(self, file: TraceFile, worker: int) -> tuple[Clock, ...]:
        """Return the clock of a child's trace, which a worker runs; none if it is that of this one."""
        mine, its = self.about.get("clock"), file.about.get("clock")
        known = self._clocks_below.get(worker, [])
        agree = all(abs(ahead) <= half for _, ahead, half in known)
        if (its and its == mine and agree) or not (its or known):
            return ()
        if not known:
            raise ValueError("nothing says how its clock goes")
        return (Clock(known),)

    @cached_property
    def whole(self) -> Timeline:
        """One trace of this Worker and all below it, with all rows, in this one's time.

        Tasks of this Worker have their numbers in it; those of others follow.
        """
        parts = self._find_parts()
        if len(parts) == 1:
            return self
        whole = type(self).__new__(type(self))
        whole.path, whole.clocks, whole.parts = self.path, (), tuple(parts)
        traces = [part.trace for part in parts]
        whole.is_whole = all(one.is_whole for one in traces)
        whole.dropped = sum(one.dropped for one in traces)
        whole.worker_count = sum(one.worker_count for one in traces)
        tables = [{name: part.moved(name) for name in TABLES} for part in parts]
        whole.about = {
            **self.about,
            "functions": _name_functions(parts, tables),
            "workers": [
                part.below(part.trace.worker_name(i))
                for part in parts
                for i in range(part.trace.worker_count)
            ],
            "lines": [line for one in traces for line in one.about.get("lines", [])],
            "vacant": [
                one + part.workers for part in parts for one in part.trace.about.get("vacant", [])
            ],
        }
        whole._take({name: np.concatenate([one[name] for one in tables]) for name in TABLES})
        vars(whole).update(children=self.children, whole=whole)
        return whole

    def _find_parts(self) -> list[Part]:
        """Return this trace, and all below it."""
        todo: list[tuple[str, Timeline, int]] = [("", self, -1)]
        parts: list[Part] = []
        tasks = workers = runs = lines = 0
        while todo:
            name, one, worker = todo.pop(0)
            threads = len(parts) * len(LANES)
            parts.append(Part(name, one, worker, tasks, workers, runs, lines, threads))
            todo[:0] = [
                (parts[-1].below(child.name), child.trace, child.worker + workers)
                for child in one.children
                if child.trace is not None
            ]
            tasks, workers = tasks + len(one.tasks), workers + one.worker_count
            runs, lines = runs + len(one.runs), lines + len(one.about.get("lines", []))
        return parts

    def problems(self) -> list[str]:
        """Return what is missing of the Workers below: of which, what and why."""
        return [
            f"{part.below(one.name)}: {one.problem}"
            for part in self.whole.all_parts
            for one in part.trace.children
            if one.problem
        ]

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts; of a trace that is not put together, itself."""
        return self.parts or (Part("", self),)

    @property
    def error_ns(self) -> int:
        """By how much its times may be wrong in the time of the Worker above."""
        return sum(clock.error_ns for clock in self.clocks)

    @cached_property
    def within(self) -> Array:
        """For each run the number of the task that it was for a Worker above; 0 if none is known."""
        found = np.zeros(len(self.runs), np.int64)
        for part in self.parts[1:]:
            begins = part.trace.runs["begin"]
            asked = ~self.frames["sent"] & np.isin(self.frames["type"], TASK_FRAMES)
            asked &= self.frames["lane"] == ORCH - part.threads
            ran = self.ran[self.ran["worker"] == part.worker]
            if asked.any():
                mine = _last_before(begins, self.frames["time"][asked], self.frames["task"][asked])
            else:
                mine = _last_before(begins, ran["begin"], ran["task"])
                mine = np.where(begins <= _last_before(begins, ran["begin"], ran["end"]), mine, 0)
            found[part.runs : part.runs + len(begins)] = mine
        return found

    @cached_property
    def runs_within(self) -> dict[int, list[tuple[int, int, int, int]]]:
        """The runs that each task was elsewhere: which, begin, end and how many tasks it had."""
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for run in np.flatnonzero(self.within).tolist():
            begin, end = self.runs[["begin", "end"]][run].item()
            row = run, begin, end, int(self._tasks_of_run[run])
            found.setdefault(int(self.within[run]), []).append(row)
        return found

    # ------------------------------------------------------------ frames and transfers
    def frame_pairs(self) -> list[tuple[np.void, np.void]]:
        """Return the frames that both sides have noted: the rows of sender and receiver."""
        # from a link to a session, or back
        ways = self.frames["sent"] == (self.frames["lane"] >= 0)
        keys = list(zip(self.frames["exchange"].tolist(), ways.tolist(), strict=True))
        rows = list(zip(keys, self.frames, strict=True))
        sent = {key: row for key, row in rows if row["sent"]}
        return [(sent[key], row) for key, row in rows if not row["sent"] and key in sent]

    def transfers(self) -> list[Transfer]:
        """Return the tensors that links and sessions have moved: from, to, bytes, begin and end."""
        return [self.transfer(row) for row in self.moves]

    def transfer(self, row: np.void) -> Transfer:
        """Return a row of `moves` by names."""
        here = self.side(int(row["lane"]))
        peer = self._peers.get(int(row["peer"]), "another session")
        ends = (here, peer) if row["stored"] else (peer, here)
        return Transfer(*ends, int(row["nbytes"]), int(row["begin"]), int(row["end"]))

    @cached_property
    def _peers(self) -> dict[int, str]:
        return {
            int(peer): part.below(_short(part.trace.worker_name(worker)))
            for part in self.all_parts
            for peer, worker in part.trace.about.get("movers", {}).items()
        }

    def side(self, lane: int) -> str:
        """Return whose memory a lane moves: a link's is that of its parent."""
        return self.all_parts[self.part_of(lane)].name

    def part_of(self, lane: int) -> int:
        """Return the number of the part that a lane belongs to."""
        if lane < 0:
            return (-lane - 1) // len(LANES)
        firsts = [part.workers for part in self.all_parts]
        return int(np.searchsorted(firsts, lane, "right")) - 1

    @cached_property
    def rows(self) -> list[int]:
        """The lanes of the timeline from top to bottom: threads and workers, without vacant places."""
        vacant = set(self.about.get("vacant", []))
        found = []
        for part in self.all_parts:
            found += [lane - part.threads for lane in LANES]
            workers = range(part.workers, part.workers + part.trace.worker_count)
            found += [one for one in workers if one not in vacant]
        return found

    # ------------------------------------------------------------ one task
    def task(self, number: int) -> TracedTask:
        """Return a task by its number in the trace, from 1 on.

        In a trace of one run that is the task's id plus 1; see `find`.
        """
        if not 1 <= number <= len(self.tasks):
            raise KeyError(f"the trace has the tasks 1 to {len(self.tasks)}, and no {number}")
        return TracedTask(self, number)

    def find(self, task_id: int, run: int = 0) -> TracedTask:
        """Return a task by its id in a run, as messages of errors have it; both from 0 on.

        Raises
        ------
        KeyError
            The trace has no such run, or the run no such task.
        """
        if not 0 <= run < len(self.runs):
            raise KeyError(f"the trace has {_all('run', len(self.runs))}, and no run {run}")
        count = int(self._tasks_of_run[run])
        if not 0 <= task_id < count:
            raise KeyError(f"run {run} has {_all('task', count)}, and no task {task_id}")
        return self.task(self.first_of_run(run) + task_id)

    @cached_property
    def _tasks_of_run(self) -> Array:
        run = self.tasks["run"][self.tasks["run"] >= 0]
        counts: Array = np.bincount(run, minlength=len(self.runs))
        return counts

    def first_of_run(self, run: int) -> int:
        """Return the number of the first task of a run; 1 for tasks of no known run."""
        return int(self.runs["first"][run]) if 0 <= run < len(self.runs) else 1

    @cached_property
    def _sorted(self) -> dict[tuple[str, str], tuple[Array, Array]]:
        """Of tables and columns: the rows sorted by the column, and the column itself, contiguous."""
        return {}

    def rows_with(self, table: str, column: str, number: int) -> Array:
        """Return the rows of a table that have a number in a column, in their order."""
        if (table, column) not in self._sorted:
            rows = getattr(self, table)
            rows = rows[np.argsort(rows[column], kind="stable")]
            self._sorted[table, column] = rows, np.ascontiguousarray(rows[column])
        rows, keys = self._sorted[table, column]
        first, end = np.searchsorted(keys, (number, number + 1))
        found: Array = rows[first:end]
        return found

    # ------------------------------------------------------------ names and times
    def function_name(self, function: int) -> str:
        """Return the name of a function."""
        name = self.about.get("functions", {}).get(str(function))
        return name if name is not None else f"function {function:#x}"

    def line_name(self, line: int) -> str:
        """Return a line as ``file:number``; "" if it is not known."""
        return line_name(self.about, line)

    def worker_name(self, worker: int) -> str:
        """Return the name of a worker, or of a lane."""
        if worker < 0:
            which, lane = divmod(-worker - 1, len(LANES))
            return self.all_parts[which].below(LANES[-lane - 1])
        names = self.about.get("workers", [])
        return names[worker] if 0 <= worker < len(names) else f"worker {worker}"

    @cached_property
    def start(self) -> int:
        """When the first thing happened, ns of the monotonic clock."""
        firsts = [self.runs["begin"], self.ran["begin"], self.tasks["submitted"]]
        return min((int(one[one > 0].min()) for one in firsts if (one > 0).any()), default=0)

    @cached_property
    def end(self) -> int:
        """When the last thing happened."""
        tasks = self.tasks["submitted"], self.tasks["collected"]
        lasts = [self.runs["end"], self.ran["end"], *tasks]
        return max((int(one.max()) for one in lasts if len(one)), default=self.start)

    def relative(self, time: int) -> str:
        """Return a time since the start, for people."""
        return f"{(time - self.start) / 1e6:10.4f} ms" if time else "         ?   "

    def state_before(self, worker: int, since: int, until: int) -> str:
        """Say why a worker took a task late: it slept, or ran another."""
        slept = self.waits[(self.waits["lane"] == worker) & (self.waits["what"] == L.NOTED_PARKED)]
        if ((slept["begin"] < since) & (slept["end"] > since) & (slept["end"] <= until)).any():
            return ": it slept and had to wake up"
        mine = self.ran[(self.ran["worker"] == worker) & (self.ran["begin"] < until)]
        last = mine[np.argsort(mine["begin"], kind="stable")][-1:]
        for number in last["task"][last["end"] > since].tolist():
            return f": it ran {self.task(number).name}"
        return ""

    # ------------------------------------------------------------ sums
    def functions(self) -> dict[str, tuple[int, int, int]]:
        """Return for each function how often it ran, the sum of its times and the longest, ns."""
        spans = self.ran["end"] - self.ran["begin"]
        rows: dict[str, tuple[int, int, int]] = {}
        for one in np.unique(self.ran["function"]).tolist():  # several may have the same name
            mine = spans[self.ran["function"] == one]
            name = self.function_name(one)
            count, total, most = rows.get(name, (0, 0, 0))
            rows[name] = count + len(mine), total + int(mine.sum()), max(most, int(mine.max()))
        return dict(sorted(rows.items(), key=lambda row: -row[1][1]))

    def busy(self) -> dict[str, float]:
        """Return for each worker the share of the trace during which it ran tasks."""
        whole = max(1, self.end - self.start)
        spans = self.ran["end"] - self.ran["begin"]
        sums = np.bincount(self.ran["worker"], spans, minlength=self.worker_count)
        return {self.worker_name(i): float(sums[i]) / whole for i in self.rows if i >= 0}

    def reasons(self) -> dict[str, int]:
        """Return for what tasks waited before they began, and how long in all, ns."""
        rows = self.tasks[(self.tasks["begun"] > 0) & (self.tasks["submitted"] > 0)]
        ready = np.clip(rows["ready"], rows["submitted"], rows["begun"])
        sent = np.clip(rows["sent"], ready, rows["begun"])
        return {
            "for other tasks": int((ready - rows["submitted"]).sum()),
            "for a free worker": int((sent - ready).sum()),
            "for the worker to begin": int((rows["begun"] - sent).sum()),
        }

    def orch_waits(self) -> dict[str, int]:
        """Return for what the Orch thread waited, and how long in all, ns."""
        mine = self.waits[self.waits["lane"] == ORCH]
        spans = mine["end"] - mine["begin"]
        return {
            name: int(spans[mine["what"] == WAITED + goal].sum()) for goal, name in GOALS.items()
        }

    # ------------------------------------------------------------ the critical path
    @cached_property
    def critical_path(self) -> list[int]:
        """The numbers of the tasks of the chain of dependencies that took longest, the first one first.

        In a whole trace each task that was a run elsewhere is followed by the critical path of that run.
        """
        if not self.parts:
            return critical_path(self.tasks, self.edges)

        def unfold(numbers: list[int]) -> Iterator[int]:
            for number in numbers:
                yield number
                for run, *_ in self.runs_within.get(number, ()):
                    yield from unfold(self._path_of_run(run))

        return list(unfold(self.parts[0].trace.critical_path))

    def _path_of_run(self, run: int) -> list[int]:
        low = self.first_of_run(run) - 1
        high = low + int(self._tasks_of_run[run])
        consumer, producer = self.edges["consumer"], self.edges["producer"]
        owed = self.edges[(consumer > low) & (consumer <= high) & (producer > low)]
        owed["consumer"] -= low
        owed["producer"] -= low
        return [one + low for one in critical_path(self.tasks[low:high], owed)]


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


def _last_before(times: Array, known: Array, values: Array) -> Array:
    """Return for each of some times the value that was known last; 0 if none was."""
    order = np.argsort(known, kind="stable")
    at = np.searchsorted(known[order], times, "right")
    found: Array = np.append(0, values[order])[at]
    return found


def _short(name: str) -> str:
    """Return a worker's name without where it is."""
    return " ".join(name.split()[:2])


def _all(what: str, count: int) -> str:
    """Say which runs or tasks there are, by their numbers from 0 on."""
    return (f"no {what}s", f"only {what} 0")[count] if count < 2 else f"{what}s 0 to {count - 1}"


# ---------------------------------------------------------------- one task
class Dependency(NamedTuple):
    """Why a task had to wait for another."""

    task: int
    """The number of that one."""
    kind: str
    """``data``: it reads what that one writes; ``order``; ``future``; ``memory``."""
    tensor: int
    """Index of the tensor among the arguments, -1 if the edge is owed to no single one."""
    tag: str
    """How the task uses that tensor."""
    producer_tag: str
    """How the other one uses it; "" if that is not known."""
    address: int

    def __str__(self) -> str:
        if self.kind == "future":
            return "its value is an argument"
        if self.tensor < 0:
            return self.kind
        tags = f"{self.tag} ← {self.producer_tag}" if self.producer_tag else self.tag
        return f"tensor {self.tensor} at {self.address:#x}, {tags}"


class Argument(NamedTuple):
    """A tensor of a task."""

    position: int
    tag: str
    address: int
    nbytes: int


class TracedTask:
    """One task, with its times in ns of the trace's clock; 0 where a time is not known."""

    def __init__(self, trace: Timeline, number: int) -> None:
        self._trace = trace
        self.number = number
        """Its number in the trace, from 1 on."""
        row = trace.tasks[number - 1]
        self.run = int(row["run"])
        self.id = number - trace.first_of_run(self.run)
        """Its id in its run, as messages have it."""
        self.function = trace.function_name(int(row["function"]))
        self.line = trace.line_name(int(row["line"]))
        self.worker = int(row["worker"])
        self.outcome = OUTCOMES[row["outcome"]]
        self.is_buffer = bool(row["buffer"])
        self.sent_ahead = bool(row["ahead"])
        self.submitted, self.ready, self.sent = (int(row[name]) for name in TIMES[:3])
        self.begun, self.ended = int(row["begun"]), int(row["ended"])
        self.collected, self.freed = int(row["collected"]), int(row["freed"])

    @property
    def name(self) -> str:
        """Return what it is called in texts."""
        what = "buffer" if self.is_buffer else self.function
        return f"task {self.id} ({what})"

    @property
    def arguments(self) -> list[Argument]:
        """Its tensors."""
        return [
            Argument(int(one["index"]), TAGS[one["tag"]], int(one["address"]), int(one["nbytes"]))
            for one in self._trace.rows_with("arguments", "task", self.number)
        ]

    @property
    def dependencies(self) -> list[Dependency]:
        """The tasks that it depends on, in the order in which they were found."""
        edges = self._trace.rows_with("edges", "consumer", self.number)
        return [self._dependency(one) for one in edges]

    @property
    def consumers(self) -> list[int]:
        """The numbers of the tasks that depend on it."""
        found = self._trace.rows_with("edges", "producer", self.number)
        return sorted(set(found["consumer"].tolist()))

    def _dependency(self, edge: np.void) -> Dependency:
        producer, address = int(edge["producer"]), int(edge["address"])
        tensor = -1 if edge["tensor"] == L.NO_TENSOR else int(edge["tensor"])
        kind, producer_tag = KINDS[edge["kind"]], ""
        for one in self._trace.rows_with("arguments", "task", producer):
            low = int(one["address"])
            if view := self._trace.about.get("layouts", {}).get(str(one["layout"])):
                item, shape, strides = view
                low -= span_of((np.dtype(f"V{item}"), tuple(shape), tuple(strides)))[0]
            fits = kind != "data" or TAGS[one["tag"]] in WRITING
            if fits and low <= address < low + max(1, one["nbytes"]):
                producer_tag = TAGS[one["tag"]]
        tag = "" if tensor < 0 else TAGS[edge["tag"]]
        return Dependency(producer, kind, tensor, tag, producer_tag, address)

    # ------------------------------------------------------------ the story
    def why(self) -> str:
        """Tell what the task waited for, from its submission until its memory was let go."""
        trace = self._trace
        title = self.name
        if self.run >= 0 and (above := int(trace.within[self.run])):
            title += f", in {trace.task(above).name} at {trace.side(self.worker)}"
        lines = [title]
        for time, text in self._story():
            lines.append(f"  {trace.relative(time) if time >= 0 else '':13}  {text}")
        return "\n".join(lines)

    def _story(self) -> Iterator[tuple[int, str]]:
        """Yield what happened, and when; -1 where the text says how long."""
        trace = self._trace
        if self.submitted:
            yield self.submitted, f"submitted at {self.line}" if self.line else "submitted"
        elif not self.begun:
            yield -1, "nothing else is known: notes were dropped, or the trace began later"
            return
        worker = trace.worker_name(self.worker)
        yield from self._waits()
        if self.sent_ahead:
            yield self.sent, f"sent ahead to {worker}, to begin there"
        elif self.ready and not self.is_buffer:
            yield self.ready, "ready"
            if self.sent - self.ready > QUICK_NS:
                yield -1, f"waited {span(self.sent - self.ready)} for a worker"
            if self.sent:
                yield self.sent, f"sent to {worker}"
        if self.is_buffer:
            yield -1, "a buffer: its memory is there at once"
        elif self.begun:
            yield from self._ran_on(worker)
        elif self.outcome == FAILED:
            yield self.collected, "failed without being started"
        elif self.sent:
            yield self.sent, f"sent to {worker}, not ended"
        if self.freed:
            yield self.freed, "let go: slot and memory are free"

    def _waits(self) -> Iterator[tuple[int, str]]:
        """Say what it waited for before it was ready."""
        seen = set()
        for one in self.dependencies:
            if one.kind == "memory" or one.task in seen:
                continue
            seen.add(one.task)
            other = self._trace.task(one.task)
            until = "which was over"
            if other.is_buffer:
                until = "a buffer, which was there"
            elif not other.collected:
                until = "which has not ended"
            elif other.collected > self.submitted:
                until = f"until {self._trace.relative(other.collected)}"
            yield -1, f"waited for {other.name} ({one}), {until}"

    def _ran_on(self, worker: str) -> Iterator[tuple[int, str]]:
        start = max(self.sent, self.ready) if self.sent else 0
        if start and self.begun - start > QUICK_NS:
            was = self._trace.state_before(self.worker, start, self.begun)
            yield -1, f"waited {span(self.begun - start)} until the worker took it{was}"
        yield self.begun, f"began on {worker}"
        for time, text in self.journey():
            yield time, f"  {text}"
        if self.ended:
            how = "failed" if self.outcome == FAILED else "ended"
            yield self.ended, f"{how} after {span(self.ended - self.begun)}"
        if self.collected and self.collected - self.ended > QUICK_NS:
            yield self.collected, f"seen to have ended, {span(self.collected - self.ended)} later"

    def journey(self) -> list[tuple[int, str]]:
        """Return when frames about it were sent and received, when tensors moved for it, and what for."""
        trace, found = self._trace.whole, []
        if self.worker < 0 or not self.begun:
            return []
        frames = trace.rows_with("frames", "task", self.number)
        for row in frames:
            kind = ANSWERS.get(int(row["type"]), "TASK")
            place = trace.side(int(row["lane"]))
            where = f" at {place}" if place else ""
            how = "sent" if row["sent"] else "received"
            found.append((int(row["time"]), f"{kind} {how}{where}, {row['nbytes']} bytes"))
        first, end = np.searchsorted(trace.moves["begin"], [self.begun, self.ended])
        moves = trace.moves[first:end]
        lanes = [self.worker, *frames["lane"].tolist()]  # its link's, and those at its endpoint
        for row in moves[np.isin(moves["lane"], lanes)]:
            one = trace.transfer(row)
            found.append((one.begin, f"{one} in {span(one.end - one.begin)}"))
        for _, begin, end, tasks in trace.runs_within.get(self.number, ()):
            found.append((begin, f"a run of {tasks} task{'s' * (tasks != 1)} begins there"))
            if end:
                found.append((end, "the run has ended there"))
        return sorted(found)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.outcome}, {span(max(0, self.ended - self.begun))}>"


def span(ns: float) -> str:
    """Return a time span for people."""
    if ns < 1e3:
        return f"{ns:.0f} ns"
    if ns < 1e6:
        return f"{ns / 1e3:.1f} µs"
    if ns < 1e9:
        return f"{ns / 1e6:.2f} ms"
    return f"{ns / 1e9:.2f} s"
