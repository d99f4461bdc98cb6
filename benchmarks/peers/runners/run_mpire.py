"""mpire's pool of processes, one task to a message."""

from __future__ import annotations

from contextlib import contextmanager

from mpire import WorkerPool
from serve import WORKERS, DagPeer, by_levels, serve, versions


def call_apart(function, arguments):
    """Call a function on its arguments, which mpire spreads from a tuple of two."""
    return function(*arguments)


@contextmanager
def start():
    """Give a pool, its workers started."""
    with WorkerPool(WORKERS, keep_alive=True) as pool:

        def each(calls):
            return pool.map(call_apart, calls, chunk_size=1, concatenate_numpy_output=False)

        each([(abs, (-1,))] * 100)
        yield DagPeer(versions("mpire", "numpy", "scipy"), by_levels(each))


if __name__ == "__main__":
    serve(start)
