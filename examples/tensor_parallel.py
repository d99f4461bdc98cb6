"""Feed-forward layers with weights split over simulated chips, which add up their results themselves.

Each chip has some columns of W₁ and the same rows of W₂, and computes gelu(x W₁) W₂ with them. The sum
over all chips is the layer. They add it up in the windows of a communication domain, so that every chip
has all of it, adds it to x, and goes on with the next layer. `feed_forward.py` adds up on the host.
"""

import argparse
import math
import sys

import numpy as np

from simpler_ref import CallConfig, ContinuousTensor, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import (
    ChipCallable,
    In,
    InOut,
    Scalar,
    barrier,
    core_kernel,
    domain_rank,
    domain_size,
    peer,
    put,
)
from simpler_ref.task_interface import CommBufferSpec

ONE_BLOCK = CallConfig(block_dim=1)  # the block that waits for those of the other chips
TOLERANCE = 1e-4  # of 32-bit floats, for results around 1


# ---------------------------------------------------------------- what the chips run
@core_kernel(
    x=InOut("float32", 2),
    w1=In("float32", 2),
    w2=In("float32", 2),
    hidden=InOut("float32", 2),
    y=InOut("float32", 2),
    ctx=Scalar("uint64"),
)
def layer(x, w1, w2, hidden, y, ctx):
    """X := x + the sum over all chips of gelu(x w1) w2."""
    rank, size, rows = domain_rank(ctx), domain_size(ctx), x.shape[0]
    for row in range(rows):
        hidden[row] = 0
        for k in range(w1.shape[0]):
            for column in range(w1.shape[1]):
                hidden[row, column] += x[row, k] * w1[k, column]
        for column in range(w1.shape[1]):
            a = hidden[row, column]
            inner = math.sqrt(2 / math.pi) * (a + 0.044715 * a * a * a)
            hidden[row, column] = 0.5 * a * (1 + math.tanh(inner))
        y[row] = 0
        for k in range(w2.shape[0]):
            for column in range(w2.shape[1]):
                y[row, column] += hidden[row, k] * w2[k, column]

    # all-reduce: each chip adds up some rows, and puts the sums into all windows
    status = barrier(ctx)
    if status != 0:
        return status
    mine = y[rows * rank // size : rows * (rank + 1) // size]
    for step in range(1, size):
        theirs = peer(ctx, (rank + step) % size, mine)
        for row in range(mine.shape[0]):
            for column in range(mine.shape[1]):
                mine[row, column] += theirs[row, column]
    for step in range(1, size):
        status = put(ctx, (rank + step) % size, mine, mine)
        if status != 0:
            return status
    status = barrier(ctx)
    if status != 0:
        return status
    for row in range(rows):
        for column in range(x.shape[1]):
            x[row, column] += y[row, column]
    return 0


# ---------------------------------------------------------------- the graph
def model(handle, x, layers):
    """Return the orchestration function: one task for all chips in each layer.

    A layer writes `x` of every chip, so the next one begins when all chips are done.
    """
    chips, (rows, width) = range(len(x)), x[0].shape
    widest = max(first[0].shape[1] for first, _ in layers)
    buffers = [
        CommBufferSpec("hidden", "float32", rows * widest),
        CommBufferSpec("y", "float32", rows * width),
    ]

    def member(chip, context, w1, w2):
        args = TaskArgs()
        args.add_tensor(x[chip], T.INOUT)
        args.add_tensor(w1, T.INPUT)
        args.add_tensor(w2, T.INPUT)
        for name, shape in (("hidden", (rows, w1.shape[1])), ("y", (rows, width))):
            at = context.buffer_ptrs[name]
            args.add_tensor(ContinuousTensor.make(at, shape, "float32", child_memory=True), T.INOUT)
        args.add_scalar(context.device_ctx)
        return args

    def orchestrate(orch, args, config):
        window = sum(one.nbytes for one in buffers)
        with orch.allocate_domain(
            name="tensor parallel", workers=chips, window_size=window, buffers=buffers
        ) as domain:
            for first, second in layers:
                members = [member(c, domain[c], first[c], second[c]) for c in chips]
                orch.submit_next_level_group(handle, members, ONE_BLOCK, workers=chips)

    return orchestrate


def plain_numpy(x, layers):
    """Return the same result, without chips."""
    for w1, w2 in layers:
        a = x @ w1
        x = x + (0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))) @ w2
    return x


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", type=positive, default=2, help="that share the weights (2)")
    parser.add_argument("--width", type=positive, default=128, help="of a token (128)")
    parser.add_argument("--hidden", type=positive, default=512, help="columns of W₁ (512)")
    parser.add_argument("--tokens", type=positive, default=32, help="(32)")
    parser.add_argument("--layers", type=positive, default=4, help="(4)")
    options = parser.parse_args()
    chips, width, hidden = options.chips, options.width, options.hidden
    if chips > min(16, hidden):
        parser.error(f"--chips {chips} is too many: at most 16, and one per hidden column")

    rng = np.random.default_rng(0)
    layers = [
        (
            rng.standard_normal((width, hidden), np.float32) / math.sqrt(width),
            rng.standard_normal((hidden, width), np.float32) / math.sqrt(hidden),
        )
        for _ in range(options.layers)
    ]
    tokens = rng.standard_normal((options.tokens, width), np.float32)
    with Worker(level=3, device_ids=range(chips)) as w:
        handle = w.register(ChipCallable.from_kernel(layer))
        x = [w.share(tokens) for _ in range(chips)]
        split = [
            (
                [w.share(part) for part in np.array_split(w1, chips, axis=1)],
                [w.share(part) for part in np.array_split(w2, chips, axis=0)],
            )
            for w1, w2 in layers
        ]
        timing = w.run(model(handle, x, split))
        wanted = plain_numpy(tokens, layers)
        deviation = max(np.abs(one - wanted).max() / np.abs(wanted).max() for one in x)
        alike = all(np.array_equal(one, x[0]) for one in x)
    print(f"{options.layers} layers {width} → {hidden} → {width} over {chips} chips")
    print(f"tasks {timing.tasks}, edges {timing.edges}")
    print(f"the same on every chip: {'yes' if alike else 'NO'}")
    print(f"deviation from numpy: {deviation:.1e}")
    if not (alike and deviation < TOLERANCE):
        sys.exit("the result deviates too much")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
