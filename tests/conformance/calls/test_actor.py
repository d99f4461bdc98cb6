"""CALL-ACTOR: objects in workers."""

import os
import signal
import threading

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref.calls import actors, tasks

from .tasks import die, wait_at

pytestmark = pytest.mark.spec("CALL-ACTOR-1")


class Counter:
    def __init__(self, value, step=1):
        self.value, self.step = value, step

    def add(self, times=1):
        self.value += times * self.step
        return self.value

    def add_to(self, x: sr.InOut):
        x += self.value

    def refuse(self):
        self.value += 100
        raise ValueError("refused")

    def make(self, kind):
        return kind()

    def where(self):
        return os.getpid(), threading.get_ident()

    def die(self):
        die()

    def fork(self):
        child = os.fork()
        if child == 0:
            signal.pause()
        return child

    def interrupt(self):
        raise KeyboardInterrupt

    def flags(self, arrays):
        return [(one.flags.writeable, one.sum()) for one in arrays]

    @staticmethod
    def double(x: sr.InOut):
        x *= 2


class Unreadable:
    def __reduce__(self):
        return os.stat, ("/nowhere",)


@sr.task
def count(counter, times):
    for _ in range(times):
        counter.add().result()
    return os.getpid()


@sr.task
def use(counter, x: sr.InOut, y: sr.In):
    counter.add_to(x).result()
    with pytest.raises(ValueError, match="refused") as caught:
        counter.refuse().result()
    with pytest.raises(ValueError, match="read-only"):
        counter.add_to(y).result()
    assert counter.flags([x, y, np.ones(2)]).result()[2] == (True, 2)
    return repr(counter), caught.value


def test_methods_run_in_order_in_one_worker_and_keep_what_they_did_whether_or_not_one_fails(w):
    counters = [w.actor(Counter, 0), w.actor(Counter, 10, step=2)]
    futures = [[one.add(i) for i in range(30)] for one in counters]
    expected = np.cumsum(np.arange(30))
    assert [one.result() for one in futures[0]] == expected.tolist()
    assert [one.result() for one in futures[1]] == (10 + 2 * expected).tolist()
    places = [{one.where().result() for _ in range(5)} for one in counters]
    assert len(places[0]) == len(places[1]) == 1 and places[0] != places[1]
    counter = w.actor(Counter, 0)
    failed, later = counter.refuse(), counter.add()
    with pytest.raises(ValueError, match="refused"):
        failed.result()
    assert later.result() == 101
    with pytest.raises(TypeError, match=r"add\(\) takes"):
        counter.add(1, 2).result()


def test_arrays_and_futures_are_those_of_calls(w):
    counter, x = w.actor(Counter, 5), w.zeros(4)
    counter.add_to(x[:2])
    counter.double(x)
    counter.add(counter.add()).result()
    assert x.tolist() == [10, 10, 0, 0] and counter.add(0).result() == 12


def test_the_end_of_its_worker_is_told_by_name():
    with sr.Worker(num_sub_workers=1) as w:
        counter = w.actor(Counter, 0)
        lost, later = counter.die(), counter.add()
        with pytest.raises(sr.WorkerLostError, match=r"Counter\.die"):
            lost.result()
        for call in (later, counter.add()):
            with pytest.raises(sr.WorkerLostError, match=r"Counter \d+ is gone"):
                call.result()
        assert w.actor(Counter, 1).add().result() == 2


def test_one_that_is_an_argument_works_in_tasks_of_all_workers(w):
    counter = w.actor(Counter, 0)
    futures = [count(counter, 20) for _ in range(6)]
    assert w.submit(lambda both: both[1], [0, counter]).result() is counter
    assert [one.result() for one in futures] and counter.add(0).result() == 120
    for number in range(2):
        counter, x = w.actor(Counter, 1), w.zeros(3)
        _, error = sr.task(workers=number)(use.py_func)(counter, x, w.zeros(1)).result()
        assert x.tolist() == [1, 1, 1] and str(error) == "refused"
    in_other = sr.task(workers=1 - counter._worker)(count.py_func)
    counter.end()
    with pytest.raises(sr.WorkerLostError, match=r"Counter \d+ is gone"):
        in_other(counter, 1).result()


def test_its_end_is_seen_though_processes_live_that_it_has_forked():
    def outlived(counter):
        counter.add().result()
        child = counter.fork().result()
        try:
            with pytest.raises(sr.WorkerLostError, match=r"Counter \d+ is gone"):
                counter.die().result()
        finally:
            os.kill(child, signal.SIGKILL)

    with sr.Worker(num_sub_workers=2) as w:
        counter = w.actor(Counter, 0)
        sr.task(workers=1 - counter._worker)(outlived)(counter).result()


def test_a_process_that_can_start_no_thread_answers_again_when_it_can():
    def fails_once():
        start = actors._start

        def starts(function, argument):
            if function is actors._answer:
                actors._start = start
                raise RuntimeError("can't start new thread")
            start(function, argument)

        actors._start = starts

    def twice(counter):
        return isinstance(counter.add().exception(), sr.WorkerLostError), counter.add().result()

    with sr.Worker(num_sub_workers=2, initializer=fails_once) as w:
        counter = w.actor(Counter, 0)
        assert sr.task(workers=1 - counter._worker)(twice)(counter).result() == (True, 1)


def test_errors_of_methods_and_of_values_in_other_workers_are_not_its_end(w):
    def try_all(counter):
        with pytest.raises(sr.TaskError, match="KeyboardInterrupt"):
            counter.interrupt().result()
        with pytest.raises(FileNotFoundError):
            counter.make(Unreadable).result()
        return counter.add().result()

    counter = w.actor(Counter, 0)
    if w._life.options.child_mode != "thread":
        assert sr.task(workers=1 - counter._worker)(try_all)(counter).result() == 1


def test_actors_of_a_worker_in_a_task_are_others_than_those_of_its_own():
    def has_actors(mode):
        with sr.Worker(num_sub_workers=1, child_mode=mode) as w:
            return [w.actor(Counter, 1000).add().result() for _ in range(4)]

    with sr.Worker(num_sub_workers=1) as w:
        counters = [w.actor(Counter, i) for i in range(3)]
        for mode in ("thread", "process"):
            assert w.submit(has_actors, mode).result() == [1001] * 4
        assert [one.add().result() for one in counters] == [1, 2, 3]


def test_one_that_nobody_has_any_more_is_forgotten(w):
    number_of_actors = sr.task(workers=0)(lambda: len(tasks.here.actors))
    before = number_of_actors().result()
    kept = [w.actor(Counter, 0) for _ in range(6)]
    assert number_of_actors().result() == before + 3
    last = [one.add() for one in kept][-1]
    del kept
    w.wait()
    assert number_of_actors().result() == before and last.result() == 1


def test_one_is_made_where_the_fewest_are_and_nothing_else_is_done(w, gate):
    for busy in (0, 1):
        gate[0] = 0
        under_way = sr.task(workers=busy)(wait_at.py_func)(gate)
        with w.actor(Counter, 0) as one:
            assert f"sub worker {1 - busy}" in repr(one)
            gate[0] = 1
            with w.actor(Counter, 0) as other:
                assert f"sub worker {busy}" in repr(other)
        under_way.result()


def test_what_is_wrong_is_refused_and_a_block_ends_it(w):
    with pytest.raises(TypeError, match="missing 1 required"):
        w.actor(Counter)
    with pytest.raises(TypeError, match="pass the class itself"):
        w.actor(Counter(1))
    with pytest.raises(AttributeError, match="no method 'value'; an attribute stays in the worker"):
        _ = w.actor(Counter, 1).value
    with pytest.raises(
        AttributeError, match=r"Counter\.value stays in the worker: give the class a"
    ):
        w.actor(Counter, 1).value = 2
    with w.actor(list) as items:
        items.append(3)
        assert items.copy().result() == [3]
    with pytest.raises(RuntimeError, match="was ended"):
        items.append(4)
    items.end()


class Adder:
    def add(self, number: sr.InOut, order=1, task=None):
        number += order


class WithEnd(Adder):
    def end(self):
        """Is not the end of an actor."""


@sr.task(workers=0)
def write_private(writer):
    x = np.zeros(2)
    writer.add(x, 3).result()
    return x


def test_methods_write_arrays_whatever_parameters_are_called_in_tasks_too(w):
    x = w.zeros(2)
    for _ in range(2):
        writer = w.actor(Adder)
        writer.add(x).result()
        writer.add(number=x, order=2, task=5).result()
        if writer._worker == 0:
            assert write_private(writer).result().tolist() == [3, 3]
    assert x.tolist() == [6, 6]
    with pytest.raises(TypeError, match="has a method end"):
        w.actor(WithEnd)
