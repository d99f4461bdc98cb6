"""FAIL-AGAIN: after a failure."""

import os
import signal
from contextlib import suppress

import numpy as np
import pytest

from simpler_ref import RingFullError, TaskError, Worker, WorkerLostError
from simpler_ref.task_interface import TensorArgType as T
from tests.support import make_args

RING = 1 << 16


class Stop(Exception):
    pass


def a_task_raises(orch, handles, x):
    orch.submit_sub(handles["raises"], make_args((x, T.INOUT)))
    orch.submit_sub(handles["add"], make_args((x, T.INOUT)))


def a_task_raises_and_that_is_swallowed(orch, handles, x):
    orch.submit_sub(handles["raises"])
    with suppress(TaskError):
        while True:
            orch.submit_sub(handles["add"], make_args((x, T.INPUT)))


def a_worker_dies(orch, handles, x):
    orch.submit_sub(handles["dies"], make_args((x, T.INOUT)))
    orch.submit_sub(handles["add"], make_args((x, T.INOUT)))


def the_orch_function_raises(orch, handles, x):
    orch.submit_sub(handles["add"], make_args((x, T.INPUT)))
    orch.scope_begin()
    orch.alloc((5000,), np.uint8)
    raise Stop


def a_ring_is_full(orch, handles, x):
    orch.submit_sub(handles["add"], make_args((x, T.INPUT)))
    for nbytes in (RING // 2, RING // 2, 1):
        orch.alloc((nbytes,), np.uint8)


def a_call_is_refused(orch, handles, x):
    orch.submit_sub(handles["add"], make_args((x, T.INPUT)))
    orch.submit_sub(None)


FAILURES = {a_task_raises: TaskError, a_task_raises_and_that_is_swallowed: TaskError}
FAILURES |= {a_worker_dies: WorkerLostError, the_orch_function_raises: Stop}
FAILURES |= {a_ring_is_full: RingFullError, a_call_is_refused: TypeError}


@pytest.mark.spec("FAIL-AGAIN-1")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_whatever_a_run_raised_the_next_one_is_as_if_it_had_not(mode):
    options = {"child_mode": mode, "heap_ring_size": RING, "alloc_timeout_s": 0.1}
    with Worker(3, num_sub_workers=2, **options) as w:
        x, total = w.share(np.zeros(1, np.int64)), w.share(np.zeros(1, np.int64))
        handles = {
            "raises": w.register(lambda args: 1 / 0),
            "dies": w.register(lambda args: os.kill(os.getpid(), signal.SIGKILL)),
            "add": w.register(lambda args: np.add(total, 1, out=total)),
        }
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
            if mode == "thread" and failure is a_worker_dies:
                continue
            with pytest.raises(kind):
                w.run(lambda orch, args, config, failure=failure: failure(orch, handles, x))
            assert outcome() == expected, failure.__name__
