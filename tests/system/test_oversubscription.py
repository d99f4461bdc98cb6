"""Waiting: no lost wake-up, no core burnt while idle, and more workers than cores."""

from __future__ import annotations

import os
import random
import time

import numpy as np
import psutil
import pytest

import simpler_ref.orch.room
import simpler_ref.workers.ending
from simpler_ref import TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED

from .programs import Fork, eventually
from .test_failures import args_of, mark, only

FOREVER_NS = 1 << 60
SLOW = 20 if INTERPRETED else 1


def in_a_fork(function):
    """Run a function in a fork, which is killed if it hangs."""
    with Fork(function) as program:
        assert program.wait() == 0
        assert program.everybody_ends()


def count_up(args):
    """Add 1 to each output's number: wrong if it runs too early, twice, or never."""
    x = args.tensor(0).numpy()
    x += 1


def pause(seconds):
    """Let time pass without sleeping, which takes much longer than asked for."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def nothing_saves_a_lost_wake(worker):
    """Let the Orch thread sleep for ever, should nobody wake it."""
    simpler_ref.workers.ending.PARK_NS = simpler_ref.orch.room.PARK_NS = FOREVER_NS
    worker._session.engine.mem[L.PARK_NS] = FOREVER_NS


# ---------------------------------------------------------------- lost wakes
@pytest.mark.spec("SCHED-WAKE-1", "SCHED-WAKE-2", "SCHED-WAKE-3")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_no_wake_is_lost_in_thousands_of_runs_without_a_time_limit(workers):
    def program():
        rng = random.Random(workers)
        with Worker(level=3, num_sub_workers=workers, heap_ring_size=1 << 16) as w:
            x = w.share(np.zeros((8, 128), np.int64))  # a row is more than a cache line
            up = w.register(count_up)
            lazy = w.register(lambda args: (pause(args.scalar(0) / 1e6), count_up(args)))
            w.start()
            nothing_saves_a_lost_wake(w)
            mem = w._session.engine.mem
            rows = [x[i] for i in range(8)]
            done = np.zeros(8, np.int64)

            def graph(orch, args, config):
                for _ in range(rng.randrange(1, 12)):
                    row = rng.randrange(8)
                    done[row] += 1
                    tensors = [(rows[row], T.INOUT), (rows[row - 1], T.INPUT)]
                    if rng.random() < 0.3:
                        orch.submit_sub(lazy, args_of(*tensors, scalars=[rng.randrange(120)]))
                    else:
                        orch.submit_sub(up, args_of(*tensors))
                    if rng.random() < 0.2:
                        orch.alloc(rng.randrange(1, 5000), np.uint8)
                    if rng.random() < 0.3:
                        pause(rng.random() * 120e-6)

            for _ in range(4000 // SLOW):
                mem[L.SPIN_NS] = rng.choice((0, 0, 2_000, 50_000))
                w.run(graph)
                if rng.random() < 0.3:
                    pause(rng.random() * 120e-6)
            assert (x == done[:, None]).all()

    in_a_fork(program)


@pytest.mark.spec("SCHED-WAKE-3", "ORCH-BACK-1")
def test_no_wake_is_lost_while_waiting_for_room():
    def program():
        rng = random.Random(9)
        with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 14, alloc_timeout_s=1e6) as w:
            lazy = w.register(lambda args: pause(args.scalar(0) / 1e6))
            w.start()
            nothing_saves_a_lost_wake(w)
            mem = w._session.engine.mem

            def graph(orch, args, config):
                for _ in range(30):
                    with orch.scope():
                        buffer = orch.alloc(rng.randrange(1, 1 << 14), np.uint8)
                        a = args_of((buffer, T.INPUT), scalars=[rng.randrange(60)])
                        orch.submit_sub(lazy, a)

            for _ in range(400 // SLOW):
                mem[L.SPIN_NS] = rng.choice((0, 2_000, 50_000))
                w.run(graph)

    in_a_fork(program)


@pytest.mark.spec("SCHED-WAKE-1", "SCHED-PASS-3")
def test_tasks_go_on_while_the_orch_function_is_busy_elsewhere():
    """The Scheduler thread alone must see every submit and every completion, in time."""

    def program():
        rng = random.Random(4)
        with Worker(level=3, num_sub_workers=2) as w:
            x = w.share(np.zeros(16, np.int64))
            up = w.register(count_up)
            w.start()
            nothing_saves_a_lost_wake(w)
            mem = w._session.engine.mem

            def graph(orch, args, config):
                for _ in range(rng.randrange(1, 4)):
                    length = rng.randrange(1, 6)
                    before = int(x[0])
                    for _ in range(length):
                        orch.submit_sub(up, args_of((x, T.INOUT)))
                        if rng.random() < 0.3:
                            pause(rng.random() * 120e-6)
                    due = before + length
                    eventually(lambda due=due: x[15] == due)

            for _ in range(600 // SLOW):
                mem[L.SPIN_NS] = rng.choice((0, 2_000, 50_000))
                w.run(graph)

    in_a_fork(program)


@pytest.mark.spec("SCHED-DISPATCH-3", "SCHED-WAKE-1")
def test_two_tasks_that_need_each_other_always_meet():
    """An idle worker that sleeps must be woken for the second, though the first is still running."""

    def program():
        rng = random.Random(6)
        with Worker(level=3, num_sub_workers=2) as w:
            here = w.share(np.zeros((2, 64), np.int64))

            def meet(args):
                me, round_ = args.scalar(0), args.scalar(1)
                here[me, 0] = round_
                eventually(lambda: here[1 - me, 0] >= round_)

            h = w.register(meet)
            w.start()
            nothing_saves_a_lost_wake(w)
            mem = w._session.engine.mem

            def graph(orch, round_, config):
                orch.submit_sub(h, args_of(scalars=[0, round_]))
                pause(rng.random() * 100e-6)
                orch.submit_sub(h, args_of(scalars=[1, round_]))
                if rng.random() < 0.7:  # nobody but the Scheduler thread is there
                    eventually(lambda: w.progress()[0] == 2)

            for round_ in range(1, 800 // SLOW):
                mem[L.SPIN_NS] = rng.choice((0, 2_000, 50_000))
                w.run(graph, round_)
                pause(rng.random() * 100e-6)

    in_a_fork(program)


# ---------------------------------------------------------------- idle
def cpu_of(pids):
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def everyone(worker):
    server = psutil.Process(worker.worker_pids()[0]).ppid()
    return [os.getpid(), server, *worker.worker_pids()]


@pytest.mark.spec("SCHED-WAKE-5")
def test_an_idle_worker_uses_no_cpu():
    def program():
        with Worker(level=3, num_sub_workers=8) as w:
            marks = w.share(np.zeros(4, np.int64))
            ok = w.register(mark)

            def graph(orch, args, config):
                for _ in range(100):
                    orch.submit_sub(ok, args_of((marks, T.NO_DEP), scalars=[0]))

            w.run(graph)
            time.sleep(0.1)
            pids = everyone(w)
            before = cpu_of(pids)
            time.sleep(1.5)
            assert cpu_of(pids) - before < 0.15  # one spinning process alone would take 1.5

    in_a_fork(program)


@pytest.mark.spec("SCHED-WAKE-5")
def test_waiting_for_a_long_task_uses_no_cpu():
    def program():
        with Worker(level=3, num_sub_workers=8) as w:
            nap = w.register(lambda: time.sleep(1.5))
            w.run(lambda *_: None)
            pids = everyone(w)
            before = cpu_of(pids)
            w.run(only(nap))
            assert cpu_of(pids) - before < 0.15

    in_a_fork(program)


# ---------------------------------------------------------------- more of everything than cores
def neighbours(args):
    args.tensor(3).numpy()[:] = 1 + max(args.tensor(k).numpy()[0] for k in range(3))


@pytest.mark.parametrize("workers", [16, 48])
def test_many_more_workers_than_cores_do_the_same_work(workers):
    def program():
        with Worker(level=3, num_sub_workers=workers) as w:
            up, nb = w.register(count_up), w.register(neighbours)
            x = w.share(np.zeros(8, np.int64))
            each = w.share(np.zeros((1000, 8), np.int64))

            def chain(orch, args, config):
                for _ in range(1000):
                    orch.submit_sub(up, args_of((x, T.INOUT)))

            def independent(orch, args, config):
                for row in each:
                    orch.submit_sub(up, args_of((row, T.INOUT)))

            def groups(orch, args, config):
                for k in range(0, 1000, 10):
                    members = [args_of((row, T.INOUT)) for row in each[k : k + 10]]
                    orch.submit_sub_group(up, members)

            for _ in range(2):
                w.run(chain)
                w.run(independent)
                w.run(groups)
            assert set(x) == {2000}
            assert (each == 4).all()
            rows = w.share(np.zeros((50, 8, 16), np.int64))

            def wave(orch, args, config):
                for step in range(1, 50):
                    for i in range(8):
                        a = TaskArgs()
                        for j in (i - 1, i, i + 1):
                            a.add_tensor(rows[step - 1, j % 8], T.INPUT)
                        a.add_tensor(rows[step, i], T.OUTPUT_EXISTING)
                        orch.submit_sub(nb, a)

            w.run(wave)
            assert (rows == np.arange(50)[:, None, None]).all()
            assert len(w.worker_pids()) == workers

    in_a_fork(program)


@pytest.mark.parametrize("workers", [1, 4])
def test_everybody_on_one_core_goes_on(workers):
    def program():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with Worker(level=3, num_sub_workers=workers) as w:
            up = w.register(count_up)
            x = w.share(np.zeros(8, np.int64))

            def chain(orch, args, config):
                for _ in range(300):
                    orch.submit_sub(up, args_of((x, T.INOUT)))

            each = w.share(np.zeros((workers, 8), np.int64))

            def groups(orch, args, config):
                for _ in range(100):
                    orch.submit_sub_group(up, [args_of((row, T.INOUT)) for row in each])

            for _ in range(5):
                w.run(chain)
                w.run(groups)
            assert set(x) == {1500}
            assert (each == 500).all()

    in_a_fork(program)


def test_busy_neighbours_slow_things_down_and_no_more():
    def spin():
        while True:
            pass

    def program():
        with Worker(level=3, num_sub_workers=2) as w:
            up = w.register(count_up)
            x = w.share(np.zeros(8, np.int64))

            def chain(orch, args, config):
                for _ in range(100):
                    orch.submit_sub(up, args_of((x, T.INOUT)))

            for _ in range(3):
                w.run(chain)
            assert set(x) == {300}

    hogs = [Fork(spin) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        in_a_fork(program)
    finally:
        for hog in hogs:
            hog.__exit__()
