"""A group is one task of several members: what needs it waits for all of them."""

import mmap
import sys

import numpy as np
from simpler.task_interface import (
    CallConfig,
    ContinuousTensor,
    DataType,
    TaskArgs,
    TensorArgType,
)
from simpler.worker import Worker

MEMBERS = 2
parts = np.frombuffer(mmap.mmap(-1, 4096), np.int32)[:MEMBERS]
total = np.frombuffer(mmap.mmap(-1, 4096), np.int32)[:1]


def tensor_of(array):
    return ContinuousTensor.make(array.ctypes.data, array.shape, DataType.INT32)


def member(args):
    args.tensor(0).numpy()[0] = 10 + args.scalar(0)


def sum_up(args):
    total[0] = sum(int(args.tensor(i).numpy()[0]) for i in range(args.tensor_count()))


def main():
    worker = Worker(level=3, num_sub_workers=MEMBERS)
    member_handle, sum_handle = worker.register(member), worker.register(sum_up)
    worker.init()

    def orchestrate(orch, args, config):
        members = []
        for i in range(MEMBERS):
            task = TaskArgs()
            task.add_tensor(tensor_of(parts[i : i + 1]), TensorArgType.OUTPUT_EXISTING)
            task.add_scalar(i)
            members.append(task)
        orch.submit_sub_group(member_handle, members)
        task = TaskArgs()
        for i in range(MEMBERS):
            task.add_tensor(tensor_of(parts[i : i + 1]), TensorArgType.INPUT)
        orch.submit_sub(sum_handle, task)

    try:
        worker.run(orchestrate, TaskArgs(), CallConfig())
    finally:
        worker.close()
    assert total[0] == sum(10 + i for i in range(MEMBERS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
