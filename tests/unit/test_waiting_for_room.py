"""What ends the Orch thread's wait for room in a ring."""

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.orch.columns import Batch

from ..support import Driver, auto

SLICE_NS = 50_000_000


def wait_for_a_move(driver):
    return driver.k.help_scheduler(driver.mem, -1, -1, int(driver.mem[L.WIRING_TAKEN]), SLICE_NS)


@pytest.fixture
def full(driver):
    """Give a driver whose ring 1 is filled by one task that runs."""
    driver.open_scope()
    slot = driver.submit(auto(1 << 16))
    driver.settle()
    assert driver.try_submit([auto(1)]) == L.WOULD_BLOCK
    driver.close_scope()
    driver.open_scope()
    return driver, slot


@pytest.mark.spec("ORCH-BACK-1")
def test_room_from_a_task_that_another_thread_s_pass_has_consumed_ends_the_wait(full):
    driver, slot = full
    driver.finish(slot)
    assert driver.consumed_list() == [slot]
    assert wait_for_a_move(driver) == L.OK
    assert driver.try_submit([auto(1)]) >= 0


@pytest.mark.spec("ORCH-BACK-1")
def test_while_nothing_moves_the_wait_lasts(full):
    driver, _ = full
    assert wait_for_a_move(driver) == L.TIMED_OUT
    assert driver.try_submit([auto(1)]) == L.WOULD_BLOCK


def test_a_wiring_queue_that_another_thread_has_emptied_meanwhile_ends_the_wait_at_once():
    driver = Driver(window=L.WIRING_CAPACITY + 2)
    while driver.try_submit() >= 0:
        pass
    taken = int(driver.mem[L.WIRING_TAKEN])
    driver.settle()  # the Scheduler thread, between the refusal and the wait
    assert driver.k.help_scheduler(driver.mem, -1, -1, taken, SLICE_NS) == L.OK
    assert driver.try_submit() >= 0
    driver.close()


def test_many_submits_that_find_no_room_leave_what_makes_room_to_the_wait():
    driver = Driver(window=1)
    driver.open_scope()
    slot = driver.submit()
    driver.settle()
    driver.close_scope()
    driver.post_done(driver.worker_of(slot))
    program, places = Batch([], [], count=2).program(L.SUB << L.WORD_KIND)
    assert driver.k.run_program(driver.mem, program, places.reshape(-1)) == L.WOULD_BLOCK
    assert wait_for_a_move(driver) == L.OK
    driver.k.run_program(driver.mem, program, places.reshape(-1))
    assert driver.live() == 1
    driver.close()
