"""Reading a trace: what ran when and why, and what to make of it for people and other programs.

Rule     SEE-EXPORT-1, SEE-PAGE-1, SEE-RACE-1, SEE-RACE-3
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..jit import layout as L
from . import exports
from .graphs import MOST_DRAWN, draw
from .history import Race, races
from .tables import TIMES, TraceFile
from .timeline import OUTCOMES, TAGS, Timeline


class Trace(Timeline):
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

    def summary(self) -> str:
        """Return a summary for a terminal."""
        return "\n".join(exports.lines(self))

    def table(self) -> dict[str, Any]:
        """Return the columns of a table of all tasks: names as strings, times in ns since the start.

        ``pandas.DataFrame(trace.table())`` makes a data frame of it. An unknown time is -1.
        """
        whole = self.whole
        tasks = whole.tasks
        functions, which = np.unique(tasks["function"], return_inverse=True)
        names = np.array([whole.function_name(int(one)) for one in functions] or [""], object)
        lines = np.array([whole.line_name(i) for i in range(int(tasks["line"].max(initial=0)) + 1)])
        numbers = np.arange(1, len(tasks) + 1)
        times = {name: np.where(tasks[name] > 0, tasks[name] - whole.start, -1) for name in TIMES}
        workers = tasks["worker"].tolist()
        return {
            "number": numbers,
            "run": tasks["run"],
            "id": numbers - np.append(whole.runs["first"], 1)[tasks["run"]],
            "function": np.where(tasks["buffer"], "(buffer)", names[which]).tolist(),
            "line": lines[tasks["line"]].tolist(),
            "worker": tasks["worker"],
            "on": [whole.worker_name(one) if one >= 0 else "" for one in workers],
            "outcome": np.array(OUTCOMES)[tasks["outcome"]].tolist(),
            **times,
        }

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Write a page of HTML that needs no other file."""
        Path(path).write_text(exports.page(self.whole), encoding="utf-8")

    def write_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write JSON for Perfetto, and for the viewer of Chrome."""
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
            for i, event in enumerate(exports.chrome_events(self.whole)):
                file.write((",\n" if i else "") + json.dumps(event))
            file.write("\n]}\n")

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the columns of `table`."""
        columns = self.table()
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([[*columns], *zip(*columns.values(), strict=True)])

    def write_dot(self, path: str | os.PathLike[str]) -> None:
        """Write the graph for graphviz, with what each edge is owed to; at most 5000 tasks."""
        most = min(len(self.tasks), MOST_DRAWN)
        critical = set(self.critical_path)
        tasks = [self.task(number) for number in range(1, most + 1)]
        nodes = [(one.number, one.name, one.is_buffer, one.number in critical) for one in tasks]
        arrows = []
        for edge in self.edges[self.edges["consumer"] <= most]:
            label = "value" if edge["kind"] == L.OWED_FUTURE else ""
            if edge["tensor"] != L.NO_TENSOR:
                label = f"{TAGS[edge['tag']]} {edge['tensor']}"
            ends = int(edge["producer"]), int(edge["consumer"])
            arrows.append((*ends, label, bool(edge["kind"] != L.OWED_MEMORY)))
        draw(path, nodes, arrows, len(self.tasks))

    def __repr__(self) -> str:
        return f"<Trace of {len(self.tasks)} tasks on {self.worker_count} workers: {self.path}>"


# ---------------------------------------------------------------- the command
WRITERS = {
    "chrome": (Trace.write_chrome, ".json", "JSON for Perfetto and Chrome's trace viewer"),
    "csv": (Trace.write_csv, ".csv", "a table of tasks"),
    "dot": (Trace.write_dot, ".dot", "the graph, for graphviz"),
}


def main(arguments: Sequence[str]) -> int:
    """Print a summary and write FILE.html, or what the options say; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m simpler_ref trace",
        description="Show a trace that Worker(trace=FILE), Worker.trace or SIMPLER_REF_TRACE has "
        "written: print a summary, and write FILE.html, a page for any browser.",
    )
    parser.add_argument("file", help="the trace")
    for name, (_, ending, what) in WRITERS.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"write FILE{ending}: {what}")
    parser.add_argument("--why", type=int, metavar="ID", help="tell the story of a task")
    parser.add_argument("--run", type=int, metavar="N", help="the run of that task, from 0 on")
    parser.add_argument(
        "--check", action="store_true", help="look for tasks that could race; status 1 if there are"
    )
    given = parser.parse_args(arguments)
    if given.run is not None and given.why is None:
        parser.error("--run is the run of the task of --why: give both")
    try:
        trace = Trace.open(given.file)
        if given.why is not None:
            print(trace.find(given.why, given.run or 0).why())
            return 0
        if given.check:
            found = trace.races()
            print("\n".join(map(str, found)) or "no races")
            return int(bool(found))
        print(trace.summary())
        asked = [name for name in WRITERS if getattr(given, name)]
        for name in asked:
            write, ending, _ = WRITERS[name]
            write(trace, given.file + ending)
            print(f"written: {given.file}{ending}")
        if not asked:
            trace.write_page(given.file + ".html")
            print(f"written: {given.file}.html")
    except (OSError, ValueError, KeyError) as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        print(f"{parser.prog}: {text}", file=sys.stderr)
        return 1
    return 0
