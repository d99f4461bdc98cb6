"""Random graphs on a real Worker: the arrays end as if the tasks had run one after the other.

The graphs are free of races, but only just: whatever order is needed follows from the tags and from
nothing else. A task that overwrites a buffer names the tokens of those who still read it, since a
write after a read makes no edge by itself. Some tasks are groups, whose members read what they like
and each write buffers of their own.
"""

import random
import time

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simpler_ref import ContinuousTensor, DataType, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit.kernel import INTERPRETED

WORDS = 12
FACTOR = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


# ---------------------------------------------------------------- what a task does, twice
def mix(args):
    """Fold what is read into a number, and leave it in what is written. Bits say which is which."""
    read, written, number = args.scalar(0), args.scalar(1), args.scalar(2)
    tensors = [args.tensor(i) for i in range(args.tensor_count())]
    for i, tensor in enumerate(tensors):
        if read >> i & 1:
            for value in tensor.numpy().tolist():
                number = (number * FACTOR + value) & MASK
    if number % 16 == 0:
        time.sleep(0.0003)  # so that others overtake whoever they may
    for i, tensor in enumerate(tensors):
        if written >> i & 1:
            tensor.numpy()[:] = [(number + i * FACTOR + k) & MASK for k in range(WORDS)]


def mix_lists(buffers, read, written, number):
    """The same on plain lists; `read` and `written` are (position among the tensors, buffer)."""
    for _, buffer in read:
        for value in buffers[buffer]:
            number = (number * FACTOR + value) & MASK
    for i, buffer in written:
        buffers[buffer] = [(number + i * FACTOR + k) & MASK for k in range(WORDS)]


# ---------------------------------------------------------------- programs
class Buffer:
    """A buffer, and the tokens of those who must come before its next writer."""

    def __init__(self, tensor, name, in_ring):
        self.tensor = tensor
        self.name = name
        self.in_ring = in_ring
        self.writer = None
        self.readers = []


class Program:
    """Builds one graph: submits each task, and does its work on the lists."""

    def __init__(self, orch, handle, shared, values, rng, workers, tokens=None):
        self.orch, self.handle, self.rng, self.workers = orch, handle, rng, workers
        self.values = values
        self.frames = [[Buffer(tensor, name, False) for name, tensor in enumerate(shared)]]
        self.names = len(shared)
        self.tokens = None if tokens is None else iter(tokens)

    def visible(self):
        return [buffer for frame in self.frames for buffer in frame]

    def step(self):
        what = self.rng.random()
        if what < 0.06 and len(self.frames) < 7:
            self.orch.scope_begin()
            self.frames.append([])
        elif what < 0.14 and len(self.frames) > 1:
            self.frames.pop()
            self.orch.scope_end()
        elif what < 0.22:
            self.alloc()
        else:
            self.submit()

    def alloc(self):
        buffer = Buffer(self.orch.alloc(WORDS, np.uint64), self.names, True)
        self.names += 1
        self.frames[-1].append(buffer)
        self.submit(first=buffer)  # it holds nothing yet, so somebody must write it

    def choose_tag(self, buffer, reads, writes):
        if reads and writes:
            return T.INOUT
        if buffer.in_ring:  # no other tags keep its memory
            return T.INOUT if writes else self.rng.choice([T.INPUT, T.INOUT])
        if reads:
            return self.rng.choice([T.INPUT, T.INPUT, T.INOUT, T.NO_DEP])
        return self.rng.choice([T.OUTPUT, T.OUTPUT_EXISTING, T.INOUT])

    def submit(self, first=None):
        """Submit a task, or a group, and do its work on the lists."""
        rng = self.rng
        members = rng.randint(1, self.workers) if rng.random() < 0.25 else 0
        free = [b for b in self.visible() if b is not first]
        taken, plans = [], []  # a buffer that one member writes is no other member's
        for m in range(max(1, members)):
            known = [b for b in free if b not in taken]
            chosen = rng.sample(known, rng.randint(0, min(4, len(known))))
            written = [b for b in chosen if rng.random() < 0.5]
            shared = [b for _, read, _ in plans for b in read]
            written = [b for b in written if b not in shared]
            read = [b for b in chosen if b not in written or rng.random() < 0.4]
            if first is not None and m == 0:
                written.append(first)
            taken += written
            plans.append((m, read, written))
        after = []
        made = [self.member(read, written, after) for _, read, written in plans]
        self.hand_over([args for args, *_ in made], members)
        token = made[0][0].tensor(made[0][1])
        for b, _, writes_key in after:
            if writes_key:
                b.writer, b.readers = token, []
        for b, reads, writes_key in after:
            if reads and not writes_key and b.writer is not token:
                b.readers.append(token)
        for _, _, read, written, number in made:
            mix_lists(self.values, read, written, number)

    def hand_over(self, made, members):
        if members:
            self.orch.submit_sub_group(self.handle, made)
        else:
            self.orch.submit_sub(self.handle, made[0])

    def member(self, read, written, after):
        """Return what one worker gets: arguments, place of its token, what it reads and writes."""
        rng = self.rng
        parts = []  # (tensor, tag, buffer, whether it is read, whether it is written)
        needed = []
        for b in {id(b): b for b in [*read, *written]}.values():
            reads, writes = b in read, b in written
            tag = self.choose_tag(b, reads, writes)
            writes_key = writes or tag == T.INOUT
            if tag in (T.NO_DEP, T.OUTPUT, T.OUTPUT_EXISTING) and b.writer is not None:
                needed.append(b.writer)
            if writes_key:
                needed += b.readers
            parts.append((b.tensor, tag, b, reads, writes))
            after.append((b, reads, writes_key))
        rng.shuffle(parts)
        args = TaskArgs()
        for tensor, tag, *_ in parts:
            args.add_tensor(tensor, tag)
        for token in {id(token): token for token in needed}.values():
            args.add_tensor(token, T.INPUT)
        mine = args.tensor_count()
        if self.tokens is None:
            args.add_tensor(ContinuousTensor.make(0, (WORDS,), DataType.UINT64), T.OUTPUT)
        else:
            args.add_tensor(next(self.tokens), T.OUTPUT_EXISTING)
        number = rng.getrandbits(64)
        args.add_scalar(sum(1 << i for i, part in enumerate(parts) if part[3]))
        args.add_scalar(sum(1 << i for i, part in enumerate(parts) if part[4]) | 1 << mine)
        args.add_scalar(number)
        reads_at = [(i, part[2].name) for i, part in enumerate(parts) if part[3]]
        writes_at = [(i, part[2].name) for i, part in enumerate(parts) if part[4]]
        return args, mine, reads_at, writes_at, number


@pytest.mark.spec("SPEED-DEPTH-1")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("workers", "depth", "mode", "check"),
    [
        (3, 4, "process", False),
        (2, 1, "thread", False),
        (3, 1, "process", True),
        pytest.param(1, 2, "thread", False, marks=pytest.mark.long),
        pytest.param(2, 2, "thread", True, marks=pytest.mark.long),
        pytest.param(2, 1, "process", False, marks=pytest.mark.long),
    ],
)
def test_the_arrays_end_as_if_the_tasks_had_run_one_after_the_other(workers, depth, mode, check):
    """Under `check`, tokens are arrays: an output is used no more when its scope has ended."""
    length = 15 if INTERPRETED else 120
    sizes = {"heap_ring_size": 1 << 20, "mailbox_depth": depth, "check": check}
    with Worker(3, num_sub_workers=workers, child_mode=mode, **sizes) as w:
        handle = w.register(mix)
        tokens = w.empty((2 * length * workers, WORDS), np.uint64) if check else None
        shared = [w.empty(WORDS, np.uint64) for _ in range(5)]

        @settings(max_examples=2 if INTERPRETED else 12, phases=[Phase.generate])
        @given(seed=st.integers(0, 2**32 - 1))
        def check(seed):
            rng = random.Random(seed)
            values = {name: [name * 100 + k for k in range(WORDS)] for name in range(len(shared))}
            for name, array in enumerate(shared):
                array[:] = values[name]

            def orch_fn(orch, *_):
                program = Program(orch, handle, shared, values, rng, workers, tokens)
                for _ in range(rng.randint(1, length)):
                    program.step()

            w.run(orch_fn)
            assert [array.tolist() for array in shared] == [values[i] for i in range(len(shared))]

        check()
