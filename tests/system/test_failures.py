"""A task fails, or the orchestration function does: what reaches the caller, and what is left."""

import contextlib
import copy
import gc
import os
import pickle
import threading
import weakref

import numpy as np
import pytest

from simpler_ref import (
    CallableError,
    RemoteTraceback,
    RingFullError,
    TaskError,
    Worker,
    WorkerLostError,
    WorkerStartError,
)

from ..support import make_args
from .workers import assert_works, mark, only


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("holds a lock", threading.Lock())


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class FatallyUnprintable(Exception):
    def __str__(self):
        raise SystemExit(3)


class NotAString(Exception):
    def __str__(self):
        return 7


class OddName(Exception):
    __module__ = None


def deep(n):
    return deep(n + 1)


def chained():
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


EXCEPTIONS = {
    "long text": (lambda: ValueError("x" * 100_000), "ValueError: xxx"),
    "letters of many bytes": (lambda: ValueError("€" * 50_000), "ValueError: €€€"),
    "a NUL in its text": (lambda: ValueError("before\0after"), "after"),
    "a lone surrogate": (lambda: ValueError("\udcff"), "ValueError: ?"),
    "no text": (lambda: ValueError(), "ValueError"),
    "cannot be pickled": (Unpicklable, "Unpicklable: ('holds a lock'"),
    "cannot be printed": (Unprintable, "Unprintable"),
    "exits when printed": (FatallyUnprintable, "FatallyUnprintable"),
    "prints as a number": (NotAString, "NotAString"),
    "has no module": (lambda: OddName("odd"), "OddName: odd"),
    "SystemExit": (lambda: SystemExit(3), "SystemExit: 3"),
    "KeyboardInterrupt": (lambda: KeyboardInterrupt(), "KeyboardInterrupt"),
    "GeneratorExit": (lambda: GeneratorExit("done"), "GeneratorExit: done"),
    "StopIteration": (lambda: StopIteration(5), "StopIteration: 5"),
    "bare BaseException": (lambda: BaseException("base"), "BaseException: base"),
    "MemoryError": (lambda: MemoryError("no more"), "MemoryError: no more"),
    "chained": (chained, "ValueError: outer", "KeyError: 'inner'", "direct cause"),
    "from far below": (lambda: deep(0), "RecursionError", "in deep"),
}
"""Functions that return or raise the exception; words of the message, and of the remote traceback."""


@pytest.mark.spec("WM-THREAD-4")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_any_exception_is_reported_and_the_worker_survives_it(mode):
    with Worker(level=3, num_sub_workers=1, child_mode=mode) as w:
        marks = w.share(np.zeros(4, np.int64))
        places = w.share(np.zeros((len(EXCEPTIONS), 2), np.int64))
        ok = w.register(mark)

        def raise_one(args):
            number = args.scalar(0)
            places[number] = os.getpid(), threading.get_ident()
            raise list(EXCEPTIONS.values())[number][0]()

        bad = w.register(raise_one)
        for i, (what, (_, words, *shown)) in enumerate(EXCEPTIONS.items()):
            with pytest.raises(TaskError) as caught:
                w.run(only(bad, make_args(scalars=[i])))
            assert words in str(caught.value), what
            assert "level 3 sub_worker 0" in str(caught.value)
            for word in ("raise_one", *shown):
                assert word in caught.value.remote_traceback, what
            assert not isinstance(caught.value, WorkerLostError), what
            assert_works(w, ok, marks)
        assert (places == places[0]).all(), "another process or thread"


def test_an_exception_leaves_no_reference_cycle_to_what_the_run_held():
    """A traceback must not keep the frames of `run` alive through itself."""

    class Held:
        pass

    with Worker(level=3, num_sub_workers=1) as w:
        gc.collect()
        gc.disable()
        try:
            held = Held()
            watch = weakref.ref(held)

            def graph(orch, args, config):
                raise ValueError(args)

            with contextlib.suppress(ValueError):
                w.run(graph, held)
            del held
            assert watch() is None
        finally:
            gc.enable()


def test_exceptions_can_be_pickled_and_copied():
    """They may have to leave the process: of a pool, a test runner, a notebook's kernel."""
    whole = {"task": 3, "callable_name": "f", "worker": 1, "pid": 5, "remote_traceback": "the text"}
    for error in (
        TaskError("told", **whole),
        WorkerLostError("told", status=-9, **whole),
        RingFullError("told"),
        WorkerStartError("told"),
        CallableError("HASHID_FORMAT_INVALID", "told"),
        RemoteTraceback("told"),
    ):
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(other) is type(error)
            assert str(other) == str(error)
            assert "told" in str(other)
            assert vars(other) == vars(error)
