"""A histogram from compiled tasks: some count one block of values, others add up the counts in pairs.

The loops are plain Python that numba compiles, and workers run them without the interpreter. You can
still call both functions like any other, to test them without a Worker.
"""

import argparse
import sys

import numpy as np
from numba import int64, uint8

from simpler_ref import TaskArgs, Worker, leaf
from simpler_ref import TensorArgType as T

BINS = 256


# ---------------------------------------------------------------- what the workers run
@leaf
def count(values: uint8[:], counts: int64[:]):
    """Count how often each value occurs in a block."""
    counts[:] = 0
    for value in values:
        counts[value] += 1


@leaf
def add(counts: int64[:], more: int64[:]):
    """Add the counts of another block."""
    for value in range(counts.size):
        counts[value] += more[value]


# ---------------------------------------------------------------- the graph
def histogram(count_handle, add_handle, blocks, counts):
    """Return the orchestration function; `counts` has a row per block; the sum is in the first."""

    def orchestrate(orch, args, config):
        for values, row in zip(blocks, counts, strict=True):
            task = TaskArgs()
            task.add_tensor(values, T.INPUT)
            task.add_tensor(row, T.OUTPUT_EXISTING)
            orch.submit_sub(count_handle, task)
        apart = 1
        while apart < len(counts):
            for i in range(0, len(counts) - apart, 2 * apart):
                task = TaskArgs()
                task.add_tensor(counts[i], T.INOUT)
                task.add_tensor(counts[i + apart], T.INPUT)
                orch.submit_sub(add_handle, task)
            apart *= 2

    return orchestrate


# ---------------------------------------------------------------- command line
def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=positive, default=4_000_000, help="values (4000000)")
    parser.add_argument("--blocks", type=positive, default=100, help="blocks of them (100)")
    parser.add_argument("--workers", type=positive, default=2)
    options = parser.parse_args()
    if options.blocks > options.size:
        parser.error(f"--blocks {options.blocks} is too many for {options.size} values")

    rng = np.random.default_rng(0)
    with Worker(level=3, num_sub_workers=options.workers, mailbox_depth=16) as w:
        values = w.share(rng.binomial(BINS - 1, 0.4, options.size).astype(np.uint8))
        counts = w.empty((options.blocks, BINS), np.int64)
        blocks = np.array_split(values, options.blocks)
        orchestrate = histogram(w.register(count), w.register(add), blocks, counts)
        timing = w.run(orchestrate)
        equal = np.array_equal(counts[0], np.bincount(values, minlength=BINS))
    print(
        f"{options.size} values in {options.blocks} blocks, {timing.tasks} tasks, "
        f"{timing.edges} edges; equal to numpy: {'yes' if equal else 'NO'}"
    )
    return 0 if equal else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
