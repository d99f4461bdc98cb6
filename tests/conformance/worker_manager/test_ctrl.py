"""WM-CTRL: control requests."""

import os
import signal
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from simpler_ref import TaskArgs, Worker
from simpler_ref.errors import ControlError, ControlTimeoutError, WorkerLostError
from simpler_ref.jit import layout as L
from simpler_ref.workers import manager as worker_manager
from simpler_ref.workers.kinds import WorkerKind
from tests.support import Gate, wait_until

MODES = pytest.mark.parametrize("mode", ["process", "thread"])


class Memory(WorkerKind):
    """A worker with memory: what it does with a request depends on the number asked for."""

    label = "memory_worker"

    def control(self, command, arg0, arg1, arg2):
        if arg0 == 13:
            raise ValueError("thirteen is refused")
        if arg0 == 14:
            time.sleep(0.6)
        if arg0 == 16:
            while not self.patience.is_set():  # an exception thrown in from outside ends no wait
                with suppress(SystemExit):
                    self.patience.wait(0.05)
        if arg0 == 15:
            os.kill(os.getpid(), signal.SIGKILL)
        return arg0 * 2

    def run(self, callable, view, config):
        callable()


@pytest.fixture
def make():
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


# ---------------------------------------------------------------- refused
@pytest.mark.spec("WM-CTRL-1")
@MODES
@pytest.mark.parametrize("where", ["outside", "in a run"])
def test_what_a_worker_refuses_raises_with_its_words_and_it_goes_on(make, mode, where):
    w = make(mode)
    handle = w.register(lambda: None)

    def ask(orch=None, *_):
        for _ in range(3):
            with pytest.raises(
                ControlError, match=r"memory_worker 1.*ValueError: thirteen"
            ) as info:
                w.malloc(13, 1) if orch is None else orch.malloc(1, 13)
            assert "in control" in info.value.remote_traceback
            assert (w.malloc(21, 1) if orch is None else orch.malloc(1, 21)) == 42
        if orch is not None:
            orch.submit_next_level(handle, worker=1)

    ask() if where == "outside" else w.run(ask)
    w.run(lambda orch, *_: orch.submit_next_level(handle, worker=1))


# ---------------------------------------------------------------- busy for too long
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
@MODES
def test_a_request_to_a_worker_that_stays_busy_is_not_made(make, mode):
    with Gate() as here, Gate() as go:
        w = make(mode, py_control_timeout_s=0.2)
        done = w.share(np.zeros(1, np.int64))

        def wait():
            here.open(1)
            go.wait()
            done[0] = 1

        handle = w.register(wait)

        def orch_fn(orch, *_):
            orch.submit_next_level(handle, worker=0)
            here.wait()
            with pytest.raises(ControlTimeoutError, match=r"memory_worker 0.*busy.*0\.2 s"):
                orch.malloc(0, 21)
            assert orch.malloc(1, 21) == 42, "the other one is idle"
            go.open()

        w.run(orch_fn)
        assert done[0] == 1
        assert w.malloc(21, 0) == 42


@pytest.mark.spec("WM-CTRL-2")
@MODES
def test_a_request_waits_for_the_task_of_its_worker(make, mode):
    with Gate() as here, Gate() as go:
        w = make(mode)

        def wait():
            here.open(1)
            go.wait()

        handle = w.register(wait)
        results = []

        def orch_fn(orch, *_):
            orch.submit_next_level(handle, worker=0)
            here.wait()
            asking = threading.Thread(target=lambda: results.append(w.malloc(21, 0)))
            asking.start()
            go.open()
            asking.join()
            assert results == [42]

        w.run(orch_fn)


# ---------------------------------------------------------------- no answer
@pytest.mark.spec("WM-CTRL-3")
def test_a_process_that_does_not_answer_is_killed_and_replaced(make):
    w = make("process", py_control_timeout_s=0.2)
    handle = w.register(lambda: None)
    w.start()
    before = w.worker_pids()
    with pytest.raises(ControlTimeoutError, match=r"memory_worker 0.*0\.2 s.*killed"):
        w.malloc(14, 0)
    assert w.malloc(21, 1) == 42
    w.run(lambda orch, *_: [orch.submit_next_level(handle, worker=i) for i in range(2)])
    after = w.worker_pids()
    assert len(after) == 2 and after[0] != before[0] and after[1] == before[1]


@pytest.mark.spec("WM-CTRL-4")
def test_a_thread_that_owes_an_answer_is_not_admitted_with_the_others(make):
    w = make("thread", py_control_timeout_s=0.2)
    go = w._tree.next_level[0].patience = threading.Event()
    with pytest.raises(ControlTimeoutError):
        w.malloc(16, 0)
    mem, manager = w._session.engine.mem, w._session.manager
    manager.admit([0, 1])
    usable = int(mem[L.A_WORKERS]) + L.W_USABLE
    assert mem[[usable, usable + L.WORKER_WORDS]].tolist() == [0, L.ALIVE]
    go.set()


@pytest.mark.spec("WM-CTRL-4")
@pytest.mark.parametrize("what", ["for one worker", "group"])
def test_a_thread_that_does_not_answer_makes_no_later_run_wait_for_ever(make, what):
    w = make("thread", py_control_timeout_s=0.2)
    go = threading.Event()
    w._tree.next_level[0].patience = go
    seen = []
    handle = w.register(lambda: seen.append(1))
    with pytest.raises(ControlTimeoutError, match=r"memory_worker 0.*0\.2 s"):
        w.malloc(16, 0)

    def orch_fn(orch, *_):
        if what == "group":
            orch.submit_next_level_group(handle, [TaskArgs()] * 2)
        else:
            orch.submit_next_level(handle, worker=1)
            orch.submit_next_level(handle, worker=0)

    words = r"memory_worker.*(not answered|died)"
    for _ in range(2):
        with pytest.raises(WorkerLostError, match=words):
            w.run(orch_fn)
        with pytest.raises(ControlTimeoutError, match="earlier"):
            w.malloc(21, 0)
    w.run(lambda orch, *_: orch.submit_next_level(handle))
    go.set()
    mem = w._session.engine.mem
    state = int(mem[L.A_WORKERS]) + L.W_MAILBOX
    wait_until(lambda: mem[state] & 0xFFFFFFFF == L.CONTROL_DONE)
    seen.clear()
    w.run(orch_fn)
    assert len(seen) == 2, "it is back"
    assert w.malloc(21, 0) == 42


# ---------------------------------------------------------------- death
@pytest.mark.spec("WM-CTRL-5")
@pytest.mark.parametrize("when", ["in the request", "before it"])
def test_a_worker_that_dies_is_reported_and_replaced(make, when):
    w = make("process")
    handle = w.register(lambda: None)
    w.start()
    pid = w.worker_pids()[0]
    if when == "before it":

        def orch_fn(orch, *_):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: pid not in w.worker_pids())
            orch.malloc(0, 21)

        with pytest.raises(WorkerLostError, match=r"memory_worker 0.*SIGKILL"):
            w.run(orch_fn)
    else:
        with pytest.raises(WorkerLostError, match=r"memory_worker 0.*SIGKILL"):
            w.malloc(15, 0)
    assert w.malloc(21, 0) == 42, "a successor is there"
    w.run(lambda orch, *_: [orch.submit_next_level(handle, worker=i) for i in range(2)])
    assert pid not in w.worker_pids()


# ---------------------------------------------------------------- nothing to manage
@pytest.mark.spec("WM-CTRL-6")
@MODES
def test_a_worker_without_memory_says_so(mode):
    w = Worker(4, num_sub_workers=1, child_mode=mode)
    w.add_worker(Worker(3))
    with w:
        array = w.share(np.zeros(8, np.uint8))
        at = array.ctypes.data
        for ask in (
            lambda: w.malloc(8),
            lambda: w.free(8),
            lambda: w.copy_to(8, at, 8),
            lambda: w.copy_from(at, 8, 8),
        ):
            with pytest.raises(ControlError, match=r"child_worker 0.*CALLABLE_KIND_UNSUPPORTED"):
                ask()


@pytest.mark.spec("WM-CTRL-6")
@pytest.mark.parametrize("worker_id", [1, -1, 1 << 40, None, "0"])
def test_memory_of_a_worker_that_does_not_exist_is_an_index_error(worker_id):
    w = Worker(4, num_sub_workers=3)
    w.add_worker(Worker(3))
    with w:
        at = w.share(np.zeros(8, np.uint8)).ctypes.data

        def orch_fn(orch, *_):
            for ask in (
                lambda: w.malloc(8, worker_id),
                lambda: w.free(8, worker_id),
                lambda: w.copy_to(8, at, 8, worker_id),
                lambda: w.copy_from(at, 8, 8, worker_id),
                lambda: orch.malloc(worker_id, 8),
                lambda: orch.free(worker_id, 8),
                lambda: orch.copy_to(worker_id, 8, at, 8),
                lambda: orch.copy_from(worker_id, at, 8, 8),
            ):
                with pytest.raises(IndexError, match="worker_id"):
                    ask()

        w.run(orch_fn)
    with Worker(3, num_sub_workers=1) as w, pytest.raises(IndexError, match="0 next-level"):
        w.malloc(8)
