"""A feed-forward layer over several simulated chips: gelu(x W₁) W₂ with the weights split in slices.

Each chip keeps its columns of W₁ and its rows of W₂ in its own memory. A batch of tokens goes to all
chips at once, as a group: one task with a member per chip. A second group multiplies by W₂, which
gives one partial result per chip, and a sub worker adds these up, while the chips process the next
batch. Intermediate buffers come from rings and return to them automatically.
"""

import argparse
import math
import sys

import numpy as np

from simpler_ref import ContinuousTensor, DataType, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import ChipCallable, In, Out, core_kernel

TOLERANCE = 1e-4  # of 32-bit floats, for results around 1


# ---------------------------------------------------------------- what the chips run
@core_kernel(x=In("float32", 2), w=In("float32", 2), h=Out("float32", 2))
def matmul_gelu(x, w, h, block_idx, block_dim):
    """H := gelu(x w); a block computes every block_dim-th row."""
    for row in range(block_idx, h.shape[0], block_dim):
        h[row] = 0
        for k in range(w.shape[0]):
            for column in range(w.shape[1]):
                h[row, column] += x[row, k] * w[k, column]
        for column in range(w.shape[1]):
            a = h[row, column]
            inner = math.sqrt(2 / math.pi) * (a + 0.044715 * a * a * a)
            h[row, column] = 0.5 * a * (1 + math.tanh(inner))


@core_kernel(h=In("float32", 2), w=In("float32", 2), y=Out("float32", 2))
def matmul(h, w, y, block_idx, block_dim):
    """Y := h w."""
    for row in range(block_idx, y.shape[0], block_dim):
        y[row] = 0
        for k in range(w.shape[0]):
            for column in range(w.shape[1]):
                y[row, column] += h[row, k] * w[k, column]


# ---------------------------------------------------------------- what the sub workers run
def add_up(args):
    """Y := the sum of all partial results, which are the first tensors."""
    last = args.tensor_count() - 1
    y = args.tensor(last).numpy()
    y[...] = args.tensor(0).numpy()
    for i in range(1, last):
        y += args.tensor(i).numpy()


# ---------------------------------------------------------------- the layer
class FeedForward:
    """The weights on the chips, and the orchestration function."""

    def __init__(self, worker, w1, w2, chips):
        self.chips = range(chips)
        self.first = worker.register(ChipCallable.from_kernel(matmul_gelu))
        self.second = worker.register(ChipCallable.from_kernel(matmul))
        self.add_up = worker.register(add_up)
        self.w1 = [put(worker, c, part) for c, part in enumerate(np.array_split(w1, chips, axis=1))]
        self.w2 = [put(worker, c, part) for c, part in enumerate(np.array_split(w2, chips, axis=0))]

    def run(self, orch, batches, config):
        """Submit everything: the orchestration function given to `Worker.run`."""
        for x, y in batches:
            with orch.scope():  # the buffers of a batch are freed when the batch is done
                hidden = [self.multiply_first(x, chip) for chip in self.chips]
                orch.submit_next_level_group(self.first, hidden, config, workers=self.chips)

                partial = [orch.alloc(y.shape, DataType.FLOAT32) for _ in self.chips]
                products = [self.multiply_second(hidden, partial, chip) for chip in self.chips]
                orch.submit_next_level_group(self.second, products, config, workers=self.chips)

                total = TaskArgs()
                for one in partial:
                    total.add_tensor(one, T.INPUT)
                total.add_tensor(y, T.OUTPUT_EXISTING)
                orch.submit_sub(self.add_up, total)

    def multiply_first(self, x, chip):
        member = TaskArgs()
        member.add_tensor(x, T.INPUT)
        member.add_tensor(self.w1[chip], T.INPUT)
        shape = (len(x), self.w1[chip].shapes[1])  # without an address: the ring provides memory
        member.add_tensor(ContinuousTensor.make(0, shape, DataType.FLOAT32), T.OUTPUT)
        return member

    def multiply_second(self, hidden, partial, chip):
        member = TaskArgs()
        member.add_tensor(hidden[chip].tensor(2), T.INPUT)  # the address that the ring provided
        member.add_tensor(self.w2[chip], T.INPUT)
        member.add_tensor(partial[chip], T.INOUT)  # a buffer from alloc: INOUT keeps it alive
        return member


def put(worker, chip, array):
    """Copy an array to a chip permanently and return the tensor there."""
    shared = worker.share(array)  # contiguous, and visible to the chip's process
    address = worker.malloc(shared.nbytes, chip)
    worker.copy_to(address, shared.ctypes.data, shared.nbytes, chip)
    return ContinuousTensor.make(address, shared.shape, shared.dtype, child_memory=True)


def plain_numpy(x, w1, w2):
    """Return the same result, without chips."""
    a = x @ w1
    return (0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))) @ w2


# ---------------------------------------------------------------- command line
def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", type=positive, default=2, help="that share the weights (2)")
    parser.add_argument("--width", type=positive, default=256, help="of a token (256)")
    parser.add_argument("--hidden", type=positive, default=1024, help="columns of W₁ (1024)")
    parser.add_argument("--tokens", type=positive, default=64, help="of a batch (64)")
    parser.add_argument("--batches", type=positive, default=16, help="(16)")
    options = parser.parse_args()
    chips, width, hidden = options.chips, options.width, options.hidden
    if chips > min(16, hidden):
        parser.error(f"--chips {chips} is too many: at most 16, and one per hidden column")

    rng = np.random.default_rng(0)
    w1 = rng.standard_normal((width, hidden), np.float32) / math.sqrt(width)
    w2 = rng.standard_normal((hidden, width), np.float32) / math.sqrt(hidden)
    print(
        f"{options.batches} batches of {options.tokens} tokens, "
        f"{width} → {hidden} → {width} over {chips} chips"
    )
    with Worker(level=3, device_ids=range(chips), num_sub_workers=1) as w:
        layer = FeedForward(w, w1, w2, chips)
        shape = (options.tokens, width)
        batches = [
            (w.share(rng.standard_normal(shape, np.float32)), w.empty(shape))
            for _ in range(options.batches)
        ]
        timing = w.run(layer.run, batches)
        deviation = max(abs(y - plain_numpy(x, w1, w2)).max() for x, y in batches)
    agrees = deviation <= TOLERANCE  # False for a nan, too

    weights = (w1.nbytes + w2.nbytes) / chips
    print(f"{'tasks':<28}{timing.tasks}, buffers from alloc included")
    print(f"{'edges':<28}{timing.edges}")
    print(f"{'weights on each chip':<28}{weights / 2**10:.1f} KiB, copied there once")
    print(f"{'between tasks, at most':<28}{timing.ring_peak_bytes[1] / 2**10:.1f} KiB")
    print(f"{'time':<28}{timing.host_wall_ns / 1e6:.1f} ms")
    print(f"{'busiest chip':<28}{timing.device_wall_ns / 1e6:.1f} ms")
    print(f"{'deviation from numpy':<28}{deviation:.1e} at most, {TOLERANCE:.0e} allowed")
    if not agrees:
        print("feed_forward.py: the result deviates too much from numpy's", file=sys.stderr)
    return 0 if agrees else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
