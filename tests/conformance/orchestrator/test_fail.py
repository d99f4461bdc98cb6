"""ORCH-FAIL: what a failed task does to the run."""

import threading

import numpy as np
import pytest

from simpler_ref import RemoteTraceback, TaskError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import DEADLINE_S, Gate, key, make_args, wait_until


class Special(Exception):
    pass


def fails(args):
    raise Special(f"task {args.scalar(0)} cannot go on")


def known(w):
    """Wait until a failure has been collected."""
    wait_until(lambda: w._session.engine.mem[L.RUN_ERROR] != 0)


@pytest.mark.spec("ORCH-FAIL-1")
def test_run_raises_the_first_failure_once_after_everything_has_drained():
    with Gate() as go, Worker(3, num_sub_workers=2) as w:
        done = w.share(np.zeros(1, np.int64))

        def slow(args):
            go.wait()
            done[0] = 1

        slow_handle, failing = w.register(slow), w.register(fails)
        kept = []

        def orch_fn(orch, args, config):
            kept.append(orch)
            x = key(4096)
            orch.submit_sub(slow_handle)
            try:
                for i in (7, 8, 9):  # one after the other, so that the first is known
                    orch.submit_sub(failing, make_args((x, T.NO_DEP), scalars=[i]))
            finally:  # the next submit may know of the failure already
                threading.Timer(0.05, go.open).start()

        with pytest.raises(RuntimeError, match="Special: task 7 cannot go on") as info:
            w.run(orch_fn)
        assert isinstance(info.value, TaskError)
        assert info.value.task == 1
        assert done[0] == 1  # the task that was running has finished
        assert kept[0].live_tasks() == 0
        go.open()
        assert w.run(lambda orch, *_: orch.submit_sub(slow_handle)).tasks == 1


@pytest.mark.spec("ORCH-FAIL-2")
@pytest.mark.parametrize("call", ["submit", "alloc"])
def test_once_a_failure_is_known_the_next_call_raises_it(call):
    with Worker(3, num_sub_workers=1) as w:
        failing, works = w.register(fails), w.register(lambda args: None)
        seen = []

        def orch_fn(orch, args, config):
            orch.submit_sub(failing, make_args(scalars=[1]))
            known(w)
            for _ in range(2):
                with pytest.raises(TaskError, match="Special: task 1") as info:
                    if call == "submit":
                        orch.submit_sub(works, make_args())
                    else:
                        orch.alloc(8, "uint8")
                seen.append(info.value)
            assert orch.live_tasks() == 1
            raise seen[0]

        with pytest.raises(TaskError) as info:
            w.run(orch_fn)
        assert info.value is seen[0] is seen[1]


@pytest.mark.spec("ORCH-FAIL-2")
@pytest.mark.parametrize("call", ["submit", "alloc"])
def test_a_call_that_waits_for_room_raises_a_failure_that_becomes_known(call):
    with (
        Gate() as go,
        Worker(3, num_sub_workers=1, heap_ring_size=1024, alloc_timeout_s=1e6) as w,
    ):

        def fails_later(args):
            go.wait()
            raise Special("at last")

        failing = w.register(fails_later)

        def orch_fn(orch, args, config):
            orch.submit_sub(failing, make_args((key(0), T.OUTPUT)))  # the ring is full now
            threading.Thread(target=opener).start()
            if call == "submit":
                orch.submit_sub(failing, make_args((key(0), T.OUTPUT)))
            else:
                orch.alloc(8, "uint8")

        def opener():
            wait_until(lambda: w._session.engine.mem[L.PARK_ORCH] != 0)
            go.open()

        with pytest.raises(TaskError, match="Special: at last"):
            w.run(orch_fn)


@pytest.mark.spec("ORCH-FAIL-2")
def test_a_wait_for_room_ends_when_another_thread_has_collected_the_failure(driver):
    """Nothing moves any more when the wait begins: only the run's error tells."""
    task = driver.submit()
    driver.finish(task, Special("collected by the Scheduler thread"))
    driver.settle()
    assert (
        driver.k.help_scheduler(
            driver.mem, -1, -1, int(driver.mem[L.WIRING_TAKEN]), int(DEADLINE_S * 1e9)
        )
        == L.OK
    )
    assert driver.try_submit() == L.RUN_FAILED
    assert driver.try_alloc(8) == L.RUN_FAILED


@pytest.mark.spec("ORCH-FAIL-3")
def test_an_orch_function_that_swallows_the_error_does_not_hide_it():
    with Worker(3, num_sub_workers=1) as w:
        failing = w.register(fails)

        def swallows(orch, args, config):
            orch.submit_sub(failing, make_args(scalars=[1]))
            known(w)
            with pytest.raises(TaskError):
                orch.submit_sub(failing, make_args(scalars=[2]))

        with pytest.raises(TaskError, match="Special: task 1"):
            w.run(swallows)


@pytest.mark.spec("ORCH-FAIL-4")
@pytest.mark.parametrize("level", [3, 5])
def test_the_message_names_level_kind_and_index_and_ends_with_the_exception(level):
    with Gate() as go, Gate() as started, Worker(level, num_sub_workers=2) as w:

        def blocks():
            started.open(1)
            go.wait()

        blocking, failing = w.register(blocks), w.register(fails)
        indices = []

        def orch_fn(orch, args, config):
            orch.submit_sub(blocking)
            started.wait()
            mem, first = orch._mem, int(orch._mem[L.A_WORKERS]) + L.W_SLOT
            busy = [i for i in range(2) if mem[first + i * L.WORKER_WORDS] != L.NONE]
            indices.append(1 - busy[0])
            orch.submit_sub(failing, make_args(scalars=[1]))
            known(w)
            go.open()

        with pytest.raises(RuntimeError) as info:
            w.run(orch_fn)
        text = str(info.value)
        assert f"level {level}" in text
        assert f"sub_worker {indices[0]}" in text
        assert text.endswith(": Special: task 1 cannot go on")
        assert info.value.worker == indices[0]
        assert info.value.pid == w.worker_pids()[indices[0]]


@pytest.mark.spec("ORCH-FAIL-5")
@pytest.mark.parametrize("length", [10, 5000], ids=["short", "long"])
def test_the_workers_traceback_is_attached(length):
    def innermost():
        raise Special("x" * length + "!")

    def middle():
        innermost()

    with Worker(3, num_sub_workers=1) as w:
        failing = w.register(middle)
        with pytest.raises(TaskError) as info:
            w.run(lambda orch, *_: orch.submit_sub(failing))
    trace = info.value.remote_traceback
    assert trace.startswith("Traceback (most recent call last):")
    assert "in middle" in trace and "in innermost" in trace
    assert trace.rstrip().endswith("x" * length + "!")
    assert isinstance(info.value.__cause__, RemoteTraceback)
    assert trace in str(info.value.__cause__)


@pytest.mark.spec("ORCH-FAIL-5")
def test_of_a_traceback_beyond_the_region_beginning_and_end_are_attached():
    def recursive(n):
        if n == 0:
            raise Special("y" * 3 * L.TRACE_CAPACITY + "end")
        recursive(n - 1)

    with Worker(3, num_sub_workers=1) as w:
        failing = w.register(lambda args: recursive(5))
        with pytest.raises(TaskError) as info:
            w.run(lambda orch, *_: orch.submit_sub(failing, make_args()))
    trace = info.value.remote_traceback
    assert trace.startswith("Traceback (most recent call last):")
    assert "in recursive" in trace
    assert "(cut)" in trace
    assert trace.rstrip().endswith("yend")
    assert L.TRACE_CAPACITY - 64 < len(trace.encode()) <= L.TRACE_CAPACITY


@pytest.mark.spec("ORCH-FAIL-6")
def test_the_run_after_a_failed_run_starts_clean_and_succeeds():
    with Worker(3, num_sub_workers=2, heap_ring_size=1 << 16) as w:
        total = w.share(np.zeros(1, np.int64))

        def add(args):
            total[0] += args.scalar(0)

        failing, adding = w.register(fails), w.register(add)
        pids = []
        for i in range(4):

            def orch_fn(orch, args, config, i=i):
                assert orch.live_tasks() == 0
                assert orch.ring.next_task_id() == 0
                orch.submit_sub(adding, make_args((total, T.INOUT), scalars=[1]))
                if i % 2 == 0:
                    orch.submit_sub(failing, make_args((total, T.INOUT), scalars=[i]))

            if i % 2 == 0:
                with pytest.raises(TaskError, match=f"Special: task {i}"):
                    w.run(orch_fn)
            else:
                assert w.run(orch_fn).tasks == 1
            pids.append(w.worker_pids())
        assert total[0] == 4
        assert pids == pids[:1] * 4  # a failure that is no death costs no worker
