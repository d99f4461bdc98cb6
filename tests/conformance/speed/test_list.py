"""SPEED-LIST: recorded graphs at endpoints."""

import gc
import os
import random
import re
import signal
import threading

import numpy as np
import pytest

from simpler_ref import (
    CallConfig,
    RemoteCallable,
    RemoteWorkerSpec,
    TaskError,
    Worker,
    WorkerLostError,
)
from simpler_ref.remote import replays
from tests import far_side, list_programs
from tests.endpoints import EXISTING, INOUT, INPUT, OUTPUT, Moody
from tests.list_programs import COUNT, at, copy_to, endpoints, fresh, sides
from tests.support import Terminated, make_args, sample, terminated_after


def goes_by_lists(worker, graph, args=None):
    """Replay a graph, and say whether that went by lists."""
    frames = sum(list_programs.frames_of(worker, lambda: graph.run(args)))
    assert not graph._went_by_lists or frames < graph.tasks
    return graph._went_by_lists


def chain(worker, length=6, count=COUNT):
    """Return a graph of tasks for endpoints that copy an array, and both arrays."""
    handle = worker.register(list_programs.copy_anywhere)
    x, y = (worker.share(np.full(count, i, np.float32)) for i in (1, 2))

    def orchestrate(orch, args, config):
        for _ in range(length):
            orch.submit_sub(handle, make_args((x, INPUT), (y, INOUT)))

    return worker.record(orchestrate), x, y


# ---------------------------------------------------------------- replays
@pytest.fixture(scope="module")
def w():
    """Give a Worker over two endpoints, to which frames and tensors go encrypted."""
    with endpoints(secure=True) as worker:
        worker.blend = worker.register(list_programs.blend)
        worker.start()
        yield worker


@pytest.mark.spec("SPEED-LIST-1", "SPEED-LIST-4")
@pytest.mark.parametrize("seed", sample(range(8), 2))
def test_random_programs_are_replayed_by_lists_unless_arrays_share_memory(seed, w):
    numbers = np.random.default_rng(seed)
    ops = list_programs.drawn(random.Random(seed), 40, arrays=3)
    arrays = list_programs.fresh_arrays(w, numbers, 3)

    def orchestrate(orch, args, config):
        list_programs.submit_all(ops, orch, [w.blend], args)

    graph = w.record(orchestrate, list_programs.arguments(arrays, 1, 0.5))
    for number in range(4):
        if number == 3:
            arrays = list_programs.fresh_arrays(w, numbers, 3)
        args = list_programs.arguments(arrays, number, number / 4)
        expected = list_programs.computed(ops, arrays, number, np.float32(number / 4))
        assert goes_by_lists(w, graph, args) == (number > 0)
        for one, right in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-5)
    assert not goes_by_lists(w, graph, list_programs.arguments([*arrays[:2], arrays[0]], 1, 0.5))


# ---------------------------------------------------------------- where, and what moves
@pytest.mark.spec("SPEED-LIST-2")
def test_placements_are_tried_and_the_fastest_stays(w):
    graph, x, y = chain(w, 8)
    graph.run()
    used = []
    for number in range(16):
        x[:] = number
        graph.run()
        assert y.tolist() == [number] * COUNT
        used.append(graph._listed.way)
    ways = graph._listed.ways
    tried = replays.TRIES * len(ways)
    assert all(len(one.took_s) == replays.TRIES for one in ways)
    best_s = [min(one.took_s[1:]) for one in ways]
    assert all(min(one.took_s[1:]) == min(best_s) for one in used[tried:])


@pytest.mark.spec("SPEED-LIST-3")
def test_each_version_goes_once_to_an_endpoint_that_reads_it(w):
    makes, reads = at(w, copy_to, 0), at(w, list_programs.copy_there, 1)
    x = w.share(np.ones(COUNT, np.float32))
    results = [w.share(np.zeros(COUNT, np.float32)) for _ in range(3)]

    def orchestrate(orch, args, config):
        task = make_args((x, INPUT), (fresh(), OUTPUT))
        orch.submit_sub(makes, task)
        for one in results:
            orch.submit_sub(reads, make_args((task.tensor(1), INPUT), (one, EXISTING)))

    graph = w.record(orchestrate)
    for _ in range(2):
        graph.run()
    before = [one["transfers"] for one in w.transfers()]
    x[:] = 5
    graph.run()
    after = [one["transfers"] for one in w.transfers()]
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, 1]
    assert [one[0] for one in results] == [5] * 3


# ---------------------------------------------------------------- task by task
@pytest.mark.spec("SPEED-LIST-2", "SPEED-LIST-4")
def test_where_one_placement_has_no_room_the_other_is_taken():
    with endpoints(2, options={"arena_size": 1 << 20}) as worker:
        handle = worker.register(list_programs.copy_anywhere)
        pairs = [[worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2)] for _ in range(2)]

        def orchestrate(orch, args, config):
            for x, y in pairs * 3:
                orch.submit_sub(handle, make_args((x, INPUT), (y, INOUT)))

        graph = worker.record(orchestrate)
        graph.run()
        graph.run()
        assert {part.place for part in graph._listed.way.parts} == {0, 1}
        worker.remote_malloc(worker=1, nbytes=(1 << 20) - (1 << 10))
        pairs[0][0][:] = 3
        assert goes_by_lists(worker, graph)
        assert pairs[0][1].tolist() == [3] * COUNT
        assert {part.place for part in graph._listed.way.parts} == {0}


@pytest.mark.spec("SPEED-LIST-4")
def test_where_an_endpoint_has_no_room_for_a_list_it_goes_task_by_task():
    room = 1 << 23
    with endpoints(2, options={"arena_size": room}, heap_ring_size=1 << 18) as worker:
        handles = at(worker, copy_to, 0), at(worker, list_programs.copy_there, 1)
        x, y = (worker.share(np.full(COUNT << 8, i, np.float32)) for i in (1, 2))

        def orchestrate(orch, args, config):
            for _ in range(100):
                with orch.scope():
                    made = x
                    for _ in range(2):
                        task = make_args((made, INPUT), (fresh(x.size), OUTPUT))
                        orch.submit_sub(handles[0], task)
                        made = task.tensor(1)
                    orch.submit_sub(handles[1], make_args((made, INPUT), (y, INOUT)))

        graph, (small, _, _) = worker.record(orchestrate), chain(worker)
        graph.run()
        for number, (nbytes, fits) in enumerate([(1 << 16, True), (room - (1 << 20), False)]):
            small.run()  # so the endpoint has nothing of the other one
            buffer = worker.remote_malloc(worker=0, nbytes=nbytes)
            x[:] = number
            assert goes_by_lists(worker, graph) == fits
            assert set(y.tolist()) == {number}
            worker.remote_free(buffer)
        assert goes_by_lists(worker, graph)


@pytest.mark.spec("SPEED-LIST-5")
@pytest.mark.parametrize("option", ["check", "track_reads"])
def test_workers_that_check_replay_task_by_task(option):
    with endpoints(1, **{option: True}) as worker:
        graph, x, y = chain(worker)
        for number in range(2):
            x[:] = number
            assert not goes_by_lists(worker, graph)
            assert y.tolist() == [number] * COUNT


@pytest.mark.spec("SPEED-LIST-1", "REMOTE-RETRY-1")
@pytest.mark.slow("starts the session of an endpoint twice")
def test_a_replay_whose_endpoint_is_lost_goes_on_with_retries():
    with endpoints(retries=1) as worker:
        graph, x, y = sides(worker, list_programs.sleep_ms, steps=3)
        for _ in range(2):
            graph.run()
        pid, before = worker.endpoints()[1]["pid"], sorted((x[0], y[0]))
        killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
        killer.start()
        graph.run(make_args((x, INOUT), (y, INOUT), scalars=[700]))
        killer.join()
        assert graph._went_by_lists and sorted((x[0], y[0])) == before
        assert worker.endpoints()[1]["pid"] != pid
        graph.run(make_args((x, INOUT), (y, INOUT), scalars=[0]))
        assert sorted((x[0], y[0])) == before


@pytest.mark.spec("SPEED-LIST-4", "REMOTE-RETRY-3")
@pytest.mark.slow("starts two endpoints, and waits for one that does not start again")
def test_a_replay_goes_on_task_by_task_where_too_few_endpoints_are_left(tmp_path):
    file = tmp_path / "no more"
    with endpoints(retries=1, fleet=Moody(file)) as worker:
        handle = worker.register(list_programs.sleep_ms)
        given = [worker.share(np.full(COUNT, i, np.float32)) for i in range(4)]

        def orchestrate(orch, args, config):
            for i in range(2):
                middle = make_args((args.tensor(i), INPUT), (fresh(), OUTPUT), scalars=[0])
                orch.submit_sub(handle, middle)
                last = (middle.tensor(1), INPUT), (args.tensor(2 + i), INOUT)
                orch.submit_sub(handle, make_args(*last, scalars=[args.scalar(0)]))

        def arguments_of(ms):
            return make_args(*((one, INOUT) for one in given), scalars=[ms])

        graph = worker.record(orchestrate, arguments_of(0))
        for _ in range(2):
            graph.run()
        pid = worker.endpoints()[0]["pid"]
        file.touch()
        killer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
        killer.start()
        for one in given[2:]:
            one[:] = -1
        graph.run(arguments_of(600))
        killer.join()
        assert [one[0] for one in given] == [0, 1, 0, 1]
        assert [one["alive"] for one in worker.endpoints()] == [False, True]


@pytest.mark.spec("SPEED-LIST-6", "REMOTE-RETRY-1")
@pytest.mark.slow("starts the session of an endpoint twice")
def test_a_replay_that_fails_for_good_loses_arrays_of_the_program_only():
    with endpoints(retries=1) as worker:
        graph, x, y = sides(worker, list_programs.kill_session, steps=3)
        for _ in range(2):
            graph.run()
        with pytest.raises(WorkerLostError, match="endpoint 1") as caught:
            graph.run(make_args((x, INOUT), (y, INOUT), scalars=[1]))
        spans = {one.ctypes.data for one in (x, y)}
        lost = {int(one, 16) for one in re.findall(r"bytes at (0x[0-9a-f]+)", caught.value.story)}
        assert lost <= spans
        for one in x, y:
            worker.renew(one)
        again(graph, 0, x, y)


@pytest.fixture(scope="module")
def mixed():
    """A Worker with an endpoint, and a sub worker of its own."""
    worker = Worker(level=4, num_sub_workers=1)
    worker.add_remote_worker(RemoteWorkerSpec(num_sub_workers=1, serialized=True))
    with worker:
        worker.start()
        yield worker


OTHER_THINGS = ["a group", "a configuration", "an orchestration function", "overlapping tiles"]
OTHER_THINGS += ["a task of this machine"]


@pytest.mark.spec("SPEED-LIST-5")
@pytest.mark.parametrize("kind", OTHER_THINGS)
def test_graphs_with_other_things_are_replayed_task_by_task(kind, mixed):
    copy, here = at(mixed, copy_to, 0), mixed.register(far_side.add_to)
    add = mixed.register(RemoteCallable(far_side.name(far_side.add_first)))
    x, y = (mixed.share(np.full(COUNT, i, np.float32)) for i in (1, 2))

    def orchestrate(orch, args, config):
        for _ in range(4):
            orch.submit_sub(copy, make_args((x, INPUT), (y, INOUT)))
        args = make_args((x, INPUT), (y, INOUT))
        if kind == "a group":
            orch.submit_next_level_group(add, [args])
        elif kind == "a configuration":
            orch.submit_next_level(add, args, CallConfig(block_dim=2))
        elif kind == "an orchestration function":
            orch.submit_next_level(add, args)
        elif kind == "a task of this machine":
            orch.submit_sub(here, args)
        else:
            made = orch.alloc((2 * COUNT,), np.float32)
            for start in 0, COUNT // 2:
                tile = type(made).make(made.data + 4 * start, (COUNT,), made.dtype)
                orch.submit_sub(copy, make_args((x, INPUT), (tile, INOUT)))
                orch.submit_sub(copy, make_args((tile, INPUT), (y, INOUT)))

    graph, added = mixed.record(orchestrate), kind != "overlapping tiles"
    for number in range(2):
        x[:] = number
        assert not goes_by_lists(mixed, graph)
        assert y.tolist() == [(1 + added) * number] * COUNT


@pytest.mark.spec("SPEED-LIST-1")
@pytest.mark.parametrize(("scalars", "tensors"), [(256, 128), (900, 1)])
def test_replays_have_all_scalars_that_the_graph_has(scalars, tensors, w):
    arrays = [w.zeros(COUNT, np.float32) for _ in range(tensors)]

    def orchestrate(orch, args, config):
        numbers = 0, tensors, args.scalar(scalars - 1), 1.0
        for _ in range(2):
            orch.submit_sub(w.blend, make_args(*((one, INOUT) for one in arrays), scalars=numbers))

    graph = w.record(orchestrate, make_args(scalars=range(scalars)))
    for start in range(2):
        args = make_args(scalars=range(start, start + scalars))
        arrays[-1][:] = 0
        graph.run(args)
        assert graph._went_by_lists == (start > 0)
        assert arrays[-1].tolist() == [3 * (start + scalars - 1) % 1009] * COUNT


# ---------------------------------------------------------------- failures
def again(graph, number, x, y):
    """Replay a graph whose last number made it fail."""
    for _ in range(2):
        a, b = x[0], y[0]
        graph.run(make_args((x, INOUT), (y, INOUT), scalars=[number]))
        assert sorted((x[0], y[0])) == sorted((a, b))


@pytest.mark.spec("SPEED-LIST-6")
def test_a_task_that_fails_ends_all_lists_and_not_the_next_replays(w):
    graph, x, y = sides(w, list_programs.fail_if_negative, steps=3)
    for _ in range(2):
        graph.run()
    for _ in range(2):
        with pytest.raises(TaskError, match=r"endpoint 1 .*no -1") as caught:
            graph.run(make_args((x, INOUT), (y, INOUT), scalars=[-1]))
        assert "fail_if_negative" in str(caught.value.__cause__) + "".join(
            getattr(caught.value, "__notes__", [])
        ) + str(caught.value.remote_traceback)
        again(graph, 1, x, y)


@pytest.mark.spec("SPEED-LIST-6")
def test_a_signal_in_a_replay_ends_it(w):
    graph, x, y = sides(w, list_programs.sleep_ms, steps=3)
    for _ in range(2):
        graph.run()
    with pytest.raises(Terminated), terminated_after(0.2):
        graph.run(make_args((x, INOUT), (y, INOUT), scalars=[1500]))
    again(graph, 0, x, y)


# ---------------------------------------------------------------- what sessions keep
@pytest.mark.spec("SPEED-LIST-7")
def test_a_list_is_registered_once_and_forgotten_after_its_graph(w):
    graph, _, _ = sides(w, list_programs.copy_slowly)
    graph.run()
    live, handles = w._life.registry.is_live, []
    for number in range(4):
        frames = sum(list_programs.frames_of(w, graph.run))
        handles.append(graph._listed.way.handle)
        assert live(handles[-1]) and (number == 0) == (frames > len(graph._listed.way.parts))
    del graph
    gc.collect()
    graph, _x, _y = sides(w, list_programs.copy_slowly)
    for _ in range(2):
        graph.run()
    assert not live(handles[0])


@pytest.mark.spec("SPEED-LIST-7")
def test_a_list_that_is_known_already_runs_what_its_functions_are_now(w):
    x, y = (w.share(np.full(COUNT, i, np.float32)) for i in (1, 2))
    graphs = []
    for number in range(2):
        handle = w.register(list_programs.copy_again)

        def orchestrate(orch, args, config, handle=handle):
            for _ in range(6):
                orch.submit_sub(handle, make_args((x, INPUT), (y, INOUT)))

        graphs.append(w.record(orchestrate))
        for k in range(3):
            x[:] = 10 * number + k
            assert goes_by_lists(w, graphs[-1]) == (k > 0)
            assert y.tolist() == x.tolist()
        w.unregister(handle)
    first, second = (one._listed.way.handle.digest for one in graphs)
    assert first == second
