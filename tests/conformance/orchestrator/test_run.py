"""ORCH-RUN: the life of a run."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import psutil
import pytest

from simpler_ref import TaskArgs, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.segments import segments
from tests.spec_rules import ROOT
from tests.support import DEADLINE_S, Gate, key, make_args, no_passes, wait_until
from tests.system.programs import Program


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


# ---------------------------------------------------------------- start
@pytest.mark.spec("ORCH-RUN-1")
@pytest.mark.parametrize("how", ["start", "run"])
def test_init_maps_and_start_or_the_first_run_forks(how):
    w = Worker(3, num_sub_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w.init()
    try:
        shared = w.share(np.zeros(1, np.int64))  # memory is there before any process is
        assert w.worker_pids() == []
        assert psutil.Process().children() == [] or all(
            "resource_tracker" in " ".join(child.cmdline()) for child in psutil.Process().children()
        )
        late = w.register(lambda: shared.__setitem__(0, 7))
        if how == "start":
            w.start()
            pids = w.worker_pids()
            assert len(pids) == 2
            w.start()
            assert w.worker_pids() == pids
        w.run(lambda orch, *_: orch.submit_sub(late))
        assert shared[0] == 7
        assert len(w.worker_pids()) == 2
        if how == "start":
            assert w.worker_pids() == pids
    finally:
        w.close()


@pytest.mark.spec("ORCH-RUN-1")
def test_a_callable_registered_after_the_start_is_known_to_the_next_run():
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros(2, np.int64))
        first = w.register(lambda: seen.__setitem__(0, 1))
        w.run(lambda orch, *_: orch.submit_sub(first))
        second = w.register(lambda: seen.__setitem__(1, 2))

        def both(orch, *_):
            seen[:] = 0
            orch.submit_sub(first)
            orch.submit_sub(second)

        w.run(both)
        assert seen.tolist() == [1, 2]


@pytest.mark.spec("ORCH-RUN-2")
def test_with_initialises_on_entry_and_closes_on_exit():
    w = Worker(3, num_sub_workers=1)
    with pytest.raises(ZeroDivisionError), w as entered:
        assert entered is w
        w.start()
        [pid] = w.worker_pids()
        raise ZeroDivisionError
    assert not psutil.pid_exists(pid)
    with pytest.raises(RuntimeError, match="closed"):
        w.run(lambda *_: None)


# ---------------------------------------------------------------- run and drain
@pytest.mark.spec("ORCH-RUN-3")
def test_run_returns_when_every_task_has_finished_and_no_task_is_live():
    with Worker(3, num_sub_workers=2) as w:
        done = w.share(np.zeros(40, np.int64))

        def leaf(args):
            time.sleep(0.001)
            done[args.scalar(0)] = 1

        handle = w.register(leaf)
        kept = []

        def orch_fn(orch, args, config):
            kept.append(orch)
            for i in range(40):
                if i % 10 == 0:
                    orch.scope_begin()  # left open: the run ends them
                orch.submit_sub(handle, make_args((key(4096), T.INOUT), scalars=[i]))

        assert w.run(orch_fn).tasks == 40
        assert done.all()
        assert is_empty(kept[0])


@pytest.mark.spec("ORCH-RUN-3")
def test_the_orch_function_runs_inside_a_scope_of_its_own():
    def orch_fn(orch, args, config):
        orch.alloc(8, "uint8")
        assert orch.live_tasks() == 1  # nothing but an open scope holds it

    with Worker(3) as w:
        w.run(orch_fn)


@pytest.mark.spec("ORCH-RUN-4")
def test_a_run_completes_without_the_scheduler_thread():
    with Worker(3, num_sub_workers=2) as w:
        total = w.share(np.zeros(1, np.int64))

        def leaf(args):
            total[0] += 1

        handle = w.register(leaf)
        w.start()
        w._session.scheduler.stop()
        assert "simpler-scheduler" not in [thread.name for thread in threading.enumerate()]

        def orch_fn(orch, args, config):
            for _ in range(50):
                orch.submit_sub(handle, make_args((total, T.INOUT)))

        w.run(orch_fn)
        assert total[0] == 50


def fail_in_task(orch, handles):
    with orch.scope():
        orch.alloc(100, "uint8")
        orch.submit_sub(handles["fails"], make_args((key(4096), T.INOUT)))
        orch.submit_sub(handles["works"], make_args((key(4096), T.INOUT), (key(0), T.OUTPUT)))


def raise_in_orch_function(orch, handles):
    orch.scope_begin()
    orch.alloc(100, "uint8")
    orch.submit_sub(handles["works"], make_args((key(4096), T.INOUT), (key(0), T.OUTPUT)))
    raise LookupError("mine")


def work(orch, handles):
    orch.scope_begin()
    orch.scope_begin()
    orch.alloc(100, "uint8")
    orch.submit_sub(handles["works"], make_args((key(4096), T.INOUT), (key(0), T.OUTPUT)))


@pytest.mark.spec("ORCH-RUN-5")
@pytest.mark.parametrize("body", [work, fail_in_task, raise_in_orch_function])
def test_after_a_run_everything_is_empty_and_ids_start_at_zero(body):
    def fails(args):
        raise ValueError("no")

    with Worker(3, num_sub_workers=2) as w:
        handles = {"works": w.register(lambda args: None), "fails": w.register(fails)}
        for _ in range(3):
            kept = []

            def orch_fn(orch, args, config, kept=kept):
                kept.append(orch)
                assert is_empty_but_for_the_runs_scope(orch)
                body(orch, handles)

            try:
                w.run(orch_fn)
                assert body is work
            except (RuntimeError, LookupError):
                assert body is not work
            assert is_empty(kept[0])


def is_empty_but_for_the_runs_scope(orch):
    orch.scope_begin()
    address = orch.alloc(8, "uint8").data
    first_of_ring_one = address == orch.ring.heap_base(1) and orch.ring.next_task_id() == 1
    orch.scope_end()
    return first_of_ring_one and orch.live_tasks() == 0


@pytest.mark.spec("ORCH-RUN-6")
def test_repeating_a_run_takes_no_more_memory():
    with Worker(3, num_sub_workers=1, heap_ring_size=1 << 20) as w:
        handle = w.register(lambda args: None)
        used = []

        def orch_fn(orch, args, config):
            with no_passes(orch._mem):  # so that every task is live at the end, each time
                for i in range(60):
                    with orch.scope():
                        many = [(key(0, 10 * i), T.OUTPUT)] * (i % 20)
                        orch.submit_sub(handle, make_args(*many, scalars=range(i)))
                assert orch.live_tasks() == 60
                slots, spill = int(orch._mem[L.SLOTS_USED]), int(orch._mem[L.SPILL_USED])
                used.append((slots, spill, int(orch._mem[L.MAP_MASK])))

        peaks = [w.run(orch_fn).ring_peak_bytes for _ in range(5)]
        assert used == used[:1] * 5
        assert peaks == peaks[:1] * 5


@pytest.mark.spec("ORCH-RUN-6")
def test_a_run_of_large_tasks_leaves_room_for_a_later_run_of_small_ones(driver):
    """Blocks for large arguments are not set aside for ever."""
    while driver.try_submit(scalars=range(1800)) >= 0:
        pass
    count = driver.live()
    assert count > 1
    for _ in range(2):
        driver.finish_everything()
        driver.finish_run()
        driver.reclaim()
        driver.end_run()
        driver.begin_run()
        for _ in range(64):
            driver.submit(scalars=range(40))


# ---------------------------------------------------------------- exceptions of the orch function
class Mine(Exception):
    pass


@pytest.mark.spec("ORCH-RUN-7")
def test_an_exception_of_the_orch_function_reaches_the_caller_and_cancels():
    with Gate() as started, Gate() as go, Worker(3, num_sub_workers=1) as w:
        ran = w.share(np.zeros(3, np.int64))

        def first(args):
            started.open(1)
            go.wait()
            ran[0] = 1

        first_handle = w.register(first)
        second = w.register(lambda args: ran.__setitem__(args.scalar(0), 1))
        error = Mine("what the user raised")

        def orch_fn(orch, args, config):
            orch.submit_sub(first_handle, make_args((key(4096), T.OUTPUT)))
            orch.submit_sub(second, make_args((key(4096), T.INPUT), scalars=[1]))
            orch.submit_sub(second, make_args(scalars=[2]))
            started.wait()
            threading.Timer(0.05, go.open).start()
            raise error

        with pytest.raises(Mine) as info:
            w.run(orch_fn)
        assert info.value is error
        assert error.__cause__ is None
        assert ran.tolist() == [1, 0, 0]

        def again(orch, args, config):
            for i in range(3):
                orch.submit_sub(second, make_args(scalars=[i]))

        ran[:] = 0
        assert w.run(again).tasks == 3
        assert ran.all()


@pytest.mark.spec("ORCH-RUN-7")
def test_the_orch_functions_exception_wins_over_a_tasks_failure():
    with Worker(3, num_sub_workers=1) as w:

        def fails():
            raise ValueError("the task's")

        handle = w.register(fails)

        def orch_fn(orch, args, config):
            orch.submit_sub(handle)
            wait_until(lambda: orch._mem[L.RUN_ERROR] != 0)
            raise Mine

        for _ in range(2):
            with pytest.raises(Mine):
                w.run(orch_fn)
        w.run(lambda *_: None)


@pytest.mark.spec("ORCH-RUN-7")
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exceptions_that_are_no_exception_subclass_pass_as_well(kind):
    error = kind("mine")

    def orch_fn(orch, args, config):
        raise error

    with Worker(3) as w:
        with pytest.raises(kind) as info:
            w.run(orch_fn)
        assert info.value is error
        w.run(lambda *_: None)


@pytest.mark.spec("ORCH-RUN-8")
@pytest.mark.parametrize("where", ["computing", "waiting_for_room", "draining"])
def test_ctrl_c_unwinds_and_leaves_the_workers_alive(where):
    with (
        Gate() as started,
        Gate() as go,
        Worker(3, num_sub_workers=1, heap_ring_size=1 << 16) as w,
    ):
        ran = w.share(np.zeros(2, np.int64))

        def first(args):
            started.open(1)
            go.wait()
            ran[0] = 1

        blocked = w.register(first)
        after = w.register(lambda args: ran.__setitem__(1, 1))
        w.start()
        pids = w.worker_pids()

        def press():
            started.wait()
            if where != "computing":
                wait_until(lambda: w._session.engine.mem[L.PARK_ORCH] != 0)
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: w._session.engine.mem[L.CANCEL] != 0)
            go.open()

        presser = threading.Thread(target=press)

        def orch_fn(orch, args, config):
            orch.submit_sub(blocked, make_args((key(4096), T.OUTPUT)))
            orch.submit_sub(after, make_args((key(4096), T.INPUT)))
            presser.start()
            if where == "computing":
                while True:
                    time.sleep(0.001)
            if where == "waiting_for_room":
                orch.alloc(1 << 16, "uint8")
                orch.alloc(1 << 16, "uint8")

        with pytest.raises(KeyboardInterrupt):
            w.run(orch_fn)
        presser.join()
        assert ran.tolist() == [1, 0]
        assert w.worker_pids() == pids
        w.run(lambda orch, *_: orch.submit_sub(after, TaskArgs()))
        assert w.worker_pids() == pids
        assert ran.tolist() == [1, 1]


TERMINAL = """
w = Worker(3, num_sub_workers=2)
w.init()
ran = w.share(np.zeros(2, np.int64))
reader, writer = os.pipe()

def first(args):
    say("busy")
    os.read(reader, 1)
    ran[0] = 1

def second(args):
    ran[1] = 1

blocked, after = w.register(first), w.register(second)
w.start()
pids = w.worker_pids()

def orch_fn(orch, *_):
    for handle in (blocked, after):  # one worker is busy, the other idle
        args = TaskArgs()
        args.add_tensor(ContinuousTensor.make(4096, (1,), DataType.INT64), T.INOUT)
        orch.submit_sub(handle, args)
    try:
        while True:
            time.sleep(0.001)
    except KeyboardInterrupt:
        os.write(writer, b"x")
        raise

try:
    w.run(orch_fn)
except KeyboardInterrupt:
    print(ran.tolist(), w.worker_pids() == pids)
w.run(lambda orch, *_: orch.submit_sub_group(after, [TaskArgs()] * 2))
print(ran.tolist(), w.worker_pids() == pids)
w.close()
"""


@pytest.mark.spec("ORCH-RUN-8")
def test_a_terminals_ctrl_c_reaches_the_workers_as_well_and_none_of_them_minds():
    with Program(TERMINAL) as program:
        program.wait_for("busy")
        program.signal_group(signal.SIGINT)
        code, out, err = program.finish()
        assert (code, err) == (0, "")
        assert out.splitlines() == ["[1, 0] True", "[1, 1] True"]


# ---------------------------------------------------------------- the end
@pytest.mark.spec("ORCH-RUN-9")
def test_close_may_be_called_again_and_again_and_before_init():
    never = Worker(3)
    never.close()
    never.close()
    w = Worker(3, num_sub_workers=2)
    w.init()
    w.start()
    pids = w.worker_pids()
    for _ in range(3):
        w.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert all(child.status() != psutil.STATUS_ZOMBIE for child in psutil.Process().children())


@pytest.mark.spec("ORCH-RUN-9")
@pytest.mark.parametrize(
    "end",
    ["", "raise SystemExit(0)", "1/0", "import os; os.kill(os.getpid(), 15)", "w = None", "del w"],
    ids=["falls off", "exit", "exception", "SIGTERM", "forgotten", "deleted"],
)
def test_a_program_that_ends_without_close_leaves_nothing(end):
    program = f"""
import psutil
from simpler_ref import Worker
w = Worker(3, num_sub_workers=2, heap_ring_size=1 << 16)
w.init()
h = w.register(lambda: None)
w.run(lambda orch, *_: orch.submit_sub(h))
print(psutil.Process(w.worker_pids()[0]).ppid(), *w.worker_pids(), flush=True)
{end}
"""
    named = segments()
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE_S,
        check=False,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    if end not in ("1/0", "import os; os.kill(os.getpid(), 15)"):
        assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    wait_until(lambda: segments() <= named)
