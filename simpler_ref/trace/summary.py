"""A trace as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .tasks import span

if TYPE_CHECKING:
    from .reader import Trace

MOST_ROWS = 12
"""Functions, workers and tasks that are named."""


def summary(trace: Trace) -> str:
    """Return what a trace says, in some twenty lines.

    Rule     SEE-READ-5
    """
    return "\n".join(_lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    tasks = trace.tasks
    failed = int((tasks["outcome"] == 2).sum())
    buffers = int(tasks["buffer"].sum())
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
    functions = list(trace.functions().items())
    for name, (count, total, longest) in functions[:MOST_ROWS]:
        yield (
            f"{name[:40]:<40} {count:>9} {span(total):>10} {span(total / count):>10} "
            f"{span(longest):>10}"
        )
    if len(functions) > MOST_ROWS:
        yield f"… and {len(functions) - MOST_ROWS} more"
    yield ""
    busy = list(trace.busy().items())
    for name, share in busy[:MOST_ROWS]:
        yield f"{name:<40} busy {share:6.1%}"
    if len(busy) > MOST_ROWS:
        yield f"… and {len(busy) - MOST_ROWS} more workers"
    yield ""
    yield "tasks waited, all together:"
    for reason, total in trace.reasons().items():
        yield f"  {reason:<38} {span(total):>10}"
    waits = {reason: total for reason, total in trace.orch_waits().items() if total}
    if waits:
        yield "the thread that submits waited:"
        for reason, total in waits.items():
            yield f"  {reason:<38} {span(total):>10}"
    yield from _path(trace)
    if len(trace.held):
        peaks = [
            f"ring {ring}: {int(trace.held['bytes'][trace.held['ring'] == ring].max())}"
            for ring in np.unique(trace.held["ring"]).tolist()
        ]
        yield f"most bytes held: {', '.join(peaks)}"
    yield from _below(trace)


def _below(trace: Trace) -> Iterator[str]:
    """Say what is known of the Workers below, and what is missing.

    Rule     SEE-REMOTE-4, -7
    """
    for part in trace.whole.parts[1:]:
        one = part.trace
        spans = one.ran["end"] - one.ran["begin"]
        place = f"process {one.about.get('pid')} on {one.about.get('host')}"
        yield ""
        yield (
            f"{part.name}, {place}: {len(one.runs)} runs, {len(one.ran)} tasks in "
            + span(int(spans.sum()))
            + (f"; times ± {span(one.error_ns)}" if one.error_ns else "")
        )
        for name, (count, total, longest) in list(one.functions().items())[:MOST_ROWS]:
            yield (
                f"  {name[:38]:<38} {count:>9} {span(total):>10} {span(total / count):>10} "
                f"{span(longest):>10}"
            )
        if one.dropped:
            yield f"  {one.dropped} notes were dropped there"
    yield from trace.problems()
    if len(trace.frames):
        moves = trace.whole.moves
        yield (
            f"{len(trace.frames)} frames of {int(trace.frames['nbytes'].sum())} bytes; "
            f"{len(moves)} transfers of {int(moves['nbytes'].sum())} bytes"
        )


def _path(trace: Trace) -> Iterator[str]:
    path = trace.critical_path
    if not path:
        return
    rows = trace.tasks[np.array(path) - 1]
    total = int(np.maximum(rows["ended"] - rows["begun"], 0)[rows["begun"] > 0].sum())
    whole = max(1, trace.end - trace.start)
    yield ""
    yield (
        f"critical path: {len(path)} tasks that depend on each other took {span(total)}, "
        f"{total / whole:.0%} of the time"
    )
    names, counts = np.unique(rows["function"], return_counts=True)
    most = sorted(zip(counts.tolist(), names.tolist(), strict=True), reverse=True)
    yield "  " + ", ".join(f"{count} × {trace.function_name(one)}" for count, one in most[:4])
