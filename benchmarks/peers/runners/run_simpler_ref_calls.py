"""simpler_ref, called like functions: plain functions that return values; futures are arguments.

The same graphs as for the other peers whose tasks return values, in `dags`. An array of the program is
shared before, and is not copied. With the argument `map`, the tasks of each level are the items of one
`Worker.map`, as they are for pools. With `endpoints`, each worker is that of an endpoint of its own.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager

import numpy as np
import scipy.linalg  # noqa: F401 (workers are new for each request, and inherit it)
from serve import (
    DEPTH,
    WORKERS,
    DagPeer,
    UnsupportedError,
    by_levels,
    call,
    of_one_function,
    serve,
    versions,
)

from simpler_ref import Worker, __version__
from simpler_ref.remote import ProcessFleet


def prepare(worker: Worker):
    """Return how a Dag becomes calls."""

    def prepared(dag):
        tasks = [
            (
                function,
                [worker.share(one) if isinstance(one, np.ndarray) else one for one in constants],
                of,
            )
            for function, constants, of in zip(
                dag.functions, dag.constants, dag.producers, strict=True
            )
        ]

        def run():
            submit, futures = worker.submit, []
            for function, constants, producers in tasks:
                futures.append(submit(function, *constants, *[futures[one] for one in producers]))
            return [futures[sink].result() for sink in dag.sinks]

        return run

    return prepared


def prepare_map(worker: Worker):
    """Return how a Dag becomes a map for each level."""

    def each(calls):
        function, arguments = of_one_function(calls)
        if function is not None:
            return list(worker.starmap(function, arguments))
        return list(worker.map(call, calls))

    return by_levels(each)


AT_ENDPOINTS = "independent", "chain", "stencil", "cholesky"
"""The graphs that are run at endpoints: the others take long, and tell nothing else."""


def worker_with(workers: int) -> Worker:
    """Return a Worker with so many processes."""
    return Worker(num_sub_workers=workers, mailbox_depth=DEPTH)


def worker_over(endpoints: int) -> Worker:
    """Return a Worker with so many endpoints, sessions with a process each."""
    return Worker(fleet=ProcessFleet(), endpoints=endpoints, num_sub_workers=1, mailbox_depth=DEPTH)


class Calls:
    """Opens a Worker for each request."""

    def __init__(self, prepare, make) -> None:
        self.versions = {"simpler_ref": __version__, **versions("numba", "numpy", "scipy")}
        self._prepare, self._make = prepare, make

    @contextmanager
    def job(self, workload, parameters):
        """Give a Job, its workers ready."""
        if self._make is worker_over and workload not in AT_ENDPOINTS:
            raise UnsupportedError(f"at endpoints only these are run: {', '.join(AT_ENDPOINTS)}")
        workers = parameters.pop("workers", WORKERS)
        with self._make(workers) as worker:
            worker.start()
            with DagPeer(self.versions, self._prepare(worker)).job(workload, parameters) as job:
                yield job


@contextmanager
def start():
    """Give the peer; the command line says whether calls have futures or are items, and where."""
    make = worker_over if "endpoints" in sys.argv else worker_with
    peer = Calls({"futures": prepare, "map": prepare_map}[sys.argv[1]], make)
    with peer.job("chain", {"n": 100}) as job:
        job.run()
    yield peer


if __name__ == "__main__":
    serve(start)
