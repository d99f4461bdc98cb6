"""Every chip of a domain gets the sum of what all of them have."""

import mmap
import sys

import numpy as np
from kernels import build_all_reduce
from simpler.task_interface import (
    CallConfig,
    CommBufferSpec,
    ContinuousTensor,
    DataType,
    TaskArgs,
    TensorArgType,
)
from simpler.worker import Worker

CHIPS, SIZE = 2, 256


def shared():
    return np.frombuffer(mmap.mmap(-1, CHIPS * SIZE * 4), np.float32).reshape(CHIPS, SIZE)


inputs, sums = shared(), shared()


def tensor_of(array):
    return ContinuousTensor.make(array.ctypes.data, array.shape, DataType.FLOAT32)


def main():
    inputs[:] = np.arange(CHIPS * SIZE).reshape(CHIPS, SIZE)
    worker = Worker(
        level=3,
        platform="a2a3sim",
        runtime="tensormap_and_ringbuffer",
        device_ids=list(range(CHIPS)),
    )
    handle = worker.register(build_all_reduce())
    worker.init()

    def orchestrate(orch, args, config):
        with orch.allocate_domain(
            name="all",
            workers=list(range(CHIPS)),
            window_size=SIZE * 4,
            buffers=[CommBufferSpec("data", "float32", SIZE, SIZE * 4)],
        ) as domain:
            for chip in range(CHIPS):
                context = domain[chip]
                task = TaskArgs()
                task.add_tensor(tensor_of(inputs[chip]), TensorArgType.INPUT)
                task.add_tensor(tensor_of(sums[chip]), TensorArgType.OUTPUT_EXISTING)
                window = ContinuousTensor.make(
                    context.buffer_ptrs["data"], (SIZE,), DataType.FLOAT32, child_memory=True
                )
                task.add_tensor(window, TensorArgType.INOUT)
                task.add_scalar(context.device_ctx)
                own = CallConfig()
                own.block_dim = 1
                orch.submit_next_level(handle, task, own, worker=chip)

    try:
        worker.run(orchestrate, TaskArgs(), CallConfig())
    finally:
        worker.close()
    assert (sums == inputs.sum(axis=0)).all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
