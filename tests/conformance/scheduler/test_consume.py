"""SCHED-CONSUME: the last reference."""

import pytest

from simpler_ref.jit import layout as L
from tests.support import CONSUMED, FREE, auto


@pytest.mark.spec("SCHED-CONSUME-1", "SCHED-CONSUME-2")
@pytest.mark.parametrize("how", ["by itself", "in a submit", "in a drain"])
def test_a_pass_leaves_keys_slab_and_slot_to_the_orch_thread_which_reclaims_once(driver, how):
    driver.open_scope()
    slot = driver.start(auto(2000))
    driver.close_scope()
    slab, before = driver.address(slot), driver.words()
    driver.answer_task(slot)
    driver.settle()
    assert (driver.state(slot), driver.consumed_list()) == (CONSUMED, [slot])
    assert (driver.lookup(slab), driver.held(1), driver.live()) == (slot, 2048, 1)
    owned = set(range(L.RING_BLOCK, L.SCHED)) - {L.ORCH_PASSES}
    assert not owned & set(driver.changed_since(before)), "no word of the Orch thread has changed"
    if how == "by itself":
        assert driver.reclaim() == 1
    elif how == "in a submit":
        driver.k.submit_and_pass(driver.mem, L.SUB << 32, 0, 0, b"")
    else:
        assert driver.k.help_scheduler(driver.mem, 0, -1, -1, L.NONE, 1 << 40) == L.OK
    assert (driver.state(slot), driver.lookup(slab), driver.held(1)) == (FREE, L.NONE, 0)
    assert (driver.live(), driver.consumed_list()) == (how == "in a submit", [])
    assert driver.reclaim() == 0, "once"
