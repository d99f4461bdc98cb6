"""A layer whose weights are split across chips, which add up what each has computed."""

import mmap
import sys

import numpy as np
from kernels import build_feed_forward
from simpler.task_interface import (
    CallConfig,
    CommBufferSpec,
    ContinuousTensor,
    DataType,
    TaskArgs,
    TensorArgType,
)
from simpler.worker import Worker

CHIPS, ROWS, WIDTH, HIDDEN = 2, 4, 16, 32
PART = HIDDEN // CHIPS


def shared(*shape):
    size = int(np.prod(shape))
    return np.frombuffer(mmap.mmap(-1, size * 4), np.float32)[:size].reshape(shape)


x = shared(ROWS, WIDTH)
first = [shared(WIDTH, PART) for _ in range(CHIPS)]
second = [shared(PART, WIDTH) for _ in range(CHIPS)]
results = [shared(ROWS, WIDTH) for _ in range(CHIPS)]


def tensor_of(array):
    return ContinuousTensor.make(array.ctypes.data, array.shape, DataType.FLOAT32)


def main():
    rng = np.random.default_rng(5)
    x[:] = rng.standard_normal(x.shape)
    for one in (*first, *second):
        one[:] = rng.standard_normal(one.shape)
    worker = Worker(
        level=3,
        platform="a5sim",
        runtime="host_build_graph",
        device_ids=list(range(CHIPS)),
        num_sub_workers=0,
    )
    handle = worker.register(build_feed_forward())
    worker.init()

    def orchestrate(orch, args, config):
        spec = CommBufferSpec(name="partial", dtype="float32", count=ROWS * WIDTH, nbytes=x.nbytes)
        with orch.allocate_domain(
            name="tp", workers=list(range(CHIPS)), window_size=x.nbytes, buffers=[spec]
        ) as domain:
            members = []
            for chip in range(CHIPS):
                context = domain[chip]
                task = TaskArgs()
                for array in (x, first[chip], second[chip]):
                    task.add_tensor(tensor_of(array), TensorArgType.INPUT)
                task.add_tensor(tensor_of(results[chip]), TensorArgType.OUTPUT_EXISTING)
                partial = ContinuousTensor.make(
                    context.buffer_ptrs["partial"], x.shape, DataType.FLOAT32, child_memory=True
                )
                task.add_tensor(partial, TensorArgType.INOUT)
                for scalar in (context.device_ctx, ROWS, WIDTH, PART):
                    task.add_scalar(scalar)
                members.append(task)
            own = CallConfig()
            own.block_dim = 1
            orch.submit_next_level_group(handle, members, own, workers=list(range(CHIPS)))

    try:
        worker.run(orchestrate, TaskArgs(), CallConfig())
    finally:
        worker.close()
    golden = np.maximum(x @ np.hstack(first), 0) @ np.vstack(second)
    for one in results:
        assert np.allclose(one, golden, atol=1e-4)
    return 0


if __name__ == "__main__":
    sys.exit(main())
