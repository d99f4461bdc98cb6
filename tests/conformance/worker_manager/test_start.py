"""WM-START: how worker processes are made."""

import json
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import psutil
import pytest

from simpler_ref import TaskError, Worker, WorkerLostError, WorkerStartError
from simpler_ref.native_chip import ChipCallable
from simpler_ref.task_interface import ContinuousTensor, DataType
from simpler_ref.task_interface import TensorArgType as T
from simpler_ref.workers import fresh_interpreter, processes
from tests.chip_kernels import add_core
from tests.spec_rules import ROOT
from tests.support import make_args, shared_spans, wait_until

from .own import run_sub


def spawning(level=3, **options):
    return Worker(level, **{"num_sub_workers": 1, "start_method": "spawn"} | options)


def server_of(w):
    return psutil.Process(w.worker_pids()[0]).parent()


def is_fresh(w):
    return "simpler_ref.workers.fresh_interpreter" in " ".join(server_of(w).cmdline())


@pytest.mark.spec("WM-START-1")
def test_a_fresh_interpreter_has_the_memory_the_flags_and_the_paths_and_nothing_else(monkeypatch):
    monkeypatch.setattr(os, "only_here", 1, raising=False)
    monkeypatch.setenv("ONLY_NOW", "told")
    monkeypatch.setattr(sys, "path", [*sys.path, "/a/path/of/the/test"])
    with spawning() as w, Worker(3) as other:
        runtime = w._session
        regions = [runtime.engine.mem, runtime.engine.heap, runtime.arena.memory]
        seen = w.share(np.zeros(4096, np.uint8))
        elsewhere = other.share(np.zeros(1, np.int64))

        def look(args):
            args.tensor(0).numpy()[:] += 5
            elsewhere[0] = args.tensor(0).data
            have = hasattr(os, "only_here"), os.environ["ONLY_NOW"], sys.path, list(sys.flags)
            text = json.dumps(have).encode()
            seen[: len(text)] = np.frombuffer(text, np.uint8)

        handle = w.register(look)
        early, ring = w.share(np.ones(3, np.int32)), []
        w.start()
        late = w.share(np.ones(3, np.int32))

        def orch_fn(orch, *_):
            orch.submit_sub(handle, make_args((early, T.INOUT)))
            orch.submit_sub(handle, make_args((late, T.INOUT)))
            slab = make_args((ContinuousTensor.make(0, (3,), DataType.INT32), T.OUTPUT))
            orch.submit_sub(handle, slab)
            ring.append(slab.tensor(0).data)

        w.run(orch_fn)
        inherited, told, path, flags = json.loads(bytes(seen).split(b"\0")[0])
        assert (inherited, told, path) == (False, "told", sys.path)
        assert flags == list(sys.flags)
        assert early.tolist() == late.tolist() == [6, 6, 6]
        assert elsewhere[0] == ring[0]
        for pid in w.worker_pids():
            theirs = shared_spans(pid)
            for region in regions:
                assert theirs[region.ctypes.data] == shared_spans(os.getpid())[region.ctypes.data]


@pytest.mark.spec("WM-START-1")
def test_a_start_method_must_be_one(monkeypatch):
    with pytest.raises(ValueError, match="start_method='thread': it is 'fork', 'spawn' or None"):
        Worker(3, start_method="thread")
    with pytest.raises(ValueError, match="child_mode='thread' makes none"):
        Worker(3, start_method="spawn", child_mode="thread")
    monkeypatch.setattr(fresh_interpreter, "get_executable", lambda: None)
    with spawning() as w, pytest.raises(WorkerStartError, match=r"multiprocessing\.set_executable"):
        w.start()


OPENMP = """
    import _thread, ctypes, faulthandler, glob, importlib.util, logging, os, psutil, time, zmq
    from pathlib import Path
    import numpy as np
    from numba.np.ufunc import workqueue
    from simpler_ref import Worker
    from simpler_ref.system import forks

    logging.basicConfig(format="%(message)s")
    site = Path(importlib.util.find_spec("sklearn").origin).parents[1]
    (path,) = glob.glob(str(site / "scikit_learn.libs" / "libgomp*"))

    def compute():
        library = ctypes.CDLL(path)
        free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        library.GOMP_parallel(free, None, 2, 0)  # two threads free nothing

    def nothing():
        pass

    def is_fresh(task, **more):
        with Worker(3, num_sub_workers=2, **more) as w:
            handle = w.register(task)
            w.run(lambda orch, *_: [orch.submit_sub(handle) for _ in range(4)])
            server = psutil.Process(w.worker_pids()[0]).parent()
            return server.cmdline() != psutil.Process().cmdline()

    a = np.ones((400, 400))
    a @ a
    faulthandler.dump_traceback_later(1000)
    _thread.start_new_thread(time.sleep, (1000,))
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    ctypes.CFUNCTYPE(None, ctypes.c_int)(workqueue.launch_threads)(2)
    assert len(forks._threads_of_libraries()) > 5  # OpenBLAS has some, too
    ctypes.CDLL(path)
    print(forks.why_not_fork(), is_fresh(nothing))
    a @ a
    print(forks.why_not_fork(), is_fresh(nothing, start_method="fork"))
    compute()
    print(forks.why_not_fork() is None, flush=True)
    if os.fork() == 0:  # which has none of these threads
        print(forks.why_not_fork(), flush=True)
        os._exit(0)
    os.wait()
    print(is_fresh(compute), is_fresh(compute), is_fresh(nothing, start_method="fork"))
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)
    print(forks.why_not_fork(), flush=True)
    os._exit(0)
"""


@pytest.mark.spec("WM-START-1", "WM-START-2")
@pytest.mark.slow("a program imports scikit-learn's OpenMP and starts fresh interpreters")
def test_spawn_is_chosen_once_openmp_has_computed_and_its_tasks_do_not_hang():
    """Threads of Python, OpenBLAS, ZeroMQ and numba are no reason, nor is an OpenMP only loaded."""
    command, given = [sys.executable, "-W", "error", "-"], textwrap.dedent(OPENMP)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert lines == ["None False", "None False", "False", "None", "True True False"]
    assert last.startswith("a native library and libgomp are in use: ")
    (told,) = done.stderr.splitlines()
    assert told.startswith("libgomp is in use: ") and "start_method='spawn'" in told


@pytest.mark.spec("WM-START-3")
def test_a_tree_of_workers_travels_with_its_callables_and_chips():
    child, tree = Worker(3, num_sub_workers=1, device_ids=[0]), spawning(4)
    tree.add_worker(child)
    with tree as w:
        out = w.share(np.zeros(3, np.int32))
        x, y = w.share(np.full(3, 4, np.float32)), w.share(np.zeros(3, np.float32))
        chip = child.register(ChipCallable.from_kernel(add_core()))
        sub = child.register(lambda args: out.__iadd__(args.scalar(0)))

        def below(orch, args, config):
            orch.submit_sub(sub, make_args(scalars=[7]))
            both = (x, T.INPUT), (x, T.INPUT)
            orch.submit_next_level(chip, make_args(*both, (y, T.OUTPUT_EXISTING)))

        handle = w.register(below)
        w.run(lambda orch, *_: orch.submit_next_level(handle))
        assert is_fresh(w)
        assert (out.tolist(), y.tolist()) == ([7, 7, 7], [8, 8, 8])


class Locked:
    """A worker kind that cannot be serialised."""

    def __init__(self):
        self.lock = threading.Lock()

    def run(self, callable, view, config):
        callable(view)


@pytest.mark.spec("WM-START-3")
def test_what_cannot_travel_is_refused_by_name_with_the_remedy(monkeypatch):
    lock = threading.Lock()

    def needs_a_lock():
        return lock

    with spawning() as w:
        with pytest.raises(TypeError, match=r"needs_a_lock cannot.*lock.*start_method='fork'"):
            w.register(needs_a_lock)
        assert not w._life.registry._installed
    monkeypatch.setattr(processes, "why_not_fork", lambda: "a reason")
    monkeypatch.setattr(processes, "_told", True)
    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(needs_a_lock)
        with pytest.raises(TypeError, match=r"needs_a_lock cannot.*start_method='fork'"):
            w.start()
        w.unregister(handle)
    w = spawning()
    w.add_sub(Locked())
    with w, pytest.raises(TypeError, match=r"sub_worker Locked cannot.*lock.*start_method='fork'"):
        w.start()
    child = Worker(3, num_sub_workers=1)
    child.register(needs_a_lock)
    w = spawning(4)
    w.add_worker(child)
    with w, pytest.raises(TypeError, match=r"level 3 child Worker cannot.*needs_a_lock"):
        w.start()


def array_of_its_own():
    """Return an array that is shared, but not by a Worker."""
    return np.frombuffer(mmap.mmap(-1, 4096), np.int32)


@pytest.mark.spec("WM-START-3", "ORCH-MISUSE-2")
def test_arrays_shared_by_other_means_are_refused_as_arguments_and_so_are_their_addresses(
    monkeypatch,
):
    mine = array_of_its_own()
    by_hand = ContinuousTensor.make(mine.ctypes.data, mine.shape, DataType.INT32)

    def orch_fn(orch, *_):
        for way in (
            lambda: orch.submit_sub(handle, make_args((mine, T.INOUT))),
            lambda: orch.submit_sub(handle, make_args((by_hand, T.INPUT))),
            lambda: orch.submit_sub_group(handle, [make_args((by_hand, T.INPUT))]),
            lambda: orch.submit_sub_many(handle, [by_hand], [T.INPUT], count=1),
        ):
            with pytest.raises(ValueError, match=r"other means.*'spawn'.*pass Worker\.share"):
                way()
        orch.submit_sub(handle)

    def change():
        mine[0] = 1

    with spawning() as w:
        out = w.share(np.zeros(1, np.int32))
        handle = w.register(lambda: out.__iadd__(1))
        w.run(orch_fn)
        w.record(orch_fn).run()
        assert out[0] == 2
        with pytest.raises(Exception, match="an array that the callable refers to"):
            w.register(change)
        assert mine[0] == 0
    with Worker(3, num_sub_workers=1) as w:
        make_args((mine, T.INOUT))  # a forked worker would see it
        monkeypatch.setattr(processes, "why_not_fork", lambda: "a reason")
        with pytest.raises(RuntimeError, match=r"a reason.*accepted before the start.*'fork'"):
            w.start()


@pytest.mark.spec("WM-START-2")
def test_chips_are_forked_whatever_threads_there_are(monkeypatch):
    monkeypatch.setattr(processes, "why_not_fork", lambda: "a reason")
    x = array_of_its_own().view(np.float32)
    x[:] = 4
    with Worker(3, device_ids=[0]) as w:
        chip = w.register(ChipCallable.from_kernel(add_core()))
        args = make_args((x, T.INPUT), (x, T.INPUT), (x, T.INOUT))
        w.run(lambda orch, *_: orch.submit_next_level(chip, args))
        assert not is_fresh(w)
    assert (x == 8).all()


@pytest.mark.spec("WM-START-1")
@pytest.mark.slow("four fresh interpreters start one after the other")
def test_an_interpreter_with_something_at_an_address_gives_way_to_another(monkeypatch, tmp_path):
    """Three of them map something there: the first two, which are all for one start, and another."""
    assert fresh_interpreter.ATTEMPTS == 8
    monkeypatch.setattr(fresh_interpreter, "ATTEMPTS", 2)
    left = tmp_path / "left"
    left.write_text("3")
    with spawning() as w:
        address = w._session.engine.heap.ctypes.data + (1 << 20)
        squat = (
            f"import ctypes, pathlib; p = pathlib.Path({str(left)!r}); n = int(p.read_text()); "
            f"p.write_text(str(n - 1)); n > 0 and ctypes.CDLL(None).mmap(ctypes.c_void_p({address}), "
            "ctypes.c_size_t(4096), 0, 0x100022, -1, ctypes.c_long(0)); "
        )
        monkeypatch.setattr(fresh_interpreter, "_PROGRAM", squat + fresh_interpreter._PROGRAM)
        before, out = psutil.Process().children(), w.share(np.zeros(1, np.int32))
        handle = w.register(lambda: out.__iadd__(1))
        with pytest.raises(
            WorkerStartError, match=r"2 fresh interpreters had.*start_method='fork'"
        ):
            w.start()
        assert psutil.Process().children() == before
        run_sub(w, handle)
        assert out[0] == 1
        assert left.read_text() == "-1", "the fourth one found nothing there"


@pytest.mark.spec("WM-START-1")
def test_failures_deaths_and_later_registrations_are_those_of_forked_workers():
    with spawning(num_sub_workers=2) as w:
        out = w.share(np.zeros(2, np.int64))
        w.start()
        works = w.register(lambda: out.__iadd__(1))
        fails = w.register(lambda: 1 // 0)
        dies = w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
        run_sub(w, works)
        with pytest.raises(TaskError, match="ZeroDivisionError"):
            run_sub(w, fails)
        before, server = set(w.worker_pids()), server_of(w)
        with pytest.raises(WorkerLostError, match="killed by SIGKILL"):
            run_sub(w, dies)
        run_sub(w, works)
        assert (len(before & set(w.worker_pids())), server_of(w)) == (1, server)
        assert server.num_threads() == 1
        w.unregister(fails)
        server.kill()
        wait_until(lambda: w._session.manager.lost)
        run_sub(w, works)
        assert is_fresh(w)
        assert server_of(w) != server
        assert out.tolist() == [3, 3]
