"""CALL-WORKER: workers and what they keep."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import simpler_ref as sr

from ...system.workers import shared_words

MODES = [{}, {"child_mode": "thread"}, {"start_method": "spawn"}]


@sr.task
def add(a, b):
    return a + b


def remember(*values):
    sr.local.values = values
    sr.local.sum = add(*values)


@sr.task
def recall():
    return sr.local.values, sr.local.sum


@sr.task
def count():
    sr.local.count = getattr(sr.local, "count", 0) + 1
    return os.getpid(), threading.get_ident(), sr.local.count


@pytest.mark.spec("CALL-WORKER-1", "CALL-WORKER-3")
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_each_worker_is_initialized_before_its_first_task(mode):
    with sr.Worker(num_sub_workers=2, initializer=remember, initargs=[2, 3], **mode):
        assert [recall().result() for _ in range(20)] == [((2, 3), 5)] * 20


@pytest.mark.spec("CALL-WORKER-1", "CALL-WORKER-3")
def test_a_successor_is_initialized_anew():
    with sr.Worker(num_sub_workers=1, initializer=remember, initargs=(1, 1)) as w:
        assert [count().result()[2] for _ in range(3)] == [1, 2, 3]
        w.submit(os.kill, w.worker_pids()[0], signal.SIGKILL).exception()
        assert recall().result() == ((1, 1), 2)
        assert count().result()[2] == 1


@pytest.mark.spec("CALL-WORKER-3")
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_a_task_keeps_is_its_workers_own(mode):
    sr.local.count = 1000
    try:
        with sr.Worker(num_sub_workers=2, **mode):
            seen = {}
            for _ in range(50):
                pid, thread, number = count().result()
                seen.setdefault((pid, thread), []).append(number)
        assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in seen.values())
        assert sr.local.count == 1000
    finally:
        del sr.local.count
    with pytest.raises(AttributeError, match=r"local\.count: set it in Worker\(initializer"):
        print(sr.local.count)


def refuse():
    raise OSError("no licence left")


@pytest.mark.spec("CALL-WORKER-2")
@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_an_initializer_that_raises_makes_the_start_fail(mode, capfd):
    with sr.Worker(num_sub_workers=2, initializer=refuse, **mode) as w:
        for begin in (w.start, lambda: add(1, 2), lambda: w.run(lambda *_: None)):
            with pytest.raises(sr.WorkerStartError, match="OSError: no licence left") as raised:
                begin()
            assert "in refuse" in str(raised.value)


@pytest.mark.spec("CALL-WORKER-2")
def test_an_initializer_that_raises_in_a_successor_starts_no_other(capfd):
    words = shared_words(2)

    def initialize():
        words[1] += 1
        if words[0]:
            raise OSError("no licence left")

    with sr.Worker(num_sub_workers=1, initializer=initialize) as w:
        assert add(1, 2).result() == 3
        words[0] = 1
        lost, behind = w.submit(signal.raise_signal, signal.SIGKILL), add(1, 2)
        assert isinstance(lost.exception(), sr.WorkerLostError)
        with pytest.raises(sr.WorkerLostError, match="no licence left"):
            behind.result()
        assert words[1] == 2
        words[0] = 0
        assert add(1, 2).result() == 3
        assert words[1] == 3


@pytest.mark.spec("CALL-WORKER-1")
def test_what_is_no_initializer_is_refused():
    async def later():
        pass

    with pytest.raises(TypeError, match="initializer=5 is not callable"):
        sr.Worker(initializer=5)
    with pytest.raises(TypeError, match="initializer"):
        sr.Worker(initializer=later)
    with pytest.raises(TypeError, match="there is none"):
        sr.Worker(initargs=(1,))
    with pytest.raises(ValueError, match="give num_sub_workers"):
        sr.Worker(3, initializer=refuse)
