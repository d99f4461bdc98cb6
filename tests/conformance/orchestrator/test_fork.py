"""ORCH-FORK: fork hygiene."""

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory

import numba
import numpy as np
import psutil
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from simpler_ref import Worker, WorkerLostError
from simpler_ref.system import forks, regions
from simpler_ref.task_interface import TensorArgType as T
from simpler_ref.workers import processes
from tests.support import make_args, shared_spans
from tests.system.programs import Concurrently, Fork

VARIABLES = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"
TOLERANCE = "KMP_DUPLICATE_LIB_OK"


def as_a_new_program(body, **variables):
    """Run a function in a fork that has not made a Worker yet and has these variables alone."""

    def program():
        for name in (*VARIABLES, TOLERANCE):
            os.environ.pop(name, None)
        os.environ.update(variables)
        processes.fork_hygiene_once.cache_clear()
        forks.users_variables.clear()
        body()

    with Fork(program) as fork:
        assert fork.wait() == 0, "see stderr"
        assert fork.everybody_ends()


def run_task(w, function):
    handle = w.register(function)
    w.run(lambda orch, *_: orch.submit_sub(handle))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.spec("ORCH-FORK-1")
@pytest.mark.parametrize(
    "given", [{}, {"OMP_NUM_THREADS": "3", "BLIS_NUM_THREADS": "", TOLERANCE: "no"}], ids=str
)
def test_constructing_a_worker_sets_the_thread_pool_variables_that_are_not_set(given):
    """On macOS, and only there, a second OpenMP is tolerated."""

    def check(wanted):
        assert {name: os.environ.get(name) for name in (*VARIABLES, TOLERANCE)} == wanted

    def body():
        check(dict.fromkeys([*VARIABLES, TOLERANCE]) | given)
        with Worker(3, num_sub_workers=1) as w:
            wanted = dict.fromkeys(VARIABLES, "1") | {TOLERANCE: None} | given
            check(wanted)
            run_task(w, lambda: check(wanted))
        os.uname = lambda: types.SimpleNamespace(sysname="Darwin")
        processes.fork_hygiene_once.cache_clear()
        Worker(3)
        check({TOLERANCE: "TRUE"} | {name: wanted[name] for name in VARIABLES} | given)

    as_a_new_program(body, **given)


@pytest.mark.spec("ORCH-FORK-2", "ORCH-FORK-3")
def test_the_at_fork_hook_is_installed_once_and_declares_the_order_of_locks():
    def body():
        installed, register = [], os.register_at_fork
        os.register_at_fork = lambda **hooks: (installed.append(sorted(hooks)), register(**hooks))
        for w in [Worker(3) for _ in range(3)]:
            w.init()
            w.start()
            w.close()
        Worker(4).close()
        assert len(installed) == 1

    as_a_new_program(body)
    words = " ".join(processes.fork_hygiene_once.__doc__.split())
    order = ("callables", "manager", "a worker", "scheduler", "allocator", "tensor map")
    places = [words.find(name) for name in order]
    assert -1 not in places and places == sorted(places)


def locks_of(owner):
    """Return every lock of the package: those its modules have, and all that a Worker leads to."""
    modules = [vars(module) for name, module in sys.modules.items() if "simpler_ref" in name]
    found, seen, rest = {}, set(), [owner, *modules]
    while rest:
        one = rest.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "acquire") and hasattr(one, "release"):
            found[id(one)] = one
        elif isinstance(one, list | tuple | set):
            rest += one
        elif isinstance(one, dict):
            rest += one.values()
        elif type(one).__module__.startswith("simpler_ref"):
            rest += getattr(one, "__dict__", {}).values()
    return list(found.values())


def taken_by_others(locks):
    """Return how many locks another thread of this process would wait for."""

    def is_free(lock):
        if free := lock.acquire(blocking=False):
            lock.release()
        return free

    with ThreadPoolExecutor(1) as thread:
        return list(thread.map(is_free, locks)).count(False)


@pytest.mark.spec("ORCH-FORK-3")
@pytest.mark.parametrize("how", ["start", "run", "replace"])
def test_a_worker_finds_no_lock_of_the_engine_held(how):
    """It is forked while its maker holds some: a thread that it makes can take each of them."""
    with Worker(3, num_sub_workers=1) as w:
        held = w.share(np.full(2, -1))

        def look():
            locks = locks_of(w)
            assert any(lock is w._life.registry.lock for lock in locks)
            held[:] = len(locks), taken_by_others(locks)

        handle = w.register(look)
        if how == "replace":  # the next run makes a new one, beside the threads of the first
            with pytest.raises(WorkerLostError):
                run_task(w, die)
        if how == "start":
            w.start()
        w.run(lambda orch, *_: orch.submit_sub(handle))
        count, taken = held.tolist()
        assert count >= 5
        assert taken == 0


@pytest.mark.spec("ORCH-FORK-4")
def test_all_shared_memory_is_mapped_before_the_first_fork_at_one_address():
    small = {"heap_ring_size": 1 << 16, "arena_size": 1 << 16, "task_window": 64, "values_size": 1}
    with Worker(3, num_sub_workers=2, **small) as w:  # the callable has all of it as arrays
        engine, arena = w._session.engine, w._session.arena
        out = w.share(np.zeros((2, 4), np.int64))

        def addresses():
            return [one.ctypes.data for one in (engine.mem, engine.heap, arena.memory)]

        @w.register
        def look(args):
            out[args.scalar(0)] = [*addresses(), args.tensor(0).data]
            args.tensor(0).numpy()[:] = 5  # the parent sees it, at the address it knows

        late = w.share(np.zeros(3, np.int64))  # after the registration
        w.start()
        later = w.share(np.zeros(3, np.int64))  # after the fork

        def orch_fn(orch, args, config):
            for i, tensor in enumerate((late, later)):
                orch.submit_sub(look, make_args((tensor, T.INOUT), scalars=[i]))

        w.run(orch_fn)
        assert out.tolist() == [[*addresses(), one.ctypes.data] for one in (late, later)]
        assert late.tolist() == later.tolist() == [5, 5, 5]
        here = shared_spans(os.getpid())
        for theirs in map(shared_spans, w.worker_pids()):
            for address in addresses():
                assert theirs[address] == here[address]


@pytest.mark.spec("ORCH-FORK-6")
def test_regions_are_shared_memory_objects_without_a_name_that_may_be_larger_than_dev_shm():
    space = os.statvfs("/dev/shm")
    large = (space.f_blocks + 1) * space.f_frsize
    for nbytes in (large, 5000):
        array = regions.create(nbytes)
        *_, path = shared_spans(os.getpid())[array.ctypes.data]
        assert path == "/memfd:simpler-region (deleted)"
    region = regions.region_of(array)
    assert isinstance(region, SharedMemory)
    assert (region.size, len(region.buf), region.name) == (array.nbytes, array.nbytes, "")
    region.unlink()
    region.buf[:3] = b"abc"
    region.close()
    region.close()
    assert array[:4].tobytes() == b"abc\0"
    with pytest.raises(KeyError):
        regions.region_of(array)


@pytest.mark.spec("ORCH-FORK-6")
@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_both_kinds_of_workers_have_the_memory_and_no_other_keeps_it(how):
    def held(pid):
        listing = subprocess.run(["ls", "-l", f"/proc/{pid}/fd"], capture_output=True, text=True)
        links = listing.stdout.splitlines()
        return [link for link in links if "simpler-region" in link]

    before = len(held(os.getpid()))
    with Worker(3, num_sub_workers=1, start_method=how) as w:
        x = w.share(np.arange(5, dtype=np.int32))
        handle = w.register(lambda args: args.tensor(0).numpy().__imul__(2))
        w.run(lambda orch, *_: orch.submit_sub(handle, make_args((x, T.INOUT))))
        assert x.tolist() == [0, 2, 4, 6, 8]
        (worker,) = w.worker_pids()
        assert held(worker) == held(psutil.Process(worker).ppid()) == []
        listing = ["ls", "-l", "/proc/self/fd"]
        program = subprocess.run(listing, close_fds=False, capture_output=True, text=True)
        assert "simpler-region" not in program.stdout
        assert len(held(os.getpid())) == before + 3
    assert (len(held(os.getpid())), x.tolist()) == (before, [0, 2, 4, 6, 8])


@pytest.mark.spec("ORCH-FORK-7")
@pytest.mark.parametrize(
    ("given", "late", "threads"),
    [
        ({}, {}, 1),
        ({"OMP_NUM_THREADS": "3,1"}, {}, 3),
        ({"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "3"}, {}, 3),
        ({"OPENBLAS_NUM_THREADS": "many"}, {}, 2),
        ({}, {"OPENBLAS_NUM_THREADS": "1"}, 1),
    ],
    ids=str,
)
def test_libraries_have_one_thread_in_workers_or_what_their_variable_says(given, late, threads):
    """Outside they have as many as before; a successor is as its predecessor was.

    A variable that is set when its library is there already counts as well: with two threads on one
    core, of which each waits for the other, a small product takes forever.
    """

    def pool_sizes():
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    def body():
        threadpool_limits(2)  # as on a machine of two cores, should this one have fewer
        os.environ.update(late)
        with Worker(3, num_sub_workers=1) as w:
            found = w.share(np.zeros(len(pool_sizes()), np.int64))
            for _ in range(2):
                found[:] = 0
                run_task(w, lambda: found.__setitem__(slice(None), pool_sizes()))
                assert set(found.tolist()) == {threads}
                with suppress(WorkerLostError):
                    run_task(w, die)
            assert set(pool_sizes()) == {2}

    as_a_new_program(body, **given)


def log(go_on):
    """Write more than a pipe holds to a log, which is read once the thread may go on."""
    reads, writes = os.pipe()
    size = 1 << 17
    with open(reads) as out, open(writes, "w") as file:
        logger, handler = logging.Logger("a"), logging.StreamHandler(file)
        logger.addHandler(handler)
        with Concurrently(lambda: go_on.wait() and out.read(size)):
            yield lambda: logger.info("by a task")
            logger.info("x" * size)


def import_slowly(go_on):
    sys.modules["go_on"] = go_on
    yield lambda: importlib.import_module("slow_module")
    importlib.import_module("slow_module")


def draw(go_on):
    yield lambda: np.random.uniform()
    while not go_on.is_set():  # now and then it is free
        with np.random.mtrand._rand._bit_generator.lock:
            time.sleep(0.02)


def compile_something(go_on):
    yield lambda: numba.njit(lambda x: x + 1)(1)
    with numba.core.compiler_lock.global_compiler_lock:
        go_on.wait()


@pytest.mark.spec("ORCH-FORK-8")
@pytest.mark.parametrize("way", [log, import_slowly, draw, compile_something])
def test_workers_are_forked_when_no_other_thread_has_a_lock_of_these(way, tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import go_on; go_on.wait()")
    monkeypatch.syspath_prepend(tmp_path)
    go_on = threading.Event()
    busy = way(go_on)
    task = next(busy)
    with Worker(3, num_sub_workers=1) as w, Concurrently(lambda: next(busy, None)):
        time.sleep(0.05)  # it has the lock
        threading.Timer(0.1, go_on.set).start()
        run_task(w, task)
    sys.modules.pop("slow_module", None)
    sys.modules.pop("go_on", None)
