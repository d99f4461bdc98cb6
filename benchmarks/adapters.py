"""Programs for joblib, scikit-learn, dask and executors on our workers and on their own, in turns.

Everything runs in one process with two workers. The shortest of several times counts: other programs can
only make it longer. Starting workers and making data are not part of it. `memory` is what the workers
take of their own while a forest is fitted, at most, in MiB.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec

import dask
import dask.array as da
import dask.threaded
import joblib
import numpy as np
import psutil
from sklearn.ensemble import RandomForestClassifier

import simpler_ref as sr

WORKERS = 2
ROUNDS = 7
ITEMS = 10_000
ALONE = 1000
TASKS = 100_000
WIDTH = 8

Work = Callable[[], object]


def same(value):
    return value


def total(*values):
    return sum(values)


def busy():
    """Compute for about ten milliseconds."""
    return sum(range(300_000))


# ---------------------------------------------------------------- executors
def alone(executor: Executor) -> None:
    for i in range(ALONE):
        executor.submit(same, i).result()


def stream(executor: Executor) -> None:
    for future in [executor.submit(same, i) for i in range(ITEMS)]:
        future.result()


def beside_executors(w: sr.Worker) -> None:
    """Show what a call costs that is submitted to an executor."""
    with w.executor() as own, ProcessPoolExecutor(WORKERS) as other:
        for title, run, count in (("one by one", alone, ALONE), ("in a stream", stream, ITEMS)):
            works = {"Worker.executor": partial(run, own), "ProcessPool": partial(run, other)}
            shortest(works, 1)
            show(f"Executor.submit, {title}", shortest(works), count)


# ---------------------------------------------------------------- joblib
def parallel(backend: str, items: int, **options) -> object:
    make = joblib.delayed(same)  # which costs 3.5 us each time
    with joblib.parallel_config(backend, n_jobs=WORKERS):
        return joblib.Parallel(**options)(make(i) for i in range(items))


def forest(backend: str, x: np.ndarray, y: np.ndarray, trees: int = 100) -> object:
    with joblib.parallel_config(backend, n_jobs=WORKERS):
        return RandomForestClassifier(trees, random_state=0, n_jobs=WORKERS).fit(x, y)


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100_000, 20)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(int)


@contextmanager
def most_memory(found: list[float]) -> Iterator[None]:
    """Note how much private memory the processes below this one have at most, beyond that at first."""

    def private() -> int:
        nbytes = 0
        for child in psutil.Process().children(recursive=True):
            try:
                nbytes += child.memory_full_info().uss
            except psutil.Error:
                continue
        return nbytes

    first, ended = private(), threading.Event()

    def watch() -> None:
        most = 0
        while not ended.wait(0.1):
            most = max(most, private() - first)
        found.append(most / 2**20)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# ---------------------------------------------------------------- dask
def graphs() -> dict[str, tuple[dict, list]]:
    """Return graphs of small tasks, with the keys that are wanted."""
    independent = {("x", i): (same, i) for i in range(TASKS)}
    tree = {("leaf", i): (same, i) for i in range(TASKS // 2)}
    level = list(tree)
    while len(level) > 1:
        above = []
        for at in range(0, len(level), 2):
            above.append(("sum", len(tree)))
            tree[above[-1]] = (total, *level[at : at + 2])
        level = above
    stencil = {("s", 0, i): (same, i) for i in range(WIDTH)}
    for step in range(1, TASKS // WIDTH):
        for i in range(WIDTH):
            around = [("s", step - 1, (i + shift) % WIDTH) for shift in (-1, 0, 1)]
            stencil["s", step, i] = (max, *around)
    last = [("s", TASKS // WIDTH - 1, i) for i in range(WIDTH)]
    return {
        "independent": (independent, list(independent)),
        "tree": (tree, level),
        "stencil": (stencil, last),
    }


def array() -> Work:
    x = da.from_array(np.random.default_rng(0).normal(size=(4000, 4000)), chunks=500)
    return ((x + x.T) - x.mean(axis=0)).std()


# ---------------------------------------------------------------- in turns
def shortest(works: dict[str, Work], rounds: int = ROUNDS) -> dict[str, float]:
    """Return how long each work takes, in seconds, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - start)
    return {name: min(seconds) for name, seconds in taken.items()}


def show(what: str, seconds: dict[str, float], count: int = 1) -> None:
    own, *others = seconds.values()
    each = "  ".join(f"{name} {one / count * 1e6:10.1f} us" for name, one in seconds.items())
    print(f"{what:32}{each}   {', '.join(f'{one / own:.1f} x' for one in others)}", flush=True)


def main() -> None:
    sr.register_joblib()
    backends = ("simpler_ref", "loky")
    for backend in backends:
        parallel(backend, 100)
    works: dict[str, Work] = {one: partial(parallel, one, ITEMS) for one in backends}
    show("Parallel, an item", shortest(works), ITEMS)
    works = {one: partial(parallel, one, 1000, batch_size=1) for one in backends}
    show("Parallel, a batch of one", shortest(works), 1000)
    x, y = data()
    memory: dict[str, list[float]] = {one: [] for one in backends}
    for backend in backends:
        forest(backend, x[:100], y[:100], 4)
        with most_memory(memory[backend]):
            forest(backend, x, y, 20)
    works = {one: partial(forest, one, x, y) for one in backends}
    show("a forest of 100 trees", shortest(works, 2))
    print(
        "memory", {one: round(statistics.mean(found)) for one, found in memory.items()}, flush=True
    )
    with sr.Worker(num_sub_workers=WORKERS) as w:
        w.start()
        beside_executors(w)
        for name, (graph, keys) in graphs().items():
            get = {
                "dask_get": w.dask_get,
                "threads": partial(dask.threaded.get, num_workers=WORKERS),
            }
            works = {one: partial(each, graph, keys) for one, each in get.items()}
            show(f"dask, {name}, a task", shortest(works, 2), len(graph))
        if find_spec("distributed"):
            beside_distributed(w)
        made = array()
        works = {
            "dask_get": partial(made.compute, scheduler=w.dask_get),
            "threads": partial(made.compute, scheduler="threads", num_workers=WORKERS),
        }
        show("dask, an array of 128 MB", shortest(works))


def beside_distributed(w: sr.Worker) -> None:
    """Show what fewer tasks cost with distributed, which takes long for each."""
    from distributed import Client, LocalCluster

    graph = {("x", i): (same, i) for i in range(TASKS // 10)}
    graph["all"] = (len, list(graph))
    cluster = LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        works = {
            "dask_get": partial(w.dask_get, graph, "all"),
            "distributed": partial(client.get, graph, "all"),
        }
        show("dask, a tenth, a task", shortest(works, 2), len(graph))


if __name__ == "__main__":
    main()
