"""Two tasks from end to end: one runs on a chip, one passes through two Workers.

First an addition: the arguments of `run` reach the orchestration function, which passes them on to a
chip; the chip writes its result to memory that this process mapped. Then a check of that result:
a level 4 Worker passes it to the level 3 Worker below, which passes it to its sub worker.
"""

import mmap
import sys

import numpy as np

from simpler_ref import CallConfig, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import ChipCallable, In, Out, core_kernel
from simpler_ref.task_interface import make_tensor


def shared(size, dtype):
    """Return an array that this process shares with those it forks later."""
    dtype = np.dtype(dtype)
    return np.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype)


# ---------------------------------------------------------------- one chip
@core_kernel(a=In("float32"), b=In("float32"), c=Out("float32"))
def add(a, b, c, block_idx, block_dim):
    for i in range(c.size * block_idx // block_dim, c.size * (block_idx + 1) // block_dim):
        c[i] = a[i] + b[i]


def add_on_a_chip(a, b, c):
    """Run the addition on one chip; return the run's figures."""
    args = TaskArgs()
    for array, tag in ((a, T.INPUT), (b, T.INPUT), (c, T.OUTPUT)):
        args.add_tensor(make_tensor(array), tag)

    def orchestrate(orch, args, config):
        task = TaskArgs()
        for i in range(args.tensor_count()):
            task.add_tensor(args.tensor(i), T.INPUT if i < 2 else T.OUTPUT)
        orch.submit_next_level(add_handle, task, config)

    with Worker(level=3, device_ids=[0]) as w3:
        add_handle = w3.register(ChipCallable.from_kernel(add))
        return w3.run(orchestrate, args, CallConfig(block_dim=3))


# ---------------------------------------------------------------- nested Workers
def check_below(a, b, c, wrong):
    """Let a sub worker, two levels down, count the elements that differ from the sum."""

    def verify_result():
        wrong[0] = np.count_nonzero(c != a + b)

    w3 = Worker(level=3, num_sub_workers=1)
    verify_handle = w3.register(verify_result)

    def lower(orch, args, config):
        orch.submit_sub(verify_handle)

    def upper(orch, args, config):
        orch.submit_next_level(lower_handle, TaskArgs(), CallConfig())

    w4 = Worker(level=4)
    lower_handle = w4.register(lower)
    w4.add_worker(w3)  # not initialised: it starts with its parent, and inside it
    with w4:
        w4.run(upper)


def main():
    size = 1000
    a, b, c = (shared(size, np.float32) for _ in range(3))
    wrong = shared(1, np.int64)
    rng = np.random.default_rng(0)
    a[:], b[:], c[:], wrong[:] = rng.random(size), rng.random(size), np.nan, -1

    timing = add_on_a_chip(a, b, c)
    check_below(a, b, c, wrong)
    equal = wrong[0] == 0 and np.array_equal(c, a + b)
    print(
        f"{timing.tasks} task on the chip, wrong elements found two levels down: {wrong[0]}; "
        f"equal to numpy: {'yes' if equal else 'NO'}"
    )
    return 0 if equal else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
