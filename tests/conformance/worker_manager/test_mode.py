"""WM-MODE: processes or threads."""

import os

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskError, Worker
from simpler_ref import TensorArgType as T
from tests.support import make_args

from .own import calling, run_sub


@pytest.mark.spec("WM-MODE-1")
def test_process_is_the_default_and_anything_but_the_two_is_refused():
    assert Worker(3).child_mode == Worker(4, child_mode=None).child_mode == "process"
    assert Worker(3, child_mode="Thread").child_mode == "thread", "whatever the letters"
    for bad in ("fork", "", 1, "Processes"):
        with pytest.raises(ValueError, match=f"child_mode={bad!r}: it is 'process' or 'thread'"):
            Worker(3, child_mode=bad)


def program(mode):
    """Run a small graph of everything; return what can be seen of it."""
    with calling(2, num_sub_workers=2, child_mode=mode) as w:
        data = w.share(np.arange(8, dtype=np.int64))

        def double(number, args, config):
            args.tensor(0).numpy()[:] *= config.block_dim

        def add(args):
            args.tensor(0).numpy()[args.scalar(0) :] += 1

        def fail(args):
            raise LookupError(f"no {args.scalar(0)}")

        doubling, adding, failing = w.register(double), w.register(add), w.register(fail)

        def data_and(i):
            return make_args((data, T.INOUT), scalars=[i])

        def orch_fn(orch, *_):
            for i in range(4):
                orch.submit_sub(adding, data_and(i))
                config = CallConfig(block_dim=i + 1)
                orch.submit_next_level(doubling, data_and(i), config, worker=i % 2)
            orch.submit_sub_group(adding, [data_and(6), data_and(7)])

        timing = w.run(orch_fn)
        with pytest.raises(TaskError) as caught:
            run_sub(w, failing, make_args(scalars=[3]))
        error = caught.value
        told = error.remote_traceback.splitlines()[-1], error.task, error.callable_name
        return data.tolist(), timing.tasks, timing.edges, doubling.hashid, told


@pytest.mark.spec("WM-MODE-2")
def test_a_program_gives_the_same_in_both_modes():
    assert program("process") == program("thread")


@pytest.mark.spec("WM-MODE-3")
@pytest.mark.parametrize(("mode", "inner"), [("process", "thread"), ("thread", "process")])
def test_each_worker_of_a_hierarchy_has_a_mode_of_its_own(mode, inner):
    below = Worker(3, num_sub_workers=1, child_mode=inner)
    above = Worker(4, child_mode=mode)
    above.add_worker(below)
    with Worker(3) as memory:
        pids = memory.share(np.zeros(2, np.int64))
        note = below.register(lambda: pids.__setitem__(1, os.getpid()))

        def nested(orch, *_):
            pids[0] = os.getpid()
            orch.submit_sub(note)

        with above:
            handle = above.register(nested)
            for _ in range(3):
                pids[:] = 0
                above.run(lambda orch, *_: orch.submit_next_level(handle))
                assert (pids[0] == os.getpid()) == (mode == "thread")
                assert (pids[1] == pids[0]) == (inner == "thread")
