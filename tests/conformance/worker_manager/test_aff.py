"""WM-AFF: a task for one worker."""

import os
import random
import signal

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType, TaskArgs, Worker, WorkerLostError
from simpler_ref.jit import layout as L
from tests.support import (
    COMPLETED,
    FAILED,
    READY,
    RUNNING,
    Driver,
    Gate,
    make_args,
    member,
    reads,
    wait_until,
    writes,
)

NEXT = L.NEXT_LEVEL


class Calls:
    """A next-level worker that calls its callable with its number and the arguments."""

    def __init__(self, number):
        self.number = number

    def run(self, callable, view, config):
        callable(self.number, view)


def calling(workers, **more):
    w = Worker(3, **more)
    for number in range(workers):
        w.add_next_level(Calls(number))
    return w


def words_of(w):
    return w._session.engine.mem[L.RING_BLOCK : L.SCHED].copy()


# ---------------------------------------------------------------- that one and no other
@pytest.mark.spec("WM-AFF-1")
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_task_for_one_worker_waits_for_it_while_others_are_idle(worker):
    driver = Driver(sub=0, next_level=3)
    first = driver.submit(kind=NEXT, owner=worker)
    second = driver.submit(kind=NEXT, owner=worker)
    driver.settle()
    assert driver.worker_of(first) == worker
    assert driver.state(second) == READY
    assert sum(driver.given(w) != L.NONE for w in range(3)) == 1
    driver.finish(first)
    assert (driver.worker_of(second), driver.state(second)) == (worker, RUNNING)
    driver.close()


@pytest.mark.spec("WM-AFF-1")
def test_a_task_for_a_worker_that_sleeps_is_not_held_back():
    driver = Driver(sub=0, next_level=2)
    driver.set_parked(1, True)
    busy = driver.submit(kind=NEXT, owner=0)
    slot = driver.submit(kind=NEXT, owner=1)
    driver.settle()
    assert driver.state(busy) == driver.state(slot) == RUNNING
    driver.close()


@pytest.mark.spec("WM-AFF-1")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_every_task_runs_on_the_worker_it_names(mode):
    with calling(3, child_mode=mode) as w:
        where = w.share(np.full(200, -1, np.int64))
        handle = w.register(lambda number, args: where.__setitem__(args.scalar(0), number))
        choice = [random.Random(7).randrange(3) for _ in range(200)]

        def orch_fn(orch, *_):
            for i, worker in enumerate(choice):
                orch.submit_next_level(handle, make_args(scalars=[i]), worker=worker)

        w.run(orch_fn)
        assert where.tolist() == choice


# ---------------------------------------------------------------- any
@pytest.mark.spec("WM-AFF-2")
def test_a_task_for_any_worker_takes_the_one_that_is_idle():
    driver = Driver(sub=1, next_level=3)
    for worker in (0, 2):
        driver.submit(kind=NEXT, owner=worker)
    slot = driver.submit(kind=NEXT, owner=-1)
    driver.settle()
    assert driver.worker_of(slot) == 1
    driver.close()


@pytest.mark.spec("WM-AFF-2")
def test_any_is_the_default():
    with calling(2) as w, Gate() as here, Gate() as go:

        def meet(number, args):
            here.open(1)
            go.wait()

        handle = w.register(meet)

        def orch_fn(orch, *_):
            orch.submit_next_level(handle)
            orch.submit_next_level(handle, worker=-1)
            here.wait()
            here.wait()
            go.open()

        w.run(orch_fn)


# ---------------------------------------------------------------- it holds up nobody else
@pytest.mark.spec("WM-AFF-3")
def test_a_task_that_waits_for_its_worker_holds_up_nobody_else():
    driver = Driver(sub=1, next_level=2)
    busy = driver.submit(kind=NEXT, owner=0)
    waiting = driver.submit(kind=NEXT, owner=0)
    driver.settle()
    others = [
        driver.submit(kind=NEXT, owner=1),
        driver.submit(kind=L.SUB),
    ]
    driver.settle()
    assert [driver.state(t) for t in others] == [RUNNING] * 2
    anywhere = driver.submit(kind=NEXT)
    driver.finish(others[0])
    assert driver.state(anywhere) == RUNNING
    assert (driver.state(busy), driver.state(waiting)) == (RUNNING, READY)
    driver.close()


@pytest.mark.spec("WM-AFF-3")
@pytest.mark.parametrize("seed", range(10))
def test_when_nothing_moves_no_idle_worker_has_a_task_it_could_start(seed):
    rng = random.Random(seed)
    driver = Driver(sub=1, next_level=3)
    for _ in range(40):
        if rng.random() < 0.6:
            driver.submit(kind=NEXT, owner=rng.randrange(-1, 3))
        driver.settle()
        assert driver.x.has_work(driver.mem) == 0
        idle = [w for w in range(3) if driver.given(w) == L.NONE]
        if driver.ready_queue(NEXT):
            assert not idle
        for worker in idle:
            assert driver.word(worker, L.W_AFFINITY_HEAD) == L.NONE
        busy = [w for w in range(3) if driver.given(w) != L.NONE]
        if busy and rng.random() < 0.6:
            driver.post_done(rng.choice(busy))
            assert driver.x.has_work(driver.mem) == 1
    driver.finish_everything()
    driver.close()


# ---------------------------------------------------------------- in which order
@pytest.mark.spec("WM-AFF-4")
def test_tasks_for_one_worker_run_in_the_order_they_became_ready():
    driver = Driver(sub=0, next_level=2)
    slots = [driver.submit(kind=NEXT, owner=1) for _ in range(10)]
    for slot in slots:
        driver.settle()
        assert driver.given(1) == slot
        driver.post_done(1)
    driver.settle()
    assert [driver.state(s) for s in slots] == [COMPLETED] * 10
    driver.close()


@pytest.mark.spec("WM-AFF-4")
def test_a_slot_that_was_retired_with_others_leads_to_none_of_them_when_it_is_used_again():
    driver = Driver(sub=0, next_level=1)
    failed = driver.submit(writes(4096), kind=NEXT, owner=0)
    poisoned = [driver.submit(reads(4096), kind=NEXT, owner=0) for _ in range(2)]
    driver.settle()
    driver.post_done(0, ValueError("a failure"))
    driver.settle()
    driver.finish_run()
    driver.reclaim()
    driver.end_run()
    driver.begin_run()
    slots = [driver.submit(kind=NEXT, owner=0)]
    for _ in poisoned:
        driver.settle()
        slots.append(driver.submit(kind=NEXT, owner=0))
        driver.finish(slots[-2])
        assert driver.given(0) == slots[-1]
        assert driver.word(0, L.W_AFFINITY_HEAD) == L.NONE
    assert slots == [failed, *poisoned]
    driver.close()


@pytest.mark.spec("WM-AFF-4")
def test_of_a_task_for_one_worker_and_one_for_any_the_earlier_goes_first():
    driver = Driver(sub=0, next_level=1)
    order = [-1, 0, 0, -1, -1, 0, -1, 0]
    slots = [driver.submit(kind=NEXT, owner=owner) for owner in order]
    for slot in slots:
        driver.settle()
        assert driver.given(0) == slot
        driver.post_done(0)
    driver.close()


# ---------------------------------------------------------------- when it is dead
@pytest.mark.spec("WM-AFF-5")
@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_tasks_for_a_worker_that_died_fail_and_the_others_go_on(when):
    driver = Driver(sub=0, next_level=2)
    busy = driver.submit(kind=NEXT, owner=1)
    driver.settle()
    if when == "before":
        driver.kill(1)
        driver.settle()
    slots = [driver.submit(kind=NEXT, owner=1) for _ in range(3)] if when != "before" else []
    other = None
    if when != "before":
        driver.settle()
        driver.kill(1)
        other = driver.submit(kind=NEXT, owner=0) if not driver.mem[L.RUN_ERROR] else None
    driver.settle()
    assert driver.state(busy) == FAILED
    assert [driver.state(s) for s in slots] == [FAILED] * len(slots)
    if other is not None:
        assert driver.state(other) == RUNNING
    assert driver.mem[L.AFFINITY + NEXT] == 0
    driver.close()


@pytest.mark.spec("WM-AFF-5")
def test_the_run_raises_and_the_next_one_has_the_worker_again():
    with calling(2) as w:
        die = w.register(lambda number, args: os.kill(os.getpid(), signal.SIGKILL))
        note = w.share(np.zeros(2, np.int64))
        fine = w.register(lambda number, args: note.__setitem__(number, 1))
        mem = w._session.engine.mem

        def orch_fn(orch, *_):
            orch.submit_next_level(fine, worker=0)
            orch.submit_next_level(die, worker=1)
            for _ in range(3):
                orch.submit_next_level(fine, worker=1)
            wait_until(lambda: mem[L.RUN_ERROR])

        with pytest.raises(WorkerLostError, match=r"next_level_worker 1.*SIGKILL"):
            w.run(orch_fn)
        assert note.tolist() == [1, 0]

        def again(orch, *_):
            orch.submit_next_level_group(fine, [TaskArgs()] * 2)

        w.run(again)
        assert note.tolist() == [1, 1]


@pytest.mark.spec("WM-AFF-5")
def test_a_cancelled_run_ends_also_with_tasks_for_a_busy_worker():
    driver = Driver(sub=0, next_level=2)
    busy = driver.submit(kind=NEXT, owner=0)
    waiting = [driver.submit(kind=NEXT, owner=0) for _ in range(3)]
    driver.settle()
    driver.submit_group(member(), member(), kind=NEXT)
    driver.finish_run(cancel=True)
    driver.settle()
    assert driver.mem[L.FAILED_COUNT] == len(waiting) + 1, "the group as well"
    assert driver.state(busy) == RUNNING
    driver.post_done(0)
    driver.settle()
    driver.reclaim()
    assert driver.live() == 0
    driver.close()


# ---------------------------------------------------------------- numbers that name no worker
@pytest.mark.spec("WM-AFF-6")
@pytest.mark.parametrize("mode", ["process", "thread"])
@pytest.mark.parametrize("worker", [2, -2, 1 << 40, -(1 << 40), "0", None, 0.0])
def test_a_worker_that_does_not_exist_is_refused(mode, worker):
    with calling(2, num_sub_workers=3, child_mode=mode) as w:
        handle = w.register(lambda number, args: None)

        def orch_fn(orch, *_):
            before = words_of(w)
            with pytest.raises(ValueError, match=r"worker .* is unknown"):
                orch.submit_next_level(handle, worker=worker)
            assert (words_of(w) == before).all()

        assert w.run(orch_fn).tasks == 0


@pytest.mark.spec("WM-AFF-6")
def test_memory_of_a_worker_needs_the_workers_number_where_there_are_several():
    tensor = ContinuousTensor.make(0x1000, (4,), DataType.INT64, child_memory=True)
    args = TaskArgs()
    args.add_tensor(tensor)
    with calling(2) as w:
        handle = w.register(lambda number, args: None)

        def orch_fn(orch, *_):
            before = words_of(w)
            with pytest.raises(ValueError, match=r"child_memory.*worker="):
                orch.submit_next_level(handle, args)
            with pytest.raises(ValueError, match=r"child_memory.*worker="):
                orch.submit_next_level_group(handle, [args, TaskArgs()], workers=[-1, 0])
            assert (words_of(w) == before).all()
            orch.submit_next_level(handle, args, worker=1)

        assert w.run(orch_fn).tasks == 1
    with calling(1) as w:
        handle = w.register(lambda number, args: None)
        assert w.run(lambda orch, *_: orch.submit_next_level(handle, args)).tasks == 1
