"""SPEED-PARTS: recorded graphs at endpoints."""

import gc
import os
import random
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from simpler_ref import (
    CallConfig,
    RemoteCallable,
    RemoteWorkerSpec,
    TaskError,
    Worker,
    WorkerLostError,
)
from simpler_ref.errors import RemoteError
from simpler_ref.orch import parted
from simpler_ref.remote import ProcessFleet, home, lines, part_runs, parts
from simpler_ref.remote.endpoints import Endpoints
from simpler_ref.remote.part_programs import LoadedPart
from simpler_ref.remote.parts import Action, Operation, Part, PartRun
from simpler_ref.system.cores import find_cores
from tests import far_side, part_programs
from tests.endpoints import EXISTING, INOUT, INPUT, OUTPUT
from tests.part_programs import (
    COUNT,
    arguments,
    at,
    blend,
    computed,
    copy_to,
    drawn,
    endpoints,
    frames_of,
    fresh,
    fresh_arrays,
    sides,
    submit_all,
)
from tests.support import Terminated, make_args, terminated_after, wait_until

MOST_FRAMES = 2
"""What an endpoint is sent in a replay in parts: OPEN_COPIES and RUN_PART."""


def is_in_parts(worker, graph, args=None):
    """Replay a graph, and say whether that went in parts."""
    frames = frames_of(worker, lambda: graph.run(args))
    return max(frames) <= MOST_FRAMES < graph.tasks


def chain(worker, length=6, count=COUNT):
    """Return a graph of tasks for endpoints that copy an array, and both arrays."""
    handle = worker.register(part_programs.copy_to)
    x, y = (worker.share(np.full(count, i, np.float32)) for i in (1, 2))

    def orchestrate(orch, args, config):
        for _ in range(length):
            orch.submit_sub(handle, make_args((x, INPUT), (y, INOUT)))

    return worker.record(orchestrate), x, y


# ---------------------------------------------------------------- replays
@pytest.fixture(
    scope="module",
    params=[(1, 1, False), (2, 1, True), (2, 2, False), (3, 1, False)],
    ids="{0[0]} endpoints, {0[1]} sub workers, encrypted {0[2]}".format,
)
def w(request):
    count, sub_workers, secure = request.param
    with endpoints(count, sub_workers, secure) as worker:
        worker.blend = worker.register(blend)
        worker.start()
        yield worker


@pytest.mark.spec("SPEED-PARTS-1")
@pytest.mark.parametrize("seed", range(8))
def test_random_programs_are_replayed_in_parts_as_they_are_run(seed, w):
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    ops = drawn(rng, 40, arrays=3)
    arrays = fresh_arrays(w, numbers, 3)

    def orchestrate(orch, args, config):
        submit_all(ops, orch, w.blend, args)

    graph = w.record(orchestrate, arguments(arrays, 1, 0.5))
    for number in range(5):
        if number == 3:
            arrays = fresh_arrays(w, numbers, 3)
        args = arguments(arrays, number, number / 4)
        expected = computed(ops, arrays, number, np.float32(number / 4))
        if number:
            assert is_in_parts(w, graph, args)
        else:
            timing = graph.run(args)
            assert timing.tasks >= graph.tasks
        for one, right in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-5)
    assert graph.run(args).tasks == graph.tasks


@pytest.mark.spec("SPEED-PARTS-1")
@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.int8])
def test_arrays_of_any_element_type_go_in_parts(dtype, w):
    handle = w.register(part_programs.add_number)
    x = w.share(np.arange(12).reshape(3, 4).astype(dtype))
    y = w.share(np.zeros((3, 4), dtype))

    def orchestrate(orch, args, config):
        for _ in range(4):
            orch.submit_sub(handle, make_args((x, INPUT), (y, INOUT), scalars=[args.scalar(0)]))

    graph = w.record(orchestrate, make_args(scalars=[1]))
    graph.run()
    for number in 2, 3:
        assert is_in_parts(w, graph, make_args(scalars=[number]))
        assert y.tolist() == (x + number).tolist()


@pytest.mark.spec("SPEED-PARTS-1")
def test_runs_calls_and_other_graphs_may_come_in_between(w):
    graph, x, y = chain(w)
    other, _, z = chain(w, 8)
    for number in range(4):
        x[:] = number
        assert is_in_parts(w, graph) == (number > 0)
        assert y.tolist() == [number] * COUNT
        assert is_in_parts(w, other) == (number > 0)
        assert z.tolist() == [1] * COUNT
        assert list(w.map(abs, range(-4, 0))) == [4, 3, 2, 1]

        def run(orch, args, config):
            orch.submit_sub(w.blend, make_args((y, INOUT), scalars=[0, 1, 3, 0.0]))

        w.run(run)
        assert y.tolist() == [2 * number + 3] * COUNT


@pytest.mark.spec("SPEED-PARTS-1")
@pytest.mark.spec("SPEED-PARTS-3")
def test_a_large_tensor_goes_from_one_endpoint_to_the_other():
    with endpoints() as worker:
        handles = at(worker, copy_to, 0), at(worker, part_programs.copy_there, 1)
        x, y = (worker.share(np.full(1 << 20, i, np.float32)) for i in (1, 2))

        def orchestrate(orch, args, config):
            task = make_args((x, INPUT), (fresh(1 << 20), OUTPUT))
            orch.submit_sub(handles[0], task)
            orch.submit_sub(handles[1], make_args((task.tensor(1), INPUT), (y, EXISTING)))

        graph = worker.record(orchestrate)
        for number in range(3):
            x[:] = np.arange(1 << 20) * number
            graph.run()
            assert (y == x).all()
        assert worker.transfers()[0]["bytes_out"] >= 2 * x.nbytes


# ---------------------------------------------------------------- where, and what moves
@pytest.mark.spec("SPEED-PARTS-2")
def test_registrations_say_where_tasks_run():
    with endpoints() as worker:
        graph, x, y = sides(worker, copy_to_slowly, steps=2)
        for _ in range(3):
            graph.run()
        tasks = [one.tasks for one in graph._parted.parts.values()]
        assert tasks == [5, 6]
        assert sorted((x[0], y[0])) == [1, 2]


copy_to_slowly = part_programs.copy_slowly


@pytest.mark.spec("SPEED-PARTS-2")
def test_independent_long_tasks_are_spread_and_short_chains_are_not(monkeypatch):
    with endpoints() as worker:
        handle = worker.register(part_programs.copy_slowly)
        rows = [worker.share(np.zeros(COUNT, np.float32)) for _ in range(8)]

        def orchestrate(orch, args, config):
            for one in rows[1:]:
                orch.submit_sub(handle, make_args((rows[0], INPUT), (one, INOUT)))

        graph = worker.record(orchestrate)
        for _ in range(2):
            graph.run()
        assert sorted(one.tasks for one in graph._parted.parts.values()) == [3, 4]
        short, *_ = chain(worker)
        for _ in range(2):
            short.run()
        assert len(short._parted.parts) == 1


@pytest.mark.spec("SPEED-PARTS-2")
def test_placements_are_tried_and_the_fastest_stays():
    with endpoints() as worker:
        graph, x, y = chain(worker, 8)
        graph.run()
        used = []
        for number in range(16):
            x[:] = number
            graph.run()
            assert y.tolist() == [number] * COUNT
            used.append(graph._parted._way)
        ways = graph._parted._ways
        tried = parted.TRIES * len(ways)
        assert all(one.runs >= parted.TRIES for one in ways)
        assert all(one.best_s <= min(way.best_s for way in ways) for one in used[tried:])


@pytest.mark.spec("SPEED-PARTS-3")
def test_each_version_goes_once_to_each_endpoint_that_reads_it():
    with endpoints(3) as worker:
        makes = at(worker, copy_to, 0)
        readers = at(worker, part_programs.copy_there, 1), at(worker, part_programs.copy_slowly, 2)
        x = worker.share(np.ones(COUNT, np.float32))
        results = [worker.share(np.zeros(COUNT, np.float32)) for _ in range(6)]

        def orchestrate(orch, args, config):
            task = make_args((x, INPUT), (fresh(), OUTPUT))
            orch.submit_sub(makes, task)
            for i, one in enumerate(results):
                orch.submit_sub(readers[i % 2], make_args((task.tensor(1), INPUT), (one, EXISTING)))

        graph = worker.record(orchestrate)
        for _ in range(2):
            graph.run()
        before = [one["transfers"] for one in worker.transfers()]
        x[:] = 5
        graph.run()
        after = [one["transfers"] for one in worker.transfers()]
        assert [b - a for a, b in zip(before, after, strict=True)] == [2, 0, 0]
        assert [one[0] for one in results] == [5] * 6


def tensor_of_path(worker, path):
    return worker.share(np.frombuffer(str(path).encode(), np.uint8).copy())


def replayed_with(worker, graph, path, ways=3):
    """Replay a graph, in parts by each placement, without a file at the beginning."""
    for number in range(1 + ways * parted.TRIES):
        path.unlink(missing_ok=True)
        graph.run()
        assert graph._went_in_parts == (number > 0)


@pytest.mark.spec("SPEED-PARTS-3")
@pytest.mark.spec("REMOTE-PART-5")
def test_a_tensor_is_pushed_while_the_next_task_runs(tmp_path):
    path = tmp_path / "told"
    with endpoints() as worker:
        makes, listens = at(worker, copy_to, 0), at(worker, part_programs.listen, 0)
        tells = at(worker, part_programs.tell, 1)
        name = tensor_of_path(worker, path)
        x, y, z = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2, 3))

        def orchestrate(orch, args, config):
            task = make_args((x, INPUT), (fresh(), OUTPUT))
            orch.submit_sub(makes, task)
            orch.submit_sub(listens, make_args((name, INPUT), (x, INPUT), (y, EXISTING)))
            made = task.tensor(1)
            orch.submit_sub(tells, make_args((name, INPUT), (made, INPUT), (z, EXISTING)))

        graph = worker.record(orchestrate)
        replayed_with(worker, graph, path)
        assert y.tolist() == z.tolist() == x.tolist()


@pytest.mark.spec("SPEED-PARTS-8")
def test_a_task_that_needs_nothing_of_others_does_not_wait_for_what_is_pushed(tmp_path):
    path = tmp_path / "told"
    with endpoints() as worker:
        reads, tells = at(worker, copy_to, 0), at(worker, part_programs.tell, 0)
        listens = at(worker, part_programs.listen, 1)
        name = tensor_of_path(worker, path)
        x, y, z = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2, 3))

        def orchestrate(orch, args, config):
            task = make_args((name, INPUT), (x, INPUT), (fresh(), OUTPUT))
            orch.submit_sub(listens, task)
            orch.submit_sub(reads, make_args((task.tensor(2), INPUT), (y, EXISTING)))
            orch.submit_sub(tells, make_args((name, INPUT), (x, INPUT), (z, EXISTING)))

        graph = worker.record(orchestrate)
        replayed_with(worker, graph, path)
        assert y.tolist() == z.tolist() == x.tolist()


@pytest.mark.spec("SPEED-PARTS-3")
@pytest.mark.parametrize("steps", [1, 20])
def test_what_is_changed_again_and_again_goes_to_the_other_endpoint_each_time(steps):
    with endpoints(2, 2) as worker:
        changes, reads = at(worker, add_one, 0), at(worker, part_programs.copy_there, 1)
        x = worker.share(np.zeros(COUNT, np.float32))
        seen = [worker.share(np.zeros(COUNT, np.float32)) for _ in range(steps)]

        def orchestrate(orch, args, config):
            for i, one in enumerate(seen):
                after = [(seen[i - 1], INPUT)] if i else []  # which orders reader and changer
                orch.submit_sub(changes, make_args((x, INOUT), *after))
                orch.submit_sub(reads, make_args((x, INPUT), (one, EXISTING)))

        graph = worker.record(orchestrate)
        for _ in range(5):
            before = int(x[0])
            graph.run()
            assert [int(one[0]) for one in seen] == [before + 1 + i for i in range(steps)]


add_one = part_programs.add_one


# ---------------------------------------------------------------- what the program has
LARGE = 1 << 18
"""Elements; it comes and goes alone."""


@pytest.mark.spec("SPEED-PARTS-10")
def test_a_task_runs_while_what_another_one_reads_is_on_its_way(tmp_path, monkeypatch):
    path = tmp_path / "told"
    move = home.Home.move_all_to

    def move_later(self, several):
        for one in several:
            if one.nbytes >= LARGE:
                wait_until(path.exists)
            move(self, [one])

    monkeypatch.setattr(home.Home, "move_all_to", move_later)
    with endpoints(1) as worker:
        tells, copies = worker.register(part_programs.tell), worker.register(copy_to)
        name = tensor_of_path(worker, path)
        x, y = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2))
        large, result = (worker.share(np.full(LARGE, i, np.float32)) for i in (3, 4))

        def orchestrate(orch, args, config):
            orch.submit_sub(tells, make_args((name, INPUT), (x, INPUT), (y, EXISTING)))
            orch.submit_sub(copies, make_args((large, INPUT), (result, EXISTING)))

        graph = worker.record(orchestrate)
        for number in range(3):
            path.unlink(missing_ok=True)
            large[:] = x[:] = number
            graph.run()
            assert graph._went_in_parts == (number > 0)
            assert set(y) == set(result) == {number}


@pytest.mark.spec("SPEED-PARTS-10")
@pytest.mark.parametrize("several", [1, 2])
def test_what_is_made_comes_home_while_another_task_runs(tmp_path, several):
    path = tmp_path / "seen"
    with endpoints(1) as worker:
        listens, copies = worker.register(part_programs.listen), worker.register(copy_to)
        name = tensor_of_path(worker, path)
        x, y = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2))
        count = LARGE // 2 // several
        source = worker.share(np.zeros(count, np.float32))
        results = [worker.share(np.full(count, -1, np.float32)) for _ in range(several)]

        def orchestrate(orch, args, config):
            for one in results:
                orch.submit_sub(copies, make_args((source, INPUT), (one, EXISTING)))
            orch.submit_sub(listens, make_args((name, INPUT), (x, INPUT), (y, EXISTING)))

        graph = worker.record(orchestrate)
        path.touch()
        graph.run()
        for number in range(1, 3):
            path.unlink()
            x[:] = source[:] = number

            def tell(number=number):
                wait_until(lambda: all(one[-1] == number for one in results))
                path.touch()

            watcher = threading.Thread(target=tell)
            watcher.start()
            graph.run()
            watcher.join()
            assert graph._went_in_parts
            assert set(y) == {number}
            assert all(set(one) == {number} for one in results)


@pytest.mark.spec("SPEED-PARTS-10")
def test_results_of_a_replay_that_fails_are_whole():
    """What comes home while another task fails is the version before, or the new one."""
    with endpoints(2) as worker:
        fails = at(worker, part_programs.fail_if_negative, 1)
        copies = at(worker, copy_to, 0)
        source = worker.share(np.zeros(2 * LARGE, np.float32))
        results = [worker.share(np.zeros(2 * LARGE, np.float32)) for _ in range(6)]
        x, y = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2))

        def orchestrate(orch, args, config):
            for i, one in enumerate(results):
                orch.submit_sub(copies, make_args((source, INPUT), (one, EXISTING)))
                if i == 2:
                    task = make_args((x, INPUT), (y, EXISTING), scalars=[args.scalar(0)])
                    orch.submit_sub(fails, task)

        graph = worker.record(orchestrate, make_args(scalars=[1]))
        graph.run()
        for number in range(1, 9):
            before = float(results[0][0])
            source[:] = number
            if number % 2:
                with pytest.raises(TaskError, match=r"no -1"):
                    graph.run(make_args(scalars=[-1]))
                for one in results:
                    assert len(set(one)) == 1
                    assert one[0] in (before, number)
            else:
                graph.run()
                assert all(set(one) == {number} for one in results)
            assert graph._went_in_parts


@pytest.mark.spec("SPEED-PARTS-11")
def test_whether_tasks_are_long_is_seen_in_the_last_replay():
    task = Operation(Action.RUN, 0)
    part = LoadedPart(Part([bytes(32)], (), [task] * 4))
    assert not part.has_long_tasks
    for last_ns, are_long in ((4 * 50_000, False), (4 * 50_000 + 4, True), (4, False)):
        part.last_ns = last_ns
        assert part.has_long_tasks == are_long


@pytest.mark.spec("SPEED-PARTS-11")
@pytest.mark.parametrize("fails", [False, True])
def test_a_replay_of_long_tasks_does_not_spin_and_what_follows_does(fails):
    told = []

    def wait_for_all(_between):
        if fails:
            raise TaskError("a task has failed")

    orch = SimpleNamespace(
        _view=SimpleNamespace(park_at_once=told.append),
        _room=SimpleNamespace(tell_ends=lambda: None),
        _until_idle=wait_for_all,
        drain=lambda: None,
    )
    parts = SimpleNamespace(ringing=lambda room: nullcontext(), require_wanted=lambda: None)
    part = LoadedPart(Part((), (), ()))
    part.last_ns = 1
    asked = PartRun(1, b"", 1)
    replay = part_runs._Replay(parts, part, asked, (), (), None)
    with pytest.raises(TaskError) if fails else nullcontext():
        replay.run(orch, None, None)
    assert told == [True, False]
    assert (part.last_ns == 1) == fails


# ---------------------------------------------------------------- cores
TELL_CORES = (
    part_programs.tell_core,
    part_programs.tell_core_there,
    part_programs.tell_core_elsewhere,
)


def cores_in_turn():
    """Return the cores of this machine, and the order in which endpoints take them."""
    cores = find_cores().mask
    return cores, [*cores[1:], cores[0]]


@pytest.mark.spec("SPEED-PARTS-9")
@pytest.mark.parametrize("pin", [False, True])
def test_workers_of_endpoints_take_the_cores_of_their_machine_in_turn(pin):
    cores, order = cores_in_turn()
    with endpoints(3, 1, pin=pin) as worker:
        tells = [at(worker, function, i) for i, function in enumerate(TELL_CORES)]
        seen = [worker.share(np.full(2, -1)) for _ in tells]
        expected = [[1 if pin else len(cores), order[i % len(order)]] for i in range(3)]

        def orchestrate(orch, args, config):
            for _ in range(8):
                for tell, one in zip(tells, seen, strict=True):
                    orch.submit_sub(tell, make_args((one, EXISTING)))

        def are_at_home():
            worker.run(orchestrate)
            return [one.tolist() for one in seen] == expected

        wait_until(are_at_home)


@pytest.mark.spec("SPEED-PARTS-12")
@pytest.mark.parametrize("pin", [False, True])
def test_what_passes_the_frames_of_an_endpoint_is_on_one_core(pin):
    cores, order = cores_in_turn()
    with endpoints(3, 1, pin=pin) as worker:
        worker.start()
        for i, (link, about) in enumerate(
            zip(worker.worker_pids(), worker.endpoints(), strict=True)
        ):
            core = {order[i % len(order)]}
            assert os.sched_getaffinity(link) == core
            assert cores_of_threads(link, "ZMQbg/IO") == [core]
            at_frames, at_tensors = sorted(cores_of_threads(about["pid"], "ZMQbg/IO"), key=len)
            assert at_frames == core
            assert at_tensors == set(cores), "tensors move on any core"
            assert os.sched_getaffinity(about["pid"]) == set(cores), "and functions run there"


def cores_of_threads(pid, name):
    """Return where each thread of a process whose name begins so may run."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        if (thread / "comm").read_text().startswith(name):
            found.append(os.sched_getaffinity(int(thread.name)))
    return found


@pytest.mark.spec("SPEED-PARTS-9")
def test_endpoints_of_other_machines_have_the_cores_for_themselves():
    here = RemoteWorkerSpec(num_sub_workers=2, device_ids=[0])
    there = RemoteWorkerSpec(ProcessFleet(hosts=["there"]), num_sub_workers=2)
    assert [here.manifest(1, i, None, None).before for i in range(3)] == [0, 3, 6]
    assert there.manifest(1, 1, None, None).before is None
    none = RemoteWorkerSpec()
    assert [none.manifest(1, i, None, None).before for i in range(3)] == [0, 1, 2]
    assert here.pinned().worker["pin"] is True
    assert "pin" not in here.worker
    assert there.pinned() is there


# ---------------------------------------------------------------- task by task
@pytest.mark.spec("SPEED-PARTS-4")
def test_a_replay_whose_arrays_share_memory_goes_task_by_task(w):
    ops = drawn(random.Random(5), 30, arrays=2)
    numbers = np.random.default_rng(5)

    def orchestrate(orch, args, config):
        submit_all(ops, orch, w.blend, args)

    graph = w.record(orchestrate, arguments(fresh_arrays(w, numbers, 2), 1, 0.5))
    for same in False, False, True, False:
        arrays = fresh_arrays(w, numbers, 2)
        if same:
            arrays[1] = arrays[0]
            graph.run(arguments(arrays, 3, 0.25))
            continue
        expected = computed(ops, arrays, 3, np.float32(0.25))
        graph.run(arguments(arrays, 3, 0.25))
        for one, right in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-5)


@pytest.mark.spec("SPEED-PARTS-4")
def test_a_part_that_needs_too_much_memory_goes_task_by_task():
    with endpoints(1, arena_size=1 << 16) as worker:
        graph, x, y = chain(worker, count=5000)
        for number in range(3):
            x[:] = number
            assert not is_in_parts(worker, graph)
            assert y.tolist() == [number] * 5000


@pytest.mark.spec("SPEED-PARTS-4")
def test_a_part_for_which_buffers_leave_no_room_goes_task_by_task():
    with endpoints(1, arena_size=1 << 20) as worker:
        graph, x, y = chain(worker, count=5000)
        graph.run()
        for nbytes, fits in ((1 << 16, True), ((1 << 20) - (1 << 16), False)):
            buffer = worker.remote_malloc(worker=0, nbytes=nbytes)
            assert is_in_parts(worker, graph) == fits
            worker.remote_free(buffer)
            assert is_in_parts(worker, graph)
        assert (x == y).all()


@pytest.mark.spec("SPEED-PARTS-10")
def test_a_part_whose_tensors_cannot_be_stored_ends_and_the_error_says_why(monkeypatch):
    with endpoints(1, arena_size=1 << 20) as worker:
        graph, x, y = chain(worker, count=50000)
        for _ in range(2):
            graph.run()
        buffer = worker.remote_malloc(worker=0, nbytes=(1 << 20) - (1 << 16))
        with monkeypatch.context() as patched:
            patched.setattr(Endpoints, "takes_part", lambda *_: True)
            x[:], y[:] = 5, 6
            with pytest.raises(TaskError, match="arena_size") as info:
                graph.run()
            assert "was stopped" not in str(info.value)
        worker.remote_free(buffer)
        assert is_in_parts(worker, graph)
        assert (x == 5).all()
        assert (y == 5).all()


@pytest.mark.spec("SPEED-PARTS-4")
@pytest.mark.parametrize("lacks", [0, 1])
def test_a_replay_that_would_push_too_much_to_one_endpoint_goes_task_by_task(lacks, monkeypatch):
    received = 5 * 4 * COUNT
    monkeypatch.setattr(parted, "MOST_EARLY_BYTES", received - lacks)
    with endpoints() as worker:
        graph, x, y = sides(worker, part_programs.copy_slowly, steps=3)
        for _ in range(3):
            graph.run()
            assert sorted((x[0], y[0])) == [1, 2]
        assert (graph._parted is None) == bool(lacks)
        if not lacks:
            assert max(one.received for one in graph._parted.parts.values()) == received


@pytest.mark.spec("SPEED-PARTS-4")
def test_an_endpoint_without_the_feature_gets_task_by_task():
    with endpoints(1) as worker:
        graph, x, y = chain(worker)
        graph.run()
        worker._endpoints()._links()[0].agreed[0] &= ~1024
        x[:] = 7
        assert not is_in_parts(worker, graph)
        assert y.tolist() == [7] * COUNT


@pytest.mark.spec("SPEED-PARTS-5")
@pytest.mark.parametrize("options", [{"check": True}, {"retries": 1}], ids=str)
def test_workers_that_check_or_retry_replay_task_by_task(options):
    with endpoints(2, **options) as worker:
        handle = worker.register(copy_to)
        x, y = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2))

        def orchestrate(orch, args, config):
            for _ in range(6):
                orch.submit_sub(handle, make_args((x, INPUT), (y, INOUT)))

        graph = worker.record(orchestrate)
        for number in range(3):
            x[:] = number
            assert not is_in_parts(worker, graph)
            assert y.tolist() == [number] * COUNT


def whole(kind, worker, x, y):
    """Return a graph that has what cannot go in parts."""
    copy = worker.register(copy_to)
    here = worker.register(far_side.add_to) if kind == "a task of this machine" else None
    add = worker.register(RemoteCallable(far_side.name(far_side.add_first)))

    def orchestrate(orch, args, config):
        for _ in range(4):
            orch.submit_sub(copy, make_args((x, INPUT), (y, INOUT)))
        if kind == "a group":
            orch.submit_next_level_group(add, [make_args((x, INPUT), (y, INOUT))])
        elif kind == "a configuration":
            orch.submit_next_level(add, make_args((x, INPUT), (y, INOUT)), CallConfig(block_dim=2))
        elif kind == "an orchestration function":
            orch.submit_next_level(add, make_args((x, INPUT), (y, INOUT)))
        elif kind == "overlapping tiles":
            made = orch.alloc((2 * COUNT,), np.float32)
            for start in 0, COUNT // 2:
                tile = made.data + 4 * start
                tile = type(made).make(tile, (COUNT,), made.dtype)
                orch.submit_sub(copy, make_args((x, INPUT), (tile, INOUT)))
                orch.submit_sub(copy, make_args((tile, INPUT), (y, INOUT)))
        elif kind == "a task of this machine":
            orch.submit_sub(here, make_args((x, INPUT), (y, INOUT)))

    return worker.record(orchestrate)


KINDS = (
    "a group",
    "a configuration",
    "an orchestration function",
    "overlapping tiles",
    "a task of this machine",
)


@pytest.fixture(scope="module")
def mixed():
    """A Worker with an endpoint, and a sub worker of its own."""
    worker = Worker(level=4, num_sub_workers=1)
    from simpler_ref import RemoteWorkerSpec

    worker.add_remote_worker(RemoteWorkerSpec(num_sub_workers=1, serialized=True))
    with worker:
        worker.start()
        yield worker


@pytest.mark.spec("SPEED-PARTS-5")
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_with_other_things_are_replayed_task_by_task(kind, mixed):
    x, y = (mixed.share(np.full(COUNT, i, np.float32)) for i in (1, 2))
    register = mixed.register

    def registered(function):
        if function is copy_to:
            name = RemoteCallable(f"{copy_to.__module__}:{copy_to.__name__}")
            return register(name, workers=[0], inner=True)
        return register(function)

    mixed.register = registered
    try:
        graph = whole(kind, mixed, x, y)
    finally:
        del mixed.register
    added = kind in KINDS[:3] or kind == KINDS[4]
    for number in range(3):
        x[:] = number
        assert not is_in_parts(mixed, graph)
        assert y.tolist() == [(1 + added) * number] * COUNT


# ---------------------------------------------------------------- failures
@pytest.fixture
def two():
    with endpoints(silence_s=2.0) as worker:
        yield worker


def again(graph, number, x, y):
    """Replay a graph whose last number made it fail."""
    for _ in range(2):
        a, b = x[0], y[0]
        graph.run(make_args((x, INOUT), (y, INOUT), scalars=[number]))
        assert sorted((x[0], y[0])) == sorted((a, b))


@pytest.mark.spec("SPEED-PARTS-6")
def test_a_task_that_fails_ends_all_parts_and_not_the_next_replays(two):
    graph, x, y = sides(two, part_programs.fail_if_negative, steps=3)
    for _ in range(2):
        graph.run()
    for _ in range(2):
        with pytest.raises(TaskError, match=r"endpoint 1 .*no -1") as caught:
            graph.run(make_args((x, INOUT), (y, INOUT), scalars=[-1]))
        assert "fail_if_negative" in str(caught.value.__cause__) + "".join(
            getattr(caught.value, "__notes__", [])
        ) + str(caught.value.remote_traceback)
        again(graph, 1, x, y)


@pytest.mark.spec("SPEED-PARTS-6")
def test_what_was_to_be_pushed_by_a_task_that_cannot_start_ends_the_replay():
    with endpoints() as worker:
        works, fails = (
            at(worker, one, 0) for one in (part_programs.sleep_ms, part_programs.fail_if_negative)
        )
        joins, reads = at(worker, copy_to, 0), at(worker, part_programs.copy_there, 1)
        x, y = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2))

        def orchestrate(orch, args, config):
            late = make_args((x, INPUT), (fresh(), OUTPUT), scalars=[50])
            orch.submit_sub(works, late)
            failing = make_args((x, INPUT), (fresh(), OUTPUT), scalars=[args.scalar(0)])
            orch.submit_sub(fails, failing)
            both = (failing.tensor(1), INPUT), (fresh(), OUTPUT), (late.tensor(1), INPUT)
            joined = make_args(*both)
            orch.submit_sub(joins, joined)
            orch.submit_sub(reads, make_args((joined.tensor(1), INPUT), (y, EXISTING)))

        graph = worker.record(orchestrate, make_args(scalars=[1]))
        graph.run()
        for number in range(4):
            y[:] = 0
            if number % 2:
                with pytest.raises(TaskError, match=r"no -1"):
                    graph.run(make_args(scalars=[-1]))
            else:
                graph.run()
                assert y.tolist() == x.tolist()
            assert graph._went_in_parts


@pytest.mark.spec("SPEED-PARTS-6")
@pytest.mark.spec("SPEED-PARTS-7")
def test_a_session_that_is_lost_in_a_replay_ends_it_and_the_next_has_a_new_one(two):
    graph, x, y = sides(two, part_programs.kill_if_negative, steps=3)
    for _ in range(2):
        graph.run()
    before, was = [one["session"] for one in two.endpoints()], (set(x), set(y))
    with pytest.raises((TaskError, WorkerLostError), match="endpoint 1"):
        graph.run(make_args((x, INOUT), (y, INOUT), scalars=[-two.endpoints()[1]["pid"]]))
    assert (set(x), set(y)) == was
    again(graph, 1, x, y)
    after = [one["session"] for one in two.endpoints()]
    assert after[0] == before[0]
    assert after[1] != before[1]


@pytest.mark.spec("REMOTE-COPY-8")
@pytest.mark.parametrize("how", ["before it ran", "before it was done"])
def test_a_graph_whose_only_endpoint_was_lost_is_replayed_with_the_arrays_as_they_were(how):
    with endpoints(1) as worker:
        x, y = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2))
        handle = worker.register(part_programs.kill_if_negative)

        def orchestrate(orch, args, config):
            for source, to in ((x, y), (y, x)):
                task = make_args((source, INPUT), (to, INOUT), scalars=[args.scalar(0)])
                orch.submit_sub(handle, task)

        graph = worker.record(orchestrate, make_args(scalars=[1]))
        for _ in range(2):
            graph.run()
        x[:], y[:] = 3, 4
        pid = worker.endpoints()[0]["pid"]
        if how == "before it ran":
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            while True:  # until the loss is seen
                graph.run(make_args(scalars=[1 if how == "before it ran" else -pid]))
        for _ in range(2):
            graph.run()
            assert graph._went_in_parts
        assert set(x) == set(y) == {3}


@pytest.mark.spec("REMOTE-COPY-8")
def test_an_array_of_which_a_part_had_come_home_when_the_endpoint_was_lost_is_lost(
    monkeypatch, tmp_path
):
    path = tmp_path / "armed"
    taker = lines.ZmqLine._taker

    def dying(self, firsts, memories):
        take = taker(self, firsts, memories)

        def take_and_die(header):
            take(header)
            if path.exists() and 0 < header.at < firsts[0].nbytes // 2:
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)  # a link

        return take_and_die

    monkeypatch.setattr(lines.ZmqLine, "_taker", dying)
    with endpoints(1) as worker:
        handle = worker.register(copy_to)
        source, large = (worker.share(np.full(8 * LARGE, i, np.float32)) for i in (1, 2))
        x, y = (worker.share(np.full(COUNT, i, np.float32)) for i in (3, 4))

        def orchestrate(orch, args, config):
            orch.submit_sub(handle, make_args((source, INPUT), (large, EXISTING)))
            orch.submit_sub(handle, make_args((x, INPUT), (y, INOUT)))

        graph = worker.record(orchestrate)
        for _ in range(2):
            graph.run()
        source[:], x[:] = 5, 6
        path.touch()
        with pytest.raises(WorkerLostError):
            graph.run()
        assert graph._went_in_parts
        assert set(large) == {1, 5}
        assert len(set(y)) == 1
        read = worker.register(part_programs.copy_there)
        with pytest.raises(RemoteError, match="is lost"):
            worker.run(
                lambda orch, args, config: orch.submit_sub(
                    read, make_args((large, INPUT), (source, EXISTING))
                )
            )
        graph.run()
        assert set(large) == {5}
        assert set(y) == {6}


@pytest.mark.spec("SPEED-PARTS-6")
def test_an_endpoint_that_is_stopped_ends_the_replay(two):
    graph, x, y = sides(two, part_programs.sleep_ms, steps=3)
    for _ in range(2):
        graph.run()
    pid = two.endpoints()[1]["pid"]
    stop = threading.Timer(0.2, os.kill, (pid, signal.SIGSTOP))
    stop.start()
    with pytest.raises((TaskError, WorkerLostError), match="endpoint 1"):
        graph.run(make_args((x, INOUT), (y, INOUT), scalars=[1000]))
    stop.join()
    again(graph, 0, x, y)
    assert not psutil.pid_exists(pid)


@pytest.mark.spec("SPEED-PARTS-6")
def test_a_signal_in_a_replay_ends_it(two):
    graph, x, y = sides(two, part_programs.sleep_ms, steps=3)
    for _ in range(2):
        graph.run()
    with pytest.raises(Terminated), terminated_after(0.2):
        graph.run(make_args((x, INOUT), (y, INOUT), scalars=[1500]))
    again(graph, 0, x, y)


@pytest.mark.spec("SPEED-PARTS-6")
@pytest.mark.timeout(40)
def test_a_signal_ends_a_part_that_waits_for_no_other():
    with endpoints(1) as worker:
        sleep = worker.register(part_programs.sleep_ms)
        x, y = (worker.share(np.zeros(COUNT, np.float32)) for _ in range(2))

        def orchestrate(orch, args, config):
            for _ in range(400):
                task = make_args((x, INPUT), (y, INOUT), scalars=[args.scalar(0)])
                orch.submit_sub(sleep, task)

        graph = worker.record(orchestrate, make_args(scalars=[0]))
        for _ in range(2):
            graph.run()
        with pytest.raises(Terminated), terminated_after(0.2):
            graph.run(make_args(scalars=[200]))  # all of them would take 80 s
        worker.renew(y)
        x[:] = 3
        graph.run()
        assert y.tolist() == [3] * COUNT


# ---------------------------------------------------------------- what sessions keep
@pytest.mark.spec("SPEED-PARTS-7")
def test_a_part_travels_once_and_is_forgotten_with_its_graph(two, monkeypatch):
    asked = []
    encode = parts.PART_REQUEST.encode

    def noting(request):
        asked.append(request)
        return encode(request)

    monkeypatch.setattr(parted.PART_REQUEST, "encode", noting)
    graph, _, _ = sides(two, copy_to_slowly)
    for _ in range(4):
        graph.run()
    assert [bool(one.part) for one in asked] == [True, True, False, False, False, False]
    number = asked[0].number
    del graph
    gc.collect()
    asked.clear()
    graph, _x, _y = sides(two, copy_to_slowly)
    for _ in range(3):
        graph.run()
    assert [number in one.forgotten for one in asked] == [True, True, False, False]


@pytest.mark.spec("SPEED-PARTS-7")
def test_buffers_have_memory_at_endpoints_alone_and_only_meanwhile(two):
    handle = two.register(copy_to)
    x = two.share(np.ones(1 << 16, np.float32))

    def orchestrate(orch, args, config):
        source = x
        for _ in range(30):
            task = make_args((source, INPUT), (fresh(1 << 16), OUTPUT))
            orch.submit_sub(handle, task)
            source = task.tensor(1)
        orch.submit_sub(handle, make_args((source, INPUT), (x, INOUT)))

    graph = two.record(orchestrate)
    graph.run()
    for _ in range(3):
        assert graph.run().ring_peak_bytes == (0, 0, 0, 0)
    held = [one["copy_bytes"] for one in two.transfers()]
    assert max(held) <= 2 * x.nbytes
