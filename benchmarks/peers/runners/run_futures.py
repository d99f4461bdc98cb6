"""concurrent.futures: a pool of processes, threads or interpreters; and our executor in its place."""

from __future__ import annotations

import concurrent.futures
import sys
from contextlib import contextmanager

from serve import WORKERS, DagPeer, by_levels, serve, versions


def opened():
    """Return the pool that the command line names."""
    if sys.argv[1] == "simpler_ref":
        from simpler_ref.adapters.executor import Executor

        return Executor(WORKERS)
    kind = {
        "processes": "ProcessPoolExecutor",
        "threads": "ThreadPoolExecutor",
        "interpreters": "InterpreterPoolExecutor",
    }[sys.argv[1]]
    return getattr(concurrent.futures, kind)(WORKERS)


@contextmanager
def start():
    """Give the pool, its workers started."""
    with opened() as pool:

        def each(calls):
            futures = [pool.submit(function, *arguments) for function, arguments in calls]
            return [future.result() for future in futures]

        each([(abs, (-1,))] * 100)
        yield DagPeer(versions("numpy", "scipy"), by_levels(each))


if __name__ == "__main__":
    serve(start)
