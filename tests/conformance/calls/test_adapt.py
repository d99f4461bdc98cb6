"""CALL-ADAPT: programs for other libraries."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import multiprocessing.pool
import os
import pickle
import signal
import threading
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

import simpler_ref as sr
from simpler_ref.adapters.executor import Executor, Pool

from ...support import wait_until
from ...system.programs import output_of

pytestmark = pytest.mark.spec("CALL-ADAPT-1")


@pytest.fixture
def w():
    with sr.Worker(num_sub_workers=2) as w:
        yield w


def die(_=None):
    os.kill(os.getpid(), signal.SIGKILL)


# ---------------------------------------------------------------- executors
def test_a_worker_is_an_executor_and_stays_open(w):
    executor = w.executor()
    assert isinstance(executor, concurrent.futures.Executor)

    async def ask():
        return await asyncio.get_running_loop().run_in_executor(executor, pow, 2, 9)

    assert asyncio.run(ask()) == 512
    with executor:
        futures = [executor.submit(pow, 2, i) for i in range(5)]
        found = [one.result() for one in concurrent.futures.as_completed(futures)]
        assert sorted(found) == [1, 2, 4, 8, 16]
        later = executor.submit(time.sleep, 0.2)
        results = executor.map(divmod, range(7), [2] * 7)
    assert later.done() and list(results) == [divmod(i, 2) for i in range(7)]
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(abs, 1)
    assert w.submit(abs, -1).result() == 1
    w.close()
    with pytest.raises(RuntimeError, match="closed"):
        w.executor().submit(abs, 1)


def test_all_items_are_submitted_at_once_and_cancelled_if_asked(w, tmp_path):
    executor = w.executor()
    executor.map(lambda i: (tmp_path / str(i)).touch(), range(30))
    w.wait()
    assert len(list(tmp_path.iterdir())) == 30
    futures = [executor.submit(time.sleep, 0.1) for _ in range(20)]
    executor.shutdown(cancel_futures=True)
    assert 10 < sum(one.cancelled() for one in futures) < 20 and all(one.done() for one in futures)


def test_an_error_or_an_interrupt_of_map_cancels_what_has_not_begun(w, tmp_path):
    def note(number):
        (tmp_path / str(number)).touch()
        time.sleep(0.02)
        return 1 // (number - 1)

    found = w.executor().map(note, range(200), chunksize=1)
    assert next(found) == -1
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert list(found) == []
    given_up = w.executor().map(note, range(200, 400), chunksize=1)
    next(given_up)
    with pytest.raises(KeyboardInterrupt):
        given_up.throw(KeyboardInterrupt)
    w.wait()
    assert len(list(tmp_path.iterdir())) < 200


@pytest.mark.parametrize("make", [lambda w: w.executor(), lambda w: Executor(2)])
def test_callbacks_are_over_when_it_is_shut_down(w, make):
    told = []
    executor = make(w)
    for i in range(50):
        executor.submit(abs, i).add_done_callback(lambda one: told.append(one.result()))
    executor.shutdown()
    assert len(told) == 50


def test_futures_of_an_executor_are_arguments_of_calls(w):
    with w.executor() as executor:
        first = executor.submit(pow, 2, 5)
        assert w.submit(divmod, first, 10).result() == (3, 2)
        assert executor.submit(divmod, first, first).result() == (1, 0)
        assert w.submit(len, [first]).result() == 1


def test_errors_are_those_that_programs_expect(w):
    executor = w.executor()
    for lost in (executor.submit(die).result, executor.map(die, [1], chunksize=1).__next__):
        with pytest.raises(BrokenProcessPool) as caught:
            lost()
        assert isinstance(caught.value, sr.WorkerLostError)
    assert isinstance(executor.submit(die).exception(), BrokenProcessPool)
    failed = executor.submit(abs, threading.Lock())
    with pytest.raises((TypeError, pickle.PicklingError), match="pickle"):
        failed.result()
    assert executor.submit(abs, -3).result() == 3


def test_it_makes_workers_of_its_own_and_refuses_what_means_nothing(w):
    with Executor(2, initializer=os.putenv, initargs=("simpler_here", "1")) as executor:
        assert executor._max_workers == 2
        seen = set(executor.map(lambda _: os.getpid(), range(50)))
        assert os.getpid() not in seen and 1 <= len(seen) <= 2
    with Executor(1, initializer=divmod, initargs=(1, 0)) as executor:
        assert isinstance(executor.submit(abs, 1).exception(), BrokenProcessPool)
    for kind, name in ((Executor, "max_tasks_per_child"), (Pool, "maxtasksperchild")):
        with pytest.raises(ValueError, match="workers are replaced only when they have died"):
            kind(1, **{name: 3})
    with pytest.raises(TypeError, match="max_workers"):
        Executor("2")
    for call in (w.executor().map, w.pool().map):
        with pytest.raises(ValueError, match="chunksize is at least 1, not 0"):
            call(abs, [1], chunksize=0)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"max_workers must be greater than 0, not {wrong}"):
            Executor(wrong)


def test_one_that_is_not_shut_down_ends_with_the_program():
    program = """
import time
from simpler_ref.adapters.executor import Executor
executor = Executor(1)
executor.submit(lambda: (time.sleep(0.3), print("done")))
executor.shutdown(wait=False)
"""
    assert output_of(program) == "done\n"


def test_one_that_a_task_makes_has_workers_of_its_own(w):
    def outer():
        with Executor(1) as executor:
            return os.getpid(), executor.submit(os.getpid).result(), list(executor.map(abs, [-1]))

    mine, its, values = w.submit(outer).result()
    assert mine != its and values == [1]


# ---------------------------------------------------------------- pools
def test_a_worker_is_a_pool(w):
    pool, noted = w.pool(), []
    assert isinstance(pool, multiprocessing.pool.Pool) and "pool_size=2" in repr(pool)
    assert pool.apply(pow, (2, 3)) == pool.apply_async(int, ("8",), {"base": 10}).get() == 8
    assert pool.map(abs, range(-3, 0)) == list(pool.imap(abs, range(-3, 0))) == [3, 2, 1]
    assert pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
    assert sorted(pool.imap_unordered(abs, range(-3, 0))) == [1, 2, 3]
    found = pool.map_async(abs, [-1], callback=noted.append)
    found.wait()
    assert found.ready() and found.successful() and found.get() == [1]
    pool.starmap_async(divmod, [(1, 0)], error_callback=noted.append).wait()
    pool.map_async(abs, [], callback=noted.append)
    wait_until(lambda: len(noted) == 3)
    assert (
        [type(one) for one in noted].count(ZeroDivisionError) == 1 and [1] in noted and [] in noted
    )
    slow = pool.apply_async(time.sleep, (0.3,))
    with pytest.raises(ValueError, match="not ready"):
        slow.successful()
    with pytest.raises(Exception, match=r"no result within 0\.01 s") as caught:
        slow.get(0.01)
    assert type(caught.value).__name__ == "TimeoutError"
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    pool.close()
    pool.join()
    assert slow.ready() and w.submit(abs, -1).result() == 1
    with pytest.raises(ValueError, match="not running"):
        pool.map(abs, [1])


class Loader:
    """Loads something at its first call."""

    loaded = False

    def __call__(self, number):
        before, self.loaded = self.loaded, True
        return not before


@pytest.mark.parametrize("chunk", [1, 5])
def test_items_of_a_chunk_share_the_function_as_they_do_elsewhere(w, chunk):
    items = range(20)
    loads = [
        w.executor().map(Loader(), items, chunksize=chunk),
        w.pool().map(Loader(), items, chunk),
        w.pool().imap(Loader(), items, chunk),
        w.pool().imap_unordered(Loader(), items, chunk),
    ]
    assert [sum(found) for found in loads] == [20 // chunk] * 4
    assert sum(w.pool().map(Loader(), range(80))) == 8, "four chunks for each worker"
    assert sum(w.executor().map(Loader(), items)) == sum(w.map(Loader(), items, chunksize=5)) == 20


def test_values_of_imap_are_waited_for_with_a_limit(w):
    values = w.pool().imap(time.sleep, [0, 0.3])
    assert values.next(timeout=30) is None
    with pytest.raises(multiprocessing.TimeoutError, match=r"no result within 0\.01 s"):
        values.next(0.01)
    assert values.next() is None
    with pytest.raises(StopIteration):
        values.next()


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
def test_a_pool_that_is_joined_has_called_the_function_for_all_items(w, tmp_path, method, asked):
    pool = w.pool()
    found = getattr(pool, method)(lambda i: (tmp_path / str(i)).touch(), (i for i in range(100)))
    for _ in range(asked):
        next(found)
    w.map(abs, itertools.count())  # of the program itself, which has dropped it
    pool.close()
    pool.join()
    assert len(list(tmp_path.iterdir())) == 100


def test_the_end_of_a_block_terminates_a_pool_of_its_own(tmp_path):
    def run_on():
        (tmp_path / "begun").touch()
        time.sleep(100)

    with Pool(1) as pool:
        calls = [pool.apply_async(run_on) for _ in range(3)]
        wait_until((tmp_path / "begun").exists)
    with pytest.raises(BrokenProcessPool):
        calls[0].get(10)
    with pytest.raises(sr.TaskCancelledError):
        calls[2].get(10)


class Slow:
    def __reduce__(self):
        return time.sleep, (0.05,)


def test_a_value_that_is_asked_for_while_it_is_told_is_taken_once(w):
    told = []
    asked = w.pool().map_async(lambda i: (i, Slow()), range(4), 1, told.append)
    assert asked.get(30) == [(i, None) for i in range(4)]
    wait_until(lambda: told)
    assert told == [asked.get()]


def test_calls_of_an_executor_that_is_dropped_or_not_waited_for_are_made(tmp_path):
    def late(n):
        time.sleep(0.05)
        (tmp_path / str(n)).touch()
        return n

    assert Executor(1).submit(late, 1).result(30) == 1
    assert list(Executor(1).map(late, [2, 3])) == [2, 3]
    Executor(1).submit(late, 4)
    executor = Executor(1)
    futures = [executor.submit(late, n) for n in (5, 6)]
    executor.shutdown(wait=False)
    executor.shutdown(wait=False)
    del executor
    assert [one.result(30) for one in futures] == [5, 6]
    wait_until((tmp_path / "4").exists)
    wait_until(lambda: "simpler_ref-executor" not in {one.name for one in threading.enumerate()})
