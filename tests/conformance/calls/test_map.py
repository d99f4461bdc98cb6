"""CALL-MAP: many calls of one function."""

import concurrent.futures
import itertools
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest

import simpler_ref as sr

from ...system.programs import Fork, output_of
from .tasks import fill, total, update, wait_at


@sr.task
def double(value):
    return 2 * value


def inverse(value):
    return 1 / value


def counted(items):
    """Yield items; return what tells how many were taken."""
    taken = []

    def go():
        for item in items:
            taken.append(item)
            yield item

    return go(), taken


def each(results):
    """Return all results, and each error in its place."""
    seen = []
    for _ in range(1000):
        try:
            seen.append(next(results))
        except StopIteration:
            return seen
        except Exception as error:
            seen.append(error)
    raise AssertionError("there is no end of them")


# ---------------------------------------------------------------- results in order
@pytest.mark.spec("CALL-MAP-1")
@pytest.mark.parametrize("chunksize", [None, 1, 3, 100_000])
def test_results_come_in_the_order_of_the_items(w, chunksize):
    for count in (0, 1, 2, 7, 1000):
        found = w.map(double, range(count), chunksize=chunksize, timeout=float("inf"))
        assert list(found) == [2 * i for i in range(count)]


@pytest.mark.spec("CALL-MAP-1")
def test_items_may_be_futures_and_come_from_calls_of_their_own(w):
    assert list(w.map(double, (double(i).result() for i in range(20)))) == list(range(0, 80, 4))
    items = [double(1), 5, double("a"), [3]]
    assert list(w.map(double, items, chunksize=4)) == [4, 10, "aaaa", [3, 3]]


@pytest.mark.spec("CALL-MAP-1")
def test_several_iterables_end_with_the_shortest(w):
    pairs = w.map(lambda a, b, c: (a, b, c), [1, 2, 3], itertools.count(), "ab")
    assert list(pairs) == [(1, 0, "a"), (2, 1, "b")]
    assert list(w.starmap(divmod, [(7, 2), [9, 4], np.array([5, 3])])) == [(3, 1), (2, 1), (1, 2)]
    assert list(w.starmap(lambda *args: sum(args), [(), (1,), (1, 2)])) == [0, 1, 3]
    assert list(w.starmap(ord, "ab")) == [97, 98]
    with pytest.raises(TypeError, match=r"item of starmap has the arguments .*this one is 1:"):
        list(w.starmap(divmod, [1]))


@pytest.mark.spec("CALL-MAP-1")
def test_a_default_that_tasks_could_change_is_new_for_each_item(w):
    def collect(value, seen=[], factor=3):  # noqa: B006
        seen.append(factor * value)
        return seen

    new = [[3 * i] for i in range(5)]
    if w._session.in_threads:  # which call the very function
        new = [[3 * i for i in range(5)]] * 5
    assert list(w.map(sr.task(collect), range(5), chunksize=5)) == new


@pytest.mark.spec("CALL-MAP-1")
def test_wrong_arguments_are_refused_at_the_call(w):
    items, taken = counted(range(5))
    before = w.progress()
    for args, options, error, text in [
        ((double, items, items), {}, TypeError, "positional argument"),
        ((double,), {}, TypeError, "needs an iterable"),
        ((double, items, 5), {}, TypeError, "number 2 is 5"),
        ((3, items), {}, TypeError, "needs a function, got int"),
        ((double, items), {"chunksize": 0}, ValueError, "chunksize is at least 1, not 0"),
        ((double, items), {"chunksize": "x"}, TypeError, "chunksize='x' is not a whole"),
        ((double, items), {"timeout": "x"}, TypeError, "timeout='x' is not a number of sec"),
        ((double, items), {"timeout": float("nan")}, ValueError, "timeout=nan is no time"),
    ]:
        with pytest.raises(error, match=text):
            w.map(*args, **options)
    with pytest.raises(TypeError, match="number 1 is 5"):
        w.starmap(double, 5)
    assert not taken and w.progress() == before


@pytest.mark.spec("CALL-MAP-2")
def test_items_that_take_no_time_travel_in_few_calls_and_long_ones_alone(w):
    def calls_for(*items, **options):
        before = w.progress()[1]
        assert len(list(w.map(*items, **options))) == len(items[1])
        return w.progress()[1] - before

    assert calls_for(double, range(20_000)) < 2000
    assert calls_for(lambda value: time.sleep(0.004), range(12)) == 12
    assert calls_for(double, range(100), chunksize=8) == 13


# ---------------------------------------------------------------- lazy
@pytest.mark.spec("CALL-MAP-2")
def test_an_endless_iterable_is_read_as_results_are_asked_for(w):
    items, taken = counted(itertools.count())
    results = w.map(double, items, chunksize=10)
    first = len(taken)
    assert 0 < first <= 2000
    assert list(itertools.islice(results, 5000)) == [2 * i for i in range(5000)]
    assert 5000 <= len(taken) <= 7000
    results.close()
    assert list(results) == []


@pytest.mark.spec("CALL-MAP-2")
def test_what_is_dropped_reads_and_submits_nothing_more_and_keeps_nothing(w):
    items, taken = counted(itertools.count())
    before = w.progress()[1]
    for value in w.map(double, items, chunksize=5):
        if value == 100:
            break
    count, calls = len(taken), w.progress()[1] - before
    w.run(lambda orch, args, config: None)
    assert len(taken) == count and calls <= 1 + count

    results = w.map(inverse, [[i] for i in range(100)], chunksize=5)
    futures = [weakref.ref(call.future) for call in results._ahead]
    with pytest.raises(TypeError):
        next(results)
    del results
    assert all(future() is None for future in futures)
    w.run(lambda orch, args, config: None)
    assert w._session.engine.view.live == 0


# ---------------------------------------------------------------- results that nobody asks for
@pytest.mark.spec("CALL-MAP-10")
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_items_are_all_called_by_the_end_of_the_block_if_nobody_asks(tmp_path, keep):
    def save(number):
        (tmp_path / str(number)).touch()
        return number

    with sr.Worker(num_sub_workers=2) as made:
        kept = [made.map(save, range(300))] if keep else made.map(save, range(300)) and []
        marks = made.share(np.zeros(50, np.int64))
        made.map(update, [marks[i:][:1] for i in range(50)])
    assert len(list(tmp_path.iterdir())) == 300
    assert marks.tolist() == [1] * 50
    assert [list(results) for results in kept] == [list(range(300))] * len(kept)


@pytest.mark.spec("CALL-MAP-10")
def test_errors_of_items_that_nobody_asked_for_are_logged_once(caplog):
    with sr.Worker(num_sub_workers=2) as made:
        made.map(int, [f"{i}x" if i % 10 == 3 else i for i in range(40)])
    [message] = [record.getMessage() for record in caplog.records]
    assert "4 items failed, and nobody asked for results" in message and "'3x'" in message


@pytest.mark.spec("CALL-MAP-10")
def test_the_error_of_an_item_has_its_story_once_if_the_end_of_the_block_has_waited_for_it():
    @sr.task
    def refuse(x: sr.In):
        raise ValueError("refused")

    with sr.Worker(num_sub_workers=1) as made:
        results = made.map(refuse, [made.zeros(2)] * 20)
    stories = [error.__cause__.story for error in each(results)]
    assert [story.count(f"item {i} of map") for i, story in enumerate(stories)] == [1] * 20


@pytest.mark.spec("CALL-MAP-10")
def test_a_worker_says_at_its_end_how_many_items_are_not_called(caplog):
    with sr.Worker(num_sub_workers=1) as made:
        results = made.map(double, range(1000), chunksize=1)
        assert next(results) == 0
        endless = made.map(double, itertools.count())
        assert next(endless) == 0
    [message] = [record.getMessage() for record in caplog.records]
    left = int(message.partition(": ")[2].split()[0])
    assert 900 < left < 1000 and "items were not called, and nobody asked" in message


@pytest.mark.spec("CALL-MAP-10")
def test_an_exception_in_the_block_calls_nothing_more():
    items, taken = counted(range(1000))
    with pytest.raises(KeyError), sr.Worker(num_sub_workers=1) as made:
        made.map(double, items, chunksize=1)
        raise KeyError
    assert len(taken) < 100


# ---------------------------------------------------------------- errors
@pytest.mark.spec("CALL-MAP-4")
@pytest.mark.parametrize("chunksize", [None, 1, 7])
def test_an_error_is_raised_in_its_place_and_the_others_go_on(w, chunksize):
    seen = each(w.map(inverse, [1, 2, 0, 4, 0, "x", 8], chunksize=chunksize))
    errors = {place: seen.pop(place) for place in (5, 4, 2)}
    assert seen == [1, 0.5, 0.25, 0.125]
    for place, error in errors.items():
        assert type(error) is (TypeError if place == 5 else ZeroDivisionError)
        cause = error.__cause__
        assert cause.where.startswith(f"sub_worker {cause.worker}")
        assert cause.where.endswith(f", call {cause.task} (inverse), item {place}")
        assert "1 / value" in cause.text and cause.callable_name == "inverse"


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("stays here")


class NotBack:
    """Cannot be rebuilt."""

    def __reduce__(self):
        return int, ("not a number",)


@pytest.mark.spec("CALL-MAP-4")
def test_an_item_that_cannot_travel_fails_alone_on_both_ways(w):
    items = [[0], Unpicklable(), NotBack(), [2]]
    first, *errors, last = each(w.map(lambda value: value, items, chunksize=4))
    assert (first, last) == ([0], [2])
    refused = "value: this Unpicklable cannot be pickled (RuntimeError: stays here)"
    for error, kind, words in zip(
        errors, (TypeError, ValueError), (refused, "'not a num"), strict=True
    ):
        assert type(error) is kind and words in str(error)
    assert "item 1 of map of " in str(errors[0].__notes__)

    @sr.task
    def lock(value):
        if value == 4:
            raise StopIteration("no more")
        return [[value], threading.Lock(), (i for i in range(3)), NotBack(), 0, [value]][value]

    first, *errors, last = each(w.map(lock, range(6), chunksize=6))
    assert (first, last) == ([0], [5])
    wanted = ("cannot be pickled", "nobody runs", "item 3: ", "StopIteration: no more")
    for error, words in zip(errors, wanted, strict=True):
        assert isinstance(error, (TypeError, sr.TaskError)) and words in str(error)


@pytest.mark.spec("CALL-MAP-11")
@pytest.mark.parametrize("inside", [False, True])
def test_calls_that_are_made_later_come_after_all_items_with_shared_arrays(w, inside):
    @sr.task
    def add_one(row: sr.InOut):
        row += 1

    def sum_of(box):
        return int(np.sum(box))

    x = w.zeros((100, 2))
    rows = list(x)
    w.map(add_one, rows)
    w.wait()
    assert x.sum() == 200
    w.map(add_one, rows)
    at_once = w.submit(np.sum, x)
    sums = w.map(sum_of, [[row] for row in rows] if inside else rows)
    fill(x, 0)
    assert at_once.result() == sum(sums) == 400


@pytest.mark.spec("CALL-MAP-4")
def test_after_an_error_those_of_items_that_nobody_asks_for_are_not_logged(w, caplog):
    def negative(row: sr.In):
        raise ValueError(f"no root of {row[0]}")

    results = w.map(negative, list(w.share(np.ones((99, 2)))))
    for _ in range(2):
        with pytest.raises(ValueError, match="no root of 1"):
            next(results)
    del results
    w.run(lambda *_: None)
    assert not caplog.records


@pytest.mark.spec("CALL-MAP-4")
@pytest.mark.parametrize("chunksize", [None, 4])
def test_an_iterable_that_raises_does_so_in_its_place(w, chunksize):
    def items():
        yield from range(10)
        raise KeyError("no eleventh")

    *seen, error = each(w.map(double, items(), chunksize=chunksize))
    assert seen == [2 * i for i in range(10)]
    assert isinstance(error, KeyError) and "no eleventh" in str(error)


@pytest.mark.spec("CALL-MAP-4")
def test_a_worker_that_dies_fails_the_items_of_its_call():
    with sr.Worker(num_sub_workers=2) as w:
        seen = each(w.map(lambda i: os._exit(1) if i == 3 else i, range(8), chunksize=2))
        assert seen[:2] + seen[4:] == [0, 1, 4, 5, 6, 7]
        assert all(isinstance(one, sr.WorkerLostError) for one in seen[2:4])
        assert seen[2] is not seen[3] and str(seen[2]) == str(seen[3])


@pytest.mark.spec("CALL-MAP-4")
def test_after_the_end_of_the_worker_there_is_what_was_submitted_and_then_an_error():
    with sr.Worker(num_sub_workers=2, child_mode="thread") as w:
        results = w.map(double, itertools.count(), chunksize=2)
    seen = []
    with pytest.raises(RuntimeError, match="closed before their end"):
        for value in results:
            seen.append(value)
    assert seen and seen == [2 * i for i in range(len(seen))] and len(seen) % 2 == 0


# ---------------------------------------------------------------- values and arrays
@pytest.mark.spec("CALL-MAP-1")
@pytest.mark.parametrize("chunksize", [1, 10])
def test_items_and_results_have_nothing_in_common(w, chunksize):
    def grow(value):
        value.append(1)
        return value

    same = [0]
    results = list(w.map(grow, [same] * 10, chunksize=chunksize))
    assert results == [[0, 1]] * 10 and same == [0]
    results[0].append(2)
    assert results[1] == [0, 1]

    kept = [np.zeros(3), [0]]
    first, second = w.map(lambda value: kept, range(2), chunksize=chunksize)
    first[0][:] = 1
    first[1].append(1)
    assert second[0].tolist() == [0, 0, 0] and second[1] == [0]


@pytest.mark.spec("CALL-MAP-1")
def test_results_are_those_of_single_calls(w):
    values = [None, True, 1 << 70, 0.5, "text", b"\0", (1, [2]), {"a": {3}}]
    values += [np.float64(0.1), np.float32(0.1), np.int64(7), np.bool_(True)]
    values += [np.zeros((0, 3)), np.arange(6).reshape(2, 3).T]
    values += [np.ones(100_000), np.zeros(3, "i4,f8")]
    got = list(w.map(lambda number: values[number], range(len(values)), chunksize=len(values)))
    for one, value in zip(got, values, strict=True):
        assert type(one) is type(value)
        np.testing.assert_equal(one, value)
        if type(value) is np.ndarray:
            assert one.dtype == value.dtype and one.flags.writeable
    for kind in (np.float64, np.int64, np.bool_, np.float32, float, str):
        got = list(w.map(lambda value, kind=kind: kind(value), range(5), chunksize=5))
        assert got == [kind(i) for i in range(5)] and {type(one) for one in got} == {kind}


@pytest.mark.spec("CALL-MAP-1")
def test_arrays_are_accesses_of_their_own(w):
    x = w.zeros(64)
    for _ in range(5):
        w.map(update, w.tiles(x, 4), [1] * 16)
    sums = list(w.map(total, w.tiles(x, 4), chunksize=3))
    assert sums == [float(x[i : i + 4].sum()) for i in range(0, 64, 4)] and sums[0] == 20
    y = w.zeros(8)
    list(w.map(update, [y] * 50, range(50)))
    assert (y == sum(range(50))).all()
    private = np.ones(8)
    assert list(w.map(total, [private, y])) == [8, 8 * sum(range(50))]
    results = w.map(update, [y, private, y])
    assert next(results) is None
    with pytest.raises(ValueError, match="share"):
        next(results)
    assert list(results) == [None] and private.tolist() == [1] * 8


@pytest.mark.spec("CALL-MAP-1")
def test_writers_wait_for_the_items_that_read(w, gate):
    x = w.zeros(8)

    def late_sum(array, gate):
        wait_at(gate)
        return float(array.sum()), array.flags.writeable

    sums = w.map(late_sum, [x], [gate])
    written = update(x, 5)
    assert list(w.map(double, range(50))) == [2 * i for i in range(50)]
    assert not written.done()
    gate[0] = 1
    assert list(sums) == [(0, False)]
    assert list(w.map(np.sum, [x, 3, x[:2]], chunksize=3)) == [40, 3, 10]


# ---------------------------------------------------------------- time-outs, interrupts, refusals
@pytest.mark.spec("CALL-MAP-4")
def test_a_timeout_counts_from_the_call(w, gate):
    results = w.map(wait_at, [gate, gate], [0, 1], timeout=0.02)
    with pytest.raises(concurrent.futures.TimeoutError, match=r"0\.02 s after the call of map"):
        next(results)
    gate[0] = 1
    w.run(lambda orch, args, config: None)
    assert list(results) == [0, 1]


@pytest.mark.spec("CALL-MAP-4")
def test_an_interrupt_while_results_are_awaited_loses_none():
    with sr.Worker(num_sub_workers=2) as w:
        gate = w.zeros(1)
        results = w.map(wait_at, [gate] * 5, range(5))
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(results)
        gate[0] = 1
        assert list(results) == [0, 1, 2, 3, 4]


@pytest.mark.spec("CALL-MAP-1")
def test_without_workers_or_after_the_end_map_is_refused(mode):
    with sr.Worker(num_sub_workers=1, child_mode=mode) as w:
        w.submit(int).result()
    with pytest.raises(RuntimeError, match="closed"):
        w.map(double, [1])
    words = r"this Worker of level 3 has no workers .*, as in Worker\(num_sub_workers=3\)"
    with sr.Worker(3) as w, pytest.raises(RuntimeError, match=words):
        w.map(double, [1])


@pytest.mark.spec("CALL-MAP-1")
def test_results_come_as_calls_end_if_their_order_does_not_matter(w):
    waits = [0.4, 0.0, 0.0, 0.0]
    results = w.map_unordered(lambda s: (time.sleep(s), s)[1], waits, chunksize=1)
    assert list(results) == [0.0, 0.0, 0.0, 0.4]
    late = w.map_unordered(time.sleep, [0.5, 0.5], timeout=0.05)
    with pytest.raises(concurrent.futures.TimeoutError):
        next(late)
    w.wait()
    assert list(late) == [None, None]


@pytest.mark.spec("CALL-MAP-1")
def test_scripts_map_without_a_worker():
    program = """
import os, simpler_ref as sr
from simpler_ref.calls.tasks import current
def pid(_): return os.getpid()
seen = set(sr.map(pid, range(100)))
assert os.getpid() not in seen and current() is None
with sr.Worker(num_sub_workers=1) as w:
    assert set(sr.map(pid, range(9))) == set(w.worker_pids())
nested = sr.task(lambda n: sum(sr.map(abs, range(n))))
print(len(seen) <= os.cpu_count(), list(sr.map(nested, [3])))
"""
    assert output_of(program) == "True [3]\n"


@pytest.mark.spec("CALL-STREAM-5")
def test_results_in_any_order_are_refused_in_a_forked_process(w):
    results = w.map_unordered(time.sleep, [0.3, 0.3], chunksize=1)

    def ask():
        with pytest.raises(RuntimeError, match="forked"):
            next(results)

    with Fork(ask) as child:
        assert child.wait() == 0
    assert list(results) == [None, None]


@pytest.mark.spec("CALL-MAP-4")
@pytest.mark.parametrize("method", ["map", "map_unordered"])
def test_each_item_of_a_cancelled_call_is_an_error_and_then_they_end(w, method):
    results = getattr(w, method)(time.sleep, [0.05] * 12, chunksize=2)
    next(results)
    results.cancel()
    outcomes = each(results)
    assert len(outcomes) < 12
    assert {type(one) for one in outcomes} - {type(None)} == {sr.TaskCancelledError}
