"""CALL-LIMIT: time limits and retries."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import time
from multiprocessing import resource_tracker, shared_memory

import numpy as np
import psutil
import pytest

import simpler_ref as sr

from ...support import wait_until
from ...system.programs import dies
from .tasks import add, die


@sr.task(timeout=0.05)
def spin_with_alarms_of_its_own():
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    while True:
        pass


@sr.task(timeout=0.05)
def sleep_with_the_lock():
    ctypes.PyDLL(None).pause()


@sr.task(retries=2)
def die_until(x: sr.InOut, run):
    x[0] += 1
    if x[0] < run:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(x[0])


@sr.task(retries=1, timeout=0.05)
def hang_at_first(x: sr.InOut):
    x[0] += 1
    while x[0] == 1:
        pass
    return float(x[0])


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 4])
def w(request):
    """Give a Worker with three processes."""
    with sr.Worker(num_sub_workers=3, mailbox_depth=request.param) as w:
        yield w


@pytest.mark.spec("CALL-LIMIT-1")
@pytest.mark.parametrize("task", [spin_with_alarms_of_its_own, sleep_with_the_lock])
def test_a_call_over_its_limit_is_ended_with_its_worker(w, task):
    before, late = [add(i, i) for i in range(20)], task()
    needs, after = add(late, 1), [add(i, i) for i in range(20)]
    with pytest.raises(TimeoutError, match=rf"sub_worker \d.*{task.__name__}.* 0.05 s") as caught:
        late.result()
    error = caught.value
    assert isinstance(error, sr.TaskTimeoutError) and isinstance(error, sr.WorkerLostError)
    assert (error.limit, error.callable_name) == (0.05, task.__name__) and error.worker in range(3)
    assert isinstance(needs.exception(), sr.TaskTimeoutError)
    assert [one.result() for one in before + after] == [2 * i for i in range(20)] * 2
    workers, late = [psutil.Process(pid) for pid in w.worker_pids()], task()
    wait_until(lambda: sum(one.is_running() for one in workers) == 2)  # though nothing else waits
    assert isinstance(late.exception(), sr.TaskTimeoutError)


@pytest.mark.spec("CALL-LIMIT-1")
def test_what_a_call_over_its_limit_has_started_ends_with_it_and_trackers_clean_up(
    tmp_path, monkeypatch
):
    for name in ("_fd", "_pid"):  # a tracker that another test has started would be asked
        monkeypatch.setattr(resource_tracker._resource_tracker, name, None)

    def start(name, run_on):
        block = shared_memory.SharedMemory(create=True, size=1)
        started = subprocess.Popen(["sleep", "100"])
        (tmp_path / name).write_text(f"{started.pid} /dev/shm/{block.name}")
        time.sleep(run_on)
        return os.getpgrp()

    slow = sr.task(timeout=0.3)(start)
    with sr.Worker(num_sub_workers=1) as w:
        assert slow("early", 0).result() != w.submit(os.getpgrp).result() == os.getpgrp()
        with pytest.raises(sr.TaskTimeoutError):
            slow("late", 100).result()
    for name in ("early", "late"):
        pid, block = (tmp_path / name).read_text().split()
        wait_until(lambda block=block: not os.path.exists(block))
        assert dies(int(pid))


@pytest.mark.spec("CALL-LIMIT-1")
def test_a_limit_is_that_of_each_call_and_ends_with_it(w):
    @sr.task(timeout=0.4)
    def nap():
        time.sleep(0.05)
        return os.getpid()

    pids = {one.result() for one in [nap() for _ in range(30)]}
    assert pids <= set(w.worker_pids())
    in_time = sr.task(timeout=30)(divmod)
    assert [in_time(i, 1).result() for i in range(50)] == [(i, 0) for i in range(50)]
    with pytest.raises(ZeroDivisionError):
        in_time(1, 0).result()
    time.sleep(0.5)  # past the limit of the last one
    assert pids <= set(w.worker_pids())


@pytest.mark.spec("CALL-LIMIT-1")
def test_threads_refuse_a_limit_all_refuse_what_is_none_and_plain_calls_have_none():
    for name, error, *several in [
        *(("timeout", ValueError, 0, float("nan"), float("inf")), ("timeout", TypeError, "1")),
        *(("retries", ValueError, -1), ("retries", TypeError, 1.5, True)),
    ]:
        for wrong in several:
            with pytest.raises(error, match=name):
                sr.task(**{name: wrong})(divmod)
    nap = sr.task(timeout=1e-6)(lambda seconds: time.sleep(seconds))
    with sr.Worker(num_sub_workers=1, child_mode="thread"):
        with pytest.raises(ValueError, match="threads, which cannot be ended"):
            nap(1)
        assert add(1, 2).result() == 3
    assert nap(0.01) is None


@pytest.mark.spec("CALL-LIMIT-3")
def test_a_call_whose_worker_dies_is_run_again_as_often_as_it_may_be(w):
    def fail(x: sr.InOut):
        x[0] += 1
        raise ValueError

    x = w.share(np.zeros(1))
    assert die_until(x, 3).result() == 3
    x[0] = 0
    assert add(die_until(x, 2), 1).result() == 3
    x[0] = 0
    lost = die_until(x, 4)
    with pytest.raises(sr.WorkerLostError, match="SIGKILL"):
        lost.result()
    assert x[0] == 3
    assert isinstance(die().exception(), sr.WorkerLostError), "it has no retries"
    x = w.share(np.zeros(1))
    assert hang_at_first(x).result() == 2, "over its limit"
    assert isinstance(sr.task(retries=3)(fail)(x).exception(), ValueError)
    assert x[0] == 3, "one that raises is not"


@pytest.mark.spec("CALL-LIMIT-3")
def test_calls_behind_the_one_that_is_lost_are_made():
    with sr.Worker(num_sub_workers=4, mailbox_depth=8) as w:
        x = w.share(np.zeros(1))
        for _ in range(3):
            ended, lost = [add(i, i) for i in range(8)], die()
            ended += [add(i, i) for i in range(8)]
            chain = [add(ended[-1], 1)]
            for _ in range(8):
                chain.append(add(chain[-1], 1))
            x[0] = 0
            again = die_until(x, 3)
            assert [one.result() for one in ended] == [2 * i for i in range(8)] * 2
            assert chain[-1].result() == 14 + 9
            assert isinstance(lost.exception(), sr.WorkerLostError)
            assert again.result() == 3


@pytest.mark.spec("CALL-LIMIT-3")
@pytest.mark.parametrize("depth", [1, 4])
def test_calls_that_idle_workers_had_been_given_before_they_were_killed_are_made(depth):
    with sr.Worker(num_sub_workers=2, mailbox_depth=depth) as w:
        for _ in range(3):
            assert add(1, 2).result() == 3
            pids = w.worker_pids()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            calls = [add(i, i) for i in range(12)]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert [one.result() for one in calls] == [2 * i for i in range(12)]


@pytest.mark.spec("CALL-LIMIT-3")
def test_workers_may_be_killed_at_any_moment(w):
    @sr.task(retries=1000)
    def square(x: sr.In, y: sr.Out):
        y[:] = x * x

    @sr.task(retries=1000)
    def total(x: sr.In, before):
        return float(x.sum()) + before

    draw, x = random.Random(3), w.share(np.arange(100.0))
    for _ in range(6):
        ys, sums = [w.share(np.zeros(100)) for _ in range(4)], 0.0
        for y in ys * 5:
            square(x, y)
            sums = total(y, sums)
        time.sleep(draw.random() * 0.01)
        os.kill(draw.choice(w.worker_pids()), signal.SIGKILL)
        assert sums.result() == 20 * float((x * x).sum())
