"""A trace as text for a terminal, and for other programs: Chrome and Perfetto, tables, graphviz.

Rule     SEE-EXPORT-1, -2, -4; SEE-READ-5; SEE-REMOTE-2, -4, -7
"""

from __future__ import annotations

import csv
import functools
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..jit import layout as L
from ..system.types import Array
from .tables import SPANS
from .tasks import TAGS, span

if TYPE_CHECKING:
    from .reader import Trace

MOST_DRAWN = 5000
"""Tasks of a graph for graphviz, which takes minutes for more."""
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
    66: "TASK",
    67: "OPEN_COPIES",
    68: "CALL",
    69: "VALUE_TAKEN",
    70: "TRACE",
    72: "TASK",
    73: "PART",
    74: "STOP_PART",
}
"""Names of frames, by their types."""


class Mark(NamedTuple):
    """What is drawn of a frame, which begins when it ends, or of a tensor that was moved."""

    lane: int
    begin: int
    end: int
    text: str


def marks(trace: Trace) -> Iterator[Mark]:
    """Yield the frames and transfers of a trace."""
    for row in trace.frames:
        name = FRAMES.get(int(row["type"]), f"frame {row['type']}")
        text = f"{name} {'sent' if row['sent'] else 'received'}, {row['nbytes']} bytes"
        yield Mark(int(row["lane"]), int(row["time"]), int(row["time"]), text)
    for row in trace.moves:
        one = trace.transfer(row)
        yield Mark(int(row["lane"]), one.begin, one.end, str(one))


# ---------------------------------------------------------------- Chrome
def write_chrome(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write the JSON of Chrome's trace viewer, which Perfetto reads, too."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        for i, event in enumerate(_chrome_events(trace)):
            file.write((",\n" if i else "") + json.dumps(event))
        file.write("\n]}\n")


def _chrome_events(trace: Trace) -> Iterator[dict[str, Any]]:
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
    for mark in marks(trace):
        if mark.end > mark.begin:
            yield box(mark.text, mark.lane, mark.begin, mark.end)
        else:
            yield {"ph": "i", "s": "t", "name": mark.text} | at(mark.lane, mark.begin)
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


# ---------------------------------------------------------------- tables
def table(trace: Trace) -> dict[str, Array | list[str]]:
    """Return the columns of a table of tasks: names as strings, times in ns since the start."""
    tasks = trace.tasks
    functions, which = np.unique(tasks["function"], return_inverse=True)
    names = np.array([trace.function_name(int(one)) for one in functions] or [""], object)
    lines = np.array([trace.line_name(i) for i in range(int(tasks["line"].max(initial=0)) + 1)])
    outcomes = np.array(["unfinished", "completed", "failed"])
    firsts = np.append(trace.runs["first"], 1)[tasks["run"]]
    numbers = np.arange(1, len(tasks) + 1)
    times = {name: np.where(tasks[name] > 0, tasks[name] - trace.start, -1) for name in trace.TIMES}
    return {
        "number": numbers,
        "run": tasks["run"],
        "id": numbers - firsts,
        "function": np.where(tasks["buffer"], "(buffer)", names[which]).tolist(),
        "line": lines[tasks["line"]].tolist(),
        "worker": tasks["worker"],
        "on": [trace.worker_name(one) if one >= 0 else "" for one in tasks["worker"].tolist()],
        "outcome": outcomes[tasks["outcome"]].tolist(),
        **times,
    }


def write_csv(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a table of tasks."""
    columns = table(trace)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        lists = [one.tolist() if isinstance(one, np.ndarray) else one for one in columns.values()]
        writer.writerows(zip(*lists, strict=True))


# ---------------------------------------------------------------- graphviz
def write_dot(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write the graph of the tasks, with what each edge is owed to; at most MOST_DRAWN tasks."""
    most = min(len(trace.tasks), MOST_DRAWN)
    critical = set(trace.critical_path)
    tasks = [trace.task(number) for number in range(1, most + 1)]
    nodes = [(one.number, one.name, one.is_buffer, one.number in critical) for one in tasks]
    arrows = []
    for edge in trace.edges[trace.edges["consumer"] <= most]:
        label = "value" if edge["kind"] == L.OWED_FUTURE else ""
        if edge["tensor"] != L.NO_TENSOR:
            label = f"{TAGS[edge['tag']]} {edge['tensor']}"
        ends = int(edge["producer"]), int(edge["consumer"])
        arrows.append((*ends, label, bool(edge["kind"] != L.OWED_MEMORY)))
    draw(path, nodes, arrows, len(trace.tasks))


def draw(
    path: str | os.PathLike[str],
    nodes: list[tuple[int, str, bool, bool]],
    arrows: list[tuple[int, int, str, bool]],
    tasks: int,
) -> None:
    """Write a graph for graphviz.

    Parameters
    ----------
    nodes
        The number of each task, its name, whether it is a buffer, and whether it is critical.
    arrows
        The numbers of both tasks, a label, and whether the second one waits for the first.
    tasks
        How many there are in all.
    """
    with open(path, "w", encoding="utf-8") as file:
        file.write("digraph tasks {\n  rankdir=LR; node [shape=box, fontname=sans];\n")
        for number, name, is_buffer, is_critical in nodes:
            quoted = name.replace("\\", "\\\\").replace('"', '\\"')
            shape = ", shape=ellipse" if is_buffer else ""
            colour = ", color=red, penwidth=2" if is_critical else ""
            file.write(f'  t{number} [label="{quoted}"{shape}{colour}];\n')
        for first, second, label, waits in arrows:
            style = "" if waits else ", style=dotted"
            file.write(f'  t{first} -> t{second} [label="{label}"{style}];\n')
        if len(nodes) < tasks:
            file.write(f'  more [label="… {tasks - len(nodes)} more tasks", shape=plaintext];\n')
        file.write("}\n")


# ---------------------------------------------------------------- a summary
def summary(trace: Trace) -> str:
    """Return what a trace says, in some twenty lines."""
    return "\n".join(_lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
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
    yield "tasks waited, all together:"
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


def _functions(trace: Trace, width: int) -> Iterator[str]:
    """Say what the functions took that took longest."""
    for name, (count, total, longest) in list(trace.functions().items())[:MOST_ROWS]:
        yield (
            f"{name[:width]:<{width}} {count:>9} {span(total):>10} {span(total / count):>10} "
            f"{span(longest):>10}"
        )


def _path(trace: Trace) -> Iterator[str]:
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


def _below(trace: Trace) -> Iterator[str]:
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
