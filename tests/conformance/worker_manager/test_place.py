"""WM-PLACE: workers for a group."""

import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from simpler_ref import TaskArgs, Worker
from simpler_ref.jit import layout as L
from simpler_ref.workers import session
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


@pytest.mark.spec("WM-PLACE-4")
def test_groups_that_wait_are_told_of_with_when_they_began(driver):
    def waiting():
        return [one[1:4] for one in driver._view.waiting_groups()]

    began = []
    driver.alloc(8)  # is never ready: ids and the order in which tasks become ready differ
    for _ in range(3):
        busy = driver.submit_and_settle()
        assert waiting() == []
        group = driver.submit_group(member(), member(), callable=5)
        driver.settle()
        assert waiting() == [(driver.id(group), 5, 2)]
        began += [one.since_ns for one in driver._view.waiting_groups()]
        driver.finish(busy)
        assert (driver.state(group), waiting()) == (RUNNING, [])
        driver.post_done(0)
        driver.answer_and_settle(1)
    assert 0 < began[0] < began[1] < began[2] < time.monotonic_ns()


@pytest.mark.spec("WM-PLACE-4")
def test_one_warning_for_each_group_names_it_and_who_is_busy(caplog, monkeypatch):
    assert session.STUCK_S == 5.0
    monkeypatch.setattr(session, "STUCK_S", 0.05)
    look, looks = session.Watch.look, []
    monkeypatch.setattr(session.Watch, "look", lambda *a: (look(*a), looks.append(1)))
    caplog.set_level(logging.WARNING, "simpler_ref")
    with Worker(3, num_sub_workers=2) as w, Gate() as go, ThreadPoolExecutor(1) as threads:

        def wait():
            go.wait()

        def pair():
            pass

        def open_when_told():
            for count in (1, 2):
                wait_until(lambda count=count: len(caplog.records) == count)
                looks.clear()
                wait_until(lambda: len(looks) == 3)  # and no word more
                assert len(caplog.records) == count
                go.open(1)

        waiting, pairs = w.register(wait), w.register(pair)

        def orch_fn(orch, *_):
            for _ in range(2):
                orch.submit_sub(waiting)
                orch.submit_sub_group(pairs, [TaskArgs()] * 2)

        opens = threads.submit(open_when_told)
        w.run(orch_fn)
        opens.result(DEADLINE_S)
        for record, group in zip(caplog.records, (1, 3), strict=True):
            assert record.name == "simpler_ref" and record.levelno == logging.WARNING
            words = (
                rf"task {group} \(.*pair\), a group of 2, has waited 0\.\d+ s .*"
                rf"; busy are sub_worker [01] \(pid \d+\) with task {group - 1} \(.*wait\)\. It starts"
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
