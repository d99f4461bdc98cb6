"""CALL-FUTURE: futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import threading
import time

import numpy as np
import pytest

import simpler_ref as sr

from .tasks import add, wait_at


@sr.task
def boom():
    raise ValueError("boom")


@pytest.mark.spec("CALL-FUTURE-1", "CALL-FUTURE-3")
def test_a_result_is_waited_for_alone(gate):
    held = wait_at(gate, "held")
    assert [add(i, 1).result() for i in range(10)] == list(range(1, 11))
    assert not held.done()
    gate[0] = 1
    assert held.result() == "held" and held.done() and not held.running()


@pytest.mark.spec("CALL-FUTURE-1")
def test_a_result_is_the_same_each_time(w):
    future, failed = add([1], [2]), boom()
    assert future.result() is future.result()
    errors = [failed.exception(), failed.exception()]
    assert errors[0] is errors[1]
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            failed.result()
        assert caught.value is errors[0]


@pytest.mark.spec("CALL-FUTURE-1", "CALL-FUTURE-3")
def test_a_timeout_ends_the_wait_and_not_the_call(gate):
    held = wait_at(gate, 5)
    for wait in (held.result, held.exception):
        with pytest.raises(concurrent.futures.TimeoutError, match=r"wait_at.* 0.01 s"):
            wait(0.01)
    deadline = time.monotonic() + 30
    while not held.running():
        assert time.monotonic() < deadline
    gate[0] = 1
    assert held.result(30) == 5
    assert held.exception() is None


@pytest.mark.spec("CALL-FUTURE-2")
def test_wait_and_as_completed_take_them(gate):
    held, quick = wait_at(gate, "held"), add(1, 2)
    done, waiting = concurrent.futures.wait(
        [held, quick], timeout=30, return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert done == {quick} and waiting == {held}
    finished = concurrent.futures.as_completed([held, quick], timeout=30)
    assert next(finished) is quick
    gate[0] = 1
    assert next(finished).result() == "held"
    numbers = [add(i, 0) for i in range(200)]
    assert sum(one.result() for one in concurrent.futures.as_completed(numbers)) == 19900


@pytest.mark.spec("CALL-FUTURE-2")
def test_callbacks_are_called_once_with_the_future(w):
    told = threading.Event()
    seen = []

    def note(future):
        seen.append((future, future.result(), add(future, 1).result()))
        told.set()

    future = add(1, 2)
    future.add_done_callback(note)
    assert told.wait(30)
    late = []
    future.add_done_callback(late.append)
    assert seen == [(future, 3, 4)] and late == [future]
    failed, ended = boom(), threading.Event()
    failed.add_done_callback(lambda one: ended.set())
    assert ended.wait(30)
    with pytest.raises(ValueError, match="boom"):
        failed.result()


@pytest.mark.spec("CALL-FUTURE-2")
def test_a_coroutine_awaits_them(w):
    async def program():
        numbers = await asyncio.gather(*(add(i, i) for i in range(20)))
        try:
            await boom()
        except ValueError as error:
            return numbers, str(error)

    numbers, text = asyncio.run(program())
    assert numbers == [2 * i for i in range(20)]
    assert "boom" in text


@pytest.mark.spec("CALL-FUTURE-4")
def test_a_call_whose_future_is_dropped_is_made(w):
    @sr.task
    def count(x: sr.InOut):
        x += 1

    x = w.share(np.zeros(1, np.int32))
    for _ in range(1000):
        count(x)
    count(x).result()
    assert x[0] == 1001


@pytest.mark.spec("CALL-FUTURE-5")
def test_a_future_cannot_be_pickled(w):
    future = add(1, 2)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(future)
    with pytest.raises(TypeError, match=r"Worker\.submit"):
        sr.Future()
    assert "add" in repr(future)
    future.result()
    assert "int" in repr(future)
