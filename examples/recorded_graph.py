"""Heat in a rod: the graph of one time step, recorded once and run again for each step.

A step reads one state of the rod and writes another, part by part, and then adds up the heat. The
recording keeps the tasks; the two states are arguments and swap roles from run to run.
"""

import argparse
import sys

import numpy as np

from simpler_ref import TaskArgs, Worker
from simpler_ref import TensorArgType as T

TOLERANCE = 1e-4  # of 32-bit floats, over many steps


# ---------------------------------------------------------------- what the workers run
def flow(args):
    """Write one part of the new state; the rod is closed to a ring, so its heat stays the same."""
    old, new, rate = args.tensor(0).numpy(), args.tensor(1).numpy(), args.scalar_float(0)
    here = np.arange(args.scalar(1), args.scalar(1) + len(new))
    around = old[here - 1] + old[(here + 1) % len(old)]
    new[:] = old[here] + rate * (around - 2 * old[here])


def add_up(args):
    """Add up the heat of all parts."""
    *parts, heat = (args.tensor(i).numpy() for i in range(args.tensor_count()))
    heat[0] = sum(part.sum() for part in parts)


# ---------------------------------------------------------------- the graph
def one_step(flow_handle, add_handle, parts):
    """Return the orchestration function; its arguments are two states, the heat, and the rate."""

    def orchestrate(orch, args, config):
        new, total = args.tensor(1).numpy(), TaskArgs()
        start = 0
        for part in np.array_split(new, parts):
            task = TaskArgs()
            task.add_tensor(args.tensor(0), T.INPUT)
            task.add_tensor(part, T.OUTPUT_EXISTING)
            task.add_scalar(args.scalar_float(0))
            task.add_scalar(start)
            orch.submit_sub(flow_handle, task)
            total.add_tensor(part, T.INPUT)
            start += len(part)
        total.add_tensor(args.tensor(2), T.OUTPUT_EXISTING)
        orch.submit_sub(add_handle, total)

    return orchestrate


def arguments(old, new, heat, rate):
    args = TaskArgs()
    args.add_tensor(old, T.INPUT)
    args.add_tensor(new, T.INOUT)
    args.add_tensor(heat, T.INOUT)
    args.add_scalar(rate)
    return args


def plain_numpy(state, rate, steps):
    for _ in range(steps):
        state = state + rate * (np.roll(state, 1) + np.roll(state, -1) - 2 * state)
    return state


# ---------------------------------------------------------------- command line
def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=positive, default=20_000, help="cells of the rod (20000)")
    parser.add_argument("--parts", type=positive, default=4, help="tasks of a step (4)")
    parser.add_argument("--steps", type=positive, default=200, help="runs of the graph (200)")
    options = parser.parse_args()
    if not options.parts <= min(options.size, 100):
        parser.error(f"--parts {options.parts} is too many: at most 100, and one per cell")

    start = np.random.default_rng(0).uniform(0, 100, options.size).astype(np.float32)
    rate = 0.25
    with Worker(level=3, num_sub_workers=2) as w:
        old, new = w.share(start), w.empty(options.size, np.float32)
        heat = w.share(np.zeros(1, np.float32))
        orchestrate = one_step(w.register(flow), w.register(add_up), options.parts)
        graph = w.record(orchestrate, arguments(old, new, heat, rate))  # nothing runs yet
        tasks = 0
        for _ in range(options.steps):
            tasks += graph.run(arguments(old, new, heat, rate)).tasks
            old, new = new, old
        expected = plain_numpy(start.astype(np.float64), rate, options.steps)
        deviation = abs(old / expected - 1).max()
        deviation = max(deviation, abs(float(heat[0]) / expected.sum() - 1))
    agrees = deviation <= TOLERANCE  # False for a nan, too
    print(
        f"{options.steps} steps, {tasks} tasks from one recording; "
        f"equal to numpy within {TOLERANCE}: {'yes' if agrees else 'NO'}"
    )
    return 0 if agrees else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
