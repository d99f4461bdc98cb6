"""Scenes that the tests run."""

import numpy as np

from simpler_ref import TaskArgs
from simpler_ref import TensorArgType as T
from simpler_ref.extras.scenes import SceneTestCase, TaskArgsBuilder, Tensor, scene_test
from tests.chip_kernels import ADD, KERNELS, add_core

LAUNCH = r"""
#include "simpler_kernel.h"

int32_t add_all(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    return device->launch(device, 0, 0, args->tensors_, 3, 0, 0);
}
"""
add = add_core()
FROM_SOURCES = {
    "orchestration": {"source": LAUNCH, "function_name": "add_all", "signature": ADD},
    "incores": [{"func_id": 0, "source": KERNELS, "signature": ADD}],
}


class Adding(SceneTestCase):
    """Adds two tensors."""

    CASES = [{"name": "small", "params": {"size": 10}}]

    def generate_args(self, params):
        size = params["size"]
        return TaskArgsBuilder(
            Tensor("a", np.arange(size, dtype=np.float32)),
            Tensor("b", np.ones(size, np.float32)),
            Tensor("c", np.zeros(size, np.float32)),
        )

    def compute_golden(self, args, params):
        args.c[:] = args.a + args.b


@scene_test(level=2, runtime="tensormap_and_ringbuffer")
class FromSources(Adding):
    CALLABLE = FROM_SOURCES


def sum_up(args):
    args.tensor(1).numpy()[0] = args.tensor(0).numpy().sum()


def add_and_sum_up(orch, callables, args, config):
    assert callables.add_sig == ADD
    task = TaskArgs()
    for tensor, tag in ((args.a, T.INPUT), (args.b, T.INPUT), (args.c, T.OUTPUT_EXISTING)):
        task.add_tensor(tensor, tag)
    orch.submit_next_level(callables.add, task, config)
    task = TaskArgs()
    task.add_tensor(args.c, T.INPUT)
    task.add_tensor(args.total, T.OUTPUT_EXISTING)
    orch.submit_sub(callables.sum_up, task)


@scene_test(level=3)
class OverTwoKinds(Adding):
    CALLABLE = {
        "orchestration": add_and_sum_up,
        "callables": [{"name": "add", "kernel": add}, {"name": "sum_up", "callable": sum_up}],
    }
    CASES = [{"name": "small", "params": {"size": 10}, "config": {"num_sub_workers": 1}}]

    def generate_args(self, params):
        plain = super().generate_args(params)
        tensors = [Tensor(name, value) for name, value in plain.tensors.items()]
        return TaskArgsBuilder(*tensors, Tensor("total", np.zeros(1, np.float32)))

    def compute_golden(self, args, params):
        super().compute_golden(args, params)
        args.total[0] = args.c.sum()
