"""WM-LEFT: what tasks leave behind."""

import _thread
import atexit
import ctypes
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from multiprocessing import util

import numpy as np
import pytest

from simpler_ref import Worker, WorkerLostError, leaf
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.task_interface import TensorArgType as T
from simpler_ref.workers import fork_server, processes
from tests.support import DEADLINE_S, Gate, make_args

from .own import run_sub


def end_of(child: int) -> int:
    """Return the exit code of a child of this process, as soon as it ends."""
    fd = os.pidfd_open(child)
    try:
        assert select.select([fd], [], [], DEADLINE_S)[0], "the child does not end"
    finally:
        os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def raise_again(error):
    raise error


WAYS_BACK = {
    "returns": (lambda: None, 0),
    "exits": (lambda: sys.exit(0), 0),
    "exits with a status": (lambda: sys.exit(7), 7),
    "exits with words": (lambda: sys.exit("that was all"), 1),
    "raises": (lambda: raise_again(ValueError("in the child")), 1),
    "is interrupted": (lambda: raise_again(KeyboardInterrupt()), 1),
}


@pytest.mark.spec("WM-LEFT-1")
@pytest.mark.parametrize(("mode", "depth"), [("process", 1), ("thread", 4)])
def test_the_child_of_a_task_ends_and_the_worker_does_all_tasks_once(mode, depth, capfd):
    with Worker(3, num_sub_workers=1, child_mode=mode, mailbox_depth=depth) as w:
        done = w.share(np.zeros(1, np.int64))
        ended, children = w.share(np.full(1, -1, np.int64)), []

        def forking(come_back):
            def forks():
                child = os.fork()
                if child:
                    children.append(child)
                else:
                    come_back()

            return w.register(forks)

        def counts():
            done[0] += 1

        def sees():
            ended[0] = end_of(children.pop())

        count, see = w.register(counts), w.register(sees)

        def orch_fn(orch, fork, _):
            orch.submit_sub(fork)
            for _ in range(20):
                orch.submit_sub(count)
            orch.submit_sub(see)

        forks = {way: forking(come_back) for way, (come_back, _) in WAYS_BACK.items()}
        for way, (_, status) in WAYS_BACK.items():
            for _ in range(3):
                done[0] = 0
                w.run(orch_fn, forks[way])
                assert (done[0], ended[0]) == (20, status), way
    said = capfd.readouterr().err
    assert said.count("ValueError: in the child") == said.count("that was all") == 3


@pytest.mark.spec("WM-LEFT-1")
def test_what_tasks_have_started_ends_with_their_worker_as_python_ends_it(monkeypatch, caplog):
    monkeypatch.setattr(fork_server, "GRACE_S", 0.01)  # so `close` says for whom it waits
    monkeypatch.setattr(processes, "GRACE_S", 1e4)
    fork = multiprocessing.get_context("fork")
    reads, writes = os.pipe()
    with Worker(3, num_sub_workers=1) as w:
        daemon, at_exit, child, thread, of_program = (w.share(np.zeros(1, int)) for _ in range(5))

        def mark_late(mark):
            time.sleep(0.1)
            mark[0] = 1

        def starts():
            process = fork.Process(target=time.sleep, args=(DEADLINE_S,), daemon=True)
            process.start()
            daemon[0] = process.pid
            fork.Process(target=mark_late, args=(child,)).start()
            threading.Thread(target=mark_late, args=(thread,)).start()
            atexit.register(at_exit.fill, 1)
            if os.fork() == 0:  # Python knows nothing of this one
                os.close(writes)
                os.read(reads, 1)
                os._exit(0)

        atexit.register(of_program.fill, 1)
        at_end = util.Finalize(None, of_program.fill, (1,), exitpriority=1)
        run_sub(w, w.register(starts))
    at_end.cancel()
    atexit.unregister(of_program.fill)
    os.close(writes)
    os.close(reads)
    assert not os.path.exists(f"/proc/{daemon[0]}")
    assert [int(one[0]) for one in (at_exit, child, thread, of_program)] == [1, 1, 1, 0]
    assert "has stopped, and waits for children or threads" in caplog.text


@pytest.mark.spec("WM-LEFT-1")
def test_workers_that_a_thread_without_an_object_has_forked_end_without_a_word(capfd):
    def starts():
        with Worker(3, num_sub_workers=1) as w:
            run_sub(w, w.register(lambda: atexit.register(print, "at exit", flush=True)))
        ended.set()

    ended = threading.Event()
    _thread.start_new_thread(starts, ())
    assert ended.wait(DEADLINE_S)
    assert capfd.readouterr() == ("at exit\n", "")


class Late(BaseException):
    pass


def raise_late(*_):
    raise Late("from a task that has ended")


def terminate_later(go, gone):
    """Leave a handler; the test sends its signal when the worker sleeps."""
    signal.signal(signal.SIGUSR1, raise_late)


def profile(go, gone):
    sys.setprofile(lambda frame, event, arg: raise_late() if event == "c_call" else None)


def trace(go, gone):
    """Leave a function that raises in what the worker itself calls."""
    sys.settrace(lambda frame, *_: raise_late() if frame.f_code.co_name == "flush_output" else None)


def recurse(go, gone):
    limit = 1
    while True:
        try:
            sys.setrecursionlimit(limit)
            return
        except RecursionError:
            limit += 1


def inject(go, gone):
    """Leave a thread that raises an exception in the main one when it is told to."""
    main = ctypes.c_ulong(threading.main_thread().ident)

    def raise_there():
        go.wait()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(Late))
        gone.open(1)

    threading.Thread(target=raise_there, daemon=True).start()


LEFT = [terminate_later, profile, trace]
if not INTERPRETED:  # these would cut an interpreted kernel in two
    LEFT += [recurse, inject]


@leaf
def adds_one(x):
    x[0] += 1


@pytest.mark.spec("WM-LEFT-2", "SCHED-MAIL-9")
@pytest.mark.parametrize("leave", LEFT)
def test_what_comes_between_two_tasks_fails_none_and_each_is_run_once(leave, capfd):
    """A task leaves something behind that comes while the worker waits, or is to end."""
    depth = [1, 4][LEFT.index(leave) % 2]
    adds_one(np.zeros(1, np.int64))  # compiled here, not again in each worker
    with Gate() as go, Gate() as gone, Worker(3, num_sub_workers=1, mailbox_depth=depth) as w:
        done = w.share(np.zeros(1, np.int64))
        leaves, compiled = w.register(lambda: leave(go, gone)), w.register(adds_one)
        count = w.register(lambda: done.__setitem__(0, done[0] + 1))
        w.start()
        pids = w.worker_pids()

        def run(handle, times=1):
            args = make_args((done, T.INOUT)) if handle is compiled else None
            w.run(lambda orch, *_: [orch.submit_sub(handle, args) for _ in range(times)])

        def leave_behind():
            run(leaves)
            if leave is terminate_later:
                os.kill(pids[0], signal.SIGUSR1)
            elif leave is inject:
                go.open(1)
                gone.wait()

        for handle in (count, compiled):
            run(handle)
            for round_ in range(3):
                done[0] = 0
                leave_behind()
                run(handle, 20)
                assert done[0] == 20, round_
        assert w.worker_pids() == pids
        capfd.readouterr()
        leave_behind()
    assert "Traceback" not in capfd.readouterr().err.split("was raised between two tasks")[0]


@pytest.mark.spec("WM-LEFT-2")
def test_the_worker_has_what_it_had_at_its_start_again():
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros((2, 8), np.int64))

        def look(row):
            seen[row, 0] = signal.getsignal(signal.SIGUSR1) is raise_late
            seen[row, 1] = signal.getsignal(signal.SIGALRM) is raise_late
            seen[row, 2] = signal.getitimer(signal.ITIMER_REAL)[0] > 0
            seen[row, 3] = sys.getprofile() is not None
            seen[row, 4] = sys.gettrace() is not None
            seen[row, 5] = sys.getrecursionlimit() < 500
            seen[row, 6] = signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            seen[row, 7] = signal.getsignal(signal.SIGINT) is raise_late

        def leaves():
            for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGINT):
                signal.signal(number, raise_late)
            signal.setitimer(signal.ITIMER_REAL, 1000)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
            sys.setrecursionlimit(400)
            sys.settrace(lambda *_: None)
            sys.setprofile(lambda *_: None)
            look(0)

        leave, look_again = w.register(leaves), w.register(lambda: look(1))
        run_sub(w, leave)
        os.kill(w.worker_pids()[0], signal.SIGUSR1)
        run_sub(w, look_again)
        assert seen.tolist() == [[1] * 8, [0] * 8]


@pytest.mark.spec("WM-LEFT-2")
@pytest.mark.parametrize(("depth", "earlier_run"), [(1, True), (4, False)])
def test_a_lost_worker_names_what_it_had_done_before(depth, earlier_run):
    with Worker(3, num_sub_workers=1, mailbox_depth=depth) as w:
        cell = w.share(np.zeros(1, np.int64))

        def leaves_an_alarm():
            pass

        def victim():
            os.kill(os.getpid(), signal.SIGALRM)

        first, second = w.register(leaves_an_alarm), w.register(victim)
        args = make_args((cell, T.INOUT))

        def orch_fn(orch, *_):
            orch.submit_sub(first, args)
            orch.submit_sub(first, args)
            if not earlier_run:
                orch.submit_sub(second, args)

        words = r"task \d+ \(.*victim\).*SIGALRM.*; before.* run task 1 \(.*leaves_an_alarm\)"
        with pytest.raises(WorkerLostError, match=words):
            w.run(orch_fn)
            run_sub(w, second, args)
        with pytest.raises(WorkerLostError) as caught:
            run_sub(w, second)
        assert "before that" not in str(caught.value), "the new one had done nothing"


@pytest.mark.spec("WM-LEFT-1")
def test_a_child_that_a_called_function_forks_answers_no_later_call():
    def forks():
        if os.fork() == 0:
            time.sleep(0.003)
            return -1
        return 0

    def late(value):
        time.sleep(0.001)
        return value

    with Worker(num_sub_workers=1) as w:
        for _ in range(8):
            calls = [w.submit(forks), *(w.submit(late, i) for i in range(1, 12))]
            assert [call.result() for call in calls] == list(range(12))
