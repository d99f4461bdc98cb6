"""WM-FORK: workers that are processes."""

import os
import signal
import threading

import numpy as np
import pytest

from simpler_ref import Worker, WorkerLostError
from simpler_ref.workers.kinds import WorkerKind
from tests.support import make_args, wait_until


@pytest.mark.spec("WM-FORK-1", "WM-FORK-2")
def test_one_process_serves_all_tasks_of_a_worker_and_inherits_what_exists():
    """A lock cannot be serialised; a list is what it was at the fork."""
    lock, words = threading.Lock(), ["at the start"]
    with Worker(3, num_sub_workers=2) as w:
        seen = w.share(np.zeros(200, np.int64))

        def body(args):
            with lock:
                assert words == ["at the start", "before the fork"]
            seen[args.scalar(0)] = os.getpid()

        handle = w.register(body)
        words.append("before the fork")
        w.start()
        words.append("after it")
        pids = set(w.worker_pids())

        def orch_fn(orch, numbers, _):
            for number in numbers:
                orch.submit_sub(handle, make_args(scalars=[number]))

        for first in range(0, 200, 50):
            w.run(orch_fn, range(first, first + 50))
        assert len(pids) == 2
        assert set(seen.tolist()) <= pids
        assert set(w.worker_pids()) == pids


class SeesItsBirth(WorkerKind):
    """Notes, when it was born: who forked it, how many threads that had, and how many it has itself."""

    label = "newborn"

    def __init__(self, births):
        self.births = births

    def start(self, mailbox):
        parent = os.getppid()
        threads = [len(os.listdir(f"/proc/{process}/task")) for process in (parent, "self")]
        self.births[self.births[0, 0] + 1] = parent, *threads
        self.births[0, 0] += 1

    def run(self, callable, view, config):
        callable()


@pytest.mark.spec("WM-FORK-3")
def test_whoever_forks_a_worker_or_its_successor_has_no_other_thread_though_the_users_process_has():
    idle = threading.Event()
    running = [threading.Thread(target=idle.wait) for _ in range(3)]
    for thread in running:
        thread.start()
    try:
        with Worker(3) as memory:
            births, w = memory.share(np.zeros((4, 3), np.int64)), Worker(3)
            w.add_next_level(SeesItsBirth(births))
            with w:
                die = w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
                nothing = w.register(lambda: None)
                for born in (1, 2, 3):
                    w.run(lambda orch, *_: orch.submit_next_level(nothing))
                    assert births[0, 0] == born
                    parent, its_threads, own = births[born].tolist()
                    assert parent not in (0, os.getpid())
                    assert (its_threads, own) == (1, 1)
                    with pytest.raises(WorkerLostError):
                        w.run(lambda orch, *_: orch.submit_next_level(die))
                    wait_until(lambda: not w.worker_pids())
    finally:
        idle.set()
        for thread in running:
            thread.join()
