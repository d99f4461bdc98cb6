"""FAIL-LOUD: nothing fails in silence."""

from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpler_ref import TaskError, Worker
from simpler_ref.jit import layout as L
from tests.support import COMPLETED, FAILED, Driver, make_args, reads, updates

HOW = st.sampled_from([reads, updates])


@pytest.mark.spec("FAIL-LOUD-1")
@pytest.mark.kernels
@settings(max_examples=30)
@given(tasks=st.lists(st.tuples(HOW, st.integers(1, 4), st.booleans()), max_size=12))
def test_a_run_knows_of_a_failure_exactly_if_some_task_did_not_complete(tasks):
    with closing(Driver()) as driver:
        slots = [driver.submit(use(address * 4096)) for use, address, _ in tasks]
        fails = {slot for slot, (_, _, bad) in zip(slots, tasks, strict=True) if bad}
        driver.settle()
        while busy := [driver.given(w) for w in range(2) if driver.given(w) != L.NONE]:
            driver.finish(busy[0], ValueError("no") if busy[0] in fails else None)
        states = {driver.state(slot) for slot in slots}
        assert states <= {COMPLETED, FAILED}
        assert (driver.mem[L.RUN_ERROR] == 0) == (FAILED not in states) == (not fails)


@pytest.mark.spec("FAIL-LOUD-2")
def test_several_failures_are_raised_once():
    with Worker(3, num_sub_workers=2) as w:

        @w.register
        def bad(args):
            raise ValueError(f"bad {args.scalar(0)}")

        def orch_fn(orch, args, config):
            for i in range(6):
                orch.submit_sub(bad, make_args(scalars=[i]))

        with pytest.raises(TaskError, match=r"bad \d") as caught:
            w.run(orch_fn)
        assert w.run(lambda *_: None).tasks == 0
        with pytest.raises(TaskError) as again:
            w.run(orch_fn)
        assert again.value is not caught.value
