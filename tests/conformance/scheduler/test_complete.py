"""SCHED-COMPLETE: back from a worker."""

import numpy as np
import pytest

from simpler_ref import Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import (
    COMPLETED,
    FAILED,
    PENDING,
    READY,
    RUNNING,
    make_args,
    reads,
    updates,
    writes,
)

KEY = 0x7000_0000


@pytest.mark.spec("SCHED-COMPLETE-1")
@pytest.mark.parametrize("error", [0, 1, 2, 255, 2**31 - 1])
def test_error_0_makes_a_task_completed_and_any_other_report_failed(driver, error):
    slot = driver.start()
    driver.x.post(driver.mem, driver.worker_of(slot), L.TASK_DONE, error)
    driver.run_pass()
    assert driver.state(slot) == (FAILED if error else COMPLETED)
    assert bool(driver.mem[L.RUN_ERROR]) == bool(error)


@pytest.mark.spec("SCHED-COMPLETE-1", "ORCH-FAIL-1")
def test_the_error_collected_first_is_kept_though_the_mailbox_is_used_again(driver):
    def error():
        """Return what is kept of the first failure: outcome, task, worker, message, traceback."""
        octets = driver.mem.view(np.uint8)
        message = octets[8 * L.ERROR_MSG : 8 * L.ERROR_MSG + 256].tobytes().split(b"\0")[0]
        trace = octets[8 * (L.ERROR_TRACE + 1) :][: int(driver.mem[L.ERROR_TRACE])].tobytes()
        return *driver.mem[[L.RUN_ERROR, L.ERROR_TASK, L.ERROR_WORKER]].tolist(), message, trace

    later, slot, after = driver.submit(), driver.submit(), driver.start()
    worker = driver.worker_of(slot)
    driver.answer_task(slot, ValueError("so it went"))
    kept = error()
    assert kept[:4] == (L.TASK_FAILURE, driver.id(slot), worker, b"ValueError: so it went")
    assert b"so it went" in kept[4]
    driver.run_pass()
    assert driver.given(worker) == after
    driver.mailbox(worker)[1072:] = 0xFF
    driver.trace(worker)[8:] = 0xFF
    driver.answer_task(later, KeyError("second"))
    assert (error(), driver.states(slot, later)) == (kept, [FAILED, FAILED])


@pytest.mark.spec("SCHED-COMPLETE-2")
def test_each_consumer_is_released_once_however_many_tensors_it_shares_with_the_producer(driver):
    other = driver.submit(writes(KEY + 16))
    producer = driver.submit(writes(KEY), writes(KEY + 8))
    consumers = [
        driver.submit(reads(KEY), reads(KEY + 8), reads(KEY), reads(KEY + 16)),
        driver.start(updates(KEY), reads(KEY + 16)),
    ]
    assert [driver.fanin(slot) for slot in consumers] == [2, 2]
    driver.answer_task(producer)
    for _ in range(2):
        assert [driver.fanin(slot) for slot in consumers] == [1, 1]
        assert driver.states(*consumers) == [PENDING, PENDING]
        driver.settle()
    driver.answer_task(other)
    assert [driver.fanin(slot) for slot in consumers] == [0, 0]
    assert sorted(driver.ready_queue()) == sorted(consumers)


@pytest.mark.spec("SCHED-COMPLETE-3")
@pytest.mark.parametrize("error", [None, ValueError("no")], ids=["COMPLETED", "FAILED"])
def test_a_finished_task_lets_go_of_its_producers_once_each_and_then_of_itself(driver, error):
    producers = [driver.submit(writes(KEY + 8 * i)) for i in range(3)]
    consumer = driver.submit(*[reads(KEY + 8 * i) for i in (0, 1, 2, 1, 0)])
    for producer in producers:
        driver.finish(producer)
    assert driver.state(consumer) == RUNNING
    assert [driver.refs(slot) for slot in [*producers, consumer]] == [(2, 1)] * 3 + [(1, 0)]
    driver.finish(consumer, error)
    assert [driver.refs(slot) for slot in [*producers, consumer]] == [(2, 2)] * 3 + [(1, 1)]


@pytest.mark.spec("SCHED-COMPLETE-4")
def test_what_a_completion_makes_ready_can_go_to_the_same_worker(make_driver):
    driver = make_driver(sub=1)
    chain = [driver.submit(updates(KEY)) for _ in range(4)]
    driver.settle()
    for after in chain[1:]:
        driver.post_done(0)
        driver.x.collect(driver.mem)
        assert (driver.given(0), driver.state(after)) == (L.NONE, READY)
        assert driver.x.has_work(driver.mem), "a thread about to park sees that it can be placed"
        driver.x.dispatch(driver.mem, L.SUB)
        assert (driver.state(after), driver.given(0)) == (RUNNING, after)


@pytest.mark.spec("SCHED-COMPLETE-5")
def test_what_a_worker_wrote_is_seen_by_consumers_and_by_the_caller():
    with Worker(3, num_sub_workers=2) as w:
        x = w.zeros((3, 20_000), np.int64)

        @w.register
        def add_one(args):
            args.tensor(1).numpy()[:] = args.tensor(0).numpy() + 1

        def orch_fn(orch, *_):
            for i in range(30):
                orch.submit_sub(add_one, make_args((x[i % 3], T.INOUT), (x[(i + 1) % 3], T.INOUT)))

        for total in (30, 60, 90):
            w.run(orch_fn)
            assert (x == [[total], [total - 2], [total - 1]]).all()
