"""FLOW-REG: getting a callable to the workers."""

import functools
import os
import signal
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref import TaskArgs, TaskError, Worker, leaf
from simpler_ref.errors import CallableError, LocalSlotExhaustedError
from simpler_ref.native_chip import ChipCallable, CoreCallable
from tests.support import make_args, sample, wait_until


def adding(seen, i):
    """Return a callable of its own for each `i`."""
    return lambda: seen.__setitem__(i, seen[i] + 1)


@pytest.mark.spec("FLOW-REG-3")
def test_the_orch_function_and_threads_can_register_and_submit_while_workers_are_busy(mode):
    with Worker(3, num_sub_workers=2, child_mode=mode) as w:
        seen = w.share(np.zeros(50, np.int64))
        busy = w.register(lambda: sum(range(20000)))

        def orch_fn(orch, *_):
            for i in range(50):
                orch.submit_sub(busy)
                handle = w.register(adding(seen, i))
                orch.submit_sub(handle)
                if i % 3 == 0:
                    w.unregister(handle)

        stop = threading.Event()

        def register_again_and_again(seed):
            while not stop.is_set():
                w.unregister(w.register(lambda: seed))

        with ThreadPoolExecutor(3) as threads:
            try:
                done = [threads.submit(register_again_and_again, i) for i in range(3)]
                w.run(orch_fn)
            finally:
                stop.set()
        assert ([one.result() for one in done], seen.tolist()) == ([None] * 3, [1] * 50)


@pytest.mark.spec("FLOW-REG-2", "FLOW-REG-3", "FLOW-REG-4")
@pytest.mark.parametrize("victims", [[0], [0, 1]])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("again", sample(range(5), 1))
def test_workers_that_have_died_idle_keep_nothing_from_being_registered(victims, known, again):
    """Their successors know everything."""
    with Worker(3, num_sub_workers=2) as w:
        seen = w.share(np.zeros((4, 2), np.int64))

        def kill(victims):  # what is done next may come before anybody knows of their deaths
            for victim in victims:
                os.kill(w.worker_pids()[victim], signal.SIGKILL)

        def setting(row):
            return lambda args: seen.__setitem__((row, args.scalar(0)), 1)

        handles = [w.register(setting(0))]
        w.start()
        handles.append(w.register(setting(1)))
        w.unregister(w.register(lambda: None))
        alive = len(w.worker_pids()) - len(victims)
        kill(victims)
        wait_until(lambda: not known or len(w.worker_pids()) == alive)
        handles.append(w.register(setting(2)))
        pair = [make_args(scalars=[i]) for i in range(2)]

        def orch_fn(orch, *_):
            for handle in handles:
                orch.submit_sub_group(handle, pair)

        w.run(orch_fn)
        assert seen.tolist() == [[1, 1]] * 3 + [[0, 0]] and len(w.worker_pids()) == 2

        def die_and_register(orch, *_):
            kill([1])
            handles.append(w.register(setting(3)))
            orch.submit_sub(handles[-1], make_args(scalars=[0]))

        w.run(die_and_register)
        w.run(orch_fn)
        assert seen.tolist() == [[1, 1]] * 4
        kill(victims)
        assert w.submit(abs, -1).result(30) == 1, "the first call is made as well"


@pytest.mark.spec("FLOW-REG-5")
@pytest.mark.parametrize("options", [{}, {"device_ids": [0]}])
def test_a_python_callable_that_nobody_can_run_and_what_is_no_callable_are_refused(options):
    with Worker(3, child_mode="thread", **options) as w:
        early = w.register(lambda: None)
        w.init()
        w.unregister(w.register(lambda: 2))  # there are no workers yet
        w.start()
        for kind in (CallableError, RuntimeError):
            with pytest.raises(kind, match="no Python-capable child") as caught:
                w.register(lambda: 1)
        assert (caught.value.code, len(w._life.registry._used)) == ("CALLABLE_KIND_UNSUPPORTED", 1)
        w.unregister(early)
        for bad in (5, None, "f", b"bytes", object()):
            with pytest.raises(TypeError, match="callable"):
                w.register(bad)
        assert not w._life.registry._used
    with Worker(2) as w:
        for kind in (CallableError, TypeError):
            with pytest.raises(kind, match="CALLABLE_KIND_UNSUPPORTED: level 2 only supports Chip"):
                w.register(lambda: None)


@pytest.mark.spec("FLOW-REG-10")
@pytest.mark.parametrize("level", [3, 4])
def test_a_chip_callable_can_be_registered_without_chips_but_not_submitted(level, mode):
    chip = ChipCallable.build([], "f", b"x", [(0, CoreCallable.build([], b"y"))])
    with Worker(level, num_sub_workers=1, child_mode=mode) as w:
        if level == 4:
            w.add_worker(Worker(3))
        early = w.register(chip)
        w.start()
        late = w.register(chip)
        assert late.digest == early.digest

        def orch_fn(orch, *_):
            for handle in (early, late):
                with pytest.raises(TypeError, match=r"LOCAL_CHIP.*LOCAL_PYTHON"):
                    orch.submit_sub(handle)
                with pytest.raises((TypeError, RuntimeError), match=r"LOCAL_CHIP|device_ids"):
                    orch.submit_next_level(handle, TaskArgs())

        w.run(orch_fn)
        w.unregister(late)
        w.unregister(early)


@pytest.mark.spec("FLOW-REG-6")
def test_4096_callables_can_be_registered_and_no_more():
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros(4097, np.int64))
        handles = [w.register(adding(seen, i)) for i in range(4096)]
        words = r"LOCAL_SLOT_EXHAUSTED.*4096.*MAX_REGISTERED_CALLABLE_IDS"
        for _ in range(2):
            with pytest.raises(LocalSlotExhaustedError, match=words):
                w.register(lambda: seen.__setitem__(4096, 1))
        w.register(adding(seen, 7))  # one that is registered takes no place
        w.unregister(handles[100])
        last = w.register(lambda: seen.__setitem__(4096, 1))
        w.run(lambda orch, *_: [orch.submit_sub(h) for h in (handles[0], handles[4095], last)])
        assert np.flatnonzero(seen).tolist() == [0, 4095, 4096]
        with pytest.raises(LocalSlotExhaustedError):
            w.register(lambda: None)


@pytest.mark.spec("FLOW-REG-2", "FLOW-REG-7")
def test_only_nested_workers_that_run_in_this_process_take_registrations(mode):
    lowest, middle = Worker(3, num_sub_workers=1), Worker(4, child_mode="thread")
    middle.add_worker(lowest)
    top = Worker(5, child_mode=mode)
    top.add_worker(middle)
    with top:
        ran = top.share(np.zeros(1, np.int64))
        leaf = lowest.register(adding(ran, 0))  # after init, before the start
        nested = middle.register(lambda orch, args, config: orch.submit_sub(leaf))
        top.start()
        for below, handle in ((middle, nested), (lowest, leaf)) if mode == "process" else ():
            with pytest.raises(RuntimeError, match="runs as a child"):
                below.register(lambda: 1)
            with pytest.raises(RuntimeError, match="runs as a child"):
                below.unregister(handle)
        if mode == "thread":
            leaf = lowest.register(adding(ran, 0))
            nested = middle.register(lambda orch, args, config: orch.submit_sub(leaf))
        handle = top.register(lambda orch, args, config: orch.submit_next_level(nested))
        top.run(lambda orch, *_: orch.submit_next_level(handle))
        assert ran[0] == 1


def generator(orch_or_args, args=None, config=None):
    yield


async def coroutine(orch_or_args, args=None, config=None):
    pass


async def async_generator(orch_or_args, args=None, config=None):
    yield


def forms(function):
    yield function
    yield functools.partial(function, None)
    yield functools.partial(functools.partial(function), None)
    yield functools.lru_cache(function)
    yield types.MethodType(function, object())
    yield type("Calls", (), {"__call__": function})()
    yield type("Calls", (), {"__call__": staticmethod(function)})()


KINDS = {
    "a generator function": (generator, r"list\(.*\(args\)\)"),
    "a coroutine function": (coroutine, r"asyncio\.run\(.*\(args\)\)"),
    "an async generator function": (async_generator, r"asyncio\.run\(consume\("),
}


@pytest.mark.spec("FLOW-REG-8")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_call_would_not_run_is_refused_with_the_remedy(kind):
    function, remedy = KINDS[kind]
    words = f"expects a function that runs.*is {kind}: .*{remedy}"
    with Worker(3, num_sub_workers=1) as w:
        for form in forms(function):
            for take in (w.register, w.run, w.record):
                with pytest.raises(TypeError, match=words):
                    take(form)
        with pytest.raises(TypeError, match=words):
            leaf(function)
        assert not w._life.registry._used

    for method in ("start", "run", "stop"):
        methods = {"run": lambda self, callable, view, config: None, method: function}
        made, w = type("Mine", (), methods)(), Worker(3)
        for add in (w.add_sub, w.add_next_level):
            with pytest.raises(TypeError, match=rf"worker\.{method} {words}"):
                add(made)
        assert not w._life.subs and not w._life.next_level


@pytest.mark.spec("FLOW-REG-8")
def test_a_task_that_returns_work_which_nobody_does_fails(mode):
    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        done = w.share(np.zeros(1, np.int64))
        busy = w.register(lambda: done.__setitem__(0, done[0] + 1) or object())
        for count, (function, _) in enumerate(KINDS.values(), 1):
            lazy = w.register(lambda args, function=function: function(args))
            words = rf"TypeError: the task returned an? .*{function.__name__}"
            with pytest.raises(TaskError, match=words):
                w.run(lambda orch, *_, lazy=lazy: orch.submit_sub(lazy, TaskArgs()))
            w.run(lambda orch, *_: orch.submit_sub(busy))
            assert done[0] == count, "what else a task returns does not matter"
