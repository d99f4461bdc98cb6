"""One chip adds two vectors, in private memory."""

import argparse
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


def tensor_of(address, size):
    return ContinuousTensor.make(address, (size,), DataType.FLOAT32, child_memory=True)


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--platform", default="a2a3sim")
    parser.add_argument("-d", "--device", type=int, default=0)
    options = parser.parse_args(argv)
    size = 1024
    a, b = np.full(size, 2.0, np.float32), np.full(size, 3.0, np.float32)
    c = np.zeros(size, np.float32)
    worker = Worker(
        level=2,
        platform=options.platform,
        device_id=options.device,
        runtime="tensormap_and_ringbuffer",
    )
    handle = worker.register(build_vector_add())
    worker.init()
    try:
        on_chip = [worker.malloc(array.nbytes) for array in (a, b, c)]
        for address, array in zip(on_chip, (a, b), strict=False):
            worker.copy_to(address, array.ctypes.data, array.nbytes)
        args = TaskArgs()
        for address, tag in zip(
            on_chip,
            (TensorArgType.INPUT, TensorArgType.INPUT, TensorArgType.OUTPUT_EXISTING),
            strict=True,
        ):
            args.add_tensor(tensor_of(address, size), tag)
        config = CallConfig()
        config.block_dim = 3
        config.aicpu_thread_num = 4
        worker.run(handle, args, config)
        worker.copy_from(c.ctypes.data, on_chip[2], c.nbytes)
        for address in on_chip:
            worker.free(address)
    finally:
        worker.close()
    assert np.allclose(c, 5.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
