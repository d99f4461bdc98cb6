"""What it costs to submit a task from compiled orchestration."""

from __future__ import annotations

import numpy as np
from graphs import behind_a_long_task, fresh, noop, submit_seconds

from simpler_ref import TaskArgs, Worker, orchestration
from simpler_ref import TensorArgType as T

N = 4096
BUFFERS = 64


def no_arguments(worker: Worker):
    """Return tasks that have nothing to do with each other."""
    task = worker.register(noop)

    @orchestration
    def orchestrate(orch, args, config):
        for _ in range(N):
            orch.submit_sub(task)

    return orchestrate


def one_tensor(worker: Worker):
    """Return chains of tasks, each with one row of an array, INOUT."""
    task = worker.register(noop)
    rows = worker.empty((BUFFERS, 16), np.float32)

    @orchestration
    def orchestrate(orch, args, config):
        for i in range(N):
            a = TaskArgs()
            a.add_tensor(rows[i % BUFFERS], T.INOUT)
            orch.submit_sub(task, a)

    return orchestrate


def three_tensors(worker: Worker):
    """Return tasks that read two rows and write a third, going round 64 rows."""
    task = worker.register(noop)
    rows = worker.empty((BUFFERS, 16), np.float32)

    @orchestration
    def orchestrate(orch, args, config):
        for i in range(N):
            a = TaskArgs()
            a.add_tensor(rows[i % BUFFERS], T.INPUT)
            a.add_tensor(rows[(i + 1) % BUFFERS], T.INPUT)
            a.add_tensor(rows[(i + 2) % BUFFERS], T.OUTPUT_EXISTING)
            orch.submit_sub(task, a)

    return orchestrate


def three_tensors_again(worker: Worker):
    """Return the same tasks, from one TaskArgs that is cleared for each."""
    task = worker.register(noop)
    rows = worker.empty((BUFFERS, 16), np.float32)

    @orchestration
    def orchestrate(orch, args, config):
        a = TaskArgs()
        for i in range(N):
            a.clear()
            a.add_tensor(rows[i % BUFFERS], T.INPUT)
            a.add_tensor(rows[(i + 1) % BUFFERS], T.INPUT)
            a.add_tensor(rows[(i + 2) % BUFFERS], T.OUTPUT_EXISTING)
            orch.submit_sub(task, a)

    return orchestrate


def test_submitting_a_task_from_compiled_orchestration(record):
    record(
        {
            "submit_compiled_0": fresh(1, no_arguments, N, submit_seconds),
            "submit_compiled_1": fresh(1, one_tensor, N, submit_seconds),
            "submit_compiled_3": fresh(1, three_tensors, N, submit_seconds),
            "submit_compiled_3_behind": fresh(
                1, behind_a_long_task(three_tensors), N + 1, submit_seconds
            ),
            "submit_compiled_3_again": fresh(
                1, behind_a_long_task(three_tensors_again), N + 1, submit_seconds
            ),
        },
        rounds=9,
    )
