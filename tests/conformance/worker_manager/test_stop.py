"""WM-STOP: the end of the workers."""

import threading

import psutil
import pytest

from simpler_ref import TaskError, Worker
from simpler_ref.jit import layout as L

from .own import Calls


@pytest.mark.spec("WM-STOP-1")
@pytest.mark.parametrize(
    ("inner", "used"),
    [
        *(("process", "run"), ("thread", "start"), ("thread", "init")),
        *(("process", "a task fails"), ("process", "the orch function fails")),
    ],
)
def test_close_leaves_no_process_and_no_thread_also_after_a_failure(mode, inner, used):
    before = set(threading.enumerate())
    w = Worker(4, num_sub_workers=1, child_mode=mode)
    below = [Worker(3, num_sub_workers=2, child_mode=inner) for _ in range(2)]
    for one in below:
        one.add_sub(Calls())
        w.add_worker(one)
    w.add_next_level(Calls())
    w.init()
    handle, fails = w.register(lambda orch, args, config: None), w.register(lambda: 1 / 0)

    def orch_fn(orch, *_):
        for i in range(2):
            orch.submit_next_level(handle, worker=i)
        if used.endswith("fails"):
            orch.submit_sub(fails)
        if used == "the orch function fails":
            raise LookupError

    if used == "start":
        w.start()
    elif used == "run":
        w.run(orch_fn)
    elif used != "init":
        with pytest.raises((TaskError, LookupError)):
            w.run(orch_fn)
    for _ in range(2):
        w.close()
        assert psutil.Process().children(recursive=True) == []
        assert set(threading.enumerate()) <= before


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
