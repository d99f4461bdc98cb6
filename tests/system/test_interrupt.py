"""Ctrl-C, and other signals whose handlers raise: at every moment of a Worker's life."""

from __future__ import annotations

import contextlib
import gc
import random
import re
import signal
import threading
import time

import numpy as np
import psutil
import pytest

import simpler_ref.workers.fork_server
from simpler_ref import TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L

from ..support import Gate
from .programs import Concurrently, Fork, Program, eventually
from .programs import terminate as send
from .test_failures import args_of, assert_works, failing_leaf, mark, only


def in_a_fork(function):
    """Run a function in a fork of the test, where Ctrl-C is a KeyboardInterrupt."""

    def fork():
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        function()

    with Fork(fork) as program:
        assert program.wait() == 0
        assert program.everybody_ends()


def press_ctrl_c(receiver="the main thread"):
    """Send a SIGINT. If another thread gets it, main is not woken: it must look now and then."""
    main = threading.main_thread()
    thread = main if receiver == "the main thread" else threading.current_thread()
    signal.pthread_kill(thread.ident, signal.SIGINT)


class Bench:
    """A Worker with one process, a leaf that waits at a gate, and one that marks."""

    def __init__(self, **options):
        self.w = Worker(level=3, num_sub_workers=1, **options)
        self.started, self.go = Gate(), Gate()

    def __enter__(self):
        w = self.w.__enter__()
        self.marks = w.share(np.zeros(4, np.int64))

        def wait_there():
            self.started.open(1)
            self.go.wait()

        self.busy, self.ok = w.register(wait_there), w.register(mark)
        w.start()
        self.pids = w.worker_pids()
        self.mem = w._session.engine.mem
        return self

    def __exit__(self, *error):
        self.w.__exit__(*error)

    def submit_mark(self, orch, cell):
        orch.submit_sub(self.ok, args_of((self.marks, T.NO_DEP), scalars=[cell]))

    def graph(self, orch, args, config):
        """Submit one task that waits and ten that mark, which the one worker must do afterwards."""
        orch.submit_sub(self.busy)
        for _ in range(10):
            self.submit_mark(orch, 1)


def interrupts(call):
    """Call, and see that a Ctrl-C comes out."""
    with pytest.raises(KeyboardInterrupt) as caught:
        call()
    return caught.value


# ---------------------------------------------------------------- one Ctrl-C
@pytest.mark.spec("ORCH-RUN-8")
def test_ctrl_c_in_the_orch_function_cancels_and_leaves_the_workers_alive():
    def program():
        with Bench() as b:

            def graph(orch, args, config):
                b.graph(orch, args, config)
                b.started.wait()
                press_ctrl_c()
                time.sleep(100)

            def let_go():
                eventually(lambda: b.mem[L.CANCEL])
                b.go.open()

            with Concurrently(let_go):
                interrupts(lambda: b.w.run(graph))
            assert b.marks[1] == 0
            assert_works(b.w, b.ok, b.marks)
            assert b.w.worker_pids() == b.pids

    in_a_fork(program)


@pytest.mark.spec("ORCH-RUN-8")
@pytest.mark.parametrize("receiver", ["the main thread", "another thread"])
def test_ctrl_c_while_draining_cancels_and_waits_for_the_running_task(receiver):
    def program():
        with Bench() as b:

            def terminate():
                b.started.wait()
                eventually(lambda: b.mem[L.PARK_ORCH])
                press_ctrl_c(receiver)
                eventually(lambda: b.mem[L.CANCEL])
                b.go.open()

            with Concurrently(terminate):
                interrupts(lambda: b.w.run(b.graph))
            assert b.marks[1] == 0
            assert_works(b.w, b.ok, b.marks)
            assert b.w.worker_pids() == b.pids

    in_a_fork(program)


@pytest.mark.parametrize("receiver", ["the main thread", "another thread"])
def test_ctrl_c_while_waiting_for_room_ends_the_wait(receiver):
    def program():
        with Bench(heap_ring_size=1 << 16, alloc_timeout_s=1e6) as b:

            def graph(orch, args, config):
                orch.alloc(1 << 16, np.uint8)
                orch.submit_sub(b.busy)
                orch.alloc(1, np.uint8)

            def terminate():
                b.started.wait()
                eventually(lambda: b.mem[L.PARK_ORCH])
                press_ctrl_c(receiver)
                eventually(lambda: b.mem[L.CANCEL])
                b.go.open()

            with Concurrently(terminate):
                interrupts(lambda: b.w.run(graph))
            assert_works(b.w, b.ok, b.marks)
            assert b.w.worker_pids() == b.pids

    in_a_fork(program)


def test_a_second_ctrl_c_kills_the_workers_that_are_busy():
    def program():
        with Bench() as b:

            def terminate():
                b.started.wait()
                eventually(lambda: b.mem[L.PARK_ORCH])
                press_ctrl_c()
                eventually(lambda: b.mem[L.CANCEL])
                eventually(lambda: b.mem[L.PARK_ORCH])
                press_ctrl_c()

            with Concurrently(terminate):
                interrupts(lambda: b.w.run(b.graph))
            assert b.marks[1] == 0
            assert_works(b.w, b.ok, b.marks)
            assert b.w.worker_pids() != b.pids

    in_a_fork(program)


@pytest.mark.spec("ORCH-RUN-8", "SPEED-DEPTH-9")
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_ctrl_c_with_several_tasks_at_a_worker_starts_none_of_those_that_wait(again):
    def program():
        with Bench(mailbox_depth=4) as b:
            first = int(b.mem[L.A_WORKERS])
            skips = [first + frame * L.WORKER_WORDS + L.W_SKIP for frame in range(4)]

            def terminate():
                b.started.wait()
                eventually(lambda: b.mem[first + L.W_GIVEN] == 4 and b.mem[L.PARK_ORCH])
                press_ctrl_c()
                eventually(lambda: b.mem[skips].tolist() == [0, L.SKIPPED, L.SKIPPED, L.SKIPPED])
                if again:
                    eventually(lambda: b.mem[L.PARK_ORCH])
                    press_ctrl_c()
                else:
                    b.go.open()

            with Concurrently(terminate):
                interrupts(lambda: b.w.run(b.graph))
            assert b.marks[1] == 0
            assert_works(b.w, b.ok, b.marks)
            assert (b.w.worker_pids() != b.pids) == again

    in_a_fork(program)


def test_ctrl_c_while_an_exception_unwinds_comes_out_with_it():
    def program():
        with Bench() as b:

            def graph(orch, args, config):
                b.graph(orch, args, config)
                b.started.wait()
                raise ValueError("mine")

            def terminate():
                eventually(lambda: b.mem[L.CANCEL])
                press_ctrl_c()  # the second thing that goes wrong: who is busy is killed

            with Concurrently(terminate):
                error = interrupts(lambda: b.w.run(graph))
            assert isinstance(error.__context__, ValueError)
            assert_works(b.w, b.ok, b.marks)

    in_a_fork(program)


def test_any_exception_of_a_signal_handler_unwinds_a_run():
    class Alarm(Exception):
        pass

    def program():
        def ring(*_):
            raise Alarm

        signal.signal(signal.SIGUSR1, ring)
        with Bench() as b:

            def terminate():
                b.started.wait()
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                eventually(lambda: b.mem[L.CANCEL])
                b.go.open()

            with Concurrently(terminate), pytest.raises(Alarm):
                b.w.run(b.graph)
            assert b.marks[1] == 0
            assert_works(b.w, b.ok, b.marks)

    in_a_fork(program)


def test_a_handler_that_does_not_raise_disturbs_no_run():
    def program():
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        with Bench() as b:

            def terminate():
                b.started.wait()
                for n in range(20):
                    press_ctrl_c()
                    eventually(lambda n=n: len(seen) > n)
                b.go.open()

            with Concurrently(terminate):
                b.w.run(b.graph)
            assert b.marks[1] == 10

    in_a_fork(program)


def test_ctrl_c_while_the_workers_start_leaves_no_process():
    def program():
        simpler_ref.workers.fork_server.GRACE_S = 0.1

        def loop(*_, **__):
            press_it.open()
            time.sleep(1000)

        press_it = Gate()
        real, simpler_ref.workers.fork_server.serve_mailbox = (
            simpler_ref.workers.fork_server.serve_mailbox,
            loop,
        )
        with Worker(level=3, num_sub_workers=2) as w:
            marks = w.share(np.zeros(4, np.int64))
            ok = w.register(mark)

            def terminate():
                press_it.wait()
                press_ctrl_c()

            with Concurrently(terminate):
                interrupts(w.start)
            assert psutil.Process().children() == []
            simpler_ref.workers.fork_server.serve_mailbox = real
            assert_works(w, ok, marks)

    in_a_fork(program)


def test_ctrl_c_while_close_waits_kills_who_it_waits_for():
    def program():
        w = Worker(level=3, num_sub_workers=2)
        w.init()
        w.start()
        stopped = w.worker_pids()[0]
        send(stopped, signal.SIGSTOP)
        closing = threading.Event()

        def terminate():
            closing.wait()
            manager = w._session.manager
            eventually(lambda: manager._closing)
            time.sleep(0.01)
            press_ctrl_c()

        with Concurrently(terminate):
            closing.set()
            interrupts(w.close)
        w.close()
        assert psutil.Process().children() == []

    in_a_fork(program)


# ---------------------------------------------------------------- whole programs
PROGRAM = """
w = Worker(level=3, num_sub_workers=2)
w.init()
h = w.register(lambda: say("busy") or time.sleep(%s))
"""


def test_ctrl_c_at_a_terminal_reaches_everybody_and_only_the_program_minds():
    with Program(
        PROGRAM % 0.1
        + """
def graph(orch, args, config):
    for _ in range(4):
        orch.submit_sub(h)
w.start()
pids = w.worker_pids()
try:
    w.run(graph)
except KeyboardInterrupt:
    say("caught")
w.run(graph)
assert w.worker_pids() == pids
w.close()
"""
    ) as program:
        program.wait_for("busy")
        program.signal_group(signal.SIGINT)
        program.wait_for("caught")
        code, _, err = program.finish()
        assert code == 0
        assert all(" waiting for " in line for line in err.splitlines()), err
        assert program.everybody_ends()


def test_an_unhandled_ctrl_c_ends_the_program_with_one_traceback():
    with Program(PROGRAM % 0.1 + "w.run(lambda orch, *_: orch.submit_sub(h))") as program:
        program.wait_for("busy")
        program.signal_group(signal.SIGINT)
        code, _, err = program.finish()
        assert code == -signal.SIGINT
        assert err.count("Traceback") == 1
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert program.everybody_ends()


def test_sigterm_turned_into_an_exit_closes_everything():
    with Program(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(8))\n"
        + PROGRAM % 0.1
        + "w.run(lambda orch, *_: orch.submit_sub(h))"
    ) as program:
        program.wait_for("busy")
        program.signal(signal.SIGTERM)
        code, _, err = program.finish()
        assert code == 8
        # on a busy machine the wait may last until it is said
        assert re.fullmatch(r"(SystemExit: waiting for 1 running task: .*\n)?", err), err
        assert program.everybody_ends()


# ---------------------------------------------------------------- at any moment
def interrupt_after(seconds, call):
    """Call, and raise a KeyboardInterrupt in the middle of it, unless it is over by then."""

    armed = [True]

    def terminate(*_):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        try:
            signal.signal(signal.SIGALRM, terminate)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            call()
        finally:
            armed.clear()


@pytest.mark.spec("ORCH-RUN-8")
def test_ctrl_c_at_any_moment_of_a_run_leaves_a_worker_that_works():
    def program():
        rng = random.Random(1)
        with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 16) as w:
            marks = w.share(np.zeros(4, np.int64))
            ok, bad = w.register(mark), w.register(failing_leaf)

            def graph(orch, args, config):
                for _ in range(5):
                    with orch.scope():
                        buffer = orch.alloc(30 << 10, np.uint8)
                        orch.submit_sub(
                            ok, args_of((marks, T.INOUT), (buffer, T.INPUT), scalars=[1])
                        )
                if args:
                    orch.submit_sub(bad, args_of(scalars=[1]))

            for i in range(600):
                fails = i % 3 == 0
                with contextlib.suppress(TaskError):
                    interrupt_after(
                        rng.uniform(1e-6, 6e-4), lambda fails=fails: w.run(graph, fails)
                    )
                if i % 5 == 0:
                    assert_works(w, ok, marks)
                assert not w._life.running
            assert_works(w, ok, marks)
            assert len(w.worker_pids()) == 2

    in_a_fork(program)


def test_ctrl_c_at_any_moment_of_a_workers_life_leaves_nothing_when_it_is_closed():
    def program():
        rng = random.Random(2)
        gc.collect()
        before = psutil.Process().num_fds()
        for _ in range(150):
            w = Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 16, task_window=256)

            def life(w=w):
                w.init()
                nothing = w.register(lambda: None)
                w.run(only(nothing))
                w.unregister(nothing)
                w.close()

            interrupt_after(rng.uniform(1e-4, 3e-2), life)
            w.close()
            w.close()
            assert psutil.Process().children(recursive=True) == []
            assert threading.active_count() == 1
        del w
        gc.collect()
        assert psutil.Process().num_fds() == before

    in_a_fork(program)
