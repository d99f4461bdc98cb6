"""What 64 MiB cost on their way into a task and out of it, beside touching them in this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from graphs import run_seconds

from simpler_ref import Orchestrator, TaskArgs, Worker
from simpler_ref import TensorArgType as T

WORDS = (64 << 20) // 8
REPEATS = 5


def read(array: np.ndarray) -> None:
    array.max()


def write(array: np.ndarray) -> None:
    array.fill(1)


def seconds(touch: Callable[[np.ndarray], None], array: np.ndarray) -> float:
    start = time.perf_counter()
    touch(array)
    return time.perf_counter() - start


def task_seconds(worker: Worker, handle, array: np.ndarray, tag: T) -> float:
    """Return the time of a run with one task that gets the array."""

    def orchestrate(orch: Orchestrator, args, config):
        task = TaskArgs()
        task.add_tensor(array, tag)
        orch.submit_sub(handle, task)

    return run_seconds(worker, orchestrate)


def warm(touch: Callable[[np.ndarray], None], tag: T) -> float:
    """Return how much longer a task takes than this process, all pages known to both."""
    with Worker(level=3, num_sub_workers=1) as worker:
        handle = worker.register(lambda args: touch(args.tensor(0).numpy()))
        array = worker.empty(WORDS, np.uint64)
        write(array)
        task_seconds(worker, handle, array, T.INOUT)
        there, here = [], []
        for _ in range(REPEATS):
            there.append(task_seconds(worker, handle, array, tag))
            here.append(seconds(touch, array))
        return statistics.median(there) / statistics.median(here)


def fresh() -> float:
    """Return how much longer a task takes to write memory that nobody has touched."""
    with Worker(level=3, num_sub_workers=1) as worker:
        handle = worker.register(lambda args: write(args.tensor(0).numpy()))
        one, other = (worker.empty(WORDS, np.uint64) for _ in range(2))
        worker.start()
        return task_seconds(worker, handle, one, T.OUTPUT_EXISTING) / seconds(write, other)


def first(populate: bool) -> float:
    """Return how much longer than later ones a worker's first write to known memory takes."""
    with Worker(level=3, num_sub_workers=1) as worker:
        handle = worker.register(lambda args: write(args.tensor(0).numpy()))
        array = worker.empty(WORDS, np.uint64, populate=populate)
        write(array)
        worker.start()
        times = [task_seconds(worker, handle, array, T.OUTPUT_EXISTING) for _ in range(REPEATS)]
        return times[0] / statistics.median(times[1:])


def touched_here(populate: bool) -> float:
    """Return how much longer this process's first write takes than the next."""
    with Worker(level=3, num_sub_workers=0) as worker:
        array = worker.empty(WORDS, np.uint64, populate=populate)
        times = [seconds(write, array) for _ in range(REPEATS)]
        return times[0] / statistics.median(times[1:])


def test_64_mib_in_and_out_of_a_task(record):
    record(
        {
            "large_read": (lambda: warm(read, T.INPUT), 1),
            "large_write": (lambda: warm(write, T.OUTPUT_EXISTING), 1),
            "large_fresh": (fresh, 1),
            "large_first": (lambda: first(False), 1),
            "large_first_populated": (lambda: first(True), 1),
            "large_here": (lambda: touched_here(False), 1),
            "large_here_populated": (lambda: touched_here(True), 1),
        },
        rounds=9,
        warm_up=False,
    )
