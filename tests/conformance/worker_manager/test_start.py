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

from simpler_ref import TaskError, Worker, WorkerLostError, WorkerStartError, leaf
from simpler_ref.task_interface import ContinuousTensor, DataType
from simpler_ref.task_interface import TensorArgType as T
from simpler_ref.workers import fresh_interpreter
from simpler_ref.workers import start_method as start_methods
from tests.spec_rules import ROOT
from tests.support import DEADLINE_S, make_args, wait_until


@pytest.fixture(scope="module")
def spawned():
    """Give a started Worker whose workers a fresh interpreter has made."""
    with Worker(3, num_sub_workers=2, start_method="spawn") as w:
        w.start()
        yield w


def run(w, handle, *args):
    w.run(lambda orch, *_: orch.submit_sub(handle, *args))


def server_of(w):
    return psutil.Process(w.worker_pids()[0]).parent()


def is_fresh(w):
    return "simpler_ref.workers.fresh_interpreter" in " ".join(server_of(w).cmdline())


# ---------------------------------------------------------------- what they have, and what not
@pytest.mark.spec("WM-START-1")
def test_a_fresh_interpreter_has_the_memory_the_flags_and_the_paths_and_nothing_else(monkeypatch):
    monkeypatch.setattr(os, "only_here", 1, raising=False)
    monkeypatch.setenv("ONLY_NOW", "told")
    monkeypatch.setattr(sys, "path", [*sys.path, "/a/path/of/the/test"])
    with Worker(3, num_sub_workers=1, start_method="spawn") as w, Worker(3) as other:
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


def shared_spans(pid):
    """Return start → (offset, device, inode) of the shared mappings of a process."""
    with open(f"/proc/{pid}/maps") as lines:
        rows = [line.split(maxsplit=5) for line in lines]
    return {int(r[0].split("-")[0], 16): tuple(r[2:5]) for r in rows if r[1] == "rw-s"}


PROGRAM = """
    import json, threading
    from simpler_ref import TaskArgs, TensorArgType as T, Worker
    import numpy as np

    def add(args):
        args.tensor(0).numpy()[:] += bonus

    bonus, done = 3, threading.Event()
    threading.Thread(target=done.wait).start()
    with Worker(3, num_sub_workers=1, start_method="spawn") as w:
        x, handle = w.share(np.zeros(2, np.int32)), w.register(add)

        def orch_fn(orch, *_):
            args = TaskArgs()
            args.add_tensor(x, T.INOUT)
            orch.submit_sub(handle, args)

        w.run(orch_fn)
        print(json.dumps(x.tolist()))
    done.set()
"""


@pytest.mark.spec("WM-START-1")
@pytest.mark.parametrize("how", ["stdin", "file"])
def test_spawn_works_wherever_the_program_comes_from_and_beside_its_threads(how, tmp_path):
    program, path = textwrap.dedent(PROGRAM), tmp_path / "program.py"
    path.write_text(program)  # its functions are those of __main__, and it has no guard
    options = "-" if how == "stdin" else str(path)
    assert said_by([options], program if how == "stdin" else None) == ("[3, 3]\n", "")


def said_by(options, words=None, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        input=words,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.spec("WM-START-1")
def test_a_start_method_must_be_one(monkeypatch):
    with pytest.raises(ValueError, match="start_method='thread': it is 'fork', 'spawn' or None"):
        Worker(3, start_method="thread")
    with pytest.raises(ValueError, match="child_mode='thread' makes none"):
        Worker(3, start_method="spawn", child_mode="thread")
    monkeypatch.setattr(fresh_interpreter, "get_executable", lambda: None)
    with (
        Worker(3, num_sub_workers=1, start_method="spawn") as w,
        pytest.raises(WorkerStartError, match=r"multiprocessing\.set_executable"),
    ):
        w.start()


@pytest.mark.spec("WM-START-1")
def test_a_forked_worker_inherits_the_process(monkeypatch):
    monkeypatch.setattr(os, "only_here", 1, raising=False)
    with Worker(3, num_sub_workers=1, start_method="fork") as w:
        found = w.share(np.zeros(1, np.int64))
        run(w, w.register(lambda: found.__setitem__(0, os.only_here)))
        assert found[0] == 1


# ---------------------------------------------------------------- the choice
OPENMP = """
    import ctypes, glob, importlib.util, logging, os, psutil
    from pathlib import Path
    import numpy as np
    from simpler_ref import Worker
    from simpler_ref.system import thread_pools

    logging.basicConfig(format="%(message)s")
    site = Path(importlib.util.find_spec("sklearn").origin).parents[1]
    (path,) = glob.glob(str(site / "scikit_learn.libs" / "libgomp*"))

    def compute():
        library = ctypes.CDLL(path)
        free = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        library.GOMP_parallel(free, None, 2, 0)  # two threads free nothing

    def fresh(w):
        server = psutil.Process(w.worker_pids()[0]).parent()
        return server.cmdline() != psutil.Process().cmdline()

    def run(**more):
        with Worker(3, num_sub_workers=2, **more) as w:
            handle = w.register(compute if not more else abs_of_nothing)
            w.run(lambda orch, *_: [orch.submit_sub(handle) for _ in range(4)])
            print(fresh(w))

    def abs_of_nothing():
        pass
"""


@pytest.mark.spec("WM-START-2")
def test_after_openmp_has_computed_spawn_is_chosen_and_its_tasks_do_not_hang():
    program = OPENMP + "\n    compute()\n    run()\n    run()\n    run(start_method='fork')\n"
    out, err = said_by(["-c", textwrap.dedent(program)])
    assert out.split() == ["True", "True", "False"]
    assert len(err.splitlines()) == 1
    assert err.startswith("libgomp is in use: ")
    assert "start_method='spawn'" in err


@pytest.mark.spec("WM-START-2")
def test_openblas_does_not_need_spawn_nor_does_an_openmp_that_is_only_loaded():
    program = """
    a = np.ones((400, 400))
    a @ a
    assert thread_pools._threads_of_libraries()  # OpenBLAS has threads
    ctypes.CDLL(path)
    print(thread_pools.why_not_fork())
    run()
    a @ a
    print(thread_pools.why_not_fork())
    run(start_method="fork")  # a fork ends the threads of OpenBLAS
    compute()
    print(thread_pools.why_not_fork() is None)
    if os.fork() == 0:  # which has none of these threads
        print(thread_pools.why_not_fork(), flush=True)
        os._exit(0)
    os.wait()
    """
    out, err = said_by(["-c", textwrap.dedent(OPENMP + program)], OPENBLAS_NUM_THREADS="2")
    assert (out.split(), err) == (["None", "False", "None", "False", "False", "None"], "")


# ---------------------------------------------------------------- what travels
@pytest.mark.spec("WM-START-3")
def test_compiled_leaves_bound_methods_and_strided_arrays_travel(spawned):
    class Adder:
        by = 4

        def add(self, args):
            args.tensor(0).numpy()[:] += self.by

    @leaf
    def double(x):
        for i in range(x.size):
            x[i] *= 2

    with Worker(3, num_sub_workers=1, start_method="spawn") as w:
        every = w.share(np.arange(6, dtype=np.int32))[::2]
        handles = [w.register(Adder().add), w.register(double)]
        handles.append(w.register(lambda: every.__imul__(-1)))
        x = w.share(np.ones(3, np.int32))

        def orch_fn(orch, *_):
            for handle in handles[:2]:
                orch.submit_sub(handle, make_args((x, T.INOUT)))
            orch.submit_sub(handles[2])

        w.run(orch_fn)
        assert x.tolist() == [10, 10, 10]
        assert every.tolist() == [0, -2, -4]


@pytest.mark.spec("WM-START-3")
def test_a_tree_of_workers_travels_with_its_callables_and_chips():
    from simpler_ref.native_chip import ChipCallable
    from tests.chip_kernels import add_core

    child = Worker(3, num_sub_workers=1, device_ids=[0])
    tree = Worker(4, num_sub_workers=1, start_method="spawn")
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
        w.run(lambda orch, *_: orch.submit_next_level(handle, make_args()))
        assert is_fresh(w)
        assert out.tolist() == [7, 7, 7]
        assert y.tolist() == [8, 8, 8]


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

    with Worker(3, num_sub_workers=1, start_method="spawn") as w:
        with pytest.raises(TypeError, match=r"needs_a_lock cannot.*lock.*start_method='fork'"):
            w.register(needs_a_lock)
        assert not w._registry._installed
    monkeypatch.setattr(start_methods, "why_not_fork", lambda: "a reason")
    monkeypatch.setattr(start_methods, "_told", True)
    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(needs_a_lock)
        with pytest.raises(TypeError, match=r"needs_a_lock cannot.*start_method='fork'"):
            w.start()
        w.unregister(handle)
    w = Worker(3, start_method="spawn")
    w.add_sub(Locked())
    with w, pytest.raises(TypeError, match=r"sub_worker Locked cannot.*lock.*start_method='fork'"):
        w.start()
    child = Worker(3, num_sub_workers=1)
    child.register(needs_a_lock)
    w = Worker(4, start_method="spawn")
    w.add_worker(child)
    with w, pytest.raises(TypeError, match=r"level 3 child Worker cannot.*needs_a_lock"):
        w.start()


# ---------------------------------------------------------------- arrays
@pytest.mark.spec("WM-START-4")
def test_arrays_shared_by_other_means_are_refused_as_arguments(spawned, monkeypatch):
    mine = np.frombuffer(mmap.mmap(-1, 4096), np.int32)
    out = spawned.share(np.zeros(1, np.int32))
    handle = spawned.register(lambda: out.__iadd__(1))

    def orch_fn(orch, *_):
        with pytest.raises(ValueError, match=r"other means.*'spawn'.*pass Worker\.share"):
            orch.submit_sub(handle, make_args((mine, T.INOUT)))
        orch.submit_sub(handle)

    spawned.run(orch_fn)
    assert out[0] == 1
    with Worker(3, num_sub_workers=1) as w:
        make_args((mine, T.INOUT))  # a forked worker would see it
        monkeypatch.setattr(start_methods, "why_not_fork", lambda: "a reason")
        with pytest.raises(RuntimeError, match=r"a reason.*accepted before the start.*'fork'"):
            w.start()


@pytest.mark.spec("WM-START-4")
def test_a_callable_that_refers_to_such_an_array_is_refused_not_run(spawned):
    mine = np.frombuffer(mmap.mmap(-1, 4096), np.int32)

    def change():
        mine[0] = 1

    with pytest.raises(Exception, match="an array that the callable refers to"):
        spawned.register(change)
    with Worker(3, num_sub_workers=1, start_method="spawn") as w:
        w.register(change)
        with pytest.raises(WorkerStartError, match="an array that the callable refers to"):
            w.start()
    assert mine[0] == 0


# ---------------------------------------------------------------- addresses
@pytest.fixture
def squatter(monkeypatch, tmp_path):
    """Have so many fresh interpreters map something of their own at an address."""
    left = tmp_path / "left"

    def squat(address, times):
        left.write_text(str(times))
        first = (
            f"import ctypes, pathlib; p = pathlib.Path({str(left)!r}); n = int(p.read_text()); "
            f"p.write_text(str(n - 1)); n > 0 and ctypes.CDLL(None).mmap(ctypes.c_void_p({address}), "
            "ctypes.c_size_t(4096), 0, 0x100022, -1, ctypes.c_long(0)); "
        )
        monkeypatch.setattr(fresh_interpreter, "_PROGRAM", first + fresh_interpreter._PROGRAM)
        return left

    return squat


@pytest.mark.spec("WM-START-5")
def test_an_interpreter_with_something_at_an_address_gives_way_to_another(squatter):
    with Worker(3, num_sub_workers=1, start_method="spawn") as w:
        left = squatter(w._session.engine.heap.ctypes.data + (1 << 20), 1)
        out = w.share(np.zeros(1, np.int32))
        run(w, w.register(lambda: out.__iadd__(1)))
        assert out[0] == 1
        assert left.read_text() == "-1"  # the second one found nothing there


@pytest.mark.spec("WM-START-5")
def test_after_so_many_interpreters_the_start_fails(squatter, monkeypatch):
    assert fresh_interpreter.ATTEMPTS == 8
    monkeypatch.setattr(fresh_interpreter, "ATTEMPTS", 2)
    with Worker(3, num_sub_workers=1, start_method="spawn") as w:
        before = psutil.Process().children()
        left = squatter(w._session.engine.heap.ctypes.data, 9)
        with pytest.raises(
            WorkerStartError, match=r"2 fresh interpreters had.*start_method='fork'"
        ):
            w.start()
        assert left.read_text() == "7"
        assert psutil.Process().children() == before


# ---------------------------------------------------------------- all the rest is as ever
@pytest.mark.spec("WM-START-6")
def test_failures_deaths_and_later_registrations_are_those_of_forked_workers():
    with Worker(3, num_sub_workers=2, start_method="spawn") as w:
        out = w.share(np.zeros(2, np.int64))
        w.start()
        works = w.register(lambda: out.__iadd__(1))
        fails = w.register(lambda: 1 // 0)
        dies = w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
        run(w, works)
        with pytest.raises(TaskError, match="ZeroDivisionError"):
            run(w, fails)
        before, server = set(w.worker_pids()), server_of(w)
        with pytest.raises(WorkerLostError, match="killed by SIGKILL"):
            run(w, dies)
        run(w, works)
        assert len(before & set(w.worker_pids())) == 1
        assert server_of(w) == server
        assert server.num_threads() == 1
        w.unregister(fails)
        server.kill()
        wait_until(lambda: w._session.manager.lost)
        run(w, works)
        assert is_fresh(w)
        assert server_of(w) != server
        assert out.tolist() == [3, 3]


@pytest.mark.spec("WM-START-6")
@pytest.mark.parametrize("when", ["starting", "started"])
def test_nobody_outlives_the_users_process(when):
    program = """
        import os, sys, threading
        from simpler_ref import Worker
        import simpler_ref.workers.fresh_interpreter as f
        if sys.argv[1] == "starting":
            f._PROGRAM = "print(1, flush=True); " + f._PROGRAM
        with Worker(3, num_sub_workers=2, start_method="spawn") as w:
            w.start()
            print(1, flush=True)
            threading.Event().wait()
    """
    options = ["-c", textwrap.dedent(program), when]
    with subprocess.Popen([sys.executable, *options], cwd=ROOT, stdout=subprocess.PIPE) as user:
        assert user.stdout.readline() == b"1\n"
        below = psutil.Process(user.pid).children(recursive=True)
        assert below
        user.kill()
        psutil.wait_procs(below, DEADLINE_S)
        assert not [process for process in below if process.is_running()]


@pytest.mark.spec("WM-START-6")
def test_ctrl_c_ends_the_wait_for_a_fresh_interpreter(monkeypatch):
    monkeypatch.setattr(fresh_interpreter, "_PROGRAM", "import time; time.sleep(1000)  # {fd}")
    with Worker(3, num_sub_workers=1, start_method="spawn") as w:
        before = psutil.Process().children()
        timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            w.start()
        timer.join()
        assert psutil.Process().children() == before
