"""Tasks that the tests of several groups call."""

import time

import simpler_ref as sr


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
