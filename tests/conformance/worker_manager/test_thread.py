"""WM-THREAD: workers that are threads."""

import os
import sys
import threading

import numpy as np
import pytest

from simpler_ref import TaskArgs, TaskError, Worker
from tests.support import DEADLINE_S, make_args


@pytest.fixture
def w():
    with Worker(3, num_sub_workers=2, child_mode="thread") as made:
        yield made


@pytest.mark.spec("WM-THREAD-1")
def test_one_thread_of_this_process_serves_all_tasks_of_a_worker(w):
    seen = []
    handle = w.register(lambda: seen.append((os.getpid(), threading.get_ident())))
    w.start()
    for _ in range(4):
        w.run(lambda orch, *_: [orch.submit_sub_group(handle, [TaskArgs()] * 2) for _ in range(5)])
    assert {pid for pid, _ in seen} == {os.getpid()}
    threads = {thread for _, thread in seen}
    assert len(threads) == 2 and threading.get_ident() not in threads
    assert [sum(t == one for _, t in seen) for one in threads] == [20, 20]


@pytest.mark.spec("WM-THREAD-1")
def test_a_task_sees_the_memory_of_the_process_as_it_is(w):
    state = {"count": 0}
    private = np.zeros(3)

    def body(args):
        state["count"] += 1
        private[args.scalar(0)] = state["count"]

    handle = w.register(body)
    for i in range(3):
        w.run(lambda orch, *_, i=i: orch.submit_sub(handle, make_args(scalars=[i])))
    assert state == {"count": 3}
    assert private.tolist() == [1, 2, 3]


@pytest.mark.spec("WM-THREAD-2")
def test_tasks_that_give_the_gil_away_run_at_the_same_time(w):
    both = threading.Barrier(2)
    handle = w.register(lambda: both.wait(DEADLINE_S))

    def orch_fn(orch, *_):
        orch.submit_sub(handle)
        orch.submit_sub(handle)

    w.run(orch_fn)


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
        handle = w.register(made)
        w.run(lambda orch, *_: orch.submit_sub(handle, TaskArgs()))
    assert made.me is made


class Own(BaseException):
    pass


@pytest.mark.spec("WM-THREAD-4")
@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), Own("x"), StopIteration()])
def test_whatever_a_task_raises_fails_it_alone(w, raised):
    seen = []

    def body():
        raise raised

    failing, fine = w.register(body), w.register(lambda: seen.append(threading.get_ident()))
    w.run(lambda orch, *_: orch.submit_sub_group(fine, [TaskArgs()] * 2))
    with pytest.raises(TaskError, match=type(raised).__name__):
        w.run(lambda orch, *_: orch.submit_sub(failing))
    w.run(lambda orch, *_: orch.submit_sub_group(fine, [TaskArgs()] * 2))
    assert len(set(seen)) == 2, "by the same threads as before"


@pytest.mark.spec("WM-THREAD-4")
def test_sys_exit_in_a_task_ends_neither_thread_nor_process(w):
    failing = w.register(lambda: sys.exit(0))
    for _ in range(3):
        with pytest.raises(TaskError, match="SystemExit: 0"):
            w.run(lambda orch, *_: orch.submit_sub(failing))
