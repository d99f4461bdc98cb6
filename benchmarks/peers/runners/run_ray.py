"""Ray: two worker processes on this machine, object references as arguments."""

from __future__ import annotations

import os
from contextlib import contextmanager

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import ray
from serve import WORKERS, DagPeer, by_futures, serve, versions


@contextmanager
def start():
    """Give a runtime, its workers started."""
    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=1 << 30,
        configure_logging=False,
    )
    remotes = {}

    def submit(function, *arguments):
        remote = remotes.get(function)
        if remote is None:
            remote = remotes[function] = ray.remote(function)
        return remote.remote(*arguments)

    ray.get([submit(abs_of, -1) for _ in range(100)])
    yield DagPeer(versions("ray", "numpy", "scipy"), by_futures(submit, ray.get))
    ray.shutdown()


def abs_of(value):
    """Do next to nothing, to warm the workers up."""
    return abs(value)


if __name__ == "__main__":
    serve(start)
