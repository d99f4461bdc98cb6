"""FLOW-VIEW: what the callable receives."""

import numpy as np
import pytest

from simpler_ref import TaskArgs, TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.workers.kinds import SubWorker
from tests.support import make_args


@pytest.mark.spec("FLOW-VIEW-1", "FLOW-VIEW-3")
def test_a_view_reads_like_task_args_and_cannot_be_changed(mode):
    def body(args):
        assert isinstance(args, TaskArgs)
        assert (args.tensor_count(), args.scalar_count(), len(args)) == (2, 3, 5)
        assert (args.tensor(1).shapes, args.tensor(0).numpy().tolist()) == ((2, 3), [1, 2])
        assert (args.scalar(0), args.scalar(1), args.scalar(2)) == (7, -1, 0.5)
        assert args.scalar_float(2) == 0.5
        for change in (
            lambda: args.add_tensor(args.tensor(0)),
            lambda: args.add_scalar(1),
            lambda: args.set_tag(0, T.INPUT),
            lambda: args.clear(),
        ):
            with pytest.raises(RuntimeError, match="cannot be changed"):
                change()
        with pytest.raises(RuntimeError, match="do not travel to the worker"):
            args.tag(0)

    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        x, y = w.share(np.array([1, 2])), w.share(np.zeros((2, 3), np.float32))
        args = make_args((x, T.INPUT), (y, T.INOUT), scalars=[7, -1, 0.5])
        handle = w.register(body)
        w.run(lambda orch, *_: orch.submit_sub(handle, args))
        assert args.tag(1) == T.INOUT, "the caller's are as they were"
        handle = w.register(lambda args: args.tensor(0))
        with pytest.raises(TaskError, match="IndexError: tensor index 0"):
            w.run(lambda orch, *_: orch.submit_sub(handle))


@pytest.mark.spec("FLOW-VIEW-2")
@pytest.mark.parametrize("pool", ["sub", "next_level"])
def test_a_view_that_is_kept_is_refused_and_what_was_taken_from_it_stays(mode, pool):
    kept = []

    def body(args):
        if kept:
            old, tensor, array = kept[0]
            for use in (
                old.tensor_count,
                lambda: old.tensor(0),
                lambda: old.scalar(0),
                lambda: len(old),
                old.config,
            ):
                with pytest.raises(RuntimeError, match="has ended"):
                    use()
            assert tensor.numpy().tolist() == array.tolist() == [3, 4]
        kept.append((args, args.tensor(0), args.tensor(0).numpy()))

    w = Worker(3, num_sub_workers=1, child_mode=mode)
    w.add_next_level(SubWorker())
    with w:
        first, second = w.share(np.array([3, 4])), w.share(np.array([5, 6]))
        handle = w.register(body)

        def orch_fn(orch, *_):
            submit = getattr(orch, f"submit_{pool}")
            for one in (first, second):
                submit(handle, make_args((one, T.INOUT), scalars=[1]))

        w.run(orch_fn)
