"""executorlib on one machine, with processes that stay."""

from __future__ import annotations

from contextlib import contextmanager

from executorlib import SingleNodeExecutor
from serve import WORKERS, DagPeer, by_levels, serve, versions


@contextmanager
def start():
    """Give the executor, its workers started."""
    with SingleNodeExecutor(max_workers=WORKERS, block_allocation=True) as pool:

        def each(calls):
            futures = [pool.submit(function, *arguments) for function, arguments in calls]
            return [future.result() for future in futures]

        each([(abs, (-1,))] * 10)
        yield DagPeer(versions("executorlib", "numpy", "scipy"), by_levels(each))


if __name__ == "__main__":
    serve(start)
