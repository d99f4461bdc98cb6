"""A task fails, or the orchestration function does: what reaches the caller, and what is left."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import threading
import traceback
import weakref

import numpy as np
import pytest

from simpler_ref import (
    CallableError,
    RemoteTraceback,
    RingFullError,
    TaskArgs,
    TaskError,
    Worker,
    WorkerLostError,
    WorkerStartError,
)
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from simpler_ref.workers import loop

from ..support import Gate
from .programs import Concurrently, eventually

KIB = 1024


def args_of(*tensors, scalars=()):
    """Return TaskArgs of (tensor, tag) pairs and scalars."""
    args = TaskArgs()
    for tensor, tag in tensors:
        args.add_tensor(tensor, tag)
    for scalar in scalars:
        args.add_scalar(scalar)
    return args


def mark(args):
    """Count the calls: a leaf that proves that it ran."""
    args.tensor(0).numpy()[args.scalar(0)] += 1


def assert_works(worker, handle, marks):
    """Run one task, and see that it was done, that ids began at 0 and that nothing is left over."""
    before = int(marks[0])
    tasks = []

    def one(orch, args, config):
        orch.submit_sub(handle, args_of((marks, T.INOUT), scalars=[0]))
        tasks.append(orch.live_tasks())

    assert worker.run(one).tasks == 1
    assert tasks == [1]
    assert marks[0] == before + 1
    mem = worker._session.engine.mem
    assert mem[L.LIVE] == mem[L.SCOPE_DEPTH] == mem[L.NEXT_TASK_ID] == mem[L.BUSY] == 0


def only(handle, args=None):
    """Return an orchestration function that submits one task."""
    return lambda orch, _args, _config: orch.submit_sub(handle, args)


def until_cancelled(worker, gate):
    """Return what another thread does: open a gate once the run is cancelled."""
    mem = worker._session.engine.mem

    def wait_and_open():
        eventually(lambda: mem[L.CANCEL])
        gate.open()

    return wait_and_open


# ---------------------------------------------------------------- exceptions of a task
def raise_in_a_helper(number):
    raise ValueError(f"bad value {number}")


def failing_leaf(args):
    raise_in_a_helper(args.scalar(0))


@pytest.mark.spec("ORCH-FAIL-1", "ORCH-FAIL-4", "ORCH-FAIL-5", "ORCH-FAIL-6")
def test_a_task_exception_reaches_the_caller_with_its_remote_traceback():
    with Worker(level=3, num_sub_workers=2) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok, bad = w.register(mark), w.register(failing_leaf)
        with pytest.raises(TaskError) as caught:
            w.run(only(bad, args_of(scalars=[42])))
        error = caught.value
        assert isinstance(error, RuntimeError)
        for word in ("level 3", "sub_worker", "failing_leaf", "task 0"):
            assert word in str(error), str(error)
        assert str(error).endswith("ValueError: bad value 42")
        assert (error.task, error.callable_name) == (0, "failing_leaf")
        assert error.pid == w.worker_pids()[error.worker]
        assert isinstance(error.__cause__, RemoteTraceback)
        shown = "".join(traceback.format_exception(error))
        for words in (
            "in failing_leaf",
            "in raise_in_a_helper",
            "bad value 42",
            "test_failures.py",
        ):
            assert words in str(error.__cause__)
            assert words in shown
        assert_works(w, ok, marks)


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


def raise_chained():
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
}


def test_any_exception_is_reported_and_the_worker_process_survives_it():
    with Worker(level=3, num_sub_workers=1) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)

        def raise_one(args):
            raise list(EXCEPTIONS.values())[args.scalar(0)][0]()

        bad = w.register(raise_one)
        w.start()
        pids = w.worker_pids()
        for i, (what, (_, words)) in enumerate(EXCEPTIONS.items()):
            with pytest.raises(TaskError) as caught:
                w.run(only(bad, args_of(scalars=[i])))
            assert words in str(caught.value), what
            assert "raise_one" in caught.value.remote_traceback, what
            assert not isinstance(caught.value, WorkerLostError), what
            assert_works(w, ok, marks)
        assert w.worker_pids() == pids


def test_tracebacks_of_any_shape_are_reported():
    with Worker(level=3, num_sub_workers=1) as w:
        chained, recursive = w.register(raise_chained), w.register(lambda: deep(0))
        with pytest.raises(TaskError) as caught:
            w.run(only(chained))
        assert "KeyError: 'inner'" in caught.value.remote_traceback
        assert "direct cause" in caught.value.remote_traceback
        with pytest.raises(TaskError, match="RecursionError") as caught:
            w.run(only(recursive))
        assert "in deep" in caught.value.remote_traceback


def test_a_leaf_called_with_the_wrong_arguments_fails_its_task():
    with Worker(level=3, num_sub_workers=1) as w:
        two = w.register(lambda a, b: None)
        with pytest.raises(TaskError, match="TypeError"):
            w.run(only(two))
        absent = w.register(lambda args: args.tensor(3))
        with pytest.raises(
            TaskError, match="IndexError: tensor index 3 is out of range: there are 0"
        ):
            w.run(only(absent))


def test_arguments_kept_beyond_their_task_say_so():
    kept = []

    def keep(args):
        kept.append(args)

    def use():
        kept[0].scalar(0)

    def change(args):
        args.add_tensor(args.tensor(0), tag=T.INPUT)

    with Worker(level=3, num_sub_workers=1) as w:
        marks = w.share(np.zeros(4, np.int64))
        keeping, using, changing = w.register(keep), w.register(use), w.register(change)
        w.run(only(keeping, args_of(scalars=[1])))
        with pytest.raises(TaskError, match="belong to a task that has ended"):
            w.run(only(using))
        with pytest.raises(TaskError, match="cannot be changed"):
            w.run(only(changing, args_of((marks, T.INPUT))))


def test_what_a_leaf_returns_is_ignored():
    with Worker(level=3, num_sub_workers=1) as w:
        w.run(only(w.register(lambda: threading.Lock())))


# ---------------------------------------------------------------- downstream
@pytest.mark.spec("SCHED-POISON-1", "SCHED-POISON-2", "SCHED-POISON-4")
def test_what_depends_on_a_failed_task_never_runs_and_all_else_does():
    with Worker(level=3, num_sub_workers=2) as w, Gate() as gate:
        marks = w.share(np.zeros(8, np.int64))
        a, b = w.empty(1, np.int64), w.empty(1, np.int64)

        def fail_late(args):
            gate.wait()
            raise ValueError("the first one")

        bad = w.register(fail_late)

        def mark_at(args):
            marks[args.scalar(0)] += 1

        ok = w.register(mark_at)

        def graph(orch, args, config):
            orch.submit_sub(bad, args_of((a, T.OUTPUT_EXISTING)))
            orch.submit_sub(ok, args_of((a, T.INPUT), (b, T.OUTPUT_EXISTING), scalars=[0]))
            orch.submit_sub(ok, args_of((b, T.INOUT), scalars=[1]))
            orch.submit_sub(ok, args_of((b, T.INPUT), scalars=[2]))
            orch.submit_sub(ok, args_of(scalars=[3]))
            orch.submit_sub(ok, args_of((b, T.OUTPUT_EXISTING), scalars=[4]))
            orch.submit_sub(ok, args_of((b, T.INPUT), scalars=[5]))
            gate.open()

        with pytest.raises(TaskError, match="ValueError: the first one") as caught:
            w.run(graph)
        assert caught.value.task == 0
        assert marks.tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
        marks[:] = 0
        assert_works(w, w.register(mark), marks)


@pytest.mark.spec("ORCH-FAIL-2", "ORCH-FAIL-3")
def test_the_next_call_after_a_failure_raises_it_and_swallowing_it_does_not_help():
    seen = []
    with Worker(level=3, num_sub_workers=1) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok, bad = w.register(mark), w.register(failing_leaf)

        def graph(orch, args, config):
            orch.submit_sub(bad, args_of(scalars=[1]))
            eventually(lambda: w.progress()[0])
            for call in (
                lambda: orch.submit_sub(ok, args_of((marks, T.INOUT), scalars=[0])),
                lambda: orch.alloc(8, np.int64),
                lambda: orch.submit_sub(bad, args_of(scalars=[2])),
            ):
                try:
                    call()
                except TaskError as error:
                    seen.append(error)

        with pytest.raises(TaskError, match="bad value 1") as caught:
            w.run(graph)
        assert seen == [caught.value] * 3
        assert marks.tolist() == [0] * 4
        assert_works(w, ok, marks)

        def translate(orch, args, config):
            orch.submit_sub(bad, args_of(scalars=[3]))
            eventually(lambda: w.progress()[0])
            try:
                orch.submit_sub(ok)
            except TaskError as error:
                raise LookupError("mine") from error

        with pytest.raises(LookupError, match="mine"):
            w.run(translate)
        assert_works(w, ok, marks)


def test_a_failure_ends_a_wait_for_room():
    with (
        Worker(level=3, num_sub_workers=1, heap_ring_size=64 * KIB, alloc_timeout_s=30) as w,
        Gate() as gate,
    ):

        def fail_when_told(args):
            gate.wait()
            raise ValueError("while waiting")

        bad = w.register(fail_when_told)

        def graph(orch, args, config):
            orch.alloc(64 * KIB, np.uint8)
            orch.submit_sub(bad)
            gate.open()
            orch.alloc(1, np.uint8)  # held by this very scope: only the failure can end the wait

        with pytest.raises(TaskError, match="while waiting"):
            w.run(graph)


def test_of_several_failures_one_is_raised_once():
    with Worker(level=3, num_sub_workers=2) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok, bad = w.register(mark), w.register(failing_leaf)

        def graph(orch, args, config):
            for i in range(20):
                orch.submit_sub(bad, args_of(scalars=[i]))

        for _ in range(20):
            with pytest.raises(TaskError, match="bad value"):
                w.run(graph)
            assert_works(w, ok, marks)


def test_no_failure_is_ever_silent():
    rng = np.random.default_rng(5)
    with Worker(level=3, num_sub_workers=2) as w:
        ok, bad = w.register(lambda: None), w.register(failing_leaf)
        for _ in range(300):
            count = int(rng.integers(1, 40))
            failing = set(rng.integers(0, count, rng.integers(0, 3)).tolist())

            def graph(orch, args, config, count=count, failing=failing):
                for i in range(count):
                    if i in failing:
                        orch.submit_sub(bad, args_of(scalars=[i]))
                    else:
                        orch.submit_sub(ok)

            if failing:
                with pytest.raises(TaskError) as caught:
                    w.run(graph)
                assert caught.value.task in failing
                assert str(caught.value).endswith(f"bad value {caught.value.task}")
            else:
                assert w.run(graph).tasks == count


# ---------------------------------------------------------------- exceptions of the orch function
class Mine(BaseException):
    pass


@pytest.mark.spec("ORCH-RUN-7", "SCHED-CANCEL-1", "SCHED-CANCEL-2", "SCHED-CANCEL-4")
@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, Mine])
def test_an_exception_of_the_orch_function_cancels_what_has_not_started(kind):
    error = kind("mine")
    with Worker(level=3, num_sub_workers=1) as w, Gate() as gate:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)

        def mark_late(args):
            gate.wait()
            mark(args)

        slow = w.register(mark_late)

        def graph(orch, args, config):
            orch.scope_begin()
            orch.submit_sub(slow, args_of((marks, T.NO_DEP), scalars=[0]))
            eventually(lambda: w._session.engine.mem[L.BUSY])
            with orch.scope():
                orch.scope_begin()
                for _ in range(10):
                    orch.submit_sub(ok, args_of((marks, T.NO_DEP), scalars=[1]))
                raise error

        w.start()
        with Concurrently(until_cancelled(w, gate)), pytest.raises(kind) as caught:
            w.run(graph)
        assert caught.value is error
        assert marks.tolist() == [1, 0, 0, 0]
        assert_works(w, ok, marks)


@pytest.mark.spec("ORCH-RUN-7")
def test_the_users_exception_wins_over_a_failed_task():
    with Worker(level=3, num_sub_workers=1) as w:
        bad = w.register(failing_leaf)

        def graph(orch, args, config):
            orch.submit_sub(bad, args_of(scalars=[1]))
            eventually(lambda: w.progress()[0])
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            w.run(graph)


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


# ---------------------------------------------------------------- no room
@pytest.mark.spec("ORCH-BACK-2", "ORCH-BACK-4")
def test_a_wait_for_room_that_times_out_leaves_the_worker_usable():
    with Worker(level=3, num_sub_workers=1, heap_ring_size=64 * KIB, alloc_timeout_s=0.05) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)

        def graph(orch, args, config):
            orch.alloc(40 * KIB, np.uint8)
            live = orch.live_tasks()
            with pytest.raises(RingFullError, match=r"ring 0.*heap_ring_size"):
                orch.alloc(30 * KIB, np.uint8)
            output = TaskArgs()
            output.add_tensor(_unborn(30 * KIB), T.OUTPUT)
            with pytest.raises(RingFullError, match=r"ring 0.*heap_ring_size"):
                orch.submit_sub(ok, output)
            assert output.tensor(0).data == 0
            assert orch.live_tasks() == live
            with orch.scope():
                orch.alloc(60 * KIB, np.uint8)  # another ring has room
            orch.submit_sub(ok, args_of((marks, T.INOUT), scalars=[1]))

        w.run(graph)
        assert marks.tolist() == [0, 1, 0, 0]

        def overflow(orch, args, config):
            while True:
                orch.alloc(40 * KIB, np.uint8)

        with pytest.raises(RingFullError):
            w.run(overflow)
        assert_works(w, ok, marks)


def _unborn(nbytes):
    from simpler_ref import ContinuousTensor, DataType

    return ContinuousTensor.make(0, (nbytes,), DataType.UINT8)


@pytest.mark.spec("ORCH-RING-11")
def test_a_request_larger_than_a_ring_is_refused_at_once_and_changes_nothing():
    with Worker(level=3, num_sub_workers=1, heap_ring_size=64 * KIB, alloc_timeout_s=1e9) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)

        def graph(orch, args, config):
            before = orch._mem[L.ORCH : L.SCHED].copy()
            with pytest.raises(RuntimeError, match=r"exceeds per-ring heap size.*65536"):
                orch.alloc(64 * KIB + 1, np.uint8)
            output = TaskArgs()
            output.add_tensor(_unborn(40 * KIB), T.OUTPUT)
            output.add_tensor(_unborn(40 * KIB), T.OUTPUT)
            with pytest.raises(RuntimeError, match=r"exceeds per-ring heap size.*81920.*65536"):
                orch.submit_sub(ok, output)
            assert (orch._mem[L.ORCH : L.SCHED] == before).all()
            orch.alloc(64 * KIB, np.uint8)
            orch.submit_sub(ok, args_of((marks, T.INOUT), scalars=[1]))

        w.run(graph)
        assert marks.tolist() == [0, 1, 0, 0]
        assert_works(w, ok, marks)


def test_a_full_task_window_times_out_and_leaves_the_worker_usable():
    with Worker(level=3, num_sub_workers=1, ring_depth=1, task_window=4, alloc_timeout_s=0.05) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)

        def graph(orch, args, config):
            for _ in range(5):
                orch.submit_sub(ok, args_of((marks, T.NO_DEP), scalars=[1]))

        with pytest.raises(RingFullError, match=r"task window full.*4"):
            w.run(graph)
        assert_works(w, ok, marks)

        def in_scopes(orch, args, config):
            for _ in range(50):
                with orch.scope():
                    for _ in range(4):
                        orch.submit_sub(ok, args_of((marks, T.NO_DEP), scalars=[2]))

        w.run(in_scopes)
        assert marks[2] > 0


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1, L.TRACE_CAPACITY + 1])
def test_the_length_of_a_traceback_is_not_believed_when_it_cannot_be(monkeypatch, size):
    write = loop.write_error

    def write_and_damage(box, trace, exception):
        write(box, trace, exception)
        trace[:8] = size.to_bytes(8, "little")

    monkeypatch.setattr(loop, "write_error", write_and_damage)
    with Worker(level=3, num_sub_workers=1) as w:
        marks = w.share(np.zeros(4, np.int64))
        broken = w.register(lambda args: {}["no such key"])
        ok = w.register(mark)
        with pytest.raises(TaskError, match=r"KeyError: 'no such key'$") as error:
            w.run(lambda orch, *_: orch.submit_sub(broken))
        assert error.value.remote_traceback == ""
        assert_works(w, ok, marks)
