"""ORCH-DRAIN: an orchestration function waits for what it has submitted."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref import DataType, TaskArgs, TensorArgType, Worker
from simpler_ref.errors import TaskError
from tests.support import DEADLINE_S, make_args


def add_one(args):
    args.tensor(0).numpy()[...] += 1


def fail_after_the_other(args):
    while not args.tensor(1).numpy()[0]:
        time.sleep(0.001)
    raise ValueError("no luck")


@pytest.mark.spec("ORCH-DRAIN-1")
@pytest.mark.parametrize("depth", [1, 8])
def test_drain_waits_for_what_was_submitted_so_far(depth):
    def orch_fn(orch, args, config):
        for number in range(1, 41):
            orch.alloc((4,), DataType.FLOAT32)  # a buffer is no task that is waited for
            with orch.scope():
                orch.submit_sub(step, chain)
                orch.submit_sub(step, chain)
                if number % 4 == 0:
                    orch.submit_sub_group(nothing, [TaskArgs(), TaskArgs()])
                orch.drain()
                seen.append(int(total[0]))

    for _ in range(2):
        seen = []
        with Worker(3, num_sub_workers=2, mailbox_depth=depth) as w:
            total = w.share(np.zeros(1, np.int64))
            step, nothing = w.register(add_one), w.register(lambda: None)
            chain = make_args((total, TensorArgType.INOUT))
            w.run(orch_fn)
            assert seen == list(range(2, 82, 2))
            w.run(orch_fn)
            assert seen[40:] == list(range(82, 162, 2)), "each run counts anew"


@pytest.mark.spec("ORCH-DRAIN-2", "ORCH-FAIL-1")
def test_drain_raises_what_has_failed_once_all_else_has_ended():
    def orch_fn(orch, args, config):
        orch.submit_sub(
            failing, make_args((one, TensorArgType.INOUT), (other, TensorArgType.NO_DEP))
        )
        orch.submit_sub(step, make_args((one, TensorArgType.INOUT)))  # would have come after it
        orch.submit_sub(step, make_args((other, TensorArgType.INOUT)))
        for _ in range(2):
            with pytest.raises(TaskError, match="no luck"):
                orch.drain()
        ends.append((int(one[0]), int(other[0])))

    ends = []
    with Worker(3, num_sub_workers=2) as w:
        one, other = w.share(np.zeros(1, np.int64)), w.share(np.zeros(1, np.int64))
        failing, step = w.register(fail_after_the_other), w.register(add_one)
        with pytest.raises(TaskError, match="no luck"):
            w.run(orch_fn)
        assert ends == [(0, 1)]


@pytest.mark.spec("ORCH-DRAIN-3", "ORCH-MISUSE-7", "SPEED-REPLAY-7")
def test_drain_is_refused_after_the_run_and_in_a_recording():
    kept = []
    with Worker(3) as w:
        w.run(lambda orch, args, config: kept.append(orch))
        with pytest.raises(RuntimeError, match="run has ended"):
            kept[0].drain()
        with pytest.raises(RuntimeError, match="drain cannot be recorded"):
            w.record(lambda orch, args, config: orch.drain())


@pytest.mark.spec("ORCH-DRAIN-3", "ORCH-INV-1")
def test_drain_is_refused_on_another_thread():
    def orch_fn(orch, args, config):
        with ThreadPoolExecutor(1) as other:
            refused.append(other.submit(orch.drain).exception(DEADLINE_S))

    refused = []
    with Worker(3, num_sub_workers=1) as w:
        w.run(orch_fn)
    assert isinstance(refused[0], RuntimeError)
    assert "thread" in str(refused[0])


def wait_for_flag(args):
    while not args.tensor(0).numpy()[0]:
        time.sleep(0.001)


@pytest.mark.spec("ORCH-DRAIN-1", "ORCH-RUN-8")
def test_a_signal_ends_a_drain():
    def orch_fn(orch, args, config):
        orch.submit_sub(waiting, make_args((flag, TensorArgType.INPUT)))
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            orch.drain()
        finally:
            flag[0] = 1  # only now the task can end

    with Worker(3, num_sub_workers=1) as w:
        flag = w.share(np.zeros(1, np.int64))
        waiting = w.register(wait_for_flag)
        with pytest.raises(KeyboardInterrupt):
            w.run(orch_fn)
