"""CALL-STREAM: submitting calls."""

import concurrent.futures
import copy
import logging
import os
import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref.calls.inside import Inside
from simpler_ref.system.cores import find_cores

from ...support import DEADLINE_S, Terminated, terminated_after
from .tasks import add, fill, same, update, wait_at, without_worker


@sr.task
def total(*numbers):
    return sum(numbers)


@without_worker
@pytest.mark.spec("CALL-STREAM-1")
def test_a_call_returns_a_future_and_is_a_plain_call_without_a_worker(w):
    assert add(1, 2) == 3
    with sr.Worker(num_sub_workers=1, child_mode="thread"):
        assert add(1, 2).result() == 3
        assert isinstance(add(1, b=2), sr.Future)


@pytest.mark.spec("CALL-STREAM-1")
def test_calls_that_have_ended_leave_room_for_others_whatever_they_have_written():
    with sr.Worker(num_sub_workers=1, child_mode="thread", task_window=4, alloc_timeout_s=1) as w:
        arrays = [w.empty(8) for _ in range(20)]
        for number, x in enumerate(arrays):
            fill(x, number).result()
        assert [x[0] for x in arrays] == list(range(20))


@without_worker
@pytest.mark.spec("CALL-STREAM-1")
def test_the_innermost_with_block_counts_whichever_worker_is_opened_first(w):
    def calls(w):
        return w.progress()[1]

    mode = {"num_sub_workers": 1, "child_mode": "thread"}
    with sr.Worker(**mode) as outer:
        with sr.Worker(**mode) as inner:
            outer.init()
            assert (add(1, 2).result(), calls(outer), calls(inner)) == (3, 0, 1)
            with sr.Worker(4, num_sub_workers=0):  # has nobody who could run it
                assert add(3, 4).result() == 7
            assert (calls(outer), calls(inner)) == (0, 2)
            inner.close()
            assert add(5, 6).result() == 11
        assert calls(outer) == 1
        theirs = outer.submit(add, 1, 2)
        with sr.Worker(**mode):
            assert add(theirs, 10).result() == 13
    assert add(7, 8) == 15


@pytest.mark.spec("CALL-STREAM-5")
def test_a_task_on_a_thread_cannot_wait_for_itself():
    with sr.Worker(num_sub_workers=1, child_mode="thread") as w:
        nothing = lambda *_: None  # noqa: E731
        waits = (lambda: w.run(nothing), lambda: w.record(nothing), w.close)
        refused = "a task cannot wait for the tasks of its Worker"
        for one in waits:
            with pytest.raises(RuntimeError, match=refused):
                w.submit(lambda one=one: one()).result(DEADLINE_S)
            handle = w.register(lambda args, one=one: one())
            with pytest.raises(sr.TaskError, match=refused):
                w.run(lambda orch, *_, handle=handle: orch.submit_sub(handle))


@pytest.mark.spec("CALL-STREAM-1")
def test_wrong_arguments_are_refused_at_the_call(w):
    before = w.progress()
    for args, kwargs in (((1,), {}), ((1, 2, 3), {}), ((1, 2), {"c": 3})):
        with pytest.raises(TypeError):
            add(*args, **kwargs)
    assert w.progress() == before


@pytest.mark.spec("CALL-STREAM-2")
def test_futures_of_any_number_are_arguments_like_their_values(w):
    chain = 0
    for i in range(100):
        chain = add(chain, i)
    assert (chain.result(), add(add("a", "b"), add("c", "d")).result()) == (4950, "abcd")
    parts = add(list(range(1000)), [1])
    assert add(parts, parts).result() == [*range(1000), 1, *range(1000), 1]
    done = add(1, 1)
    done.result()
    assert add(done, 1).result() == 3
    # What they wait for has room of its own, beside that of others
    items = [add(i, 0) for i in range(60)]
    sums = [total(*items[i:]) for i in range(8)]
    again = [total(*sums[:i], *items) for i in range(8)]
    expected = [sum(range(i, 60)) for i in range(8)]
    assert [one.result() for one in sums] == expected
    assert [one.result() for one in again] == [sum(expected[:i]) + sum(range(60)) for i in range(8)]


@pytest.mark.spec("CALL-STREAM-2", "CALL-STREAM-4")
def test_threads_may_pass_a_future_that_others_fetch_and_views_while_runs_come_between(w):
    x = w.share(np.arange(400.0).reshape(20, 20))

    def work(number):
        shared, view = add(number, 1), x[number : number + 2, number % 3 : number % 3 + 5]
        fetched = others.submit(shared.result)
        sums, part = [add(shared, i) for i in range(10)], w.submit(np.sum, view)
        assert fetched.result() == number + 1 and part.result() == view.sum()
        return [one.result() for one in sums]

    with ThreadPoolExecutor(4) as threads, ThreadPoolExecutor(4) as others:
        working = [threads.submit(work, number) for number in range(15)]
        while not all(one.done() for one in working):
            w.run(lambda orch, args, config: None)
    for number, one in enumerate(working):
        assert one.result() == [number + 1 + i for i in range(10)]


@pytest.mark.spec("CALL-STREAM-8")
def test_a_signal_ends_a_wait_and_the_call_goes_on(w, gate):
    held = wait_at(gate, 5)
    with pytest.raises(Terminated), terminated_after(0.05):
        held.result()
    gate[0] = 1
    assert (held.result(), add(held, 1).result()) == (5, 6)


@pytest.mark.spec("CALL-STREAM-4")
def test_a_run_begins_when_all_calls_have_ended_and_calls_go_on_after_it_but_not_in_it(w):
    x, seen = w.share(np.zeros(4, np.int32)), []
    early, slow = add("ear", "ly"), w.submit(time.sleep, 0.05)
    filled = fill(x, 7)
    for _ in range(2):
        w.run(lambda orch, args, config: seen.append((slow.done(), filled.done(), x[0])))
        assert add(2, 2).result() == 4
    assert seen == [(True, True, 7)] * 2
    with pytest.raises(RuntimeError, match=r"a run is in progress.* in an orchestration function"):
        w.run(lambda orch, args, config: add(1, 2))
    assert early.result() == "early" and slow.result() is None


@pytest.mark.spec("CALL-STREAM-4", "CALL-STREAM-8")
def test_a_signal_ends_the_wait_for_a_run(w):
    go_on, began = threading.Event(), threading.Event()

    def orchestrate(orch, args, config):
        began.set()
        go_on.wait()

    with ThreadPoolExecutor(1) as runner:
        runner.submit(w.run, orchestrate)
        began.wait()
        try:
            with pytest.raises(Terminated), terminated_after(0.05):
                add(1, 2)
        finally:
            go_on.set()
    assert add(1, 2).result() == 3


@pytest.mark.spec("CALL-STREAM-5")
def test_a_worker_cannot_be_pickled_or_copied(w):
    assert add(1, 2).result() == 3
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a task gets what it needs as arguments"):
            act(w)
    inside = Inside.__new__(Inside)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(inside)


@sr.task
def whose():
    return sr.local.owner


def own(name):
    sr.local.owner = name


@pytest.mark.spec("CALL-STREAM-1")
def test_each_thread_calls_the_worker_that_it_has_opened():
    both_open, answers = threading.Barrier(2), {}

    def serve(name):
        with sr.Worker(num_sub_workers=1, initializer=own, initargs=[name]) as w:
            w.submit(len, "").result()
            both_open.wait(DEADLINE_S)
            answers[name] = [whose().result() for _ in range(3)]
            both_open.wait(DEADLINE_S)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(serve, ("cats", "dogs")))
    assert answers == {name: [name] * 3 for name in ("cats", "dogs")}


@pytest.mark.spec("CALL-STREAM-5")
def test_an_array_of_another_open_worker_is_refused(w):
    x = w.ones(3)
    with sr.Worker(num_sub_workers=1, child_mode="thread") as other:
        for call in (lambda: update(x), lambda: same([x]), lambda: list(other.map(len, [x]))):
            with pytest.raises(RuntimeError, match="another open Worker"):
                call()
        assert w.submit(np.sum, x).result() == other.submit(np.sum, other.share(x)).result() == 3


@pytest.mark.spec("CALL-STREAM-1")
def test_a_worker_without_a_level_has_a_worker_for_each_core_and_of_a_number_a_call_says_so():
    w = sr.Worker()
    assert (w.level, w.num_sub_workers) == (3, find_cores().available)
    assert (sr.Worker(num_sub_workers=3).num_sub_workers, sr.Worker(3).num_sub_workers) == (3, 0)
    for level in (2, 4):
        said = rf"as in .*num_sub_workers={level}"
        with sr.Worker(level), pytest.raises(RuntimeError, match=said):
            total(1, 2)


# ---------------------------------------------------------------- calls that tasks make
inner = None


@sr.task
def fib(n):
    return n if n < 2 else fib(n - 1).result() + fib(n - 2).result()


@sr.task
def halves(x: sr.InOut):
    if len(x) == 1:
        x += 1
        return os.getpid()
    middle = len(x) // 2
    return max(halves(x[:middle]).result(), halves(x[middle:]).result())


@sr.task
def append(items):
    items.append(1)
    return items


@sr.task
def writes(x):
    x[0] = 5
    return x[0]


@sr.task
def give_lists(items):
    first = append(items)
    return items, append(first).result()


@sr.task
def ask(shared, private):
    found = []
    for call in (lambda: fill(shared, 1), lambda: fib(), lambda: writes(shared).result()):
        try:
            call()
        except (TypeError, ValueError) as error:
            found.append(type(error).__name__)
    return found, writes(np.zeros(2)).result(), private[0]


@sr.task
def use_a_worker(items):
    results = (
        list(inner.map(abs, items)),
        list(inner.starmap(pow, [(2, 3)])),
        inner.submit(divmod, 7, 2).result(),
    )
    failing = inner.map(divmod, [1, 2], [0, 1])
    with pytest.raises(ZeroDivisionError):
        next(failing)
    inner.wait()
    return *results, list(failing)


@sr.task
def run_inside():
    inner.run(lambda orch: None)


@sr.task
def fib_of_text():
    return fib("x").result()


@sr.task
def forget():
    fib("x")


@pytest.fixture(params=["process", "thread"])
def nesting(request):
    global inner
    with sr.Worker(num_sub_workers=1, child_mode=request.param) as inner:
        yield inner


@pytest.mark.spec("CALL-STREAM-1")
def test_calls_in_a_task_have_futures_run_in_its_worker_and_may_be_returned(nesting):
    assert fib(10).result() == 55
    x = nesting.zeros(8)
    assert halves(x).result() in (nesting.worker_pids() or [os.getpid()])
    assert x.tolist() == [1.0] * 8
    assert nesting.submit(lambda: fib(6)).result() == 8
    assert list(nesting.map(lambda n: add(fib(n), 0), [5, 6])) == [5, 8]
    assert nesting.submit(lambda: [fib(6), {"of": fib(7)}]).result() == [8, {"of": 13}]
    assert nesting.submit(lambda: append([fib(6), fib(7)])).result() == [8, 13, 1]


@sr.task
def end_at_2(n):
    if n == 2:
        raise StopIteration(n)
    return n


@sr.task
def exit_with(code):
    sys.exit(code)


@sr.task
def go_on():
    with pytest.raises(sr.TaskError, match="SystemExit: 3"):
        exit_with(3).result()
    with pytest.raises(sr.TaskError, match="StopIteration: 2"):  # it ends no loop
        list(inner.map(end_at_2, range(4)))
    results = inner.map(abs, [-1, -2, -3], timeout=0.05)
    first = next(results)
    time.sleep(0.1)
    with pytest.raises(TimeoutError, match=r"0\.05 s after the call of map"):
        next(results)
    results.close()
    return first, list(results)


@pytest.mark.spec("CALL-STREAM-1")
def test_a_task_goes_on_after_calls_that_fail_and_their_arguments_are_those_of_others(nesting):
    assert go_on().result() == (1, [])
    assert give_lists([5]).result() == ([5], [5, 1, 1])
    x = nesting.share(np.full(2, 3.0))
    assert ask(x, np.arange(2.0)).result() == (["ValueError", "TypeError", "ValueError"], 5, 0)
    assert x.tolist() == [3, 3]


@pytest.mark.spec("CALL-STREAM-5")
def test_methods_of_a_worker_make_calls_in_a_task_and_what_would_wait_is_refused(nesting):
    assert use_a_worker([-1, 2]).result() == ([1, 2], [8], (3, 1), [(2, 0)])
    with pytest.raises(RuntimeError, match=r"a task cannot wait for the tasks|belongs to process"):
        run_inside().result()


@pytest.mark.spec("CALL-STREAM-1")
def test_threads_of_a_task_make_calls_as_the_task_does():
    def outer():
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(lambda: (fib(5).result(), list(sr.map(abs, [-1])))).result()

    with sr.Worker(num_sub_workers=1) as w:
        assert w.submit(outer).result() == (5, [1])


@pytest.mark.spec("CALL-STREAM-1")
def test_a_task_may_have_workers_of_its_own(nesting):
    def outer():
        with sr.Worker(num_sub_workers=1) as own:
            pids = {os.getpid(), own.submit(os.getpid).result()}
            pids |= set(own.map(lambda _: os.getpid(), range(3)))
            total = sum([add(1, i).result() for i in range(3)]), own.progress()[1]
        return len(pids), total, inner.submit(os.getpid).result() == os.getpid()

    assert nesting.submit(outer).result() == (2, (6, 7), True)


@pytest.mark.spec("CALL-FAIL-1")
def test_an_error_names_all_calls_on_its_way(nesting):
    with pytest.raises(TypeError, match="not supported between") as caught:
        fib_of_text().result()
    assert "fib_of_text" in str(caught.value.__cause__)


@pytest.mark.spec("CALL-FAIL-4")
def test_an_error_of_theirs_that_nobody_asks_for_is_logged(tmp_path):
    def begin(path):
        logging.getLogger("simpler_ref").addHandler(logging.FileHandler(path))

    with sr.Worker(num_sub_workers=1, initializer=begin, initargs=(tmp_path / "log",)):
        forget().result()
    assert "nobody has asked for its result: TypeError" in (tmp_path / "log").read_text()


# ---------------------------------------------------------------- wait
@pytest.mark.spec("CALL-STREAM-9")
def test_the_program_waits_for_an_array_or_for_all_calls(w):
    @sr.task
    def add(x: sr.InOut, seconds=0.0):
        time.sleep(seconds)
        x += 1

    x, y = w.zeros(4), w.zeros(4)
    slow = add(y, 0.5)
    w.wait(w.zeros(4))  # which no call uses
    with pytest.raises(concurrent.futures.TimeoutError, match=r"within 0\.01 s"):
        w.wait(y, timeout=0.01)
    add(x[:2], 0.1)
    add(x[2:], 0.1)
    w.wait(x)
    assert x.tolist() == [1.0] * 4 and not slow.done()
    with pytest.raises(concurrent.futures.TimeoutError, match=r"within 0\.01 s"):
        w.wait(timeout=0.01)
    w.wait()
    assert slow.done() and y[0] == 1
    add(x, "wrong")
    with pytest.raises(TypeError):
        w.wait(x)
    with pytest.raises(ValueError, match="cannot see this array"):
        w.wait(np.zeros(3))
