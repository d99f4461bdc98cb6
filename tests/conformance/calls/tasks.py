"""Tasks that the tests of several groups call."""

import time

import pytest

import simpler_ref as sr

without_worker = pytest.mark.parametrize("w", [None], indirect=True, ids=["without a Worker"])
"""Of tests that need the Worker of their file to be closed."""


@sr.task
def add(a, b):
    return a + b


@sr.task
def same(value):
    return value


@sr.task
def total(x: sr.In):
    return float(x.sum())


@sr.task
def fill(x: sr.Out, value):
    x[...] = value


@sr.task
def update(x: sr.InOut, value=1):
    x += value


@sr.task
def wait_at(gate: sr.In, value=None):
    while not gate[0]:
        time.sleep(0.001)
    return value
