"""SCHED-CONSUME: the last reference."""

import pytest

from simpler_ref.jit import layout as L
from tests.support import CONSUMED, FREE, auto


def start_in_a_scope_that_ends(driver, *args):
    """Return a RUNNING task of a scope that has ended."""
    driver.open_scope()
    slot = driver.start(*args)
    driver.close_scope()
    return slot


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
