"""FLOW-WALK: from end to end."""

import os

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import ChipCallable
from tests.chip_kernels import add_core


@pytest.mark.spec("FLOW-WALK-1")
def test_three_levels_from_run_to_leaf_and_back():
    with Worker(3) as memory:
        pids, found = memory.zeros(3, np.int64), []

        def mark(step):
            assert np.count_nonzero(pids) == step
            pids[step] = os.getpid()

        l3 = Worker(3, num_sub_workers=1)
        verify = l3.register(lambda: mark(2))

        def orch3(orch, args, config):
            mark(1)
            orch.submit_sub(verify)

        w4 = Worker(4, num_sub_workers=0)
        l3_orch = w4.register(orch3)
        w4.add_worker(l3)

        def orch4(orch, args, config):
            mark(0)
            assert orch.submit_next_level(l3_orch, TaskArgs(), CallConfig()) is None

        with w4:
            for _ in range(2):
                pids[:] = 0
                w4.run(orch4)
                found.append(pids.tolist())
        assert found[0] == found[1]
        assert found[0][0] == os.getpid() and len(set(found[0])) == 3


@pytest.mark.spec("FLOW-WALK-2")
def test_one_chip_adds_two_inputs_into_the_users_memory(mode):
    with Worker(3, device_ids=[0], child_mode=mode) as w3:
        a = w3.share(np.random.default_rng(1).random(1000, np.float32))
        b = w3.share(np.random.default_rng(2).random(1000, np.float32))
        c = w3.share(np.zeros(1000, np.float32))
        kernel, args = w3.register(ChipCallable.from_kernel(add_core())), TaskArgs()
        for tensor, tag in ((a, T.INPUT), (b, T.INPUT), (c, T.OUTPUT)):
            args.add_tensor(tensor, tag)

        def orch_fn(orch, view, cfg):
            chip_args = TaskArgs()
            for i in range(view.tensor_count()):
                chip_args.add_tensor(view.tensor(i), T.INPUT if i < 2 else T.OUTPUT)
            orch.submit_next_level(kernel, chip_args, cfg)

        timing = w3.run(orch_fn, args, CallConfig(block_dim=3))
        assert (c == a + b).all()
        assert (timing.tasks, timing.edges) == (1, 0)
        assert timing.device_wall_ns > 0
