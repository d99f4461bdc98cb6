"""SCHED-POISON: failure travels downstream."""

import numpy as np
import pytest

from simpler_ref import TaskError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import (
    COMPLETED,
    FAILED,
    PENDING,
    READY,
    RUNNING,
    Driver,
    make_args,
    no_passes,
    reads,
    updates,
    writes,
)

KEY = 0x7000_0000


def fail(driver, slot):
    driver.post_done(driver.worker_of(slot), ValueError(f"task {driver.id(slot)}"))
    driver.run_pass()


@pytest.mark.spec("SCHED-POISON-1")
def test_consumers_of_a_failed_task_fail_at_once_and_pass_it_on(driver):
    root = driver.submit(writes(KEY))
    children = [driver.submit(reads(KEY), writes(KEY + 8 * i)) for i in (1, 2)]
    grandchild = driver.submit(reads(KEY + 8), reads(KEY + 16), writes(KEY + 24))
    last = driver.submit(reads(KEY + 24))
    driver.run_pass()
    descendants = [*children, grandchild, last]
    assert [driver.state(slot) for slot in descendants] == [PENDING] * 4
    fail(driver, root)
    assert [driver.state(slot) for slot in descendants] == [FAILED] * 4
    assert driver.ready_queue() == []
    driver.settle()
    assert [driver.worker_of(slot) for slot in descendants] == [-1] * 4, "never dispatched"
    assert driver.mem[L.FAILED_COUNT] == 5
    assert [driver.refs(slot)[1] for slot in descendants] == [2, 2, 2, 1]


@pytest.mark.spec("SCHED-POISON-1")
def test_a_task_fails_once_however_many_of_its_producers_fail():
    driver = Driver(sub=4)
    producers = [driver.submit(writes(KEY + 8 * i)) for i in range(4)]
    consumer = driver.submit(*[reads(KEY + 8 * i) for i in range(4)])
    driver.run_pass()
    fail(driver, producers[0])
    assert driver.state(consumer) == FAILED
    assert driver.mem[L.FAILED_COUNT] == 2
    for failed, producer in enumerate(producers[1:], 3):
        fail(driver, producer)
        assert driver.state(consumer) == FAILED
        assert driver.mem[L.FAILED_COUNT] == failed
    assert [driver.refs(producer) for producer in producers] == [(2, 2)] * 4
    assert driver.refs(consumer) == (1, 1), "it has dropped its own reference once"
    driver.close()


@pytest.mark.spec("SCHED-POISON-1")
def test_a_long_chain_fails_as_one():
    length = 200
    driver = Driver(window=256)
    chain = [driver.submit(updates(KEY)) for _ in range(length)]
    driver.run_pass()
    fail(driver, chain[0])
    assert {driver.state(slot) for slot in chain} == {FAILED}
    assert driver.mem[L.FAILED_COUNT] == length
    driver.finish_run()
    driver.reclaim()
    assert driver.live() == 0
    driver.close()


@pytest.mark.spec("SCHED-POISON-2")
def test_tasks_that_do_not_descend_from_the_failed_one_are_not_touched():
    driver = Driver(sub=3)
    failing, running, producer = (driver.submit(writes(KEY + 8 * i)) for i in range(3))
    ready = driver.submit()
    pending = driver.submit(reads(KEY + 16))
    doomed = driver.submit(reads(KEY))
    mixed = driver.submit(reads(KEY), reads(KEY + 16))
    driver.run_pass()
    before = {slot: driver.state(slot) for slot in (running, producer, ready, pending)}
    assert list(before.values()) == [RUNNING, RUNNING, READY, PENDING]
    fail(driver, failing)
    assert {slot: driver.state(slot) for slot in before} == before
    assert driver.state(doomed) == driver.state(mixed) == FAILED
    driver.finish_everything()
    assert {driver.state(slot) for slot in before} == {COMPLETED}
    driver.close()


@pytest.mark.spec("SCHED-POISON-3")
def test_a_poisoned_task_keeps_its_slot_until_its_last_live_producer_has_finished():
    driver = Driver(sub=3)
    driver.open_scope()
    failing, slow, slower = (driver.submit(writes(KEY + 8 * i)) for i in range(3))
    poisoned = driver.submit(*[reads(KEY + 8 * i) for i in range(3)], writes(KEY + 32))
    descendant = driver.submit(reads(KEY + 32))
    driver.run_pass()
    driver.close_scope()
    fail(driver, failing)
    for producer in (slow, slower):
        assert driver.state(poisoned) == FAILED
        assert driver.refs(poisoned) == (2, 1), "only the scope has let go"
        assert driver.refs(failing) == (2, 2), "the poisoned task still holds its producers"
        assert driver.state(descendant) == PENDING
        assert driver.consumed_list() == []
        assert driver.consumers(producer) == [poisoned]
        driver.post_done(driver.worker_of(producer))
        driver.run_pass()
    everybody = {failing, slow, slower, poisoned, descendant}
    assert set(driver.consumed_list()) == everybody
    assert driver.reclaim() == 5
    assert driver.live() == 0
    driver.close()


def raise_value_error(args):
    raise ValueError("by itself")


@pytest.mark.spec("SCHED-POISON-4")
def test_the_error_is_that_of_the_task_that_failed_by_itself():
    with Worker(3, num_sub_workers=2) as w:
        ran = w.share(np.zeros(1, np.int64))
        bad, good = w.register(raise_value_error), w.register(lambda: ran.__setitem__(0, 1))

        def orch_fn(orch, *_):
            first, second = orch.alloc(8, np.uint8), orch.alloc(8, np.uint8)
            with no_passes(orch._mem):
                orch.submit_sub(bad, make_args((first, T.INOUT)))
                orch.submit_sub(good, make_args((first, T.INPUT), (second, T.INOUT)))
                orch.submit_sub(good, make_args((second, T.INPUT)))

        with pytest.raises(TaskError, match="ValueError: by itself") as failure:
            w.run(orch_fn)
        assert failure.value.task == 2
        assert ran[0] == 0


@pytest.mark.spec("SCHED-POISON-4")
def test_poison_replaces_no_error(driver):
    root = driver.submit(writes(KEY))
    driver.submit(reads(KEY))
    driver.run_pass()
    worker = driver.worker_of(root)
    fail(driver, root)
    words = [L.RUN_ERROR, L.ERROR_TASK, L.ERROR_WORKER]
    assert driver.mem[words].tolist() == [L.TASK_FAILURE, driver.id(root), worker]
