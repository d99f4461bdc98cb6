"""ORCH-DEDUP: one edge per pair of tasks."""

import pytest

from tests.support import COMPLETED, reads, updates, writes

pytestmark = pytest.mark.kernels


@pytest.mark.spec("ORCH-DEDUP-1")
def test_a_producer_found_through_many_tensors_counts_once(driver):
    producer = driver.submit(writes(4096), writes(8192), writes(12288))
    consumer = driver.submit(reads(4096), updates(8192), reads(12288), reads(4096))
    assert driver.producers(consumer) == [producer]
    assert driver.refs(producer) == (2, 0)  # the scope and one consumer
    driver.settle()
    assert (driver.consumers(producer), driver.fanin(consumer)) == ([consumer], 1)
    driver.finish(producer)
    assert driver.refs(producer) == (2, 1)
    driver.finish(consumer)
    assert (driver.refs(producer), driver.state(producer)) == ((2, 2), COMPLETED)


@pytest.mark.spec("ORCH-DEDUP-2", "ORCH-DEDUP-3")
def test_output_before_input_of_one_buffer_still_finds_the_earlier_producer(driver):
    first = driver.submit(writes(4096))
    second = driver.submit(writes(4096), reads(4096))
    assert (driver.producers(second), driver.lookup(4096)) == ([first], second)
