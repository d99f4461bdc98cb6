"""SPEED-DEPTH: more than one task per worker."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import int64

from simpler_ref import RemoteWorkerSpec, TaskError, Worker, leaf
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from tests.support import (
    COMPLETED,
    CONSUMED,
    DEADLINE_S,
    FAILED,
    PENDING,
    READY,
    RUNNING,
    Gate,
    make_args,
    member,
    no_passes,
    reads,
    tasks_given,
    wait_until,
    writes,
)

KEY = 0x7000_0000
FOREVER_NS = 10**13
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3, 7])


@DEPTHS
@pytest.mark.spec("SPEED-DEPTH-1")
def test_a_worker_is_given_as_many_tasks_as_it_has_frames(make_driver, depth):
    driver = make_driver(depth=depth, sub=1)
    slots = [driver.submit(scalars=[i], callable=i % 5) for i in range(depth + 3)]
    driver.settle()
    assert driver.all_given(0) == slots[:depth]
    assert [driver.state(slot) for slot in slots] == [RUNNING] * depth + [READY] * 3
    for frame, i in zip(driver.frames(0), range(depth), strict=True):
        assert driver.mailbox_state(0, frame) == (L.TASK_READY, 0)
        box = driver.mailbox(0, frame)
        assert box[L.MAILBOX_OFF_DIGEST :][:32].tobytes() == driver.digest(i % 5)
        assert box[L.MAILBOX_OFF_ARGS :][:16].tobytes() == np.array([1 << 32, i]).tobytes()
    driver.answer_and_settle(0)
    assert driver.all_given(0) == slots[1 : depth + 1], "the room is used at once"


@DEPTHS
@pytest.mark.spec("SPEED-DEPTH-2")
def test_tasks_are_seen_to_end_in_the_order_in_which_they_were_given(make_driver, depth):
    driver = make_driver(depth=depth, sub=1)
    first = [driver.submit(writes(KEY + 8 * i)) for i in range(depth)]
    after = [driver.submit(reads(KEY + 8 * i)) for i in reversed(range(depth))]
    driver.settle()
    assert driver.all_given(0) == first
    for _ in range(depth):
        driver.post_done(0)
    driver.x.collect(driver.mem)
    assert driver.ready_queue() == after[::-1], "in the order of those that they waited for"
    driver.settle()
    assert driver.all_given(0) == after[::-1]


def busy_driver(make_driver, depth, tasks, **size):
    """Return a driver whose workers have that many tasks each."""
    driver = make_driver(depth=depth, sub=len(tasks), **size)
    for worker, count in enumerate(tasks):
        for _ in range(count):
            driver.submit(owner=worker)
        driver.settle()
    assert [len(driver.all_given(worker)) for worker in range(len(tasks))] == list(tasks)
    return driver


@pytest.mark.spec("SPEED-DEPTH-2")
def test_an_idle_worker_that_is_awake_comes_first_else_the_one_with_the_fewest_tasks(make_driver):
    driver = busy_driver(make_driver, 3, [1, 0, 1, 0])
    driver.set_parked(1, True)
    slot = driver.submit_and_settle()
    assert driver.worker_of(slot) == 3
    driver = busy_driver(make_driver, 3, [3, 2, 1, 2])
    slots = [driver.submit() for _ in range(5)]
    driver.settle()
    workers = [driver.worker_of(slot) for slot in slots[:4]]
    assert workers[0] == 2
    assert sorted(workers[1:]) == [1, 2, 3], "then those with two, one each"
    assert driver.state(slots[4]) == READY, "all frames are full"


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


@pytest.mark.spec("SPEED-DEPTH-2")
def test_a_group_waits_for_workers_without_any_task_and_single_tasks_go_behind_it(make_driver):
    driver = busy_driver(make_driver, 3, [1, 0, 2])
    group = driver.submit_group(member(scalars=[1]), member(scalars=[2]))
    later = driver.submit_and_settle()
    assert [driver.state(one) for one in (group, later)] == [READY, READY]
    driver.answer_and_settle(2)
    assert driver.state(group) == READY, "worker 2 has a task left"
    driver.answer_and_settle(0)
    assert driver.members(group) == {0: 0, 1: 1} or driver.members(group) == {0: 1, 1: 0}
    assert driver.state(later) == RUNNING
    singles = [driver.submit() for _ in range(5)]
    driver.settle()
    for worker in (0, 1):
        slots = driver.all_given(worker)
        assert slots[0] == group and len(slots) == 3
        assert set(slots[1:]) <= {later, *singles}
        at = driver.frames(worker)
        members = [driver.frame_word(worker, L.W_MEMBER, frame) for frame in at]
        assert members[0] in (1, 2) and members[1:] == [0, 0]
    assert driver.finish_everything() and driver.state(group) in (COMPLETED, CONSUMED)


@DEPTHS
@pytest.mark.spec("SPEED-DEPTH-2")
def test_a_mailbox_is_had_when_all_tasks_of_its_worker_are_collected(make_driver, depth):
    driver = busy_driver(make_driver, depth, [depth, 0])
    slots = driver.all_given(0)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(driver.k.claim_mailbox, driver.mem, 0, FOREVER_NS)
        wait_until(lambda: driver.word(0, L.W_CLAIM) == L.CLAIM_WAITS)
        own, other = driver.submit(owner=0), driver.submit()
        for _ in slots:
            driver.settle()
            assert driver.word(0, L.W_CLAIM) == L.CLAIM_WAITS and not asked.done()
            assert driver.all_given(0) == [s for s in slots if driver.state(s) == RUNNING]
            driver.post_done(0)
        driver.settle()
        assert asked.result(DEADLINE_S) == L.OK
    assert (driver.state(own), driver.state(other)) == (READY, RUNNING)
    assert driver.worker_of(other) == 1
    assert driver.mailbox_state(0) == (L.IDLE, 0), "where the worker waits"
    driver.k.release_mailbox(driver.mem, 0)
    driver.settle()
    assert (driver.all_given(0), driver.mailbox_state(0)) == ([own], (L.TASK_READY, 0))


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


@pytest.mark.spec("SPEED-DEPTH-6")
@pytest.mark.parametrize("done", [0, 1, 2, 3, 4])
def test_of_a_dead_workers_tasks_those_it_had_ended_are_done(make_driver, done):
    driver = make_driver(depth=4, sub=2)
    slots = [driver.submit(owner=0) for _ in range(4)]
    waiting = driver.submit_and_settle(owner=0)
    for _ in range(done):
        driver.post_done(0)
    driver.kill(0)
    driver.settle()
    assert [driver.state(slot) for slot in slots] == [COMPLETED] * done + [FAILED] * (4 - done)
    assert (driver.state(waiting), driver.mem[L.RUN_ERROR]) == (FAILED, L.ENDPOINT_FAILURE)
    assert driver.mem[L.ERROR_TASK] == driver.id(slots[done] if done < 4 else waiting)
    assert (driver.mem[L.ERROR_WORKER], driver.given(0), driver.mem[L.BUSY]) == (0, L.NONE, 0)
    assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.ILLEGAL
    driver.k.set_usable(driver.mem, 0, 0)
    assert driver.at(0) == 0 and driver.frames(0) == [], "its successor starts at the first frame"


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


def expected_after(graph, failing, buffers):
    """Return the buffers as if each task had run when all before it had, and the first failures."""
    values, spoiled, raised = [0] * buffers, set(), set()
    for number, touched in enumerate(graph):
        if spoiled.isdisjoint(touched) and number not in failing:
            values[touched[-1]] = (sum(values[b] for b in touched) * 3 + number) % 1_000_003
            continue
        if spoiled.isdisjoint(touched):
            raised.add(number + 1)  # the task before all others holds them up
        spoiled.update(touched)  # whoever touches one of these comes after the failure
    return values, raised


@pytest.mark.spec("SPEED-DEPTH-1")
@pytest.mark.parametrize(("mode", "depth"), [("process", 4), ("thread", 2)])
def test_a_run_has_the_same_results_at_every_depth_whatever_fails(mode, depth):
    buffers, tasks = 12, 20 if INTERPRETED else 60

    def work(args):
        arrays = [args.tensor(i).numpy() for i in range(args.tensor_count())]
        number, fails = args.scalar(0), args.scalar(1)
        if fails:
            raise ValueError(f"task {number}")
        arrays[-1][0] = (sum(int(a[0]) for a in arrays) * 3 + number) % 1_000_003

    rng = random.Random(11)
    with Gate() as go, Worker(3, num_sub_workers=2, child_mode=mode, mailbox_depth=depth) as w:
        handle, hold = w.register(work), w.register(go.wait)
        shared = [w.share(np.zeros(1, np.int64)) for _ in range(buffers)]
        for _ in range(4 if INTERPRETED else 10):
            graph = [rng.sample(range(buffers), rng.randint(1, 3)) for _ in range(tasks)]
            failing = set(rng.sample(range(tasks), rng.choice([0, 1, 1, 2])))
            for array in shared:
                array[0] = 0

            def orch_fn(orch, *_):
                # all is submitted before anything can fail, so no submit raises
                orch.submit_sub(hold, make_args(*((a, T.INOUT) for a in shared)))
                for number, touched in enumerate(graph):  # noqa: B023
                    tensors = [(shared[b], T.INOUT) for b in touched]
                    fails = number in failing  # noqa: B023
                    orch.submit_sub(handle, make_args(*tensors, scalars=[number, fails]))
                go.open(1)

            values, raised = expected_after(graph, failing, buffers)
            if raised:
                with pytest.raises(TaskError, match=r"ValueError: task \d+") as failure:
                    w.run(orch_fn)
                assert failure.value.task in raised
            else:
                w.run(orch_fn)
            assert [int(array[0]) for array in shared] == values, (graph, failing)


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
