"""`deps.json`: the graph of a run, with the tensors that each edge is owed to.

Rule     FLAG-DEPS-1 to -3
"""

from __future__ import annotations

from typing import Any

from .run import WRITES, Edge, FlaggedRun, Task, Tensor


def dependencies(run: FlaggedRun) -> dict[str, Any]:
    """Return the contents of the file; 64-bit numbers are strings."""
    tasks = list(run.tasks.values())
    return {
        "tasks": [_task(run, one) for one in tasks],
        "tensors": [
            {
                "tensor_id": str(i),
                "buffer_addr": str(one.address),
                "version": one.version,
                "dtype": one.dtype,
                "buffer_numel": str(one.elements),
            }
            for i, one in enumerate(run.buffers)
        ],
        "edges": [
            _edge(run, task, edge)
            for task in tasks
            for edge in task.edges
            if edge.producer in run.tasks and edge.tensor in task.tensors
        ],
    }


def _task(run: FlaggedRun, task: Task) -> dict[str, Any]:
    function = -1 if task.is_buffer else run.functions.get(task.function, -1)
    return {
        "task_id": str(task.id),
        "scope": "auto",
        "kernel_ids": [-1, function, -1],
        "args": [
            {"idx": one.index, "type": one.tag, "tensor_id": str(one.buffer)} | one.described()
            for one in task.tensors.values()
        ],
    }


def _edge(run: FlaggedRun, task: Task, edge: Edge) -> dict[str, Any]:
    """Return an edge: to the task that provided the memory, or to the last one that wrote it."""
    producer = run.tasks[edge.producer]
    mine = task.tensors[edge.tensor]
    creator = edge.is_memory or producer.is_buffer
    found: dict[str, Any] = {
        "pred": str(producer.id),
        "succ": str(task.id),
        "arg": edge.tensor,
        "source": "creator" if creator else "tensormap",
    }
    theirs = None if creator else _written(producer, edge)
    if theirs is not None:
        low, high = mine.address, mine.address + mine.nbytes
        covers = low <= theirs.address and theirs.address + theirs.nbytes <= high
        found["overlap"] = "covered" if covers else "other"
    found |= {"tensor_id": str(mine.buffer)} | mine.described("consumer_")
    if theirs is not None:
        found |= theirs.described("producer_")
    return found


def _written(producer: Task, edge: Edge) -> Tensor | None:
    """Return the tensor through which a task is the producer of an edge."""
    for one in producer.tensors.values():
        if one.tag in WRITES and one.address <= edge.address < one.address + max(1, one.nbytes):
            return one
    return None
