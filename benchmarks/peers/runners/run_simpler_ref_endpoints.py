"""simpler_ref with one endpoint: a level 3 Worker in another process, reached over TCP.

The value of the chain is in the endpoint's memory. The command line says whether the connection is
encrypted.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager

import numpy as np
from serve import Job, UnsupportedError, serve, versions

from simpler_ref import (
    RemoteCallable,
    RemoteTaskArgs,
    RemoteTensorRef,
    RemoteWorkerSpec,
    TensorArgType,
    Worker,
    __version__,
)


def increment(orch, args, config):
    """Be the task: an orchestration function of the endpoint's Worker."""
    args.tensor(0).numpy()[0] += 1


class Endpoint:
    """A Worker with an endpoint that runs chains."""

    def __init__(self, worker, number, handle):
        self.versions = {"simpler_ref": __version__, **versions("pyzmq", "numpy")}
        self._worker, self._number, self._handle = worker, number, handle

    @contextmanager
    def job(self, workload, parameters):
        """Give a Job."""
        if workload != "chain" or parameters.get("workers"):
            raise UnsupportedError("only the chain is run at an endpoint")
        count, value = parameters["n"], np.zeros(1, np.int32)
        buffer = self._worker.remote_malloc(worker=self._number, nbytes=value.nbytes)

        def reset():
            value[0] = 0
            self._worker.remote_copy_to(buffer, value.ctypes.data, value.nbytes)

        def orch_fn(orch, args, config):
            for _ in range(count):
                task = RemoteTaskArgs()
                task.add_tensor(RemoteTensorRef(buffer, 0, (1,), np.int32), TensorArgType.INOUT)
                orch.submit_next_level(self._handle, task)

        def agrees():
            self._worker.remote_copy_from(buffer, value.ctypes.data, value.nbytes)
            return value[0] == count

        try:
            yield Job(lambda: self._worker.run(orch_fn), agrees, count, reset)
        finally:
            self._worker.remote_free(buffer)


@contextmanager
def start():
    """Give the peer, its endpoint started."""
    logging.disable(logging.WARNING)  # that the connection is in the open
    secure = {"encrypted": True, "open": False}[sys.argv[1]]
    with Worker(level=4) as worker:
        number = worker.add_remote_worker(RemoteWorkerSpec(secure=secure))
        handle = worker.register(RemoteCallable("run_simpler_ref_endpoints:increment"))
        worker.start()
        peer = Endpoint(worker, number, handle)
        with peer.job("chain", {"n": 100}) as job:
            job.run()
        yield peer


if __name__ == "__main__":
    serve(start)
