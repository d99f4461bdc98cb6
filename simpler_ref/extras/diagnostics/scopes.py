"""`scope_stats/scope_stats.jsonl`: what rings, edges and keys held whenever a scope began or ended.

Rule     FLAG-SCOPE-1 to -3
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...jit import layout as L
from .run import WRITES, FlaggedRun, Step

VERSION = 6


class _Use:
    """What one ring has handed out and taken back, ever: counts that only grow."""

    def __init__(self) -> None:
        self.tasks = self.tasks_back = 0
        self.heap = self.heap_back = self._held = 0
        self.edges = self.edges_back = 0
        self.most_tasks = self.most_heap = self.most_edges = 0

    def hold(self, held: int) -> None:
        """Take note of how many bytes it holds."""
        grown = held - self._held
        self._held = held
        if grown > 0:
            self.heap += grown
        else:
            self.heap_back -= grown
        self.most_heap = max(self.most_heap, held)

    def counted(self) -> None:
        """Take note of the counts of tasks and edges."""
        self.most_tasks = max(self.most_tasks, self.tasks - self.tasks_back)
        self.most_edges = max(self.most_edges, self.edges - self.edges_back)


def scope_stats(run: FlaggedRun, site: str, failed: bool) -> list[dict[str, Any]]:
    """Return the lines of the file, the summary first.

    `site` is the line of the orchestration function, whose scope is the outermost one.
    """
    uses = [_Use() for _ in range(L.MAX_RING_DEPTH)]
    lines = list(_boundaries(run, uses, site))
    rings = uses[: run.rings]
    summary = {
        "version": VERSION,
        "fatal": failed,
        "dropped": run.dropped,
        "total": len(lines),
        "task_window_max": [one.most_tasks for one in rings],
        "heap_max": [one.most_heap for one in rings],
        "dep_pool_max": [one.most_edges for one in rings],
        "tensormap_max": _most_keys(run),
    }
    return [summary, *lines]


def _boundaries(run: FlaggedRun, uses: list[_Use], site: str) -> Iterator[dict[str, Any]]:
    for step in run.steps:
        if step.what == "held":
            uses[step.first].hold(step.second)
        elif step.what == "scope":
            ring = max(0, min(step.first, run.rings - 1))
            yield _line(step, ring, uses[ring], run.line_of(step.line) if step.first else site)
        elif step.task is not None:
            use, edges = uses[step.task.ring], len({one.producer for one in step.task.edges})
            if step.what == "submit":
                use.tasks, use.edges = use.tasks + 1, use.edges + edges
            else:
                use.tasks_back, use.edges_back = use.tasks_back + 1, use.edges_back + edges
            use.counted()


def _line(step: Step, ring: int, use: _Use, site: str) -> dict[str, Any]:
    return {
        "site": site,
        "phase": "begin" if step.second else "end",
        "depth": step.first,
        "ring": ring,
        "task_window_start": use.tasks_back,
        "task_window_end": use.tasks,
        "heap_start": use.heap_back,
        "heap_end": use.heap,
        "dep_pool_start": use.edges_back,
        "dep_pool_end": use.edges,
        "tensormap": step.buffers,
    }


def _most_keys(run: FlaggedRun) -> int:
    """Return the most buffers that had a producer at once."""
    owner: dict[int, int] = {}
    most = max((step.buffers for step in run.steps if step.what == "scope"), default=0)
    for step in run.steps:
        if step.task is None:
            continue
        for one in step.task.tensors.values():
            if one.tag in WRITES and one.address:
                if step.what == "submit":
                    owner[one.address] = step.task.number
                elif owner.get(one.address) == step.task.number:
                    del owner[one.address]
        most = max(most, len(owner))
    return most
