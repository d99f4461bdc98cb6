"""FAIL-LOUD: nothing fails in silence."""

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpler_ref import TaskError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import COMPLETED, FAILED, Driver, key, make_args, reads, updates


@pytest.mark.spec("FAIL-LOUD-1")
@settings(max_examples=30)
@given(
    tasks=st.lists(
        st.tuples(st.sampled_from([reads, updates]), st.integers(1, 4), st.booleans()), max_size=12
    )
)
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


@pytest.mark.spec("FAIL-LOUD-1")
@pytest.mark.parametrize(("mode", "bad"), [("process", None), ("process", 5), ("thread", 9)])
def test_run_returns_only_if_every_task_is_done(mode, bad):
    with Worker(3, num_sub_workers=2, child_mode=mode) as w:
        done = w.share(np.zeros(10, np.int64))

        @w.register
        def leaf(args):
            if args.scalar(0) == bad:
                raise ValueError("bad")
            done[args.scalar(0)] = 1

        def orch_fn(orch, args, config):
            for i in range(10):
                one = key(4096 * (i % 2 + 1)), T.INOUT
                orch.submit_sub(leaf, make_args(one, scalars=[i]))

        if bad is None:
            assert w.run(orch_fn).tasks == 10
            assert done.all()
        else:
            with pytest.raises(TaskError, match="bad"):
                w.run(orch_fn)
            assert not done[bad]


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
