"""Every chip of a domain gets the sum of what all of them have; what a domain says of its ranks."""

import sys

import numpy as np
from arrays import shared, tensor_of
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

CHIPS, SIZE = 3, 256
MEMBERS = [2, 0]
inputs, sums = shared((CHIPS, SIZE)), shared((CHIPS, SIZE))


def look_at(domain, rank, chip):
    context = domain[chip]
    assert (context.name, context.domain_rank, context.domain_size) == ("pair", rank, 2)
    assert context.device_ctx != 0
    assert context.actual_window_size >= SIZE * 4
    offset = context.buffer_ptrs["data"] - context.local_window_base
    assert 0 <= offset <= context.actual_window_size - SIZE * 4


def member(context, chip):
    """Return what a chip is to add up."""
    task = TaskArgs()
    task.add_tensor(tensor_of(inputs[chip]), TensorArgType.INPUT)
    task.add_tensor(tensor_of(sums[chip]), TensorArgType.OUTPUT_EXISTING)
    address = context.buffer_ptrs["data"]
    window = ContinuousTensor.make(address, (SIZE,), DataType.FLOAT32, child_memory=True)
    task.add_tensor(window, TensorArgType.INOUT)
    task.add_scalar(context.device_ctx)
    return task


def refuse_large_buffers(orch, spec):
    try:
        with orch.allocate_domain(name="big", workers=[0], window_size=32, buffers=[spec]):
            raise AssertionError("buffers larger than the window were taken")
    except ValueError as error:
        assert "data" in str(error) or "window" in str(error), error


def main():
    inputs[:] = np.arange(CHIPS * SIZE).reshape(CHIPS, SIZE)
    worker = Worker(
        level=3,
        platform="a5sim",
        runtime="host_build_graph",
        device_ids=list(range(CHIPS)),
        num_sub_workers=0,
    )
    handle = worker.register(build_all_reduce())
    worker.init()
    kept = []

    def orchestrate(orch, args, config):
        spec = CommBufferSpec(name="data", dtype="float32", count=SIZE, nbytes=SIZE * 4)
        with orch.allocate_domain(
            name="pair", workers=MEMBERS, window_size=SIZE * 4, buffers=[spec]
        ) as domain:
            kept.append(domain)
            assert tuple(domain.workers) == (2, 0)
            for rank, chip in enumerate(domain.workers):
                look_at(domain, rank, chip)
            assert "pair" in worker.live_domains
            own = CallConfig()
            own.block_dim = 1
            members = [member(domain[chip], chip) for chip in MEMBERS]
            orch.submit_next_level_group(handle, members, own, workers=MEMBERS)
        assert domain.released and not domain.freed
        try:
            domain[2]
        except RuntimeError as error:
            assert "released" in str(error)
        else:
            raise AssertionError("a released domain was indexed")
        refuse_large_buffers(orch, spec)

    try:
        worker.run(orchestrate, TaskArgs(), CallConfig())
        assert kept[0].freed and not worker.live_domains
    finally:
        worker.close()
    assert (sums[MEMBERS] == inputs[MEMBERS].sum(axis=0)).all()
    assert not sums[1].any()
    return 0


if __name__ == "__main__":
    sys.exit(main())
