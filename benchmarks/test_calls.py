"""What a call of a task costs: in a stream, on its own, as one of many in a map, otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from simpler_ref import In, Worker, task

ROUNDS = 7
CALLS, ALONE, ITEMS, TILES = 10_000, 2000, 100_000, 10_000
LEAVES = 50_000
NESTED = 2 * LEAVES - 1


@task
def nothing(value):
    """Return None."""


@task
def nothing_of(tile: In):
    """Return None."""


@task(compiled=True)
def compiled(value):
    """Return None, without the interpreter."""


@task
def tree(leaves):
    """Return how many leaves there are, by a call for each of them, and for each pair of branches."""
    if leaves == 1:
        return 1
    left, right = tree(leaves // 2), tree(leaves - leaves // 2)
    return left.result() + right.result()


class Idle:
    """Has a method that returns None."""

    def nothing(self, value):
        """Return None."""


def stream(call: Callable[[int], Any]) -> None:
    for future in [call(i) for i in range(CALLS)]:
        future.result()


def alone(call: Callable[[int], Any]) -> None:
    for i in range(ALONE):
        call(i).result()


def values(worker: Worker) -> None:
    for _ in worker.map(nothing, range(ITEMS)):
        pass


def lists(worker: Worker) -> None:
    for _ in worker.map(nothing, ([i] for i in range(ITEMS))):
        pass


def tiles(worker: Worker) -> None:
    array = worker.zeros((TILES // 100 * 4, 400))
    for _ in worker.map(nothing_of, worker.tiles(array, (4, 4))):
        pass


def executor_stream(worker: Worker) -> None:
    with worker.executor() as executor:
        for future in [executor.submit(nothing.py_func, i) for i in range(CALLS)]:
            future.result()


def executor_alone(worker: Worker) -> None:
    with worker.executor() as executor:
        for i in range(ALONE):
            executor.submit(nothing.py_func, i).result()


def pool_alone(worker: Worker) -> None:
    with worker.pool() as pool:
        for i in range(ALONE):
            pool.apply(nothing.py_func, (i,))


def actor_stream(worker: Worker) -> None:
    with worker.actor(Idle) as idle:
        for future in [idle.nothing(i) for i in range(CALLS)]:
            future.result()


def actor_alone(worker: Worker) -> None:
    with worker.actor(Idle) as idle:
        for i in range(ALONE):
            idle.nothing(i).result()


def calls(run: Callable[[Worker], None], operations: int) -> tuple[Callable[[], float], int]:
    """Return a round: a new Worker that has done it once, and the time of doing it again."""

    def one_round() -> float:
        with Worker(num_sub_workers=2) as worker:
            run(worker)
            start = time.perf_counter()
            run(worker)
            return time.perf_counter() - start

    return one_round, operations


def test_calls(record):
    record(
        {
            "call_stream": calls(lambda _: stream(nothing), CALLS),
            "call_alone": calls(lambda _: alone(nothing), ALONE),
            "call_compiled_stream": calls(lambda _: stream(compiled), CALLS),
            "call_compiled_alone": calls(lambda _: alone(compiled), ALONE),
            "map_values": calls(values, ITEMS),
            "map_lists": calls(lists, ITEMS),
            "map_tiles": calls(tiles, TILES),
            "executor_stream": calls(executor_stream, CALLS),
            "executor_alone": calls(executor_alone, ALONE),
            "pool_alone": calls(pool_alone, ALONE),
            "actor_stream": calls(actor_stream, CALLS),
            "actor_alone": calls(actor_alone, ALONE),
            "call_nested": calls(lambda _: tree(LEAVES).result(), NESTED),
        },
        rounds=ROUNDS,
    )
