"""`pmu.csv`: what counters counted during each task."""

from __future__ import annotations

import csv
import io

from ...jit import layout as L
from .run import FlaggedRun

_FIRST = ("thread_id", "core_id", "task_id", "func_id", "core_type", "pmu_total_cycles")


def counted(run: FlaggedRun, event_type: int, names: tuple[str, ...]) -> str:
    """Return the contents of the file: a row for each task, or member of a group.

    Rule     FLAG-PMU-1, -3
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow((*_FIRST, *names, "event_type"))
    for worker in range(run.workers):
        values: dict[int, dict[int, int]] = {}
        for what, number, first, second in run.of_worker(worker, L.NOTED_COUNTED).tolist():
            at = what >> 8
            values.setdefault(number, {}).update({at: first, at + 1: second})
        for number, found in values.items():
            task = run.tasks.get(number)
            function = -1 if task is None else run.functions.get(task.function, -1)
            counts = [found.get(i, 0) for i in range(len(names) + 1)]
            row = (0, worker, f"{run.id_of(number):#x}", function, "aiv", *counts, event_type)
            rows.writerow(row)
    return text.getvalue()
