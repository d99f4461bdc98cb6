"""Replays in parts: random programs over one to three endpoints, and cancelled replays."""

import random
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from simpler_ref import (
    ContinuousTensor,
    RemoteWorkerSpec,
    Worker,
)
from simpler_ref.orch import parted
from simpler_ref.remote import ProcessFleet
from simpler_ref.task_interface import TensorArgType as T
from tests.support import Terminated, make_args, terminated_after

COUNT = 16
INPUT, INOUT, EXISTING, OUTPUT = T.INPUT, T.INOUT, T.OUTPUT_EXISTING, T.OUTPUT

pytestmark = pytest.mark.timeout(180)


# ---------------------------------------------------------------- what endpoints run
def blend(args):
    """The second tensor becomes the mean of both, plus the scalars."""
    source, target = (args.tensor(i).numpy() for i in range(2))
    target[...] = (source + target) / 2 + args.scalar(0) + args.scalar(1)


def assign(args):
    """The second tensor is made of the first one."""
    source, target = (args.tensor(i).numpy() for i in range(2))
    target[...] = source * 2 - args.scalar(0)


# ---------------------------------------------------------------- Workers, and what they are asked
@contextmanager
def fleet(endpoints=2, subs=1, parent=None, **spec):
    """Yield a Worker with endpoints; `parent` are more of its own options."""
    made = RemoteWorkerSpec(ProcessFleet(), num_sub_workers=subs, serialized=True, **spec)
    with Worker(fleet=made, endpoints=endpoints, **(parent or {})) as worker:
        yield worker


@pytest.fixture
def w():
    with fleet() as worker:
        yield worker


@pytest.fixture(autouse=True)
def requests(monkeypatch):
    """Give a list of what parts were asked for; a test may clear it."""
    seen, real = [], parted.PART_REQUEST

    class Noting:
        @staticmethod
        def encode(request):
            seen.append(request)
            return real.encode(request)

    monkeypatch.setattr(parted, "PART_REQUEST", Noting)
    return seen


def only(worker, function, place):
    """Register a function for one endpoint; return its handle."""

    def there(args, _place=place):
        return function(args)

    return worker.register(there, workers=[place], inner=True)


def numbers(worker, scalar, count=COUNT, dtype=np.float64):
    """Return an array of zeros and arguments with it."""
    array = worker.share(np.zeros(count, dtype))
    return array, make_args((array, INOUT), scalars=[scalar])


# ---------------------------------------------------------------- random programs
class Tasks:
    """Carries operations out by tasks at endpoints."""

    def __init__(self, orch, handles, dtype, scalars):
        self.orch, self.handles, self.dtype, self.scalars = orch, handles, dtype, scalars

    def begin(self):
        self.orch.scope_begin()

    def end(self):
        self.orch.scope_end()

    def read(self, constant, target):
        self.blend(constant, target, INPUT)

    def blend(self, source, target, source_tag=INOUT):
        args = make_args((source, source_tag), (target, INOUT), scalars=self.scalars)
        self.orch.submit_sub(self.handles["blend"], args)

    def assign(self, source, target, tag=INOUT):
        args = make_args((source, INOUT), (target, tag), scalars=self.scalars[:1])
        self.orch.submit_sub(self.handles["assign"], args)
        return args.tensor(1)

    def output(self, source):
        return self.assign(source, ContinuousTensor.make(0, (COUNT,), self.dtype), OUTPUT)

    def buffer(self, source):
        made = self.orch.alloc((COUNT,), self.dtype)
        self.assign(source, made, EXISTING)
        return made


class Sequential:
    """Carries them out one after the other: the oracle."""

    def __init__(self, scalars):
        self.scalars = scalars

    def begin(self):
        pass

    end = begin

    def blend(self, source, target):
        target[...] = (source + target) / 2 + self.scalars[0] + self.scalars[1]

    read = blend

    def assign(self, source, target):
        target[...] = source * 2 - self.scalars[0]

    def output(self, source):
        return source * 2 - self.scalars[0]

    buffer = output


KINDS = ["begin", "end", "blend", "blend", "read", "assign", "output", "buffer"]


def drawn(rng, length):
    """Return a random program: kind, and two tensors of those that there are then."""
    return [(rng.choice(KINDS), rng.randrange(100), rng.randrange(100)) for _ in range(length)]


def play(ops, on, known, constant):
    """Carry a program out; memory of a scope is used within it. The constant is never written."""
    scopes = [list(known)]
    for kind, *which in ops:
        usable = [one for scope in scopes for one in scope]
        source, target = (usable[i % len(usable)] for i in which)
        if kind == "begin" and len(scopes) < 4:
            on.begin()
            scopes.append([])
        elif kind == "end" and len(scopes) > 1:
            on.end()
            scopes.pop()
        elif kind in ("output", "buffer"):
            scopes[-1].append(getattr(on, kind)(source))
        elif kind == "read":
            on.read(constant, target)
        elif kind in ("blend", "assign") and source is not target:
            getattr(on, kind)(source, target)


def halves(tensor, dtype):
    step = COUNT * np.dtype(dtype).itemsize
    return [ContinuousTensor.make(tensor.data + i * step, (COUNT,), dtype) for i in range(2)]


@pytest.fixture(
    scope="module",
    params=[(1, 1, True), (2, 1, True), (2, 2, False), (3, 2, True)],
    ids="{0[0]} endpoints, {0[1]} subs, secure {0[2]}".format,
)
def endpoints(request):
    count, subs, secure = request.param
    with fleet(count, subs, secure=secure) as worker:
        worker.start()
        worker.handles = {one.__name__: worker.register(one) for one in (blend, assign)}
        yield worker


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(one, marks=pytest.mark.long) for one in range(3, 40))]
)
def test_random_programs_are_replayed_in_parts_as_they_would_run_one_by_one(
    seed, endpoints, requests
):
    worker, rng = endpoints, random.Random(seed)
    dtype = [np.float64, np.complex128, np.float32][seed % 3]
    ops = drawn(rng, 60)
    fixed = worker.share(np.arange(COUNT).astype(dtype))

    def given(number):
        scalars = [number, number / 4 - 1] if number % 2 else [number / 2, 3 - number]
        arrays = [worker.share(np.full(n * COUNT, number + n, dtype)) for n in (2, 1)]
        return scalars, arrays, make_args(*((one, INOUT) for one in arrays), scalars=scalars)

    def orch_fn(orch, args, config):
        scalars = [args.scalar(0), args.scalar(1)]
        known = [*halves(args.tensor(0), dtype), args.tensor(1)]
        constant = ContinuousTensor.make(fixed.ctypes.data, (COUNT,), dtype)
        play(ops, Tasks(orch, worker.handles, dtype, scalars), known, constant)

    graph = worker.record(orch_fn, given(1)[2])
    for number in range(6):
        fixed[:] = number
        scalars, arrays, args = given(number)
        first, second = (one.copy() for one in arrays)
        play(ops, Sequential(scalars), [first[:COUNT], first[COUNT:], second], fixed)
        requests.clear()
        graph.run(args)
        assert bool(requests) == (number > 0)
        for one, right in zip(arrays, (first, second), strict=True):
            np.testing.assert_array_equal(one, right)


# ---------------------------------------------------------------- cancelled
def pause(args):
    """Take a while, add one, and make a mark in the file that is named."""
    time.sleep(args.scalar(0))
    args.tensor(0).numpy()[...] += 1
    with open(bytes(args.tensor(1).numpy()).rstrip(b"\0"), "a") as file:
        file.write(".")


@pytest.mark.parametrize("by", ["exception", "SIGINT"])
def test_a_replay_that_is_cancelled_ends_its_parts_at_their_next_gift(w, by, tmp_path):
    handles = [only(w, pause, place) for place in range(2)]
    log = tmp_path / "log"
    path = w.share(np.frombuffer(str(log).encode().ljust(200, b"\0"), np.uint8))
    count = 300

    def of(count):
        def orch_fn(orch, args, config):
            for i in range(count):
                task = make_args((args.tensor(0), INOUT), (path, INPUT), scalars=[args.scalar(0)])
                orch.submit_sub(handles[i % 2], task)

        graph = w.record(orch_fn, numbers(w, 0.0)[1])
        for _ in range(2):
            graph.run()
        return graph

    long, short = of(count), of(2)
    log.unlink()
    _, args = numbers(w, 0.05)
    if by == "SIGINT":
        timer = threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            long.run(args)
        timer.join()
    else:
        with pytest.raises(Terminated), terminated_after(0.5):
            long.run(args)
    assert len(log.read_text()) < count
    before = len(log.read_text())
    y, args = numbers(w, 0.0)
    for _ in range(2):
        short.run(args)
    assert y.tolist() == [4] * COUNT
    assert len(log.read_text()) == before + 4, "a part went on"
