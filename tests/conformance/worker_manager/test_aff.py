"""WM-AFF: a task for one worker."""

import pytest

from simpler_ref import ContinuousTensor, DataType, TaskArgs
from simpler_ref.jit import layout as L
from tests.support import COMPLETED, FAILED, READY, RUNNING

from .own import calling, orch_words

NEXT = L.NEXT_LEVEL


@pytest.mark.spec("WM-AFF-1")
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_task_for_one_worker_waits_for_it_while_others_are_idle(make_driver, worker):
    driver = make_driver(sub=0, next_level=3)
    first, second = (driver.submit(kind=NEXT, owner=worker) for _ in range(2))
    driver.settle()
    assert (driver.worker_of(first), driver.state(second)) == (worker, READY)
    assert sum(driver.given(w) != L.NONE for w in range(3)) == 1
    driver.finish(first)
    assert (driver.worker_of(second), driver.state(second)) == (worker, RUNNING)
    driver.submit(kind=NEXT, owner=(worker + 1) % 3)
    for_any = driver.submit_and_settle(kind=NEXT, owner=-1)
    assert driver.worker_of(for_any) == (worker + 2) % 3, "the one that is idle"


@pytest.mark.spec("WM-AFF-3")
def test_a_task_that_waits_for_its_worker_holds_up_nobody_else(make_driver):
    driver = make_driver(sub=1, next_level=2)
    busy, waiting = (driver.submit(kind=NEXT, owner=0) for _ in range(2))
    driver.settle()
    others = [driver.submit(kind=NEXT, owner=1), driver.submit(kind=L.SUB)]
    driver.settle()
    assert [driver.state(t) for t in others] == [RUNNING] * 2
    anywhere = driver.submit(kind=NEXT)
    driver.finish(others[0])
    assert driver.state(anywhere) == RUNNING
    assert (driver.state(busy), driver.state(waiting)) == (RUNNING, READY)


@pytest.mark.spec("WM-AFF-4")
@pytest.mark.parametrize("owners", [[0] * 10, [-1, 0, 0, -1, -1, 0, -1, 0]])
def test_tasks_for_one_worker_and_for_any_run_in_the_order_they_became_ready(make_driver, owners):
    driver = make_driver(sub=0, next_level=1)
    slots = [driver.submit(kind=NEXT, owner=owner) for owner in owners]
    for slot in slots:
        driver.settle()
        assert driver.given(0) == slot
        driver.post_done(0)
    driver.settle()
    assert [driver.state(s) for s in slots] == [COMPLETED] * len(owners)


@pytest.mark.spec("WM-AFF-5")
def test_tasks_for_a_worker_that_died_fail_and_the_others_go_on(make_driver):
    driver = make_driver(sub=0, next_level=2)
    slots = [driver.submit(kind=NEXT, owner=1) for _ in range(4)]
    driver.settle()
    driver.kill(1)
    other = driver.submit_and_settle(kind=NEXT, owner=0)
    assert [driver.state(s) for s in slots] == [FAILED] * 4
    assert (driver.state(other), driver.mem[L.AFFINITY + NEXT]) == (RUNNING, 0)


@pytest.mark.spec("WM-AFF-6")
def test_a_worker_that_does_not_exist_is_refused():
    """Memory of a worker needs the worker's number where there are several."""
    args = TaskArgs()
    args.add_tensor(ContinuousTensor.make(0x1000, (4,), DataType.INT64, child_memory=True))
    with calling(2, num_sub_workers=3) as w:
        handle = w.register(lambda *_: None)

        def orch_fn(orch, *_):
            before = orch_words(w)
            for worker in (2, -2, 1 << 40, -(1 << 40), "0", None, 0.0):
                with pytest.raises(ValueError, match=r"worker .* is unknown"):
                    orch.submit_next_level(handle, worker=worker)
                assert (orch_words(w) == before).all()
            with pytest.raises(ValueError, match=r"child_memory.*worker="):
                orch.submit_next_level(handle, args)
            with pytest.raises(ValueError, match=r"child_memory.*worker="):
                orch.submit_next_level_group(handle, [args, TaskArgs()], workers=[-1, 0])
            assert (orch_words(w) == before).all()
            orch.submit_next_level(handle, args, worker=1)

        assert w.run(orch_fn).tasks == 1
    with calling(1) as w:
        handle = w.register(lambda *_: None)
        assert w.run(lambda orch, *_: orch.submit_next_level(handle, args)).tasks == 1
