"""A mixture of experts over simulated chips, with one expert on each: dispatch, compute, combine.

Every chip has tokens, and for each of them the number of an expert and a weight. In a communication
domain it writes its tokens into the windows of the chips that have their experts. Each chip applies its
expert to what has arrived, and writes the results back. Then it scales the results of its own tokens.
"""

import argparse
import sys

import numpy as np

from simpler_ref import CallConfig, ContinuousTensor, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import (
    ChipCallable,
    In,
    InOut,
    Out,
    Scalar,
    barrier,
    core_kernel,
    domain_rank,
    domain_size,
    peer,
)
from simpler_ref.task_interface import CommBufferSpec

ONE_BLOCK = CallConfig(block_dim=1)  # the block that waits for those of the other chips
TOLERANCE = 1e-4  # of 32-bit floats, for results around 1


# ---------------------------------------------------------------- what the chips run
@core_kernel(
    x=In("float32", 2),
    expert=In("int32"),
    weight=In("float32"),
    w=In("float32", 2),
    y=Out("float32", 2),
    inbox=InOut("float32", 3),
    results=InOut("float32", 3),
    arrived=InOut("int32"),
    used=InOut("int32"),
    ctx=Scalar("uint64"),
)
def experts(x, expert, weight, w, y, inbox, results, arrived, used, ctx):
    """Y := weight · relu(x · the matrix of its expert), token by token."""
    rank, size, width = domain_rank(ctx), domain_size(ctx), x.shape[1]

    # dispatch: each chip has a place for the tokens of every other one
    for token in range(x.shape[0]):
        to = expert[token]
        there = peer(ctx, to, inbox)
        for i in range(width):
            there[rank, used[to], i] = x[token, i]
        used[to] += 1
    for to in range(size):
        peer(ctx, to, arrived)[rank] = used[to]
        used[to] = 0
    status = barrier(ctx)
    if status != 0:
        return status

    # this chip's expert, for all tokens that are here
    for source in range(size):
        back = peer(ctx, source, results)
        for place in range(arrived[source]):
            for j in range(width):
                back[rank, place, j] = 0
            for i in range(width):
                for j in range(width):
                    back[rank, place, j] += inbox[source, place, i] * w[i, j]
            for j in range(width):
                back[rank, place, j] = max(back[rank, place, j], np.float32(0))
    status = barrier(ctx)
    if status != 0:
        return status

    # combine: the results are at the places that the tokens were sent to
    for token in range(x.shape[0]):
        at = expert[token]
        for i in range(width):
            y[token, i] = weight[token] * results[at, used[at], i]
        used[at] += 1
    return 0


# ---------------------------------------------------------------- the graph
def layer(handle, tokens, choices, weights, matrices, out):
    """Return the orchestration function: one task for all chips, in one domain."""
    chips, (count, width) = range(len(tokens)), tokens[0].shape
    shapes = {
        "inbox": ((len(chips), count, width), "float32"),
        "results": ((len(chips), count, width), "float32"),
        "arrived": ((len(chips),), "int32"),
        "used": ((len(chips),), "int32"),
    }
    buffers = [
        CommBufferSpec(name, dtype, int(np.prod(shape))) for name, (shape, dtype) in shapes.items()
    ]

    def member(chip, context):
        args = TaskArgs()
        for one in (tokens[chip], choices[chip], weights[chip], matrices[chip]):
            args.add_tensor(one, T.INPUT)
        args.add_tensor(out[chip], T.OUTPUT_EXISTING)
        for name, (shape, dtype) in shapes.items():
            at = context.buffer_ptrs[name]
            args.add_tensor(ContinuousTensor.make(at, shape, dtype, child_memory=True), T.INOUT)
        args.add_scalar(context.device_ctx)
        return args

    def orchestrate(orch, args, config):
        window = sum(one.nbytes for one in buffers)
        with orch.allocate_domain(
            name="experts", workers=chips, window_size=window, buffers=buffers
        ) as domain:
            members = [member(chip, domain[chip]) for chip in chips]
            orch.submit_next_level_group(handle, members, ONE_BLOCK, workers=chips)

    return orchestrate


def plain_numpy(tokens, choices, weights, matrices):
    """Return the same result, without chips."""
    products = np.maximum(np.einsum("cti,ctij->ctj", tokens, matrices[choices]), 0)
    return weights[..., None] * products


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", type=positive, default=3, help="one for each expert (3)")
    parser.add_argument("--tokens", type=positive, default=64, help="of each chip (64)")
    parser.add_argument("--width", type=positive, default=32, help="of a token (32)")
    options = parser.parse_args()
    chips, count, width = options.chips, options.tokens, options.width
    if chips > 16:
        parser.error(f"--chips {chips} is too many: at most 16")

    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((chips, count, width), np.float32)
    choices = rng.integers(0, chips, (chips, count), np.int32)
    weights = rng.random((chips, count), np.float32)
    matrices = rng.standard_normal((chips, width, width), np.float32) / np.sqrt(width, dtype="f4")
    with Worker(level=3, device_ids=range(chips)) as w:
        handle = w.register(ChipCallable.from_kernel(experts))
        shared = [w.share(one) for one in (tokens, choices, weights, matrices)]
        out = w.empty(tokens.shape)
        w.run(layer(handle, *shared, out))
        deviation = np.abs(out - plain_numpy(tokens, choices, weights, matrices)).max()
    print(f"{chips * count} tokens on {chips} chips")
    for number, tokens_of in enumerate(np.bincount(choices.ravel(), minlength=chips)):
        print(f"expert {number}: {tokens_of} tokens")
    print(f"deviation from numpy: {deviation:.1e}")
    if not deviation < TOLERANCE:
        sys.exit("the result deviates too much")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
