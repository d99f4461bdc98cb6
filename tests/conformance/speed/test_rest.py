"""SPEED-REST: the Orch thread sleeps while workers have enough to do."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from simpler_ref.jit import layout as L
from tests.support import DEADLINE_S, wait_until

NEVER_NS = 10**13
FRAMES = 16


@contextmanager
def draining(make_driver, depth, workers):
    """Give an engine whose Orch thread drains, while worker 0 has tasks in all of its frames."""
    driver = make_driver(depth=depth, sub=workers)
    driver.mem[L.PARK_NS] = NEVER_NS
    for _ in range(depth):
        driver.submit(owner=0)
    driver.settle()
    driver.finish_run()
    with ThreadPoolExecutor(1) as threads:
        drained = threads.submit(driver.k.help_scheduler, driver.mem, 0, -1, -1, NEVER_NS)
        wait_until(lambda: driver.mem[L.PARK_ORCH] != 0)
        yield driver
        while driver.mailbox_state(0)[0] == L.TASK_READY:
            end_task(driver)
        assert drained.result(DEADLINE_S) == L.OK


@pytest.fixture
def resting(make_driver):
    """The Orch thread drains, and rests."""
    with draining(make_driver, FRAMES, workers=1) as driver:
        wait_until(lambda: driver.mem[L.PARK_ORCH] == L.AT_REST)
        yield driver


def end_task(driver, outcome=L.SUCCESS):
    driver.post_done(0, outcome=outcome)
    driver.x.announce_done(driver.mem, 0)


@pytest.mark.spec("SPEED-REST-1")
def test_an_orch_thread_at_rest_is_woken_by_a_worker_that_runs_low(resting):
    reserve = FRAMES // L.RESERVES
    for _ in range(FRAMES - reserve - 1):
        end_task(resting)
    time.sleep(0.02)
    assert resting.mem[L.PARK_ORCH] == L.AT_REST
    assert resting.mem[L.COMPLETED_COUNT] == 0, "the ends are left where they are"
    end_task(resting)
    wait_until(lambda: resting.mem[L.COMPLETED_COUNT] == FRAMES - reserve)


@pytest.mark.spec("SPEED-REST-1")
def test_or_by_one_whose_task_has_failed(resting):
    end_task(resting)
    end_task(resting, L.TASK_FAILURE)
    wait_until(lambda: resting.mem[L.FAILED_COUNT] == 1)
    wait_until(lambda: resting.mem[L.PARK_ORCH] == L.AT_REST)


@pytest.mark.spec("SPEED-REST-1")
@pytest.mark.spec("SPEED-PARTS-11")
def test_or_by_the_end_of_the_task_that_it_waits_for(make_driver):
    driver = make_driver(depth=FRAMES, sub=1)
    driver.mem[[L.PARK_NS, L.PARKS_AT_ONCE]] = NEVER_NS, 1
    slots = [driver.submit(owner=0) for _ in range(FRAMES)]
    driver.settle()
    with ThreadPoolExecutor(1) as threads:
        awaited = 5
        asked = driver.mem, -1, -1, slots[awaited], DEADLINE_S * 10**9
        waits = threads.submit(driver.k.help_stream, *asked)
        wait_until(lambda: driver.mem[L.PARK_ORCH] == L.AT_REST)
        for _ in range(awaited):
            end_task(driver)
        time.sleep(0.02)
        assert driver.mem[L.PARK_ORCH] == L.AT_REST
        assert not waits.done()
        end_task(driver)
        assert waits.result(DEADLINE_S / 2) == L.OK
    assert driver.mem[L.COMPLETED_COUNT] == awaited + 1
    while driver.mailbox_state(0)[0] == L.TASK_READY:
        end_task(driver)
    driver.settle()


@pytest.mark.spec("SPEED-REST-1")
def test_or_by_the_death_of_one(resting):
    resting.kill(0)
    wait_until(lambda: resting.mem[L.FAILED_COUNT] == FRAMES)


@pytest.mark.spec("SPEED-REST-1")
@pytest.mark.parametrize(("depth", "workers"), [(FRAMES, 2), (3, 1)])
def test_it_does_not_rest_where_a_worker_has_no_task_or_few_frames(make_driver, depth, workers):
    with draining(make_driver, depth, workers) as driver:
        assert driver.mem[L.PARK_ORCH] == L.ACTIVE
        for done in range(depth):
            end_task(driver)
            wait_until(lambda done=done: driver.mem[L.COMPLETED_COUNT] == done + 1)
