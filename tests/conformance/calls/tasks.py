"""Tasks that the tests of several groups call, and Workers that they call."""

import os
import signal
import time
from contextlib import contextmanager

import pytest

import simpler_ref as sr
from simpler_ref.calls.inside import Inside

from ...endpoints import opened  # noqa: F401
from ...far_calls import add, fill, total  # noqa: F401 (calls of this machine are of the same tasks)
from ...far_calls import keep as same  # noqa: F401

without_worker = pytest.mark.parametrize("w", [None], indirect=True, ids=["without a Worker"])
"""Of tests that need the Worker of their file to be closed."""


MODES = [
    {},
    {"child_mode": "thread"},
    pytest.param({"start_method": "spawn"}, marks=pytest.mark.long),
]
"""Options of Workers whose workers are processes, threads, and processes of fresh interpreters."""


calls_of_inside = [0]


@sr.task
def calls_counted():
    return calls_of_inside[0]


@contextmanager
def counting(method, **options):
    """Give a Worker with one worker that counts its calls of a method of `Inside`."""
    real = getattr(Inside, method)

    def count(inside, *args):
        calls_of_inside[0] += 1
        return real(inside, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inside, method, count)
        with sr.Worker(num_sub_workers=1, arena_size=1 << 28, **options) as w:
            w.start()
            yield w


@sr.task
def update(x: sr.InOut, value=1):
    x += value


@sr.task
def die():
    os.kill(os.getpid(), signal.SIGKILL)


@sr.task
def wait_at(gate: sr.In, value=None):
    while not gate[0]:
        time.sleep(0.001)
    return value


@sr.task
def fill_at(gate: sr.In, x: sr.Out, value):
    while not gate[0]:
        time.sleep(0.001)
    x[...] = value


def have_others_run(w):
    """Return once all calls have run that do not wait for others."""
    w.submit(int).result()
