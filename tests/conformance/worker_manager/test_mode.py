"""WM-MODE: processes or threads."""

import os

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskArgs, TaskError, Worker
from simpler_ref import TensorArgType as T
from tests.support import make_args


@pytest.mark.spec("WM-MODE-1")
def test_process_is_the_default_and_anything_but_the_two_is_refused():
    assert Worker(3).child_mode == "process"
    for bad in ("fork", "", None, 1, "Process"):
        with pytest.raises(ValueError, match="child_mode"):
            Worker(3, child_mode=bad)


@pytest.mark.spec("WM-MODE-1")
def test_all_workers_of_a_worker_follow_its_mode(mode):
    class Where:
        def run(self, callable, view, config):
            callable(view)

    w = Worker(3, num_sub_workers=2, child_mode=mode)
    w.add_next_level(Where())
    w.add_sub(Where())
    with w:
        pids = w.share(np.zeros(4, np.int64))
        handle = w.register(lambda args: pids.__setitem__(args.scalar(0), os.getpid()))

        def orch_fn(orch, *_):
            orch.submit_sub_group(handle, [make_args(scalars=[i]) for i in range(3)])
            orch.submit_next_level(handle, make_args(scalars=[3]))

        w.run(orch_fn)
        if mode == "thread":
            assert set(pids.tolist()) == {os.getpid()}
            assert w.worker_pids() == []
        else:
            assert len(set(pids.tolist())) == 4
            assert sorted(pids.tolist()) == sorted(w.worker_pids())


def program(mode):
    """Run a small graph of everything; return what can be seen of it."""

    class Scales:
        def run(self, callable, view, config):
            callable(view, config)

    w = Worker(3, num_sub_workers=2, child_mode=mode)
    w.add_next_level(Scales())
    w.add_next_level(Scales())
    with w:
        data = w.share(np.arange(8, dtype=np.int64))

        def double(args, config):
            args.tensor(0).numpy()[:] *= config.block_dim

        def add(args):
            args.tensor(0).numpy()[args.scalar(0) :] += 1

        def fail(args):
            raise LookupError(f"no {args.scalar(0)}")

        doubling, adding, failing = w.register(double), w.register(add), w.register(fail)

        def orch_fn(orch, *_):
            for i in range(4):
                orch.submit_sub(adding, make_args((data, T.INOUT), scalars=[i]))
                orch.submit_next_level(
                    doubling, make_args((data, T.INOUT)), CallConfig(block_dim=i + 1), worker=i % 2
                )
            orch.submit_sub_group(adding, [make_args((data, T.INOUT), scalars=[i]) for i in (6, 7)])

        timing = w.run(orch_fn)
        with pytest.raises(TaskError) as caught:
            w.run(lambda orch, *_: orch.submit_sub(failing, make_args(scalars=[3])))
        error = caught.value
        last = error.remote_traceback.splitlines()[-1]
        words = str(error).split(" (pid")[0], last, error.task, error.callable_name
        return data.tolist(), timing.tasks, timing.edges, doubling.hashid, words[1:]


@pytest.mark.spec("WM-MODE-2")
def test_a_program_gives_the_same_in_both_modes():
    assert program("process") == program("thread")


def nested_pids(outer, inner):
    """Return (pid of the inner orch function, pid of the inner task)."""
    below = Worker(3, num_sub_workers=1, child_mode=inner)
    with Worker(4, child_mode="thread") as memory:
        pids = memory.share(np.zeros(2, np.int64))
        note = below.register(lambda: pids.__setitem__(1, os.getpid()))

        def orch3(orch, args, config):
            pids[0] = os.getpid()
            orch.submit_sub(note)

        w = Worker(4, child_mode=outer)
        w.add_worker(below)
        with w:
            handle = w.register(orch3)
            for _ in range(3):
                pids[:] = 0
                w.run(lambda orch, *_: orch.submit_next_level(handle, TaskArgs(), CallConfig()))
        return pids.tolist()


@pytest.mark.spec("WM-MODE-3")
@pytest.mark.parametrize("outer", ["process", "thread"])
@pytest.mark.parametrize("inner", ["process", "thread"])
def test_each_worker_of_a_hierarchy_has_a_mode_of_its_own(outer, inner):
    orch3, leaf = nested_pids(outer, inner)
    assert (orch3 == os.getpid()) == (outer == "thread")
    assert (leaf == orch3) == (inner == "thread")
