"""CALL-FUTURE: futures."""

import concurrent.futures
import gc
import pickle
import threading
import time

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref.calls import futures
from tests.support import wait_until

from .tasks import add, same, wait_at


@sr.task
def boom():
    raise ValueError("boom")


@pytest.mark.spec("CALL-FUTURE-1")
def test_a_result_is_waited_for_alone_and_is_the_same_each_time(gate):
    held = wait_at(gate, "held")
    assert [add(i, 1).result() for i in range(10)] == list(range(1, 11))
    assert not held.done()
    gate[0] = 1
    assert held.result() == "held" and held.done() and not held.running()
    future, failed = add([1], [2]), boom()
    assert future.result() is future.result()
    errors = [failed.exception(), failed.exception()]
    assert errors[0] is errors[1]
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            failed.result()
        assert caught.value is errors[0]


@pytest.mark.spec("CALL-FUTURE-4")
def test_nobody_but_the_call_ends_a_future(gate):
    held = wait_at(gate, "held")
    held.add_done_callback(lambda one: None)
    for end, given in (
        (held.set_result, (3,)),
        (held.set_exception, (KeyError(3),)),
        (held.set_running_or_notify_cancel, ()),
    ):
        with pytest.raises(concurrent.futures.InvalidStateError, match="comes from its call"):
            end(*given)
    assert not held.done()
    gate[0] = 1
    assert concurrent.futures.wait([held], 30) == ({held}, set()) and held.result() == "held"


@pytest.mark.spec("CALL-FUTURE-1")
def test_a_timeout_ends_the_wait_and_not_the_call_and_one_that_is_none_is_refused(gate):
    held = wait_at(gate, 5)
    for wait in (held.result, held.exception):
        with pytest.raises(concurrent.futures.TimeoutError, match=r"wait_at.* 0.01 s"):
            wait(0.01)
        for over in (-1, float("-inf"), np.float32(0.01), -(10**400)):
            with pytest.raises(concurrent.futures.TimeoutError):
                wait(over)
        for wrong in ("x", [1], 1j):
            with pytest.raises(TypeError, match=r"timeout=.* is not a number.*; leave it out"):
                wait(wrong)
        with pytest.raises(ValueError, match="timeout=nan is no time"):
            wait(float("nan"))
    wait_until(held.running)
    gate[0] = 1
    assert held.result(float("inf")) == held.result(10**400) == 5
    assert held.exception(30) is None
    with pytest.raises(TypeError, match="timeout='x'"):
        held.result("x")


@pytest.mark.spec("CALL-FUTURE-1")
def test_callbacks_are_called_once_with_the_future(w):
    told, seen = threading.Event(), []

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


@pytest.mark.spec("CALL-FUTURE-1")
def test_one_that_has_ended_before_somebody_waits_is_told_at_once(w, monkeypatch):
    monkeypatch.setattr(futures, "PARK_NS", 10**11)  # who waits for another end waits in vain
    for i in range(200):
        call = add(i, i)
        if i % 2:
            wait_until(call.done)
        assert concurrent.futures.wait([call], 20) == ({call}, set())


@pytest.mark.spec("CALL-FUTURE-4")
def test_a_future_cannot_be_pickled(w):
    future = add(1, 2)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(future)
    with pytest.raises(TypeError, match=r"Worker\.submit"):
        sr.Future()
    assert "add" in repr(future)
    future.result()
    assert "int" in repr(future)


@pytest.mark.spec("CALL-FUTURE-4")
def test_what_a_callback_raises_keeps_no_other_future_from_being_told(w, gate, caplog):
    def fail(future):
        raise SystemExit("of a callback")

    held = wait_at(gate, 1)
    held.add_done_callback(fail)
    behind, told = add(held, 1), threading.Event()
    behind.add_done_callback(lambda one: told.set())
    gate[0] = 1
    assert told.wait(30)
    later = w.submit(time.sleep, 0.05)
    assert concurrent.futures.wait([later], 30) == ({later}, set())
    assert "of a callback" in caplog.text and held.result() == 1


# ---------------------------------------------------------------- their ends
class AtEnd:
    """Calls a function when it dies."""

    def __init__(self, function):
        self.function = function

    def __del__(self):
        self.function()


@pytest.mark.spec("CALL-FUTURE-4")
@pytest.mark.parametrize("value", [1, "text"])
def test_futures_die_deep_within_each_other_while_others_are_made_and_asked_for(w, value):
    kept = []

    def use():
        kept.append(same(value))
        w._life.stream._quick.futures()  # which it finds to give them their values
        w._life.stream.keep_values()

    same(value).result()
    for lists in range(4):  # the interpreter puts off the end of each 50th object, of whatever kind
        chain = None
        for n in range(400):
            one = same(value)
            one.before = AtEnd(use) if n % 10 == 0 else None, chain  # which dies first
            chain = one
        for _ in range(lists):
            chain = [chain]
        del one, chain
    assert [one.result() for one in kept] == 160 * [value]


@pytest.mark.spec("CALL-FUTURE-4")
@pytest.mark.parametrize("value", [1, "text"])
def test_a_future_that_a_finalizer_takes_back_is_refused_and_harms_no_other(w, value):
    saved = []
    same(value).result()
    cycle = [same(value)]
    cycle[0].mine = cycle
    cycle.append(AtEnd(lambda one=cycle: saved.append(one[0])))
    del cycle
    gc.collect()
    others = [same(n) for n in range(20)]
    assert saved[0].done()
    with pytest.raises(RuntimeError, match="a finalizer has taken it back"):
        saved[0].result()
    with pytest.raises(RuntimeError, match="a finalizer has taken it back"):
        same(saved[0])
    saved.clear()
    assert [one.result() for one in others] == list(range(20))


@pytest.mark.spec("CALL-FUTURE-4")
def test_calls_whose_futures_died_take_no_slots_also_after_the_end_of_their_worker(w):
    same(0).result()
    view = w._life.stream._engine.view
    for n in range(50):
        one = same(n if n % 7 else {n})
        wait_until(one.done)
        del one
        assert view.live < 10
    with pytest.raises(KeyError), sr.Worker(num_sub_workers=1) as other:
        lost = [other.submit(time.sleep, 0.05), *(other.submit(same, n) for n in (1, "text"))]
        raise KeyError
    del lost
    assert same(1).result() == 1


LOOKS = {
    "nobody": lambda future: None,
    "exception": lambda future: future.exception(),
    "cancelled": lambda future: future.cancelled(),
    "wait": lambda future: concurrent.futures.wait([future]),
}


@pytest.mark.spec("CALL-FAIL-1")
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_call_fails_with_the_future_that_it_gets_whoever_has_asked_for_the_error(w, look):
    future = boom()
    look(future)
    for after in (same(future), same([future]), w.submit(same, future)):
        with pytest.raises(ValueError, match="boom"):
            after.result()
        assert after.done() and not after.cancelled()
        assert concurrent.futures.wait([after]).done == {after}
