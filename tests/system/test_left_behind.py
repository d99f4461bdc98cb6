"""What tasks leave behind in their worker: at every moment of its loop, and what is said of it."""

import os
import random
import signal

import numpy as np
import pytest

from simpler_ref import TaskError, Worker, WorkerLostError
from simpler_ref import TensorArgType as T

from ..support import make_args
from .workers import rounds


class Late(Exception):
    pass


def raise_late(*_):
    raise Late


def leave_a_timer(args):
    """Leave a timer whose handler raises after some µs, and again and again if it is told to."""
    signal.signal(signal.SIGALRM, raise_late)
    signal.setitimer(signal.ITIMER_REAL, args.scalar(0) / 1e6, args.scalar(1) / 1e6)


def leave_two_timers(args):
    """The same with two signals, so that several can be pending at once."""
    signal.signal(signal.SIGPROF, raise_late)
    leave_a_timer(args)
    signal.setitimer(signal.ITIMER_PROF, args.scalar(0) / 2e6, args.scalar(1) / 1e6)


@pytest.mark.spec("WM-LEFT-2")
@pytest.mark.parametrize(("leave", "depth"), [(leave_a_timer, 1), (leave_two_timers, 4)])
@rounds(60, 2000)
def test_a_timer_that_raises_at_any_moment_loses_no_worker_and_repeats_no_task(
    leave, depth, rounds
):
    rng = random.Random(depth)
    with Worker(3, num_sub_workers=1, mailbox_depth=depth) as w:
        count = w.share(np.zeros(1, np.int64))
        times = w.share(np.zeros(64, np.int64))

        def mark(args):
            times[args.scalar(0)] += 1
            count[0] += 1

        leaves, marks = w.register(leave), w.register(mark)
        w.start()
        pids, failed = w.worker_pids(), 0
        for _ in range(rounds):
            tasks = rng.randrange(1, 60)
            timer = rng.randrange(1, 3000), rng.choice([0, 20, 50, 1000])
            count[:] = times[:] = 0

            def graph(orch, _args, _config, timer=timer, tasks=tasks):
                orch.submit_sub(leaves, make_args(scalars=timer))
                for i in range(tasks):
                    orch.submit_sub(marks, make_args((count, T.INOUT), scalars=[i]))

            try:
                w.run(graph)
            except WorkerLostError:
                raise
            except TaskError:
                failed += 1  # it came while a task ran
            else:
                assert (count[0], times[:tasks].tolist()) == (tasks, [1] * tasks)
            assert times.max() <= 1
        assert w.worker_pids() == pids
        assert failed < rounds


def test_the_warning_names_the_exception_its_source_and_the_last_task(interpreter):
    code, out, err = interpreter.run("""
        def leaves_a_handler():
            def comes_too_late(*_):
                raise LookupError("too late")
            signal.signal(signal.SIGUSR1, comes_too_late)
        with Worker(level=3, num_sub_workers=1) as w:
            h, nothing = w.register(leaves_a_handler), w.register(lambda: None)
            w.run(lambda orch, *_: orch.submit_sub(h))
            os.kill(w.worker_pids()[0], signal.SIGUSR1)
            w.run(lambda orch, *_: orch.submit_sub(nothing))
        say("done")
        """)
    assert (code, out) == (0, "done\n")
    assert "LookupError was raised between two tasks" in err
    assert "the last one was leaves_a_handler" in err
    assert "in comes_too_late" in err and "too late" in err
    assert err.count("Traceback") == 1


@pytest.mark.spec("WM-LEFT-2")
def test_closed_descriptors_do_not_matter_to_the_next_task():
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros(1, np.int64))
        closes = w.register(lambda: os.closerange(0, 1000))
        counts = w.register(lambda: seen.__setitem__(0, seen[0] + 1))
        pids = []
        for _ in range(3):
            w.run(lambda orch, *_: [orch.submit_sub(closes), orch.submit_sub(counts)])
            pids.append(w.worker_pids())
        assert seen[0] == 3 and pids[0] == pids[2]
