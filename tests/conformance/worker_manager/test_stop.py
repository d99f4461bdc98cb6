"""WM-STOP: the end of the workers."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from simpler_ref import TaskArgs, TaskError, Worker, WorkerStartError
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from tests.support import DEADLINE_S, wait_until


class Own:
    def run(self, callable, view, config):
        pass


# ---------------------------------------------------------------- nothing is left
@pytest.mark.spec("WM-STOP-1")
@pytest.mark.parametrize("outer", ["process", "thread"])
@pytest.mark.parametrize("inner", ["process", "thread"])
@pytest.mark.parametrize("used", ["run", "start", "init"])
def test_close_leaves_no_process_and_no_thread(outer, inner, used):
    before = set(threading.enumerate())
    w = Worker(4, num_sub_workers=1, child_mode=outer)
    below = [Worker(3, num_sub_workers=2, child_mode=inner) for _ in range(2)]
    for one in below:
        one.add_sub(Own())
        w.add_worker(one)
    w.add_next_level(Own())
    w.init()
    handle = w.register(lambda orch, args, config: None)
    if used == "start":
        w.start()
    elif used == "run":
        w.run(lambda orch, *_: [orch.submit_next_level(handle, worker=i) for i in range(2)])
    w.close()
    assert psutil.Process().children(recursive=True) == []
    assert set(threading.enumerate()) <= before
    w.close()


@pytest.mark.spec("WM-STOP-1")
@pytest.mark.parametrize("of", ["a task", "the orch function"])
def test_close_after_a_failure_leaves_no_process_and_no_thread(mode, of):
    before = set(threading.enumerate())
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
    assert psutil.Process().children(recursive=True) == []
    assert set(threading.enumerate()) <= before
    w.close()  # not forgotten, and yet nothing of it is left


@pytest.mark.spec("WM-STOP-1", "WM-LOOP-4")
def test_a_start_that_fails_leaves_nothing_of_the_others(mode):
    class Refuses(Own):
        def start(self):
            raise OSError("no")

    before = set(threading.enumerate())
    w = Worker(4, num_sub_workers=1, child_mode=mode)
    below = [Worker(3, num_sub_workers=1) for _ in range(2)]
    below[1].add_sub(Refuses())
    for one in below:
        w.add_worker(one)
    w.init()
    with pytest.raises(WorkerStartError, match="OSError: no"):
        w.start()
    assert psutil.Process().children(recursive=True) == []
    w.close()
    assert set(threading.enumerate()) <= before
    assert below, "not forgotten, and yet nothing of them is left"


@pytest.mark.spec("WM-STOP-1")
def test_workers_that_wait_asleep_are_stopped():
    with Worker(3, num_sub_workers=3) as w:
        handle = w.register(lambda: None)
        w.run(lambda orch, *_: orch.submit_sub_group(handle, [TaskArgs()] * 3))
        mem = w._session.engine.mem
        first = int(mem[L.A_WORKERS]) + L.W_PARKED
        wait_until(lambda: all(mem[first + i * L.WORKER_WORDS] for i in range(3)))
        pids = w.worker_pids()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


# ---------------------------------------------------------------- D20
@pytest.mark.spec("WM-STOP-2")
@pytest.mark.parametrize("what", ["TASK", "CONTROL"])
def test_a_request_to_stop_during_a_task_or_request_is_obeyed_after_the_answer(make_driver, what):
    driver = make_driver(sub=1)
    ready = {"TASK": L.TASK_READY, "CONTROL": L.CONTROL_REQUEST}[what]
    answer = {"TASK": L.TASK_DONE, "CONTROL": L.CONTROL_DONE}[what]
    finish = {
        "TASK": driver.k.finish_and_receive,
        "CONTROL": driver.k.finish_control_and_receive,
    }[what]
    driver.x.post(driver.mem, 0, ready, 0)
    driver.k.request_stop(driver.mem, 0)
    assert driver.mailbox_state(0) == (ready, 0)
    assert finish(driver.mem, 0, 1) == L.STOP
    assert driver.mailbox_state(0) == (answer, 1), "the answer can be collected"
    assert driver.word(0, L.W_SHUTDOWN) == 1


@pytest.mark.spec("WM-STOP-2")
@pytest.mark.parametrize("what", ["TASK", "CONTROL"])
def test_a_request_to_stop_at_any_moment_of_an_answer_is_obeyed(make_driver, what):
    rounds = 50 if INTERPRETED else 3000
    driver = make_driver(sub=1)
    driver.mem[L.SPIN_NS] = 2000
    ready = {"TASK": L.TASK_READY, "CONTROL": L.CONTROL_REQUEST}[what]
    finish = {
        "TASK": driver.k.finish_and_receive_in_thread,
        "CONTROL": driver.k.finish_control_and_receive,
    }[what]
    stop = driver._worker(0) + L.W_SHUTDOWN

    def serve():
        answer = finish(driver.mem, 0, 0)
        while answer == L.PARK:
            answer = driver.k.park_and_receive(driver.mem, 0)
        return answer

    with ThreadPoolExecutor(1) as threads:
        for delay in range(rounds):
            driver.mem[stop] = 0
            driver.x.post(driver.mem, 0, ready, 0)
            serving = threads.submit(serve)
            for _ in range(delay % 97):
                pass
            driver.k.request_stop(driver.mem, 0)
            assert serving.result(DEADLINE_S) == L.STOP
            assert driver.mem[stop] == 1


@pytest.mark.spec("WM-STOP-3")
@pytest.mark.parametrize("state", [L.IDLE, L.TASK_DONE, L.CONTROL_DONE, L.INIT_DONE])
def test_any_state_without_work_becomes_shutdown(make_driver, state):
    driver = make_driver(sub=1)
    driver.x.post(driver.mem, 0, state, 0)
    driver.k.request_stop(driver.mem, 0)
    assert driver.mailbox_state(0)[0] == L.SHUTDOWN
    assert driver.k.park_and_receive(driver.mem, 0) == L.STOP


@pytest.mark.spec("WM-STOP-3")
@pytest.mark.parametrize("stop", ["before the claim", "before the release"])
def test_the_end_of_a_control_request_does_not_take_a_request_to_stop_back(make_driver, stop):
    """A worker that saw IDLE and is about to sleep must not find IDLE again."""
    driver = make_driver(sub=1)
    if stop == "before the claim":
        driver.k.request_stop(driver.mem, 0)
    assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.OK
    if stop == "before the release":
        driver.k.request_stop(driver.mem, 0)
    driver.k.release_mailbox(driver.mem, 0)
    assert driver.mailbox_state(0)[0] == L.SHUTDOWN


@pytest.mark.spec("WM-STOP-3")
def test_registrations_while_the_worker_closes_do_not_hang(mode):
    """Another thread registers and unregisters for as long as the Worker lets it."""
    for _ in range(3 if INTERPRETED else 10):
        w = Worker(3, num_sub_workers=2, child_mode=mode)
        w.init()
        w.start()
        busy, kinds = np.zeros(1, np.int64), []

        def again_and_again(w=w, busy=busy, kinds=kinds):
            try:
                while True:
                    w.unregister(w.register(lambda n=int(busy[0]): n))
                    busy[0] += 1
            except Exception as error:
                kinds.append(error)

        thread = threading.Thread(target=again_and_again)
        thread.start()
        wait_until(lambda busy=busy: busy[0] > 2)
        w.close()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
