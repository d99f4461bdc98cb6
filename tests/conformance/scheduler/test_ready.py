"""SCHED-READY: when a task may run."""

from itertools import product

import pytest

from simpler_ref.jit import layout as L
from tests.support import PENDING, READY, RUNNING, Driver, reads, writes

KEY = 0x7000_0000
BEFORE_SUBMIT, BEFORE_WIRING, AFTER_WIRING = range(3)
WHEN = {
    BEFORE_SUBMIT: "before the submit",
    BEFORE_WIRING: "before the wiring",
    AFTER_WIRING: "after the wiring",
}


def complete(driver, producer):
    """Let a RUNNING producer complete, and nothing else happen."""
    driver.post_done(driver.worker_of(producer))
    driver.x.collect(driver.mem)


def times_queued(driver, slot):
    return driver.ready_queue().count(slot)


@pytest.mark.spec("SCHED-READY-1")
def test_a_task_is_not_ready_before_it_is_wired_though_all_its_producers_have_completed():
    driver = Driver(sub=3)
    producers = [driver.submit(writes(KEY + 8 * i)) for i in range(3)]
    driver.run_pass()
    consumer = driver.submit(*[reads(KEY + 8 * i) for i in range(3)])
    for producer in producers:
        complete(driver, producer)
        assert driver.state(consumer) == PENDING
        assert driver.ready_queue() == []
    driver.x.wire(driver.mem, driver.x.pop_wiring(driver.mem))
    assert driver.state(consumer) == READY
    assert driver.ready_queue() == [consumer]
    driver.close()


@pytest.mark.spec("SCHED-READY-1", "SCHED-READY-2")
@pytest.mark.parametrize("wired_so_far", range(1, 5))
def test_while_a_task_is_being_wired_its_producers_cannot_make_it_ready(wired_so_far):
    """Each producer wired so far completes; the unit that the end of wiring releases is still there."""
    driver = Driver(sub=4)
    producers = [driver.submit(writes(KEY + 8 * i)) for i in range(wired_so_far)]
    driver.run_pass()
    consumer = driver.submit(*[reads(KEY + 8 * i) for i in range(wired_so_far)])
    driver.x.wire(driver.mem, driver.x.pop_wiring(driver.mem))
    assert driver.fanin(consumer) == wired_so_far
    driver.mem[consumer + L.S_FANIN] += 1  # as it was before its wiring ended
    for left, producer in zip(range(wired_so_far - 1, -1, -1), producers, strict=True):
        complete(driver, producer)
        assert driver.fanin(consumer) == left + 1
        assert driver.state(consumer) == PENDING
    driver.x.release_fanin(driver.mem, consumer)
    assert driver.state(consumer) == READY
    assert driver.ready_queue() == [consumer]
    driver.close()


@pytest.mark.spec("SCHED-READY-2")
@pytest.mark.parametrize(
    "when",
    list(product(WHEN, repeat=3)),
    ids=lambda when: ", ".join(WHEN[moment] for moment in when),
)
def test_whenever_its_producers_complete_a_task_becomes_ready_once_and_with_the_last(when):
    driver = Driver(sub=3)
    producers = [driver.submit(writes(KEY + 8 * i)) for i in range(3)]
    driver.run_pass()

    def complete_those(moment):
        for producer, its_moment in zip(producers, when, strict=True):
            if its_moment == moment:
                assert times_queued(driver, consumer) == 0
                complete(driver, producer)

    consumer = L.NONE
    complete_those(BEFORE_SUBMIT)
    consumer = driver.submit(*[reads(KEY + 8 * i) for i in range(3)])
    complete_those(BEFORE_WIRING)
    assert driver.state(consumer) == PENDING
    driver.x.wire(driver.mem, driver.x.pop_wiring(driver.mem))
    complete_those(AFTER_WIRING)
    assert driver.state(consumer) == READY
    assert times_queued(driver, consumer) == 1
    assert driver.fanin(consumer) == 0
    driver.run_pass()
    assert driver.state(consumer) == RUNNING
    driver.post_done(driver.worker_of(consumer))
    driver.settle()
    assert times_queued(driver, consumer) == 0
    driver.close()


@pytest.mark.spec("SCHED-READY-3")
def test_ready_queues_are_first_in_first_out():
    driver = Driver(sub=1, next_level=1)
    slots = {
        kind: [driver.submit(kind=kind, scalars=[i]) for i in range(5)]
        for kind in (L.SUB, L.NEXT_LEVEL)
    }
    started = {L.SUB: [], L.NEXT_LEVEL: []}
    driver.run_pass()
    for _ in range(5):
        for worker, kind in ((0, L.NEXT_LEVEL), (1, L.SUB)):
            started[kind].append(driver.given(worker))
            driver.post_done(worker)
        driver.settle()
    assert started == slots
    driver.close()


@pytest.mark.spec("SCHED-READY-3", "SCHED-DISPATCH-4")
@pytest.mark.parametrize("stuck", [L.NEXT_LEVEL, L.SUB], ids=["next level", "sub"])
def test_a_queue_whose_head_cannot_be_placed_does_not_hold_up_the_other(stuck):
    driver = Driver(sub=1, next_level=1)
    other = L.SUB if stuck == L.NEXT_LEVEL else L.NEXT_LEVEL
    waiting = [driver.submit(kind=stuck) for _ in range(3)]
    driver.run_pass()
    assert driver.ready_queue(stuck) == waiting[1:]
    for _ in range(4):
        task = driver.submit(kind=other)
        driver.finish(task)
    assert driver.ready_queue(stuck) == waiting[1:]
    driver.close()
