"""FLOW-UNDO: registrations that fail.

The workers here are of a kind that refuses, hangs or dies when it is told to by shared words.
"""

import os
import pickle
import signal
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from simpler_ref import TaskArgs, Worker
from simpler_ref.errors import CallableError
from simpler_ref.workers.kinds import WorkerKind

FINE, REFUSE, HANG, DIE = range(4)


class Obedient(WorkerKind):
    """Installs and removes as its words say: [install, remove, installed now, removals asked]."""

    label = "obedient"

    def __init__(self, words):
        self.words = words

    def _act(self, what):
        if what == REFUSE:
            raise OSError("the disk is full")
        if what == HANG:
            time.sleep(1.0)
        if what == DIE:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self, target):
        self._act(self.words[0])
        self.words[2] += 1
        return target

    def remove(self, installed):
        self.words[3] += 1
        self._act(self.words[1])
        self.words[2] -= 1

    def run(self, callable, view, config):
        callable()


@pytest.fixture
def make():
    """Give a way to start a Worker with three such workers; it returns that and their words."""
    with ExitStack() as stack:

        def make(mode, **more):
            memory = stack.enter_context(Worker(3))
            words = [memory.share(np.zeros(4, np.int64)) for _ in range(3)]
            w = Worker(3, child_mode=mode, **more)
            for one in words:
                w.add_next_level(Obedient(one))
            stack.enter_context(w).start()
            return w, words

        yield make


def installed(words):
    return [int(one[2]) for one in words]


def run_on_all(w, handle):
    w.run(lambda orch, *_: orch.submit_next_level_group(handle, [TaskArgs()] * 3))


def function():
    return 1


@pytest.mark.spec("FLOW-UNDO-1")
def test_if_one_worker_refuses_all_forget_and_it_can_be_registered_later(make, mode):
    w, words = make(mode)
    for which in range(3):
        words[which][0] = REFUSE
        for _ in range(2):
            with pytest.raises(CallableError, match="the disk is full") as caught:
                w.register(function)
            assert caught.value.code == "REGISTER_PARTIAL_FAILURE"
            assert f"obedient {which}" in str(caught.value)
            assert installed(words) == [0, 0, 0]
            assert not w._life.registry._used
        words[which][0] = FINE
        handle = w.register(function)
        assert installed(words) == [1, 1, 1]
        run_on_all(w, handle)
        w.unregister(handle)


@pytest.mark.spec("FLOW-UNDO-1")
@pytest.mark.parametrize("what", [HANG, DIE])
def test_if_a_process_hangs_or_dies_in_it_all_forget_and_the_next_run_has_all(make, what):
    w, words = make("process", py_control_timeout_s=0.3)
    words[1][0] = what
    with pytest.raises(CallableError, match=r"REGISTER_PARTIAL_FAILURE.*obedient 1"):
        w.register(function)
    assert installed(words) == [0, 0, 0]
    words[1][0] = FINE
    w.run(lambda orch, *_: None)
    run_on_all(w, w.register(function))
    assert installed(words) == [1, 1, 1]


@pytest.mark.spec("FLOW-UNDO-2")
def test_if_the_roll_back_is_not_confirmed_the_callable_is_of_no_more_use(make, mode):
    w, words = make(mode)
    words[2][0] = REFUSE
    words[0][1] = REFUSE
    with pytest.raises(CallableError, match="REGISTER_CLEANUP_UNCERTAIN") as caught:
        w.register(function)
    assert caught.value.code == "REGISTER_CLEANUP_UNCERTAIN"
    assert "the disk is full" in str(caught.value)
    assert [int(one[3]) for one in words] == [1, 1, 0], "both that had it were asked"
    words[2][0] = words[0][1] = FINE
    for _ in range(2):
        with pytest.raises(CallableError, match="REGISTER_CLEANUP_UNCERTAIN"):
            w.register(function)
    other = w.register(lambda: 2)
    run_on_all(w, other)
    fresh, _ = make(mode)
    fresh.register(function)


@pytest.mark.spec("FLOW-UNDO-3")
def test_what_cannot_be_serialised_is_refused_once_processes_run():
    lock = threading.Lock()
    with Worker(3, num_sub_workers=2) as w:

        def body():
            with lock:
                pass

        early = w.register(body)
        w.start()
        for _ in range(2):
            with pytest.raises(TypeError, match=r"cannot be serialised.*before"):
                w.register(body)
        with pytest.raises(TypeError, match="memory of one process: it cannot be pickled"):
            pickle.dumps(w._session.engine)
        w.run(lambda orch, *_: orch.submit_sub(early))
        assert len(w._life.registry._used) == 1
