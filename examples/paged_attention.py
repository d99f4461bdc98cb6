"""Decoding with paged attention over two simulated chips: many small tasks, a cache that stays.

Sequences grow by a token per step. The keys and values of their tokens are in pages of chip memory; a
block table lists the pages of a sequence in order. Each chip has its share of the heads, and so a
cache of its own. A step is one run. For every sequence and chip it appends the new token to the
last page, processes all pages, and divides by the sum of weights. When a sequence is long
enough, a new one reuses its pages. Plain numpy also computes each step.
"""

import argparse
import math
import sys

import numpy as np

from simpler_ref import CallConfig, ContinuousTensor, DataType, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import ChipCallable, In, InOut, Out, Scalar, core_kernel

CHIPS = 2
PAGE = 16  # tokens of a page
SIZE = 32  # numbers of a key, of a value
TOLERANCE = 1e-5
FLOAT_BYTES = 4


# ---------------------------------------------------------------- what the chips run
# Pages are [token, head, number]; a state is, per head: the largest score, the sum of weights, and the
# weighted sum of values, so far.


@core_kernel(
    key=In("float32", 2),
    value=In("float32", 2),
    keys=InOut("float32", 3),
    values=InOut("float32", 3),
    row=Scalar("int64"),
)
def append(key, value, keys, values, row, block_idx, block_dim):
    """Write a token's key and value to a row of its page."""
    for head in range(block_idx, keys.shape[1], block_dim):
        for i in range(keys.shape[2]):
            keys[row, head, i] = key[head, i]
            values[row, head, i] = value[head, i]


@core_kernel(
    query=In("float32", 2),
    keys=In("float32", 3),
    values=In("float32", 3),
    state=InOut("float32", 2),
    page=Scalar("int64"),
    rows=Scalar("int64"),
)
def attend(query, keys, values, state, page, rows, block_idx, block_dim):
    """Add a page to the state: a softmax over scores that arrive one by one."""
    heads, size = query.shape
    for head in range(block_idx, heads, block_dim):
        if page == 0:
            state[head] = 0
            state[head, 0] = -math.inf
        for row in range(rows):
            score = np.float32(0)
            for i in range(size):
                score += query[head, i] * keys[row, head, i]
            score /= math.sqrt(size)
            largest = max(state[head, 0], score)
            shrink, weight = math.exp(state[head, 0] - largest), math.exp(score - largest)
            state[head, 0] = largest
            state[head, 1] = state[head, 1] * shrink + weight
            for i in range(size):
                state[head, 2 + i] = state[head, 2 + i] * shrink + weight * values[row, head, i]


@core_kernel(state=In("float32", 2), out=Out("float32", 2))
def finish(state, out, block_idx, block_dim):
    """Divide the weighted sum by the sum of weights."""
    for head in range(block_idx, out.shape[0], block_dim):
        for i in range(out.shape[1]):
            out[head, i] = state[head, 2 + i] / state[head, 1]


# ---------------------------------------------------------------- the cache
class Cache:
    """Pages in the memory of every chip, and their owners."""

    def __init__(self, worker, pages, heads, sequences):
        self.worker = worker
        self.page = (PAGE, heads, SIZE)
        self.state = (heads, 2 + SIZE)
        self.bytes = FLOAT_BYTES * math.prod(self.page)
        self.state_bytes = FLOAT_BYTES * math.prod(self.state)
        self.free = list(range(pages))
        self.keys = [worker.malloc(pages * self.bytes, chip) for chip in range(CHIPS)]
        self.values = [worker.malloc(pages * self.bytes, chip) for chip in range(CHIPS)]
        self.states = [worker.malloc(sequences * self.state_bytes, chip) for chip in range(CHIPS)]

    def tensors(self, chip, page):
        """Return the keys and the values of a page."""
        at = page * self.bytes
        return [on_chip(base[chip] + at, self.page) for base in (self.keys, self.values)]

    def state_tensor(self, chip, sequence):
        return on_chip(self.states[chip] + sequence * self.state_bytes, self.state)

    def write(self, chip, page, keys, values):
        """Copy the keys and values of a page to a chip; part of a page is enough."""
        for tensor, array in zip(self.tensors(chip, page), (keys, values), strict=True):
            shared = self.worker.share(array)
            self.worker.copy_to(tensor.data, shared.ctypes.data, shared.nbytes, chip)


def on_chip(address, shape):
    return ContinuousTensor.make(address, shape, DataType.FLOAT32, child_memory=True)


class Sequence:
    """The block table of a sequence; and its keys and values, for the comparison with numpy."""

    def __init__(self, cache, keys, values):
        self.cache = cache
        self.keys, self.values = list(keys), list(values)  # of each token: [chip, head, number]
        self.table = []
        for start in range(0, len(keys), PAGE):
            page = self.add_page()
            for chip in range(CHIPS):
                tokens = slice(start, start + PAGE)
                cache.write(chip, page, keys[tokens, chip], values[tokens, chip])

    def __len__(self):
        return len(self.keys)

    def add_page(self):
        self.table.append(self.cache.free.pop())
        return self.table[-1]

    def append(self, key, value):
        """Record a token; return its row in the last page."""
        if len(self) == PAGE * len(self.table):
            self.add_page()
        self.keys.append(key)
        self.values.append(value)
        return (len(self) - 1) % PAGE

    def end(self):
        """Free the pages."""
        self.cache.free += self.table

    def attention(self, query):
        """Return the expected result of a step, from plain numpy."""
        scores = np.einsum("chi,tchi->tch", query, np.array(self.keys)) / math.sqrt(SIZE)
        weights = np.exp(scores - scores.max(0))
        return np.einsum("tch,tchi->chi", weights / weights.sum(0), np.array(self.values))


# ---------------------------------------------------------------- a step
class Decoder:
    """The arrays of a step, each [sequence, chip, head, number], and the orchestration function."""

    def __init__(self, worker, cache, sequences, heads):
        self.cache = cache
        self.append, self.attend, self.finish = (
            worker.register(ChipCallable.from_kernel(kernel)) for kernel in (append, attend, finish)
        )
        shape = (sequences, CHIPS, heads, SIZE)
        self.query, self.key, self.value, self.out = (worker.empty(shape) for _ in range(4))

    def step(self, orch, sequences, config):
        """Submit everything: the orchestration function given to `Worker.run`."""

        def submit(handle, chip, tensors, scalars=()):
            task = TaskArgs()
            for tensor, tag in tensors:
                task.add_tensor(tensor, tag)
            for scalar in scalars:
                task.add_scalar(scalar)
            orch.submit_next_level(handle, task, config, worker=chip)

        for s, sequence in enumerate(sequences):
            row = sequence.append(self.key[s].copy(), self.value[s].copy())
            for chip in range(CHIPS):
                pages = [self.cache.tensors(chip, page) for page in sequence.table]
                keys, values = pages[-1]
                token = [(self.key[s, chip], T.INPUT), (self.value[s, chip], T.INPUT)]
                submit(self.append, chip, [*token, (keys, T.INOUT), (values, T.INOUT)], [row])

                query = (self.query[s, chip], T.INPUT)
                state = self.cache.state_tensor(chip, s)
                for page, (keys, values) in enumerate(pages):
                    rows = min(PAGE, len(sequence) - page * PAGE)
                    tensors = [query, (keys, T.INPUT), (values, T.INPUT), (state, T.INOUT)]
                    submit(self.attend, chip, tensors, [page, rows])
                out = (self.out[s, chip], T.OUTPUT_EXISTING)
                submit(self.finish, chip, [(state, T.INPUT), out])


# ---------------------------------------------------------------- command line
def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=positive, default=24, help="tokens per sequence (24)")
    parser.add_argument("--sequences", type=positive, default=8, help="at a time (8)")
    parser.add_argument("--heads", type=positive, default=4, help="of each chip (4)")
    parser.add_argument("--length", type=positive, default=96, help="at which one ends (96)")
    options = parser.parse_args()
    heads, count = options.heads, options.sequences
    most = count * -(-options.length // PAGE)

    rng = np.random.default_rng(0)
    print(
        f"{count} sequences of up to {options.length} tokens, {CHIPS} chips with {heads} heads each, "
        f"{most} pages of {PAGE} tokens"
    )
    print(
        f"{'step':>4}{'tokens':>9}{'pages':>8}{'ended':>8}{'tasks':>8}{'time':>12}{'deviation':>14}"
    )
    with Worker(level=3, device_ids=range(CHIPS)) as w:
        cache = Cache(w, most, heads, count)
        decoder = Decoder(w, cache, count, heads)

        def new_sequence():
            shape = (rng.integers(options.length), CHIPS, heads, SIZE)
            return Sequence(cache, *(rng.standard_normal(shape, np.float32) for _ in range(2)))

        sequences = [new_sequence() for _ in range(count)]
        ended, worst, seconds, tasks = 0, 0.0, 0.0, 0
        for step in range(options.steps):
            for s, sequence in enumerate(sequences):
                if len(sequence) == options.length:
                    sequence.end()
                    sequences[s] = new_sequence()
                    ended += 1
            for array in (decoder.query, decoder.key, decoder.value):
                array[...] = rng.standard_normal(array.shape, np.float32)
            decoder.out[...] = np.nan
            timing = w.run(decoder.step, sequences, CallConfig(block_dim=1))

            expected = [one.attention(decoder.query[s]) for s, one in enumerate(sequences)]
            deviation = abs(decoder.out - expected).max()
            worst = np.maximum(worst, deviation)  # a nan stays
            tasks += timing.tasks
            seconds += timing.host_wall_ns / 1e9
            print(
                f"{step:>4}{sum(map(len, sequences)):>9}{most - len(cache.free):>8}{ended:>8}"
                f"{timing.tasks:>8}{timing.host_wall_ns / 1e6:>9.1f} ms{deviation:>14.1e}",
                flush=True,
            )
    agrees = worst <= TOLERANCE
    print(f"{tasks} tasks in {seconds:.2f} s, {seconds / tasks * 1e6:.0f} µs per task")
    print(f"deviation from numpy: {worst:.1e} at most, {TOLERANCE:.0e} allowed")
    if not agrees:
        print("paged_attention.py: the result deviates too much from numpy's", file=sys.stderr)
    return 0 if agrees else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
