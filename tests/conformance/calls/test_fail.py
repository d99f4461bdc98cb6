"""CALL-FAIL: failures."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import threading
import time
import traceback

import numpy as np
import pytest

import simpler_ref as sr

from ...support import DEADLINE_S, wait_until
from ...system.workers import shared_words
from .tasks import add, die, fill, same, total, update, wait_at


@sr.task
def boom(text):
    raise ValueError(f"no {text}")


@sr.task
def spoil(x: sr.InOut):
    x[0] = 1
    raise KeyError("spoilt")


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
    assert "was not made" in str(needs_that.exception().__cause__)
    error = failed.exception()
    assert (type(error), str(error)) == (ValueError, "no first")
    assert isinstance(error.__cause__, sr.RemoteTraceback)
    assert error.__cause__.callable_name.endswith("boom")
    assert 'raise ValueError(f"no {text}")' in "".join(traceback.format_exception(error))


@pytest.mark.spec("CALL-FAIL-1")
def test_a_failure_reaches_those_that_need_what_it_should_have_written(w):
    x = w.share(np.zeros(4, np.float32))
    spoil(x)
    reads, updates = total(x), update(x)
    late = total(x)
    for future in (reads, updates, late):
        with pytest.raises(KeyError, match="spoilt"):
            future.result()
    x[:] = 0  # of which the Worker does not know
    with pytest.raises(KeyError) as caught:
        total(x).result()
    note = caught.value.__cause__.story.splitlines()[-1]
    assert "Let a call overwrite all of this array, as Out" in note and "or use a new array" in note
    fill(x, 2)
    assert total(x).result() == 8


@pytest.mark.spec("CALL-FAIL-1")
def test_who_only_waits_is_made(w):
    def read_and_fail(x: sr.In):
        raise RuntimeError(f"read {x[0]}")

    x = w.share(np.zeros(4, np.float32))
    failed = w.submit(read_and_fail, x)
    fill(x, 3)
    spoil(x)
    fill(x, 5)
    with pytest.raises(RuntimeError, match="read 0"):
        failed.result()
    assert total(x).result() == 20


def has_value(future):
    """Say whether a call has returned something, without waiting for it."""
    with contextlib.suppress(concurrent.futures.TimeoutError):
        future.result(timeout=0)
        return True
    return False


@pytest.mark.spec("CALL-FAIL-4")
@pytest.mark.parametrize("ask", [sr.Future.done, has_value])
def test_a_dead_worker_has_a_successor_if_a_program_only_asks_whether_calls_have_ended(ask):
    with sr.Worker(num_sub_workers=1) as w:
        w.submit(os.getpid).result()
        lost, others = die(), [add(i, 1) for i in range(3)]
        for one in others:
            wait_until(lambda one=one: ask(one))
        assert isinstance(lost.exception(), sr.WorkerLostError)
        assert [one.result() for one in others] == [1, 2, 3]


@pytest.mark.spec("CALL-FAIL-4")
def test_a_call_that_needs_a_lost_one_names_the_worker_that_died_and_not_its_successor():
    def die_with(x: sr.InOut):
        die.py_func()

    with sr.Worker(num_sub_workers=1) as w:
        x = w.zeros(4)
        lost = w.submit(die_with, x)
        pid = lost.exception().pid
        assert total(x).exception().pid == pid  # when there is another in its place
        assert [w.submit(os.getpid).result()] == w.worker_pids() != [pid]
        assert f"(pid {pid})" in str(total(x).exception())


@pytest.mark.spec("CALL-FAIL-4")
def test_without_successors_a_run_and_the_end_of_the_worker_do_not_wait():
    has_none = shared_words(1)

    def refuse_or_start():
        if has_none[0]:
            raise OSError("no licence left")

    with sr.Worker(num_sub_workers=2, initializer=refuse_or_start) as w:
        assert add(1, 2).result() == 3
        has_none[0] = 1
        futures = [die() for _ in range(3)]
        with pytest.raises(sr.WorkerStartError, match="no licence left"):
            w.run(lambda orch, args, config: None)
        has_none[0] = 0
        w.run(lambda orch, args, config: None)
        assert add(1, 2).result() == 3
        has_none[0] = 1
        futures += [die() for _ in range(3)]
    for future in futures:
        assert isinstance(future.exception(), sr.WorkerLostError)


@pytest.mark.spec("CALL-FAIL-3")
@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_the_end_of_an_iterator_in_a_task_does_not_end_a_loop_of_the_program(w, kind):
    def end():
        raise kind("no more")

    futures = [add(1, 1), w.submit(end), add(2, 2)]
    with pytest.raises(sr.TaskError, match=f"{kind.__name__}: no more") as raised:
        list(map(sr.Future.result, futures))
    assert type(raised.value) is sr.TaskError

    with pytest.raises(sr.TaskError, match="no more"):
        asyncio.run(asyncio.wait_for(futures[1], None))


@pytest.mark.spec("CALL-FAIL-3")
def test_the_time_out_of_a_task_is_its_own_and_that_of_result_has_no_cause(w):
    def late():
        raise TimeoutError("the server is silent")

    with pytest.raises(TimeoutError, match=r"^the server is silent$") as raised:
        w.submit(late).result(timeout=DEADLINE_S)
    assert isinstance(raised.value.__cause__, sr.RemoteTraceback)
    slow = w.submit(time.sleep, 0.05)
    with pytest.raises(concurrent.futures.TimeoutError) as raised:
        slow.result(timeout=0)
    assert raised.value.__cause__ is None
    slow.result()


# ---------------------------------------------------------------- errors that nobody asks for
def tellers():
    return [one.ident for one in threading.enumerate() if one.name == "simpler_ref-failures"]


def told(caplog):
    """Return the messages so far."""
    gc.collect()
    found = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    caplog.clear()
    return found


@pytest.mark.spec("CALL-FAIL-7")
def test_the_error_of_a_call_that_nobody_can_ask_for_is_logged_once(mode, caplog):
    with sr.Worker(num_sub_workers=1, child_mode=mode):
        for number in (0, 1, 2, 2, 2):
            boom(number)
            same(number)
        kept = [boom(3), boom(4)]
    messages = told(caplog)
    for number, times in enumerate((1, 1, 3)):
        first, *others = [text for text in messages if f"ValueError: no {number}" in text]
        assert "nobody has asked" in first and "in boom" in first
        assert ["in boom" in text for text in others] == [False] * (times - 1), "the same traceback"
    assert len(messages) == 5 and not told(caplog)
    assert isinstance(kept.pop().exception(), ValueError)
    assert not told(caplog)
    kept.clear()
    (message,) = told(caplog)
    assert "no 3" in message


@pytest.mark.spec("CALL-FAIL-7")
def test_an_error_that_somebody_has_asked_for_is_not_logged_nor_a_cancelled_call(w, caplog):
    w.run(lambda *_: None)
    told(caplog)  # of earlier tests
    flag = w.zeros(1)
    held, calls = [wait_at(flag) for _ in range(2)], [same(1) for _ in range(40)]
    assert calls.pop().cancel()
    flag[0] = 1
    del held, calls

    async def wait():
        with pytest.raises(ValueError):
            await boom(4)

    with pytest.raises(ValueError):
        boom(1).result()
    assert isinstance(boom(2).exception(), ValueError)
    with pytest.raises(ValueError):
        same(same(boom(3))).result()
    asyncio.run(wait())
    boom(5).add_done_callback(sr.Future.exception)
    late = boom(6)
    w.run(lambda *_: None)
    assert isinstance(late.exception(), ValueError)
    del late
    assert not told(caplog)


@pytest.mark.spec("CALL-FAIL-7")
def test_lost_calls_are_logged_and_very_many_are_counted(caplog):
    with sr.Worker(num_sub_workers=1) as w:
        w.submit(os._exit, 3)
    (message,) = told(caplog)
    assert "exit status 3" in message or "3" in message.partition("(_exit)")[2]
    with sr.Worker(num_sub_workers=1):
        for number in range(100):
            boom(number)
    messages = told(caplog)
    ones = [text for text in messages if not text.endswith("asked for their results")]
    counted = sum(int(text.split()[0]) for text in set(messages) - set(ones))
    assert counted == 100 - len(ones)
    assert {text.partition("no ")[2].splitlines()[0] for text in ones} <= {
        str(i) for i in range(100)
    }
    assert len(ones) >= 14


@pytest.mark.spec("CALL-FAIL-7")
def test_a_program_that_only_submits_is_told_soon(mode, caplog, monkeypatch):
    monkeypatch.setattr("simpler_ref.calls.call_errors.LOGGED_AFTER_S", 0.05)
    messages, before = [], tellers()

    def has_told(number):
        messages.extend(told(caplog))
        return any(f"no {number}\n" in f"{text}\n" for text in messages)

    with sr.Worker(num_sub_workers=1, child_mode=mode):
        kept, needs = boom(1), same(boom(2))
        boom(3)
        wait_until(lambda: has_told(3))
        time.sleep(0.2)
        assert not has_told(1) and not has_told(2)
        del kept
        wait_until(lambda: has_told(1))
        assert isinstance(needs.exception(), ValueError)
        for number in range(4, 104):
            boom(number)
        wait_until(lambda: has_told(103) or any("more calls failed" in one for one in messages))
    assert not has_told(2)
    assert tellers() == before
