"""WM-CLAIM: the mailbox between two tasks."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from simpler_ref.jit import layout as L
from tests.support import DEADLINE_S, FAILED, READY, RUNNING, Driver, member, wait_until

FOREVER_NS = 10**13


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as made:
        yield made


def claim(driver, threads, worker=0, timeout_ns=FOREVER_NS):
    """Ask for a mailbox from another thread; return when it waits, or has it."""
    asked = threads.submit(driver.k.claim_mailbox, driver.mem, worker, timeout_ns)
    wait_until(lambda: asked.done() or driver.word(worker, L.W_CLAIM) == L.CLAIM_WAITS)
    return asked


# ---------------------------------------------------------------- granted
@pytest.mark.spec("WM-CLAIM-1")
@pytest.mark.parametrize("state", [L.INIT_DONE, L.IDLE, "collected"])
def test_the_mailbox_of_an_idle_worker_is_had_at_once(state):
    driver = Driver(sub=2)
    if state == "collected":
        driver.submit()
        driver.run_pass()
        driver.post_done(0)
        driver.run_pass()
        assert driver.mailbox_state(0)[0] == L.TASK_DONE
        assert driver.mem[L.UNCOLLECTED] == 1
    else:
        driver.x.post(driver.mem, 0, state, 0)
    assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.OK
    assert driver.mailbox_state(0) == (L.IDLE, 0)
    assert driver.mem[L.UNCOLLECTED] == 0
    driver.k.release_mailbox(driver.mem, 0)
    driver.close()


@pytest.mark.spec("WM-CLAIM-1")
@pytest.mark.parametrize("error", [None, ValueError("x")])
def test_the_mailbox_of_a_busy_worker_is_had_when_its_task_is_collected(threads, error):
    driver = Driver(sub=1)
    slot, after = driver.submit(), driver.submit()
    driver.settle()
    asked = claim(driver, threads)
    driver.settle()
    assert not asked.done()
    driver.post_done(0, error)
    assert not asked.done()
    driver.settle()
    assert asked.result(DEADLINE_S) == L.OK
    assert driver.state(slot) != RUNNING
    assert driver.state(after) == READY, "the claim comes before the next task"
    assert driver.mailbox_state(0) == (L.IDLE, 0)
    driver.k.release_mailbox(driver.mem, 0)
    driver.close()


@pytest.mark.spec("WM-CLAIM-1")
def test_a_claim_on_a_member_of_a_group_waits_for_that_member_only(threads):
    driver = Driver(sub=2)
    group = driver.submit_group(member(), member())
    driver.settle()
    asked = claim(driver, threads, 1)
    driver.post_done(1)
    driver.settle()
    assert asked.result(DEADLINE_S) == L.OK
    assert driver.state(group) == RUNNING
    driver.k.release_mailbox(driver.mem, 1)
    driver.close()


# ---------------------------------------------------------------- meanwhile
@pytest.mark.spec("WM-CLAIM-2")
def test_a_worker_that_is_claimed_before_it_is_admitted_has_no_task_before_the_release():
    driver = Driver(sub=1, usable=False)
    driver.k.report_ready(driver.mem, 0)
    assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.OK
    driver.k.set_usable(driver.mem, 0, 1)
    slot = driver.submit()
    driver.settle()
    assert driver.state(slot) == READY
    driver.k.release_mailbox(driver.mem, 0)
    driver.settle()
    assert driver.state(slot) == RUNNING
    driver.close()


@pytest.mark.spec("WM-CLAIM-2")
def test_a_claimed_worker_gets_no_task_until_it_is_released():
    driver = Driver(sub=2)
    assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.OK
    slots = [driver.submit() for _ in range(2)]
    driver.settle()
    assert driver.given(0) == L.NONE
    assert (driver.given(1), driver.state(slots[1])) == (slots[0], READY)
    assert driver.x.has_work(driver.mem) == 0
    driver.k.release_mailbox(driver.mem, 0)
    assert driver.x.has_work(driver.mem) == 1
    driver.settle()
    assert driver.worker_of(slots[1]) == 0
    driver.close()


@pytest.mark.spec("WM-CLAIM-2")
@pytest.mark.parametrize("what", ["group", "for one worker"])
def test_a_task_that_needs_a_claimed_worker_waits_for_its_release(what):
    driver = Driver(sub=0, next_level=2)
    assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.OK
    if what == "group":
        slot = driver.submit_group(member(), member(), kind=L.NEXT_LEVEL)
    else:
        slot = driver.submit(kind=L.NEXT_LEVEL, owner=0)
    driver.settle()
    assert driver.state(slot) == READY
    driver.k.release_mailbox(driver.mem, 0)
    driver.settle()
    assert driver.state(slot) == RUNNING
    driver.close()


@pytest.mark.spec("WM-CLAIM-2", "SCHED-WAKE-1")
@pytest.mark.parametrize("word", ["PARK_ORCH", "PARK_SCHED"])
def test_a_release_wakes_whoever_sleeps_if_a_task_is_ready(word):
    driver = Driver(sub=1)
    for ready in (False, True):
        assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.OK
        if ready:
            driver.submit()
            driver.settle()
        driver.mem[getattr(L, word)] = L.ACTIVE
        driver.k.release_mailbox(driver.mem, 0)
        assert (driver.mem[getattr(L, word)] == 0) == ready
        assert driver.x.has_work(driver.mem) == ready
    driver.close()


@pytest.mark.spec("WM-CLAIM-2")
def test_a_busy_worker_gets_no_further_task_from_the_claim_on(threads):
    driver = Driver(sub=1)
    driver.submit()
    driver.settle()
    asked = claim(driver, threads)
    after = [driver.submit() for _ in range(3)]
    driver.post_done(0)
    for _ in range(3):
        driver.settle()
    assert [driver.state(s) for s in after] == [READY] * 3
    assert asked.result(DEADLINE_S) == L.OK
    driver.k.release_mailbox(driver.mem, 0)
    driver.settle()
    assert driver.state(after[0]) == RUNNING
    driver.close()


# ---------------------------------------------------------------- not in time
@pytest.mark.spec("WM-CLAIM-3")
def test_a_claim_that_is_not_granted_in_time_leaves_no_trace():
    driver = Driver(sub=1)
    slot = driver.submit()
    driver.settle()
    assert driver.k.claim_mailbox(driver.mem, 0, 1000) == L.TIMED_OUT
    assert driver.word(0, L.W_CLAIM) == 0
    assert driver.word(0, L.W_USABLE) == L.ALIVE
    assert driver.mailbox_state(0) == (L.TASK_READY, 0), "its task is not disturbed"
    driver.finish(slot)
    after = driver.submit()
    driver.settle()
    assert driver.state(after) == RUNNING
    driver.close()


# ---------------------------------------------------------------- death
@pytest.mark.spec("WM-CLAIM-4")
@pytest.mark.parametrize("buried", [False, True])
def test_a_claim_on_a_dead_worker_ends_at_once(buried):
    driver = Driver(sub=2)
    driver.kill(0)
    if buried:
        driver.settle()
    assert driver.k.claim_mailbox(driver.mem, 0, FOREVER_NS) == L.ILLEGAL
    assert not driver.usable(0) or not buried
    driver.settle()
    assert not driver.usable(0)
    driver.close()


@pytest.mark.spec("WM-CLAIM-4")
@pytest.mark.parametrize("answered", [False, True])
def test_a_claim_that_waits_for_a_worker_that_dies_ends(threads, answered):
    driver = Driver(sub=2)
    slot = driver.submit()
    driver.settle()
    asked = claim(driver, threads)
    if answered:
        driver.post_done(0)
    driver.kill(0)
    driver.settle()
    assert asked.result(DEADLINE_S) == L.ILLEGAL
    driver.settle()
    assert not driver.usable(0)
    assert (driver.state(slot) == FAILED) == (not answered)
    driver.close()


@pytest.mark.spec("WM-CLAIM-4")
def test_a_request_whose_worker_dies_ends(threads):
    driver = Driver(sub=1)
    assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.OK
    asked = threads.submit(driver.k.request_control, driver.mem, 0, FOREVER_NS)
    wait_until(lambda: driver.mailbox_state(0)[0] == L.CONTROL_REQUEST)
    driver.kill(0)
    assert asked.result(DEADLINE_S) == L.ILLEGAL
    driver.k.release_mailbox(driver.mem, 0)
    driver.settle()
    assert not driver.usable(0)
    driver.close()
