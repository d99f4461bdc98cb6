"""CALL-FAIL: failures."""

from __future__ import annotations

import os
import signal
import traceback

import numpy as np
import pytest

import simpler_ref as sr


@sr.task
def boom(text):
    raise ValueError(text)


@sr.task
def add(a, b):
    return a + b


@sr.task
def spoil(x: sr.InOut):
    x[0] = 1
    raise KeyError("spoilt")


@sr.task
def read(x: sr.In):
    return float(x.sum())


@sr.task
def fill(x: sr.Out, value):
    x[:] = value


@sr.task
def update(x: sr.InOut):
    x += 1


@sr.task
def read_and_fail(x: sr.In):
    raise RuntimeError(f"read {x[0]}")


@sr.task
def die():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def processes():
    """Give a Worker with two processes."""
    with sr.Worker(num_sub_workers=2) as w:
        yield w


@pytest.mark.spec("CALL-FAIL-1", "CALL-FAIL-3")
def test_a_failure_reaches_those_that_need_the_value_and_no_other(w):
    failed = boom("first")
    needs = add(failed, 1)
    needs_that = add(needs, 1)
    other = add(1, 2)
    for future in (failed, needs, needs_that):
        with pytest.raises(ValueError, match="first"):
            future.result()
    assert other.result() == 3
    assert "was not made" in str(needs_that.exception().__notes__)


@pytest.mark.spec("CALL-FAIL-1")
def test_a_failure_reaches_those_that_need_what_it_should_have_written(w):
    x = w.share(np.zeros(4, np.float32))
    spoil(x)
    reads, updates = read(x), update(x)
    late = read(x)
    for future in (reads, updates, late):
        with pytest.raises(KeyError, match="spoilt"):
            future.result()
    with pytest.raises(KeyError):
        read(x).result()
    fill(x, 2)
    assert read(x).result() == 8


@pytest.mark.spec("CALL-FAIL-2")
def test_who_only_waits_is_made(w):
    x = w.share(np.zeros(4, np.float32))
    failed = read_and_fail(x)
    fill(x, 3)
    spoil(x)
    fill(x, 5)
    with pytest.raises(RuntimeError, match="read 0"):
        failed.result()
    assert read(x).result() == 20


@pytest.mark.spec("CALL-FAIL-3")
def test_an_error_has_both_types_and_the_workers_traceback(w):
    error = boom("both").exception()
    assert isinstance(error, ValueError) and isinstance(error, sr.TaskError)
    assert error.callable_name.endswith("boom")
    text = "".join(traceback.format_exception(error))
    assert "raise ValueError(text)" in text


@pytest.mark.spec("CALL-FAIL-4")
def test_a_dead_worker_fails_its_call_and_has_a_successor(processes):
    add(1, 2).result()
    for _ in range(3):
        before = set(processes.worker_pids())
        lost = die()
        with pytest.raises(sr.WorkerLostError, match="killed by SIGKILL"):
            lost.result()
        assert add(1, 2).result() == 3
        assert len(set(processes.worker_pids()) - before) <= 1
    assert sum(add(i, i).result() for i in range(50)) == 2450
    assert len(processes.worker_pids()) == 2


@pytest.mark.spec("CALL-FAIL-4")
def test_all_workers_may_die(processes):
    futures = [die() for _ in range(4)]
    for future in futures:
        assert isinstance(future.exception(), sr.WorkerLostError)
    assert add(1, 2).result() == 3
