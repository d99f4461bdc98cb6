"""Reading a trace: its tables, and what they say of a task, a worker, or all of them.

Rule     SEE-EXPORT-2; SEE-PAGE-1; SEE-RACE-1 to -4; SEE-READ-1 to -4; SEE-REMOTE-2 to -4, -7
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np

from ..engine.view.layouts import loops_of
from ..jit import layout as L
from ..model.wire import Layout, span_of
from ..system.types import Array
from . import exports, page
from .races import Race, races
from .tables import GOALS, LANES, ORCH, TIMES, WAITED, TraceFile, tables_of
from .tasks import TracedTask
from .timeline import (
    Child,
    Clock,
    Part,
    Transfer,
    children_of,
    critical_path,
    parts_of,
    put_together,
    short,
)

Form = tuple["Layout | None", int, bool]
"""See `Trace.form`."""


class Groups:
    """The rows of a table that have the same number in a column, in their order."""

    def __init__(self, rows: Array, column: str) -> None:
        self._rows = rows[np.argsort(rows[column], kind="stable")]
        self._keys = self._rows[column].astype(np.int64)

    def __call__(self, number: int) -> Array:
        """Return the rows of a number."""
        first, end = np.searchsorted(self._keys, (number, number + 1))
        rows: Array = self._rows[first:end]
        return rows


class Trace:
    """What a trace file says, as tables.

    Attributes
    ----------
    tasks : numpy.ndarray
        A row for each task, of number 1 first; times in ns of the monotonic clock, 0 where unknown.
    edges, arguments : numpy.ndarray
        Who depends on whom, through which tensor; the tensors of tasks. Sorted by consumer and task.
    ran, waits, held, scopes, runs : numpy.ndarray
        What workers ran; sleeps and waits of threads; bytes of rings; scopes; runs.
    wrote : numpy.ndarray
        With ``check=True``: tensors tagged INPUT that changed while their tasks ran.
    frames, moves : numpy.ndarray
        Frames of endpoints, sent and received; tensors that were moved, see `transfers`.
    parts : tuple
        Of a `whole` trace: those it was made of.
    about : dict
        What the program told of itself and its Worker.
    dropped : int
        Notes that had no room in their journals: so many may be missing anywhere.
    submits_dropped : int
        Those of them about what was submitted: tensors, tags and edges may be missing.
    is_whole : bool
        Whether the trace was ended, and not cut off when the program was killed.
    """

    TIMES = TIMES
    tasks: Array
    ran: Array
    edges: Array
    arguments: Array
    waits: Array
    held: Array
    scopes: Array
    runs: Array
    wrote: Array
    frames: Array
    moves: Array

    def __init__(self, file: TraceFile, clocks: tuple[Clock, ...] = ()) -> None:
        self.path, self.about, self.is_whole = file.path, file.about, file.is_whole
        self.dropped = sum(file.dropped.values())
        self.submits_dropped = file.dropped.get(L.JOURNAL_OF_ORCH, 0)
        self.clocks = clocks
        """What makes its times those of the uppermost Worker, in this order."""
        self.parts: tuple[Part, ...] = ()
        journals = (journal - L.JOURNALS_OF_WORKERS + 1 for journal in file.journals)
        self.worker_count = max(len(self.about.get("workers", [])), 0, *journals)
        for name, rows in tables_of(file).items():
            for column in {*TIMES, "begin", "end", "time"} & set(rows.dtype.names or ()):
                for clock in clocks:
                    rows[column] = np.where(rows[column] > 0, clock.to_parent(rows[column]), 0)
            setattr(self, name, rows)

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Trace:
        """Read a trace; see `whole` for those of the Workers below.

        Raises
        ------
        TraceFileError
            It is none, or of another version.
        TypeError
            `path` is no path.
        """
        return Trace(TraceFile(path))

    # ------------------------------------------------------------ those below
    @cached_property
    def children(self) -> list[Child]:
        """The traces of the Workers below this one, from the files beside this one, in its time."""
        return children_of(self)

    @cached_property
    def whole(self) -> Trace:
        """One trace of this Worker and all below it, with all rows, in this one's time.

        Tasks of this Worker have their numbers in it; those of others follow.
        """
        return put_together(self) if any(one.trace for one in self.children) else self

    def problems(self) -> list[str]:
        """Return what is missing of the Workers below: of which, what and why."""
        return [
            f"{part.name} › {one.name}: {one.problem}".removeprefix(" › ")
            for part in self.whole.parts or parts_of(self)
            for one in part.trace.children
            if one.problem
        ]

    @property
    def error_ns(self) -> int:
        """By how much its times may be wrong in the time of the Worker above."""
        return sum(clock.error_ns for clock in self.clocks)

    @cached_property
    def within(self) -> Array:
        """For each run the number of the task that it was for a Worker above; 0 if none is known."""
        return np.zeros(len(self.runs), np.int64)

    @cached_property
    def task_of_exchange(self) -> dict[int, int]:
        """The task of this Worker's that frames are about, by the number that they share."""
        known = self.frames[self.frames["task"] > 0]
        return dict(zip(known["exchange"].tolist(), known["task"].tolist(), strict=True))

    @cached_property
    def _exchanges_of_task(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for exchange, task in self.task_of_exchange.items():
            found.setdefault(task, []).append(exchange)
        return found

    @cached_property
    def _frames_by_exchange(self) -> Groups:
        return Groups(self.frames[np.argsort(self.frames["time"], kind="stable")], "exchange")

    def frames_about(self, number: int) -> Array:
        """Return the rows of the frames about a task, on both sides."""
        found = [self._frames_by_exchange(one) for one in self._exchanges_of_task.get(number, ())]
        return np.concatenate([self.frames[:0], *found])

    def frame_pairs(self) -> list[tuple[np.void, np.void]]:
        """Return the frames that both sides have noted: the rows of sender and receiver."""
        rows = self.frames[np.lexsort((self.frames["time"], self.frames["exchange"]))]
        ways = rows["sent"] == (rows["lane"] >= 0)  # from a link to a session, or back
        keys = list(zip(rows["exchange"].tolist(), ways.tolist(), strict=True))
        sent = {key: row for key, row in zip(keys, rows, strict=True) if row["sent"]}
        return [
            (sent[key], row)
            for key, row in zip(keys, rows, strict=True)
            if not row["sent"] and key in sent
        ]

    @cached_property
    def _moves_in_order(self) -> Array:
        rows: Array = self.moves[np.argsort(self.moves["begin"], kind="stable")]
        return rows

    @cached_property
    def _tasks_of_run(self) -> Array:
        """How many tasks each run has."""
        run = self.tasks["run"][self.tasks["run"] >= 0]
        counts: Array = np.bincount(run, minlength=len(self.runs))
        return counts

    @cached_property
    def runs_within(self) -> dict[int, list[tuple[int, int, int, int]]]:
        """The runs that each task was elsewhere: which, begin, end and how many tasks it had."""
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for run in np.flatnonzero(self.within).tolist():
            begin, end = self.runs[["begin", "end"]][run].item()
            row = run, begin, end, int(self._tasks_of_run[run])
            found.setdefault(int(self.within[run]), []).append(row)
        return found

    def moves_for(self, task: TracedTask) -> Array:
        """Return the rows of the tensors that were moved for a task, by its link or at its endpoint."""
        rows = self._moves_in_order
        first, end = np.searchsorted(rows["begin"], [task.begun, task.ended])
        lanes = {task.worker, *self.frames_about(task.number)["lane"].tolist()}
        mine: Array = rows[first:end][np.isin(rows["lane"][first:end], list(lanes))]
        return mine

    def transfers(self) -> list[Transfer]:
        """Return the tensors that links and sessions have moved: from, to, bytes, begin and end."""
        return [self.transfer(row) for row in self.moves]

    def transfer(self, row: np.void) -> Transfer:
        """Return a row of `moves` by names."""
        here = self.side(int(row["lane"]))
        peer = self._peers.get(int(row["peer"]), "another session")
        ends = (here, peer) if row["stored"] else (peer, here)
        return Transfer(*ends, int(row["nbytes"]), int(row["begin"]), int(row["end"]))

    @property
    def _parts(self) -> tuple[Part, ...]:
        """The parts; of a trace that is not put together, itself."""
        return self.parts or (Part("", self),)

    @cached_property
    def _peers(self) -> dict[int, str]:
        return {
            int(peer): f"{part.name} › {short(part.trace.worker_name(worker))}".removeprefix(" › ")
            for part in self._parts
            for peer, worker in part.trace.about.get("movers", {}).items()
        }

    def side(self, lane: int) -> str:
        """Return whose memory a lane moves: a link's is that of its parent."""
        return self.parts[self.part_of(lane)].name if self.parts else ""

    def part_of(self, lane: int) -> int:
        """Return which of the parts a lane belongs to."""
        if lane < 0:
            return (-lane - 1) // len(LANES)
        firsts = [part.workers for part in self._parts]
        return int(np.searchsorted(firsts, lane, "right")) - 1

    @cached_property
    def rows(self) -> list[int]:
        """The lanes of the timeline from top to bottom: threads and workers, without vacant places."""
        vacant = set(self.about.get("vacant", []))
        found = []
        for part in self._parts:
            workers = range(part.workers, part.workers + part.trace.worker_count)
            found += [part.lane(lane) for lane in LANES]
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

    def first_of_run(self, run: int) -> int:
        """Return the number of the first task of a run; 1 for tasks of no known run."""
        return int(self.runs["first"][run]) if 0 <= run < len(self.runs) else 1

    @cached_property
    def arguments_of(self) -> Groups:
        """The rows of the tensors of each task."""
        return Groups(self.arguments, "task")

    @cached_property
    def edges_to(self) -> Groups:
        """The rows of the edges to each task."""
        return Groups(self.edges, "consumer")

    @cached_property
    def edges_from(self) -> Groups:
        """The rows of the edges from each task."""
        return Groups(self.edges, "producer")

    @cached_property
    def _forms(self) -> dict[int, Form]:
        """What is known of the layouts of views."""
        found: dict[int, Form] = {}
        for number, (item, shape, strides) in self.about.get("layouts", {}).items():
            made: Layout = np.dtype(f"V{item}"), tuple(shape), tuple(strides)
            below, extent = span_of(made)
            has_gaps = loops_of(made[1], made[2], made[0].itemsize) != (extent, [])
            found[int(number)] = (made if has_gaps else None), below, True
        return found

    def form(self, layout: int) -> Form:
        """Return a layout, None if it has no gaps; the bytes below its first element; if it is known."""
        return self._forms.get(layout, (None, 0, False))

    def low_of(self, argument: np.void) -> int:
        """Return the lowest address of a tensor; only in views its first element may be above."""
        return int(argument["address"]) - self.form(int(argument["layout"]))[1]

    # ------------------------------------------------------------ names and times
    def function_name(self, function: int) -> str:
        """Return the name of a function."""
        name = self.about.get("functions", {}).get(str(function))
        return name if name is not None else f"function {function:#x}"

    def line_name(self, line: int) -> str:
        """Return a line as ``file:number``; "" if it is not known."""
        lines = self.about.get("lines", [])
        return f"{lines[line - 1][0]}:{lines[line - 1][1]}" if 1 <= line <= len(lines) else ""

    def worker_name(self, worker: int) -> str:
        """Return the name of a worker, or of a lane."""
        if worker < 0:
            which, lane = divmod(-worker - 1, len(LANES))
            name = LANES[-lane - 1]
            return f"{self.parts[which].name} › {name}" if which else name
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
        lasts = [
            self.runs["end"],
            self.ran["end"],
            self.tasks["submitted"],
            self.tasks["collected"],
        ]
        return max((int(one.max()) for one in lasts if len(one)), default=self.start)

    def relative(self, time: int) -> str:
        """Return a time since the start, for people."""
        return f"{(time - self.start) / 1e6:10.4f} ms" if time else "         ?   "

    def state_before(self, worker: int, since: int, until: int) -> str:
        """Say why a worker took a task late: it slept, or ran another."""
        slept = self.waits[(self.waits["lane"] == worker) & (self.waits["what"] == L.NOTED_PARKED)]
        if ((slept["begin"] < since) & (slept["end"] > since) & (slept["end"] <= until)).any():
            return ": it slept and had to wake up"
        mine = self._ran_by(worker)
        i = int(np.searchsorted(mine["begin"], until)) - 1
        if i >= 0 and mine["end"][i] > since:
            return f": it ran {self.task(int(mine['task'][i])).name}"
        return ""

    @cached_property
    def _ran_by(self) -> Groups:
        return Groups(self.ran[np.argsort(self.ran["begin"], kind="stable")], "worker")

    # ------------------------------------------------------------ sums
    def functions(self) -> dict[str, tuple[int, int, int]]:
        """Return for each function how often it ran, the sum of its times and the longest, ns."""
        found, which = np.unique(self.ran["function"], return_inverse=True)
        spans = self.ran["end"] - self.ran["begin"]
        counts, sums = np.bincount(which), np.bincount(which, spans)
        longest = np.zeros(len(found), np.int64)
        np.maximum.at(longest, which, spans)
        rows: dict[str, tuple[int, int, int]] = {}
        for i, one in enumerate(found):  # several functions may have the same name
            name = self.function_name(int(one))
            count, total, most = rows.get(name, (0, 0, 0))
            rows[name] = count + int(counts[i]), total + int(sums[i]), max(most, int(longest[i]))
        return dict(sorted(rows.items(), key=lambda row: -row[1][1]))

    def busy(self) -> dict[str, float]:
        """Return for each worker the share of the trace during which it ran tasks."""
        span = max(1, self.end - self.start)
        spans = self.ran["end"] - self.ran["begin"]
        sums = np.bincount(self.ran["worker"], spans, minlength=self.worker_count)
        return {self.worker_name(i): float(sums[i]) / span for i in self.rows if i >= 0}

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

    @cached_property
    def critical_path(self) -> list[int]:
        """The numbers of the tasks of the chain of dependencies that took longest, the first one first.

        In a whole trace each task that was a run elsewhere is followed by the critical path of that run.
        """
        return critical_path(self.tasks, self.edges)

    def races(self) -> list[Race]:
        """Return the tasks that could have raced for memory, and those that used memory given back.

        Of two tasks of a run that use the same bytes, one of them writing, one has to wait for the other;
        when they happened to run does not matter. ``Worker(check=True)`` refuses the same. Of those that
        the same lines have submitted there is one.

        Raises
        ------
        ValueError
            The trace does not have all tensors of its tasks.
        """
        return races(self)

    def __repr__(self) -> str:
        return f"<Trace of {len(self.tasks)} tasks on {self.worker_count} workers: {self.path}>"

    # ------------------------------------------------------------ for people and other programs
    def summary(self) -> str:
        """Return a summary for a terminal."""
        return exports.summary(self)

    def table(self) -> dict[str, Any]:
        """Return the columns of a table of all tasks: names as strings, times in ns since the start.

        ``pandas.DataFrame(trace.table())`` makes a data frame of it. An unknown time is -1.
        """
        return exports.table(self.whole)

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Write a page of HTML that needs no other file."""
        page.write_page(self.whole, path)

    def write_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write JSON for Perfetto, and for the viewer of Chrome."""
        exports.write_chrome(self.whole, path)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the columns of `table`."""
        exports.write_csv(self.whole, path)

    def write_dot(self, path: str | os.PathLike[str]) -> None:
        """Write the graph for graphviz, with what each edge is owed to; at most 5000 tasks."""
        exports.write_dot(self, path)


def _all(what: str, count: int) -> str:
    """Say which runs or tasks there are, by their numbers from 0 on."""
    return (f"no {what}s", f"only {what} 0")[count] if count < 2 else f"{what}s 0 to {count - 1}"
