"""WM-THREAD: workers that are threads."""

import os
import threading

import pytest

from simpler_ref import TaskArgs, Worker
from tests.support import DEADLINE_S

from .own import run_sub


@pytest.fixture
def w():
    with Worker(3, num_sub_workers=2, child_mode="thread") as made:
        yield made


@pytest.mark.spec("WM-THREAD-1")
def test_one_thread_of_this_process_serves_all_tasks_of_a_worker(w):
    seen = []
    handle = w.register(lambda: seen.append((os.getpid(), threading.get_ident())))
    for _ in range(4):
        w.run(lambda orch, *_: [orch.submit_sub_group(handle, [TaskArgs()] * 2) for _ in range(5)])
    places = set(seen)
    assert [seen.count(place) for place in places] == [20, 20]
    assert {pid for pid, _ in places} == {os.getpid()}
    assert threading.get_ident() not in {thread for _, thread in places}


@pytest.mark.spec("WM-THREAD-2")
def test_tasks_that_give_the_gil_away_run_at_the_same_time(w):
    both = threading.Barrier(2)
    handle = w.register(lambda: both.wait(DEADLINE_S))
    w.run(lambda orch, *_: [orch.submit_sub(handle) for _ in range(2)])


@pytest.mark.spec("WM-THREAD-3")
@pytest.mark.parametrize("when", ["before the start", "after it", "in a run"])
def test_a_callable_is_the_very_object_that_was_registered(w, when):
    class Holds:
        def __init__(self):
            self.lock = threading.Lock()  # cannot be serialised

        def __call__(self, args):
            with self.lock:
                self.me = self

    made = Holds()
    if when != "before the start":
        w.start()
    if when == "in a run":
        w.run(lambda orch, *_: orch.submit_sub(w.register(made), TaskArgs()))
    else:
        run_sub(w, w.register(made), TaskArgs())
    assert made.me is made
