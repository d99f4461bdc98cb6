"""SCHED-DISPATCH: to a worker."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from tests.support import COMPLETED, DEADLINE_S, PENDING, READY, RUNNING, reads, writes

KEY = 0x7000_0000
FOREVER_NS = 1 << 60


@pytest.mark.spec("SCHED-DISPATCH-1")
@pytest.mark.parametrize(
    "rounds", [40 if INTERPRETED else 300, pytest.param(100_000, marks=pytest.mark.long)]
)
def test_a_worker_that_sees_a_task_sees_all_of_it(make_driver, rounds):
    """A thread plays the worker: the moment it sees TASK_READY it compares every word of the frame."""
    driver = make_driver(sub=1)
    with ThreadPoolExecutor(1) as threads:
        worker = threads.submit(driver.x.check_frames, driver.mem, 0, rounds)
        for number in range(1, rounds + 1):
            driver.open_scope()
            driver.submit(scalars=[number] * (1 + number % 90), callable=number % 7)
            driver.close_scope()
            driver.run_pass()
            while driver.given(0) != L.NONE:
                driver.run_pass()
            driver.reclaim()
        assert worker.result(DEADLINE_S) == 0


@pytest.mark.spec("SCHED-DISPATCH-2")
def test_a_worker_has_one_task_at_a_time(driver):
    slots = [driver.submit(scalars=[i]) for i in range(6)]
    driver.settle()
    assert [slot for slot in slots if driver.state(slot) == RUNNING] == slots[:2]
    assert sorted(driver.worker_of(slot) for slot in slots[:2]) == [0, 1]
    frames = [driver.mailbox(worker).tobytes() for worker in (0, 1)]
    driver.settle()
    assert [driver.mailbox(worker).tobytes() for worker in (0, 1)] == frames
    first = driver.worker_of(slots[0])
    driver.post_done(first)
    driver.x.dispatch(driver.mem, L.SUB)  # before anybody has looked at the answer
    assert driver.mailbox_state(first) == (L.TASK_DONE, 0)
    assert driver.given(first) == slots[0]
    driver.settle()
    assert driver.given(first) == slots[2]


@pytest.mark.spec("SCHED-DISPATCH-3", "SPEED-WAIT-2")
@pytest.mark.parametrize("hold_ns", [FOREVER_NS, 0], ids=["workers spin", "they do not"])
def test_a_task_is_held_back_for_a_worker_that_is_awake_as_long_as_told(make_driver, hold_ns):
    driver = make_driver(sub=3)
    driver.mem[L.DEFER_NS] = hold_ns
    driver.start()  # on worker 0
    for worker in (1, 2):
        driver.set_parked(worker, True)
    slot = driver.start()
    if hold_ns:
        assert driver.state(slot) == READY
        assert driver.x.any_deferred(driver.mem)
        assert not driver.x.has_work(driver.mem), "until the time is up there is nothing to do"
        assert driver.run_pass() == 0
        driver.mem[L.DEFER_NS] = 0
        assert driver.run_pass() > 0
    assert driver.state(slot) == RUNNING
    assert not driver.x.any_deferred(driver.mem)


@pytest.mark.spec("SCHED-DISPATCH-4")
def test_a_task_without_an_idle_worker_stays_at_the_head_and_the_pass_goes_on(make_driver):
    driver = make_driver(sub=1)
    running, waiting = driver.start(writes(KEY)), [driver.submit(), driver.start()]
    assert driver.ready_queue() == waiting
    late = driver.start(reads(KEY))
    assert driver.state(late) == PENDING
    assert driver.fanin(late) == 1, "wired while the queue's head waits"
    driver.answer_task(running)
    assert driver.state(running) == COMPLETED, "collected while the queue's head waits"
    assert driver.ready_queue() == [*waiting, late]
    driver.run_pass()
    assert driver.given(0) == waiting[0]
    assert driver.ready_queue() == [waiting[1], late]
