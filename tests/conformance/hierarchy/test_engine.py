"""HIER-ENGINE: each Worker by itself."""

import numpy as np
import pytest

from simpler_ref import TaskError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import make_args


@pytest.fixture(params=["process", "thread"])
def tree(request):
    """Give a Worker of level 4 whose workers are processes, or threads, and the Worker below it."""
    below = Worker(3, num_sub_workers=1)
    above = Worker(4, num_sub_workers=1, child_mode=request.param)
    above.add_worker(below)
    with above:
        yield above, below


@pytest.mark.spec("HIER-ENGINE-1")
def test_a_nested_run_starts_as_if_it_were_alone(tree):
    above, _ = tree
    seen = above.share(np.full((2, 5), -1, np.int64))

    def nested(orch, args, config):
        tops = [orch.ring.heap_top(ring) for ring in range(4)]
        row = orch.ring.next_task_id(), orch.live_tasks(), sum(tops), orch.ring.heap_base(0)
        with orch.scope():
            offset = orch.alloc((100,), np.uint8).data - orch.ring.heap_base(1)
        seen[args.scalar(0)] = *row, offset

    handle = above.register(nested)

    def orch_fn(orch, args, config):
        bases.append(orch.ring.heap_base(0))
        with orch.scope(), orch.scope():
            orch.alloc((5000,), np.uint8)
            for i in range(2):
                orch.submit_next_level(handle, make_args(scalars=[i]))
                orch.alloc((3000,), np.uint8)

    bases = []
    assert (above.run(orch_fn).tasks, seen[:, [0, 1, 2, 4]].tolist()) == (5, [[0, 0, 0, 0]] * 2)
    assert bases[0] not in seen[:, 3]


@pytest.mark.spec("HIER-ENGINE-2", "HIER-ENGINE-3")
def test_nested_tasks_have_no_edge_to_those_above_find_what_these_wrote_and_are_read_by_them(tree):
    above, below = tree
    x, found = above.share(np.zeros(1000, np.int64)), above.share(np.full(2, -1, np.int64))
    write = above.register(lambda args: args.tensor(0).numpy().fill(7))
    add = below.register(lambda args: args.tensor(0).numpy().__iadd__(args.scalar(0)))
    add_up = above.register(lambda args: found[:1].fill(args.tensor(0).numpy().sum()))

    def nested(orch, args, config):
        for block in range(10):
            part = x[block * 100 : block * 100 + 100]
            orch.submit_sub(add, make_args((part, T.INOUT), scalars=[block]))
        found[1] = orch._engine.mem[L.EDGE_COUNT]

    handle = above.register(nested)

    def orch_fn(orch, args, config):
        orch.submit_sub(write, make_args((x, T.INOUT)))
        orch.submit_next_level(handle, make_args((x, T.INOUT)))
        orch.submit_sub(add_up, make_args((x, T.INPUT)))

    assert above.run(orch_fn).edges == 2
    assert found.tolist() == [7 * 1000 + 100 * sum(range(10)), 0]


@pytest.mark.spec("HIER-ENGINE-4")
def test_a_worker_runs_within_the_orch_function_of_another_and_fails_by_itself():
    with Worker(3, num_sub_workers=1) as one, Worker(3, num_sub_workers=1) as other:
        x, y = one.share(np.zeros(2, np.int64)), other.share(np.zeros(2, np.int64))
        ones = one.register(lambda args: np.add(x, 1, out=x))
        others = other.register(lambda args: np.add(y, 1, out=y))
        fails, timings = other.register(lambda: 1 // 0), []

        def inner(orch, args, config):
            orch.submit_sub(others, make_args((y, T.INOUT)))

        def outer(orch, args, config):
            for _ in range(3):
                orch.submit_sub(ones, make_args((x, T.INOUT)))
                timings.append(other.run(inner))
                with pytest.raises(TaskError, match="ZeroDivisionError"):
                    other.run(lambda inner, *_: inner.submit_sub(fails))

        assert (one.run(outer).tasks, [timing.tasks for timing in timings]) == (3, [1, 1, 1])
        assert (x.tolist(), y.tolist()) == ([3, 3], [3, 3])
