"""ORCH-FAIL: what a failed task does to the run."""

import os
import threading

import numpy as np
import pytest

from simpler_ref import RemoteTraceback, TaskArgs, TaskError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import Gate, key, make_args, wait_until
from tests.system.programs import Concurrently


class Special(Exception):
    pass


def fails(args):
    raise Special(f"task {args.scalar(0)} cannot go on")


SUBMIT_OR_ALLOC = pytest.mark.parametrize(
    "call",
    [
        lambda orch, handle: orch.submit_sub(handle, make_args((key(0), T.OUTPUT))),
        lambda orch, handle: orch.alloc(8, "uint8"),
    ],
    ids=["submit", "alloc"],
)


@pytest.mark.spec("ORCH-FAIL-1")
def test_run_raises_the_first_failure_once_after_everything_has_drained():
    with Gate() as go, Worker(3, num_sub_workers=2) as w:
        done, kept = w.share(np.zeros(1, np.int64)), []
        failing = w.register(fails)

        @w.register
        def slow(args):
            go.wait()
            done[0] = 1

        def orch_fn(orch, args, config):
            kept.append(orch)
            orch.submit_sub(slow)
            try:
                for i in (7, 8, 9):
                    orch.submit_sub(failing, make_args(scalars=[i]))
            finally:  # the next submit may know of the failure already
                threading.Timer(0.05, go.open).start()

        with pytest.raises(RuntimeError, match="Special: task 7 cannot go on") as info:
            w.run(orch_fn)
        assert isinstance(info.value, TaskError)
        assert info.value.task == 1
        assert done[0] == 1  # the task that was running has finished
        assert kept[0].live_tasks() == 0
        go.open()
        assert w.run(lambda orch, *_: orch.submit_sub(slow)).tasks == 1
        with pytest.raises(TaskError) as again:
            w.run(lambda orch, *_: orch.submit_sub(failing, make_args(scalars=[7])))
        assert again.value is not info.value


@pytest.mark.spec("ORCH-FAIL-2", "ORCH-FAIL-3")
@SUBMIT_OR_ALLOC
def test_once_a_failure_is_known_the_next_call_raises_it_and_who_swallows_it_does_not_hide_it(
    w, call
):
    failing, works = w.register(fails), w.register(lambda args: None)
    seen = []

    def orch_fn(orch, args, config):
        orch.submit_sub(failing, make_args(scalars=[1]))
        wait_until(lambda: orch._mem[L.RUN_ERROR] != 0)
        for _ in range(2):
            with pytest.raises(TaskError, match="Special: task 1") as info:
                call(orch, works)
            seen.append(info.value)
        assert orch.live_tasks() == 1

    with pytest.raises(TaskError) as info:
        w.run(orch_fn)
    assert info.value is seen[0] is seen[1]


@pytest.mark.spec("ORCH-FAIL-2")
@SUBMIT_OR_ALLOC
def test_a_call_that_waits_for_room_raises_a_failure_that_becomes_known(call):
    with Gate() as go, Worker(3, num_sub_workers=1, heap_ring_size=1024, alloc_timeout_s=1e6) as w:

        @w.register
        def fails_later(args):
            go.wait()
            raise Special("at last")

        def let_fail():
            wait_until(lambda: w._session.engine.mem[L.PARK_ORCH] != 0)
            go.open()

        def orch_fn(orch, args, config):
            orch.submit_sub(fails_later, make_args((key(0), T.OUTPUT)))  # the ring is full now
            with Concurrently(let_fail):
                call(orch, fails_later)

        with pytest.raises(TaskError, match="Special: at last"):
            w.run(orch_fn)


@pytest.mark.spec("ORCH-FAIL-4")
@pytest.mark.parametrize("level", [3, 5])
def test_the_message_names_level_kind_and_index_and_ends_with_the_exception(level):
    with Worker(level, num_sub_workers=2) as w:
        second = w.share(np.zeros(1, np.int64))

        @w.register
        def fails_there():
            if os.getpid() == second[0]:
                raise Special("it cannot go on")

        w.start()
        second[0] = w.worker_pids()[1]
        with pytest.raises(RuntimeError, match=f"level {level} sub_worker 1 ") as info:
            w.run(lambda orch, *_: orch.submit_sub_group(fails_there, [TaskArgs()] * 2))
        assert str(info.value).endswith(": Special: it cannot go on")
        assert (info.value.worker, info.value.pid) == (1, second[0])


@pytest.mark.spec("ORCH-FAIL-5")
@pytest.mark.parametrize("length", [10, 5000, 3 * L.TRACE_CAPACITY])
def test_the_workers_traceback_is_attached_and_of_a_long_one_beginning_and_end(w, length):
    def innermost():
        raise Special("x" * length + "!")

    @w.register
    def middle():
        innermost()

    with pytest.raises(TaskError) as info:
        w.run(lambda orch, *_: orch.submit_sub(middle))
    trace = info.value.remote_traceback
    assert trace.startswith("Traceback (most recent call last):")
    assert "in middle" in trace and "in innermost" in trace
    assert isinstance(info.value.__cause__, RemoteTraceback)
    assert trace in str(info.value.__cause__)
    if length < L.TRACE_CAPACITY:
        assert trace.rstrip().endswith("x" * length + "!")
    else:
        assert "(cut)" in trace and trace.rstrip().endswith("x!")
        assert L.TRACE_CAPACITY - 64 < len(trace.encode()) <= L.TRACE_CAPACITY
