"""multiprocessing.Pool, one task to a message."""

from __future__ import annotations

import multiprocessing
from contextlib import contextmanager

from serve import WORKERS, DagPeer, by_levels, call, of_one_function, serve, versions


@contextmanager
def start():
    """Give a pool, its workers started."""
    with multiprocessing.Pool(WORKERS) as pool:

        def each(calls):
            function, arguments = of_one_function(calls)
            if function is not None:
                return pool.starmap(function, arguments, chunksize=1)
            return pool.map(call, calls, chunksize=1)

        each([(abs, (-1,))] * 100)
        yield DagPeer(versions("numpy", "scipy"), by_levels(each))


if __name__ == "__main__":
    serve(start)
