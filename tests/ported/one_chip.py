"""One chip adds two vectors in private memory; each run asks for ring sizes of its own."""

import argparse
import sys

import numpy as np
from arrays import tensor_of
from kernels import build_note_sizes, build_vector_add
from simpler.task_interface import (
    CallConfig,
    ContinuousTensor,
    DataType,
    RuntimeEnv,
    TaskArgs,
    TensorArgType,
)
from simpler.worker import Worker

SIZE = 1024


def add(worker, handle):
    a, b = np.full(SIZE, 2.0, np.float32), np.full(SIZE, 3.0, np.float32)
    c = np.zeros(SIZE, np.float32)
    on_chip = [worker.malloc(array.nbytes) for array in (a, b, c)]
    for address, array in zip(on_chip, (a, b), strict=False):
        worker.copy_to(address, array.ctypes.data, array.nbytes)
    args = TaskArgs()
    tags = (TensorArgType.INPUT, TensorArgType.INPUT, TensorArgType.OUTPUT_EXISTING)
    for address, tag in zip(on_chip, tags, strict=True):
        tensor = ContinuousTensor.make(address, (SIZE,), DataType.FLOAT32, child_memory=True)
        args.add_tensor(tensor, tag)
    config = CallConfig()
    config.block_dim = 3
    config.aicpu_thread_num = 4
    worker.run(handle, args, config)
    worker.copy_from(c.ctypes.data, on_chip[2], c.nbytes)
    for address in on_chip:
        worker.free(address)
    assert np.allclose(c, 5.0)


def note_sizes(worker, handle):
    seen = np.zeros(3, np.int64)
    for window in (16, 64):
        args = TaskArgs()
        args.add_tensor(tensor_of(seen), TensorArgType.INOUT)
        config = CallConfig()
        config.runtime_env = RuntimeEnv()
        config.runtime_env.ring_task_window = window
        config.runtime_env.ring_heap = 1 << 20
        worker.run(handle, args, config)
        assert seen.tolist() == [window, 1 << 20, 0], seen


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--platform", default="a2a3sim")
    parser.add_argument("-d", "--device", type=int, default=0)
    options = parser.parse_args(argv)
    worker = Worker(
        level=2,
        platform=options.platform,
        device_id=options.device,
        runtime="tensormap_and_ringbuffer",
    )
    sizes, sums = worker.register(build_note_sizes()), worker.register(build_vector_add())
    worker.init()
    try:
        add(worker, sums)
        note_sizes(worker, sizes)
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
