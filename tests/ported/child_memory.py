"""A weight is uploaded to a chip once, and used by several tasks."""

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

SIZE, TASKS = 128, 3


def shared():
    return np.frombuffer(mmap.mmap(-1, SIZE * 4), np.float32)


weight, inputs, outputs = (
    shared(),
    [shared() for _ in range(TASKS)],
    [shared() for _ in range(TASKS)],
)


def main():
    weight[:] = 100
    for i, array in enumerate(inputs):
        array[:] = i
    worker = Worker(level=3, device_ids=[0], platform="a2a3sim", runtime="tensormap_and_ringbuffer")
    add = worker.register(build_vector_add())
    worker.init()

    def orchestrate(orch, args, config):
        address = orch.malloc(worker_id=0, size=weight.nbytes)
        orch.copy_to(worker_id=0, dst=address, src=weight.ctypes.data, size=weight.nbytes)
        kept = ContinuousTensor.make(address, (SIZE,), DataType.FLOAT32, child_memory=True)
        assert kept.child_memory
        for x, y in zip(inputs, outputs, strict=True):
            task = TaskArgs()
            tensor = ContinuousTensor.make(x.ctypes.data, (SIZE,), DataType.FLOAT32)
            task.add_tensor(tensor, TensorArgType.INPUT)
            task.add_tensor(kept, TensorArgType.INPUT)
            tensor = ContinuousTensor.make(y.ctypes.data, (SIZE,), DataType.FLOAT32)
            task.add_tensor(tensor, TensorArgType.OUTPUT_EXISTING)
            orch.submit_next_level(add, task, config, worker=0)

    try:
        worker.run(orchestrate, TaskArgs(), CallConfig())
    finally:
        worker.close()
    for i, array in enumerate(outputs):
        assert (array == 100 + i).all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
