"""SCHED-CANCEL: stopping a run early."""

import pytest

from simpler_ref.jit import layout as L
from tests.support import COMPLETED, FAILED, PENDING, READY, RUNNING, reads, writes

KEY = 0x7000_0000


@pytest.fixture
def cancelled(make_driver):
    """Give an engine whose run is cancelled, and a running, a ready and a pending task of it."""
    driver = make_driver(sub=1)
    slots = [driver.submit(arg) for arg in (writes(KEY), writes(KEY + 8), reads(KEY))]
    driver.run_pass()
    assert driver.states(*slots) == [RUNNING, READY, PENDING]
    driver.mem[L.CANCEL] = 1
    return driver, *slots


@pytest.mark.spec("SCHED-CANCEL-1")
def test_after_a_cancel_a_task_that_is_or_becomes_ready_fails_and_is_not_dispatched(cancelled):
    driver, running, ready, pending = cancelled
    driver.run_pass()
    assert (driver.states(ready, pending), driver.ready_queue()) == ([FAILED, PENDING], [])
    unwired = driver.submit()
    driver.answer_task(running)
    driver.settle()
    assert driver.given(0) == L.NONE, "its worker stays idle"
    for slot in (ready, pending, unwired):
        assert (driver.state(slot), driver.worker_of(slot)) == (FAILED, -1)


@pytest.mark.spec("SCHED-CANCEL-2", "SCHED-CANCEL-4")
@pytest.mark.parametrize("error", [None, ValueError("no")], ids=["COMPLETED", "FAILED"])
def test_running_tasks_finish_as_usual_and_the_next_run_dispatches_normally(cancelled, error):
    driver, running, _, _ = cancelled
    driver.settle()
    assert driver.state(running) == RUNNING
    driver.answer_task(running, error)
    driver.settle()
    assert driver.state(running) == (FAILED if error else COMPLETED)
    assert bool(driver.mem[L.RUN_ERROR]) == bool(error), "a cancel itself is no failure of a task"
    driver.finish_run(cancel=True)
    driver.reclaim()
    driver.end_run()
    driver.begin_run()
    slot = driver.submit()
    driver.finish(slot)
    assert driver.state(slot) == COMPLETED
