"""WM-POOL: two pools."""

import numpy as np
import pytest

from simpler_ref import Worker
from simpler_ref.jit import layout as L
from simpler_ref.native_chip.domains import ChipChild
from tests.support import RUNNING, make_args, member

from .own import Calls, run_sub

NEXT, SUB = L.NEXT_LEVEL, L.SUB


def pool_sizes(w):
    mem = w._session.engine.mem
    return [int(mem[L.POOL_END + pool] - mem[L.POOL_FIRST + pool]) for pool in (NEXT, SUB)]


@pytest.mark.spec("WM-POOL-1")
@pytest.mark.parametrize(
    ("level", "options", "children", "following", "subs", "sizes"),
    [
        (2, {}, [], 0, 0, [1, 0]),
        (3, {}, [], 0, 0, [0, 0]),
        (3, {"num_sub_workers": 2}, [], 0, 0, [0, 2]),
        (3, {"num_sub_workers": 1, "device_ids": [0, 5]}, [], 0, 0, [2, 1]),
        (3, {"num_sub_workers": 1}, [], 2, 1, [2, 2]),
        (4, {"num_sub_workers": 1}, [3, 3], 0, 0, [2, 1]),
        (5, {}, [4, 3], 1, 0, [3, 0]),
    ],
)
def test_each_pool_has_what_was_given(level, options, children, following, subs, sizes):
    w = Worker(level, **options)
    for child in children:
        w.add_worker(Worker(child))
    for number in range(following):
        w.add_next_level(Calls(10 * number))
    for _ in range(subs):
        w.add_sub(Calls())
    with w:
        assert pool_sizes(w) == sizes
        if following == 2:  # they have the numbers in which they were added
            seen = w.share(np.full(2, -1))
            handle = w.register(lambda number, args, _: seen.__setitem__(args.scalar(0), number))

            def orch_fn(orch, *_):
                for i in range(2):
                    orch.submit_next_level(handle, make_args(scalars=[i]), worker=i)

            w.run(orch_fn)
            assert seen.tolist() == [0, 10]


@pytest.mark.spec("WM-POOL-2")
def test_nothing_can_be_added_after_init():
    child, w = Worker(3), Worker(4, num_sub_workers=1)
    w.add_worker(Worker(3))
    w.init()
    for add, what in ((w.add_worker, child), (w.add_next_level, Calls()), (w.add_sub, Calls())):
        with pytest.raises(RuntimeError, match="before init"):
            add(what)
        assert pool_sizes(w) == [1, 1]
    w.run(lambda orch, *_: None)
    w.close()
    with pytest.raises(RuntimeError, match="closed"):
        w.add_worker(child)
    other = Worker(4)
    other.add_worker(child)
    with other:
        assert pool_sizes(other) == [1, 0], "the child that was refused"


@pytest.mark.spec("WM-POOL-3")
@pytest.mark.parametrize("stuck", [NEXT, SUB])
@pytest.mark.parametrize("what", ["single", "group", "for one worker"])
def test_what_waits_in_one_pool_does_not_hold_up_the_other(make_driver, stuck, what):
    driver, free = make_driver(sub=2, next_level=2), 1 - stuck
    first = {NEXT: 0, SUB: 2}[stuck]
    for worker in range(first, first + (2 if what == "single" else 1)):
        driver.submit(kind=stuck, owner=worker)
    if what == "group":
        waiting = driver.submit_group(member(), member(), kind=stuck)
    else:
        waiting = driver.submit(kind=stuck, owner=-1 if what == "single" else first)
    driver.settle()
    for _ in range(3):
        slots = [driver.submit(kind=free) for _ in range(2)]
        driver.settle()
        assert [driver.state(s) for s in slots] == [RUNNING] * 2
        for slot in slots:
            driver.finish(slot)
        group = driver.submit_group(member(), member(), kind=free)
        driver.settle()
        assert driver.state(group) == RUNNING
        for worker in driver.members(group):
            driver.post_done(worker)
        driver.settle()
    assert driver.state(waiting) != RUNNING


@pytest.mark.spec("WM-POOL-5")
def test_a_pool_refuses_workers_for_another_kind_of_callables():
    w = Worker(3, device_ids=[0], num_sub_workers=1)
    with pytest.raises(ValueError, match="same kind of callables"):
        w.add_next_level(Calls())
    with pytest.raises(ValueError, match="Python callables"):
        w.add_sub(ChipChild(0, None))
    w.add_sub(Calls())
    with w:
        assert pool_sizes(w) == [1, 2]
        run_sub(w, w.register(lambda *_: None))
