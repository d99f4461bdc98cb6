"""joblib, on its usual back end of processes (loky), one task to a message."""

from __future__ import annotations

from contextlib import contextmanager

from joblib import Parallel, delayed
from serve import WORKERS, DagPeer, by_levels, serve, versions


@contextmanager
def start():
    """Give a pool, its workers started."""
    with Parallel(n_jobs=WORKERS, backend="loky", batch_size=1, pre_dispatch="all") as parallel:

        def each(calls):
            return parallel(delayed(function)(*arguments) for function, arguments in calls)

        each([(abs, (-1,))] * 100)
        yield DagPeer(versions("joblib", "numpy", "scipy"), by_levels(each))


if __name__ == "__main__":
    serve(start)
