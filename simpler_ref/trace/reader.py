"""A trace for people and other programs: `Trace`, its summary, page and other formats; the command.

The page is HTML that needs no network: its data are in it, compressed. `page.html` is the page without
data. Its script unpacks columns of numbers, each of which stands there as the differences of neighbours,
and draws only as many boxes as the screen has pixels.

Rule     SEE-EXPORT-1, SEE-PAGE-1, SEE-PAGE-4, SEE-REMOTE-2, SEE-REMOTE-4, SEE-REMOTE-7
"""

from __future__ import annotations

import argparse
import base64
import csv
import functools
import gzip
import html
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..jit import layout as L
from ..system.types import Array
from .graphs import MOST_DRAWN, draw
from .tables import SPANS, TIMES, TraceFile
from .timeline import OUTCOMES, TAGS, Timeline, span

MOST_TASKS = 2_000_000
"""Tasks that a page shows: browsers take about 100 bytes of memory for each."""
MOST_POINTS = 200_000
"""Points of the curves of memory."""
MOST_MARKS = 200_000
"""Frames and transfers."""
MOST_JOURNEYS = 5_000
"""Tasks whose way to an endpoint and back is told."""
UNKNOWN = 7
"""In place of a tag."""
MOST_ROWS = 12
"""Functions, workers and tasks that a summary names."""
FRAMES = {
    1: "HELLO",
    2: "TASK",
    3: "CONTROL",
    4: "CONTROL_REPLY",
    5: "COMPLETION",
    7: "SHUTDOWN",
    64: "TASK",
    65: "COUNTERS",
    68: "DONE",
    69: "VALUE_TAKEN",
    70: "TRACE",
}
"""Names of frames, by their types."""


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
    frames, moves : numpy.ndarray
        Frames of endpoints, sent and received; tensors that were moved, see `transfers`.
    parts : tuple
        Of a `whole` trace: those it was made of.
    about : dict
        What the program told of itself and its Worker.
    dropped : int
        Notes that had no room in their journals: so many may be missing anywhere.
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

    def summary(self) -> str:
        """Return a summary for a terminal."""
        return "\n".join(summary_lines(self))

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
        Path(path).write_text(page(self.whole), encoding="utf-8")

    def write_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write JSON for Perfetto, and for the viewer of Chrome."""
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
            for i, event in enumerate(chrome_events(self.whole)):
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


# ---------------------------------------------------------------- frames and transfers
def marks(trace: Timeline) -> Iterator[tuple[int, int, int, str]]:
    """Yield lane, begin, end and text of each frame, which begins when it ends, and transfer."""
    for row in trace.frames:
        name = FRAMES.get(int(row["type"]), f"frame {row['type']}")
        text = f"{name} {'sent' if row['sent'] else 'received'}, {row['nbytes']} bytes"
        yield int(row["lane"]), int(row["time"]), int(row["time"]), text
    for row in trace.moves:
        one = trace.transfer(row)
        yield int(row["lane"]), one.begin, one.end, str(one)


# ---------------------------------------------------------------- Chrome
def chrome_events(trace: Timeline) -> Iterator[dict[str, Any]]:
    """Yield what is drawn; each Worker is a process, each lane a thread of it."""
    for which, part in enumerate(trace.parts):
        worker = {"name": part.name or "this machine"}
        yield {"ph": "M", "name": "process_name", "pid": which + 1, "args": worker}

    @functools.cache
    def place(lane: int) -> dict[str, int]:
        tid = lane + 10 if lane >= 0 else 9 - (-lane - 1) % 2
        return {"pid": trace.part_of(lane) + 1, "tid": tid}

    def at(lane: int, time: int) -> dict[str, Any]:
        return place(lane) | {"ts": (time - trace.start) / 1000}

    def box(name: str, lane: int, begin: int, end: int) -> dict[str, Any]:
        return {"ph": "X", "name": name, "dur": (end - begin) / 1000} | at(lane, begin)

    def arrow(kind: str, number: int, *ends: dict[str, Any]) -> Iterator[dict[str, Any]]:
        what: dict[str, Any] = {"cat": kind, "name": kind, "id": number}
        yield what | {"ph": "s"} | ends[0]
        yield what | {"ph": "f", "bp": "e"} | ends[1]

    for lane in trace.rows:
        thread = {"name": trace.worker_name(lane)}
        yield {"ph": "M", "name": "thread_name", **place(lane), "args": thread}
    for task, worker, _, function, begin, end in trace.ran.tolist():
        name = trace.function_name(function)
        yield box(name, worker, begin, end) | {"args": {"task": task}}
    for lane, what, begin, end in trace.waits.tolist():
        yield box(SPANS[what], lane, begin, end)
    for lane, begin, end, text in marks(trace):
        if end > begin:
            yield box(text, lane, begin, end)
        else:
            yield {"ph": "i", "s": "t", "name": text} | at(lane, begin)
    edges = trace.edges[trace.edges["kind"] != L.OWED_MEMORY]
    before, after = trace.tasks[edges["producer"] - 1], trace.tasks[edges["consumer"] - 1]
    ran = (before["worker"] >= 0) & (before["begun"] > 0) & (after["begun"] > 0)
    starts = before[["worker", "ended"]][ran].tolist()
    ends = after[["worker", "begun"]][ran].tolist()
    for i, (one, other), end in zip(np.flatnonzero(ran).tolist(), starts, ends, strict=True):
        yield from arrow("edge", i, at(one, other - 1), at(*end))
    for i, pair in enumerate(trace.frame_pairs(), len(trace.edges)):
        yield from arrow("frame", i, *(at(int(one["lane"]), int(one["time"])) for one in pair))
    for time, ring, nbytes in trace.held.tolist():
        when = {"pid": 1, "ts": (time - trace.start) / 1000}
        yield {"ph": "C", "name": f"ring {ring}", "args": {"bytes": nbytes}} | when


# ---------------------------------------------------------------- a summary
def summary_lines(trace: Timeline) -> Iterator[str]:
    """Yield what a trace says, in some twenty lines."""
    tasks = trace.tasks
    failed, buffers = int((tasks["outcome"] == 2).sum()), int(tasks["buffer"].sum())
    yield f"{trace.path}: {trace.about.get('program', '')}, process {trace.about.get('pid')}"
    yield (
        f"{len(tasks) - buffers} tasks ({failed} failed), {buffers} buffers, "
        f"{len(trace.edges)} edges, {len(trace.runs)} runs in {span(trace.end - trace.start)}"
    )
    if trace.dropped:
        yield f"{trace.dropped} notes were dropped: journals were full, so something is missing here"
    if not trace.is_whole:
        yield "the file was cut off: the program did not end the trace"
    yield ""
    yield f"{'function':<40} {'tasks':>9} {'in all':>10} {'mean':>10} {'longest':>10}"
    yield from _functions(trace, 40)
    if (more := len(trace.functions()) - MOST_ROWS) > 0:
        yield f"… and {more} more"
    yield ""
    busy = list(trace.busy().items())
    for name, share in busy[:MOST_ROWS]:
        yield f"{name:<40} busy {share:6.1%}"
    if len(busy) > MOST_ROWS:
        yield f"… and {len(busy) - MOST_ROWS} more workers"
    yield ""
    yield "tasks waited, summed over all tasks:"
    yield from (f"  {reason:<38} {span(total):>10}" for reason, total in trace.reasons().items())
    waits = {reason: total for reason, total in trace.orch_waits().items() if total}
    if waits:
        yield "the thread that submits waited:"
        yield from (f"  {reason:<38} {span(total):>10}" for reason, total in waits.items())
    yield from _path(trace)
    if len(trace.held):
        peaks = [
            f"ring {ring}: {int(trace.held['bytes'][trace.held['ring'] == ring].max())}"
            for ring in np.unique(trace.held["ring"]).tolist()
        ]
        yield f"most bytes held: {', '.join(peaks)}"
    yield from _below(trace)


def _functions(trace: Timeline, width: int) -> Iterator[str]:
    for name, (count, total, longest) in list(trace.functions().items())[:MOST_ROWS]:
        yield (
            f"{name[:width]:<{width}} {count:>9} {span(total):>10} {span(total / count):>10} "
            f"{span(longest):>10}"
        )


def _path(trace: Timeline) -> Iterator[str]:
    path = trace.critical_path
    if not path:
        return
    rows = trace.tasks[np.array(path) - 1]
    total = int(np.maximum(rows["ended"] - rows["begun"], 0)[rows["begun"] > 0].sum())
    yield ""
    yield (
        f"critical path: {len(path)} tasks that depend on each other took {span(total)}, "
        f"{total / max(1, trace.end - trace.start):.0%} of the time"
    )
    names, counts = np.unique(rows["function"], return_counts=True)
    most = sorted(zip(counts.tolist(), names.tolist(), strict=True), reverse=True)
    yield "  " + ", ".join(f"{count} × {trace.function_name(one)}" for count, one in most[:4])


def _below(trace: Timeline) -> Iterator[str]:
    """Say what is known of the Workers below, and what is missing."""
    for part in trace.whole.parts[1:]:
        one = part.trace
        took = span(int((one.ran["end"] - one.ran["begin"]).sum()))
        error = f"; times ± {span(one.error_ns)}" if one.error_ns else ""
        place = f"process {one.about.get('pid')} on {one.about.get('host')}"
        yield ""
        yield f"{part.name}, {place}: {len(one.runs)} runs, {len(one.ran)} tasks in {took}{error}"
        yield from ("  " + line for line in _functions(one, 38))
        if one.dropped:
            yield f"  {one.dropped} notes were dropped there"
    yield from trace.problems()
    if len(trace.frames):
        moves = trace.whole.moves
        yield (
            f"{len(trace.frames)} frames of {int(trace.frames['nbytes'].sum())} bytes; "
            f"{len(moves)} transfers of {int(moves['nbytes'].sum())} bytes"
        )


# ---------------------------------------------------------------- the page
def page(trace: Timeline) -> str:
    text = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    about, columns = _contents(trace)
    packed = base64.b64encode(gzip.compress(b"".join(columns), 3)).decode()
    text = text.replace("__TITLE__", html.escape(os.path.basename(trace.path)))
    own = trace.all_parts[0].trace
    text = text.replace("__SUMMARY__", html.escape("\n".join(summary_lines(own))))
    text = text.replace("__ABOUT__", json.dumps(about).replace("<", "\\u003c"))
    return text.replace("__COLUMNS__", packed)


def _contents(trace: Timeline) -> tuple[dict[str, Any], list[bytes]]:
    """Return what the script is told in JSON, and the columns as bytes."""
    own = trace.all_parts[0].trace
    shown = min(len(trace.tasks), MOST_TASKS)
    tasks, edges = trace.tasks[:shown], trace.edges[trace.edges["consumer"] <= shown]
    ran = trace.ran[trace.ran["task"] <= shown]
    ran = ran[np.lexsort((ran["begin"], ran["worker"]))]
    unit = max(1, -(-(trace.end - trace.start + 1) // ((1 << 32) - 2)))
    functions, which = np.unique(
        np.concatenate([tasks["function"], ran["function"]]), return_inverse=True
    )
    flags = tasks["outcome"] | tasks["buffer"] << 2 | tasks["ahead"] << 3
    waits = trace.waits[np.lexsort((trace.waits["begin"], trace.waits["lane"]))]
    marked, texts = _marks(trace)
    rows = [
        [name, *row, part.name]
        for part in trace.all_parts
        for name, row in part.trace.functions().items()
    ]
    lowest = min(trace.rows)
    held = trace.held[:: max(1, len(trace.held) // MOST_POINTS)]

    def times(values: Array) -> Array:
        """Return times as the page has them: units since the start, plus 1; 0 where unknown."""
        known: Array = np.maximum(values - trace.start, 0) // unit + 1
        return np.where(values > 0, known, 0)

    columns: dict[str, tuple[Array, str]] = {
        **{name: (times(tasks[name]), "u4") for name in TIMES},
        "function": (which[:shown], "u2" if len(functions) < 1 << 16 else "u4"),
        "line": (tasks["line"], "u4"),
        "worker": (tasks["worker"] + 1, "u2"),
        "flags": (flags, "u1"),
        "run": (tasks["run"] + 1, "u4"),
        "ranTask": (ran["task"], "u4"),
        "ranWorker": (ran["worker"], "u2"),
        "ranFunction": (which[shown:], "u2" if len(functions) < 1 << 16 else "u4"),
        "ranBegin": (times(ran["begin"]), "u4"),
        "ranEnd": (times(ran["end"]), "u4"),
        "consumer": (edges["consumer"], "u4"),
        "producer": (edges["producer"], "u4"),
        "tensor": (edges["tensor"], "u2"),
        "tags": (edges["tag"] | _producer_tags(trace, edges) << 3 | edges["kind"] << 6, "u1"),
        "addressLow": (edges["address"] & 0xFFFFFFFF, "u4"),
        "addressHigh": (edges["address"] >> 32, "u4"),
        "waitLane": (waits["lane"] - lowest, "u2"),
        "waitWhat": (waits["what"], "u2"),
        "waitBegin": (times(waits["begin"]), "u4"),
        "waitEnd": (times(waits["end"]), "u4"),
        "markLane": (marked[:, 0] - lowest, "u2"),
        "markBegin": (times(marked[:, 1]), "u4"),
        "markEnd": (times(marked[:, 2]), "u4"),
        "markText": (marked[:, 3], "u4"),
        "heldTime": (times(held["time"]), "u4"),
        "heldRing": (held["ring"], "u1"),
        "heldKilobytes": (held["bytes"] >> 10, "u4"),
        "critical": (np.array([one for one in trace.critical_path if one <= shown]), "u4"),
    }
    about = {
        "columns": [[name, len(values), kind] for name, (values, kind) in columns.items()],
        "unit": unit,
        "span": (trace.end - trace.start) // unit + 1,
        "tasks": len(trace.tasks),
        "own": len(own.tasks),
        "functions": [trace.function_name(int(one)) for one in functions],
        "lines": ["", *(f"{file}:{line}" for file, line, _ in trace.about.get("lines", []))],
        "workers": [trace.worker_name(one) for one in range(trace.worker_count)],
        "rows": [[trace.worker_name(one), one, one - lowest] for one in trace.rows],
        "marks": texts,
        "journeys": _journeys(trace, shown),
        "tags": TAGS,
        "firsts": trace.runs["first"].tolist()[: 1 << 16],
        "whats": {str(what): name for what, name in SPANS.items()},
        "table": rows[:200],
        "reasons": own.reasons(),
        "orchWaits": own.orch_waits(),
        "busy": trace.busy(),
        "dropped": trace.dropped,
        "whole": own.is_whole,
        "problems": trace.problems(),
    }
    return about, [_packed(values, kind) for values, kind in columns.values()]


def _marks(trace: Timeline) -> tuple[Array, list[str]]:
    """Return lanes, begins, ends and texts, by their numbers, of frames and transfers; and the texts."""
    texts: dict[str, int] = {}
    rows = [
        (lane, begin, end, texts.setdefault(text, len(texts)))
        for lane, begin, end, text in islice(marks(trace), MOST_MARKS)
    ]
    found = np.array(rows, np.int64).reshape(-1, 4)
    return found[np.lexsort((found[:, 1], found[:, 0]))], list(texts)


def _journeys(trace: Timeline, shown: int) -> dict[str, list[str]]:
    """Return what the story of a task says of its way to an endpoint and back."""
    numbers = np.unique(np.concatenate([trace.frames["task"], trace.within]))
    told = {}
    for number in numbers[(numbers > 0) & (numbers <= shown)][:MOST_JOURNEYS].tolist():
        lines = trace.task(number).journey()
        told[str(number)] = [f"{trace.relative(time)}    {text}" for time, text in lines]
    return told


def _packed(values: Array, kind: str) -> bytes:
    """Return a column as the differences of neighbours, modulo the size of its numbers."""
    plain = values.astype(f"<{kind}")
    return np.diff(plain, prepend=plain.dtype.type(0)).astype(f"<{kind}").tobytes()


def _producer_tags(trace: Timeline, edges: Array) -> Array:
    """Return for each edge how the producer uses the tensor, UNKNOWN if it has none at that address."""
    rows = trace.arguments[::-1]  # of several tensors at an address the first one counts
    tags = dict(zip(rows[["task", "address"]].tolist(), rows["tag"].tolist(), strict=True))
    asked = edges[["producer", "address"]].tolist()
    return np.array([tags.get(one, UNKNOWN) for one in asked], np.uint8)


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
    given = parser.parse_args(arguments)
    if given.run is not None and given.why is None:
        parser.error("--run is the run of the task of --why: give both")
    try:
        trace = Trace.open(given.file)
        if given.why is not None:
            print(trace.find(given.why, given.run or 0).why())
            return 0
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
