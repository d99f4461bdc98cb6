"""SPEED-WAIT: which cores there are, how long threads spin on them, and who stands where."""

import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from simpler_ref import RemoteWorkerSpec, Worker, WorkerStartError
from simpler_ref import TensorArgType as T
from simpler_ref.engine import shared_arrays
from simpler_ref.jit import layout as L
from simpler_ref.remote import ProcessFleet
from simpler_ref.system import cores as placement
from simpler_ref.system.cores import Cores, choose_waits, find_cores
from tests import list_programs
from tests.conformance.see.conftest import main
from tests.endpoints import EXISTING
from tests.list_programs import at, endpoints
from tests.support import make_args, wait_until
from tests.system.programs import Fork

MODES = pytest.mark.parametrize("mode", ["process", "thread"])
SPIN, SPARE, FAR, YIELD, DEFER = 50_000, 100_000, 300_000, 3_000, 30_000


# ---------------------------------------------------------------- the cores there are
def quota_of(root: Path, groups: str, mount: str, files: dict[str, str]):
    """Return the quota in a system with these control groups, which `root` becomes."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(f"{mount}\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return find_cores(root).quota


V2 = "24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1 = "33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct"
IN_V1 = "5:memory:/a/b\n4:cpu,cpuacct:/a/b\n0::/\n"
MINE = V2.replace(" / ", " /pods/mine ", 1)
"""A container that sees its own group as the top."""


def in_v1(inner, outer):
    """Return the files of nested groups of the first version with these quotas."""
    quotas = {"cpu/a/b/cpu.cfs_quota_us": inner, "cpu/a/cpu.cfs_quota_us": outer}
    return quotas | {f"cpu/{group}/cpu.cfs_period_us": "100000" for group in ("a/b", "a")}


@pytest.mark.spec("SPEED-WAIT-1")
@pytest.mark.parametrize(
    ("groups", "mount", "files", "cores"),
    [
        ("0::/a/b\n", V2, {"a/b/cpu.max": "150000 100000", "a/cpu.max": "max 100000"}, 1.5),
        ("0::/a/b\n", V2, {"a/b/cpu.max": "400000 100000", "a/cpu.max": "100000 50000"}, 2.0),
        ("0::/a/b\n", V2, {"a/b/cpu.weight": "100", "other/cpu.max": "10000 100000"}, None),
        ("0::/pods/mine/x\n", MINE, {"cpu.max": "200000 100000", "x/cpu.max": "max 100000"}, 2.0),
        (IN_V1, V1, in_v1("-1", "-1"), None),
        (IN_V1, V1, in_v1("50000", "-1"), 0.5),
        (IN_V1, V1, in_v1("300000", "100000"), 1.0),
        ("0::/../a\n", V2, {}, None),
        ("1:name=systemd:/a\n", V2, {}, None),
    ],
)
def test_the_smallest_quota_of_nested_groups_counts(tmp_path, groups, mount, files, cores):
    assert quota_of(tmp_path, groups, mount, files) == cores
    assert find_cores(tmp_path / "nothing").quota is None


@pytest.mark.spec("SPEED-WAIT-1")
def test_available_are_whole_cores_of_the_mask_and_of_the_quota():
    quotas = {None: 4, 8.0: 4, 4.0: 4, 3.9: 3, 1.5: 1, 0.2: 1}
    assert {quota: Cores((0, 1, 2, 3), quota).available for quota in quotas} == quotas


@pytest.mark.spec("SPEED-WAIT-1")
def test_the_affinity_mask_at_init_counts():
    first = min(os.sched_getaffinity(0))

    def program():
        with Worker(3, num_sub_workers=1) as before:
            os.sched_setaffinity(0, {first})
            with Worker(3, num_sub_workers=1) as after:
                assert set(before.placement().cores.mask) >= {first}
                assert after.placement().cores.mask == (first,)
                assert after.placement().cores.available == 1
                assert after._session.engine.mem[L.YIELD_NS] == 0

    with Fork(program) as fork:
        assert fork.wait() == 0


@pytest.mark.spec("SPEED-WAIT-4")
def test_of_two_hyperthreads_of_a_core_one_comes_first(tmp_path, monkeypatch):
    for core, mates in enumerate(("0-1", "0-1", "2,3", "2,3")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(mates)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert find_cores(tmp_path).mask == (0, 2, 1, 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3})
    assert find_cores(tmp_path).mask == (1, 2, 3)


@pytest.fixture
def cores():
    """Give the cores this thread may use, two at least, and let it use them again afterwards."""
    mask = os.sched_getaffinity(0)
    if len(mask) == 1:
        pytest.skip("there is one core only")
    yield mask
    os.sched_setaffinity(0, mask)


# ---------------------------------------------------------------- how long they spin
def times(worker: Worker) -> tuple[int, ...]:
    mem = worker._session.engine.mem
    return tuple(int(mem[word]) for word in (L.SPIN_NS, L.YIELD_NS, L.DEFER_NS))


@pytest.mark.spec("SPEED-WAIT-2", "SPEED-WAIT-1")
@pytest.mark.parametrize(
    ("cores", "workers", "spin_us", "expected"),
    [
        *((1, 1, None, (SPIN, 0, DEFER)), (1, 16, None, (SPIN, 0, DEFER))),
        *((2, 1, None, (SPIN, YIELD, DEFER)), (2, 16, None, (SPIN, YIELD, DEFER))),
        *((4, 3, None, (SPIN, YIELD, DEFER)), (4, 2, None, (SPARE, YIELD, DEFER))),
        *((2, 1, 0, (0, 0, 0)), (2, 1, 1.5, (1500, 1500, 1500))),
        (2, 1, 700, (700_000, YIELD, DEFER)),
    ],
)
def test_spinning_follows_from_cores_and_threads_or_from_spin_us(
    monkeypatch, cores, workers, spin_us, expected
):
    monkeypatch.setattr(placement, "find_cores", lambda: Cores(tuple(range(cores)), None))
    with Worker(3, num_sub_workers=workers, spin_us=spin_us) as made:
        assert (times(made), made.placement().waits) == (expected, expected)
        assert made.placement().threads == workers + 1


@pytest.mark.spec("SPEED-WAIT-2")
@pytest.mark.parametrize(
    ("cores", "spin_us", "expected"),
    [(1, None, (SPIN, 0, DEFER)), (2, None, (FAR, YIELD, DEFER)), (2, 9, (9000, YIELD, 9000))],
)
def test_a_worker_with_endpoints_spins_longer_and_so_does_one_above(
    monkeypatch, cores, spin_us, expected
):
    monkeypatch.setattr(placement, "find_cores", lambda: Cores(tuple(range(cores)), None))
    inner, outer = Worker(4), Worker(5, spin_us=spin_us)
    inner.add_remote_worker(RemoteWorkerSpec(modules=[__name__]))
    outer.add_worker(inner)
    with outer:
        assert (outer.placement().waits, times(outer)) == (expected, expected)


@pytest.mark.spec("SPEED-WAIT-2")
def test_what_is_no_time_or_no_truth_value_is_refused():
    for name, value, error in [
        *(("spin_us", -1, ValueError), ("spin_us", 2000000.0, ValueError)),
        *(("spin_us", "long", TypeError), ("pin", 1, TypeError), ("pin", None, TypeError)),
    ]:
        with pytest.raises(error, match=f"{name}={value!r}"):
            Worker(3, **{name: value})


# ---------------------------------------------------------------- threads on one core
class Sharing:
    """Two workers of an engine of their own; this thread plays the first."""

    def __init__(self, driver, cores):
        self.driver, self.mem, self.cores = driver, driver.mem, cores
        self.me, self.other = (driver._worker(worker) for worker in (0, 1))
        self.here, self.home = min(cores), max(cores)
        self.mem[self.me + L.W_HOME] = self.home + 1
        self.mem[self.me + L.W_THREAD] = threading.get_native_id()
        self.mem[self.other + L.W_CORE] = self.here + 1
        self.mem[L.ORCH_CORE] = 0
        self.mem[L.CORES] = 3  # so that there is one for each of the workers and the Orch thread

    def looks(self):
        """Let it look around on one core; return whether it wanted to go."""
        self.mem[self.me + L.W_MOVED] = 0
        os.sched_setaffinity(0, {self.here})
        self.driver.x.stay_apart(self.mem, 0)
        return bool(self.mem[self.me + L.W_MOVED])

    def wake_from(self, core):
        """Let a thread on some core wake it; return whether it keeps off that core now."""

        def wake():
            os.sched_setaffinity(0, {core})
            self.driver.x.wake_elsewhere(self.mem, 0)

        with ThreadPoolExecutor(1) as scheduler:
            scheduler.submit(wake).result()
        return self.mem[self.me + L.W_KEPT_OFF] != 0

    def goes(self):
        """Let it look around, free to go; return where to."""
        self.mem[self.me + L.W_MOVED] = 0
        os.sched_setaffinity(0, {self.here})
        os.sched_setaffinity(0, self.cores)
        self.driver.x.stay_apart(self.mem, 0)
        went = self.driver.x.core_here()
        assert os.sched_getaffinity(0) == self.cores
        return went


@pytest.fixture
def sharing(make_driver, cores):
    made = Sharing(make_driver(sub=2), cores)
    yield made
    made.mem = None  # the engine's memory goes with its last reference


@pytest.mark.spec("SPEED-WAIT-13")
def test_a_worker_leaves_a_core_that_another_one_is_on_for_its_own(sharing):
    wait_until(lambda: sharing.goes() == sharing.home)
    assert sharing.looks()


@pytest.mark.spec("SPEED-WAIT-13")
@pytest.mark.parametrize(
    ("why", "word", "value"),
    [
        ("the other one sleeps", "other W_PARKED", 1),
        ("the other one runs elsewhere", "other W_CORE", 1000),
        ("it has no core of its own", "me W_HOME", 0),
        ("it is a thread of this process", "me W_THREAD", 0),
        ("the Orch thread submits, on another core", "ORCH_CORE", 1000),
    ],
)
def test_a_worker_stays_where_it_is_if(sharing, why, word, value):
    *whose, name = word.split()
    base = getattr(sharing, whose[0]) if whose else 0
    before = sharing.mem[base + getattr(L, name)]
    sharing.mem[base + getattr(L, name)] = value
    assert not sharing.looks()
    sharing.mem[base + getattr(L, name)] = before
    assert sharing.looks(), "else it goes"


@pytest.mark.spec("SPEED-WAIT-13")
def test_a_worker_that_is_woken_starts_on_another_core_and_may_use_all_then(sharing, cores):
    assert sharing.wake_from(sharing.here)
    assert os.sched_getaffinity(0) == cores - {sharing.here}
    sharing.wake_from(sharing.home)
    assert os.sched_getaffinity(0) == cores - {sharing.here}, "it has not woken yet"
    sharing.driver.x.stay_apart(sharing.mem, 0)
    assert (os.sched_getaffinity(0), sharing.mem[sharing.me + L.W_KEPT_OFF]) == (cores, 0)


@pytest.mark.spec("SPEED-WAIT-4", "SPEED-WAIT-13")
def test_a_pinned_worker_stays_pinned_whoever_wakes_it(sharing):
    os.sched_setaffinity(0, {sharing.here})
    for core in (sharing.here, sharing.home):
        sharing.wake_from(core)
        sharing.driver.x.stay_apart(sharing.mem, 0)
        assert os.sched_getaffinity(0) == {sharing.here}


# ---------------------------------------------------------------- who stands where
def order() -> list[int]:
    """Return the cores in the order in which they are given away."""
    mask = find_cores().mask
    return [*mask[1:], *mask[:1]]


def expected_cores(count: int) -> list[set[int]]:
    return [{core} for core in order()[:count]] + [set(order())] * (count - len(order()))


def tell_mask(args):
    """Write down where this worker may run."""
    row = args.tensor(0).numpy()
    row[:] = 0
    row[list(os.sched_getaffinity(0))] = 1


def masks(w: Worker, handle, workers: int) -> list[set[int]]:
    """Return where each worker may run, as a group of all of them sees it."""
    rows = w.share(np.zeros((workers, 1 + max(find_cores().mask)), np.int64))

    def graph(orch, args, config):
        orch.submit_sub_group(handle, [make_args((rows[i], T.INOUT)) for i in range(workers)])

    w.run(graph)
    return as_sorted(set(np.flatnonzero(row).tolist()) for row in rows)


def as_sorted(sets) -> list[set[int]]:
    return sorted(sets, key=lambda s: (len(s), *sorted(s)))


@pytest.mark.spec("SPEED-WAIT-4", "SPEED-WAIT-1")
@pytest.mark.parametrize(("mode", "more"), [("process", 2), ("thread", 0)])
def test_each_worker_has_a_core_of_its_own_as_long_as_there_are_enough(mode, more):
    workers, before = max(1, len(order()) + more), os.sched_getaffinity(0)
    with Worker(3, num_sub_workers=workers, pin=True, child_mode=mode) as w:
        handle = w.register(tell_mask)
        assert w.placement().workers == ()
        assert masks(w, handle, workers) == as_sorted(expected_cores(workers))
        placed = w.placement().workers
        cores = [*order()[:workers], *[None] * (workers - len(order()))]
        assert [one.core for one in placed] == cores
        names = [one.name.split()[:2] for one in placed]
        assert names == [["sub_worker", str(i)] for i in range(workers)]
        text = str(w.placement())
        for words in ("available", f"core {order()[0]}", "sub_worker 0"):
            assert words in text
        assert os.sched_getaffinity(0) == before
        for thread in Path("/proc/self/task").iterdir():
            if mode == "process":
                assert os.sched_getaffinity(int(thread.name)) == before
    with pytest.raises(RuntimeError, match="closed"):
        w.placement()


@pytest.mark.spec("SPEED-WAIT-4")
@MODES
def test_a_nested_worker_comes_before_those_below_it_and_waits_as_its_parent_says(mode):
    width, child = 1 + max(find_cores().mask), Worker(3, num_sub_workers=2)
    leaf = child.register(tell_mask)
    parent = Worker(4, num_sub_workers=1, pin=True, spin_us=7, child_mode=mode)
    parent.add_worker(child)

    def below(orch, args, config):
        tell_mask(args)
        everybody = args.tensor(1).numpy()
        args.tensor(2).numpy()[:] = times(child)
        orch.submit_sub_group(leaf, [make_args((everybody[i], T.INOUT)) for i in range(2)])

    spread, alone = parent.register(below), parent.register(tell_mask)
    with parent:
        rows, seen = parent.share(np.zeros((4, width), np.int64)), parent.empty(3, np.int64)

        def graph(orch, args, config):
            told = (rows[0], T.INOUT), (rows[1:3], T.INOUT), (seen, T.OUTPUT_EXISTING)
            orch.submit_next_level(spread, make_args(*told))
            orch.submit_sub(alone, make_args((rows[3], T.INOUT)))

        parent.run(graph)
        found = [set(np.flatnonzero(row).tolist()) for row in rows]
        cores = expected_cores(4)
        assert found[0] == cores[0], "the nested Worker"
        assert as_sorted(found[1:3]) == as_sorted(cores[1:3]), "its workers"
        assert found[3] == cores[3], "the parent's own"
        assert parent.placement().threads == 5
        assert tuple(seen) == times(parent) == choose_waits(find_cores().available, 5, 7)
        if mode == "process":
            pid = parent.worker_pids()[0]
            others = [int(t.name) for t in Path(f"/proc/{pid}/task").iterdir()]
            free = [os.sched_getaffinity(one) for one in others if one != pid]
            assert free and all(mask == set(order()) for mask in free)


@pytest.mark.spec("SPEED-WAIT-4")
@pytest.mark.parametrize("setting", [{"pin": True}, {"spin_us": 5}])
def test_a_child_with_settings_for_the_whole_tree_is_refused(setting):
    parent = Worker(4)
    with pytest.raises(ValueError, match="outermost"):
        parent.add_worker(Worker(3, num_sub_workers=1, **setting))
    parent.add_worker(Worker(3, num_sub_workers=1))


@pytest.mark.spec("SPEED-WAIT-4")
def test_a_successor_stands_where_the_dead_worker_stood():
    with Worker(3, num_sub_workers=2, pin=True) as w:
        handle = w.register(tell_mask)
        before, first = masks(w, handle, 2), w.worker_pids()[0]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: first not in w.worker_pids())
        assert masks(w, handle, 2) == before
        assert first not in w.worker_pids()
        assert os.sched_getaffinity(w.worker_pids()[0]) == expected_cores(1)[0]


@pytest.mark.spec("SPEED-WAIT-4")
@MODES
def test_a_core_that_is_not_there_makes_the_start_fail(monkeypatch, mode, capfd):
    monkeypatch.setattr(placement, "find_cores", lambda: Cores((1000,), None))
    w = Worker(3, num_sub_workers=1, pin=True, child_mode=mode)
    with w, pytest.raises(WorkerStartError, match="cannot pin to core 1000"):
        w.start()


# ---------------------------------------------------------------- memory made ahead of its use
def resident(pid: int | str, array: np.ndarray) -> int:
    """Return how many bytes of the mapping that holds an array are in a process's page table."""
    address, inside = array.ctypes.data, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            inside = start <= address < end
        elif inside and line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the array is in no mapping")


BIG = 16 << 20


@pytest.mark.spec("SPEED-WAIT-9")
def test_workers_map_it_before_their_first_task():
    child = Worker(3, num_sub_workers=1)
    child_leaf = child.register(lambda args: args.tensor(0).numpy().fill(os.getpid()))
    w = Worker(4, num_sub_workers=1)
    w.add_worker(child)

    def below(orch, args, config):
        orch.submit_sub(child_leaf, make_args((args.tensor(0), T.INOUT)))

    handle = w.register(below)
    with w:
        pid, array = w.empty(1, np.int64), w.empty(BIG, np.uint8, populate=True)
        gone = w.empty(BIG, np.uint8, populate=True)
        del gone  # nobody will need it
        w.start()
        w.run(lambda orch, *_: orch.submit_next_level(handle, make_args((pid, T.INOUT))))
        for one in (*w.worker_pids(), int(pid[0])):
            assert BIG <= resident(one, array) < 2 * BIG


@pytest.mark.spec("SPEED-WAIT-9")
def test_pages_that_cannot_be_made_are_an_error_and_nothing_is_kept(monkeypatch):
    with pytest.raises(MemoryError, match="populate"):
        shared_arrays.populate(shared_arrays.PAGE, 100)  # nothing is mapped there
    with Worker(3, arena_size=1 << 20) as w:

        def refuse(address, nbytes):
            raise MemoryError("no")

        with monkeypatch.context() as m:
            m.setattr(shared_arrays, "populate", refuse)
            with pytest.raises(MemoryError):
                w.empty(1 << 20, np.uint8, populate=True)
        assert w.empty(1 << 20, np.uint8).nbytes == 1 << 20


# ---------------------------------------------------------------- python -m simpler_ref
@pytest.mark.spec("SPEED-WAIT-1")
def test_the_command_line_says_what_so_many_workers_would_find(capsys):
    assert main(["16"]) == 0
    out, err = capsys.readouterr()
    assert f"{find_cores().available} available" in out and "threads    17\n" in out and err == ""
    for wrong in (["many"], ["1", "2"], ["-1"]):
        assert main(wrong) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("usage:")


# ---------------------------------------------------------------- endpoints
@pytest.mark.slow("starts three endpoints, and waits until their workers are on their cores")
@pytest.mark.spec("SPEED-WAIT-14")
@pytest.mark.parametrize("pin", [True, pytest.param(False, marks=pytest.mark.long)])
def test_workers_of_endpoints_and_what_passes_their_frames_take_the_cores_in_turn(pin):
    cores = find_cores().mask
    order = [*cores[1:], cores[0]]
    with endpoints(3, pin=pin) as worker:
        names = ("tell_core", "tell_core_there", "tell_core_elsewhere")
        tells = [at(worker, getattr(list_programs, one), i) for i, one in enumerate(names)]
        seen = [worker.share(np.full(2, -1)) for _ in tells]
        expected = [[1 if pin else len(cores), order[i % len(order)]] for i in range(3)]

        def orchestrate(orch, args, config):
            for _ in range(8):
                for tell, one in zip(tells, seen, strict=True):
                    orch.submit_sub(tell, make_args((one, EXISTING)))

        def are_at_home():
            worker.run(orchestrate)
            return [one.tolist() for one in seen] == expected

        worker.start()
        pids = [one["pid"] for one in worker.endpoints()]
        for (_, core), link, pid in zip(expected, worker.worker_pids(), pids, strict=True):
            assert os.sched_getaffinity(link) == {core}
            assert all(one == {core} for one in cores_of_threads(link, "ZMQbg/IO"))
            at_frames, at_tensors = sorted(cores_of_threads(pid, "ZMQbg/IO"), key=len)
            assert at_frames == {core}
            assert at_tensors == set(cores), "tensors move on any core"
            assert os.sched_getaffinity(pid) == set(cores), "and functions run there"
        wait_until(are_at_home)


def cores_of_threads(pid, name):
    """Return where each thread of a process whose name begins so may run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [
        os.sched_getaffinity(int(thread.name))
        for thread in threads
        if (thread / "comm").read_text().startswith(name)
    ]


@pytest.mark.spec("SPEED-WAIT-14")
def test_endpoints_of_other_machines_have_the_cores_for_themselves():
    here = RemoteWorkerSpec(num_sub_workers=2, device_ids=[0])
    there = RemoteWorkerSpec(ProcessFleet(hosts=["there"]), num_sub_workers=2)
    assert [here.manifest(1, i, None, None).before for i in range(3)] == [0, 3, 6]
    assert there.manifest(1, 1, None, None).before is None
    none = RemoteWorkerSpec()
    assert [none.manifest(1, i, None, None).before for i in range(3)] == [0, 1, 2]
    worker = Worker(4, pin=True)
    worker.add_remote_worker(here)
    (link,) = worker._life.endpoints.links()
    assert link.spec.worker["pin"] is True and "pin" not in here.worker
