"""Each run of a chip asks for sizes of its own."""

import sys

import numpy as np
from kernels import build_note_sizes
from simpler.task_interface import (
    CallConfig,
    ContinuousTensor,
    DataType,
    RuntimeEnv,
    TaskArgs,
    TensorArgType,
)
from simpler.worker import Worker


def main():
    seen = np.zeros(3, np.int64)
    worker = Worker(level=2, platform="a2a3sim", runtime="tensormap_and_ringbuffer", device_id=0)
    handle = worker.register(build_note_sizes())
    worker.init()
    try:
        for window in (16, 64):
            args = TaskArgs()
            tensor = ContinuousTensor.make(seen.ctypes.data, seen.shape, DataType.INT64)
            args.add_tensor(tensor, TensorArgType.INOUT)
            config = CallConfig()
            config.runtime_env = RuntimeEnv()
            config.runtime_env.ring_task_window = window
            config.runtime_env.ring_heap = 1 << 20
            worker.run(handle, args, config)
            assert seen.tolist() == [window, 1 << 20, 0], seen
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
