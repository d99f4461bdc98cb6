"""Programs for recordings that are replayed in parts: all tasks are for sub workers of endpoints."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import time
from typing import NamedTuple

import numpy as np

from simpler_ref import RemoteCallable

from .endpoints import COUNT, INOUT, INPUT, OUTPUT, fresh, opened
from .support import make_args


# ---------------------------------------------------------------- what tasks do
def blend(args):
    """Mix what is read, and two numbers, into what is changed and what is new.

    The first two scalars are how many tensors are read, and how many are changed.
    """
    reads, changed = args.scalar(0), args.scalar(1)
    tensors = [args.tensor(i).numpy() for i in range(args.tensor_count())]
    total = sum(tensors[:reads], np.zeros(1, np.float32)) + args.scalar(2)
    for one in tensors[reads : reads + changed]:
        one[...] = (2 * one + total) % 1009
    for one in tensors[reads + changed :]:
        one[...] = (total * args.scalar_float(3)) % 1009


def copy_to(args):
    args.tensor(1).numpy()[...] = args.tensor(0).numpy()


def copy_anywhere(args):
    copy_to(args)


def copy_again(args):
    copy_to(args)


def tell_core(args):
    """Work for a while; say how many cores this worker may use, and on which one it is."""
    until = time.perf_counter() + 2e-3
    while time.perf_counter() < until:
        pass
    core = ctypes.CDLL(None).sched_getcpu()
    args.tensor(0).numpy()[...] = len(os.sched_getaffinity(0)), core


def tell_core_there(args):
    tell_core(args)


def tell_core_elsewhere(args):
    tell_core(args)


def copy_slowly(args):
    time.sleep(0.02)
    copy_to(args)


def fail_if_negative(args):
    if args.scalar(0) < 0:
        raise ValueError(f"no {args.scalar(0)}")
    copy_to(args)


def kill_session(args):
    if args.scalar(0):
        with open(f"/proc/{os.getppid()}/stat") as told:  # of the process that forks sub workers
            os.kill(int(told.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
        time.sleep(60)
    copy_to(args)


def sleep_ms(args):
    time.sleep(args.scalar(0) / 1000)
    copy_to(args)


# ---------------------------------------------------------------- random programs
class Op(NamedTuple):
    """A task: which tensors it reads, of those that were made; which of the program's it changes."""

    reads: tuple[int, ...]
    changes: tuple[int, ...]
    makes: int


def drawn(rng, length, arrays):
    """Return a random program over so many arrays of the caller."""
    ops, made = [], 0
    for _ in range(length):
        reads = tuple(rng.randrange(made) for _ in range(rng.randrange(3)) if made)
        changes = tuple(rng.sample(range(arrays), rng.randrange(min(3, arrays + 1))))
        makes = rng.randrange(3)
        ops.append(Op(reads, changes, makes))
        made += makes
    return ops


def submit_all(ops, orch, handles, args):
    """Submit a program, to these in turn; the arrays and two numbers are those of the arguments."""
    made, arrays = [], [args.tensor(i) for i in range(args.tensor_count())]
    for op, handle in zip(ops, itertools.cycle(handles)):
        tensors = [(made[i], INPUT) for i in op.reads] + [(arrays[i], INOUT) for i in op.changes]
        tensors += [(fresh(), OUTPUT)] * op.makes
        numbers = len(op.reads), len(op.changes), args.scalar(0), args.scalar_float(1)
        task = make_args(*tensors, scalars=numbers)
        orch.submit_sub(handle, task)
        first = len(op.reads) + len(op.changes)
        made += [task.tensor(first + i) for i in range(op.makes)]


def computed(ops, arrays, number, factor):
    """Return what the arrays have after a program: the oracle."""
    arrays, made = [one.copy() for one in arrays], []
    for op in ops:
        total = sum((made[i] for i in op.reads), np.zeros(1, np.float32)) + number
        for i in op.changes:
            arrays[i] = (2 * arrays[i] + total) % 1009
        made += [(total * factor) % 1009 + np.zeros(COUNT, np.float32) for _ in range(op.makes)]
    return arrays


def arguments(arrays, number, factor):
    return make_args(*((one, INOUT) for one in arrays), scalars=[number, factor])


def fresh_arrays(worker, rng, count):
    return [worker.share(rng.integers(0, 9, COUNT).astype(np.float32)) for _ in range(count)]


# ---------------------------------------------------------------- Workers
@contextlib.contextmanager
def endpoints(count=2, **more):
    """Yield a Worker over so many endpoints on this machine, whose messages are not encrypted."""
    with opened(count, **{"secure": False, **more}) as worker:
        worker.start()  # or the tasks of the first run would seem to last as long as that
        yield worker


def frames_of(worker, act):
    """Return how many frames each endpoint was sent in an act."""
    before = [one["frames_sent"] for one in worker.endpoints()]
    act()
    return [one["frames_sent"] - was for one, was in zip(worker.endpoints(), before, strict=True)]


def copy_there(args):
    copy_to(args)


def at(worker, function, where):
    """Register a function for the sub workers of one endpoint."""
    name = f"{__name__}:{function.__name__}"
    return worker.register(RemoteCallable(name), workers=[where], inner=True)


def sides(worker, function, steps=1):
    """Return a graph in which two endpoints need each other in each step, and its arrays.

    Endpoint 1 runs a task of `function` in the middle, which copies, with the graph's scalar.
    """
    handles = at(worker, copy_to, 0), at(worker, copy_there, 1)
    special = at(worker, function, 1)
    x, y = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2))

    def copied(orch, handle, source, *scalars):
        task = make_args((source, INPUT), (fresh(), OUTPUT), scalars=scalars)
        orch.submit_sub(handle, task)
        return task.tensor(1)

    def orchestrate(orch, args, config):
        pair = args.tensor(0), args.tensor(1)
        for step in range(2 * steps):
            if step == steps:
                pair = pair[0], copied(orch, special, pair[1], args.scalar(0))
            pair = copied(orch, handles[0], pair[1]), copied(orch, handles[1], pair[0])
        for handle, source, i in zip(handles, pair, (0, 1), strict=True):
            orch.submit_sub(handle, make_args((source, INPUT), (args.tensor(i), INOUT)))

    return worker.record(orchestrate, make_args((x, INOUT), (y, INOUT), scalars=[0])), x, y
