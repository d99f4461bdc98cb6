"""All-reduce over simulated chips: every chip has an array, and ends with the sum of all of them.

The arrays are in the chips' windows of a communication domain, where kernels read and write those of the
others. The direct way: each chip adds up one part of all arrays, and writes the sum into all of them. The
ring: pieces travel from neighbour to neighbour, first to be added up, then as sums. For comparison the
chips copy a whole array from their neighbour: as much traffic as an all-reduce over two chips has.
"""

import argparse
import sys
import time

import numpy as np

from simpler_ref import CallConfig, ContinuousTensor, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import (
    ChipCallable,
    InOut,
    Scalar,
    barrier,
    core_kernel,
    domain_rank,
    domain_size,
    get,
    notify,
    peer,
    put,
    wait,
)
from simpler_ref.task_interface import CommBufferSpec

PIECE = 1 << 17  # elements that stay in a cache between the sum and its copies
TURNS = 5
ONE_BLOCK = CallConfig(block_dim=1)  # the block that waits for those of the other chips


# ---------------------------------------------------------------- what the chips run
ARGUMENTS = {
    "x": InOut("float32"),
    "inbox": InOut("float32"),
    "signals": InOut("int32"),
    "ctx": Scalar("uint64"),
    "turn": Scalar("int64"),
}


@core_kernel(**ARGUMENTS)
def direct(x, inbox, signals, ctx, turn):
    """Add up this chip's part of all arrays, and put the sum into all of them."""
    rank, size = domain_rank(ctx), domain_size(ctx)
    status = barrier(ctx)
    if status != 0:
        return status
    end = x.size * (rank + 1) // size
    for first in range(x.size * rank // size, end, PIECE):
        mine = x[first : min(first + PIECE, end)]
        for step in range(1, size):
            theirs = peer(ctx, (rank + step) % size, mine)
            for i in range(mine.size):
                mine[i] += theirs[i]
        for step in range(1, size):
            status = put(ctx, (rank + step) % size, mine, mine)
            if status != 0:
                return status
    return barrier(ctx)


@core_kernel(**ARGUMENTS)
def ring(x, inbox, signals, ctx, turn):
    """Send pieces to the next chip: for size − 1 steps it adds them to its own, then it keeps them."""
    rank, size = domain_rank(ctx), domain_size(ctx)
    following = (rank + 1) % size
    sent = turn * (2 * (size - 1)) * (-(-x.size // (size * PIECE)))  # in the turns before
    status = barrier(ctx)  # all arrays are there
    for block in range(0, x.size, size * PIECE):
        for step in range(2 * (size - 1)):
            if status == 0 and step > 0:
                status = wait(ctx, signals, 0, sent)
            if status != 0:
                return status
            first = min(block + (rank - step) % size * PIECE, x.size)
            mine = x[first : min(first + PIECE, x.size)]
            theirs = inbox[(step - 1) * PIECE : (step - 1) * PIECE + mine.size]
            if 0 < step < size:
                for i in range(mine.size):
                    mine[i] += theirs[i]
            if step < size - 1:  # each step has a place of its own there
                status = put(ctx, following, inbox[step * PIECE : step * PIECE + mine.size], mine)
            else:
                status = put(ctx, following, mine, mine)
            if status == 0:
                status = notify(ctx, following, signals, 0)
            sent += 1
        if status == 0:
            status = wait(ctx, signals, 0, sent)
    return status


@core_kernel(**ARGUMENTS)
def copy(x, inbox, signals, ctx, turn):
    """Copy the next chip's array, while the others do the same."""
    status = barrier(ctx)
    if status != 0:
        return status
    status = get(ctx, (domain_rank(ctx) + 1) % domain_size(ctx), inbox[: x.size], x)
    if status != 0:
        return status
    return barrier(ctx)


WAYS = {"copies": copy, "direct": direct, "ring": ring}


# ---------------------------------------------------------------- the graph
def reduction(handle, arrays, results, times):
    """Return the orchestration function: several turns of one kernel, each on the same arrays."""
    chips, size = range(len(arrays)), arrays.shape[1]
    specs = [
        CommBufferSpec("x", "float32", size),
        CommBufferSpec("inbox", "float32", max(size, len(arrays) * PIECE)),
        CommBufferSpec("signals", "int32", 1),
    ]

    def member(context, turn):
        args = TaskArgs()
        for one in specs:
            at = context.buffer_ptrs[one.name]
            there = ContinuousTensor.make(at, (one.count,), one.dtype, child_memory=True)
            args.add_tensor(there, T.INOUT)
        args.add_scalar(context.device_ctx)
        args.add_scalar(turn)
        return args

    def orchestrate(orch, args, config):
        window = sum(one.nbytes for one in specs)
        with orch.allocate_domain(
            name="all", workers=chips, window_size=window, buffers=specs
        ) as domain:
            places = [domain[chip].buffer_ptrs["x"] for chip in chips]
            for turn in range(TURNS):
                for chip in chips:
                    source = arrays[chip].ctypes.data
                    orch.copy_to(chip, dst=places[chip], src=source, size=arrays[chip].nbytes)
                start = time.perf_counter()
                members = [member(domain[chip], turn) for chip in chips]
                orch.submit_next_level_group(handle, members, ONE_BLOCK, workers=chips)
                orch.drain()
                times.append(time.perf_counter() - start)
            for chip in chips:
                target = results[chip].ctypes.data
                orch.copy_from(chip, dst=target, src=places[chip], size=results[chip].nbytes)

    return orchestrate


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", type=positive, default=2, help="(2)")
    parser.add_argument("--size", type=positive, default=1 << 22, help="elements (4194304: 16 MiB)")
    options = parser.parse_args()
    if options.chips > 16:
        parser.error(f"--chips {options.chips} is too many: at most 16")

    rng = np.random.default_rng(0)
    values = rng.integers(-1000, 1000, (options.chips, options.size)).astype(np.float32)
    wanted = values.sum(axis=0)  # whole numbers: every order has the same sum
    print(f"{values[0].nbytes} bytes on each of {options.chips} chips")
    all_right = True
    with Worker(level=3, device_ids=range(options.chips)) as w:
        arrays, results = w.share(values), w.empty(values.shape)
        handles = {name: w.register(ChipCallable.from_kernel(one)) for name, one in WAYS.items()}
        fastest = {}
        for name, handle in handles.items():
            times = []
            w.run(reduction(handle, arrays, results, times))
            fastest[name] = min(times)
            right = np.array_equal(results, arrays if name == "copies" else [wanted] * len(values))
            all_right &= right
            ratio = fastest[name] / fastest["copies"]
            print(f"{name:<8}{fastest[name] * 1e3:>9.2f} ms{ratio:>7.2f} × the copies")
    print(f"equal to numpy: {'yes' if all_right else 'NO'}")
    return 0 if all_right else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
