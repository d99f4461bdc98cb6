"""FAIL-OUTCOME: how a task ends."""

import os

import numpy as np
import pytest

import simpler_ref
from simpler_ref import TaskError, Worker, WorkerLostError
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TaskState
from tests.spec_rules import tables
from tests.support import make_args, reads, stopped, wait_until, writes

ROWS = {row[0]: row[1:] for row in tables("FAIL-OUTCOME")[0]}


@pytest.mark.spec("FAIL-OUTCOME-1", "FAIL-OUTCOME-2")
@pytest.mark.parametrize("outcome", ["SUCCESS", "TASK_FAILURE", "ENDPOINT_FAILURE"])
def test_the_outcome_decides_the_state_and_is_kept_if_it_is_a_failure(driver, outcome):
    task, after = driver.submit(writes(4096)), driver.submit_and_settle(reads(4096))
    worker = driver.worker_of(task)
    if outcome == "ENDPOINT_FAILURE":
        driver.kill(worker)
    else:
        driver.post_done(worker, ValueError("no") if outcome == "TASK_FAILURE" else None)
    driver.settle()
    assert {name: int(row[0]) for name, row in ROWS.items()} == {n: getattr(L, n) for n in ROWS}
    assert driver.state(task) == TaskState[ROWS[outcome][1]]
    assert driver.mem[L.RUN_ERROR] == getattr(L, outcome)
    assert driver.state(after) == (TaskState.RUNNING if outcome == "SUCCESS" else TaskState.FAILED)


@pytest.mark.spec("FAIL-OUTCOME-2")
@pytest.mark.parametrize(
    ("outcome", "leaf"),
    [("TASK_FAILURE", lambda: 1 // 0), ("ENDPOINT_FAILURE", lambda: os._exit(1))],
)
def test_the_run_raises_the_exception_of_the_table(outcome, leaf):
    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(leaf)
        with pytest.raises(TaskError) as caught:
            w.run(lambda orch, *_: orch.submit_sub(handle))
        assert type(caught.value) is getattr(simpler_ref, ROWS[outcome][2])


@pytest.mark.spec("FAIL-OUTCOME-3")
def test_a_member_whose_worker_has_not_started_it_is_not_called_and_not_what_the_run_raises():
    """One worker is stopped until the other's member has failed."""
    with Worker(3, num_sub_workers=2) as w:
        called = w.share(np.zeros(2, np.int64))

        @w.register
        def leaf(args):
            called[args.scalar(0)] += 1
            raise ValueError(f"member {args.scalar(0)}")

        lists = [make_args(scalars=[i]) for i in range(2)]
        w.start()
        second = w.worker_pids()[1]

        def orch_fn(orch, *_):
            with stopped(second):
                orch.submit_sub_group(leaf, lists)
                wait_until(lambda: w._session.engine.mem[L.RUN_ERROR] != 0)
                assert called.sum() == 1

        for _ in range(2):
            called[:] = 0
            with pytest.raises(TaskError, match="ValueError: member") as caught:
                w.run(orch_fn)
            assert not isinstance(caught.value, WorkerLostError)
            assert called.sum() == 1, "the other member was skipped"
            assert str(caught.value).endswith(f"ValueError: member {called.argmax()}")
            assert w.worker_pids()[1] == second
