"""Random chains of calls that make arrays, keep, return and write them, beside plain calls."""

import copy
import os
import random
import threading
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref.remote import link_tasks

from ..endpoints import opened
from ..support import sample

SIZES = [5, 90, 200, 201, 400]
PARTS = {
    "whole": lambda x: x,
    "view": lambda x: x.view(),
    "transposed": lambda x: x.T,
    "half": lambda x: x[: len(x) // 2],
    "end": lambda x: x[len(x) // 2 :],
    "every other": lambda x: x[..., ::2],
    "flat": lambda x: x.reshape(-1),
    "backwards": lambda x: x[::-1],
    "columns first": np.asfortranarray,
    "objects": lambda x: x[:20].astype(object),
    "in a list": lambda x: [x, x[:1]],
}
MODEL = threading.local()
"""What the worker keeps whose part is played here."""


def kept():
    return getattr(MODEL, "kept", sr.local)


def forget():
    vars(sr.local).clear()


# ---------------------------------------------------------------- what a call does
def make(n, number, part):
    made = np.arange(n * n).reshape(n, n)
    return PARTS[part](made + number)


def make_zeros(n, number, part):
    made = np.zeros((n, n), int)
    made[n // 2] += number
    return PARTS[part](made)


def keep_made(n, number, part):
    made = kept().array = make(n, number, "whole")
    return PARTS[part](made)


def keep_view(n, number, part):
    made = make(n, number, "whole")
    kept().array = np.asarray(memoryview(made)) if number % 2 else made[1:]
    return PARTS[part](made)


def use_kept(n, number, part):
    array = getattr(kept(), "array", np.zeros((2, 2), int))
    array += number
    return array.copy() if number % 2 else array


def write(x, number, part):
    x += number
    return PARTS[part](x)


def read(x, number, part):
    return int(x.sum()) + number


def keep(x, number, part):
    kept().array = x
    return int(x.sum())


def call(x, number, part):
    inner = write(x.copy(), number, part) if hasattr(MODEL, "kept") else None
    return [sr.task(write)(x, number, part).result() if inner is None else inner, x]


def fork(x, number, part):
    made = make(200, number, "whole")
    if not hasattr(MODEL, "kept"):
        child = os.fork()
        if child == 0:
            x[...] = made[...] = -1
            os._exit(0)
        os.waitpid(child, 0)
    x += number
    return PARTS[part](made)


def fail(x, number, part):
    x[...] = 0
    raise ValueError(number)


MAKE, TAKE = [make, make_zeros, keep_made, keep_view, use_kept], [write, write, read, keep, call]
TAKE += [fork, fail]


# ---------------------------------------------------------------- a program, in both ways
def array_of(value):
    """Return an array in a value that a call can take, None if there is none."""
    found = value[0] if isinstance(value, list) else value
    return found if isinstance(found, np.ndarray) and found.dtype == int else None


def is_same(got, right):
    if isinstance(right, list):
        return type(got) is list and all(map(is_same, got, right))
    if not isinstance(right, np.ndarray):
        return got == right
    return (got.dtype, got.shape) == (right.dtype, right.shape) and np.array_equal(got, right)


def first(value):
    return value[0] if isinstance(value, list) else value


def run_plainly(memory, function, *args):
    """Return the value of a call in the model, None if it fails."""
    MODEL.kept = memory
    try:
        return copy.deepcopy(function(*copy.deepcopy(args)))
    except ValueError:
        return None
    finally:
        del MODEL.kept


def run_program(w, rng, length):
    memories, pool = [SimpleNamespace(), SimpleNamespace()], []
    for i in range(2):
        sr.task(workers=i)(forget)().result()
    taken = sr.task(first)
    tasks = [{one: sr.task(workers=i)(one) for one in MAKE + TAKE} for i in range(2)]
    for _ in range(length):
        worker, number, part = rng.randrange(2), rng.randrange(50), rng.choice(list(PARTS))
        able = [one for one in pool if array_of(one[1]) is not None]
        if able and rng.random() < 0.6:
            function, (future, model) = rng.choice(TAKE), rng.choice(able)
            given, plain = taken(future), array_of(model)
        else:
            function, given = rng.choice(MAKE), rng.choice(SIZES)
            plain = given
        future = tasks[worker][function](given, number, part)
        model = run_plainly(memories[worker], function, plain, number, part)
        if "keep" in function.__name__ or function is use_kept:
            w.wait()  # for calls of a worker may change their order
        if model is None:
            assert isinstance(future.exception(), ValueError)
        else:
            pool.append((future, model))
        if len(pool) > 12 or rng.random() < 0.2:
            future, model = pool.pop(rng.randrange(len(pool))) if pool else (None, None)
            if future is not None and rng.random() < 0.7:
                value = future.result()
                assert is_same(value, model)
                if array_of(value) is not None:
                    array_of(value)[...] = 0
    for future, model in pool:
        assert is_same(future.result(), model)


@pytest.mark.parametrize(
    ("mode", "seeds", "length"),
    [
        *(
            ({}, range(4), 60),
            ({"values_size": 1 << 25}, range(4), 60),
            ({"check": True}, range(4), 60),
        ),
        *(pytest.param({}, [seed], 400, marks=pytest.mark.long) for seed in range(40)),
    ],
    ids=str,
)
def test_values_are_those_of_plain_calls(mode, seeds, length):
    with sr.Worker(num_sub_workers=2, **mode) as w:
        for seed in seeds:
            run_program(w, random.Random(seed), length)


@pytest.mark.spec("CALL-KEEP-1", "CALL-KEEP-3")
@pytest.mark.slow("endpoints")
@pytest.mark.parametrize("limits", sample(product((450_000, 1 << 20, 1 << 28), (None, 1, 3)), 1))
def test_values_that_endpoints_keep_are_those_of_plain_calls(monkeypatch, limits):
    most, depth = limits
    monkeypatch.setattr(link_tasks, "MOST_KEPT", most)
    with opened(2, mailbox_depth=depth) as w:
        for seed in range(2):
            run_program(w, random.Random(seed), 60)
        w.submit(int).result()  # the last futures are dropped before the next call
        assert sum(one["value_bytes"] for one in w.transfers()) == 0
