"""A scene test: kernels in C, two cases, and what must come out of them.

pytest runs each case as a test; this file, run by itself, takes options (``--help`` names them).
"""

import sys

import numpy as np

from simpler_ref import TaskArgs
from simpler_ref import TensorArgType as T
from simpler_ref.extras.scenes import SceneTestCase, TaskArgsBuilder, Tensor, scene_test
from simpler_ref.task_interface import ArgDirection as D

ADD = """
#include "simpler_kernel.h"

int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    float *a = (float *)args->tensors[0].data, *b = (float *)args->tensors[1].data;
    float *c = (float *)args->tensors[2].data;
    uint64_t i, end;
    simpler_share(args, simpler_elements(&args->tensors[0]), &i, &end);
    for (; i < end; i++)
        c[i] = a[i] + b[i];
    return 0;
}
"""
LAUNCH = """
#include "simpler_kernel.h"

int32_t add_all(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    return device->launch(device, 0, 0, args->tensors_, 3, 0, 0);
}
"""
SIGNATURE = [D.IN, D.IN, D.OUT]


def sum_up(args):
    args.tensor(1).numpy()[0] = args.tensor(0).numpy().sum()


def add_then_sum_up(orch, callables, args, config):
    """Have a chip add, and a sub worker sum up what it made."""
    task = TaskArgs()
    for tensor, tag in ((args.a, T.INPUT), (args.b, T.INPUT), (args.c, T.OUTPUT_EXISTING)):
        task.add_tensor(tensor, tag)
    orch.submit_next_level(callables.add, task, config)
    task = TaskArgs()
    task.add_tensor(args.c, T.INPUT)
    task.add_tensor(args.total, T.OUTPUT_EXISTING)
    orch.submit_sub(callables.sum_up, task)


@scene_test(level=3, runtime="tensormap_and_ringbuffer")
class TestVectorAdd(SceneTestCase):
    """``c = a + b`` on a chip, and the sum of c on the host."""

    CALLABLE = {
        "orchestration": add_then_sum_up,
        "callables": [
            {
                "name": "add",
                "orchestration": {
                    "source": LAUNCH,
                    "function_name": "add_all",
                    "signature": SIGNATURE,
                },
                "incores": [{"func_id": 0, "source": ADD, "signature": SIGNATURE}],
            },
            {"name": "sum_up", "callable": sum_up},
        ],
    }
    CASES = [
        {"name": "small", "params": {"size": 16}, "config": {"num_sub_workers": 1}},
        {
            "name": "large",
            "params": {"size": 1 << 16},
            "config": {"num_sub_workers": 1, "block_dim": 3},
        },
    ]

    def generate_args(self, params):
        a = np.arange(params["size"], dtype=np.float32)
        return TaskArgsBuilder(
            Tensor("a", a),
            Tensor("b", np.ones_like(a)),
            Tensor("c", np.zeros_like(a)),
            Tensor("total", np.zeros(1, np.float32)),
        )

    def compute_golden(self, args, params):
        args.c[:] = args.a + args.b
        args.total[0] = args.c.sum()


def main():
    return SceneTestCase.run_module(__name__)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
