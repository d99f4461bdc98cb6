"""SCHED-WIRE: edges."""

import pytest

from tests.support import (
    COMPLETED,
    FAILED,
    PENDING,
    READY,
    RUNNING,
    Driver,
    auto,
    reads,
    updates,
    writes,
)

KEY = 0x7000_0000


def wire_next(driver):
    """Wire the oldest entry of the wiring queue; return its slot."""
    slot = driver.x.pop_wiring(driver.mem)
    driver.x.wire(driver.mem, slot)
    return slot


@pytest.mark.spec("SCHED-WIRE-1")
def test_entries_are_wired_once_and_in_the_order_of_submits():
    driver = Driver(sub=0, next_level=0)
    slots = [driver.submit(updates(KEY + 8 * i)) for i in range(10)]
    assert driver.wiring_queue() == slots
    assert wire_next(driver) == slots[0]
    assert driver.wiring_queue() == slots[1:]
    while driver.wiring_queue():
        wire_next(driver)
    assert driver.ready_queue() == slots, "what is wired first is READY first"
    driver.close()


@pytest.mark.spec("SCHED-WIRE-1")
def test_a_pass_wires_everything_that_was_submitted_and_a_second_one_nothing(driver):
    tasks = [driver.submit(updates(KEY)) for _ in range(20)]
    driver.run_pass()
    assert driver.wiring_queue() == []
    edges = [driver.consumers(task) for task in tasks]
    assert edges == [[after] for after in tasks[1:]] + [[]]
    assert driver.run_pass() == 0
    assert [driver.consumers(task) for task in tasks] == edges


@pytest.mark.spec("SCHED-WIRE-2")
@pytest.mark.parametrize("state", [PENDING, READY, RUNNING], ids=lambda s: s.name)
def test_a_producer_that_has_not_finished_gets_an_edge_and_counts_as_live_fan_in(state):
    driver = Driver(sub=1)
    if state == PENDING:
        driver.submit(writes(KEY + 8))
        producer = driver.submit(reads(KEY + 8), writes(KEY))
    elif state == READY:
        driver.submit()  # takes the only worker
        producer = driver.submit(writes(KEY))
    else:
        producer = driver.submit(writes(KEY))
    driver.run_pass()
    assert driver.state(producer) == state
    consumers = [driver.submit(reads(KEY)) for _ in range(3)]
    for consumer in consumers:
        assert wire_next(driver) == consumer
        assert driver.fanin(consumer) == 1
        assert driver.state(consumer) == PENDING
    assert sorted(driver.consumers(producer)) == sorted(consumers)
    driver.close()


@pytest.mark.spec("SCHED-WIRE-2")
def test_live_fan_in_counts_every_producer_that_has_not_finished(driver):
    producers = [driver.submit(writes(KEY + 8 * i)) for i in range(5)]
    driver.finish(producers[1])
    consumer = driver.submit(*[reads(KEY + 8 * i) for i in range(5)])
    driver.run_pass()
    assert driver.fanin(consumer) == 4
    for producer in producers:
        assert driver.consumers(producer) == ([] if producer == producers[1] else [consumer])


@pytest.mark.spec("SCHED-WIRE-2", "SCHED-POISON-2", "ORCH-ALLOC-7")
@pytest.mark.parametrize("fails", [False, True], ids=["COMPLETED", "FAILED"])
def test_a_task_that_is_kept_for_its_memory_alone_is_neither_waited_for_nor_poison(fails):
    driver = Driver(sub=4)
    owner = driver.submit(auto(8), writes(KEY))
    slab = driver.address(owner)
    writer = driver.submit(writes(slab))
    driver.run_pass()
    driver.post_done(driver.worker_of(writer))
    driver.run_pass()
    reader = driver.submit(reads(slab))
    of_both = driver.submit(reads(slab), reads(KEY))
    driver.run_pass()
    assert driver.state(reader) == RUNNING
    assert driver.state(of_both) == PENDING, "it reads something else of the owner"
    assert driver.refs(owner)[0] == 3
    driver.post_done(driver.worker_of(owner), ValueError("no") if fails else None)
    driver.settle()
    assert driver.state(reader) == RUNNING
    assert driver.state(of_both) == (FAILED if fails else RUNNING)
    assert driver.finish_everything()
    assert driver.state(reader) == COMPLETED
    driver.close()


@pytest.mark.spec("SCHED-WIRE-3")
def test_a_completed_producer_is_kept_until_the_consumer_finishes_but_is_no_live_fan_in(driver):
    driver.open_scope()
    producer = driver.submit(writes(KEY))
    driver.finish(producer)
    driver.open_scope()
    consumer = driver.submit(reads(KEY))
    assert wire_next(driver) == consumer
    assert driver.fanin(consumer) == 0
    assert driver.consumers(producer) == []
    assert driver.state(consumer) == READY
    driver.close_scope()
    driver.close_scope()
    assert driver.state(producer) == COMPLETED
    assert driver.refs(producer) == (2, 2), "all but the consumer have let go"
    driver.run_pass()
    assert driver.state(producer) == COMPLETED, "while the consumer runs"
    driver.finish(consumer)
    assert producer in driver.consumed_list()


@pytest.mark.spec("SCHED-WIRE-4", "SCHED-POISON-1")
def test_a_failed_producer_poisons_the_consumer_when_it_is_wired(driver):
    failed, fine, running = (driver.submit(writes(KEY + 8 * i)) for i in range(3))
    driver.run_pass()
    driver.post_done(driver.worker_of(failed), ValueError("no"))
    driver.post_done(driver.worker_of(fine))
    consumers = [
        [reads(KEY)],
        [reads(KEY), reads(KEY + 8)],
        [reads(KEY + 16), reads(KEY)],
    ]
    slots = [driver.submit(*args) for args in consumers]  # accepted: the failure is not known yet
    driver.x.collect(driver.mem)
    assert driver.state(failed) == FAILED
    assert [driver.state(slot) for slot in slots] == [PENDING] * 3
    for slot in slots:
        assert wire_next(driver) == slot
        assert driver.state(slot) == FAILED
    assert driver.state(running) == READY
    assert driver.fanin(slots[2]) == 1, "it waits for its other producer before it lets go"
    assert driver.ready_queue() == [running]


@pytest.mark.spec("SCHED-WIRE-5")
def test_a_consumer_without_live_fan_in_is_ready_in_the_pass_that_wires_it():
    driver = Driver(sub=1)
    done = driver.submit(writes(KEY))
    driver.finish(done)
    buffer = driver.alloc(64)
    driver.submit()  # takes the only worker
    driver.run_pass()
    slots = [
        driver.submit(),
        driver.submit(reads(KEY)),
        driver.submit(updates(driver.address(buffer)), reads(KEY)),
        driver.submit(reads(KEY + 8)),
    ]
    assert [driver.state(slot) for slot in slots] == [PENDING] * 4
    driver.run_pass()
    assert [driver.state(slot) for slot in slots] == [READY] * 4
    assert driver.ready_queue() == slots
    driver.close()
