"""Ctrl-C, and other signals whose handlers raise: at every moment of a Worker's life."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import threading
import time
from functools import partial

import numpy as np
import psutil
import pytest

import simpler_ref.workers.fork_server
from simpler_ref import TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L

from ..support import Gate, make_args, wait_until
from .programs import Concurrently, Program, in_a_fork, interrupt_after
from .programs import terminate as send
from .workers import Bench, assert_works, mark, only, rounds


def press_ctrl_c(receiver="the main thread"):
    """Send a SIGINT. If another thread gets it, main is not woken: it must look now and then."""
    main = threading.main_thread()
    thread = main if receiver == "the main thread" else threading.current_thread()
    signal.pthread_kill(thread.ident, signal.SIGINT)


# ---------------------------------------------------------------- one Ctrl-C
def parked(bench):
    wait_until(lambda: bench.mem[L.PARK_ORCH])


def cancelled(bench):
    wait_until(lambda: bench.mem[L.CANCEL])


@contextlib.contextmanager
def interrupted(press, *, killed=False, **options):
    """Give a bench whose run another thread interrupts; see that nothing starts and all goes on then.

    The other thread presses when the one task has started. Who is busy is killed, or else let go.
    """
    with Bench(**options) as b:

        def disturb():
            b.started.wait()
            press(b)
            cancelled(b)
            if not killed:
                b.go.open()

        with Concurrently(disturb), pytest.raises(KeyboardInterrupt) as b.caught:
            yield b
        assert b.marks[1] == 0
        b.assert_works()
        assert (b.w.worker_pids() != b.pids) == killed


@pytest.mark.spec("ORCH-RUN-8")
@pytest.mark.parametrize("receiver", ["the main thread", "another thread"])
def test_ctrl_c_while_draining_cancels_and_waits_for_the_running_task(receiver):
    def press(b):
        parked(b)
        press_ctrl_c(receiver)

    def program():
        with interrupted(press) as b:
            b.w.run(b.graph)

    in_a_fork(program)


@pytest.mark.spec("ORCH-RUN-8", "SPEED-DEPTH-9")
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_ctrl_c_with_several_tasks_at_a_worker_starts_none_of_those_that_wait(again):
    def press(b):
        first = int(b.mem[L.A_WORKERS])
        skips = [first + frame * L.WORKER_WORDS + L.W_SKIP for frame in range(4)]
        wait_until(lambda: b.mem[first + L.W_GIVEN] == 4)
        parked(b)
        press_ctrl_c()
        wait_until(lambda: b.mem[skips].tolist() == [0, L.SKIPPED, L.SKIPPED, L.SKIPPED])
        if again:
            parked(b)
            press_ctrl_c()

    def program():
        with interrupted(press, killed=again, mailbox_depth=4) as b:
            b.w.run(b.graph)

    in_a_fork(program)


def test_ctrl_c_while_an_exception_unwinds_comes_out_with_it():
    def press(b):
        cancelled(b)
        press_ctrl_c()  # the second thing that goes wrong: who is busy is killed

    def graph(orch, bench, config):
        bench.graph(orch, None, None)
        wait_until(lambda: bench.pid[0])
        raise ValueError("mine")

    def program():
        with interrupted(press, killed=True) as b:
            b.w.run(graph, b)
        assert isinstance(b.caught.value.__context__, ValueError)

    in_a_fork(program)


def test_a_handler_that_does_not_raise_disturbs_no_run():
    def program():
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        with Bench() as b:

            def terminate():
                b.started.wait()
                for n in range(5):
                    press_ctrl_c()
                    wait_until(lambda n=n: len(seen) > n)
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

        press_it, fork_server = Gate(), simpler_ref.workers.fork_server
        real, fork_server.serve_mailbox = fork_server.serve_mailbox, loop
        with Worker(level=3, num_sub_workers=2) as w:
            marks = w.share(np.zeros(4, np.int64))
            ok = w.register(mark)

            def terminate():
                press_it.wait()
                press_ctrl_c()

            with Concurrently(terminate), pytest.raises(KeyboardInterrupt):
                w.start()
            assert psutil.Process().children() == []
            fork_server.serve_mailbox = real
            assert_works(w, ok, marks)

    in_a_fork(program)


def test_ctrl_c_while_close_waits_kills_who_it_waits_for():
    def program():
        w = Worker(level=3, num_sub_workers=2)
        w.init()
        w.start()
        send(w.worker_pids()[0], signal.SIGSTOP)
        manager = w._session.manager

        def terminate():
            wait_until(lambda: manager._closing)
            time.sleep(0.01)
            press_ctrl_c()

        with Concurrently(terminate), pytest.raises(KeyboardInterrupt):
            w.close()
        w.close()
        assert psutil.Process().children() == []

    in_a_fork(program)


# ---------------------------------------------------------------- whole programs
PROGRAM = """
w = Worker(level=3, num_sub_workers=2)
w.init()
h = w.register(lambda: say("busy") or time.sleep(0.1))
w.run(lambda orch, *_: orch.submit_sub(h))
"""


def test_an_unhandled_ctrl_c_ends_the_program_with_one_traceback():
    with Program(PROGRAM) as program:
        program.wait_for("busy")
        program.signal_group(signal.SIGINT)
        code, _, err = program.finish()
        assert code == -signal.SIGINT
        assert err.count("Traceback") == 1
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert program.everybody_ends()


# ---------------------------------------------------------------- at any moment
@pytest.mark.spec("ORCH-RUN-8")
@rounds(100, 3000)
def test_ctrl_c_at_any_moment_of_a_run_leaves_a_worker_that_works(rounds):
    def program():
        rng = random.Random(1)
        with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 16) as w:
            marks = w.share(np.zeros(4, np.int64))
            ok, bad = w.register(mark), w.register(lambda: 1 / 0)

            def graph(orch, args, config):
                for _ in range(5):
                    with orch.scope():
                        buffer = orch.alloc(30 << 10, np.uint8)
                        both = (marks, T.INOUT), (buffer, T.INPUT)
                        orch.submit_sub(ok, make_args(*both, scalars=[1]))
                if args:
                    orch.submit_sub(bad)

            for i in range(rounds):
                fails = i % 3 == 0
                with contextlib.suppress(TaskError):
                    interrupt_after(rng.uniform(1e-6, 6e-4), partial(w.run, graph, fails))
                if i % 5 == 0:
                    assert_works(w, ok, marks)
                assert not w._life.running
            assert_works(w, ok, marks)
            assert len(w.worker_pids()) == 2

    in_a_fork(program)


@rounds(25, 500)
@pytest.mark.slow("many moments, a Worker each")
def test_ctrl_c_at_any_moment_of_a_workers_life_leaves_nothing_when_it_is_closed(rounds):
    def program():
        rng = random.Random(2)
        gc.collect()
        before = psutil.Process().num_fds()
        for _ in range(rounds):
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
