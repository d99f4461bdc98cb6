"""Workers that are threads: Ctrl-C, the start, the end, and exceptions that are raised elsewhere."""

import logging
import signal
import threading
import time

import numpy as np
import pytest

import simpler_ref.workers.manager
from simpler_ref import Worker, WorkerStartError

from ..support import wait_until
from .programs import in_a_fork
from .workers import assert_works, mark, only


def thread_worker(subs=2, **config):
    return Worker(level=3, num_sub_workers=subs, child_mode="thread", **config)


def test_a_second_ctrl_c_ends_a_task_at_its_next_line():
    def program():
        with thread_worker(2) as w:
            marks = w.share(np.zeros(4, np.int64))
            ok = w.register(mark)
            hung = w.register(for_ever)
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            for _ in range(3):
                signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
                try:
                    w.run(lambda orch, *_: [orch.submit_sub(hung) for _ in range(4)] and None)
                except KeyboardInterrupt:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                for _ in range(3):  # no later task gets what was meant for this one
                    assert_works(w, ok, marks)

    in_a_fork(program)


def for_ever():
    while True:
        time.sleep(0.01)


class Sticky:
    """A worker whose `stop` takes long."""

    def __init__(self, stop):
        self.stop = stop

    def run(self, callable, view, config):
        callable(view)


@pytest.mark.parametrize("in_python", [False, True])
def test_a_thread_that_does_not_stop_is_ended_or_told_of(monkeypatch, caplog, in_python):
    monkeypatch.setattr(simpler_ref.workers.manager, "GRACE_S", 0.1)
    event = threading.Event()
    w = Worker(level=3, child_mode="thread")
    w.add_sub(Sticky(for_ever if in_python else event.wait))  # a lock: no line of Python in between
    with caplog.at_level(logging.WARNING, logger="simpler_ref"), w:
        w.run(only(w.register(lambda args: None)))
    assert ("sub_worker 0 is still at a task" in caplog.text) == (not in_python)
    event.set()


class Starting:
    """A worker whose start calls what it is told to, and that notes which thread runs its tasks."""

    told = None

    def __init__(self):
        self.ran = []

    def start(self):
        if self.told is not None:
            self.told()

    def run(self, callable, view, config):
        self.ran.append(threading.get_ident())
        callable(view)


def test_a_thread_that_hangs_in_its_start_serves_nobody_later(monkeypatch):
    monkeypatch.setattr(simpler_ref.workers.manager, "GRACE_S", 0.1)
    kind, event = Starting(), threading.Event()
    w = Worker(level=3, child_mode="thread", start_timeout_s=0.3)
    w.add_sub(kind)
    with w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)
        kind.told = event.wait  # a lock: nothing that ends it reaches it
        with pytest.raises(WorkerStartError, match=r"silent for 0\.3 s"):
            w.start()
        w._session.start_timeout_s = 30.0
        kind.told = None
        assert_works(w, ok, marks)
        before = [t for t in threading.enumerate() if t.name == "sub_worker-0"]
        assert len(before) == 2
        event.set()
        wait_until(lambda: sum(t.name == "sub_worker-0" for t in threading.enumerate()) == 1)
        for _ in range(20):
            assert_works(w, ok, marks)
        assert len(kind.ran) == 21
        assert len(set(kind.ran)) == 1
