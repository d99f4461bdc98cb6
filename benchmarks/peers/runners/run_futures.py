"""concurrent.futures: a pool of processes, or of threads."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager

from serve import WORKERS, DagPeer, by_levels, serve, versions


@contextmanager
def start():
    """Give the pool that the command line names, its workers started."""
    kind = {"processes": ProcessPoolExecutor, "threads": ThreadPoolExecutor}[sys.argv[1]]
    with kind(WORKERS) as pool:

        def each(calls):
            futures = [pool.submit(function, *arguments) for function, arguments in calls]
            return [future.result() for future in futures]

        each([(abs, (-1,))] * 100)
        yield DagPeer(versions("numpy", "scipy"), by_levels(each))


if __name__ == "__main__":
    serve(start)
