"""WM-STOP: the end of the workers."""

import threading

import psutil
import pytest

from simpler_ref import TaskError, Worker
from simpler_ref.jit import layout as L

from .own import Calls


@pytest.fixture
def nothing_is_left():
    """Give a check that no process and no thread of the test is left."""
    before = set(threading.enumerate())

    def check():
        assert psutil.Process().children(recursive=True) == []
        assert set(threading.enumerate()) <= before

    return check


@pytest.mark.spec("WM-STOP-1")
@pytest.mark.parametrize(
    ("mode", "inner", "used"),
    [
        ("process", "process", "run"),
        ("process", "thread", "start"),
        ("thread", "process", "run"),
        ("thread", "thread", "init"),
    ],
)
def test_close_leaves_no_process_and_no_thread(nothing_is_left, mode, inner, used):
    w = Worker(4, num_sub_workers=1, child_mode=mode)
    below = [Worker(3, num_sub_workers=2, child_mode=inner) for _ in range(2)]
    for one in below:
        one.add_sub(Calls())
        w.add_worker(one)
    w.add_next_level(Calls())
    w.init()
    handle = w.register(lambda orch, args, config: None)
    if used == "start":
        w.start()
    elif used == "run":
        w.run(lambda orch, *_: [orch.submit_next_level(handle, worker=i) for i in range(2)])
    w.close()
    nothing_is_left()
    w.close()


@pytest.mark.spec("WM-STOP-1")
@pytest.mark.parametrize("of", ["a task", "the orch function"])
def test_close_after_a_failure_leaves_no_process_and_no_thread(nothing_is_left, mode, of):
    w = Worker(3, num_sub_workers=2, child_mode=mode)
    w.init()
    handle = w.register(lambda: 1 / 0)

    def orch_fn(orch, *_):
        orch.submit_sub(handle)
        if of == "the orch function":
            raise LookupError

    with pytest.raises((TaskError, LookupError)):
        w.run(orch_fn)
    w.close()
    nothing_is_left()
    w.close()  # not forgotten, and yet nothing of it is left


@pytest.mark.spec("WM-STOP-3")
@pytest.mark.parametrize("state", [L.IDLE, L.TASK_DONE, L.CONTROL_DONE, L.INIT_DONE])
def test_any_state_without_work_becomes_shutdown(one, state):
    one.x.post(one.mem, 0, state, 0)
    one.k.request_stop(one.mem, 0)
    assert (one.mailbox_state(0)[0], one.k.park_and_receive(one.mem, 0)) == (L.SHUTDOWN, L.STOP)


@pytest.mark.spec("WM-STOP-3")
@pytest.mark.parametrize("stop", ["before the claim", "before the release"])
def test_the_end_of_a_control_request_does_not_take_a_request_to_stop_back(one, stop):
    """A worker that saw IDLE and is about to sleep must not find IDLE again."""
    if stop == "before the claim":
        one.k.request_stop(one.mem, 0)
    assert one.k.claim_mailbox(one.mem, 0, 0) == L.OK
    if stop == "before the release":
        one.k.request_stop(one.mem, 0)
    one.k.release_mailbox(one.mem, 0)
    assert one.mailbox_state(0)[0] == L.SHUTDOWN
