"""WM-CTRL: control requests."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from simpler_ref import TaskArgs, Worker
from simpler_ref.errors import ControlError, ControlTimeoutError, NoMemoryError, WorkerLostError
from simpler_ref.jit import layout as L
from simpler_ref.workers import manager as worker_manager
from simpler_ref.workers.kinds import WorkerKind
from tests.support import DEADLINE_S, Gate, wait_until

REFUSED, SILENT, DEADLY = 13, 14, 15


class Memory(WorkerKind):
    """A worker with memory: what it does with a request depends on the number asked for."""

    label = "memory_worker"

    def __init__(self):
        self.patience = threading.Event()

    def control(self, command, arg0, arg1, arg2):
        if arg0 == REFUSED:
            raise ValueError("thirteen is refused")
        if arg0 == SILENT:
            while not self.patience.is_set():  # an exception thrown in from outside ends no wait
                with suppress(SystemExit):
                    self.patience.wait(0.05)
        if arg0 == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return arg0 * 2

    def run(self, callable, view, config):
        callable()


@pytest.fixture
def make():
    """Give a function that makes a Worker with two such workers."""
    made = []

    def make(mode, **more):
        w = Worker(3, child_mode=mode, **more)
        for _ in range(2):
            w.add_next_level(Memory())
        w.init()
        made.append(w)
        return w

    yield make
    for w in made:
        w.close()


def run_on_both(w, handle):
    """Have each worker run a task."""
    w.run(lambda orch, *_: [orch.submit_next_level(handle, worker=i) for i in range(2)])


@pytest.mark.spec("WM-CTRL-1")
def test_what_a_worker_refuses_raises_with_its_words_and_it_goes_on(make, mode):
    w = make(mode)
    handle = w.register(lambda: None)

    def ask(malloc):
        for _ in range(3):
            words = r"memory_worker 1.*ValueError: thirteen"
            with pytest.raises(ControlError, match=words) as info:
                malloc(REFUSED)
            assert "in control" in info.value.remote_traceback
            assert malloc(21) == 42

    def orch_fn(orch, *_):
        ask(lambda size: orch.malloc(1, size))
        orch.submit_next_level(handle, worker=1)

    ask(lambda size: w.malloc(size, 1))
    w.run(orch_fn)
    ask(lambda size: w.malloc(size, 1))
    run_on_both(w, handle)


@pytest.mark.spec("WM-CTRL-2")
def test_by_default_a_request_waits_30_seconds(make, monkeypatch):
    """By a clock of which each look takes a second."""
    w = make("process")
    w.start()
    looks = []

    def hurry():
        looks.append(1)
        return len(looks) * 10**9

    clock = SimpleNamespace(**{**vars(time), "monotonic_ns": hurry})
    monkeypatch.setattr(worker_manager, "time", clock)
    monkeypatch.setattr(w._session.engine.kernels, "claim_mailbox", lambda *_: L.TIMED_OUT)
    with pytest.raises(ControlTimeoutError, match=r"busy with a task for 30\.0 s"):
        w.malloc(21, 0)
    assert 30 <= len(looks) <= 32


@pytest.mark.spec("WM-CTRL-2")
@pytest.mark.parametrize(("mode", "stays_busy"), [("process", True), ("thread", False)])
def test_a_request_waits_for_its_workers_task_and_not_for_ever(make, mode, stays_busy):
    with Gate() as here, Gate() as go, ThreadPoolExecutor(1) as threads:
        w = make(mode, py_control_timeout_s=0.2 if stays_busy else DEADLINE_S)
        done = w.share(np.zeros(1, np.int64))

        def wait():
            here.open(1)
            go.wait()
            done[0] = 1

        handle = w.register(wait)

        def orch_fn(orch, *_):
            orch.submit_next_level(handle, worker=0)
            here.wait()
            if stays_busy:
                with pytest.raises(ControlTimeoutError, match=r"memory_worker 0.*busy.*0\.2 s"):
                    orch.malloc(0, 21)
                assert orch.malloc(1, 21) == 42, "the other one is idle"
                go.open()
            else:
                asked = threads.submit(w.malloc, 21, 0)
                go.open()
                assert asked.result() == 42

        w.run(orch_fn)
        assert (done[0], w.malloc(21, 0)) == (1, 42)


@pytest.mark.spec("WM-CTRL-4")
@pytest.mark.parametrize("what", ["for one worker", "group"])
def test_a_thread_that_does_not_answer_makes_no_later_run_wait_for_ever(make, what):
    w = make("thread", py_control_timeout_s=0.2)
    mem = w._session.engine.mem
    first, seen = int(mem[L.A_WORKERS]), []
    handle = w.register(lambda: seen.append(1))
    with pytest.raises(ControlTimeoutError, match=r"memory_worker 0.*0\.2 s"):
        w.malloc(SILENT, 0)
    w._session.manager.admit([0, 1])
    usable = mem[first + L.W_USABLE :: L.WORKER_WORDS][:2]
    assert usable.tolist() == [0, L.ALIVE], "it owes an answer"

    def orch_fn(orch, *_):
        if what == "group":
            orch.submit_next_level_group(handle, [TaskArgs()] * 2)
        else:
            orch.submit_next_level(handle, worker=1)
            orch.submit_next_level(handle, worker=0)

    for _ in range(2):
        with pytest.raises(WorkerLostError, match=r"memory_worker.*(not answered|died)"):
            w.run(orch_fn)
        with pytest.raises(ControlTimeoutError, match="earlier"):
            w.malloc(21, 0)
    w.run(lambda orch, *_: orch.submit_next_level(handle))
    w._life.next_level[0].patience.set()
    wait_until(lambda: mem[first + L.W_MAILBOX] & 0xFFFFFFFF == L.CONTROL_DONE)
    seen.clear()
    w.run(orch_fn)
    assert len(seen) == 2, "it is back"
    assert w.malloc(21, 0) == 42


@pytest.mark.spec("WM-CTRL-3", "WM-CTRL-5")
@pytest.mark.parametrize("how", ["dies in it", "dies before it", "does not answer"])
def test_a_process_that_dies_or_does_not_answer_a_request_is_reported_and_replaced(make, how):
    w = make("process", py_control_timeout_s=0.2 if how == "does not answer" else 30.0)
    handle = w.register(lambda: None)
    w.start()
    before = w.worker_pids()

    def orch_fn(orch, *_):
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: before[0] not in w.worker_pids())
        orch.malloc(0, 21)

    words = r"memory_worker 0.*(SIGKILL|0\.2 s.*killed)"
    kind = ControlTimeoutError if how == "does not answer" else WorkerLostError
    with pytest.raises(kind, match=words):
        if how == "dies before it":
            w.run(orch_fn)
        w.malloc(SILENT if how == "does not answer" else DEADLY, 0)
    assert (w.malloc(21, 1), w.malloc(21, 0)) == (42, 42), "a successor is there"
    run_on_both(w, handle)
    after = w.worker_pids()
    assert len(after) == 2 and after[0] != before[0] and after[1] == before[1]


def memory_calls(w):
    """Return the calls for the memory of a worker: name and arguments but the worker's number."""
    at = w.share(np.zeros(8, np.uint8)).ctypes.data
    return [("malloc", (8,)), ("free", (8,)), ("copy_to", (8, at, 8)), ("copy_from", (at, 8, 8))]


@pytest.mark.spec("WM-CTRL-6")
def test_memory_of_a_worker_that_has_none_or_does_not_exist_is_refused():
    def orch_fn(orch, *_):
        for worker_id, (name, args) in product((1, -1, 1 << 40, None, "0"), memory_calls(w)):
            with pytest.raises(IndexError, match="worker_id"):
                getattr(w, name)(*args, worker_id)
            with pytest.raises(IndexError, match="worker_id"):
                getattr(orch, name)(worker_id, *args)

    w = Worker(4, num_sub_workers=3)
    w.add_worker(Worker(3))
    with w:
        for name, args in memory_calls(w):
            with pytest.raises(NoMemoryError, match=r"child_worker 0.*CALLABLE_KIND_UNSUPPORTED"):
                getattr(w, name)(*args)
            private = [one if one == 8 else np.zeros(1).ctypes.data for one in args]
            for given in (args, private):  # the worker is looked at first
                with pytest.raises(IndexError, match=r"out of range.*there are 0"):
                    getattr(w, name)(*given)
        w.run(orch_fn)
    with Worker(3, num_sub_workers=1) as w, pytest.raises(IndexError, match="0 next-level"):
        try:
            w.malloc(8)
        finally:
            assert w.worker_pids() == [], "none was started for it"
