"""A trace as one page of HTML, which needs no network: its data are in it, compressed.

`page.html` is the page without data. Its script unpacks columns of numbers, each of which stands there as
the differences of neighbours, and draws only as many boxes as the screen has pixels.

Rule     SEE-PAGE-1 to -7
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..system.types import Array
from .exports import marks
from .tables import SPANS
from .tasks import TAGS

if TYPE_CHECKING:
    from .reader import Trace

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


def write_page(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write the page of a trace."""
    text = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    about, columns = _contents(trace)
    packed = base64.b64encode(gzip.compress(b"".join(columns), 3)).decode()
    text = text.replace("__TITLE__", html.escape(os.path.basename(trace.path)))
    text = text.replace(
        "__SUMMARY__",
        html.escape(_own(trace).summary()),
    )
    text = text.replace("__ABOUT__", json.dumps(about).replace("<", "\\u003c"))
    Path(path).write_text(text.replace("__COLUMNS__", packed), encoding="utf-8")


def _contents(trace: Trace) -> tuple[dict[str, Any], list[bytes]]:
    """Return what the script is told in JSON, and the columns as bytes."""
    own = _own(trace)
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
    lowest = min(trace.rows)
    held = trace.held[:: max(1, len(trace.held) // MOST_POINTS)]
    columns: dict[str, tuple[Array, str]] = {
        **{name: (_times(tasks[name], trace.start, unit), "u4") for name in trace.TIMES},
        "function": (which[:shown], "u2" if len(functions) < 1 << 16 else "u4"),
        "line": (tasks["line"], "u4"),
        "worker": (tasks["worker"] + 1, "u2"),
        "flags": (flags, "u1"),
        "run": (tasks["run"] + 1, "u4"),
        "ranTask": (ran["task"], "u4"),
        "ranWorker": (ran["worker"], "u2"),
        "ranFunction": (which[shown:], "u2" if len(functions) < 1 << 16 else "u4"),
        "ranBegin": (_times(ran["begin"], trace.start, unit), "u4"),
        "ranEnd": (_times(ran["end"], trace.start, unit), "u4"),
        "consumer": (edges["consumer"], "u4"),
        "producer": (edges["producer"], "u4"),
        "tensor": (edges["tensor"], "u2"),
        "tags": (edges["tag"] | _producer_tags(trace, edges) << 3 | edges["kind"] << 6, "u1"),
        "addressLow": (edges["address"] & 0xFFFFFFFF, "u4"),
        "addressHigh": (edges["address"] >> 32, "u4"),
        "waitLane": (waits["lane"] - lowest, "u2"),
        "waitWhat": (waits["what"], "u2"),
        "waitBegin": (_times(waits["begin"], trace.start, unit), "u4"),
        "waitEnd": (_times(waits["end"], trace.start, unit), "u4"),
        "markLane": (marked[:, 0] - lowest, "u2"),
        "markBegin": (_times(marked[:, 1], trace.start, unit), "u4"),
        "markEnd": (_times(marked[:, 2], trace.start, unit), "u4"),
        "markText": (marked[:, 3], "u4"),
        "heldTime": (_times(held["time"], trace.start, unit), "u4"),
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
        "table": list(_table(trace))[:200],
        "reasons": own.reasons(),
        "orchWaits": own.orch_waits(),
        "busy": trace.busy(),
        "dropped": trace.dropped,
        "whole": own.is_whole,
        "problems": trace.problems(),
    }
    return about, [_packed(values, kind) for values, kind in columns.values()]


def _own(trace: Trace) -> Trace:
    """Return the trace of the uppermost Worker."""
    return trace.parts[0].trace if trace.parts else trace


def _marks(trace: Trace) -> tuple[Array, list[str]]:
    """Return lanes, begins, ends and texts, by their numbers, of frames and transfers; and the texts."""
    texts: dict[str, int] = {}
    rows = [
        (one.lane, one.begin, one.end, texts.setdefault(one.text, len(texts)))
        for one in islice(marks(trace), MOST_MARKS)
    ]
    found = np.array(rows, np.int64).reshape(-1, 4)
    return found[np.lexsort((found[:, 1], found[:, 0]))], list(texts)


def _journeys(trace: Trace, shown: int) -> dict[str, list[str]]:
    """Return what the story of a task says of its way to an endpoint and back."""
    numbers = np.unique(np.concatenate([trace.frames["task"], trace.within]))
    told = {}
    for number in numbers[(numbers > 0) & (numbers <= shown)][:MOST_JOURNEYS].tolist():
        lines = trace.task(number).journey()
        told[str(number)] = [f"{trace.relative(time)}    {text}" for time, text in lines]
    return told


def _table(trace: Trace) -> Iterator[list[Any]]:
    """Yield what each function took, and below which Worker."""
    parts = [("", trace)] if not trace.parts else [(one.name, one.trace) for one in trace.parts]
    for where, part in parts:
        for name, row in part.functions().items():
            yield [name, *row, where]


def _times(values: Array, start: int, unit: int) -> Array:
    """Return times as the page has them: units since the start, plus 1; 0 where unknown."""
    times: Array = np.where(values > 0, np.maximum(values - start, 0) // unit + 1, 0)
    return times


def _packed(values: Array, kind: str) -> bytes:
    """Return a column as the differences of neighbours, modulo the size of its numbers."""
    plain = values.astype(f"<{kind}")
    return np.diff(plain, prepend=plain.dtype.type(0)).astype(f"<{kind}").tobytes()


def _producer_tags(trace: Trace, edges: Array) -> Array:
    """Return for each edge how the producer uses the tensor, UNKNOWN if it has none at that address."""
    rows = trace.arguments
    if not len(rows) or not len(edges):
        return np.full(len(edges), UNKNOWN, np.uint8)
    keys = _key(rows["task"], rows["address"])
    order = np.argsort(keys, kind="stable")
    asked = _key(edges["producer"], edges["address"])
    at = np.minimum(np.searchsorted(keys[order], asked), len(order) - 1)
    found = order[at]
    tags: Array = np.where(keys[found] == asked, rows["tag"][found], UNKNOWN).astype(np.uint8)
    return tags


def _key(task: Array, address: Array) -> Array:
    mixed: Array = task.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ address.astype(
        np.uint64
    )
    return mixed
