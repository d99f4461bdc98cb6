"""The graphs that are timed, the leaves they are made of, and the ways to time them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from simpler_ref import ContinuousTensor, Orchestrator, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.task_interface import make_tensor

OrchFunction = Callable[..., None]
Prepare = Callable[[Worker], OrchFunction]


def noop(args):
    """Do nothing."""


def tensors(worker: Worker, count: int) -> list[ContinuousTensor]:
    """Return small tensors, each a buffer of its own."""
    return [make_tensor(array) for array in arrays(worker, count)]


def arrays(worker: Worker, count: int) -> list[np.ndarray]:
    """Return small shared arrays."""
    return [worker.empty((16,), np.float32) for _ in range(count)]


# ---------------------------------------------------------------- graphs
def independent(n: int, leaf: Callable[..., None] = noop) -> Prepare:
    """Prepare tasks that have nothing to do with each other."""

    def prepare(worker: Worker) -> OrchFunction:
        task = worker.register(leaf)

        def orchestrate(orch, args, config):
            for _ in range(n):
                orch.submit_sub(task)

        return orchestrate

    return prepare


def own_buffer(n: int) -> Prepare:
    """Prepare independent tasks, each of which writes a buffer of its own."""

    def prepare(worker: Worker) -> OrchFunction:
        task = worker.register(noop)
        buffers = tensors(worker, n)

        def orchestrate(orch, args, config):
            for buffer in buffers:
                a = TaskArgs()
                a.add_tensor(buffer, T.OUTPUT_EXISTING)
                orch.submit_sub(task, a)

        return orchestrate

    return prepare


def chains(n: int, width: int, make=tensors) -> Prepare:
    """Prepare `width` chains of tasks, `n` tasks in all, each with one tensor, INOUT."""

    def prepare(worker: Worker) -> OrchFunction:
        task = worker.register(noop)
        buffers = make(worker, width)
        rounds = n // width

        def orchestrate(orch, args, config):
            for _ in range(rounds):
                for buffer in buffers:
                    a = TaskArgs()
                    a.add_tensor(buffer, T.INOUT)
                    orch.submit_sub(task, a)

        return orchestrate

    return prepare


def three_tensors(n: int, make=tensors) -> Prepare:
    """Prepare tasks that read two buffers and write a third, going round 64 buffers."""

    def prepare(worker: Worker) -> OrchFunction:
        task = worker.register(noop)
        buffers = make(worker, 64)
        triples = list(zip(buffers, buffers[1:] + buffers, buffers[2:] + buffers, strict=False))

        def orchestrate(orch, args, config):
            for _ in range(n // 64):
                for x, y, z in triples:
                    a = TaskArgs()
                    a.add_tensor(x, T.INPUT)
                    a.add_tensor(y, T.INPUT)
                    a.add_tensor(z, T.OUTPUT_EXISTING)
                    orch.submit_sub(task, a)

        return orchestrate

    return prepare


def stencil(width: int, steps: int) -> Prepare:
    """Prepare rows of tasks, each reading three neighbours of the row before; two rows of buffers."""

    def prepare(worker: Worker) -> OrchFunction:
        task = worker.register(noop)
        rows = tensors(worker, width), tensors(worker, width)

        def orchestrate(orch, args, config):
            for step in range(steps):
                old, new = rows[step & 1], rows[~step & 1]
                for i in range(width):
                    a = TaskArgs()
                    a.add_tensor(old[i - 1], T.INPUT)
                    a.add_tensor(old[i], T.INPUT)
                    a.add_tensor(old[(i + 1) % width], T.INPUT)
                    a.add_tensor(new[i], T.OUTPUT_EXISTING)
                    orch.submit_sub(task, a)

        return orchestrate

    return prepare


def sized(
    worker: Worker,
    n: int,
    scope: int,
    at_scope_end: Callable[[Orchestrator], None] | None = None,
) -> OrchFunction:
    """Return a graph of `n` tasks in 64 chains, in scopes of `scope` tasks each."""
    task = worker.register(noop)
    buffers = tensors(worker, 64)

    def orchestrate(orch, args, config):
        for _ in range(n // scope):
            with orch.scope():
                for _ in range(scope // 64):
                    for buffer in buffers:
                        a = TaskArgs()
                        a.add_tensor(buffer, T.INOUT)
                        orch.submit_sub(task, a)
                if at_scope_end is not None:
                    at_scope_end(orch)

    return orchestrate


def allocs(scopes: int, each: int) -> Prepare:
    """Prepare heap buffers, `each` of them in every one of `scopes` scopes."""

    def prepare(worker: Worker) -> OrchFunction:
        def orchestrate(orch, args, config):
            for _ in range(scopes):
                with orch.scope():
                    for _ in range(each):
                        orch.alloc((256,), np.float32)

        return orchestrate

    return prepare


# ---------------------------------------------------------------- timing
def run_seconds(worker: Worker, orchestrate: OrchFunction) -> float:
    """Return the time of a run, to the end of its last task."""
    start = time.perf_counter()
    worker.run(orchestrate)
    return time.perf_counter() - start


def submit_seconds(worker: Worker, orchestrate: OrchFunction) -> float:
    """Return the time inside the orchestration function."""
    spent = 0.0

    def timed(orch, args, config):
        nonlocal spent
        start = time.perf_counter()
        orchestrate(orch, args, config)
        spent = time.perf_counter() - start

    worker.run(timed)
    return spent


def behind_a_long_task(prepare: Prepare) -> Prepare:
    """Prepare the same tasks, to be submitted while the worker is in another one and takes none."""

    def prepared(worker: Worker) -> OrchFunction:
        over = worker.empty(1, np.int64)

        def last(args):
            while not over[0]:
                time.sleep(1e-4)

        task, submit = worker.register(last), prepare(worker)

        def orchestrate(orch, args, config):
            over[0] = 0
            orch.submit_sub(task)
            try:
                submit(orch, args, config)
            finally:
                over[0] = 1

        return orchestrate

    return prepared


@contextmanager
def warm_worker(
    workers: int, prepare: Prepare, tasks: int
) -> Iterator[tuple[Worker, OrchFunction]]:
    """Open a Worker that has run a graph once: processes up, memory touched, `tasks` tasks done."""
    with Worker(level=3, num_sub_workers=workers) as worker:
        yield worker, warmed(worker, prepare, tasks)


def warmed(worker: Worker, prepare: Prepare, tasks: int) -> OrchFunction:
    """Return a graph that a Worker has run once."""
    orchestrate = prepare(worker)
    assert worker.run(orchestrate).tasks == tasks
    return orchestrate


def fresh(
    workers: int,
    prepare: Prepare,
    tasks: int,
    clock: Callable[..., float] = run_seconds,
    repeats: int = 5,
) -> tuple[Callable[[], float], int]:
    """Return a round: a new Worker, one run to warm up, then the median time of a few runs.

    A Worker for each round lets the spread over the rounds show what differs from start to start.
    """

    def one_round() -> float:
        with warm_worker(workers, prepare, tasks) as (worker, orchestrate):
            return statistics.median(clock(worker, orchestrate) for _ in range(repeats))

    return one_round, tasks


def fresh_of(
    make: Callable[[], Worker], prepare: Prepare, tasks: int, repeats: int = 5
) -> tuple[Callable[[], float], int]:
    """Return a round as `fresh` does, for any kind of Worker."""

    def one_round() -> float:
        with make() as worker:
            orchestrate = warmed(worker, prepare, tasks)
            return statistics.median(run_seconds(worker, orchestrate) for _ in range(repeats))

    return one_round, tasks


class Load:
    """A leaf that keeps a core busy with numpy for about `seconds`, whoever else wants the core.

    The work is fixed beforehand, so a task that is interrupted takes longer by that much.
    """

    SIZE = 1024

    def __init__(self, seconds: float) -> None:
        self._data = np.linspace(0.0, 1.0, self.SIZE)
        self._times = 1
        self._times = max(1, round(seconds / min(self._measure() for _ in range(2000))))

    def _measure(self) -> float:
        start = time.perf_counter()
        self(None)
        return time.perf_counter() - start

    def __call__(self, args: TaskArgs | None) -> None:
        for _ in range(self._times):
            np.sqrt(self._data, out=self._data)
