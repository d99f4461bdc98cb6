"""Each task of a level 3 Worker asks its chip for sizes of its own."""

import mmap
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

CHIPS = 2
seen = np.frombuffer(mmap.mmap(-1, 4096), np.int64)[: 3 * CHIPS].reshape(CHIPS, 3)


def main():
    worker = Worker(
        level=3,
        platform="a2a3sim",
        runtime="tensormap_and_ringbuffer",
        device_ids=list(range(CHIPS)),
    )
    handle = worker.register(build_note_sizes())
    worker.init()

    def orchestrate(orch, args, config):
        for chip in range(CHIPS):
            task = TaskArgs()
            tensor = ContinuousTensor.make(seen[chip].ctypes.data, (3,), DataType.INT64)
            task.add_tensor(tensor, TensorArgType.INOUT)
            own = CallConfig()
            own.runtime_env = RuntimeEnv(ring_task_window=8 << chip, ring_dep_pool=4)
            orch.submit_next_level(handle, task, own, worker=chip)

    try:
        worker.run(orchestrate, TaskArgs(), CallConfig())
    finally:
        worker.close()
    assert seen.tolist() == [[8 << chip, 0, 4] for chip in range(CHIPS)], seen
    return 0


if __name__ == "__main__":
    sys.exit(main())
