"""Waiting: no lost wake-up, no core burnt while idle, and more workers than cores."""

import os
import random
import time

import numpy as np
import pytest

import simpler_ref.orch.room
import simpler_ref.workers.failures
from simpler_ref import TensorArgType as T
from simpler_ref import Worker
from simpler_ref.jit import layout as L

from ..support import make_args, wait_until
from .programs import in_a_fork
from .workers import rounds

FOREVER_NS = 1 << 60


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
    simpler_ref.workers.failures.PARK_NS = simpler_ref.orch.room.PARK_NS = FOREVER_NS
    worker._session.engine.mem[L.PARK_NS] = FOREVER_NS


# ---------------------------------------------------------------- lost wakes
@pytest.mark.spec("SCHED-DISPATCH-3", "SCHED-WAKE-1")
@rounds(40, 4000)
def test_two_tasks_that_need_each_other_always_meet(rounds):
    """An idle worker that sleeps must be woken for the second, though the first is still running."""

    def program():
        rng = random.Random(6)
        with Worker(level=3, num_sub_workers=2) as w:
            here = w.share(np.zeros((2, 64), np.int64))

            def meet(args):
                me, round_ = args.scalar(0), args.scalar(1)
                here[me, 0] = round_
                wait_until(lambda: here[1 - me, 0] >= round_)

            h = w.register(meet)
            w.start()
            nothing_saves_a_lost_wake(w)
            mem = w._session.engine.mem

            def graph(orch, round_, config):
                orch.submit_sub(h, make_args(scalars=[0, round_]))
                pause(rng.random() * 100e-6)
                orch.submit_sub(h, make_args(scalars=[1, round_]))
                if rng.random() < 0.7:  # nobody but the Scheduler thread is there
                    wait_until(lambda: w.progress()[0] == 2)

            for round_ in range(1, rounds):
                mem[L.SPIN_NS] = rng.choice((0, 2_000, 50_000))
                w.run(graph, round_)
                pause(rng.random() * 100e-6)

    in_a_fork(program)


# ---------------------------------------------------------------- more of everything than cores
def count(w, tasks):
    """Run a chain beside independent tasks, and a group, and see that each task has counted once."""
    up, chain, each = w.register(count_up), w.zeros(8, np.int64), w.zeros((tasks, 8), np.int64)
    members = min(8, w.num_sub_workers)

    def graph(orch, *_):
        for row in each:
            orch.submit_sub(up, make_args((chain, T.INOUT)))
            orch.submit_sub(up, make_args((row, T.INOUT)))
        orch.submit_sub_group(up, [make_args((row, T.INOUT)) for row in each[:members]])

    w.run(graph)
    assert set(chain) == {tasks}
    assert (each[:members] == 2).all() and (each[members:] == 1).all()


@pytest.mark.parametrize(
    ("workers", "tasks", "options"),
    [
        (16, 100, {}),
        pytest.param(48, 100, {}, marks=pytest.mark.long),
        *((1, 300, {}), (4, 300, {"mailbox_depth": 4, "pin": True})),
    ],
)
def test_more_workers_than_cores_do_the_same_work_also_on_one_core(workers, tasks, options):
    def program():
        if tasks > 100:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with Worker(level=3, num_sub_workers=workers, **options) as w:
            count(w, tasks)
            assert len(w.worker_pids()) == workers

    in_a_fork(program)
