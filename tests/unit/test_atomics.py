"""Atomic words: what each operation does alone, and every outcome two threads can bring about."""

import mmap
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED

from ..kernels import EXCHANGE, FENCE, TALLY, kernels
from ..support import DEADLINE_S, sample, wait_until
from ..system.programs import Fork

pytestmark = pytest.mark.kernels
ROUNDS = 300 if INTERPRETED else 50_000
FOREVER = -1
LATEST_TICK_NS = 10**9
"""More than passes between two ticks of the coarse clock: that of a virtual machine may be late."""


@pytest.fixture
def mem():
    """Give words that forks share."""
    return np.frombuffer(mmap.mmap(-1, 8 * (TALLY + 2 * (ROUNDS + 1) + 16)), np.int64)


def side_by_side(*calls):
    """Run kernels on a thread each; return what they return."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [f.result(DEADLINE_S) for f in [threads.submit(*call) for call in calls]]


def beside_a_fork(theirs, ours):
    """Run a kernel in a fork and another one here; return what the other one returns."""
    kernel, *args = theirs
    with Fork(lambda: kernel(*args)) as fork:
        (answer,) = side_by_side(ours)
        assert fork.wait() == 0
    return answer


# ---------------------------------------------------------------- alone
def test_each_operation_writes_and_returns_what_it_should(mem):
    kernels.store(mem, 3, -(2**63))
    assert kernels.load(mem, 3) == -(2**63)
    assert mem[2] == mem[4] == 0
    mem[3] = 7
    assert (kernels.exchange(mem, 3, 9), mem[3]) == (7, 9)
    mem[3] = 7
    assert (kernels.compare_exchange(mem, 3, 8, 9), mem[3]) == (0, 7)
    assert (kernels.compare_exchange(mem, 3, 7, 9), mem[3]) == (1, 9)
    mem[3] = 2**32 - 1
    assert kernels.fetch_add(mem, 3, 1) == 2**32 - 1
    assert (kernels.fetch_add(mem, 3, -(2**32)), mem[3]) == (2**32, 0)


def test_the_clocks_are_the_monotonic_one_and_that_at_a_tick_before():
    before = time.monotonic_ns()
    kernels.pause()
    kernels.yield_core()
    now = kernels.now_ns()
    assert before <= now <= time.monotonic_ns()
    assert before - LATEST_TICK_NS <= kernels.coarse_ns() <= time.monotonic_ns()


@pytest.fixture
def cores():
    """Give the cores this thread may use, and let it use them again afterwards."""
    cores = os.sched_getaffinity(0)
    yield cores
    os.sched_setaffinity(0, cores)


def test_a_thread_is_moved_to_a_core_and_stays_free_to_run_on_others(cores):
    for core in sorted(cores)[:4]:
        os.sched_setaffinity(0, {core})
        assert kernels.core_here() == core
        os.sched_setaffinity(0, cores)
        assert kernels.visit_core(core)
        assert os.sched_getaffinity(0) == cores


def test_a_thread_is_kept_off_a_core_until_it_is_let_on_it_again(cores):
    for core in sorted(cores)[:4]:
        several = len(cores) > 1
        assert bool(kernels.allow_core(0, core, 0)) == several, "it must have another one"
        assert os.sched_getaffinity(0) == (cores - {core} if several else cores)
        assert kernels.core_here() != core or not several
        assert not kernels.allow_core(0, core, 0)
        kernels.allow_core(0, core, 1)
        assert os.sched_getaffinity(0) == cores


def test_a_core_that_may_not_be_used_and_a_thread_that_is_gone_are_left_alone(cores):
    nobody = 1 << 22  # one more than the largest number a thread can have
    assert not kernels.allow_core(nobody, min(cores), 0)
    os.sched_setaffinity(0, {min(cores)})
    for core in (next(core for core in range(1024) if core != min(cores)), 1023):
        assert not kernels.visit_core(core) and not kernels.allow_core(0, core, 0)
        assert os.sched_getaffinity(0) == {min(cores)}


def test_wire_bytes_are_read_as_little_endian_words():
    assert kernels.sum_of_words(b"") == 0
    assert kernels.sum_of_words(bytes([1, 1, 0, 0, 0, 0, 0, 0]) + b"\xff" * 8) == 256


# ---------------------------------------------------------------- against each other
ACCEPTABLE = {
    (1, 1): "both stores came before both looks",
    (1, 0): "the second thread looked before the first had stored",
    (0, 1): "the first thread looked before the second had stored",
}
"""The outcome (0, 0) is what a barrier between store and look rules out: nobody saw the other."""


@pytest.mark.parametrize(
    ("run", "pattern"),
    [(side_by_side, FENCE), (beside_a_fork, EXCHANGE)],
    ids=["threads: store, fence, load", "processes: exchange, load"],
)
@pytest.mark.parametrize("rounds", sample([min(ROUNDS, 5000), ROUNDS], 1))
def test_of_two_that_store_and_then_look_at_least_one_sees_the_other(mem, run, rounds, pattern):
    run(*[(kernels.look_at_each_other, mem, me, pattern, rounds) for me in (1, 0)])
    pairs = mem[TALLY + 2 : TALLY + 2 + 2 * rounds].reshape(rounds, 2).tolist()
    assert set(map(tuple, pairs)) <= set(ACCEPTABLE)


def test_no_addition_is_lost_and_each_finds_another_sum(mem):
    side_by_side(*[(kernels.count_up, mem, me, ROUNDS) for me in (0, 1)])
    found = mem[TALLY : TALLY + 2 * ROUNDS]
    assert sorted(found.tolist()) == list(range(2 * ROUNDS))
    for me in (0, 1):
        assert np.all(np.diff(found[me::2]) > 0), "a thread's own additions are in order"


def test_every_exchanged_number_is_found_once(mem):
    side_by_side(*[(kernels.swap, mem, me, ROUNDS) for me in (0, 1)])
    found = mem[TALLY : TALLY + 2 * ROUNDS].tolist()
    assert sorted([*found, int(mem[16])]) == list(range(2 * ROUNDS + 1))


def test_compare_exchange_lets_one_thread_in_at_a_time_who_sees_what_the_last_one_wrote(mem):
    assert side_by_side(*[(kernels.take_turns, mem, me, ROUNDS) for me in (0, 1)]) == [0, 0]
    assert mem[TALLY] == mem[TALLY + 8] == 2 * ROUNDS


# ---------------------------------------------------------------- sleeping in the kernel
def test_a_sleep_ends_in_time_and_lasts_while_the_low_half_of_its_word_does(mem):
    mem[3] = 5
    assert kernels.futex_wait(mem, 3, 5, 1_000_000) == L.TIMED_OUT
    assert kernels.futex_wait(mem, 3, 5, 0) == L.TIMED_OUT
    mem[3] = 5 | 9 << 32
    assert kernels.futex_wait(mem, 3, 5, 1_000_000) == L.TIMED_OUT
    mem[3] = 6 | 9 << 32
    assert kernels.futex_wait(mem, 3, 5, FOREVER) == L.OK
    assert kernels.futex_wait(mem, 3, 5 | 9 << 32, FOREVER) == L.OK


@pytest.mark.parametrize("limit_ns", [FOREVER, int(DEADLINE_S * 1e9)])
def test_a_wake_ends_every_sleep_on_the_word_and_on_no_other(mem, limit_ns):
    def all_wake(sleeps, word):  # whoever was not asleep yet, next time
        kernels.futex_wake(mem, word)
        return all(sleep.done() for sleep in sleeps)

    with ThreadPoolExecutor(3) as threads:
        sleeps = [threads.submit(kernels.futex_wait, mem, word, 0, limit_ns) for word in (3, 3, 4)]
        wait_until(lambda: all_wake(sleeps[:2], 3))
        mem[4] = 1
        wait_until(lambda: all_wake(sleeps[2:], 4))
        assert [sleep.result() for sleep in sleeps] == [L.OK] * 3


def test_a_sleep_over_two_processes_is_ended_by_the_other(mem):
    def sleep():
        assert kernels.futex_wait(mem, 3, 0, FOREVER) == L.OK

    with Fork(sleep) as fork:
        kernels.store(mem, 3, 1)  # a child that comes later does not even go to sleep
        kernels.futex_wake(mem, 3)
        assert fork.wait() == 0


def test_a_signal_ends_a_sleep(mem):
    main, done = threading.get_ident(), threading.Event()
    seen = []

    def knock():
        while not done.wait(0.005):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(knock)
            answer = kernels.futex_wait(mem, 3, 0, int(DEADLINE_S * 1e9))
            done.set()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (answer, set(seen)) == (L.INTERRUPTED, {signal.SIGUSR1})
