"""Programs whose tasks run at two endpoints, at their sub workers, and here; for recordings."""

import contextlib

import numpy as np

from simpler_ref import CallConfig, ContinuousTensor, DataType, Worker
from simpler_ref.remote import ProcessFleet

from . import far_side
from .endpoints import COUNT, INOUT, OUTPUT, Program, fresh
from .support import make_args


class Runtime:
    """Carries operations out by tasks: at two endpoints, at their sub workers, and here."""

    def __init__(self, worker, handles):
        self.worker, self.handles = worker, handles
        self.orch, self.number = None, 0

    def begin(self):
        self.orch.scope_begin()

    def end(self):
        self.orch.scope_end()

    def mix(self, where, source, target):
        """Assign a tensor to another, at a sub worker here or of an endpoint."""
        args = make_args((source, INOUT), (target, INOUT), scalars=[1])
        self.orch.submit_sub(self.handles["mix", where], args)

    def output(self, where, source):
        args = make_args((source, INOUT), (fresh(), OUTPUT), scalars=[1])
        self.orch.submit_sub(self.handles["mix", where], args)
        return args.tensor(1)

    def buffer(self, source):
        made = self.orch.alloc((COUNT,), np.float32)
        self.mix("far", source, made)
        return made

    def add(self, where, source, target):
        args = make_args((source, INOUT), (target, INOUT))
        config = CallConfig(block_dim=3)
        self.orch.submit_next_level(self.handles["add"], args, config, worker=where)

    def add_number(self, where, target):
        args = make_args((target, INOUT), scalars=[self.number])
        self.orch.submit_next_level(self.handles["number"], args, worker=where)

    def add_together(self, *pairs):
        members = [make_args((source, INOUT), (target, INOUT)) for source, target in pairs]
        self.orch.submit_next_level_group(self.handles["add"], members)


class Sequential:
    """Carries them out one after the other: the oracle."""

    def __init__(self, number):
        self.number = number

    def begin(self):
        pass

    end = begin

    def mix(self, where, source, target):
        target[...] = source % 1009

    def output(self, where, source):
        return source % 1009

    def buffer(self, source):
        return source % 1009

    def add(self, where, source, target):
        target[...] = (target + source) % 1024

    def add_number(self, where, target):
        target += np.float32(self.number)

    def add_together(self, *pairs):
        for source, target in pairs:
            self.add(-1, source, target)


KINDS = [
    *("begin", "end", "mix", "mix", "output", "buffer", "add", "add", "add_number", "add_together")
]


def drawn(rng, length):
    """Return a random program: kind, where, and four tensors of those that there are then."""
    ops = []
    for _ in range(length):
        kind = rng.choice(KINDS)
        where = rng.choice(["here", "far"]) if kind in ("mix", "output") else rng.choice([-1, 0, 1])
        ops.append((kind, where, [rng.randrange(100) for _ in range(4)]))
    return ops


def play(ops, on, known):
    """Carry a program out; memory of a scope is used within it."""
    scopes = [list(known)]
    for kind, where, numbers in ops:
        usable = [one for scope in scopes for one in scope]
        a, b, c, d = (k % len(usable) for k in numbers)
        source, target = usable[a], usable[b]
        if kind == "begin" and len(scopes) < 4:
            on.begin()
            scopes.append([])
        elif kind == "end" and len(scopes) > 1:
            on.end()
            scopes.pop()
        elif kind == "buffer":
            scopes[-1].append(on.buffer(source))
        elif kind == "output":
            scopes[-1].append(on.output(where, source))
        elif kind == "add_number":
            on.add_number(where, target)
        elif kind in ("mix", "add") and a != b:
            getattr(on, kind)(where, source, target)
        elif len({a, b, c, d}) == 4 and kind == "add_together":
            on.add_together((source, target), (usable[c], usable[d]))


def halves(tensor):
    """Return the halves of a tensor of 2 COUNT numbers."""
    return [
        ContinuousTensor.make(tensor.data + 4 * COUNT * k, (COUNT,), DataType.FLOAT32)
        for k in range(2)
    ]


@contextlib.contextmanager
def opened(**options):
    """Yield a `Runtime` with two endpoints; each has a sub worker, as this machine has."""
    worker = Worker(level=4, num_sub_workers=1, **options)
    made = Program(worker=worker, num_sub_workers=1)
    handles = {
        ("mix", "here"): worker.register(far_side.mix),
        ("mix", "far"): made.handle(far_side.mix, inner=True),
        "add": made.handle(far_side.add_first),
        "number": made.handle(far_side.add_scalar),
    }
    with made.started():
        yield Runtime(worker, handles)


def given(worker, seed, number):
    """Return arrays and arguments with them; the first array is twice as long."""
    rng = np.random.default_rng(seed)
    arrays = [worker.share(rng.integers(0, 9, n).astype(np.float32)) for n in (2 * COUNT, COUNT)]
    return arrays, make_args(*((one, INOUT) for one in arrays), scalars=[number])


@contextlib.contextmanager
def fleet(**options):
    """Yield a Worker with two endpoints of one sub worker each."""
    with Worker(fleet=ProcessFleet(), endpoints=2, num_sub_workers=1, **options) as worker:
        yield worker
