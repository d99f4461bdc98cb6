"""FLOW-NEST: Workers below Workers."""

import itertools
import os

import numpy as np
import pytest

from simpler_ref import CallConfig, ContinuousTensor, DataType, TaskArgs, TaskError, Worker
from simpler_ref import TensorArgType as T
from tests.support import make_args


def two_levels(mode, **more):
    """Return a Worker of level 4 and the one below it."""
    w, below = Worker(4, num_sub_workers=1, child_mode=mode), Worker(3, num_sub_workers=1, **more)
    w.add_worker(below)
    return w, below


@pytest.mark.spec("FLOW-NEST-1", "FLOW-NEST-2", "FLOW-NEST-5")
def test_a_task_is_an_orch_function_that_is_done_when_its_tasks_are_also_after_one_has_failed(mode):
    """Its Worker starts with its parent, and the same processes serve all runs."""
    w, below = two_levels(mode)
    with w:
        data, seen = w.zeros(8, np.int64), w.zeros(2, np.int64)
        pids = w.zeros((9, 2), np.int64)

        def add(args):
            pids[args.scalar(0), 0] = os.getpid()
            if args.scalar(1) == 8:
                raise ValueError("no")
            args.tensor(0).numpy()[args.scalar(1)] += 1

        adding = below.register(add)  # after the parent's init
        assert below._session is None

        def orch3(orch, args, config):
            assert type(orch).__name__ == "Orchestrator"
            assert orch.ring.next_task_id() == 0, "it has a graph of its own"
            assert config.block_dim == 5
            number, count = args.scalar(0), args.scalar(1)
            seen[0], pids[number, 1] = orch.ring.heap_base(0), os.getpid()
            for i in range(count):
                orch.submit_sub(adding, make_args((args.tensor(0), T.INOUT), scalars=[number, i]))

        def check(args):
            seen[1] = args.tensor(0).numpy().sum()

        handle, checking = w.register(orch3), w.register(check)

        def orch4(orch, first, config):
            for i in range(first, first + 3):
                args = make_args((data, T.INOUT), scalars=[i, 9 if i == 4 else 8])
                orch.submit_next_level(handle, args, CallConfig(block_dim=5))
            orch.submit_sub(checking, make_args((data, T.INPUT)))

        for first in (0, 3, 6):
            seen[1] = data[:] = 0
            if first == 3:
                with pytest.raises(TaskError, match="ValueError: no"):
                    w.run(orch4, first)
            else:
                timing = w.run(orch4, first)
                assert (timing.tasks, timing.edges) == (4, 3), "those below are not this Worker's"
                assert seen[1] == 24
        pids[5] = pids[4]  # which came after the one that has failed
        assert [len({*some}) for some in pids.T.tolist()] == [1, 1] and pids.all()
        assert seen[0] != w._session.orch.ring.heap_base(0), "rings of its own"


@pytest.mark.spec("FLOW-NEST-3")
def test_levels_nest_and_each_has_sub_workers(mode):
    """Each level counts on its sub worker, then passes on what is left to the next."""
    chain = [Worker(level, num_sub_workers=1, child_mode=mode) for level in range(3, 7)]
    for lower, upper in itertools.pairwise(chain):
        upper.add_worker(lower)

    def passing(w, below):
        counting = w.register(lambda: count.__setitem__(w.level, count[w.level] + 1))

        def orch_fn(orch, *_):
            orch.submit_sub(counting)
            if below is not None:
                orch.submit_next_level(below, TaskArgs(), CallConfig())

        return orch_fn

    with Worker(3) as memory:
        count, below = memory.share(np.zeros(8, np.int64)), None
        for w, upper in itertools.zip_longest(chain, chain[1:]):
            orch_fn = passing(w, below)
            below = upper and upper.register(orch_fn)
        with chain[-1] as top:
            for _ in range(2):
                top.run(orch_fn)
        assert count.tolist() == [0, 0, 0, 2, 2, 2, 2, 0]


@pytest.mark.spec("FLOW-NEST-4")
def test_arrays_and_ring_memory_of_the_parent_go_down_without_a_copy(mode):
    w, below = two_levels(mode, child_mode=mode)
    with w:
        data, result = w.share(np.arange(100, dtype=np.int64)), w.zeros(100, np.int64)

        @below.register
        def double(args):
            args.tensor(1).numpy()[:] = args.tensor(0).numpy() * 2

        @w.register
        def four_times(orch, args, config):
            tmp = orch.alloc((100,), np.int64)
            orch.submit_sub(double, make_args((args.tensor(0), T.INPUT), (tmp, T.INOUT)))
            orch.submit_sub(double, make_args((tmp, T.INPUT), (args.tensor(1), T.INOUT)))

        def orch4(orch, *_):
            out = ContinuousTensor.make(0, (100,), DataType.INT64)
            first = make_args((data, T.INPUT), (out, T.OUTPUT))
            orch.submit_next_level(four_times, first)
            second = make_args((first.tensor(1), T.INPUT), (result, T.OUTPUT_EXISTING))
            orch.submit_next_level(four_times, second)

        for _ in range(3):
            result[:] = 0
            w.run(orch4)
            assert (result == 16 * data).all()


@pytest.mark.spec("FLOW-NEST-6", "ORCH-MISUSE-11", "FLOW-NEST-8")
def test_children_and_levels_that_cannot_be_are_refused_and_change_nothing():
    for level in (1, 0, -1, 1025, 10**30, "3", 2.5):
        with pytest.raises(ValueError, match=r"level .* not supported"):
            Worker(level)
    child = Worker(3)
    for level in (2, 3):
        with pytest.raises(RuntimeError, match="level >= 4"):
            Worker(level).add_worker(child)
    w = Worker(4)
    for level in (2, 4, 5):
        with pytest.raises(ValueError, match="level"):
            w.add_worker(Worker(level))
    for bad in (None, 5, object()):
        with pytest.raises(TypeError, match="expects a Worker"):
            w.add_worker(bad)
    running = Worker(3)
    running.init()
    with running, pytest.raises(RuntimeError, match="must not be initialized"):
        w.add_worker(running)
    with pytest.raises(RuntimeError, match="must not be initialized"):
        w.add_worker(running)  # closed by now
    assert w.add_worker(child) == 0
    with pytest.raises(RuntimeError, match="child already"):
        w.add_worker(child)
    other = Worker(4)
    with pytest.raises(RuntimeError, match="child already"):
        other.add_worker(child)
    with pytest.raises(RuntimeError, match="is a child"):
        child.init()
    assert (len(w._life.next_level), len(other._life.next_level)) == (1, 0)
    with Worker(4) as w:
        w.init()
        with pytest.raises(RuntimeError, match="before init"):
            w.add_worker(Worker(3))
