"""ORCH-TELL: what is said while one waits."""

import logging
import os
import signal
import subprocess
import sys
from threading import Thread, main_thread

import numpy as np
import pytest

import simpler_ref.workers.watch
from simpler_ref import RingFullError, Worker
from simpler_ref.jit import layout as L
from tests.support import Gate, wait_until

MODES = pytest.mark.parametrize("mode", ["process", "thread"])


@pytest.fixture
def said(caplog):
    """Return what was logged, one string for each message."""
    caplog.set_level(logging.WARNING, "simpler_ref")

    class Said:
        @property
        def words(self):
            return [r.getMessage() for r in caplog.records if r.name == "simpler_ref"]

    return Said()


class Busy:
    """A Worker whose tasks wait at a gate."""

    def __init__(self, mode, workers=2, **options):
        self.w = Worker(3, num_sub_workers=workers, child_mode=mode, **options)
        self.started, self.go = Gate(), Gate()

    def __enter__(self):
        self.w.__enter__()

        def waits():
            self.started.open(1)
            self.go.wait()

        self.waits = self.w.register(waits)
        self.nothing = self.w.register(lambda: None)
        self.w.start()
        return self

    def __exit__(self, *error):
        self.w.__exit__(*error)
        self.started.__exit__()
        self.go.__exit__()

    def names(self, task, worker):
        """Return how a message names a task."""
        manager = self.w._session.manager
        return f"task {task} (Busy.__enter__.<locals>.waits) on {manager.name(worker)}"


def at_the_same_time(function):
    thread = Thread(target=function)
    thread.start()
    return thread


# ---------------------------------------------------------------- Ctrl-C
@pytest.mark.spec("ORCH-TELL-1")
@MODES
def test_a_first_ctrl_c_says_what_the_run_waits_for_and_what_a_second_one_does(mode, said):
    with Busy(mode) as b:

        def press():
            b.started.wait()
            b.started.wait()
            wait_until(lambda: b.w._session.engine.mem[L.PARK_ORCH])
            signal.pthread_kill(main_thread().ident, signal.SIGINT)
            wait_until(lambda: said.words)
            b.go.open()

        def orch_fn(orch, *_):
            orch.submit_sub(b.nothing)
            for _ in range(2):
                orch.submit_sub(b.waits)
            orch.submit_sub(b.waits)  # it has not started: cancelled, and not waited for

        thread = at_the_same_time(press)
        with pytest.raises(KeyboardInterrupt):
            b.w.run(orch_fn)
        thread.join()
        (words,) = said.words
        assert words.startswith("KeyboardInterrupt: waiting for 2 running tasks: ")
        for worker in range(2):
            assert any(b.names(task, worker) in words for task in (1, 2))
        end = (
            "kills their workers" if mode == "process" else "ends them at their next line of Python"
        )
        assert words.endswith(f"; Ctrl-C again {end}")


@pytest.mark.spec("ORCH-TELL-1")
def test_an_interrupted_run_that_need_not_wait_says_nothing(said):
    with Busy("process") as b:

        def orch_fn(orch, *_):
            orch.submit_sub(b.nothing)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            b.w.run(orch_fn)
        assert said.words == []


# ---------------------------------------------------------------- no progress
@pytest.mark.spec("ORCH-TELL-2")
@MODES
def test_a_task_that_keeps_the_run_waiting_is_named_once(mode, said, monkeypatch):
    assert simpler_ref.workers.watch.STALL_S == 30.0
    monkeypatch.setattr(simpler_ref.workers.watch, "STALL_S", 0.0)
    with Busy(mode) as b:

        def let_go():
            wait_until(lambda: len(said.words) == 2)
            looks = []
            look = simpler_ref.workers.watch.Watch.look
            monkeypatch.setattr(
                simpler_ref.workers.watch.Watch, "look", lambda *a: (look(*a), looks.append(1))
            )
            wait_until(lambda: len(looks) == 3)  # and no word more
            b.go.open(2)

        thread = at_the_same_time(let_go)
        b.w.run(lambda orch, *_: [orch.submit_sub(b.waits) for _ in range(2)])
        thread.join()
        assert len(said.words) == 2
        for worker in range(2):
            (words,) = [one for one in said.words if f"sub_worker {worker}" in one]
            pid = b.w._session.manager.pids.get(worker, os.getpid())
            assert any(b.names(task, worker) in words for task in (0, 1))
            assert f"py-spy dump --pid {pid}" in words and "Ctrl-C" in words and "0 s" in words

        thread = at_the_same_time(lambda: (wait_until(lambda: len(said.words) == 3), b.go.open(1)))
        b.w.run(lambda orch, *_: orch.submit_sub(b.waits))  # another run, another task
        thread.join()
        assert len(said.words) == 3


@pytest.mark.spec("ORCH-TELL-2")
def test_who_waits_for_room_is_told_as_well(said, monkeypatch):
    monkeypatch.setattr(simpler_ref.workers.watch, "STALL_S", 0.0)
    with Busy("process", 1, heap_ring_size=4096, alloc_timeout_s=1.0) as b:

        def orch_fn(orch, *_):
            orch.submit_sub(b.waits)
            with pytest.raises(RingFullError):
                while True:
                    orch.alloc((1024,), np.uint8)
            assert b.names(0, 0) in said.words[0]
            b.go.open()

        b.w.run(orch_fn)
        assert len(said.words) == 1


@pytest.mark.spec("ORCH-TELL-2")
def test_a_wait_for_room_without_workers_says_nothing(said, monkeypatch):
    monkeypatch.setattr(simpler_ref.workers.watch, "STALL_S", 0.0)
    with Worker(3, heap_ring_size=4096, alloc_timeout_s=0.5) as w:

        def orch_fn(orch, *_):
            while True:
                orch.alloc((1024,), np.uint8)

        with pytest.raises(RingFullError):
            w.run(orch_fn)
        assert said.words == []


@pytest.mark.spec("ORCH-TELL-2")
def test_nothing_is_said_while_tasks_end(said, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(simpler_ref.workers.watch.time, "monotonic", lambda: clock[0])
    with Busy("process", 1) as b:
        watch = b.w._session.watch()
        mem = b.w._session.engine.mem
        monkeypatch.setattr(watch, "_tell_stall", lambda: pytest.fail(f"at {clock[0]} s"))
        for step in range(10):
            clock[0] = 29.0 * step
            mem[L.COMPLETED_COUNT if step % 2 else L.FAILED_COUNT] += 1
            watch.look()
        told = []
        monkeypatch.setattr(watch, "_tell_stall", lambda: told.append(clock[0]))
        for second in range(1, 31):
            clock[0] += 1
            watch.look()
            assert bool(told) == (second == 30)


# ---------------------------------------------------------------- compiling
PROGRAM = """
import sys
from simpler_ref.jit import entries
entries.is_cached = lambda function: {cached}
entries.bind = lambda function: 0
sys.stderr.isatty = lambda: {terminal}
entries.entries()
"""


@pytest.mark.spec("ORCH-TELL-3")
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_kernels_that_must_be_compiled_are_announced(cached, terminal):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(cached=cached, terminal=terminal)],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    if cached:
        assert done.stderr == ""
    elif terminal:
        assert "compiling kernels, once on this machine: 1/" in done.stderr
        assert done.stderr.endswith(" … done\n")
    else:
        first, last = done.stderr.splitlines()
        assert first.startswith("simpler_ref: compiling ") and "once on this machine" in first
        assert last == "simpler_ref: kernels are compiled"
