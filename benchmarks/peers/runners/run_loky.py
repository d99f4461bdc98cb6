"""loky's reusable executor."""

from __future__ import annotations

from contextlib import contextmanager

from loky import get_reusable_executor
from serve import WORKERS, DagPeer, by_levels, serve, versions


@contextmanager
def start():
    """Give the executor, its workers started."""
    pool = get_reusable_executor(max_workers=WORKERS, timeout=None)

    def each(calls):
        futures = [pool.submit(function, *arguments) for function, arguments in calls]
        return [future.result() for future in futures]

    each([(abs, (-1,))] * 100)
    yield DagPeer(versions("loky", "numpy", "scipy"), by_levels(each))
    pool.shutdown()


if __name__ == "__main__":
    serve(start)
