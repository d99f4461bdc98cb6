"""ORCH-FORK: fork hygiene."""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import types

import numpy as np
import psutil
import pytest

from simpler_ref import TaskError, Worker, WorkerLostError
from simpler_ref.engine.shared_arrays import create_region
from simpler_ref.system import regions
from simpler_ref.task_interface import TensorArgType as T
from tests.spec_rules import ROOT
from tests.support import DEADLINE_S, make_args

VARIABLES = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"


def run_program(program, **environment):
    """Run a program in a fresh interpreter whose thread-pool variables are as given; return its JSON."""
    inherited = {
        k: v for k, v in os.environ.items() if k not in (*VARIABLES, "KMP_DUPLICATE_LIB_OK")
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ENVIRONMENTS = """
    import json, os
    from simpler_ref import Worker
    names = {names!r}
    look = lambda: {{name: os.environ.get(name) for name in names}}
    before = look()
    w = Worker(3, num_sub_workers=1)
    constructed = look()
    with w:
        out = w.empty((1000,), "uint8")
        def report():
            text = json.dumps(look()).encode()
            out[: len(text)] = list(text)
            out[len(text)] = 0
        handle = w.register(report)
        w.run(lambda orch, *_: orch.submit_sub(handle))
        child = json.loads(bytes(out).split(b"\\0")[0])
    print(json.dumps([before, constructed, child]))
"""


@pytest.mark.spec("ORCH-FORK-1")
def test_constructing_a_worker_sets_the_thread_pool_variables_that_are_not_set():
    names = (*VARIABLES, "KMP_DUPLICATE_LIB_OK")
    program = ENVIRONMENTS.format(names=names)
    before, constructed, child = run_program(program)
    assert before == dict.fromkeys(names)
    assert constructed == child == dict.fromkeys(VARIABLES, "1") | {"KMP_DUPLICATE_LIB_OK": None}


@pytest.mark.spec("ORCH-FORK-1")
def test_a_variable_that_is_set_stays_and_is_what_the_workers_see():
    program = ENVIRONMENTS.format(names=VARIABLES)
    _, constructed, child = run_program(program, OMP_NUM_THREADS="3", BLIS_NUM_THREADS="")
    wanted = dict.fromkeys(VARIABLES, "1") | {"OMP_NUM_THREADS": "3", "BLIS_NUM_THREADS": ""}
    assert constructed == child == wanted


@pytest.mark.spec("ORCH-FORK-1")
def test_on_macos_and_only_there_a_second_openmp_is_tolerated():
    program = """
        import json, os, types
        from simpler_ref import Worker
        os.uname = lambda: types.SimpleNamespace(sysname="Darwin")
        Worker(3)
        print(json.dumps(os.environ.get("KMP_DUPLICATE_LIB_OK")))
    """
    assert run_program(program) == "TRUE"
    assert run_program(program, KMP_DUPLICATE_LIB_OK="no") == "no"


@pytest.mark.spec("ORCH-FORK-2")
def test_the_at_fork_hook_is_installed_once_however_many_workers_there_are():
    program = """
        import json, os
        import simpler_ref
        installed = []
        register = os.register_at_fork
        os.register_at_fork = lambda **hooks: (installed.append(sorted(hooks)), register(**hooks))
        workers = [simpler_ref.Worker(3) for _ in range(3)]
        for w in workers:
            w.init()
            w.start()
            w.close()
        simpler_ref.Worker(4).close()
        print(json.dumps(installed))
    """
    assert len(run_program(program)) == 1


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
    taken = []

    def look():
        for lock in locks:
            if lock.acquire(blocking=False):
                lock.release()
            else:
                taken.append(lock)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return len(taken)


@pytest.mark.spec("ORCH-FORK-3")
@pytest.mark.parametrize("how", ["start", "run", "replace"])
def test_a_worker_finds_no_lock_of_the_engine_held(how):
    """It is forked while its maker holds some: a thread that it makes can take each of them."""
    with Worker(3, num_sub_workers=1) as w:
        held = w.share(np.full(2, -1))

        def look():
            locks = locks_of(w)
            assert any(lock is w._registry.lock for lock in locks)
            held[:] = len(locks), taken_by_others(locks)

        handle = w.register(look)
        if how == "replace":  # the next run makes a new one, beside the threads of the first
            suicide = w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
            with pytest.raises(WorkerLostError):
                w.run(lambda orch, *_: orch.submit_sub(suicide))
        if how == "start":
            w.start()
        w.run(lambda orch, *_: orch.submit_sub(handle))
        count, taken = held.tolist()
        assert count >= 5
        assert taken == 0


@pytest.mark.spec("ORCH-FORK-3")
def test_the_hook_declares_the_order_of_locks():
    from simpler_ref.workers.hygiene import fork_hygiene_once

    words = " ".join(fork_hygiene_once.__doc__.split())
    order = ("callables", "manager", "a worker", "scheduler", "allocator", "tensor map")
    places = [words.find(name) for name in order]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.spec("ORCH-FORK-4")
def test_all_shared_memory_is_mapped_before_the_first_fork_at_one_address():
    with Worker(3, num_sub_workers=2, heap_ring_size=1 << 16) as w:
        engine, arena = w._session.engine, w._session.arena
        regions = [r.ctypes.data for r in (engine.mem, engine.heap, arena.memory)]
        out = w.share(np.zeros((2, 4), np.int64))

        def look(args):
            row = out[args.scalar(0)]
            row[:3] = [r.ctypes.data for r in (engine.mem, engine.heap, arena.memory)]
            row[3] = args.tensor(0).data
            args.tensor(0).numpy()[:] = 5  # the parent sees it, at the address it knows

        handle = w.register(look)
        late = w.empty((3,), np.int64)  # after the registration
        w.start()
        later = w.empty((3,), np.int64)  # after the fork
        late[:] = later[:] = 0

        def orch_fn(orch, args, config):
            for i, tensor in enumerate((late, later)):
                orch.submit_sub(handle, make_args((tensor, T.INOUT), scalars=[i]))

        w.run(orch_fn)
        addresses = [a.ctypes.data for a in (late, later)]
        assert out.tolist() == [[*regions, address] for address in addresses]
        assert late.tolist() == later.tolist() == [5, 5, 5]
        inherited = maps_of(os.getpid())
        for pid in w.worker_pids():
            theirs = maps_of(pid)
            for region in regions:
                assert mapping_at(theirs, region) == mapping_at(inherited, region)


def maps_of(pid):
    with open(f"/proc/{pid}/maps") as lines:
        return [line.split(maxsplit=5) for line in lines]


def mapping_at(maps, address):
    """Return (start, offset, device, inode) of the mapping that holds an address, and if it is shared."""
    for span, mode, offset, device, inode, *_ in maps:
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            assert mode == "rw-s", mode
            return start, offset, device, inode
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.spec("ORCH-FORK-5")
def test_workers_and_their_replacements_are_forked_by_a_process_with_one_thread():
    idle = threading.Event()
    ours = threading.Thread(target=idle.wait)  # the user's process has threads of its own
    ours.start()
    try:
        with Worker(3, num_sub_workers=2) as w:
            parent = w.share(np.zeros(1, np.int64))

            def look():
                parent[0] = os.getppid()

            def die():
                os.kill(os.getpid(), signal.SIGKILL)

            look_handle, dying = w.register(look), w.register(die)
            w.run(lambda orch, *_: orch.submit_sub(look_handle))
            server = psutil.Process(int(parent[0]))
            assert server.pid != os.getpid()
            assert server.num_threads() == 1
            assert {psutil.Process(pid).ppid() for pid in w.worker_pids()} == {server.pid}
            before = w.worker_pids()
            with pytest.raises(TaskError):
                w.run(lambda orch, *_: orch.submit_sub(dying))
            w.run(lambda orch, *_: orch.submit_sub(look_handle))
            assert len(set(w.worker_pids()) - set(before)) == 1
            assert {psutil.Process(pid).ppid() for pid in w.worker_pids()} == {server.pid}
            assert server.num_threads() == 1
            assert parent[0] == server.pid
    finally:
        idle.set()
        ours.join()


# ---------------------------------------------------------------- shared regions
@pytest.fixture
def room(monkeypatch):
    """Have /dev/shm say that so many bytes are free."""

    def have(free):
        space = os.statvfs("/dev/shm")
        values = {name: getattr(space, name) for name in dir(space) if name.startswith("f_")}
        told = types.SimpleNamespace(**values | {"f_bavail": free // 4096, "f_frsize": 4096})
        monkeypatch.setattr(regions.os, "statvfs", lambda _: told)
        monkeypatch.setattr(regions, "_told", False)

    return have


def path_of(array):
    with open("/proc/self/maps") as lines:
        rows = [line.split(maxsplit=5) for line in lines]
    start = f"{array.ctypes.data:x}-"
    (path,) = [row[5].strip() for row in rows if row[0].startswith(start)]
    return path


@pytest.mark.spec("ORCH-FORK-6")
def test_a_region_is_in_dev_shm_as_long_as_all_that_was_asked_for_fits_there(room, caplog):
    caplog.set_level(logging.INFO, "simpler_ref")
    promised = sum(one.shared for one in regions._regions.values() if one.in_shm)
    room(promised + (5 << 20))
    names = set(os.listdir("/dev/shm"))
    made = [create_region(2 << 20) for _ in range(4)]
    assert [path_of(one).split("#")[0] for one in made] == [
        "/dev/shm/",
        "/dev/shm/",
        "/memfd:simpler-region (deleted)",
        "/memfd:simpler-region (deleted)",
    ]
    assert not {name for name in set(os.listdir("/dev/shm")) - names if name.startswith("#")}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        f"/dev/shm has {1 << 20} bytes free, too few for {2 << 20} more: shared memory is made by "
        "memfd_create"
    )
    made[0] = None  # what is given back is free again
    assert path_of(create_region(2 << 20)).startswith("/dev/shm/")


@pytest.mark.spec("ORCH-FORK-6")
@pytest.mark.parametrize("free", [0, 1 << 40])
@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_both_kinds_of_memory_serve_both_kinds_of_workers_and_no_other_keeps_them(room, how, free):
    def held(pid):
        listing = subprocess.run(["ls", "-l", f"/proc/{pid}/fd"], capture_output=True, text=True)
        links = listing.stdout.splitlines()
        return [link for link in links if "simpler-region" in link or "/dev/shm/#" in link]

    room(free)
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
        assert "/dev/shm" not in program.stdout
        assert len(held(os.getpid())) == before + 3
    assert len(held(os.getpid())) == before
    assert x.tolist() == [0, 2, 4, 6, 8]


# ---------------------------------------------------------------- thread pools
POOLS = """
    import json, os, signal
    import numpy as np
    from threadpoolctl import threadpool_info, threadpool_limits
    threadpool_limits(2)  # as on a machine of two cores, should this one have fewer
    os.environ.pop("KMP_DUPLICATE_LIB_OK", None)
    from simpler_ref import Worker, WorkerLostError

    def pools():
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    with Worker(3, num_sub_workers=1) as w:
        seen = w.share(np.zeros((2, 1), np.int64))

        def look(args):
            seen[args.scalar(0)] = pools()

        handle = w.register(look)
        dies = w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))

        def run(which, handle):
            from simpler_ref import TaskArgs
            args = TaskArgs()
            args.add_scalar(which)
            w.run(lambda orch, *_: orch.submit_sub(handle, args))

        run(0, handle)
        try:
            run(0, dies)
        except WorkerLostError:
            pass
        run(1, handle)
        print(json.dumps([seen.tolist(), pools()]))
"""


@pytest.mark.spec("ORCH-FORK-7")
def test_the_libraries_that_are_loaded_have_one_thread_in_workers_and_as_many_as_before_outside():
    workers, ours = run_program(POOLS)
    assert workers == [[1], [1]]
    assert ours == [2]


@pytest.mark.spec("ORCH-FORK-7")
@pytest.mark.parametrize("name", ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"])
def test_a_library_whose_variable_the_user_has_set_is_left_as_it_is(name):
    workers, _ = run_program(POOLS, **{name: "2"})
    assert workers == [[2], [2]]


@pytest.mark.spec("ORCH-FORK-7")
def test_an_openmp_that_is_loaded_has_one_thread_in_workers_unless_the_user_says_otherwise():
    program = """
        import ctypes, glob, importlib.util, json
        from pathlib import Path
        import numpy as np
        site = Path(importlib.util.find_spec("sklearn").origin).parents[1]
        gomp = ctypes.CDLL(glob.glob(str(site / "scikit_learn.libs" / "libgomp*"))[0])
        gomp.omp_set_num_threads(3)
        from simpler_ref import Worker
        with Worker(3, num_sub_workers=1) as w:
            seen = w.share(np.zeros(1, np.int64))
            handle = w.register(lambda: seen.__setitem__(0, gomp.omp_get_max_threads()))
            w.run(lambda orch, *_: orch.submit_sub(handle))
            print(json.dumps([int(seen[0]), gomp.omp_get_max_threads()]))
    """
    assert run_program(program) == [1, 3]
    assert run_program(program, OMP_NUM_THREADS="2") == [3, 3]
