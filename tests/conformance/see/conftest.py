"""Programs that are traced."""

from __future__ import annotations

import runpy
import sys

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import TensorArgType as T
from simpler_ref import Trace, Worker

from ...support import make_args as make


@sr.task
def bump(x: sr.InOut):
    x += 1


@sr.task
def begin(x: sr.InOut, gate: sr.In):
    while gate[0] == 0:
        pass
    x += 1


def wait_at_gate(args):
    gate = args.tensor(0).numpy()
    while gate[0] == 0:
        pass


class Below:
    """A worker of the next level that does nothing."""

    def run(self, callable_, view, config):
        return None


def increase(args):
    x = args.tensor(args.tensor_count() - 1).numpy()
    x += 1


def fail(args):
    raise ValueError("on purpose")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.trace")


def trace_of(path, build, function=increase, shape=8, **options):
    """Run an orchestration function on a traced Worker of threads; return the trace."""
    given = {"level": 3, "num_sub_workers": 2, "heap_ring_size": 1 << 20, "child_mode": "thread"}
    with Worker(trace=path, **given | options) as w:
        handle, x = w.register(function), w.zeros(shape, np.int64)
        w.run(lambda orch, args, config: build(orch, handle, x))
    return Trace.open(path)


@pytest.fixture
def traced(path):
    """Return a function that runs an orchestration function on a traced Worker, and reads the trace."""
    return lambda build, **options: trace_of(path, build, **options)


@pytest.fixture(scope="module")
def chained(tmp_path_factory):
    """Return the trace of one run of `chain`."""
    return trace_of(str(tmp_path_factory.mktemp("chained") / "a.trace"), chain)


def chain(orch, handle, x):
    """Submit three tasks that wait for each other, and one that only reads."""
    for _ in range(3):
        orch.submit_sub(handle, make((x, T.INOUT)))
    other = orch.alloc((8,), np.int64)
    orch.submit_sub(handle, make((x, T.INPUT), (other, T.INOUT)))


def main(words):
    """Run ``python -m simpler_ref`` with some words in this process; return its exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["simpler_ref", *words])
        runpy.run_module("simpler_ref", run_name="__main__")
    return ended.value.code
