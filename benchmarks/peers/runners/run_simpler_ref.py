"""simpler_ref: workers are processes, or threads of this process; leaves are Python functions.

The orchestration function is Python, too; "again" records it, and runs what was recorded.

The same graphs as in `dags`. Tasks write shared memory instead of returning values, and what follows
what is inferred from the tags of their tensors. A leaf has inherited the memory with the numbers; its
only scalar says which task it is.
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
from serve import (
    DEPTH,
    PLACED_AFTER,
    WORKERS,
    Job,
    UnsupportedError,
    leaving,
    require_short,
    serve,
    versions,
)

from simpler_ref import ContinuousTensor, DataType, TaskArgs, Worker, __version__
from simpler_ref import TensorArgType as T
from simpler_ref.remote import ProcessFleet
from simpler_ref.task_interface import make_tensor

SCOPE = 1024
"""Tasks of a random graph in one scope: what is done is not kept to the end of the run."""
KEYS = 8192
"""Tensors that tell tasks of a random graph apart: more than the graph looks back."""
BUFFERS = 64
CELL = 8


class Cells:
    """Shared 64-bit integers, each a tensor of its own."""

    def __init__(self, worker: Worker, count: int) -> None:
        self.array = worker.empty((count,), np.int64)
        self.array[:] = 0
        self.view = memoryview(self.array).cast("B").cast("q")
        """The same memory; reading one number is quicker than in numpy."""
        self._address = self.array.ctypes.data

    def tensor(self, i: int) -> ContinuousTensor:
        """Return the tensor of cell `i`."""
        return ContinuousTensor.make(self._address + CELL * i, (1,), DataType.INT64)

    def tensors(self) -> list[ContinuousTensor]:
        """Return all of them."""
        return [self.tensor(i) for i in range(len(self.view))]


def doubles(worker: Worker, count: int) -> tuple[np.ndarray, ContinuousTensor]:
    """Return shared float64 numbers, and the tensor they travel as: integers of the same size."""
    words = worker.empty((count,), np.int64)
    return words.view(np.float64), make_tensor(words)


def doubles_of(args: TaskArgs, i: int) -> np.ndarray:
    """Return the float64 numbers of a task's tensor."""
    return args.tensor(i).numpy().view(np.float64)


def independent(worker: Worker, n: int) -> Job:
    cells = Cells(worker, n)
    marks = cells.view

    def leaf(args):
        i = args.scalar(0)
        marks[i] += i + 1

    mark = worker.register(leaf)

    def orchestrate(orch, args, config):
        submit = orch.submit_sub
        for i in range(n):
            a = TaskArgs()
            a.add_scalar(i)
            submit(mark, a)

    return leaving(np.arange(1, n + 1), cells.array, lambda: worker.run(orchestrate), n)


def chain(worker: Worker, n: int) -> Job:
    cells = Cells(worker, 1)
    count = cells.view

    def leaf(args):
        count[0] += 1

    add_one = worker.register(leaf)
    tensor = cells.tensor(0)

    def orchestrate(orch, args, config):
        submit = orch.submit_sub
        for _ in range(n):
            a = TaskArgs()
            a.add_tensor(tensor, T.INOUT)
            submit(add_one, a)

    return leaving(n, cells.array, lambda: worker.run(orchestrate), n)


def stencil(worker: Worker, width: int, steps: int, spins: int) -> Job:
    cells = Cells(worker, 2 * width)
    value = cells.view
    first = list(range(width))

    def leaf(args):
        new = args.scalar(0)
        row = new // width
        i, old = new - row * width, (1 - row) * width
        for _ in range(spins):
            pass
        value[new] = (
            value[old + (i - 1) % width] + 3 * value[old + i] + value[old + (i + 1) % width] + 1
        ) & MASK

    combine = worker.register(leaf)
    tensors = cells.tensors()
    rows = tensors[:width], tensors[width:]

    def reset():
        cells.array[width:] = first  # the row before the first step, which writes row 0

    def orchestrate(orch, args, config):
        submit = orch.submit_sub
        for step in range(steps):
            new, old = rows[step & 1], rows[1 - (step & 1)]
            at = (step & 1) * width
            for i in range(width):
                a = TaskArgs()
                a.add_tensor(old[i - 1], T.INPUT)
                a.add_tensor(old[i], T.INPUT)
                if width > 2:
                    a.add_tensor(old[(i + 1) % width], T.INPUT)
                a.add_tensor(new[i], T.OUTPUT_EXISTING)
                a.add_scalar(at + i)
                submit(combine, a)

    right = dags.stencil_values(width, steps)
    last = (1 - steps & 1) * width

    def agrees():
        return cells.array[last : last + width].tolist() == right

    return Job(lambda: worker.run(orchestrate), agrees, width * steps, reset)


def tree(worker: Worker, leaves: int) -> Job:
    tasks = 2 * leaves - 1
    cells = Cells(worker, tasks)
    value = cells.view

    def leaf(args):
        i = args.scalar(0)
        k = 2 * (i - leaves)
        value[i] = i if k < 0 else value[k] + value[k + 1]

    add = worker.register(leaf)
    tensors = cells.tensors()

    def orchestrate(orch, args, config):
        submit = orch.submit_sub
        for i in range(tasks):
            a = TaskArgs()
            if i >= leaves:
                k = 2 * (i - leaves)
                a.add_tensor(tensors[k], T.INPUT)
                a.add_tensor(tensors[k + 1], T.INPUT)
            a.add_tensor(tensors[i], T.OUTPUT_EXISTING)
            a.add_scalar(i)
            submit(add, a)

    right = leaves * (leaves - 1) // 2
    return leaving(right, cells.array, lambda: worker.run(orchestrate), tasks, tasks - 1)


def random(worker: Worker, path: str) -> Job:
    graph = dags.read_graph(path)
    n = len(graph)
    producers = [tuple(one for one in row if one >= 0) for row in graph.tolist()]
    cells = Cells(worker, n)
    value = cells.view
    keys = Cells(worker, KEYS).tensors()

    def leaf(args):
        i = args.scalar(0)
        total = i
        for producer in producers[i]:
            total += value[producer]
        value[i] = total & MASK

    mix = worker.register(leaf)

    def orchestrate(orch, args, config):
        submit = orch.submit_sub
        for start in range(0, n, SCOPE):
            with orch.scope():
                for i in range(start, min(start + SCOPE, n)):
                    a = TaskArgs()
                    for producer in producers[i]:
                        a.add_tensor(keys[producer % KEYS], T.INPUT)
                    a.add_tensor(keys[i % KEYS], T.OUTPUT_EXISTING)
                    a.add_scalar(i)
                    submit(mix, a)

    return leaving(dags.random_values(graph), cells.array, lambda: worker.run(orchestrate), n)


def submit(worker: Worker, n: int) -> Job:
    cells = Cells(worker, BUFFERS + 1)
    value = cells.view

    def leaf(args):
        i = value[BUFFERS]  # the tasks follow each other, so a counter does
        value[BUFFERS] = i + 1
        value[(i + 2) % BUFFERS] = (value[i % BUFFERS] + value[(i + 1) % BUFFERS] + 1) & MASK

    add = worker.register(leaf)
    x = cells.tensors()[:BUFFERS]
    triples = list(zip(x, x[1:] + x[:1], x[2:] + x[:2], strict=True))
    spent = 0.0

    def orchestrate(orch, args, config):
        nonlocal spent
        start = time.perf_counter()
        submit_sub = orch.submit_sub
        for i in range(n):
            one, two, new = triples[i % BUFFERS]
            a = TaskArgs()
            a.add_tensor(one, T.INPUT)
            a.add_tensor(two, T.INPUT)
            a.add_tensor(new, T.OUTPUT_EXISTING)
            submit_sub(add, a)
        spent = time.perf_counter() - start

    def run() -> float:
        worker.run(orchestrate)
        return spent

    return leaving(dags.sums_of_two(n)[-1], cells.array, run, n, (n + 1) % BUFFERS)


def group(worker: Worker, n: int, members: int) -> Job:
    cells = Cells(worker, n * members)
    marks = cells.view

    def leaf(args):
        i = args.scalar(0)
        marks[i] += i + 1

    mark = worker.register(leaf)

    def orchestrate(orch, args, config):
        for i in range(n):
            several = []
            for member in range(members):
                a = TaskArgs()
                a.add_scalar(i * members + member)
                several.append(a)
            orch.submit_sub_group(mark, several)

    right = np.arange(1, n * members + 1)
    return leaving(right, cells.array, lambda: worker.run(orchestrate), n)


def send(worker: Worker, mib: int) -> Job:
    array, tensor = doubles(worker, mib << 17)
    result, sum_of = doubles(worker, 1)
    array.fill(1.0)

    def leaf(args):
        doubles_of(args, 1)[0] = doubles_of(args, 0).sum()

    total = worker.register(leaf)

    def orchestrate(orch, args, config):
        a = TaskArgs()
        a.add_tensor(tensor, T.INPUT)
        a.add_tensor(sum_of, T.OUTPUT_EXISTING)
        orch.submit_sub(total, a)

    return Job(
        lambda: worker.run(orchestrate),
        lambda: result[0] == len(array),
        1,
        lambda: result.fill(0.0),
    )


def receive(worker: Worker, mib: int) -> Job:
    array, tensor = doubles(worker, mib << 17)

    def leaf(args):
        doubles_of(args, 0).fill(2.0)

    fill = worker.register(leaf)

    def orchestrate(orch, args, config):
        a = TaskArgs()
        a.add_tensor(tensor, T.OUTPUT_EXISTING)
        orch.submit_sub(fill, a)

    return Job(
        lambda: worker.run(orchestrate),
        lambda: bool((array == 2.0).all()),
        1,
        lambda: array.fill(1.0),
    )


def cholesky(worker: Worker, n: int, tile: int) -> Job:
    from scipy.linalg import blas, lapack

    rows = n // tile
    original = dags.tiles_of(n, tile)
    pairs = {place: doubles(worker, tile * tile) for place in original}
    tiles = {place: array.reshape(tile, tile).T for place, (array, _) in pairs.items()}
    tensors = {place: tensor for place, (_, tensor) in pairs.items()}

    def matrix_of(args, i):
        return doubles_of(args, i).reshape(tile, tile).T  # columns contiguous

    def potrf(args):
        _, info = lapack.dpotrf(matrix_of(args, 0), lower=1, overwrite_a=1)
        if info:
            raise ValueError(f"row {info} of a tile is not positive definite")

    def trsm(args):
        diagonal, mine = matrix_of(args, 0), matrix_of(args, 1)
        blas.dtrsm(1.0, diagonal, mine, side=1, lower=1, trans_a=1, overwrite_b=1)

    def update(args):
        left, right, mine = (matrix_of(args, i) for i in range(3))
        blas.dgemm(-1.0, left, right, beta=1.0, c=mine, trans_b=1, overwrite_c=1)

    def update_diagonal(args):
        left, mine = matrix_of(args, 0), matrix_of(args, 1)
        blas.dgemm(-1.0, left, left, beta=1.0, c=mine, trans_b=1, overwrite_c=1)

    handles = {
        (dags.potrf, 0): worker.register(potrf),
        (dags.trsm, 1): worker.register(trsm),
        (dags.update, 2): worker.register(update),
        (dags.update, 1): worker.register(update_diagonal),
    }
    steps = [
        (
            handles[function, len(set(read))],
            tensors[written],
            [tensors[one] for one in sorted({*read})],
        )
        for function, written, read in dags.cholesky_steps(rows)
    ]

    def reset():
        for place, data in original.items():
            tiles[place][...] = data

    def orchestrate(orch, args, config):
        for handle, written, read in steps:
            a = TaskArgs()
            for tensor in read:
                a.add_tensor(tensor, T.INPUT)
            a.add_tensor(written, T.INOUT)
            orch.submit_sub(handle, a)

    return Job(
        lambda: worker.run(orchestrate),
        lambda: dags.deviation(tiles, n, tile) < dags.TOLERANCE,
        len(steps),
        reset,
    )


JOBS: dict[str, Callable[..., Job]] = {
    one.__name__: one
    for one in (independent, chain, stencil, tree, random, submit, group, send, receive, cholesky)
}


class Again(Worker):
    """A Worker that records the one graph it is asked to run, and runs that."""

    _graph = None

    def run(self, orch_fn):
        if self._graph is None:
            self._graph = self.record(orch_fn)
        return self._graph.run()


AT_ENDPOINTS = ("cholesky",)
"""The leaves of other graphs see arrays of this process."""


class SimplerRef:
    """Opens a Worker for each request, so that its leaves are there before the processes start."""

    def __init__(self, kind: type[Worker], child_mode: str) -> None:
        self._kind = kind
        self.versions = {"simpler_ref": __version__, **versions("numba", "numpy", "scipy")}
        self._child_mode = child_mode

    @contextmanager
    def job(self, workload: str, parameters: dict[str, Any]):
        """Give a Job, its workers ready."""
        workers = parameters.pop("workers", WORKERS)
        mode = self._child_mode
        if self._kind is Again and workload == "submit":
            raise UnsupportedError("a recorded graph submits nothing")
        if self._kind is Again and workload == "random":
            require_short(dags.read_graph(parameters["path"]))
        at_endpoints = mode == "endpoints"
        if at_endpoints and workload not in AT_ENDPOINTS:
            raise UnsupportedError("at endpoints compiled leaves are run, and the Cholesky")
        with opened(self._kind, mode, workers) as worker:
            job = JOBS[workload](worker, **parameters)
            worker.start()
            first = PLACED_AFTER if at_endpoints else self._kind is Again
            for _ in range(first):
                job.reset()  # runs before those that count need their data, too
                job.run()
            yield job


def opened(kind: type[Worker], mode: str, workers: int) -> Worker:
    """Return a Worker with so many processes or threads, or with an endpoint for each."""
    if mode == "endpoints":
        return kind(fleet=ProcessFleet(), endpoints=workers, num_sub_workers=1)
    return kind(3, num_sub_workers=workers, child_mode=mode, mailbox_depth=DEPTH)


@contextmanager
def start():
    """Give what the command line names: processes, threads, or recorded graphs, also at endpoints."""
    kind, mode = {
        "processes": (Worker, "process"),
        "threads": (Worker, "thread"),
        "again": (Again, "process"),
        "again at endpoints": (Again, "endpoints"),
    }[sys.argv[1]]
    peer = SimplerRef(kind, mode)
    first = ("cholesky", {"n": 256, "tile": 128}) if mode == "endpoints" else ("chain", {"n": 100})
    with peer.job(*first) as job:
        job.reset()
        job.run()
    yield peer


if __name__ == "__main__":
    serve(start)
