"""FAIL-AGAIN: after a failure."""

import os
import signal

import numpy as np
import pytest

from simpler_ref import RingFullError, TaskError, Worker, WorkerLostError
from simpler_ref.task_interface import TensorArgType as T
from tests.support import make_args

RING = 1 << 16


class Stop(Exception):
    pass


def raises(args):
    raise ValueError("as wanted")


def dies(args):
    os.kill(os.getpid(), signal.SIGKILL)


def task_raises(orch, handles, x):
    orch.submit_sub(handles[raises], make_args((x, T.INOUT)))
    orch.submit_sub(handles["add"], make_args((x, T.INOUT)))


def task_raises_and_that_is_swallowed(orch, handles, x):
    orch.submit_sub(handles[raises])
    try:
        while True:
            orch.submit_sub(handles["add"], make_args((x, T.INPUT)))
    except TaskError:
        pass


def worker_dies(orch, handles, x):
    orch.submit_sub(handles[dies], make_args((x, T.INOUT)))
    orch.submit_sub(handles["add"], make_args((x, T.INOUT)))


def orch_function_raises(orch, handles, x):
    orch.submit_sub(handles["add"], make_args((x, T.INPUT)))
    orch.scope_begin()
    orch.alloc((5000,), np.uint8)
    raise Stop


def ring_is_full(orch, handles, x):
    orch.alloc((RING // 2,), np.uint8)
    orch.alloc((RING // 2,), np.uint8)
    orch.submit_sub(handles["add"], make_args((x, T.INPUT)))
    orch.alloc((1,), np.uint8)


def call_is_refused(orch, handles, x):
    orch.submit_sub(handles["add"], make_args((x, T.INPUT)))
    orch.submit_sub(None)


FAILURES = {task_raises: TaskError, task_raises_and_that_is_swallowed: TaskError}
FAILURES |= {worker_dies: WorkerLostError, orch_function_raises: Stop}
FAILURES |= {ring_is_full: RingFullError, call_is_refused: TypeError}


@pytest.mark.spec("FAIL-AGAIN-1")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_whatever_a_run_raised_the_next_one_is_as_if_it_had_not(mode):
    options = {"child_mode": mode, "heap_ring_size": RING, "alloc_timeout_s": 0.1}
    with Worker(3, num_sub_workers=2, **options) as w:
        x, total = w.share(np.zeros(1, np.int64)), w.share(np.zeros(1, np.int64))
        handles = {one: w.register(one) for one in (raises, dies)}
        handles["add"] = w.register(lambda args: np.add(total, 1, out=total))
        ids = []

        def good(orch, args, config):
            with orch.scope():
                buffer = orch.alloc((2000,), np.uint8)
                ids.append(orch.ring.next_task_id())
                for _ in range(5):
                    orch.submit_sub(handles["add"], make_args((buffer, T.INOUT), (x, T.INOUT)))

        def outcome():
            total[0] = 0
            ids.clear()
            timing = w.run(good)
            found = timing.tasks, timing.edges, timing.ring_peak_bytes
            return found, total[0], tuple(ids), len(w.worker_pids())

        expected = outcome()
        assert (expected[0][0], expected[1]) == (6, 5)
        for failure, kind in FAILURES.items():
            if mode == "thread" and failure is worker_dies:
                continue
            with pytest.raises(kind):
                w.run(lambda orch, args, config, failure=failure: failure(orch, handles, x))
            assert outcome() == expected, failure.__name__
