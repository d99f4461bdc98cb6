"""WM-FORK: workers that are processes."""

import os
import threading

import numpy as np
import pytest

from simpler_ref import Worker
from tests.support import make_args


@pytest.mark.spec("WM-FORK-1")
def test_one_process_serves_all_tasks_of_a_worker_in_all_runs():
    with Worker(3, num_sub_workers=2) as w:
        seen = w.share(np.zeros((4, 50), np.int64))
        handle = w.register(
            lambda args: seen.__setitem__((args.scalar(0), args.scalar(1)), os.getpid())
        )
        w.start()
        pids = set(w.worker_pids())
        for run in range(4):

            def orch_fn(orch, *_, run=run):
                for i in range(50):
                    orch.submit_sub(handle, make_args(scalars=[run, i]))

            w.run(orch_fn)
        assert len(pids) == 2
        assert set(seen.flatten().tolist()) <= pids
        assert set(w.worker_pids()) == pids


@pytest.mark.spec("WM-FORK-2")
def test_a_worker_inherits_what_exists_without_serialisation():
    """A lock cannot be serialised; a list is what it was at the fork."""
    lock, words = threading.Lock(), ["at the start"]
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros(2, np.int64))

        def body():
            with lock:
                seen[:] = len(words), words[0] == "at the start"

        handle = w.register(body)
        words.append("before the fork")
        w.start()
        words.append("after it")
        w.run(lambda orch, *_: orch.submit_sub(handle))
        assert seen.tolist() == [2, 1]


@pytest.mark.spec("WM-FORK-3")
def test_a_worker_does_not_inherit_a_lock_that_another_thread_holds_for_ever_at_its_birth():
    """The process that forks the workers has no other threads, whatever the user's has."""
    threads = [threading.Event() for _ in range(3)]
    running = [threading.Thread(target=event.wait) for event in threads]
    for thread in running:
        thread.start()
    try:
        with Worker(3, num_sub_workers=2) as w:
            w.start()
            for pid in w.worker_pids():
                with open(f"/proc/{pid}/status") as status:
                    (parent,) = [x.split()[1] for x in status if x.startswith("PPid")]
                assert int(parent) != os.getpid()
                assert len(os.listdir(f"/proc/{parent}/task")) == 1
                assert len(os.listdir(f"/proc/{pid}/task")) == 1
    finally:
        for event in threads:
            event.set()
        for thread in running:
            thread.join()
