"""simpler_ref with compiled leaves, submitted many in a call by an orchestration function in Python.

The first argument says how: ``many``, or ``again`` for the same functions, recorded once and run again.
The second one says whether workers are processes or threads, or each the only one of an endpoint. The
graphs are those of `dags`; each value is a tensor of one number, which the leaf gets as an array.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import dags
import numpy as np
from dags import MASK
from numba import float64, int64, njit
from run_simpler_ref import opened
from serve import (
    PLACED_AFTER,
    WORKERS,
    Job,
    UnsupportedError,
    leaving,
    require_short,
    serve,
    versions,
)

from simpler_ref import Rows, TaskArgs, Worker, __version__, leaf
from simpler_ref import TensorArgType as T
from simpler_ref.task_interface import make_tensor

SCOPE = 2048
BUFFERS = 64


# ---------------------------------------------------------------- leaves
@njit(nogil=True)
def spin(spins, x):
    """Keep a core busy with a fixed amount of work: each step needs the result of the one before."""
    for _ in range(spins):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    return x


@njit(nogil=True, fastmath=True)
def sum_of(values):
    """Return a sum whose order the compiler may choose."""
    found = 0.0
    for one in values:
        found += one
    return found


@leaf
def mark(marks: int64[:], i: int):
    marks[i] += i + 1


@leaf
def add_one(cell: int64[:]):
    cell[0] += 1


@leaf
def combine(left: int64[:], middle: int64[:], right: int64[:], new: int64[:], spins: int):
    new[0] = spin(spins, middle[0])  # stored, lest the compiler leave the work out
    new[0] = (left[0] + 3 * middle[0] + right[0] + 1) & MASK


@leaf
def combine_two(other: int64[:], middle: int64[:], new: int64[:], spins: int):
    new[0] = spin(spins, middle[0])
    new[0] = (2 * other[0] + 3 * middle[0] + 1) & MASK


@leaf
def put(new: int64[:], number: int):
    new[0] = number & MASK


@leaf
def add(left: int64[:], right: int64[:], new: int64[:]):
    new[0] = left[0] + right[0]


@leaf
def add_and_one(x: int64[:], y: int64[:], new: int64[:]):
    new[0] = (x[0] + y[0] + 1) & MASK


@leaf
def mix(a: int64[:], b: int64[:], c: int64[:], new: int64[:], number: int):
    new[0] = (number + a[0] + b[0] + c[0]) & MASK


@leaf
def total(words: int64[:], result: int64[:]):
    result.view(float64)[0] = sum_of(words.view(float64))


@leaf
def fill(words: int64[:]):
    words.view(float64)[:] = 2.0


# ---------------------------------------------------------------- orchestration functions
def independent(orch, args, config):
    handle, marks, n = args
    orch.submit_sub_many(handle, [make_tensor(marks)], [T.NO_DEP], [np.arange(n)])


def chain(orch, args, config):
    handle, cell, n = args
    orch.submit_sub_many(handle, [make_tensor(cell)], [T.INOUT], count=n)


def stencil(orch, args, config):
    """Submit a stencil: what is left and right of a cell, round the edge, in two rows by turns."""
    handle, cells, shifts, width, steps, spins = args
    step, cell = np.divmod(np.arange(steps * width), width)
    new, old = step % 2 * width, (step + 1) % 2 * width
    columns = [Rows(cells, old + (cell + shift) % width) for shift in shifts]
    columns.append(Rows(cells, new + cell))
    tags = [T.INPUT] * len(shifts) + [T.OUTPUT_EXISTING]
    orch.submit_sub_many(handle, columns, tags, [spins])


def tree(orch, args, config):
    put_handle, add_handle, cells, leaves = args
    first, rest = cells[:leaves].reshape(-1, 1), cells[leaves:].reshape(-1, 1)
    pairs = cells[:-1].reshape(-1, 2)
    orch.submit_sub_many(put_handle, [first], [T.OUTPUT_EXISTING], [np.arange(leaves)])
    tags = [T.INPUT, T.INPUT, T.OUTPUT_EXISTING]
    orch.submit_sub_many(add_handle, [pairs[:, :1], pairs[:, 1:], rest], tags)


def random(orch, args, config):
    """Submit a random graph; the cell that stands for a missing producer is one that no task writes."""
    handle, cells, producers, numbers = args
    tags = [T.INPUT] * len(producers) + [T.OUTPUT_EXISTING]
    for start in range(0, len(numbers), SCOPE):
        part = slice(start, start + SCOPE)
        columns = [Rows(cells, row[part]) for row in (*producers, numbers)]
        with orch.scope():
            orch.submit_sub_many(handle, columns, tags, [numbers[part]])


def three(orch, args, config):
    handle, cells, n = args
    first = np.arange(n)
    columns = [Rows(cells, (first + shift) % BUFFERS) for shift in range(3)]
    orch.submit_sub_many(handle, columns, [T.INPUT, T.INPUT, T.OUTPUT_EXISTING])


def groups(orch, args, config):
    handle, marks, n, members = args
    for first in range(0, n * members, members):
        several = []
        for i in range(first, first + members):
            a = TaskArgs()
            a.add_tensor(marks, T.NO_DEP)
            a.add_scalar(i)
            several.append(a)
        orch.submit_sub_group(handle, several)


def pass_on(orch, args, config):
    handle, given, got = args
    tensors = [make_tensor(given), make_tensor(got)]
    orch.submit_sub_many(handle, tensors, [T.INPUT, T.OUTPUT_EXISTING], count=1)


def bring_back(orch, args, config):
    handle, got = args
    orch.submit_sub_many(handle, [make_tensor(got)], [T.OUTPUT_EXISTING], count=1)


# ---------------------------------------------------------------- jobs
class Bulk:
    """Opens a Worker for each request. What was compiled for one request serves the next."""

    def __init__(self, way: str, child_mode: str) -> None:
        self.versions = {"simpler_ref": __version__, **versions("numba", "numpy")}
        self._way = way
        self._child_mode = child_mode

    @contextmanager
    def job(self, workload: str, parameters: dict[str, Any]):
        """Give a Job, its workers ready."""
        if workload not in WORKLOADS[self._way]:
            raise UnsupportedError(f"not with {WORDS[self._way]}")
        at_endpoints = self._child_mode == "endpoints"
        if at_endpoints and (workload not in AT_ENDPOINTS or parameters.get("spins")):
            raise UnsupportedError(f"at endpoints only these are run: {', '.join(AT_ENDPOINTS)}")
        if self._way == "again" and workload == "random":
            require_short(dags.read_graph(parameters["path"]))
        kind = Again if self._way == "again" else Worker
        workers = parameters.pop("workers", WORKERS)
        with opened(kind, self._child_mode, workers) as worker:
            job = JOBS[workload](worker, **parameters)
            worker.start()
            for _ in range(PLACED_AFTER if at_endpoints else 0):
                job.reset()
                job.run()  # task by task; then placements are tried
            yield job


class Again(Worker):
    """A Worker that runs recorded graphs."""


def cells_of(worker: Worker, count: int) -> np.ndarray:
    """Return shared numbers, all of them zero."""
    cells = worker.empty((count,), np.int64)
    cells[:] = 0
    return cells


def running(worker: Worker, function: Any, arguments: tuple[Any, ...]) -> Callable[[], None]:
    """Return what is timed: a run of an orchestration function, or of the graph recorded from it."""
    if isinstance(worker, Again):
        return worker.record(function, arguments).run

    def run() -> None:
        worker.run(function, arguments)

    return run


def independent_job(worker: Worker, n: int) -> Job:
    marks = cells_of(worker, n)
    run = running(worker, independent, (worker.register(mark), marks, n))
    return leaving(np.arange(1, n + 1), marks, run, n)


def chain_job(worker: Worker, n: int) -> Job:
    cell = cells_of(worker, 1)
    return leaving(n, cell, running(worker, chain, (worker.register(add_one), cell, n)), n)


def stencil_job(worker: Worker, width: int, steps: int, spins: int) -> Job:
    cells = cells_of(worker, 2 * width)
    first = np.arange(width)
    right = dags.stencil_values(width, steps)
    last = (1 - steps & 1) * width
    combine_row = worker.register(combine if width > 2 else combine_two)
    shifts = (-1, 0, 1) if width > 2 else (-1, 0)
    rows = cells.reshape(-1, 1)
    run = running(worker, stencil, (combine_row, rows, shifts, width, steps, spins))

    def reset() -> None:
        cells[width:] = first

    return Job(run, lambda: cells[last : last + width].tolist() == right, width * steps, reset)


def tree_job(worker: Worker, leaves: int) -> Job:
    cells = cells_of(worker, 2 * leaves - 1)
    handles = worker.register(put), worker.register(add)
    run = running(worker, tree, (*handles, cells, leaves))
    return leaving(leaves * (leaves - 1) // 2, cells, run, 2 * leaves - 1, -1)


def random_job(worker: Worker, path: str) -> Job:
    graph = dags.read_graph(path)
    n = len(graph)
    cells = cells_of(worker, n + 1)
    producers = np.ascontiguousarray(np.where(graph < 0, n, graph).T)
    arguments = worker.register(mix), cells.reshape(-1, 1), producers, np.arange(n)
    run = running(worker, random, arguments)
    return leaving(dags.random_values(graph), cells, run, n, slice(n))


def submit_job(worker: Worker, n: int) -> Job:
    cells = cells_of(worker, BUFFERS)
    handle = worker.register(add_and_one)
    spent = 0.0

    def orchestrate(orch, args, config):
        nonlocal spent
        start = time.perf_counter()
        three(orch, (handle, cells.reshape(-1, 1), n), config)
        spent = time.perf_counter() - start

    def run() -> float:
        worker.run(orchestrate)
        return spent

    return leaving(dags.sums_of_two(n)[-1], cells, run, n, (n + 1) % BUFFERS)


def group_job(worker: Worker, n: int, members: int) -> Job:
    marks = cells_of(worker, members * n)
    run = running(worker, groups, (worker.register(mark), marks, n, members))
    return leaving(np.arange(1, members * n + 1), marks, run, n)


def send_job(worker: Worker, mib: int) -> Job:
    words, result = cells_of(worker, mib << 17), cells_of(worker, 1)
    words.view(np.float64).fill(1.0)
    return Job(
        running(worker, pass_on, (worker.register(total), words, result)),
        lambda: result.view(np.float64)[0] == len(words),
        1,
        lambda: result.fill(0),
    )


def receive_job(worker: Worker, mib: int) -> Job:
    words = cells_of(worker, mib << 17)
    return Job(
        running(worker, bring_back, (worker.register(fill), words)),
        lambda: bool((words.view(np.float64) == 2.0).all()),
        1,
        lambda: words.fill(0),
    )


JOBS: dict[str, Callable[..., Job]] = {
    "independent": independent_job,
    "chain": chain_job,
    "stencil": stencil_job,
    "tree": tree_job,
    "random": random_job,
    "submit": submit_job,
    "group": group_job,
    "send": send_job,
    "receive": receive_job,
}
WORKLOADS = {
    "many": tuple(name for name in JOBS if name != "group"),
    "again": tuple(name for name in JOBS if name != "submit"),
}
AT_ENDPOINTS = "chain", "stencil"
WORDS = {
    "many": "many tasks in a call: no groups, and BLAS is called from Python",
    "again": "recorded graphs: no task is submitted by itself",
}


def seconds_per_spin() -> float:
    """Return what one round of `spin` takes when nobody disturbs it."""
    spin(1, 1)
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        spin(20000, 1)
        best = min(best, time.perf_counter() - start)
    return best / 20000


@contextmanager
def start():
    """Give the peer that the command line names."""
    way, workers = sys.argv[1:]
    modes = {"processes": "process", "threads": "thread", "endpoints": "endpoints"}
    peer = Bulk(way, modes[workers])
    with peer.job("chain", {"n": 100}) as job:
        job.run()
    yield peer


if __name__ == "__main__":
    serve(start, seconds_per_spin)
