"""What a Worker costs to open, to close, and to leave idle."""

from __future__ import annotations

import os
import time

from graphs import independent, noop, warm_worker
from processes import children, core_seconds, new_process

from simpler_ref import Worker

IDLE_S = 2.0
SETTLE_S = 0.2


def test_starting_up_in_a_fresh_process(record):
    new_process()  # the cache of compiled kernels is warm from here on
    record({"a fresh process": (new_process, 1)}, rounds=7)


def test_construct_to_close_in_a_warm_process(record):
    def life(workers):
        def one_round() -> float:
            start = time.perf_counter()
            with Worker(level=3, num_sub_workers=workers) as worker:
                worker.register(noop)
                worker.start()
            return time.perf_counter() - start

        return one_round, 1

    record({"life_1": life(1), "life_2": life(2)}, rounds=25)


def test_a_worker_with_nothing_to_do(record):
    """All its processes count, and all its threads in this one."""

    def idle(workers):
        def one_round() -> float:
            before = children()
            with warm_worker(workers, independent(1000), 1000):
                pids = [os.getpid(), *(children() - before)]
                time.sleep(SETTLE_S)
                spent = -sum(map(core_seconds, pids))
                start = time.perf_counter()
                time.sleep(IDLE_S)
                passed = time.perf_counter() - start
                spent += sum(map(core_seconds, pids))
                return spent / passed

        return one_round, 1

    record({"idle_2": idle(2), "idle_16": idle(16)}, rounds=3, warm_up=False)
