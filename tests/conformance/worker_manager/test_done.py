"""WM-DONE: the end of a group."""

import os
import signal

import pytest

from simpler_ref import TaskArgs, Worker, WorkerLostError
from simpler_ref.jit import layout as L
from tests.support import COMPLETED, FAILED, RUNNING, make_args, member, reads, writes

KEY = 0x7000_0000


@pytest.fixture
def three(make_driver):
    """Give a driver whose three workers run a group with a consumer."""
    driver = make_driver(sub=3)
    driver.group = driver.submit_group(member(writes(KEY)), member(), member())
    driver.consumer = driver.submit_and_settle(reads(KEY))
    return driver


def answer(driver, *workers, error=None):
    """Answer the tasks of some workers, and collect that."""
    for worker in workers:
        driver.post_done(worker, error)
    driver.settle()


def error_text(driver):
    raw = driver.mem[L.ERROR_MSG : L.ERROR_MSG + L.ERROR_MSG_WORDS].tobytes()
    return raw.split(b"\0")[0].decode()


@pytest.mark.spec("WM-DONE-1")
@pytest.mark.parametrize("order", [[(0,), (1,), (2,)], [(2,), (0, 1)], [(1, 2), (0,)], [(0, 1, 2)]])
def test_a_group_completes_once_with_its_last_member(three, order):
    working = {0, 1, 2}
    for together in order:
        assert (three.state(three.group), three.mem[L.COMPLETED_COUNT]) == (RUNNING, 0)
        assert set(three.members(three.group)) == working
        answer(three, *together)
        working -= set(together)
    assert (three.state(three.group), three.mem[L.COMPLETED_COUNT]) == (COMPLETED, 1)
    assert (three.state(three.consumer), three.refs(three.group)) == (RUNNING, (2, 1))


@pytest.mark.spec("WM-DONE-2")
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_group_with_a_failed_member_fails_when_the_last_one_is_done(three, worker):
    failed = three.members(three.group)[worker]
    answer(three, worker, error=ValueError("first"))
    for other in {0, 1, 2} - {worker}:
        assert three.state(three.group) == RUNNING
        answer(three, other, error=KeyError("second"))
    assert three.state(three.group) == three.state(three.consumer) == FAILED
    assert (error_text(three), three.mem[L.ERROR_MEMBER]) == ("ValueError: first", failed)
    assert three.mem[L.ERROR_WORKER] == worker
    assert three.mem[L.FAILED_COUNT] == 2, "the group and its consumer"


@pytest.mark.spec("WM-DONE-3", "WM-DONE-5")
def test_after_a_failure_who_has_not_started_answers_skipped_and_runs_its_next_task(three):
    three.mem[L.SPIN_NS] = 0
    answer(three, 0, error=ValueError("first"))
    for worker in (1, 2):
        assert three.state(three.group) == RUNNING
        assert three.x.receive(three.mem, worker) == L.PARK, "there is nothing to call"
        assert three.mailbox_state(worker) == (L.TASK_DONE, L.SKIPPED)
        three.settle()
    assert (three.state(three.group), error_text(three)) == (FAILED, "ValueError: first")
    three.finish_run()
    three.reclaim()
    three.end_run()
    three.begin_run()
    slots = [three.submit_and_settle() for _ in range(3)]
    for worker in range(3):
        assert three.x.receive(three.mem, worker) == L.RESOLVE
        assert three.word(worker, L.W_SKIP) == 0
    assert three.states(*slots) == [RUNNING] * 3


@pytest.mark.spec("WM-DONE-3", "WM-DONE-5")
def test_a_member_that_has_started_is_let_finish_and_a_control_request_is_not_skipped(three):
    assert three.x.receive(three.mem, 1) == L.RESOLVE, "worker 1 has started"
    answer(three, 0, error=ValueError("first"))
    assert (three.mailbox_state(1), three.given(1)) == ((L.TASK_READY, 0), three.group)
    answer(three, 1)
    three.x.post(three.mem, 2, L.CONTROL_REQUEST, 0)
    assert three.x.receive(three.mem, 2) == L.CONTROL
    three.x.post(three.mem, 2, L.TASK_READY, 0)
    answer(three, 2)
    assert three.state(three.group) == FAILED


@pytest.mark.spec("WM-DONE-4", "WM-DONE-2")
def test_the_death_of_a_members_worker_is_reported_with_the_member():
    with Worker(3, num_sub_workers=2) as w:

        def body(args):
            if args.scalar(0) == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        handle, fine = w.register(body), w.register(lambda: None)
        members = [make_args(scalars=[i]) for i in range(2)]
        with pytest.raises(WorkerLostError, match=r"task 0 .*member 1.*SIGKILL") as caught:
            w.run(lambda orch, *_: orch.submit_sub_group(handle, members))
        assert caught.value.status == -signal.SIGKILL
        w.run(lambda orch, *_: orch.submit_sub_group(fine, [TaskArgs()] * 2))
