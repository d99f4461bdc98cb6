"""A trace for other programs: Chrome and Perfetto, tables, graphviz.

Rule     SEE-EXPORT-1, -2, -4
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..jit import layout as L
from ..system.types import Array
from .lanes import SPANS
from .marks import marks
from .tasks import TAGS

if TYPE_CHECKING:
    from .reader import Trace

MOST_DRAWN = 5000
"""Tasks of a graph for graphviz, which takes minutes for more."""


def write_chrome(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write the JSON of Chrome's trace viewer, which Perfetto reads, too."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        for i, event in enumerate(_chrome_events(trace)):
            file.write((",\n" if i else "") + json.dumps(event))
        file.write("\n]}\n")


def _chrome_events(trace: Trace) -> Iterator[dict[str, Any]]:
    for which, part in enumerate(trace.parts):
        worker = {"name": part.name or "this machine"}
        yield {"ph": "M", "name": "process_name", "pid": which + 1, "args": worker}
    for lane in trace.rows:
        thread = {"name": trace.worker_name(lane)}
        yield {"ph": "M", "name": "thread_name", **_place(trace, lane), "args": thread}

    def at(time: int) -> float:
        return (time - trace.start) / 1000

    for one in trace.ran:
        name = trace.function_name(int(one["function"]))
        begin, end = int(one["begin"]), int(one["end"])
        task = {"task": int(one["task"])}
        place = _place(trace, int(one["worker"]))
        yield (
            {"ph": "X", "name": name, "ts": at(begin), "dur": (end - begin) / 1000}
            | place
            | {"args": task}
        )
    for one in trace.waits:
        begin, end = int(one["begin"]), int(one["end"])
        name = SPANS[int(one["what"])]
        place = _place(trace, int(one["lane"]))
        yield {"ph": "X", "name": name, "ts": at(begin), "dur": (end - begin) / 1000} | place
    for mark in marks(trace):
        what = {"name": mark.text, "ts": at(mark.begin)} | _place(trace, mark.lane)
        span = (mark.end - mark.begin) / 1000
        yield what | ({"ph": "X", "dur": span} if span else {"ph": "i", "s": "t"})
    yield from _chrome_flows(trace)
    yield from _frame_flows(trace)
    for one in trace.held:
        name = f"ring {one['ring']}"
        args = {"bytes": int(one["bytes"])}
        yield {"ph": "C", "name": name, "pid": 1, "ts": at(int(one["time"])), "args": args}


def _chrome_flows(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield an arrow for each edge between two tasks that ran."""
    tasks = trace.tasks
    for i, edge in enumerate(trace.edges[trace.edges["kind"] != L.OWED_MEMORY]):
        before, after = tasks[edge["producer"] - 1], tasks[edge["consumer"] - 1]
        if before["worker"] < 0 or not before["begun"] or not after["begun"]:
            continue
        what: dict[str, Any] = {"cat": "edge", "name": "edge", "id": i}
        start, end = int(before["ended"]) - 1, int(after["begun"])
        yield what | {"ph": "s"} | _place(trace, int(before["worker"])) | _ts(trace, start)
        yield what | {"ph": "f", "bp": "e"} | _place(trace, int(after["worker"])) | _ts(trace, end)


def _frame_flows(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield an arrow for each frame that both sides have noted."""
    for i, (sent, received) in enumerate(trace.frame_pairs()):
        what: dict[str, Any] = {"cat": "frame", "name": "frame", "id": len(trace.edges) + i}
        yield what | {"ph": "s"} | _place(trace, int(sent["lane"])) | _ts(trace, int(sent["time"]))
        place = _place(trace, int(received["lane"]))
        yield what | {"ph": "f", "bp": "e"} | place | _ts(trace, int(received["time"]))


def _place(trace: Trace, lane: int) -> dict[str, int]:
    """Return the process and the thread of a lane; each Worker is a process."""
    return {"pid": trace.part_of(lane) + 1, "tid": lane + 10 if lane >= 0 else 9 - (-lane - 1) % 2}


def _ts(trace: Trace, time: int) -> dict[str, float]:
    return {"ts": (time - trace.start) / 1000}


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
    """Write a table of tasks; times in ns since the start, -1 where unknown."""
    columns = table(trace)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        lists = [one.tolist() if isinstance(one, np.ndarray) else one for one in columns.values()]
        writer.writerows(zip(*lists, strict=True))


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
            shape = ", shape=ellipse" if is_buffer else ""
            colour = ", color=red, penwidth=2" if is_critical else ""
            file.write(f'  t{number} [label="{_quoted(name)}"{shape}{colour}];\n')
        for first, second, label, waits in arrows:
            style = "" if waits else ", style=dotted"
            file.write(f'  t{first} -> t{second} [label="{label}"{style}];\n')
        if len(nodes) < tasks:
            file.write(f'  more [label="… {tasks - len(nodes)} more tasks", shape=plaintext];\n')
        file.write("}\n")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
