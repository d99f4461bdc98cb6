"""Each of several chips adds; a sub worker sums up what each of them made."""

import mmap
import sys

import numpy as np
from kernels import build_vector_add
from simpler.task_interface import (
    CallConfig,
    ContinuousTensor,
    DataType,
    TaskArgs,
    TensorArgType,
)
from simpler.worker import Worker

CHIPS, SIZE = 2, 256


def shared(size, dtype):
    dtype = np.dtype(dtype)
    return np.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype)


a = [shared(SIZE, np.float32) for _ in range(CHIPS)]
b = [shared(SIZE, np.float32) for _ in range(CHIPS)]
c = [shared(SIZE, np.float32) for _ in range(CHIPS)]
sums = shared(CHIPS, np.float32)


def tensor_of(array):
    return ContinuousTensor.make(array.ctypes.data, array.shape, DataType.FLOAT32)


def sum_up(args):
    sums[args.scalar(0)] = args.tensor(0).numpy().sum()


def main():
    for chip in range(CHIPS):
        a[chip][:], b[chip][:] = chip + 1, 10
    worker = Worker(
        level=3,
        platform="a2a3sim",
        runtime="tensormap_and_ringbuffer",
        device_ids=list(range(CHIPS)),
        num_sub_workers=1,
    )
    add = worker.register(build_vector_add())
    check = worker.register(sum_up)
    worker.init()

    def orchestrate(orch, args, config):
        for chip in range(CHIPS):
            task = TaskArgs()
            task.add_tensor(tensor_of(a[chip]), TensorArgType.INPUT)
            task.add_tensor(tensor_of(b[chip]), TensorArgType.INPUT)
            task.add_tensor(tensor_of(c[chip]), TensorArgType.OUTPUT_EXISTING)
            orch.submit_next_level(add, task, config, worker=chip)
            task = TaskArgs()
            task.add_tensor(tensor_of(c[chip]), TensorArgType.INPUT)
            task.add_scalar(chip)
            orch.submit_sub(check, task)

    try:
        worker.run(orchestrate, TaskArgs(), CallConfig())
    finally:
        worker.close()
    assert [float(one) for one in sums] == [(chip + 11) * SIZE for chip in range(CHIPS)]
    return 0


if __name__ == "__main__":
    sys.exit(main())
