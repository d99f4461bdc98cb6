"""More workers than cores, and all of them on one."""

import os

import numpy as np
import pytest

from simpler_ref import TensorArgType as T
from simpler_ref import Worker

from ..support import make_args
from .programs import in_a_fork


def count_up(args):
    """Add 1 to each output's number: wrong if it runs too early, twice, or never."""
    x = args.tensor(0).numpy()
    x += 1


def count(w, tasks):
    """Run a chain beside independent tasks, and a group, and see that each task has counted once."""
    up, chain, each = w.register(count_up), w.zeros(8, np.int64), w.zeros((tasks, 8), np.int64)
    members = min(8, w.num_sub_workers)

    def graph(orch, *_):
        for row in each:
            orch.submit_sub(up, make_args((chain, T.INOUT)))
            orch.submit_sub(up, make_args((row, T.INOUT)))
        orch.submit_sub_group(up, [make_args((row, T.INOUT)) for row in each[:members]])

    w.run(graph)
    assert set(chain) == {tasks}
    assert (each[:members] == 2).all() and (each[members:] == 1).all()


@pytest.mark.parametrize(
    ("workers", "tasks", "options"),
    [
        (16, 100, {}),
        pytest.param(48, 100, {}, marks=pytest.mark.long),
        *((1, 300, {}), (4, 300, {"mailbox_depth": 4, "pin": True})),
    ],
)
def test_more_workers_than_cores_do_the_same_work_also_on_one_core(workers, tasks, options):
    def program():
        if tasks > 100:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with Worker(level=3, num_sub_workers=workers, **options) as w:
            count(w, tasks)
            assert len(w.worker_pids()) == workers

    in_a_fork(program)
