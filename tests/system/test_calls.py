"""Calls in a program that is interrupted, killed or forked."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest

import simpler_ref as sr
from simpler_ref.calls.current import current

from .programs import Fork


@sr.task
def add(a, b):
    return a + b


# ---------------------------------------------------------------- the program forks
def in_child(w, futures):
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
    with sr.Worker(num_sub_workers=1) as mine:
        assert add(1, 2).result() == 3
        assert mine.submit(os.getppid).result() != os.getppid()
    futures.clear()
    gc.collect()


@pytest.mark.spec("CALL-STREAM-5")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.slow("forks beside threads that call, many times")
def test_a_process_may_be_forked_while_other_threads_call():
    ended = threading.Event()
    with sr.Worker(num_sub_workers=2) as w:
        add(1, 2).result()

        def call():
            while not ended.is_set():
                assert add(1, 2).result(timeout=30) == 3

        threads = [threading.Thread(target=call) for _ in range(3)]
        for one in threads:
            one.start()
        try:
            held = w.submit(time.sleep, 0.5)
            for _ in range(5):
                with Fork(lambda: in_child(w, [held])) as child:
                    assert child.wait() == 0
        finally:
            ended.set()
            for one in threads:
                one.join()
