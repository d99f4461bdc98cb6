"""WM-CLAIM: the mailbox between two tasks."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from simpler_ref.jit import layout as L
from tests.support import DEADLINE_S, FAILED, READY, RUNNING, wait_until

FOREVER_NS = 10**13


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as made:
        yield made


def claim(driver, worker=0, timeout_ns=0):
    return driver.k.claim_mailbox(driver.mem, worker, timeout_ns)


def release(driver, worker=0):
    driver.k.release_mailbox(driver.mem, worker)


def claim_beside(threads, driver, worker=0):
    """Ask for a mailbox from another thread; return when it waits, or has it."""
    asked = threads.submit(claim, driver, worker, FOREVER_NS)
    wait_until(lambda: asked.done() or driver.word(worker, L.W_CLAIM) == L.CLAIM_WAITS)
    return asked


@pytest.mark.spec("WM-CLAIM-1", "WM-CLAIM-2")
@pytest.mark.parametrize("error", [None, ValueError("x")])
def test_the_mailbox_of_a_busy_worker_is_had_when_its_task_is_over(make_driver, threads, error):
    driver = make_driver(sub=1)
    slot, *after = (driver.submit() for _ in range(4))
    driver.settle()
    asked = claim_beside(threads, driver)
    driver.settle()
    assert not asked.done()
    driver.post_done(0, error)
    assert not asked.done()
    for _ in range(3):
        driver.settle()
    assert asked.result(DEADLINE_S) == L.OK
    assert driver.state(slot) != RUNNING
    assert [driver.state(s) for s in after] == [READY] * 3, "the claim comes first"
    assert driver.mailbox_state(0) == (L.IDLE, 0)
    release(driver)
    driver.settle()
    assert driver.state(after[0]) == RUNNING


@pytest.mark.spec("WM-CLAIM-2")
def test_a_worker_that_is_claimed_before_it_is_admitted_has_no_task_before_the_release(make_driver):
    driver = make_driver(sub=1, usable=False)
    driver.k.report_ready(driver.mem, 0)
    assert claim(driver) == L.OK
    driver.k.set_usable(driver.mem, 0, 1)
    slot = driver.submit_and_settle()
    assert driver.state(slot) == READY
    release(driver)
    driver.settle()
    assert driver.state(slot) == RUNNING


@pytest.mark.spec("WM-CLAIM-3")
def test_a_claim_that_is_not_granted_in_time_leaves_no_trace(make_driver):
    driver = make_driver(sub=1)
    slot = driver.submit_and_settle()
    assert (claim(driver, timeout_ns=1000), driver.word(0, L.W_CLAIM)) == (L.TIMED_OUT, 0)
    assert driver.word(0, L.W_USABLE) == L.ALIVE
    assert driver.mailbox_state(0) == (L.TASK_READY, 0), "its task is not disturbed"
    driver.finish(slot)
    after = driver.submit_and_settle()
    assert driver.state(after) == RUNNING


@pytest.mark.spec("WM-CLAIM-4")
@pytest.mark.parametrize("answered", [False, True])
def test_a_claim_that_waits_for_a_worker_that_dies_ends(driver, threads, answered):
    slot, asked = driver.submit_and_settle(), claim_beside(threads, driver)
    if answered:
        driver.post_done(0)
    driver.kill(0)
    driver.settle()
    assert asked.result(DEADLINE_S) == L.ILLEGAL
    driver.settle()
    assert not driver.usable(0)
    assert (driver.state(slot) == FAILED) == (not answered)


@pytest.mark.spec("WM-CLAIM-4")
def test_a_request_whose_worker_dies_ends(make_driver, threads):
    driver = make_driver(sub=1)
    assert claim(driver) == L.OK
    asked = threads.submit(driver.k.request_control, driver.mem, 0, FOREVER_NS)
    wait_until(lambda: driver.mailbox_state(0)[0] == L.CONTROL_REQUEST)
    driver.kill(0)
    assert asked.result(DEADLINE_S) == L.ILLEGAL
    release(driver)
    driver.settle()
    assert not driver.usable(0)
