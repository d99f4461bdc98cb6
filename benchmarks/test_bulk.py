"""What a task costs that is one of many: submitted in one call, or replayed from a recording."""

from __future__ import annotations

import numpy as np
from graphs import (
    OrchFunction,
    Prepare,
    behind_a_long_task,
    fresh,
    independent,
    noop,
    stencil,
    submit_seconds,
)

from simpler_ref import TensorArgType as T
from simpler_ref import Worker

N = 4096
ROUNDS = 9


def rows(n: int) -> Prepare:
    """Prepare one call with an array that has a row for each task."""

    def prepare(worker: Worker) -> OrchFunction:
        task = worker.register(noop)
        table = worker.empty((n, 16), np.float32)

        def orchestrate(orch, args, config):
            orch.submit_sub_many(task, [table], [T.INOUT])

        return orchestrate

    return prepare


def three_columns(n: int) -> Prepare:
    """Prepare one call in which tasks read two rows and write a third, and get a number."""

    def prepare(worker: Worker) -> OrchFunction:
        task = worker.register(noop)
        table = worker.empty((n + 2, 16), np.float32)
        columns = [table[:-2], table[1:-1], table[2:]]
        numbers = np.arange(n)

        def orchestrate(orch, args, config):
            orch.submit_sub_many(task, columns, [T.INPUT, T.INPUT, T.OUTPUT_EXISTING], [numbers])

        return orchestrate

    return prepare


def replayed(prepare: Prepare) -> Prepare:
    """Prepare the recording of a graph: what `Graph.run` does once its run is open."""

    def record(worker: Worker) -> OrchFunction:
        return worker.record(prepare(worker))._replay

    return record


def test_submitting_many_tasks_in_one_call(record):
    record(
        {
            "submit_many": fresh(1, rows(N), N, submit_seconds),
            "submit_many_behind": fresh(1, behind_a_long_task(rows(N)), N + 1, submit_seconds),
            "submit_many_3": fresh(1, three_columns(N), N, submit_seconds),
        },
        rounds=ROUNDS,
    )


def test_replaying_recorded_graphs(record):
    steps = stencil(8, 200), 1600
    record(
        {
            "replay_added": fresh(1, replayed(steps[0]), steps[1], submit_seconds),
            "replay_added_0": fresh(1, replayed(independent(N)), N, submit_seconds),
            "replay_stencil_1": fresh(1, replayed(steps[0]), steps[1]),
            "replay_stencil_2": fresh(2, replayed(steps[0]), steps[1]),
            "replay_independent_1": fresh(1, replayed(independent(N)), N),
        },
        rounds=ROUNDS,
    )
