"""ORCH-DRAIN: an orchestration function waits for what it has submitted."""

import numpy as np
import pytest

from simpler_ref import DataType, TaskArgs, TensorArgType, Worker
from simpler_ref.errors import TaskError
from tests.support import Gate, make_args


def add_one(args):
    args.tensor(0).numpy()[...] += 1


@pytest.mark.spec("ORCH-DRAIN-1")
@pytest.mark.parametrize("depth", [1, 8])
def test_drain_waits_for_what_was_submitted_so_far(depth):
    def orch_fn(orch, args, config):
        for number in range(1, 41):
            orch.alloc((4,), DataType.FLOAT32)  # a buffer is no task that is waited for
            with orch.scope():
                orch.submit_sub(step, chain)
                orch.submit_sub(step, chain)
                if number % 4 == 0:
                    orch.submit_sub_group(nothing, [TaskArgs(), TaskArgs()])
                orch.drain()
                seen.append(int(total[0]))

    seen = []
    with Worker(3, num_sub_workers=2, mailbox_depth=depth) as w:
        total = w.share(np.zeros(1, np.int64))
        step, nothing = w.register(add_one), w.register(lambda: None)
        chain = make_args((total, TensorArgType.INOUT))
        w.run(orch_fn)
        w.run(orch_fn)
        assert seen == list(range(2, 162, 2)), "each run counts anew"


@pytest.mark.spec("ORCH-DRAIN-2", "ORCH-FAIL-1")
def test_drain_raises_what_has_failed_once_all_else_has_ended():
    with Gate() as go, Worker(3, num_sub_workers=2) as w:
        one, other = w.share(np.zeros(1, np.int64)), w.share(np.zeros(1, np.int64))

        def fail(args):
            go.wait()
            raise ValueError("no luck")

        def let_fail(args):
            add_one(args)
            go.open()

        def orch_fn(orch, args, config):
            orch.submit_sub(failing, make_args((one, TensorArgType.INOUT)))
            orch.submit_sub(step, make_args((one, TensorArgType.INOUT)))  # would come after it
            orch.submit_sub(step, make_args((other, TensorArgType.INOUT)))
            for _ in range(2):
                with pytest.raises(TaskError, match="no luck"):
                    orch.drain()
                assert (one[0], other[0]) == (0, 1)

        failing, step = w.register(fail), w.register(let_fail)
        with pytest.raises(TaskError, match="no luck"):
            w.run(orch_fn)
