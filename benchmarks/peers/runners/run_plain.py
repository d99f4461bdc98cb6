"""One process and no tasks: functions called one after another, and numpy's own operations."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import dags
import numpy as np
from serve import DagPeer, Job, UnsupportedError, serve, versions


class Plain(DagPeer):
    """The ground under all figures: what the work itself costs."""

    def job(self, workload, parameters):
        """Return a Job; memory is touched in place, in a buffer that is there already."""
        if workload in ("send", "receive"):
            return self._touch(workload == "receive", **parameters)
        return super().job(workload, parameters)

    @contextmanager
    def _touch(self, fill: bool, mib: int):
        array = np.ones(mib << 17)
        result = []

        def run():
            if fill:
                array.fill(2.0)
            else:
                result.append(array.sum())

        def agrees():
            return bool((array == 2.0).all()) if fill else result[-1] == len(array)

        yield Job(run, agrees, 1, lambda: array.fill(1.0))


class Numpy:
    """np.linalg.cholesky on the whole matrix, on as many threads as the environment says."""

    def __init__(self):
        self.versions = versions("numpy")

    @contextmanager
    def job(self, workload, parameters):
        """Return a Job of the only thing it does."""
        if workload != "cholesky":
            raise UnsupportedError("one call, no tasks")
        matrix = dags.matrix(parameters["n"])
        lower = []
        yield Job(
            lambda: lower.append(np.linalg.cholesky(matrix)),
            lambda: bool(np.allclose(lower[-1] @ lower[-1].T, matrix, atol=dags.TOLERANCE)),
            1,
            lower.clear,
        )


@contextmanager
def start():
    """Give the peer that the command line names."""
    if sys.argv[1:] == ["numpy"]:
        yield Numpy()
    else:
        yield Plain(versions("numpy", "scipy"), lambda dag: dag.evaluate)


if __name__ == "__main__":
    serve(start)
