"""ORCH-TELL: what is said while one waits."""

import logging
import os
import signal
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from simpler_ref import Worker
from simpler_ref.jit import entries
from simpler_ref.jit import layout as L
from simpler_ref.workers import session
from tests.support import Gate, wait_until
from tests.system.programs import Concurrently


@pytest.fixture
def said(caplog):
    """Give a function that returns what was logged, one string for each message."""
    caplog.set_level(logging.WARNING, "simpler_ref")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "simpler_ref"]


@contextmanager
def busy(mode):
    """Give a started Worker, a task that waits at a gate, and gates: it has started, it may go on."""
    with Gate() as started, Gate() as go, Worker(3, num_sub_workers=2, child_mode=mode) as w:

        @w.register
        def waits():
            started.open(1)
            go.wait()

        w.start()
        yield w, waits, started, go


def names(w, task, worker, how="is RUNNING on"):
    """Return how a message names such a task."""
    return f"task {task} (busy.<locals>.waits) {how} {w._session.manager.name(worker)}"


@pytest.mark.spec("ORCH-TELL-1")
def test_a_first_ctrl_c_says_what_the_run_waits_for_and_what_a_second_one_does(mode, said):
    with busy(mode) as (w, waits, started, go):

        def press():
            started.wait()
            started.wait()
            wait_until(lambda: w._session.engine.mem[L.PARK_ORCH])
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            wait_until(said)
            go.open()

        nothing = w.register(lambda: None)

        def orch_fn(orch, *_):
            orch.submit_sub(nothing)
            for _ in range(3):  # the last one has not started: cancelled, and not waited for
                orch.submit_sub(waits)

        with Concurrently(press), pytest.raises(KeyboardInterrupt):
            w.run(orch_fn)
        (words,) = said()
        assert words.startswith("KeyboardInterrupt: waiting for 2 running tasks: ")
        for worker in range(2):
            assert any(names(w, task, worker, "on") in words for task in (1, 2))
        ends = {
            "process": "kills their workers",
            "thread": "ends them at their next line of Python",
        }
        assert words.endswith(f"; Ctrl-C again {ends[mode]}")


@pytest.mark.spec("ORCH-TELL-1")
def test_a_task_that_keeps_the_run_waiting_is_named_once(mode, said, monkeypatch):
    assert session.STALL_S == 30.0
    monkeypatch.setattr(session, "STALL_S", 0.0)
    look, looks = session.Watch.look, []
    monkeypatch.setattr(session.Watch, "look", lambda *a: (look(*a), looks.append(1)))
    with busy(mode) as (w, waits, _started, go):

        def let_go():
            wait_until(lambda: len(said()) == 1)
            looks.clear()
            wait_until(lambda: len(looks) == 3)  # and no word more
            go.open(2)

        with Concurrently(let_go):
            w.run(lambda orch, *_: [orch.submit_sub(waits) for _ in range(2)])
        (words,) = said()
        for worker in range(2):
            assert any(names(w, task, worker) in words for task in (0, 1))
        pid = w._session.manager.pids.get(0, os.getpid())
        assert f"py-spy dump --pid {pid}" in words and "Ctrl-C" in words and "0 s" in words

        with Concurrently(lambda: (wait_until(lambda: len(said()) == 2), go.open(1))):
            w.run(lambda orch, *_: orch.submit_sub(waits))  # another run, another task
        assert len(said()) == 2


@pytest.mark.spec("ORCH-TELL-1")
def test_nothing_is_said_while_tasks_end(w, monkeypatch):
    clock, told = [0.0], []
    monkeypatch.setattr(session.time, "monotonic", lambda: clock[0])
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
    entries.bound()
    lines = "".join(written).splitlines()
    if is_cached:
        assert lines == []
    else:
        first, last = lines
        assert first.startswith(
            f"simpler_ref: compiling {len(every)} kernels, once on this machine"
        )
        assert last == "simpler_ref: kernels are compiled"
