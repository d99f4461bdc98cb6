"""The floor: a word crosses from one process to another and back, and nothing else happens.

No hand-over of a task between two processes can be quicker. What it costs depends on the machine and,
on a virtual one, on where its cores happen to be just then, so it is measured between the rounds of
every figure, and each figure is given as a multiple of the floor of its own rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics

import numba
import numpy as np

from simpler_ref.jit import atomics
from simpler_ref.jit.compiler import INSTRUCTIONS
from simpler_ref.system import regions

ORDER = 0  # the sample asked for; the partner sleeps on it
CALM = 8
THERE = 16
BACK = 32

ROUND_TRIPS = 1000
WARM_UP = 100
SAMPLES = 5
PARK_NS = 1_000_000_000
PATIENCE_NS = 10_000_000_000

futex_wait, futex_wake = INSTRUCTIONS[atomics.futex_wait], INSTRUCTIONS[atomics.futex_wake]
load, store = INSTRUCTIONS[atomics.load], INSTRUCTIONS[atomics.store]
now_ns, pause = INSTRUCTIONS[atomics.now_ns], INSTRUCTIONS[atomics.pause]
compiled = numba.njit(nogil=True, error_model="numpy", _nrt=False)  # as kernels are


@compiled
def ping_one(mem, n):
    """Send a word there and back `n` times; return the nanoseconds."""
    start = now_ns()
    for i in range(n):
        store(mem, THERE, 2 * i + 1)
        while load(mem, THERE) != 2 * i + 2:
            pause()
    return now_ns() - start


@compiled
def pong_one(mem, n):
    """Send a word back `n` times."""
    for i in range(n):
        while load(mem, THERE) != 2 * i + 1:
            pause()
        store(mem, THERE, 2 * i + 2)


@compiled
def ping_two(mem, n):
    """Like `ping_one`, with a line of its own for each way, and looking without a pause."""
    start = now_ns()
    for i in range(n):
        store(mem, THERE, i + 1)
        while load(mem, BACK) != i + 1:
            continue
    return now_ns() - start


@compiled
def pong_two(mem, n):
    """Answer `ping_two`."""
    for i in range(n):
        while load(mem, THERE) != i + 1:
            continue
        store(mem, BACK, i + 1)


@compiled
def wait_for_order(mem, seen):
    """Sleep until the order changes, for a while; return it."""
    if load(mem, ORDER) == seen:
        futex_wait(mem, ORDER, seen, PARK_NS)
    return load(mem, ORDER)


@compiled
def give_order(mem, order):
    """Wake the partner and wait until it has cleared the words; return whether it did."""
    start = now_ns()
    store(mem, CALM, 0)
    store(mem, ORDER, order)
    futex_wake(mem, ORDER)
    while load(mem, CALM) != order:
        if now_ns() - start > PATIENCE_NS:
            return False
        pause()
    return True


@compiled
def accept_order(mem, order):
    """Clear the words and say so."""
    store(mem, THERE, 0)
    store(mem, BACK, 0)
    store(mem, CALM, order)


@compiled
def order_end(mem):
    """Tell the partner to end."""
    store(mem, ORDER, -1)
    futex_wake(mem, ORDER)


PATTERNS = ((ping_one, pong_one), (ping_two, pong_two))


class Floor:
    """Measures the floor with the help of a second process, which sleeps in between.

    The two stand on different cores while they measure. With a single core there is no crossing:
    what is measured then is a change of process.
    """

    def __init__(self) -> None:
        self._mem = regions.create(4096).view(np.int64)
        self._cores = sorted(os.sched_getaffinity(0))
        self._trips = ROUND_TRIPS if len(self._cores) > 1 else 10
        for ping, pong in PATTERNS:
            ping(self._mem, 0)
            pong(self._mem, 0)
        accept_order(self._mem, 0)
        wait_for_order(self._mem, -1)
        self._order = 0
        self._process = multiprocessing.get_context("fork").Process(
            target=self._answer, args=(os.getpid(),), daemon=True
        )
        self._process.start()
        self.pid = self._process.pid

    def _answer(self, parent: int) -> None:
        os.sched_setaffinity(0, self._cores[-1:])
        order = 0
        while os.getppid() == parent:
            asked = wait_for_order(self._mem, order)
            if asked < 0:
                return
            if asked != order:
                order = asked
                accept_order(self._mem, order)
                PATTERNS[order & 1][1](self._mem, self._trips if order & 2 else WARM_UP)

    def _run(self, pattern: int, timed: bool) -> float:
        self._order = (self._order >> 2) + 1 << 2 | timed << 1 | pattern
        trips = self._trips if timed else WARM_UP
        if not give_order(self._mem, self._order):
            raise RuntimeError(f"process {self.pid}, which answers for the floor, is silent")
        return PATTERNS[pattern][0](self._mem, trips) / trips * 1e-9

    def sample(self, pattern: int = 0) -> float:
        """Return the seconds of one crossing there and back: the median of a few short trials."""
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores[:1])
        try:
            self._run(pattern, timed=False)
            return statistics.median(self._run(pattern, timed=True) for _ in range(SAMPLES))
        finally:
            os.sched_setaffinity(0, mine)

    def close(self) -> None:
        """End the partner."""
        order_end(self._mem)
        self._process.join()
