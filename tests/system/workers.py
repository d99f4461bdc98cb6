"""What tests of this folder share: a task that marks, a check that a Worker works, a bench to disturb."""

from __future__ import annotations

import mmap
import os

import numpy as np
import psutil
import pytest

from simpler_ref import TensorArgType as T
from simpler_ref import Worker
from simpler_ref.jit import layout as L

from ..support import Gate, make_args
from .programs import Concurrently


def rounds(few: int, many: int):
    """Repeat a search for a rare race: a few rounds in `make test`, many in `make test-long`."""
    return pytest.mark.parametrize("rounds", [few, pytest.param(many, marks=pytest.mark.long)])


def shared_words(count: int) -> np.ndarray:
    """Return zeros that every process forked from here on shares."""
    return np.frombuffer(mmap.mmap(-1, 8 * count), np.int64)


def mark(args):
    """Count the calls: a task that proves that it ran."""
    args.tensor(0).numpy()[args.scalar(0)] += 1


def only(handle, args=None):
    """Return an orchestration function that submits one task."""
    return lambda orch, _args, _config: orch.submit_sub(handle, args)


def pass_on(args):
    """Return the arguments a task was given, for one of its own."""
    tensors = ((args.tensor(i), T.INOUT) for i in range(args.tensor_count()))
    return make_args(*tensors, scalars=map(args.scalar, range(args.scalar_count())))


def assert_works(worker, handle, marks):
    """Run one task, and see that it was done, that ids began at 0 and that nothing is left over."""
    before = int(marks[0])
    tasks = []

    def one(orch, args, config):
        orch.submit_sub(handle, make_args((marks, T.INOUT), scalars=[0]))
        tasks.append(orch.live_tasks())

    assert worker.run(one).tasks == 1
    assert tasks == [1]
    assert marks[0] == before + 1
    mem = worker._session.engine.mem
    assert mem[L.LIVE] == mem[L.SCOPE_DEPTH] == mem[L.NEXT_TASK_ID] == mem[L.BUSY] == 0


def server_of(worker) -> int:
    """Return the process of a Worker's fork server: the parent of its workers."""
    return psutil.Process(worker.worker_pids()[0]).ppid()


def on_a_thread(function) -> None:
    """Call a function on another thread, and wait for it."""
    with Concurrently(function):
        pass


class Bench:
    """A started Worker with a task that says who it is and waits (`busy`), and one that marks (`ok`)."""

    def __init__(self, workers: int = 1, **options):
        self.w = Worker(level=3, num_sub_workers=workers, **options)
        self.started, self.go = Gate(), Gate()

    def __enter__(self):
        w = self.w.__enter__()
        self.marks = w.share(np.zeros(8, np.int64))
        self.pid = w.share(np.zeros(1, np.int64))

        def wait_there():
            self.pid[0] = os.getpid()
            self.started.open(1)
            self.go.wait()

        self.busy, self.ok = w.register(wait_there), w.register(mark)
        w.start()
        self.pids = w.worker_pids()
        self.mem = w._session.engine.mem
        return self

    def __exit__(self, *error):
        self.w.__exit__(*error)
        self.started.__exit__()
        self.go.__exit__()

    def assert_works(self):
        assert_works(self.w, self.ok, self.marks)

    def graph(self, orch, _args, _config):
        """Submit one task that waits and ten that mark, which a single worker must do afterwards."""
        orch.submit_sub(self.busy)
        for _ in range(10):
            orch.submit_sub(self.ok, make_args((self.marks, T.NO_DEP), scalars=[1]))
