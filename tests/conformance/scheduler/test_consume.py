"""SCHED-CONSUME: the last reference."""

from itertools import permutations

import pytest

from simpler_ref.jit import layout as L
from tests.support import COMPLETED, CONSUMED, FREE, auto, reads, writes

KEY = 0x7000_0000


def start_in_a_scope_that_ends(driver, *args):
    """Return a RUNNING task of a scope that has ended."""
    driver.open_scope()
    slot = driver.start(*args)
    driver.close_scope()
    return slot


@pytest.mark.spec("SCHED-CONSUME-1")
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_last_of_its_consumers_consumes_a_task_whichever_it_is(make_driver, order):
    driver = make_driver(sub=3)
    driver.open_scope()
    producer = driver.submit(writes(KEY))
    driver.finish(producer)
    driver.open_scope()
    consumers = [driver.submit(reads(KEY)) for _ in range(3)]
    driver.run_pass()
    driver.close_scope()
    driver.close_scope()
    for which in order:
        assert driver.state(producer) == COMPLETED
        assert producer not in driver.consumed_list()
        driver.answer_task(consumers[which])
    assert (driver.state(producer), driver.refs(producer)) == (CONSUMED, (4, 5))
    assert driver.consumed_list().count(producer) == 1


@pytest.mark.spec("SCHED-CONSUME-1", "SCHED-CONSUME-2")
def test_a_pass_leaves_keys_slab_and_slot_to_the_orch_thread(driver):
    slot = start_in_a_scope_that_ends(driver, auto(2000))
    slab, before = driver.address(slot), driver.words()
    driver.answer_task(slot)
    driver.settle()
    assert (driver.state(slot), driver.consumed_list()) == (CONSUMED, [slot])
    assert (driver.lookup(slab), driver.held(1), driver.live()) == (slot, 2048, 1)
    owned = set(range(L.RING_BLOCK, L.SCHED)) - {L.ORCH_PASSES}
    assert not owned & set(driver.changed_since(before)), "no word of the Orch thread has changed"
    assert (driver.reclaim(), driver.state(slot), driver.lookup(slab)) == (1, FREE, L.NONE)
    assert driver.held(1) == driver.live() == 0
    assert driver.consumed_list() == []
    assert driver.reclaim() == 0, "once"


@pytest.mark.spec("SCHED-CONSUME-2")
@pytest.mark.parametrize("who", ["a submit", "a drain"])
def test_the_orch_thread_reclaims_when_it_next_claims_or_drains(driver, who):
    slot = start_in_a_scope_that_ends(driver)
    driver.answer_task(slot)
    assert driver.state(slot) == CONSUMED
    if who == "a submit":
        driver.k.submit_and_pass(driver.mem, L.SUB << 32, 0, b"")
    else:
        assert driver.k.help_scheduler(driver.mem, 0, -1, -1, 1 << 40) == L.OK
    assert (driver.live(), driver.state(slot)) == (who == "a submit", FREE)
