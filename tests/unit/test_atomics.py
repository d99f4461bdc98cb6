"""Atomic words: what each operation does alone, and every outcome two threads can bring about."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref.engine.shared_arrays import create_region
from simpler_ref.jit import atomics
from simpler_ref.jit.kernel import INTERPRETED

from ..kernels import EXCHANGE, FENCE, TALLY, kernels
from ..support import DEADLINE_S

ROUNDS = 300 if INTERPRETED else 50_000
FOREVER = -1


@pytest.fixture
def mem():
    return np.zeros(TALLY + 2 * (ROUNDS + 1) + 16, np.int64)


def side_by_side(*calls):
    """Run kernels on a thread each; return what they return."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [f.result(DEADLINE_S) for f in [threads.submit(*call) for call in calls]]


# ---------------------------------------------------------------- alone
def test_a_store_is_seen_by_a_load(mem):
    kernels.store(mem, 3, -(2**63))
    assert kernels.load(mem, 3) == -(2**63)
    assert mem[2] == mem[4] == 0


def test_exchange_returns_what_was_there(mem):
    mem[3] = 7
    assert kernels.exchange(mem, 3, 9) == 7
    assert mem[3] == 9


def test_compare_exchange_writes_only_over_what_it_expects(mem):
    mem[3] = 7
    assert kernels.compare_exchange(mem, 3, 8, 9) == 0
    assert mem[3] == 7
    assert kernels.compare_exchange(mem, 3, 7, 9) == 1
    assert mem[3] == 9


def test_fetch_add_returns_the_sum_before_and_carries_into_the_high_half(mem):
    mem[3] = 2**32 - 1
    assert kernels.fetch_add(mem, 3, 1) == 2**32 - 1
    assert kernels.fetch_add(mem, 3, -(2**32)) == 2**32
    assert mem[3] == 0


def test_the_clock_is_the_monotonic_one():
    before = time.monotonic_ns()
    kernels.pause()
    kernels.yield_core()
    now = kernels.now_ns()
    assert before <= now <= time.monotonic_ns()


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
        assert bool(kernels.keep_off_core(0, core)) == several, "it must have another one"
        assert os.sched_getaffinity(0) == (cores - {core} if several else cores)
        assert kernels.core_here() != core or not several
        assert not kernels.keep_off_core(0, core)
        kernels.let_on_core(core)
        assert os.sched_getaffinity(0) == cores


def test_another_thread_is_kept_off_a_core(cores):
    if len(cores) == 1:
        pytest.skip("there is one core only")
    with ThreadPoolExecutor(1) as other:
        number = other.submit(threading.get_native_id).result()
        assert kernels.keep_off_core(number, min(cores))
        assert os.sched_getaffinity(number) == cores - {min(cores)}
        assert os.sched_getaffinity(0) == cores
        other.submit(kernels.let_on_core, min(cores)).result()
        assert os.sched_getaffinity(number) == cores


def test_a_thread_is_neither_moved_to_nor_kept_off_a_core_it_may_not_use(cores):
    os.sched_setaffinity(0, {min(cores)})
    other = next(core for core in range(1024) if core != min(cores))
    for core in (other, 1023):
        assert not kernels.visit_core(core)
        assert not kernels.keep_off_core(0, core)
        assert os.sched_getaffinity(0) == {min(cores)}


def test_a_thread_that_is_gone_is_left_alone():
    nobody = 1 << 22  # one more than the largest number a thread can have
    assert not kernels.keep_off_core(nobody, min(os.sched_getaffinity(0)))


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


def outcomes(mem):
    pairs = mem[TALLY + 2 : TALLY + 2 + 2 * ROUNDS].reshape(ROUNDS, 2).tolist()
    return Counter(map(tuple, pairs))


@pytest.mark.parametrize("pattern", [FENCE, EXCHANGE], ids=["store, fence, load", "exchange, load"])
def test_of_two_threads_that_store_and_then_look_at_least_one_sees_the_other(mem, pattern):
    side_by_side(
        *[(kernels.look_at_each_other, mem, me, pattern, ROUNDS) for me in (0, 1)],
    )
    found = outcomes(mem)
    assert set(found) <= set(ACCEPTABLE), found


@pytest.mark.parametrize("pattern", [FENCE, EXCHANGE], ids=["store, fence, load", "exchange, load"])
def test_of_two_processes_that_store_and_then_look_at_least_one_sees_the_other(mem, pattern):
    shared = create_region(mem.nbytes)[: mem.nbytes].view(np.int64)
    look = kernels.look_at_each_other
    pid = os.fork()
    if pid == 0:
        look(shared, 1, pattern, ROUNDS)
        os._exit(0)
    try:
        side_by_side((look, shared, 0, pattern, ROUNDS))
        assert os.waitpid(pid, 0) == (pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    found = outcomes(shared)
    assert set(found) <= set(ACCEPTABLE), found


def test_no_addition_is_lost_and_each_finds_another_sum(mem):
    side_by_side(*[(kernels.count_up, mem, me, ROUNDS) for me in (0, 1)])
    found = mem[TALLY : TALLY + 2 * ROUNDS]
    assert sorted(found.tolist()) == list(range(2 * ROUNDS))
    for me in (0, 1):
        assert np.all(np.diff(found[me::2]) > 0), "a thread's own additions are in order"


def test_every_exchanged_number_is_found_once(mem):
    side_by_side(*[(kernels.swap, mem, me, ROUNDS) for me in (0, 1)])
    found = mem[TALLY : TALLY + 2 * ROUNDS].tolist()
    last = int(mem[16])
    assert sorted([*found, last]) == list(range(2 * ROUNDS + 1))


def test_compare_exchange_lets_one_thread_in_at_a_time(mem):
    torn = side_by_side(*[(kernels.take_turns, mem, me, ROUNDS) for me in (0, 1)])
    assert torn == [0, 0]
    assert mem[TALLY] == mem[TALLY + 8] == 2 * ROUNDS


def test_who_sees_a_store_sees_what_was_written_before_it(mem):
    _, stale = side_by_side((kernels.tell, mem, ROUNDS), (kernels.believe, mem, ROUNDS))
    assert stale == 0


# ---------------------------------------------------------------- sleeping in the kernel
def test_nobody_sleeps_on_a_word_that_holds_something_else(mem):
    mem[3] = 5
    assert kernels.futex_wait(mem, 3, 4, FOREVER) == atomics.CHANGED


def test_a_sleep_ends_when_its_time_is_up(mem):
    mem[3] = 5
    assert kernels.futex_wait(mem, 3, 5, 1_000_000) == atomics.TIMED_OUT
    assert kernels.futex_wait(mem, 3, 5, 0) == atomics.TIMED_OUT


def test_only_the_low_half_of_a_word_keeps_a_sleeper_asleep(mem):
    mem[3] = 5 | 9 << 32
    assert kernels.futex_wait(mem, 3, 5, 1_000_000) == atomics.TIMED_OUT
    mem[3] = 6 | 9 << 32
    assert kernels.futex_wait(mem, 3, 5 | 9 << 32, FOREVER) == atomics.CHANGED


@pytest.mark.parametrize("limit_ns", [FOREVER, int(DEADLINE_S * 1e9)])
def test_a_wake_ends_every_sleep_on_the_word_and_on_no_other(mem, limit_ns):
    answers = {}

    def sleep(name, word):
        answers[name] = kernels.futex_wait(mem, word, 0, limit_ns)

    sleepers = [threading.Thread(target=sleep, args=args) for args in (("a", 3), ("b", 3))]
    other = threading.Thread(target=sleep, args=("c", 4))
    for thread in [*sleepers, other]:
        thread.start()
    until = time.monotonic() + DEADLINE_S
    while len(answers) < 2 and time.monotonic() < until:  # whoever was not asleep yet, next time
        kernels.futex_wake(mem, 3)
    assert answers == {"a": atomics.CHANGED, "b": atomics.CHANGED}
    mem[4] = 1
    while other.is_alive() and time.monotonic() < until:
        kernels.futex_wake(mem, 4)
    for thread in [*sleepers, other]:
        thread.join()
    assert answers["c"] == atomics.CHANGED


def test_a_sleep_over_two_processes_is_ended_by_the_other(mem):
    shared = create_region(mem.nbytes)[: mem.nbytes].view(np.int64)
    wait, store, wake = kernels.futex_wait, kernels.store, kernels.futex_wake
    pid = os.fork()
    if pid == 0:
        answer = wait(shared, 3, 0, FOREVER)
        os._exit(17 if answer == atomics.CHANGED else 1)
    store(shared, 3, 1)  # a child that comes later does not even go to sleep
    wake(shared, 3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17


def test_a_signal_ends_a_sleep(mem):
    main, done = threading.get_ident(), threading.Event()
    seen = []

    def knock():
        while not done.wait(0.005):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    thread = threading.Thread(target=knock)
    thread.start()
    try:
        answer = kernels.futex_wait(mem, 3, 0, int(DEADLINE_S * 1e9))
    finally:
        done.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert answer == atomics.INTERRUPTED
    assert set(seen) == {signal.SIGUSR1}
