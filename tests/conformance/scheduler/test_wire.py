"""SCHED-WIRE: edges."""

import pytest

from tests.support import FAILED, PENDING, READY, RUNNING, reads, updates, writes

KEY = 0x7000_0000


@pytest.mark.spec("SCHED-WIRE-1")
def test_entries_are_wired_once_and_in_the_order_of_submits(make_driver):
    driver = make_driver(sub=0, next_level=0)
    slots = [driver.submit(updates(KEY + 8 * i)) for i in range(10)]
    for wired in range(10):
        assert driver.wiring_queue() == slots[wired:]
        assert driver.wire() == slots[wired]
    assert driver.wiring_queue() == []
    assert driver.ready_queue() == slots, "what is wired first is READY first"


@pytest.mark.spec("SCHED-WIRE-2")
@pytest.mark.parametrize("state", [PENDING, READY, RUNNING], ids=lambda s: s.name)
def test_a_producer_that_has_not_finished_gets_an_edge_and_counts_as_fan_in(make_driver, state):
    driver = make_driver(sub=1)
    if state != RUNNING:
        driver.submit(writes(KEY + 8))  # takes the only worker
    reads_it = [reads(KEY + 8)] if state == PENDING else []
    producer = driver.start(*reads_it, writes(KEY))
    assert driver.state(producer) == state
    consumers = [driver.submit(reads(KEY)) for _ in range(3)]
    for consumer in consumers:
        assert (driver.wire(), driver.fanin(consumer)) == (consumer, 1)
        assert driver.state(consumer) == PENDING
    assert sorted(driver.consumers(producer)) == sorted(consumers)


@pytest.mark.spec("SCHED-WIRE-4", "SCHED-POISON-1")
def test_a_failed_producer_poisons_the_consumer_when_it_is_wired(driver):
    failed, fine, running = (driver.submit(writes(KEY + 8 * i)) for i in range(3))
    driver.run_pass()
    driver.post_done(driver.worker_of(failed), ValueError("no"))
    driver.post_done(driver.worker_of(fine))
    slots = [  # accepted: the failure is not known yet
        driver.submit(reads(KEY)),
        driver.submit(reads(KEY), reads(KEY + 8)),
        driver.submit(reads(KEY + 16), reads(KEY)),
    ]
    driver.x.collect(driver.mem)
    assert driver.states(failed, *slots) == [FAILED] + [PENDING] * 3
    for slot in slots:
        assert (driver.wire(), driver.state(slot)) == (slot, FAILED)
    assert driver.state(running) == READY
    assert driver.fanin(slots[2]) == 1, "it waits for its other producer before it lets go"
    assert driver.ready_queue() == [running]


@pytest.mark.spec("SCHED-WIRE-5")
def test_a_consumer_without_live_fan_in_is_ready_in_the_pass_that_wires_it(make_driver):
    driver = make_driver(sub=1)
    driver.finish(driver.submit(writes(KEY)))
    buffer = driver.alloc(64)
    driver.start()  # takes the only worker
    slots = [
        driver.submit(),
        driver.submit(reads(KEY)),
        driver.submit(updates(driver.address(buffer)), reads(KEY)),
        driver.submit(reads(KEY + 8)),
    ]
    assert driver.states(*slots) == [PENDING] * 4
    driver.run_pass()
    assert (driver.states(*slots), driver.ready_queue()) == ([READY] * 4, slots)
