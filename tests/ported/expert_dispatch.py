"""Tokens travel to the chips of their experts, and come back."""

import mmap
import sys

import numpy as np
from kernels import build_experts
from simpler.task_interface import (
    CallConfig,
    CommBufferSpec,
    ContinuousTensor,
    DataType,
    TaskArgs,
    TensorArgType,
)
from simpler.worker import Worker

CHIPS, EXPERTS, TOKENS, WIDTH = 3, 6, 10, 8
INBOX, OUTBOX = CHIPS * TOKENS * WIDTH, TOKENS * WIDTH


def shared(shape, dtype):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size), dtype)[: int(np.prod(shape))].reshape(shape)


tokens = shared((CHIPS, TOKENS, WIDTH), np.float32)
results = shared((CHIPS, TOKENS, WIDTH), np.float32)
route = shared((CHIPS, TOKENS), np.int32)


def tensor_of(array, dtype):
    return ContinuousTensor.make(array.ctypes.data, array.shape, dtype)


def main():
    rng = np.random.default_rng(3)
    tokens[:] = rng.standard_normal(tokens.shape)
    route[:] = rng.integers(0, EXPERTS, route.shape)
    worker = Worker(
        level=3,
        platform="a2a3sim",
        runtime="tensormap_and_ringbuffer",
        device_ids=list(range(CHIPS)),
    )
    handle = worker.register(build_experts())
    worker.init()

    def orchestrate(orch, args, config):
        with orch.allocate_domain(
            name="experts",
            workers=list(range(CHIPS)),
            window_size=1 << 16,
            buffers=[
                CommBufferSpec("inbox", "float32", INBOX, INBOX * 4),
                CommBufferSpec("experts", "int32", CHIPS * TOKENS, CHIPS * TOKENS * 4),
                CommBufferSpec("outbox", "float32", OUTBOX, OUTBOX * 4),
            ],
        ) as domain:
            for chip in range(CHIPS):
                at = domain[chip].buffer_ptrs
                task = TaskArgs()
                task.add_tensor(tensor_of(tokens[chip], DataType.FLOAT32), TensorArgType.INPUT)
                task.add_tensor(
                    tensor_of(results[chip], DataType.FLOAT32), TensorArgType.OUTPUT_EXISTING
                )
                for name, count, dtype in (
                    ("inbox", INBOX, DataType.FLOAT32),
                    ("experts", CHIPS * TOKENS, DataType.INT32),
                    ("outbox", OUTBOX, DataType.FLOAT32),
                ):
                    task.add_tensor(
                        ContinuousTensor.make(at[name], (count,), dtype, child_memory=True),
                        TensorArgType.INOUT,
                    )
                task.add_tensor(tensor_of(route[chip], DataType.INT32), TensorArgType.INPUT)
                task.add_scalar(domain[chip].device_ctx)
                task.add_scalar(TOKENS)
                task.add_scalar(WIDTH)
                own = CallConfig()
                own.block_dim = 1
                orch.submit_next_level(handle, task, own, worker=chip)

    try:
        for _ in range(2):
            results[:] = 0
            worker.run(orchestrate, TaskArgs(), CallConfig())
            assert np.allclose(results, tokens * (route[:, :, None] + 1))
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
