"""Several chips: memory of theirs that outlives tasks, tasks for one of them, sizes for each task."""

import sys

import numpy as np
from arrays import shared, tensor_of
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

CHIPS, SIZE = 2, 256
inputs, outputs = shared((CHIPS, SIZE)), shared((CHIPS, SIZE))
weight, back = shared(SIZE), shared(SIZE)
sums = shared(CHIPS)
seen = shared((CHIPS, 3), np.int64)


def sum_up(args):
    sums[args.scalar(0)] = args.tensor(0).numpy().sum()


def use_memory(worker):
    """Memory of a chip from the program: allocated, written, read back and freed."""
    for chip in range(CHIPS):
        address = worker.malloc(weight.nbytes, worker_id=chip)
        assert address != 0
        worker.copy_to(address, weight.ctypes.data, weight.nbytes, worker_id=chip)
        back[:] = 0
        worker.copy_from(back.ctypes.data, address, back.nbytes, worker_id=chip)
        assert (back == weight).all()
        worker.free(address, worker_id=chip)
    try:
        worker.malloc(16, worker_id=CHIPS)
    except IndexError as error:
        assert "out of range" in str(error), error
    else:
        raise AssertionError("there is no third chip")


def submit_adds(orch, config, add, check, chip):
    """A chip adds to a weight that was uploaded; a sub worker sums up what it has made."""
    address = orch.malloc(worker_id=chip, size=weight.nbytes)
    orch.copy_to(worker_id=chip, dst=address, src=weight.ctypes.data, size=weight.nbytes)
    kept = ContinuousTensor.make(address, (SIZE,), DataType.FLOAT32, child_memory=True)
    assert kept.child_memory
    for x in (inputs[chip], outputs[chip]):
        task = TaskArgs()
        task.add_tensor(tensor_of(x), TensorArgType.INPUT)
        task.add_tensor(kept, TensorArgType.INPUT)
        task.add_tensor(tensor_of(outputs[chip]), TensorArgType.OUTPUT_EXISTING)
        orch.submit_next_level(add, task, config, worker=chip)
    task = TaskArgs()
    task.add_tensor(tensor_of(outputs[chip]), TensorArgType.INPUT)
    task.add_scalar(chip)
    orch.submit_sub(check, task)


def submit_sizes(orch, note, chip):
    task = TaskArgs()
    task.add_tensor(tensor_of(seen[chip]), TensorArgType.INOUT)
    own = CallConfig()
    own.runtime_env = RuntimeEnv(ring_task_window=8 << chip, ring_dep_pool=4)
    orch.submit_next_level(note, task, own, worker=chip)


def main():
    weight[:] = 100
    inputs[:] = np.arange(CHIPS)[:, None]
    worker = Worker(
        level=3,
        platform="a2a3sim",
        runtime="tensormap_and_ringbuffer",
        device_ids=list(range(CHIPS)),
        num_sub_workers=1,
    )
    add, note = worker.register(build_vector_add()), worker.register(build_note_sizes())
    check = worker.register(sum_up)
    worker.init()

    def orchestrate(orch, args, config):
        for chip in range(CHIPS):
            submit_adds(orch, config, add, check, chip)
            submit_sizes(orch, note, chip)

    try:
        use_memory(worker)
        worker.run(orchestrate, TaskArgs(), CallConfig())
    finally:
        worker.close()
    assert (outputs == 200 + inputs).all()
    assert sums.tolist() == [(200 + chip) * SIZE for chip in range(CHIPS)]
    assert seen.tolist() == [[8 << chip, 0, 4] for chip in range(CHIPS)], seen
    return 0


if __name__ == "__main__":
    sys.exit(main())
