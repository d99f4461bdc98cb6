"""Two simulated chips add vectors, each one half, and a Python function checks the result.

The same graph runs twice: with a kernel written in Python, which numba compiles, and with one written
in C. A check reads what a chip writes, so it waits for that chip.
"""

import argparse
import sys

import numpy as np

from simpler_ref import CallConfig, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import ChipCallable, CoreCallable, In, Out, compile_kernel, core_kernel
from simpler_ref.task_interface import ArgDirection

CHIPS = [0, 1]


# ---------------------------------------------------------------- what the chips run
@core_kernel(x=In("float32"), y=In("float32"), z=Out("float32"))
def add(x, y, z, block_idx, block_dim):
    """Compute the share of one block."""
    for i in range(z.size * block_idx // block_dim, z.size * (block_idx + 1) // block_dim):
        z[i] = x[i] + y[i]


ADD_IN_C = """
#include "simpler_kernel.h"

int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    const float *x = (const float *)args->tensors[0].data;
    const float *y = (const float *)args->tensors[1].data;
    float *z = (float *)args->tensors[2].data;
    uint64_t i, end;
    simpler_share(args, simpler_elements(&args->tensors[2]), &i, &end);
    for (; i < end; i++)
        z[i] = x[i] + y[i];
    return 0;
}
"""


def kernels():
    """Return both kernels by name; a chip receives machine code in either case."""
    signature = [ArgDirection.IN, ArgDirection.IN, ArgDirection.OUT]
    return {"numba": add, "C": CoreCallable.build(signature, compile_kernel(ADD_IN_C))}


# ---------------------------------------------------------------- what the sub worker runs
def check(args):
    """Count the elements that differ from the sum."""
    x, y, z, wrong = (args.tensor(i).numpy() for i in range(4))
    wrong[0] = np.count_nonzero(z != x + y)


# ---------------------------------------------------------------- the graph
def graph(add_handle, check_handle, x, y, z, wrong):
    """Return the orchestration function: for each chip an addition, then its check."""

    def orchestrate(orch, args, config):
        cut = len(x) // 2
        for chip, part in zip(CHIPS, (slice(0, cut), slice(cut, None)), strict=True):
            addition = TaskArgs()
            addition.add_tensor(x[part], T.INPUT)
            addition.add_tensor(y[part], T.INPUT)
            addition.add_tensor(z[part], T.OUTPUT_EXISTING)
            orch.submit_next_level(add_handle, addition, config, worker=chip)

            checking = TaskArgs()
            checking.add_tensor(x[part], T.INPUT)
            checking.add_tensor(y[part], T.INPUT)
            checking.add_tensor(z[part], T.INPUT)  # what the chip writes: the edge
            checking.add_tensor(wrong[chip : chip + 1], T.OUTPUT_EXISTING)
            orch.submit_sub(check_handle, checking)

    return orchestrate


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=positive, default=1_000_000, help="elements (1000000)")
    parser.add_argument("--blocks", type=positive, default=8, help="blocks of a kernel (8)")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    print(f"{options.size} elements on {len(CHIPS)} chips, blocks: {options.blocks}")
    print(f"{'kernel':<12}{'tasks':>8}{'edges':>8}{'time':>12}{'on chips':>12}{'wrong':>8}")
    all_right = True
    with Worker(level=3, device_ids=CHIPS, num_sub_workers=1) as w:
        x = w.share(rng.standard_normal(options.size, np.float32))
        y = w.share(rng.standard_normal(options.size, np.float32))
        z = w.empty(options.size)
        wrong = w.empty(len(CHIPS), np.int64)
        check_handle = w.register(check)
        callables = {name: w.register(ChipCallable.from_kernel(k)) for name, k in kernels().items()}
        graphs = {n: graph(h, check_handle, x, y, z, wrong) for n, h in callables.items()}
        config = CallConfig(block_dim=options.blocks)
        for orchestrate in graphs.values():  # the first run starts the workers and touches memory
            w.run(orchestrate, None, config)
        for name, orchestrate in graphs.items():
            z[:], wrong[:] = np.nan, -1
            timing = w.run(orchestrate, None, config)
            right = not wrong.any() and np.array_equal(z, x + y)
            all_right &= right
            print(
                f"{name:<12}{timing.tasks:>8}{timing.edges:>8}"
                f"{timing.host_wall_ns / 1e6:>9.2f} ms{timing.device_wall_ns / 1e6:>9.2f} ms"
                f"{wrong.sum():>8}"
            )
    print(f"equal to numpy: {'yes' if all_right else 'NO'}")
    return 0 if all_right else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
