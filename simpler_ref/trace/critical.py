"""The critical path: of all chains of dependencies the one whose tasks took longest together."""

from __future__ import annotations

import numpy as np

from ..jit import layout as L
from ..system.types import Array


def critical_path(tasks: Array, edges: Array) -> list[int]:
    """Return the numbers of its tasks, the first one first.

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
        for k in range(firsts[task], firsts[task + 1]):
            producer = producers[k]
            if producer < task and longest[producer] > best:
                best, via = longest[producer], producer
        if via >= 0:
            longest[task] += best
            before[task] = via
    if not longest:
        return []
    path = []
    at = int(np.argmax(np.array(longest)))
    while at >= 0:
        path.append(at + 1)
        at = before[at]
    return [one for one in reversed(path) if not tasks["buffer"][one - 1]]
