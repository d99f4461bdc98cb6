"""WM-POOL: two pools."""

import random

import numpy as np
import pytest

from simpler_ref import TaskArgs, Worker
from simpler_ref.jit import layout as L
from tests.support import RUNNING, Driver, Gate, make_args, member

NEXT, SUB = L.NEXT_LEVEL, L.SUB


class Calls:
    """A worker of one's own that calls its callable with its number."""

    def __init__(self, number):
        self.number = number

    def run(self, callable, view, config):
        callable(self.number, view)


def pool_sizes(w):
    mem = w._session.engine.mem
    return [int(mem[L.POOL_END + pool] - mem[L.POOL_FIRST + pool]) for pool in (NEXT, SUB)]


# ---------------------------------------------------------------- what is in them
@pytest.mark.spec("WM-POOL-1")
def test_each_pool_has_what_was_given():
    def with_(level, *, children=(), following=0, subs=0, **more):
        w = Worker(level, **more)
        for child in children:
            w.add_worker(Worker(child))
        for number in range(following):
            w.add_next_level(Calls(number))
        for number in range(subs):
            w.add_sub(Calls(number))
        with w:
            return pool_sizes(w)

    assert with_(2) == [1, 0]
    assert with_(3) == [0, 0]
    assert with_(3, num_sub_workers=2) == [0, 2]
    assert with_(3, device_ids=[0, 5], num_sub_workers=1) == [2, 1]
    assert with_(3, following=2, subs=1, num_sub_workers=1) == [2, 2]
    assert with_(4, children=[3, 3], num_sub_workers=1) == [2, 1]
    assert with_(5, children=[4, 3], following=1) == [3, 0]


@pytest.mark.spec("WM-POOL-1")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_workers_are_numbered_in_the_order_in_which_they_were_added(mode):
    w = Worker(3, num_sub_workers=1, child_mode=mode)
    for number in (10, 20, 30):
        w.add_next_level(Calls(number))
    with w:
        seen = w.share(np.zeros(3, np.int64))
        handle = w.register(lambda number, args: seen.__setitem__(args.scalar(0), number))

        def orch_fn(orch, *_):
            for worker in range(3):
                orch.submit_next_level(handle, make_args(scalars=[worker]), worker=worker)

        w.run(orch_fn)
        assert seen.tolist() == [10, 20, 30]


# ---------------------------------------------------------------- fixed by init
@pytest.mark.spec("WM-POOL-2")
def test_nothing_can_be_added_after_init():
    w = Worker(4, num_sub_workers=1)
    w.add_worker(Worker(3))
    w.init()
    for add, what in [
        (w.add_worker, Worker(3)),
        (w.add_next_level, Calls(0)),
        (w.add_sub, Calls(0)),
    ]:
        with pytest.raises(RuntimeError, match="before init"):
            add(what)
        assert pool_sizes(w) == [1, 1]
    w.run(lambda orch, *_: None)
    w.close()
    with pytest.raises(RuntimeError, match="closed"):
        w.add_worker(Worker(3))


@pytest.mark.spec("WM-POOL-2")
def test_a_refused_child_can_still_be_anothers():
    child = Worker(3)
    with Worker(4) as w, pytest.raises(RuntimeError, match="before init"):
        w.add_worker(child)
    other = Worker(4)
    other.add_worker(child)
    with other:
        assert pool_sizes(other) == [1, 0]


# ---------------------------------------------------------------- each its own tasks
@pytest.mark.spec("WM-POOL-3")
@pytest.mark.parametrize("seed", range(5))
def test_a_task_goes_to_an_idle_worker_of_its_pool(seed):
    rng = random.Random(seed)
    driver = Driver(sub=2, next_level=2)
    pools = {NEXT: {0, 1}, SUB: {2, 3}}
    for _ in range(40):
        idle = {w for w in range(4) if driver.given(w) == L.NONE}
        kind = rng.choice([NEXT, SUB])
        slot = driver.submit(kind=kind)
        driver.settle()
        if driver.state(slot) == RUNNING:
            assert driver.worker_of(slot) in pools[kind] & idle
        else:
            assert not pools[kind] & idle
        busy = [w for w in range(4) if driver.given(w) != L.NONE]
        if rng.random() < 0.7:
            driver.post_done(rng.choice(busy))
            driver.settle()
    driver.finish_everything()
    driver.close()


# ---------------------------------------------------------------- neither holds up the other
@pytest.mark.spec("WM-POOL-4")
@pytest.mark.parametrize("stuck", [NEXT, SUB])
@pytest.mark.parametrize("what", ["single", "group", "for one worker"])
def test_what_waits_in_one_pool_does_not_hold_up_the_other(stuck, what):
    driver = Driver(sub=2, next_level=2)
    free = 1 - stuck
    first = {NEXT: 0, SUB: 2}[stuck]
    busy = 2 if what == "single" else 1
    for worker in range(first, first + busy):
        driver.submit(kind=stuck, owner=worker)
    if what == "single":
        waiting = driver.submit(kind=stuck)
    elif what == "group":
        waiting = driver.submit_group(member(), member(), kind=stuck)
    else:
        waiting = driver.submit(kind=stuck, owner=first)
    driver.settle()
    for _ in range(3):
        slots = [driver.submit(kind=free) for _ in range(2)]
        driver.settle()
        assert [driver.state(s) for s in slots] == [RUNNING] * 2
        for slot in slots:
            driver.finish(slot) if driver.state(slot) == RUNNING else None
        group = driver.submit_group(member(), member(), kind=free)
        driver.settle()
        assert driver.state(group) == RUNNING
        for worker in driver.members(group):
            driver.post_done(worker)
        driver.settle()
    assert driver.state(waiting) != RUNNING
    driver.close()


@pytest.mark.spec("WM-POOL-4")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_sub_tasks_run_while_the_next_level_pool_is_full(mode):
    w = Worker(3, num_sub_workers=1, child_mode=mode)
    w.add_next_level(Calls(0))
    with w, Gate() as go:
        wait = w.register(lambda number, args: go.wait())
        count = w.share(np.zeros(1, np.int64))
        add = w.register(lambda: count.__setitem__(0, count[0] + 1))

        def release():
            go.open(2)

        releasing = w.register(release)

        def orch_fn(orch, *_):
            orch.submit_next_level(wait)
            orch.submit_next_level(wait)
            for _ in range(10):
                orch.submit_sub(add)
            orch.submit_sub(releasing)

        w.run(orch_fn)
        assert count[0] == 10


# ---------------------------------------------------------------- one kind of callables
@pytest.mark.spec("WM-POOL-5")
def test_a_pool_of_chips_takes_no_worker_for_python_callables():
    w = Worker(3, device_ids=[0], num_sub_workers=1)
    with pytest.raises(ValueError, match="same kind of callables"):
        w.add_next_level(Calls(0))
    w.add_sub(Calls(0))
    with w:
        assert pool_sizes(w) == [1, 2]


@pytest.mark.spec("WM-POOL-5")
def test_a_sub_pool_takes_python_callables_only():
    from simpler_ref.workers.kinds import ChipChild

    w = Worker(3, num_sub_workers=1)
    with pytest.raises(ValueError, match="Python callables"):
        w.add_sub(ChipChild(0, None))
    with w:
        assert pool_sizes(w) == [0, 1]
        handle = w.register(lambda args: None)
        w.run(lambda orch, *_: orch.submit_sub(handle, TaskArgs()))
