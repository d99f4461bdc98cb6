"""Ctrl-C, and other signals whose handlers raise: at every moment of a Worker's life."""

import contextlib
import itertools
import random
import signal
import sys
import threading
import time
from functools import partial

import numpy as np
import psutil
import pytest

import simpler_ref.workers.fork_server
from simpler_ref import Worker
from simpler_ref.jit import layout as L

from ..conformance.worker_manager.test_ctrl import SILENT, Memory
from ..support import Gate, wait_until
from .programs import (
    DEADLINE_S,
    Concurrently,
    dies,
    in_a_fork,
    interrupt_after,
    signals_as_of_a_profiler,
)
from .programs import terminate as send
from .uses import ALL, BEGINS, ENDS, Holdings, Uses
from .workers import Bench, assert_works, mark


def press_ctrl_c(receiver="the main thread"):
    """Send a SIGINT. If another thread gets it, main is not woken: it must look now and then."""
    main = threading.main_thread()
    thread = main if receiver == "the main thread" else threading.current_thread()
    signal.pthread_kill(thread.ident, signal.SIGINT)


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


@pytest.mark.spec("ORCH-RUN-8", "SPEED-DEPTH-6")
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


def test_a_second_ctrl_c_in_a_request_gives_the_worker_up():
    def program():
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        w = Worker(level=3, py_control_timeout_s=1000)
        for _ in range(2):
            w.add_next_level(Memory())
        with w:
            w.start()
            for _ in range(3):
                pid = w._session.manager.pids[1]
                signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
                try:
                    w.malloc(SILENT, worker_id=1)
                except KeyboardInterrupt:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                assert dies(pid)
                assert w.malloc(8, worker_id=1) == 16

    in_a_fork(program)


def test_an_unhandled_ctrl_c_ends_the_program_with_one_traceback(interpreter):
    """The task sends it to everybody, as a terminal does."""
    code, _, err = interpreter.run("""
        w = Worker(level=3, num_sub_workers=2)
        w.init()
        h = w.register(lambda: os.killpg(0, signal.SIGINT) or time.sleep(0.1))
        w.run(lambda orch, *_: orch.submit_sub(h))
        """)
    assert code == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.spec("ORCH-RUN-8", "CALL-STREAM-8", "SEE-ON-1")
@pytest.mark.slow("many moments of every use, and Workers for them")
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside calls"])
@pytest.mark.parametrize(
    ("kind", "uses", "times"),
    [
        *[pytest.param(kind, ALL, 3, id=f"{kind}-each") for kind in ("thread", "process")],
        pytest.param("spawn", ALL, 3, id="spawn-each", marks=pytest.mark.long),
        *[
            pytest.param(kind, [one] * 20, 20, id=f"{kind}-{one}", marks=pytest.mark.long)
            for kind, one in itertools.product(("thread", "process"), ALL)
        ],
    ],
)
def test_whatever_is_interrupted_once_or_twice_the_worker_works_and_leaves_nothing(
    kind, beside, uses, times, tmp_path
):
    """Signals of a profiler come meanwhile; two may come in one finalizer, which Python drops then."""
    took = {}

    def use(name, rng):
        used, over = Uses(kind, tmp_path), threading.Event()

        def call_until_over():
            while not over.wait(1e-4):
                with contextlib.suppress(RuntimeError):  # a run is in progress, or it is closed
                    used.w.submit(abs, -1).result(DEADLINE_S)

        if name not in BEGINS:
            used.init()
            used.submit_and_forget()
        elif name == "start":
            used.init()
        calls = beside and name != "block"
        with contextlib.ExitStack() as stack:
            if calls:
                stack.enter_context(Concurrently(call_until_over))
                stack.callback(over.set)
            for _ in range(1 if name in BEGINS + ENDS else times):
                span = 1.2 * took.get(name, 0.1)
                again = rng.choice([0, 0, 1e-4, span]) * rng.random()
                started = time.perf_counter()
                if not interrupt_after(rng.uniform(1e-6, span), getattr(used, name), again):
                    took[name] = time.perf_counter() - started
                if name not in ENDS:
                    if used.w._life.session is None:
                        used.init()
                    if not beside:
                        used.assert_works()
        used.close()

    def program(uses):
        sys.unraisablehook = lambda _: None  # of signals in finalizers
        rng = random.Random(f"{kind} {beside} {uses[0]}")
        with signals_as_of_a_profiler():
            use("run", rng)
            before = Holdings()
            for name in uses:
                use(name, rng)
                before.assert_no_more(descriptors=False)
            Uses(kind, tmp_path).block()  # closes descriptors that a finalizer should have closed
            before.assert_no_more()

    many = 3 if kind == "spawn" else 10
    for first in range(0, len(uses), many):
        in_a_fork(partial(program, uses[first : first + many]))
