"""Workers in one process: what close leaves, forgotten Workers, several at once, any thread."""

import contextlib
import faulthandler
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
import traceback
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from simpler_ref import TaskCancelledError, Worker, task
from simpler_ref import TensorArgType as T
from simpler_ref.calls.tasks import current

from ..support import DEADLINE_S, make_args, wait_until
from .programs import Concurrently, Fork, dies, in_a_fork, terminate
from .uses import ALL, Holdings, Uses
from .workers import assert_works, mark, on_a_thread, rounds, server_of


# ---------------------------------------------------------------- close
def started_worker():
    w = Worker(level=3, num_sub_workers=2)
    w.init()
    w.start()
    return w


@pytest.mark.spec("ORCH-RUN-9")
def test_close_leaves_nothing_but_the_arrays_somebody_holds():
    def shared_bytes():
        with open("/proc/self/maps") as maps:
            spans = [line.split()[0].split("-") for line in maps if line.split()[1][3] == "s"]
        return sum(int(end, 16) - int(start, 16) for start, end in spans)

    gc.collect()
    before = shared_bytes()
    w = Worker(level=3, num_sub_workers=2, arena_size=1 << 20, values_size=1 << 20)
    w.init()
    w.start()
    pids, server = w.worker_pids(), server_of(w)
    kept = w.share(np.arange(10))
    w.close()
    w.close()
    assert all(dies(pid) for pid in (*pids, server))
    assert shared_bytes() - before == 1 << 20
    assert kept.tolist() == list(range(10))
    life = weakref.ref(w._life)
    del kept, w
    gc.collect()
    assert life() is None
    assert shared_bytes() == before


@pytest.mark.parametrize("collect", [gc.collect, lambda: on_a_thread(gc.collect)])
def test_a_worker_in_a_cycle_is_closed_by_whichever_thread_collects_it(collect):
    w = started_worker()
    w.myself = w
    pids = w.worker_pids()
    del w
    collect()
    assert all(dies(pid) for pid in pids)


def test_a_worker_that_its_own_monitor_thread_collects_is_closed():
    """Garbage is collected by any thread: also by the one that close would join."""
    w = started_worker()
    life, manager, pids = w._life, w._session.manager, w.worker_pids()
    monitor = manager._monitor
    manager.on_death = lambda *_: life.release()
    terminate(pids[0])
    monitor.join(DEADLINE_S)
    assert not monitor.is_alive() and all(dies(pid) for pid in pids)
    assert manager._socket.fileno() == -1


REFUSALS = (
    *("is closed", "was closed", "not initialized", "already initialized", "traced already"),
    *("a run is in progress", "during a run"),
)
SPAN_S = {"thread": 0.02, "process": 0.08, "spawn": 0.8, "endpoints": 2.0}
"""How long it takes from the first use of a Worker to its end, about."""


def at_once(used, names, rng, span_s):
    """Use a Worker on a thread for each name; return what was wrong."""
    wrong = []

    def use(name, after_s):
        time.sleep(after_s)
        try:
            getattr(used, name)()
        except TaskCancelledError:  # by `shutdown`
            pass
        except BaseException as error:
            refused = type(error) is RuntimeError and any(one in str(error) for one in REFUSALS)
            if not refused:
                wrong.append(traceback.format_exc())

    threads = [
        threading.Thread(target=use, args=(name, rng.uniform(0, span_s)), daemon=True)
        for name in names
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(DEADLINE_S / 2)
        if one.is_alive():
            faulthandler.dump_traceback(file=sys.__stderr__)
            wrong.append(f"{names}: a thread hangs")
    return wrong


@pytest.mark.spec("ORCH-RUN-9")
@pytest.mark.slow("many pairs, a Worker each")
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        *[("thread", 30), ("process", 20)],
        *[
            pytest.param(*one, marks=pytest.mark.long)
            for one in (("thread", 1000), ("process", 500), ("spawn", 60), ("endpoints", 24))
        ],
    ],
)
def test_threads_that_use_a_worker_at_once_and_close_it_get_answers_or_clear_refusals(
    kind, rounds, tmp_path
):
    """Every two uses, with a close beside them or after; a part of the pairs in `make test`."""
    rng = random.Random(rounds)
    pairs = list(itertools.combinations_with_replacement(ALL, 2))
    rng.shuffle(pairs)
    chosen = list(itertools.islice(itertools.cycle(pairs), rounds))

    def program(chosen):
        before = None
        for pair in chosen:
            used = Uses(kind, tmp_path)
            if rng.random() < 0.8:
                used.init()
            names = [*pair, "close"] if rng.random() < 0.7 else pair
            assert at_once(used, names, rng, SPAN_S[kind]) == [], names
            used.close()
            del used
            if before is None:  # libraries keep what they have made for the first
                before = Holdings()
            before.assert_no_more()

    many = int(5 / SPAN_S[kind])
    for first in range(0, rounds, many):
        in_a_fork(partial(program, chosen[first : first + many]))


@rounds(15, 60)
@pytest.mark.slow("opens and closes many Workers")
def test_open_and_close_many_times_takes_no_more_of_anything(rounds):
    process = psutil.Process()

    def cycle():
        with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 16, task_window=1024) as w:
            marks = w.share(np.zeros(4, np.int64))
            ok = w.register(mark)
            assert_works(w, ok, marks)

    for _ in range(5):
        cycle()
    before, rss, maps = Holdings(), process.memory_info().rss, len(process.memory_maps(False))
    for _ in range(rounds):
        cycle()
    before.assert_no_more()
    assert process.memory_info().rss - rss < (4 << 20) + rounds * (64 << 10)
    assert len(process.memory_maps(False)) - maps < rounds / 2


# ---------------------------------------------------------------- more than one
@rounds(1, 8)
def test_workers_of_many_threads_run_at_the_same_time(rounds):
    def life(seed):
        rng = np.random.default_rng(seed)
        for _ in range(rounds):
            with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 20) as w:
                ok = w.register(mark)
                w.start()
                for _ in range(30):
                    x = w.share(np.zeros(2, np.int64))  # a new array: asks whose it is

                    def graph(orch, args, config):
                        for _ in range(rng.integers(1, 5)):
                            orch.submit_sub(*args)

                    w.run(graph, (ok, make_args((x, T.INOUT), scalars=[1])))

                    def in_the_run(orch, args, config):
                        handle, x = args
                        orch.submit_sub(handle, make_args((x[1:], T.INOUT), scalars=[0]))

                    w.run(in_the_run, (ok, x))
                    assert x[1] > 1

    with contextlib.ExitStack() as threads:
        for seed in range(4):
            threads.enter_context(Concurrently(lambda seed=seed: life(seed)))


def test_a_fork_while_another_thread_is_busy_with_the_worker_can_go_on():
    """Locks held by threads that do not exist in the fork must not be waited for."""
    with Worker(level=3, num_sub_workers=1) as w:
        array = w.share(np.zeros(5))
        held, release = threading.Event(), threading.Event()

        def hold():
            with w._life.lock, w._session.arena._lock:
                held.set()
                release.wait(30)

        def in_the_fork():
            nonlocal array
            del array
            w.close()

        with Concurrently(hold):
            held.wait(30)
            with Fork(in_the_fork) as fork:
                assert fork.wait() == 0
            release.set()
        assert w.run(lambda *_: None).tasks == 0


@task
def add(a, b):
    return a + b


def use_calls_in_a_fork(w, futures):
    """See what a forked process may do with the program's calls."""
    assert current() is None
    assert add(1, 2) == 3
    for one in futures:
        assert not one.done() and not one.running()
        assert "another process" in repr(one)
        for ask in (one.result, one.exception):
            with pytest.raises(RuntimeError, match=f"belongs to process {os.getppid()}"):
                ask()
    with pytest.raises(RuntimeError, match="needs a Worker of its own"):
        w.submit(add, 1, 2)
    with Worker(num_sub_workers=1) as mine:
        assert add(1, 2).result() == 3
        assert mine.submit(os.getppid).result() != os.getppid()
    futures.clear()
    gc.collect()


@pytest.mark.spec("CALL-STREAM-5")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.slow("forks beside threads that call, many times")
def test_a_process_may_be_forked_while_other_threads_call(mode):
    ended = threading.Event()
    with Worker(num_sub_workers=2, child_mode=mode) as w:
        add(1, 2).result()

        def call():
            while not ended.is_set():
                assert add(1, 2).result(timeout=30) == 3

        with contextlib.ExitStack() as threads:
            for _ in range(3):
                threads.enter_context(Concurrently(call))
            threads.callback(ended.set)
            held = w.submit(time.sleep, 0.5)
            for _ in range(5):
                with Fork(lambda: use_calls_in_a_fork(w, [held])) as child:
                    assert child.wait() == 0


def test_no_process_keeps_descriptors_of_a_worker_that_is_not_its_own():
    def descriptors(pid):
        links = map(link_of, Path(f"/proc/{pid}/fd").iterdir())
        return sorted(link.split(":")[0] for link in links)

    def link_of(descriptor):
        try:
            return os.readlink(descriptor)
        except FileNotFoundError:  # closed since it was listed
            return "closed"

    with Worker(level=3, num_sub_workers=1) as first:
        first.start()
        alone = descriptors(server_of(first))
        with Worker(level=3, num_sub_workers=1) as second:
            second.start()
            assert descriptors(server_of(second)) == alone
            assert len(descriptors(second.worker_pids()[0])) == len(alone) - 3
            with Fork(signal.pause) as fork:
                # without two of processes, a socket, a lifeline; and with its own lifeline
                wait_until(lambda: len(descriptors(fork.pid)) == len(alone) - 4 + 1)
                assert "socket" not in descriptors(fork.pid)
