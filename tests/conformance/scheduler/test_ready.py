"""SCHED-READY: when a task may run."""

from itertools import product

import pytest

from simpler_ref.jit import layout as L
from tests.support import PENDING, READY, RUNNING, reads, writes

KEY = 0x7000_0000


def start_producers(driver, count):
    """Return that many RUNNING tasks, and the arguments of a task that reads what each writes."""
    producers = [driver.submit(writes(KEY + 8 * i)) for i in range(count)]
    driver.run_pass()
    return producers, [reads(KEY + 8 * i) for i in range(count)]


@pytest.mark.spec("SCHED-READY-1", "SCHED-READY-2")
@pytest.mark.parametrize("wired_so_far", range(1, 5))
def test_while_a_task_is_being_wired_its_producers_cannot_make_it_ready(make_driver, wired_so_far):
    """Each producer wired so far completes; the unit that the end of wiring releases is still there."""
    driver = make_driver(sub=4)
    producers, reads_all = start_producers(driver, wired_so_far)
    consumer = driver.submit(*reads_all)
    driver.wire()
    assert driver.fanin(consumer) == wired_so_far
    driver.mem[consumer + L.S_FANIN] += 1  # as it was before its wiring ended
    for left, producer in zip(range(wired_so_far - 1, -1, -1), producers, strict=True):
        driver.post_done(driver.worker_of(producer))
        driver.x.collect(driver.mem)
        assert (driver.fanin(consumer), driver.state(consumer)) == (left + 1, PENDING)
    driver.x.release_fanin(driver.mem, consumer)
    assert (driver.state(consumer), driver.ready_queue()) == (READY, [consumer])


@pytest.mark.spec("SCHED-READY-1", "SCHED-READY-2")
@pytest.mark.parametrize(
    "when",
    list(product(["before the submit", "before the wiring", "after the wiring"], repeat=3)),
    ids=", ".join,
)
def test_whenever_its_producers_complete_a_task_is_ready_once_and_with_the_last(make_driver, when):
    driver = make_driver(sub=3)
    producers, reads_all = start_producers(driver, 3)

    def complete_those(moment):
        for producer, its_moment in zip(producers, when, strict=True):
            if its_moment == moment:
                assert driver.ready_queue() == []
                driver.post_done(driver.worker_of(producer))
                driver.x.collect(driver.mem)

    complete_those("before the submit")
    consumer = driver.submit(*reads_all)
    complete_those("before the wiring")
    assert driver.state(consumer) == PENDING
    driver.wire()
    complete_those("after the wiring")
    assert (driver.state(consumer), driver.ready_queue()) == (READY, [consumer])
    assert driver.fanin(consumer) == 0
    driver.run_pass()
    assert driver.state(consumer) == RUNNING
    driver.answer_task(consumer)
    driver.settle()
    assert driver.ready_queue() == []


@pytest.mark.spec("SCHED-READY-3", "SCHED-DISPATCH-4")
def test_each_ready_queue_is_first_in_first_out_and_holds_up_no_other(make_driver):
    driver = make_driver(sub=1, next_level=1)
    kinds = (L.NEXT_LEVEL, L.SUB)
    slots = [[driver.submit(kind=kind, scalars=[i]) for i in range(5)] for kind in kinds]
    started = [[], []]
    driver.run_pass()
    for worker in (0, 1):  # while the other one is at its first task
        for _ in range(5):
            started[worker].append(driver.given(worker))
            driver.answer_and_settle(worker)
    assert started == slots
