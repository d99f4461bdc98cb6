"""Parsl: its executor for many small tasks, two worker processes on this machine."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager

import parsl
from parsl.app.python import PythonApp
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider
from serve import WORKERS, DagPeer, by_futures, serve, versions


@contextmanager
def start():
    """Give a data-flow kernel, its workers started."""
    with tempfile.TemporaryDirectory() as folder:
        executor = HighThroughputExecutor(
            address="127.0.0.1",
            max_workers_per_node=WORKERS,
            provider=LocalProvider(init_blocks=1, max_blocks=1),
        )
        config = Config(
            executors=[executor], run_dir=folder, initialize_logging=False, usage_tracking=0
        )
        with parsl.load(config):
            apps = {}

            def submit(function, *arguments):
                app = apps.get(function)
                if app is None:
                    app = apps[function] = PythonApp(function, executors="all", cache=False)
                return app(*arguments)

            def gather(futures):
                return [future.result() for future in futures]

            gather([submit(abs_of, -1) for _ in range(100)])
            yield DagPeer(versions("parsl", "numpy", "scipy"), by_futures(submit, gather))


def abs_of(value):
    """Do next to nothing, to warm the workers up."""
    return abs(value)


if __name__ == "__main__":
    serve(start)
