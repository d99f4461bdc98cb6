"""Nested Workers: two levels normalise the columns of a matrix to mean 0 and deviation 1.

A level 4 Worker has two level 3 Workers below it, and each of them has sub workers of its own. The
upper orchestration function sends half of the rows to each child; an orchestration function there
splits its half into blocks and submits a task for each. This happens twice: first to add up columns
and their squares, then to scale the blocks. In between, a sub worker at the top computes mean and
deviation from the sums.
"""

import argparse
import os
import sys

import numpy as np

from simpler_ref import ContinuousTensor, DataType, TaskArgs, Worker
from simpler_ref import TensorArgType as T

CHILDREN = 2
TOLERANCE = 1e-3  # of 32-bit floats, whose squares are added up


# ---------------------------------------------------------------- what sub workers run
def add_up(args):
    """Compute the sums of a block's columns and of their squares."""
    block, sums = args.tensor(0).numpy(), args.tensor(1).numpy()
    sums[0], sums[1] = block.sum(0), (block * block).sum(0)


def combine(args):
    """The last tensor := the sum of all others."""
    *parts, total = (args.tensor(i).numpy() for i in range(args.tensor_count()))
    total[...] = sum(parts)


def moments(args):
    """Compute mean and deviation of each column from the sums of both halves."""
    upper, lower, result = (args.tensor(i).numpy() for i in range(3))
    mean, square = (upper + lower) / args.scalar(0)
    result[0], result[1] = mean, np.sqrt(square - mean * mean)


def scale(args):
    """Scale a block to mean 0 and deviation 1; note the process that did it."""
    block, (mean, deviation) = args.tensor(0).numpy(), args.tensor(1).numpy()
    block -= mean
    block /= deviation
    args.tensor(2).numpy()[0] = os.getpid()


# ---------------------------------------------------------------- level 3
class Child:
    """A level 3 Worker and its two orchestration functions.

    The functions run where the child runs and use this child's handles, so each child has functions of
    its own.
    """

    def __init__(self, workers, block):
        self.block = block
        self.worker = Worker(level=3, num_sub_workers=workers)
        self.add_up, self.combine, self.scale = (
            self.worker.register(function) for function in (add_up, combine, scale)
        )

    def functions(self):
        """Return the orchestration functions, to be registered one level up."""
        block, add_up, combine, scale = self.block, self.add_up, self.combine, self.scale

        def sums(orch, args, config):
            rows, total = args.tensor(0).numpy(), args.tensor(1)
            parts = []
            for start in range(0, len(rows), block):
                task = TaskArgs()
                task.add_tensor(rows[start : start + block], T.INPUT)
                shape = (2, rows.shape[1])  # of a buffer from this child's ring
                task.add_tensor(ContinuousTensor.make(0, shape, DataType.FLOAT32), T.OUTPUT)
                orch.submit_sub(add_up, task)
                parts.append(task.tensor(1))
            task = TaskArgs()
            for part in parts:
                task.add_tensor(part, T.INPUT)
            task.add_tensor(total, T.OUTPUT_EXISTING)
            orch.submit_sub(combine, task)

        def normalise(orch, args, config):
            rows, moments, pids = args.tensor(0).numpy(), args.tensor(1), args.tensor(2).numpy()
            for start in range(0, len(rows), block):
                task = TaskArgs()
                task.add_tensor(rows[start : start + block], T.INOUT)
                task.add_tensor(moments, T.INPUT)
                task.add_tensor(pids[start : start + 1], T.OUTPUT_EXISTING)
                orch.submit_sub(scale, task)

        return sums, normalise


# ---------------------------------------------------------------- level 4
def top(children, moments, matrix, pids):
    """Return the upper orchestration function; `children` are pairs of handles."""
    halves, pid_halves = np.array_split(matrix, CHILDREN), np.array_split(pids, CHILDREN)
    columns = matrix.shape[1]

    def orchestrate(orch, args, config):
        joined = TaskArgs()
        for k, (sums, _) in enumerate(children):
            task = TaskArgs()
            task.add_tensor(halves[k], T.INPUT)
            task.add_tensor(ContinuousTensor.make(0, (2, columns), DataType.FLOAT32), T.OUTPUT)
            orch.submit_next_level(sums, task, config, worker=k)
            joined.add_tensor(task.tensor(1), T.INPUT)

        result = orch.alloc((2, columns), DataType.FLOAT32)
        joined.add_tensor(result, T.INOUT)
        joined.add_scalar(len(matrix))
        orch.submit_sub(moments, joined)

        for k, (_, normalise) in enumerate(children):
            task = TaskArgs()
            task.add_tensor(halves[k], T.INOUT)
            task.add_tensor(result, T.INPUT)
            task.add_tensor(pid_halves[k], T.OUTPUT_EXISTING)
            orch.submit_next_level(normalise, task, config, worker=k)

    return orchestrate


def plain_numpy(matrix):
    """Return the same result, from one process with 64-bit floats."""
    wide = matrix.astype(np.float64)
    return (wide - wide.mean(0)) / wide.std(0)


# ---------------------------------------------------------------- command line
def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=positive, default=20_000, help="of the matrix (20000)")
    parser.add_argument("--columns", type=positive, default=64, help="of the matrix (64)")
    parser.add_argument("--block", type=positive, default=500, help="rows of a task (500)")
    parser.add_argument("--workers", type=positive, default=2, help="sub workers of a child (2)")
    parser.add_argument(
        "--top",
        choices=("process", "thread"),
        default="process",
        help="what the children are in: processes, or threads of this one (process)",
    )
    options = parser.parse_args()
    if options.rows < 2 * CHILDREN:
        parser.error(f"--rows {options.rows} is not enough: at least {2 * CHILDREN}")
    if options.rows / options.block > 300 * CHILDREN:
        parser.error("give a larger --block: a child combines at most 300")

    rng = np.random.default_rng(0)
    original = rng.standard_normal((options.rows, options.columns), np.float32)
    original *= rng.uniform(1, 3, options.columns).astype(np.float32)
    original += rng.uniform(-3, 3, options.columns).astype(np.float32)

    parts = [Child(options.workers, options.block) for _ in range(CHILDREN)]
    w = Worker(level=4, num_sub_workers=1, child_mode=options.top)
    for part in parts:
        w.add_worker(part.worker)  # it now starts and ends with its parent
    with w:
        matrix = w.share(original)
        pids = w.share(np.zeros(options.rows, np.int64))
        children = [[w.register(function) for function in part.functions()] for part in parts]
        timing = w.run(top(children, w.register(moments), matrix, pids))
        result = matrix.copy()
    deviation = abs(result - plain_numpy(original)).max()
    agrees = deviation <= TOLERANCE  # False for a nan, too

    blocks = np.count_nonzero(pids)
    print(f"{options.rows} × {options.columns} numbers in {blocks} blocks, top: {options.top}")
    print(f"{'tasks at level 4':<28}{timing.tasks}, with {timing.edges} edges")
    print(f"{'tasks at level 3':<28}{2 * blocks + CHILDREN}, in {2 * CHILDREN} runs")
    print(f"{'processes that scaled':<28}{len(set(pids[pids > 0]))}")
    print(f"{'time':<28}{timing.host_wall_ns / 1e6:.1f} ms, start included")
    print(f"{'deviation from numpy':<28}{deviation:.1e} at most, {TOLERANCE:.0e} allowed")
    if not agrees:
        print("nested_workers.py: the result deviates too much from numpy's", file=sys.stderr)
    return 0 if agrees else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
