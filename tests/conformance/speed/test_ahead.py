"""SPEED-AHEAD: tasks given before they are ready."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from simpler_ref.jit import layout as L
from tests.support import (
    COMPLETED,
    DEADLINE_S,
    FAILED,
    PENDING,
    RUNNING,
    reads,
    updates,
    wait_until,
    writes,
)

pytestmark = pytest.mark.spec("SPEED-AHEAD-1")

KEY = 0x7000_0000
NEVER_NS = 10**13


def chain(driver, tasks, **more):
    """Submit a chain of tasks; return their slots."""
    return [driver.submit(updates(KEY), **more) for _ in range(tasks)]


def pair(driver, how=reads):
    """Give worker 0 a task, and worker 1 one that waits for it; return both."""
    first = driver.submit(writes(KEY), owner=0)
    second = driver.submit_and_settle(how(KEY), owner=1)
    assert (driver.all_given(0), driver.all_given(1)) == ([first], [second])
    return first, second


@pytest.mark.parametrize("depth", [2, 3, 7])
def test_a_chain_is_in_the_frames_of_one_worker_though_only_its_head_is_ready(make_driver, depth):
    driver = make_driver(depth=depth, sub=1)
    slots = chain(driver, depth + 2)
    driver.settle()
    assert driver.all_given(0) == slots[:depth]
    assert [driver.state(slot) for slot in slots] == [RUNNING] + [PENDING] * (depth + 1)
    for slot in slots[:depth]:
        assert driver.given(0) != slot or driver.may_start(0) == L.OK
        driver.post_done(0)


def test_a_worker_starts_it_when_the_other_workers_task_has_ended(make_driver):
    driver = make_driver(depth=2, sub=2)
    pair(driver)
    assert driver.may_start(1) == L.WOULD_BLOCK
    driver.post_done(0)
    assert driver.may_start(1) == L.OK, "before anybody has taken that end"
    driver.settle()
    assert driver.may_start(1) == L.OK


def test_its_end_is_collected_after_those_of_the_tasks_that_it_waits_for(make_driver):
    driver = make_driver(depth=2, sub=2)
    first, second = pair(driver)
    driver.post_done(0)
    driver.post_done(1)
    assert driver.x.collect_from(driver.mem, 1, 1) == 0
    assert driver.states(first, second) == [RUNNING, PENDING]
    driver.settle()
    assert driver.states(first, second) == [COMPLETED, COMPLETED]


@pytest.mark.parametrize("why", ["failure", "cancel"])
def test_after_a_failure_or_a_cancel_nothing_is_given_ahead(make_driver, why):
    driver = make_driver(depth=2, sub=2)
    failing, slots = driver.submit(owner=1), chain(driver, 4, owner=0)
    driver.settle()
    assert driver.all_given(0) == slots[:2] and driver.given(1) == failing
    driver.open_scope()  # so that nothing is gone when the run is cancelled
    if why == "failure":
        driver.post_done(1, ValueError("no"))
    else:
        driver.finish_run(cancel=True)
    driver.answer_and_settle(0)
    assert driver.all_given(0) in ([slots[1]], [])
    assert not {slots[2], slots[3]} & set(driver.all_given(0))


def test_a_task_that_was_not_started_is_seen_to_be_though_its_frame_was_filled_again(make_driver):
    driver = make_driver(depth=2, sub=3)
    head, behind = pair(driver, updates)  # worker 1 sees a failure that nobody has collected
    last = driver.submit_and_settle(reads(KEY), owner=2)
    assert driver.all_given(2) == [last]
    driver.answer_and_settle(1, outcome=L.SKIPPED)
    assert (driver.state(head), driver.state(behind)) == (RUNNING, FAILED)
    for _ in range(2):
        driver.submit_and_settle(owner=1)
        driver.answer_and_settle(1)
    assert driver.may_start(2) == L.SKIPPED


def test_a_worker_that_waits_for_long_gives_its_task_back_and_what_follows_too(make_driver):
    driver = make_driver(depth=3, sub=2)
    head = driver.submit(writes(KEY), owner=0)
    slots = [driver.submit(updates(KEY), owner=1) for _ in range(2)]
    driver.settle()
    assert driver.all_given(1) == slots
    driver.mem[L.SPIN_NS] = 10**6
    begin = time.monotonic_ns()
    assert driver.x.receive(driver.mem, 1) == L.PARK
    assert time.monotonic_ns() - begin >= (4 + 1) * 10**6, "four times, and once for the next"
    assert (L.RETURN_BUDGETS, driver.mailbox_state(1, 0)) == (4, (L.TASK_DONE, L.RETURNED))
    assert driver.mailbox_state(1, 1) == (L.TASK_DONE, L.RETURNED)
    driver.settle()
    assert ([driver.state(slot) for slot in slots], driver.all_given(1)) == ([PENDING] * 2, [])
    driver.finish(head)
    assert driver.state(slots[0]) == RUNNING, "given again, when it is ready"
    assert driver.state(head) == COMPLETED
    assert driver.all_given(1) == slots[:1], "and what follows when it is ready, for now"
    for slot in slots:
        driver.finish(slot)
    assert [driver.state(slot) for slot in slots] == [COMPLETED] * 2


@pytest.mark.parametrize("why", ["stop", "cancel"])
def test_a_worker_that_waits_starts_nothing_after_a_stop_or_a_cancel(make_driver, why):
    driver = make_driver(depth=3, sub=2)
    driver.mem[L.SPIN_NS] = NEVER_NS
    driver.submit(writes(KEY), owner=0)
    for _ in range(2):
        driver.submit(updates(KEY), owner=1)
    driver.settle()
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(driver.x.receive, driver.mem, 1)
        if why == "cancel":
            driver.finish_run(cancel=True)
            wait_until(lambda: driver.mailbox_state(1, 1) == (L.TASK_DONE, L.SKIPPED))
            assert driver.mailbox_state(1, 0) == (L.TASK_DONE, L.SKIPPED)
        driver.k.request_stop(driver.mem, 1)
        assert waits.result(DEADLINE_S) == L.STOP


@pytest.mark.parametrize(("stream", "given"), [(0, 2), (L.CALLS, 1)])
def test_calls_wait_for_their_turn_before_they_go_to_an_endpoint(make_driver, stream, given):
    driver = make_driver(depth=2, sub=0, next_level=1)
    driver.mem[L.STREAM] = stream
    slots = chain(driver, 3, kind=L.NEXT_LEVEL)
    driver.settle()
    assert driver.all_given(0) == slots[:given]
