"""Who is told of what, and what threads that wait leave behind: words before and after."""

from __future__ import annotations

import itertools

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.task_interface import MailboxState

from ..support import reads, writes

pytestmark = pytest.mark.kernels
NEVER_NS = 1 << 60


def changed_words_of(driver, worker, before):
    """Return which of a worker's words differ from a copy, and fail if others do."""
    first, stride = driver._worker(worker), int(driver.mem[L.WORKER_STRIDE])
    places = [place - first for place in driver.changed_since(before)]
    assert all(0 <= place < stride for place in places), places
    return set(places)


@pytest.mark.spec("SPEED-WAIT-2")
@pytest.mark.parametrize("at", [0, 1])
def test_a_worker_that_waits_in_vain_writes_how_patient_it_is_and_where_it_runs(make_driver, at):
    driver = make_driver(depth=2)
    if at == 1:
        driver.submit_and_settle()
        driver.answer_and_settle(0)
    driver.mem[L.SPIN_NS], driver.mem[L.YIELD_NS] = 3_000_000, 10**9
    driver.mem[driver._worker(0) + L.W_THREAD] = 1
    driver.mem[driver._worker(0) + L.W_BACK_OFF] = -1  # so that it offers its core at once
    before = driver.words()
    assert driver.x.receive(driver.mem, 0) == L.PARK
    assert changed_words_of(driver, 0, before) == {L.W_BACK_OFF, L.W_CORE}


@pytest.mark.spec("SPEED-WAIT-13")
@pytest.mark.parametrize("at", [0, 1])
def test_a_worker_with_the_next_task_waiting_looks_where_it_runs_once_a_lap(make_driver, at):
    driver = make_driver(sub=1, depth=2)
    for _ in range(3):
        driver.submit()
    driver.settle()
    driver.mem[driver._worker(0) + L.W_THREAD] = 1
    for _ in range(at):
        driver.post_done(0)
    assert driver.x.receive(driver.mem, 0) == L.RESOLVE
    assert (driver.word(0, L.W_CORE) != 0) == (at == 0)


@pytest.mark.spec("SPEED-WAIT-13")
def test_a_worker_that_is_kept_off_a_core_is_kept_off_no_other(driver):
    driver.mem[L.CORES] = 3
    driver.mem[driver._worker(0) + L.W_THREAD] = 1 << 22  # of no thread
    driver.mem[driver._worker(0) + L.W_KEPT_OFF] = 1000
    before = driver.words()
    driver.x.wake_elsewhere(driver.mem, 0)
    assert driver.changed_since(before) == []


@pytest.mark.spec("SPEED-WAIT-13")
@pytest.mark.skipif(not INTERPRETED, reason="the system call is replaced")
@pytest.mark.parametrize("why", ["nothing", "it is kept off another", "it has died", "no core"])
def test_a_sleeper_is_kept_off_the_core_of_who_wakes_it_unless(driver, monkeypatch, why):
    from simpler_ref.jit import cores

    kept = []
    monkeypatch.setattr(cores, "keep_off_core", lambda *what: kept.append(what) or True)
    monkeypatch.setattr(cores, "core_here", lambda: 5)
    w = driver._worker(0)
    driver.mem[L.CORES], driver.mem[w + L.W_THREAD] = 1 if why == "no core" else 3, 77
    driver.mem[w + L.W_KEPT_OFF] = 1000 if why == "it is kept off another" else 0
    driver.mem[w + L.W_DEATH] = why == "it has died"
    driver.x.wake_elsewhere(driver.mem, 0)
    assert kept == ([(77, 5)] if why == "nothing" else [])
    off = {"nothing": 6, "it is kept off another": 1000}.get(why, 0)
    assert driver.word(0, L.W_KEPT_OFF) == off


@pytest.mark.spec("SCHED-WAKE-7")
@pytest.mark.parametrize("parked", [L.ACTIVE, L.STANDBY, L.TIMED])
def test_after_it_has_helped_the_orch_thread_leaves_a_held_task_to_a_clock(driver, parked):
    driver.mem[L.PARK_SCHED], driver.mem[L.DEFERRED_SINCE] = parked, 1
    assert driver.k.help_scheduler(driver.mem, 0, -1, -1, NEVER_NS) == L.OK
    assert driver.mem[L.PARK_SCHED] == (L.TIMED if parked == L.TIMED else L.KEEP_TIME)


@pytest.mark.spec("WM-PLACE-4", "SCHED-WAKE-4")
@pytest.mark.parametrize("since", [0, 7])
@pytest.mark.parametrize("watching", [0, 1])
def test_the_scheduler_thread_is_woken_for_groups_unless_it_watches(driver, since, watching):
    driver.mem[L.PARK_SCHED] = L.STANDBY
    driver.mem[L.STUCK_SINCE], driver.mem[L.WATCHING] = since, watching
    driver.x.watch_groups(driver.mem)
    assert (driver.mem[L.PARK_SCHED] == 0) == (since != 0 and not watching)


@pytest.mark.spec("SCHED-WAKE-2")
@pytest.mark.parametrize("kind", [L.NEXT_LEVEL, L.SUB])
def test_a_task_that_a_collected_end_makes_ready_is_work_for_the_next_pass(make_driver, kind):
    driver = make_driver(sub=1, next_level=1)
    driver.submit_and_settle(writes(0x7000), kind=kind)
    after = driver.submit_and_settle(reads(0x7000), kind=kind)
    driver.post_done(int(driver.mem[L.POOL_FIRST + kind]))
    driver.run_pass()  # it dispatches before it collects
    assert driver.ready_queue(kind) == [after]
    driver.x.set_idle(driver.mem)
    assert driver.x.has_work(driver.mem)
    driver.settle()
    assert not driver.x.has_work(driver.mem)


@pytest.mark.spec("SCHED-DEATH-1")
def test_the_mailbox_of_a_worker_that_dies_idle_says_so(driver):
    driver.kill(0)
    assert driver.mailbox_state(0)[0] == MailboxState.SHUTDOWN
    assert driver.mailbox_state(1)[0] == MailboxState.IDLE


@pytest.mark.spec("SCHED-WAKE-1")
@pytest.mark.parametrize("how", ["pass_after_submit", "leave_pass_out"])
def test_an_orch_thread_that_submits_relieves_the_scheduler_and_says_where_it_is(driver, how):
    driver.mem[L.PARK_SCHED] = L.ACTIVE
    getattr(driver.x, how)(driver.mem)
    assert driver.mem[L.PARK_SCHED] == L.STANDBY
    assert driver.mem[L.ORCH_CORE] != 0
    assert driver.mem[L.ORCH_PASSES] == 1


@pytest.mark.spec("SCHED-WAKE-7")
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("word", [L.PARK_ORCH, L.PARK_SCHED], ids=["Orch thread", "Scheduler"])
def test_an_uncollected_answer_is_announced_in_whatever_frame_it_stands(make_driver, depth, word):
    driver = make_driver(sub=1, depth=depth)
    for _ in range(2 * depth + 1):
        driver.submit_and_settle()
        driver.mem[word] = L.STANDBY
        driver.x.announce_uncollected(driver.mem, 0)
        assert driver.mem[word] == L.STANDBY, "it has not answered yet"
        driver.post_done(0)
        driver.x.announce_uncollected(driver.mem, 0)
        assert driver.mem[word] == 0
        driver.settle()


@pytest.mark.spec("SCHED-WAKE-7")
@pytest.mark.skipif(not INTERPRETED, reason="the clock is replaced")
def test_a_worker_that_waits_announces_its_answer_once(driver, monkeypatch):
    from simpler_ref.jit import serve

    clock, announced = itertools.count(1, L.UNSEEN_NS), []
    monkeypatch.setattr(serve, "now_ns", lambda: next(clock))
    monkeypatch.setattr(serve, "announce_uncollected", lambda mem, w: announced.append(w))
    driver.mem[L.SPIN_NS] = 9 * L.UNSEEN_NS
    assert driver.x.receive(driver.mem, 0) == L.PARK
    assert announced == [driver._worker(0)]


@pytest.mark.spec("SPEED-WAIT-2")
@pytest.mark.skipif(not INTERPRETED, reason="the clock is replaced")
@pytest.mark.parametrize("limit", [1, 10, 3000])
def test_patience_comes_back_step_by_step_and_is_lost_at_once(driver, monkeypatch, limit):
    from simpler_ref.jit import cores

    offers, clock = [], [0]
    monkeypatch.setattr(cores, "now_ns", lambda: clock[0])
    monkeypatch.setattr(cores, "yield_core", lambda: offers.append(1))
    patience = driver._worker(0) + L.W_BACK_OFF
    driver.mem[L.YIELD_NS] = limit
    seen = []
    for _ in range(L.BACK_OFF_STEPS):
        driver.x.offer_core(driver.mem, patience)
        seen.append(int(driver.mem[patience]))
    assert len(offers) == L.BACK_OFF_STEPS
    assert seen == sorted(seen)
    assert limit <= seen[-1] <= limit + limit // L.BACK_OFF_STEPS + 1
    monkeypatch.setattr(cores, "yield_core", lambda: clock.append(clock.pop() + L.CROWDED_NS + 1))
    driver.x.offer_core(driver.mem, patience)
    assert driver.mem[patience] == 0
