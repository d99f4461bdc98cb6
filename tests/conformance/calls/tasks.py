"""Tasks that the tests of several groups call."""

import time

import simpler_ref as sr


@sr.task
def add(a, b):
    return a + b


@sr.task
def wait_at(gate: sr.In, value):
    while not gate[0]:
        time.sleep(0.001)
    return value
