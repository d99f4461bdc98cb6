"""SPEED-DEPTH: more than one task per worker."""

import numpy as np
import pytest
from numba import int64

from simpler_ref import RemoteWorkerSpec, TaskError, Worker, leaf
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from tests.support import (
    COMPLETED,
    CONSUMED,
    PENDING,
    READY,
    RUNNING,
    Gate,
    make_args,
    no_passes,
    reads,
    tasks_given,
    wait_until,
    writes,
)

KEY = 0x7000_0000
FOREVER_NS = 10**13
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3, 7])


def busy_driver(make_driver, depth, tasks, **size):
    """Return a driver whose workers have that many tasks each."""
    driver = make_driver(depth=depth, sub=len(tasks), **size)
    for worker, count in enumerate(tasks):
        for _ in range(count):
            driver.submit(owner=worker)
        driver.settle()
    assert [len(driver.all_given(worker)) for worker in range(len(tasks))] == list(tasks)
    return driver


@pytest.mark.spec("SPEED-DEPTH-2", "SCHED-WAKE-7")
@pytest.mark.parametrize("kind", [L.SUB, L.NEXT_LEVEL])
def test_while_a_worker_sleeps_no_task_is_put_behind_another(make_driver, kind):
    driver = make_driver(depth=3, sub=2, next_level=2)
    first = 0 if kind == L.NEXT_LEVEL else 2
    driver.mem[L.DEFER_NS] = FOREVER_NS
    driver.submit_and_settle(kind=kind)
    driver.set_parked(first + 1, True)
    for _ in range(3):  # however short the tasks were so far
        slot = driver.submit_and_settle(kind=kind)
        assert driver.state(slot) == READY
        driver.answer_and_settle(first)
        assert driver.worker_of(slot) == first, "it was awake"
    slot = driver.submit_and_settle(kind=kind)
    assert driver.state(slot) == READY, "the one before may be long"
    assert driver.x.any_deferred(driver.mem)
    other = driver.submit_and_settle(kind=L.SUB + L.NEXT_LEVEL - kind)
    assert driver.state(other) == RUNNING, "the other pool has its own mind"
    driver.mem[L.DEFER_NS] = 0
    driver.settle()
    assert driver.worker_of(slot) == first + 1


@leaf
def choose(marks: int64[:], number: int):
    if number == 2:
        raise ValueError("the first")
    if number == 3:
        raise LookupError("the second")
    marks[number] += 1


def in_python(function):
    """Return what a leaf of an array and a number does, as a Python callable."""
    plain = function.py_func
    return lambda args: plain(args.tensor(0).numpy(), args.scalar(0))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        pytest.param("process", lambda made: made, id="leaf in a process"),
        pytest.param("thread", in_python, id="python in a thread"),
    ],
)
@pytest.mark.spec("SPEED-DEPTH-6")
def test_the_first_of_several_failures_is_reported_and_the_other_tasks_run(mode, kind):
    with Gate() as go, Worker(3, num_sub_workers=1, child_mode=mode, mailbox_depth=6) as w:
        handle, hold = w.register(kind(choose)), w.register(go.wait)
        marks, mem = w.share(np.zeros(6, np.int64)), w._session.engine.mem

        def task(number):
            return make_args((marks, T.NO_DEP), scalars=[number])

        def orch_fn(orch, *_):
            orch.submit_sub(hold)
            for number in range(1, 6):
                orch.submit_sub(handle, task(number))
            with no_passes(mem):  # both have failed before anybody looks
                assert tasks_given(w) == 6
                go.open(1)
                first = int(mem[L.A_WORKERS]) + L.W_MAILBOX
                frames = [first + i * L.WORKER_WORDS for i in range(6)]
                wait_until(lambda: all(mem[at] & 0xFFFFFFFF == L.TASK_DONE for at in frames))

        with pytest.raises(TaskError, match=r"task 2 \(.*\): ValueError: the first") as failure:
            w.run(orch_fn)
        assert "the first" in failure.value.remote_traceback
        assert "the second" not in failure.value.remote_traceback
        assert marks.tolist() == [0, 1, 0, 0, 1, 1]
        w.run(lambda orch, *_: orch.submit_sub(handle, task(5)))
        assert marks[5] == 2


@pytest.mark.spec("SPEED-DEPTH-6", "SPEED-AHEAD-1")
def test_what_a_worker_ended_while_another_is_buried_is_done_though_it_dies_next(make_driver):
    driver = make_driver(depth=2, sub=3)
    before = driver.submit(writes(KEY), owner=0)
    behind = driver.submit_and_settle(reads(KEY), owner=1)
    driver.kill(2)
    driver.x.note_deaths(driver.mem)
    driver.x.collect(driver.mem)
    driver.post_done(0)
    assert driver.may_start(1) == L.OK
    driver.kill(0)
    driver.x.lose_tasks(driver.mem)
    driver.settle()
    assert (driver.state(before), driver.state(behind)) == (COMPLETED, PENDING)
    driver.answer_and_settle(1)
    assert (driver.state(behind), driver.mem[L.RUN_ERROR]) == (COMPLETED, 0)


@DEPTHS
@pytest.mark.spec("SPEED-DEPTH-6")
def test_a_cancelled_run_starts_nothing_that_stands_behind_the_current_task(make_driver, depth):
    driver = busy_driver(make_driver, depth, [depth, 1, 0])
    slots, other = driver.all_given(0), driver.all_given(1)
    driver.finish_run(cancel=True)
    skipped = [driver.frame_word(0, L.W_SKIP, frame) for frame in driver.frames(0)]
    assert skipped == [0] + [L.SKIPPED] * (depth - 1)
    driver.mem[L.SPIN_NS] = 10**8  # enough to meet every frame, also interpreted
    assert driver.k.finish_and_receive(driver.mem, 0, 0) == L.PARK, "it has met no other task"
    assert driver.k.finish_and_receive(driver.mem, 1, 0) == L.PARK
    driver.settle()
    assert (driver.mem[L.COMPLETED_COUNT], driver.mem[L.FAILED_COUNT]) == (2, depth - 1)
    assert driver.mem[L.RUN_ERROR] == 0, "a cancel is no failure of a task"
    assert {driver.state(slot) for slot in [*slots, *other]} == {CONSUMED}
    driver.reclaim()
    driver.end_run()
    driver.begin_run()
    again = [driver.submit() for _ in range(3 * depth)]
    driver.settle()
    assert {driver.state(slot) for slot in again} == {RUNNING}
    for worker in range(3):
        for frame in driver.frames(worker):
            assert driver.frame_word(worker, L.W_SKIP, frame) == 0
            assert driver.mailbox_state(worker, frame) == (L.TASK_READY, 0)


@DEPTHS
@pytest.mark.spec("SPEED-DEPTH-6")
def test_a_worker_that_is_told_to_stop_starts_none_of_its_tasks(make_driver, depth):
    for count in {1, (depth + 1) // 2, depth}:
        driver = busy_driver(make_driver, depth, [count])
        assert driver.x.receive(driver.mem, 0) == L.RESOLVE, "it is at the first one"
        driver.k.request_stop(driver.mem, 0)
        assert driver.k.finish_and_receive(driver.mem, 0, 0) == L.STOP
        states = [driver.mailbox_state(0, frame)[0] for frame in driver.frames(0)]
        assert states == [L.TASK_DONE] + [L.TASK_READY] * (count - 1)


@pytest.mark.spec("SPEED-DEPTH-1")
def test_a_depth_is_from_1_to_64_and_1_by_default():
    for depth in (0, -1, 65, 1 << 40):
        with pytest.raises(ValueError, match=rf"mailbox_depth.*{depth}|{depth}.*mailbox_depth"):
            Worker(3, num_sub_workers=1, mailbox_depth=depth)
    assert Worker(3).mailbox_depth == 1
    with Worker(3, num_sub_workers=1, mailbox_depth=64) as w:
        count = w.share(np.zeros(1, np.int64))
        handle = w.register(lambda: count.__setitem__(0, count[0] + 1))
        w.run(lambda orch, *_: [orch.submit_sub(handle) for _ in range(200)])
        assert count[0] == 200


@pytest.mark.spec("SPEED-DEPTH-1")
@pytest.mark.parametrize(
    ("asked", "depth"),
    [
        ({"num_sub_workers": 1}, 4),
        ({"num_sub_workers": 1, "options": {"mailbox_depth": 2}}, 2),
        ({"num_sub_workers": 2}, 1),
        ({"num_sub_workers": 1, "device_ids": [0]}, 1),
    ],
)
def test_the_only_worker_of_an_endpoint_has_four_frames(asked, depth):
    spec = RemoteWorkerSpec(**asked)
    assert Worker(level=3, **spec.manifest(1, 0, None, None).worker).mailbox_depth == depth
