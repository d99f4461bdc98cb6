"""What programs do with a Worker: for tests in which threads do it at once, or signals interrupt it."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from pathlib import Path

import numpy as np
import psutil

import simpler_ref as sr
from simpler_ref.calls import tasks
from simpler_ref.remote import ProcessFleet

from ..support import DEADLINE_S, wait_until

OPTIONS = {
    "process": {"num_sub_workers": 2},
    "thread": {"num_sub_workers": 2, "child_mode": "thread"},
    "spawn": {"num_sub_workers": 2, "start_method": "spawn"},
}


@sr.task
def increase(y: sr.InOut, _text):
    y[0] += 1


def nothing():
    """Do nothing."""


def fail():
    raise ValueError("of a task")


class Uses:
    """A Worker that is not open yet, and what a program does with it: a method each."""

    def __init__(self, kind: str, folder: Path):
        options = OPTIONS.get(kind)
        if options is None:
            spec = sr.RemoteWorkerSpec(ProcessFleet(), num_sub_workers=1, serialized=True)
            options = {"fleet": spec, "endpoints": 1}
        sizes = {"heap_ring_size": 1 << 16, "task_window": 4096, "arena_size": 1 << 20}
        self.w = sr.Worker(**sizes, values_size=1 << 24, **options)
        self.nothing, self.fail = self.w.register(nothing), self.w.register(fail)
        self._file = folder / "trace"

    def _graph(self, orch, *_):
        for _ in range(3):
            with orch.scope():
                orch.submit_sub(self.nothing)

    def submit(self):
        futures = [self.w.submit(abs, -i) for i in range(20)]
        assert [one.result(DEADLINE_S) for one in futures] == list(range(20))

    def submit_and_forget(self):
        y = self.w.zeros(4, np.int64)
        for i in range(100):
            increase(y, "text")
            self.w.submit(abs, i)

    def wait(self):
        slow = self.w.submit(time.sleep, 0.001)
        futures = [slow, self.w.submit(repr, slow), *(self.w.submit(abs, -i) for i in range(5))]
        for one in futures:
            assert one.exception(DEADLINE_S) is None
            assert one.done() and not one.running()

    def cancel(self):
        for one in [self.w.submit(abs, -i) for i in range(20)]:
            assert one.cancel() == one.cancelled() or one.done()
            repr(one)

    def map(self):
        assert list(self.w.map(abs, range(-50, 0))) == list(range(50, 0, -1))

    def run(self):
        self.w.run(self._graph)

    def run_that_fails(self):
        with contextlib.suppress(sr.TaskError):
            self.w.run(lambda orch, *_: [orch.submit_sub(self.fail), self._graph(orch)])

    def record(self):
        self.w.record(self._graph).run()

    def graph(self):
        str(self.w.graph(self._graph))

    def register(self):
        self.w.unregister(self.w.register(lambda: None))

    def trace(self):
        with self.w.trace(self._file):
            self.w.submit(abs, 1)

    def arrays(self):
        self.w.share([1, 2])
        assert self.w.zeros(100).sum() == 0
        assert self.w.full(3, 2).sum() == 6

    def look(self):
        str(self.w.top()), str(self.w.placement()), repr(self.w)
        self.w.worker_pids(), self.w.progress(), self.w.live_domains

    def start(self):
        self.w.start()

    def init(self):
        self.w.init()

    def block(self):
        with self.w:
            self.w.submit(abs, 2).result(DEADLINE_S)

    def shutdown(self):
        self.w.shutdown(cancel_futures=True)

    def close(self):
        self.w.close()

    def assert_works(self):
        """See that nothing is locked, lost, or still there of what was cut short."""
        assert self.w.submit(abs, -7).result(DEADLINE_S) == 7
        self.arrays()
        self.run()
        assert self.w.submit(abs, -8).result(DEADLINE_S) == 8
        assert tasks.current() is self.w._life.stream and len(tasks.opened) == 1


ALL = [name for name, one in vars(Uses).items() if callable(one) and name[0] != "_"]
ALL.remove("assert_works")
BEGINS, ENDS = ["init", "start", "block"], ["block", "shutdown", "close"]
"""Those that a new Worker is needed for, and those after which it is closed."""


class Holdings:
    """What this process has; threads that libraries had started by then may end."""

    def __init__(self):
        gc.collect()
        self.descriptors = self._descriptors()
        self.threads = len(os.listdir("/proc/self/task"))

    @staticmethod
    def _descriptors() -> list[str]:
        found = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the listing
                found.append(os.readlink(f"/proc/self/fd/{name}"))
        return sorted(found)

    def assert_no_more(self, descriptors: bool = True):
        """See that no process, thread, descriptor or current Worker has come since."""
        gc.collect()
        wait_until(lambda: not psutil.Process().children(recursive=True))
        wait_until(lambda: len(os.listdir("/proc/self/task")) <= self.threads)
        assert tasks.current() is None and not tasks.opened
        assert not descriptors or self._descriptors() == self.descriptors
