"""ORCH-TELL: what is said while one waits."""

import logging
import os
import signal
import sys
import threading
from types import SimpleNamespace

import pytest

from simpler_ref import Worker
from simpler_ref.jit import entries
from simpler_ref.jit import layout as L
from simpler_ref.workers import watch
from tests.support import Gate, wait_until
from tests.system.programs import Concurrently

MODES = pytest.mark.parametrize("mode", ["process", "thread"])


@pytest.fixture
def said(caplog):
    """Give a function that returns what was logged, one string for each message."""
    caplog.set_level(logging.WARNING, "simpler_ref")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "simpler_ref"]


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

    def names(self, task, worker, how="is RUNNING on"):
        """Return how a message names a task."""
        manager = self.w._session.manager
        return f"task {task} (Busy.__enter__.<locals>.waits) {how} {manager.name(worker)}"


@pytest.mark.spec("ORCH-TELL-1")
@MODES
def test_a_first_ctrl_c_says_what_the_run_waits_for_and_what_a_second_one_does(mode, said):
    with Busy(mode) as b:

        def press():
            b.started.wait()
            b.started.wait()
            wait_until(lambda: b.w._session.engine.mem[L.PARK_ORCH])
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            wait_until(said)
            b.go.open()

        def orch_fn(orch, *_):
            orch.submit_sub(b.nothing)
            for _ in range(3):  # the last one has not started: cancelled, and not waited for
                orch.submit_sub(b.waits)

        with Concurrently(press), pytest.raises(KeyboardInterrupt):
            b.w.run(orch_fn)
        (words,) = said()
        assert words.startswith("KeyboardInterrupt: waiting for 2 running tasks: ")
        for worker in range(2):
            assert any(b.names(task, worker, "on") in words for task in (1, 2))
        ends = {
            "process": "kills their workers",
            "thread": "ends them at their next line of Python",
        }
        assert words.endswith(f"; Ctrl-C again {ends[mode]}")


@pytest.fixture
def at_once(monkeypatch):
    """Have the message come at once, not after 30 s."""
    assert watch.STALL_S == 30.0
    monkeypatch.setattr(watch, "STALL_S", 0.0)


@pytest.mark.spec("ORCH-TELL-1")
@MODES
def test_a_task_that_keeps_the_run_waiting_is_named_once(mode, said, at_once, monkeypatch):
    look, looks = watch.Watch.look, []
    monkeypatch.setattr(watch.Watch, "look", lambda *a: (look(*a), looks.append(1)))
    with Busy(mode) as b:

        def let_go():
            wait_until(lambda: len(said()) == 1)
            looks.clear()
            wait_until(lambda: len(looks) == 3)  # and no word more
            b.go.open(2)

        with Concurrently(let_go):
            b.w.run(lambda orch, *_: [orch.submit_sub(b.waits) for _ in range(2)])
        (words,) = said()
        for worker in range(2):
            assert any(b.names(task, worker) in words for task in (0, 1))
        pid = b.w._session.manager.pids.get(0, os.getpid())
        assert f"py-spy dump --pid {pid}" in words and "Ctrl-C" in words and "0 s" in words

        with Concurrently(lambda: (wait_until(lambda: len(said()) == 2), b.go.open(1))):
            b.w.run(lambda orch, *_: orch.submit_sub(b.waits))  # another run, another task
        assert len(said()) == 2


@pytest.mark.spec("ORCH-TELL-1")
def test_nothing_is_said_while_tasks_end(w, monkeypatch):
    clock, told = [0.0], []
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])
    mem, watched = w._session.engine.mem, w._session.watch()
    monkeypatch.setattr(watched, "_report", lambda remedy: told.append(clock[0]))
    for step in range(10):
        clock[0] = 29.0 * step
        mem[L.COMPLETED_COUNT if step % 2 else L.FAILED_COUNT] += 1
        watched.look()
    assert told == []
    for second in range(1, 31):
        clock[0] += 1
        watched.look()
        assert bool(told) == (second == 30)


@pytest.mark.spec("ORCH-TELL-3")
@pytest.mark.parametrize("is_cached", [False, True])
def test_kernels_that_must_be_compiled_are_announced(is_cached, monkeypatch):
    every = [one for one in vars(entries).values() if hasattr(one, "entry_signature")]
    written = []

    def bind(functions, announce, in_two):
        if not is_cached:
            announce()
        return functions

    monkeypatch.setattr(entries, "bind", bind)
    stderr = SimpleNamespace(write=written.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stderr", stderr)
    entries.Entries(vars(entries))
    lines = "".join(written).splitlines()
    if is_cached:
        assert lines == []
    else:
        first, last = lines
        assert first.startswith(
            f"simpler_ref: compiling {len(every)} kernels, once on this machine"
        )
        assert last == "simpler_ref: kernels are compiled"
