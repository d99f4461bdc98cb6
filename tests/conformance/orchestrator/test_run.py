"""ORCH-RUN: the life of a run."""

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import psutil
import pytest

from simpler_ref import TaskArgs, TaskError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import Gate, key, make_args, no_passes, wait_until
from tests.system.programs import Concurrently, Fork


def is_empty(orch):
    """Say whether rings, map, scopes and ids are as before the first run."""
    ring, mem = orch.ring, orch._mem
    cursors = [(ring.heap_top(i), ring.heap_tail(i)) for i in range(ring.ring_count())]
    return (
        set(cursors) == {(0, 0)}
        and orch.live_tasks() == 0
        and ring.next_task_id() == 0
        and mem[L.MAP_COUNT] == 0
        and mem[L.SCOPE_DEPTH] == 0
    )


def nothing():
    pass


@pytest.mark.spec("ORCH-RUN-1")
@pytest.mark.parametrize("how", ["start", "run"])
def test_init_maps_and_start_or_the_first_run_forks(how):
    w, others = Worker(3, num_sub_workers=2), psutil.Process().children()
    w.init()
    with w:
        shared = w.share(np.zeros(2, np.int64))  # memory is there before any process is
        assert w.worker_pids() == []
        assert set(psutil.Process().children()) == set(others)  # a tracker of names neither
        first = w.register(lambda: shared.__setitem__(0, 7))
        if how == "start":
            w.start()
        before = w.worker_pids()
        assert len(before) == (2 if how == "start" else 0)
        w.run(lambda orch, *_: orch.submit_sub(first))
        w.start()
        assert len(w.worker_pids()) == 2
        assert before in ([], w.worker_pids())
        second = w.register(lambda: shared.__setitem__(1, 8))  # known to the next run
        w.run(lambda orch, *_: orch.submit_sub(second))
        assert shared.tolist() == [7, 8]


@pytest.mark.spec("ORCH-RUN-2")
@pytest.mark.parametrize(
    "use",
    [
        *(lambda w: w.run(lambda *_: None), lambda w: w.record(lambda *_: None)),
        *(lambda w: w.empty(3), lambda w: w.share([1.0]), lambda w: w.zeros(3), Worker.start),
        *(lambda w: w.submit(abs, -1), lambda w: list(w.map(abs, [-1]))),
        *(Worker.progress, Worker.worker_pids, Worker.placement),
    ],
)
def test_in_a_with_block_the_first_use_initialises(use):
    w = Worker(3, num_sub_workers=1)
    with w:
        w.register(nothing)
        assert w._life.session is None
        use(w)
        assert w._life.session is not None
        with pytest.raises(RuntimeError, match="already initialized"):
            w.init()
    with pytest.raises(RuntimeError, match="closed"):
        use(w)


@pytest.mark.spec("ORCH-RUN-2")
def test_threads_that_use_it_first_at_once_find_one_memory():
    with Worker(3, num_sub_workers=1) as w, ThreadPoolExecutor(4) as threads:
        gate = threading.Barrier(4)

        def use(_):
            gate.wait()
            w.submit(nothing).result()
            return w.empty(16)

        assert len({array.ctypes.data for array in list(threads.map(use, range(4)))}) == 4


@pytest.mark.spec("ORCH-RUN-2", "ORCH-RUN-9")
def test_with_closes_on_exit_and_close_may_be_called_again_and_again_and_before_init():
    w, never = Worker(3, num_sub_workers=1), Worker(3)
    with pytest.raises(ZeroDivisionError), w as entered:
        assert entered is w
        w.start()
        [pid] = w.worker_pids()
        raise ZeroDivisionError
    for one in (w, never, w, never):
        one.close()
    assert not psutil.pid_exists(pid)
    assert all(child.status() != psutil.STATUS_ZOMBIE for child in psutil.Process().children())
    with pytest.raises(RuntimeError, match="closed"):
        w.run(lambda *_: None)


@pytest.mark.spec("ORCH-RUN-3")
def test_run_returns_when_every_task_has_finished_and_no_task_is_live(w):
    """The orch function runs inside a scope of its own; the run ends scopes that it leaves open."""
    done, kept = w.share(np.zeros(40, np.int64)), []

    @w.register
    def leaf(args):
        time.sleep(0.001)
        done[args.scalar(0)] = 1

    def orch_fn(orch, args, config):
        kept.append(orch)
        orch.alloc(8, "uint8")
        assert orch.live_tasks() == 1  # nothing but an open scope holds it
        for i in range(40):
            if i % 10 == 0:
                orch.scope_begin()
            orch.submit_sub(leaf, make_args((key(4096), T.INOUT), scalars=[i]))

    assert w.run(orch_fn).tasks == 41
    assert done.all() and is_empty(kept[0])


def work(orch, works, fails):
    orch.scope_begin()
    orch.scope_begin()
    orch.alloc(100, "uint8")
    orch.submit_sub(works, make_args((key(4096), T.INOUT), (key(0), T.OUTPUT)))


def fail_in_task(orch, works, fails):
    with orch.scope():
        orch.alloc(100, "uint8")
        orch.submit_sub(fails, make_args((key(4096), T.INOUT)))
        orch.submit_sub(works, make_args((key(4096), T.INOUT), (key(0), T.OUTPUT)))


def raise_in_orch_function(orch, works, fails):
    work(orch, works, fails)
    raise LookupError("mine")


def fail_and_raise(orch, works, fails):
    orch.submit_sub(fails, make_args())
    wait_until(lambda: orch._mem[L.RUN_ERROR] != 0)
    raise LookupError("mine")


@pytest.mark.spec("ORCH-RUN-4", "ORCH-RUN-5", "ORCH-RUN-7")
@pytest.mark.parametrize(
    ("body", "end"),
    [
        (work, nullcontext()),
        (fail_in_task, pytest.raises(TaskError)),
        (raise_in_orch_function, pytest.raises(LookupError)),
        (fail_and_raise, pytest.raises(LookupError)),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_after_a_run_everything_is_empty_and_ids_start_at_zero(body, end):
    """So it is when there is no Scheduler thread any more; the orch function's exception wins."""
    with Worker(3, num_sub_workers=2) as w:
        handles = w.register(lambda args: None), w.register(lambda args: 1 / 0)
        for has_scheduler_thread in (True, True, body is fail_and_raise):
            kept = []
            if not has_scheduler_thread:
                w._session.scheduler.stop()

            def orch_fn(orch, args, config, kept=kept):
                kept.append(orch)
                with orch.scope():
                    assert orch.alloc(8, "uint8").data == orch.ring.heap_base(1)
                    assert orch.ring.next_task_id() == 1
                assert orch.live_tasks() == 0
                body(orch, *handles)

            with end:
                w.run(orch_fn)
            assert is_empty(kept[0])


@pytest.mark.spec("ORCH-RUN-6")
def test_repeating_a_run_takes_no_more_memory(w):
    handle, used = w.register(lambda args: None), []

    def orch_fn(orch, args, config):
        with no_passes(orch._mem):  # so that every task is live at the end, each time
            for i in range(60):
                with orch.scope():
                    many = [(key(0, 10 * i), T.OUTPUT)] * (i % 3)
                    orch.submit_sub(handle, make_args(*many, scalars=range(i)))
            assert orch.live_tasks() == 60
            used.append(orch._mem[[L.SLOTS_USED, L.SPILL_USED, L.MAP_MASK]].tolist())

    peaks = [w.run(orch_fn).ring_peak_bytes for _ in range(5)]
    assert used == used[:1] * 5
    assert peaks == peaks[:1] * 5


@pytest.mark.spec("ORCH-RUN-7")
@pytest.mark.parametrize("kind", [LookupError, SystemExit, KeyboardInterrupt])
def test_an_exception_of_the_orch_function_reaches_the_caller_and_cancels(kind):
    with Gate() as started, Gate() as go, Worker(3, num_sub_workers=1) as w:
        ran = w.share(np.zeros(3, np.int64))
        second = w.register(lambda args: ran.__setitem__(args.scalar(0), 1))

        @w.register
        def first(args):
            started.open(1)
            go.wait()
            ran[0] = 1

        error = kind("what the user raised")

        def orch_fn(orch, args, config):
            orch.submit_sub(first, make_args((key(4096), T.OUTPUT)))
            orch.submit_sub(second, make_args((key(4096), T.INPUT), scalars=[1]))
            orch.submit_sub(second, make_args(scalars=[2]))
            started.wait()
            threading.Timer(0.05, go.open).start()
            raise error

        with pytest.raises(kind) as info:
            w.run(orch_fn)
        assert info.value is error
        assert error.__cause__ is None
        assert ran.tolist() == [1, 0, 0]
        again = [make_args(scalars=[i]) for i in range(3)]
        assert w.run(lambda orch, *_: [orch.submit_sub(second, one) for one in again]).tasks == 3
        assert ran.all()


@pytest.mark.spec("ORCH-RUN-8")
def test_a_terminals_ctrl_c_reaches_the_workers_as_well_and_none_of_them_minds(capfd):
    with Gate() as busy, Gate() as go:

        def program():
            os.setsid()  # the terminal's signals go to all that it starts
            with Worker(3, num_sub_workers=2) as w:
                ran = w.share(np.zeros(2, np.int64))

                def first(args):
                    busy.open(1)
                    go.wait()
                    ran[0] = 1

                def orch_fn(orch, *_):
                    for handle in (blocked, after):  # one worker is busy, the other idle
                        orch.submit_sub(handle, make_args((key(4096), T.INOUT)))
                    while True:
                        time.sleep(0.001)

                def let_go():  # once the run waits for its end, cancelled
                    wait_until(lambda: w._session.engine.mem[L.PARK_ORCH] != 0)
                    go.open()

                blocked, after = w.register(first), w.register(lambda args: ran.__setitem__(1, 1))
                w.start()
                pids = w.worker_pids()
                with Concurrently(let_go), pytest.raises(KeyboardInterrupt):
                    w.run(orch_fn)
                assert (ran.tolist(), w.worker_pids()) == ([1, 0], pids)
                w.run(lambda orch, *_: orch.submit_sub_group(after, [TaskArgs()] * 2))
                assert (ran.tolist(), w.worker_pids()) == ([1, 1], pids)

        with Fork(program) as fork:
            busy.wait()
            os.killpg(fork.pid, signal.SIGINT)
            assert fork.wait() == 0
            assert fork.everybody_ends()
        assert capfd.readouterr() == ("", "")


@pytest.mark.spec("ORCH-RUN-8")
def test_programs_that_tasks_start_ignore_no_more_signals_than_those_of_the_program():
    def ignored():
        """Return the signals that a program which is started here ignores, as a mask."""
        command = ["grep", "SigIgn", "/proc/self/status"]
        return subprocess.run(command, capture_output=True, text=True).stdout

    with Worker(num_sub_workers=1) as w:
        assert w.submit(ignored).result() == ignored() != ""
