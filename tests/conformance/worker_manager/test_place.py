"""WM-PLACE: workers for a group."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from simpler_ref import TaskArgs, Worker
from simpler_ref.jit import layout as L
from tests.support import COMPLETED, DEADLINE_S, FAILED, READY, RUNNING, Gate, member, wait_until

NEXT = L.NEXT_LEVEL


@pytest.mark.spec("WM-PLACE-1")
@pytest.mark.parametrize("busy", [1, 2])
def test_a_group_gets_all_its_workers_or_none(make_driver, busy):
    driver = make_driver(sub=3)
    tasks = [driver.submit_and_settle() for _ in range(busy)]
    idle = [w for w in range(3) if driver.given(w) == L.NONE]
    group = driver.submit_group(member(), member(), member())
    driver.settle()
    assert driver.ready_queue() == [group]
    for worker in idle:
        assert (driver.given(worker), driver.mailbox_state(worker)[0]) == (L.NONE, L.IDLE)
        assert driver.word(worker, L.W_MEMBER) == 0, "nothing is reserved"
    for task in tasks:
        assert driver.state(group) == READY
        driver.finish(task)
    assert (driver.state(group), sorted(driver.members(group))) == (RUNNING, [0, 1, 2])


@pytest.mark.spec("WM-PLACE-2")
@pytest.mark.parametrize(
    "wanted", [(3, 0, 1), (-1, 0, -1), (-1, -1, 0), (2, -1, 0), (1, -1, -1), (-1, -1, -1)]
)
def test_a_member_gets_the_worker_named_for_it(make_driver, wanted):
    driver = make_driver(sub=1, next_level=4)
    group = driver.submit_group(*[member(worker=w) for w in wanted], kind=NEXT)
    driver.settle()
    sent = driver.members(group)
    assert sorted(sent.values()) == [0, 1, 2]
    for worker, m in sent.items():
        assert wanted[m] in (-1, worker)
        assert worker < 4


@pytest.mark.spec("WM-PLACE-3")
def test_later_single_tasks_do_not_overtake_a_group_that_waits(driver):
    first = driver.submit_and_settle()
    group = driver.submit_group(member(), member())
    later = [driver.submit() for _ in range(5)]
    for _ in range(3):
        driver.settle()
        assert driver.states(group, *later) == [READY] * 6
    driver.finish(first)
    assert (driver.state(group), driver.states(*later)) == (RUNNING, [READY] * 5)
    driver.post_done(0)
    driver.answer_and_settle(1)
    assert (driver.state(group), driver.states(*later[:2])) == (COMPLETED, [RUNNING] * 2)


def told(driver):
    """Be the Scheduler thread until it has a stuck group to tell of (True), or sleeps (False)."""
    driver.settle()
    driver.mem[L.STOPPING] = 0
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(driver.k.scheduler_loop, driver.mem, 1000)
        wait_until(lambda: answer.done() or driver.mem[L.PARK_SCHED])
        driver.k.stop_scheduler(driver.mem)
        return answer.result(DEADLINE_S) == L.STUCK


@pytest.mark.spec("WM-PLACE-4")
def test_each_group_that_is_stuck_is_told_of_once(driver):
    assert driver.mem[L.STUCK_NS] == 5_000_000_000
    driver.mem[L.STUCK_NS] = 0
    assert not told(driver), "nobody waits"
    driver.alloc(8)  # is never ready: ids and the order in which tasks become ready differ
    for _ in range(3):
        busy = driver.submit_and_settle()
        group = driver.submit_group(member(), member(), callable=5)
        assert told(driver)
        of = driver._view.stuck_group()
        assert (of.task, of.callable, of.size) == (driver.id(group), 5, 2)
        assert not told(driver)
        driver.finish(busy)
        assert driver.state(group) == RUNNING
        assert not told(driver)
        driver.post_done(0)
        driver.answer_and_settle(1)


@pytest.mark.spec("WM-PLACE-4")
@pytest.mark.parametrize("idle", ["draining", "computing"])
def test_the_warning_names_the_group_and_who_is_busy(caplog, idle):
    caplog.set_level(logging.WARNING, "simpler_ref")
    with Worker(3, num_sub_workers=2) as w, Gate() as go, ThreadPoolExecutor(1) as threads:

        def wait():
            go.wait()

        def pair():
            pass

        def open_when_told():
            wait_until(lambda: caplog.records)
            go.open()

        waiting, pairs = w.register(wait), w.register(pair)
        w.start()
        w._session.engine.mem[L.STUCK_NS] = 50_000_000

        def orch_fn(orch, *_):
            orch.submit_sub(waiting)
            orch.submit_sub_group(pairs, [TaskArgs()] * 2)
            if idle == "computing":
                open_when_told()

        if idle == "draining":
            threads.submit(open_when_told)
        w.run(orch_fn)
        (record,) = caplog.records
        assert record.name == "simpler_ref" and record.levelno == logging.WARNING
        words = (
            r"task 1 \(.*pair\), a group of 2, has waited 0\.05 s .*"
            r"; busy are sub_worker [01] \(pid \d+\) with task 0 \(.*wait\)\. It starts"
        )
        assert re.search(words, record.getMessage())


@pytest.mark.spec("WM-PLACE-5")
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("named", [-1, 1])
def test_a_group_fails_when_it_cannot_have_its_workers_any_more(make_driver, waits, named):
    driver = make_driver(sub=0, next_level=2)
    busy = driver.submit_and_settle(kind=NEXT, owner=0)
    if not waits:
        driver.kill(1)
    group = driver.submit_group(member(worker=named), member(), kind=NEXT)
    if waits:
        driver.settle()
        assert driver.state(group) == READY
        driver.kill(1)
    driver.settle()
    assert (driver.state(group), int(driver.mem[L.RUN_ERROR])) == (FAILED, L.ENDPOINT_FAILURE)
    assert driver.state(busy) == RUNNING
