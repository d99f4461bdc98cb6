"""`l2_swimlane_records.json`: which core ran what, when; what Scheduler and Orch thread did meanwhile.

Rule     FLAG-SWIM-1 to -4
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...trace import tables
from .run import FlaggedRun, Task

CLOCK_HZ = 1_000_000_000
"""Times are in ns of the system's monotonic clock."""
_DISPATCHED, _COMPLETED = tables.EVENT["dispatch"], (tables.EVENT["complete"], tables.EVENT["fail"])
_READY = tables.EVENT["inputs done"]


def swimlane(run: FlaggedRun, level: int) -> dict[str, Any]:
    """Return the contents of the file."""
    metadata: dict[str, Any] = {
        "clock_freq_hz": CLOCK_HZ,
        "num_cores": run.workers,
        "core_types": ["aiv"] * run.workers,
    }
    cores = _cores(run)
    records: dict[str, Any] = {
        "l2_swimlane_level": level,
        "metadata": metadata,
        "aicore_tasks": [
            [core, run.id_of(number), i, begin, end]
            for core, rows in cores.items()
            for i, (number, begin, end) in enumerate(rows)
        ],
    }
    if level >= 2:
        sent, seen = _sent_and_seen(run)
        records["aicpu_tasks"] = [
            [core, i, sent.get(number, begin), seen.get(number, end)]
            for core, rows in cores.items()
            for i, (number, begin, end) in enumerate(rows)
        ]
    if level >= 3:
        metadata["core_to_thread"] = [0] * run.workers
        records["aicpu_scheduler_phases"] = [_scheduler_phases(run)]
    if level >= 4:
        records["aicpu_orchestrator_phases"] = [_orchestrator_phases(run)]
    return records


def _cores(run: FlaggedRun) -> dict[int, list[tuple[int, int, int]]]:
    """Return what each worker ran, in order: number of the task, when it began, when it ended."""
    found = {}
    for worker in range(run.workers):
        rows = run.ran[run.ran["worker"] == worker]
        rows = rows[np.argsort(rows["begin"], kind="stable")]
        found[worker] = list(
            zip(rows["task"].tolist(), rows["begin"].tolist(), rows["end"].tolist(), strict=True)
        )
    return found


def _sent_and_seen(run: FlaggedRun) -> tuple[dict[int, int], dict[int, int]]:
    """Return when each task was given to its workers, and when the Scheduler saw that it had ended."""
    sent, seen = {}, {}
    for what, number, time, _ in run.of_scheduler().tolist():
        event = what & 0xFF
        if event == _DISPATCHED:
            sent[number] = time
        elif event in _COMPLETED:
            seen[number] = time
    for number, begin in zip(run.ran["task"].tolist(), run.ran["begin"].tolist(), strict=True):
        if number in sent:  # a task that a worker began by itself was sent before
            sent[number] = min(sent[number], begin)
    return sent, seen


def _scheduler_phases(run: FlaggedRun) -> list[dict[str, Any]]:
    """Return what the Scheduler did: each phase is as many steps of one kind as follow each other.

    It begins when the first of its tasks was due, that is had ended or was ready, or when the phase
    before it ended.
    """
    ended = dict(zip(run.ran["task"].tolist(), run.ran["end"].tolist(), strict=True))
    ready: dict[int, int] = {}
    phases: list[dict[str, Any]] = []
    waiting, turn, before = 0, 0, 0
    for what, number, time, _ in run.of_scheduler().tolist():
        event = what & 0xFF
        if event == _READY:
            ready[number] = time
            waiting += 1
            continue
        kind = "dispatch" if event == _DISPATCHED else "complete"
        if event != _DISPATCHED and event not in _COMPLETED:
            continue
        if not phases or phases[-1]["kind"] != kind:
            turn += kind == "dispatch"
            due = (ready if kind == "dispatch" else ended).get(number, time)
            phases.append(_phase(kind, min(time, max(before, due)), turn))
        phase = phases[-1]
        phase["end_cycles"] = before = time
        phase["tasks_processed"] += 1
        if kind == "dispatch":
            waiting -= 1
            phase["pop_hit"] += 1
            phase["pop_miss"] = int(waiting <= 0)
    return phases


def _phase(kind: str, start: int, turn: int) -> dict[str, Any]:
    phase: dict[str, Any] = {
        "kind": kind,
        "start_cycles": start,
        "end_cycles": start,
        "loop_iter": turn,
        "tasks_processed": 0,
    }
    return phase | {"pop_hit": 0, "pop_miss": 0} if kind == "dispatch" else phase


def _orchestrator_phases(run: FlaggedRun) -> list[dict[str, Any]]:
    """Return when the Orch thread was busy with the submission of each task."""
    phases: list[dict[str, Any]] = []
    pending: list[Task] = []
    for step in run.steps:
        if step.what == "submit" and step.task is not None:
            if pending and pending[-1].submitted > step.task.submitted:
                pending.clear()
            pending.append(step.task)
            time = step.task.submitted
            phases.append(
                {
                    "submit_idx": len(phases),
                    "task_id": step.task.id,
                    "start_cycles": time,
                    "end_cycles": time,
                }
            )
        elif step.what == "span":
            start = step.first
            for phase in phases[len(phases) - len(pending) :]:
                if phase["end_cycles"] >= start:
                    phase["start_cycles"] = start
                    start = phase["end_cycles"]
            if pending and phases[-1]["end_cycles"] >= step.first:
                phases[-1]["end_cycles"] = step.second
            pending.clear()
    return phases
