"""WM-LOOP: the life of a worker."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref import TaskArgs, Worker, WorkerStartError
from simpler_ref.jit import layout as L
from simpler_ref.workers.kinds import SubWorker
from simpler_ref.workers.loop import serve_mailbox
from tests.support import DEADLINE_S, RUNNING, wait_until

from .own import Calls


@pytest.mark.spec("WM-LOOP-1")
def test_a_worker_that_said_init_done_is_idle_and_gets_its_first_task(make_driver):
    driver = make_driver(sub=1)
    assert driver.k.wait_ready(driver.mem, 0, 0) == L.TIMED_OUT
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(driver.k.wait_ready, driver.mem, 0, 10**12)
        driver.k.report_ready(driver.mem, 0)
        assert waiting.result(DEADLINE_S) == L.OK
    assert driver.mailbox_state(0) == (L.INIT_DONE, 0)
    slot = driver.submit_and_settle()
    assert (driver.state(slot), driver.mailbox_state(0)) == (RUNNING, (L.TASK_READY, 0))
    driver.answer_and_settle(0)
    assert driver.mailbox_state(0) == (L.IDLE, 0), "and never INIT_DONE again"


@pytest.mark.spec("WM-LOOP-3")
def test_the_report_is_error_1_with_type_and_text(make_driver):
    """Nobody collects while the test looks at what a worker has written."""
    driver = make_driver(sub=1)

    def body(args):
        if args.scalar(0):
            raise LookupError("not there")

    known = {driver.digest(0): body}
    with ThreadPoolExecutor(1) as threads:
        served = threads.submit(serve_mailbox, driver.engine, 0, SubWorker(), known, in_thread=True)
        assert driver.k.wait_ready(driver.mem, 0, int(DEADLINE_S * 1e9)) == L.OK
        try:
            for fails in (1, 0, 1):
                driver.start(scalars=[fails])
                wait_until(lambda: driver.mailbox_state(0)[0] == L.TASK_DONE)
                assert driver.mailbox_state(0) == (L.TASK_DONE, fails)
                if fails:
                    words = driver.mailbox(0)[16128:].tobytes().split(b"\0")[0]
                    assert words == b"LookupError: not there"
                driver.settle()
                driver.mem[L.RUN_ERROR] = 0
        finally:
            driver.k.request_stop(driver.mem, 0)
        served.result(DEADLINE_S)


class Refuses(Calls):
    """Does not start while the word says so."""

    def __init__(self, refuse):
        self.refuse = refuse
        self.number = 0

    def start(self):
        if self.refuse[0]:
            raise OSError("the device is in use")


@pytest.mark.spec("WM-LOOP-4")
@pytest.mark.parametrize(("mode", "by"), [("process", "start"), ("thread", "run")])
def test_a_worker_that_cannot_get_ready_fails_the_start_and_a_later_one_can_succeed(mode, by):
    with Worker(3) as memory:
        refuse = memory.share(np.ones(1, np.int64))
        w = Worker(3, num_sub_workers=2, child_mode=mode)
        w.add_next_level(Refuses(refuse))
        with w:
            handle = w.register(lambda *_: None)
            for _ in range(2):
                words = "next_level_worker 0.*did not start.*OSError: the device is in use"
                with pytest.raises(WorkerStartError, match=words):
                    w.start() if by == "start" else w.run(lambda orch, *_: None)
                assert w.worker_pids() == []
            refuse[0] = 0

            def orch_fn(orch, *_):
                orch.submit_next_level(handle, TaskArgs())
                orch.submit_sub_group(handle, [TaskArgs()] * 2)

            assert w.run(orch_fn).tasks == 2
