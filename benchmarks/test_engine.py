"""What a task costs: to submit, to run, in small and large runs, with few and many workers."""

from __future__ import annotations

import statistics
import time

from graphs import (
    Load,
    allocs,
    arrays,
    chains,
    fresh,
    independent,
    own_buffer,
    run_seconds,
    sized,
    stencil,
    submit_seconds,
    three_tensors,
    warm_worker,
)

from simpler_ref import Worker

N = 4096
ROUNDS = 9


def test_submitting_a_task_from_python(record):
    def submit(prepare, workers=1):
        return fresh(workers, prepare, N, submit_seconds)

    record(
        {
            "submit_0": submit(independent(N)),
            "submit_1": submit(chains(N, 64)),
            "submit_1_two_workers": submit(chains(N, 64), workers=2),
            "submit_3": submit(three_tensors(N)),
            "submit_1_array": submit(chains(N, 64, arrays)),
            "submit_3_array": submit(three_tensors(N, arrays)),
        },
        rounds=ROUNDS,
    )


def test_running_graphs_of_tasks_that_do_nothing(record):
    graphs = {
        "chain": (chains(2048, 1), 2048),
        "independent": (independent(N), N),
        "stencil": (stencil(8, 200), 1600),
    }
    variants = {
        f"{name}_{workers}": fresh(workers, prepare, n)
        for name, (prepare, n) in graphs.items()
        for workers in (1, 2)
    }
    variants["own_buffer_1"] = fresh(1, own_buffer(N), N)
    record(variants, rounds=ROUNDS)


def test_runs_that_follow_each_other(record):
    repeats = 400

    def follow(orchestrate, worker):
        start = time.perf_counter()
        for _ in range(repeats):
            worker.run(orchestrate)
        return time.perf_counter() - start

    with (
        warm_worker(1, independent(0), 0) as (first, empty),
        warm_worker(1, independent(1), 1) as (second, one),
    ):
        record(
            {
                "empty_run": (lambda: follow(empty, first), repeats),
                "run_of_one": (lambda: follow(one, second), repeats),
            },
            rounds=15,
        )


def test_heap_buffers_that_come_and_go_with_their_scope(record):
    record({"alloc": fresh(0, allocs(128, 16), 128 * 16)}, rounds=ROUNDS)


# ---------------------------------------------------------------- size of the run
SCOPE = 1024
LARGEST = 1 << 20


def test_the_cost_of_a_task_by_the_number_of_tasks_in_the_run(record):
    sizes = {"1e3": 1 << 10, "1e4": 10 << 10, "1e5": 100 << 10, "1e6": LARGEST}
    with (
        Worker(level=3, num_sub_workers=1) as worker,
        Worker(level=3, num_sub_workers=1, task_window=4096) as small,
    ):
        variants = {"windowed_1e6": several(small, sized(small, LARGEST, SCOPE), LARGEST)}
        for name, n in sizes.items():
            for kind, scope in (("held", n), ("nested", SCOPE)):
                variants[f"{kind}_{name}"] = several(worker, sized(worker, n, scope), n)
        record(
            variants,
            rounds=5,
            budget_s=40,
            ratios={
                "held_flat": ("held_1e6", "held_1e3"),
                "nested_flat": ("nested_1e6", "nested_1e3"),
            },
        )


def several(worker: Worker, orchestrate, n: int):
    """Return a round: small runs are repeated until they amount to 10⁵ tasks, and the median taken."""
    times = max(1, (100 << 10) // n)

    def one_round() -> float:
        return statistics.median(run_seconds(worker, orchestrate) for _ in range(times))

    return one_round, n


def test_the_first_large_run_of_a_worker(record):
    def one_round() -> float:
        with Worker(level=3, num_sub_workers=1) as worker:
            orchestrate = sized(worker, LARGEST, LARGEST)
            worker.start()
            return run_seconds(worker, orchestrate)

    record({"held_1e6_fresh": (one_round, LARGEST)}, rounds=2, warm_up=False)


# ---------------------------------------------------------------- number of workers
def test_many_workers_on_few_cores(record):
    busy = Load(50e-6)
    record(
        {
            "noop_2": fresh(2, independent(N), N),
            "noop_16": fresh(16, independent(N), N),
            "busy_2": fresh(2, independent(1000, busy), 1000, repeats=1),
            "busy_16": fresh(16, independent(1000, busy), 1000, repeats=1),
        },
        rounds=7,
        ratios={
            "noop_16_over_2": ("noop_16", "noop_2"),
            "busy_16_over_2": ("busy_16", "busy_2"),
        },
    )


def test_tasks_of_a_millisecond_with_a_second_worker(record):
    graph = independent(64, Load(1e-3))
    one, _ = fresh(1, graph, 64, repeats=1)
    two, _ = fresh(2, graph, 64, repeats=1)
    record({"speed_up": (lambda: one() / two(), 1)}, rounds=7)
