"""Tags make the order: produce, change in place, consume; an output gets its memory from the heap."""

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

found = np.frombuffer(mmap.mmap(-1, 4096), np.float32)[:1]


def produce(args):
    args.tensor(0).numpy()[:] = 1


def double(args):
    args.tensor(0).numpy()[:] *= 2


def consume(args):
    found[0] = args.tensor(0).numpy().sum()


def main():
    worker = Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 22)
    handles = [worker.register(one) for one in (produce, double, consume)]
    worker.init()

    def orchestrate(orch, args, config):
        task = TaskArgs()
        task.add_tensor(ContinuousTensor.make(0, (16,), DataType.FLOAT32), TensorArgType.OUTPUT)
        orch.submit_sub(handles[0], task)
        made = task.tensor(0)
        assert made.data != 0
        for _ in range(3):
            task = TaskArgs()
            task.add_tensor(made, TensorArgType.INOUT)
            orch.submit_sub(handles[1], task)
        task = TaskArgs()
        task.add_tensor(made, TensorArgType.INPUT)
        orch.submit_sub(handles[2], task)

    try:
        for _ in range(5):
            worker.run(orchestrate, TaskArgs(), CallConfig())
            assert found[0] == 16 * 8
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
