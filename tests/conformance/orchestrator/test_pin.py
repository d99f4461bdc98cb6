"""ORCH-PIN: keeping a producer until it is wired."""

import pytest

from tests.support import COMPLETED, CONSUMED, FREE, RUNNING, auto, reads


@pytest.mark.spec("ORCH-PIN-1", "ORCH-PIN-2")
@pytest.mark.parametrize("scope_first", [False, True])
def test_a_producer_done_and_out_of_scope_before_wiring_waits_for_its_consumer(driver, scope_first):
    """The race of D3, step by step: submit, complete, end the scope, and only then wire."""
    driver.open_scope()
    producer = driver.start(auto(2000))
    address = driver.address(producer)
    driver.open_scope()
    consumer = driver.submit(reads(address))
    assert driver.refs(producer) == (2, 0)  # its scope, and the consumer, which is not wired
    driver.close_scope()
    if scope_first:
        driver.close_scope()
    driver.post_done(driver.worker_of(producer))
    driver.x.collect(driver.mem)  # a pass that does not come to the wiring queue
    if not scope_first:
        driver.close_scope()
    driver.reclaim()

    assert driver.wiring_queue() == [consumer]
    assert (driver.state(producer), driver.held(1)) == (COMPLETED, 2048)
    driver.open_scope()
    other = driver.alloc(2000)  # does not get the memory the consumer is about to read
    assert driver.address(other) != address
    driver.close_scope()

    driver.settle()  # wired now
    assert driver.state(consumer) == RUNNING
    driver.reclaim()
    assert driver.state(producer) == COMPLETED
    driver.answer_task(consumer)
    assert driver.state(producer) == CONSUMED
    driver.reclaim()
    assert (driver.state(producer), driver.held(1)) == (FREE, 0)


@pytest.mark.spec("ORCH-PIN-3")
def test_a_consumed_producer_counts_as_absent(driver):
    driver.open_scope()
    producer = driver.submit(auto(8))
    address = driver.address(producer)
    driver.settle()
    driver.close_scope()
    driver.post_done(driver.worker_of(producer))
    driver.x.collect(driver.mem)
    assert driver.state(producer) == CONSUMED
    assert driver.lookup(address) == producer  # its key is there until it is reclaimed
    consumer = driver.submit(reads(address))
    assert (driver.producers(consumer), driver.refs(producer)) == ([], (1, 2))
    driver.reclaim()
    driver.finish(consumer)
