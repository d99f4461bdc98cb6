"""SPEED-REPLAY: recorded graphs."""

import gc
import random
import weakref

import numpy as np
import pytest

from simpler_ref import (
    CallConfig,
    ContinuousTensor,
    Graph,
    RemoteCallable,
    RemoteTensorRef,
    RingFullError,
    TaskArgs,
    TaskError,
    Worker,
)
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from simpler_ref.task_interface import make_tensor
from tests import far_side, list_programs
from tests.endpoints import COUNT, INOUT, INPUT, Program
from tests.support import Terminated, make_args, sample, terminated_after

KIB = 1024


def add(args):
    """The last tensor grows by the sum of the others, plus the scalars."""
    *read, written = [args.tensor(i).numpy() for i in range(args.tensor_count())]
    written += sum(read) + sum(args.scalar(i) for i in range(args.scalar_count()))


def fill(args):
    args.tensor(0).numpy().fill(args.scalar(0))


def tensor(data, length=3, dtype="uint8", child_memory=False):
    return ContinuousTensor.make(data, (length,), dtype, child_memory)


def output(nbytes):
    return tensor(0, nbytes)


@pytest.fixture(scope="module")
def w():
    with Worker(3, num_sub_workers=1, heap_ring_size=64 * KIB) as made:
        made.add = made.register(add)
        made.set = made.register(fill)
        made.start()
        yield made


def numbers(w, *values):
    """Return shared arrays of three numbers each."""
    return [w.share(np.full(3, value, np.int64)) for value in values]


@pytest.mark.spec("SPEED-REPLAY-1")
def test_recording_calls_the_function_once_and_starts_nobody():
    calls = []

    def orch_fn(orch, args, config):
        calls.append((args, config.block_dim))
        orch.submit_sub(handle, make_args((x, T.INOUT), scalars=[1]))
        with orch.scope():
            orch.alloc(10, "uint8")

    with Worker(3, num_sub_workers=1) as w:
        handle, (x,) = w.register(add), numbers(w, 1)
        graph = w.record(orch_fn, ("thing", 5), CallConfig(block_dim=3))
        assert isinstance(graph, Graph)
        assert (graph.tasks, w.worker_pids(), x.tolist()) == (2, [], [1, 1, 1])
        with pytest.raises(TypeError, match="not recorded with TaskArgs"):
            graph.run(TaskArgs())
        assert ([graph.run().tasks for _ in range(3)], x.tolist()) == ([2, 2, 2], [4, 4, 4])
        assert calls == [(("thing", 5), 3)]


MISFITS = [
    (lambda x, y: make_args((x, T.INPUT), scalars=[1]), "has 1 tensors, the recording has 2"),
    (lambda x, y: bound(x, y, 1, 2), "args has 2 scalars, the recording has 1"),
    (lambda x, y: bound(x, y[:2], 1), r"1 of args is \(2,\) INT64, the recording has \(3,\) INT64"),
    (lambda x, y: bound(x.view("u8"), y, 1), r"0 of args is \(3,\) UINT64, the recording has \(3,"),
    (
        lambda x, y: bound(x, tensor(64, 3, "int64", True), 1),
        "1 of .* INT64 in child memory, the rec",
    ),
    (
        lambda x, y: bound(x, tensor(0, 3, "int64"), 1),
        r"1 of args is \(3,\) INT64 without address, the",
    ),
    (lambda x, y: (x, y), r"must be TaskArgs of your own, not tuple"),
]


def bound(x, y, *scalars):
    return make_args((x, T.INPUT), (y, T.OUTPUT), scalars=scalars)


@pytest.mark.spec("SPEED-REPLAY-3")
def test_args_that_do_not_fit_are_refused_and_nothing_runs(w):
    x, y = numbers(w, 1, 2)
    args = make_args((x, T.INPUT), (y, T.INOUT), scalars=[1])
    graph = w.record(lambda orch, args, _: orch.submit_sub(w.add, args), args)
    for make, message in MISFITS:
        with pytest.raises((TypeError, ValueError), match=message):
            graph.run(make(x, y))
    with Worker(3, arena_size=1 << 20) as late:
        (newer,) = numbers(late, 1)
        with pytest.raises(ValueError, match="after the workers were started"):
            graph.run(make_args((x, T.INPUT), (newer, T.INOUT), scalars=[1]))
    assert y.tolist() == [2, 2, 2]
    graph.run()
    assert y.tolist() == [4, 4, 4]


@pytest.mark.spec("SPEED-REPLAY-6")
def test_memory_of_a_recording_cannot_be_read_or_written(w):
    kept = []

    def orch_fn(orch, args, config):
        made = make_args((output(8), T.OUTPUT))
        orch.submit_sub(w.add, made)
        kept.extend([orch.alloc(8, "uint8"), made.tensor(0)])
        for tensor in kept:
            with pytest.raises(ValueError, match="part of a recording"):
                tensor.numpy()

    w.record(orch_fn)
    for tensor in kept:
        with pytest.raises(ValueError, match="part of a recording"):
            tensor.numpy()


@pytest.mark.spec("SPEED-REPLAY-1")
def test_what_cannot_be_recorded_and_what_no_run_would_accept_is_refused(w):
    caught, kept = [], []

    def refused(kind, message, call, *args, **more):
        with pytest.raises(kind, match=message):
            call(*args, **more)
        caught.append(message)

    def orch_fn(orch, args, config):
        kept.append(orch)
        for method, *sizes in (
            *(("malloc", 0, 8), ("free", 0, 8), ("copy_to", 0, 8, 8, 8), ("copy_from", 0, 8, 8, 8)),
            *(("drain",), ("live_tasks",)),
        ):
            refused(RuntimeError, "cannot be recorded", getattr(orch, method), *sizes)
        refused(RuntimeError, "cannot be recorded", lambda: orch.ring)
        refused(TypeError, "submit_sub expects a CallableHandle", orch.submit_sub, add)
        refused(TypeError, "args must be a TaskArgs", orch.submit_sub, w.add, "x")
        refused(KeyError, "was unregistered", orch.submit_sub, gone)
        refused(KeyError, "does not belong", orch.submit_sub, foreign)
        refused(RuntimeError, "no next-level workers", orch.submit_next_level, w.add)
        refused(ValueError, "needs as many workers", orch.submit_sub_group, w.add, [TaskArgs()] * 2)
        refused(RuntimeError, "exceeds per-ring heap size", orch.alloc, 65 * KIB, "uint8")
        big = make_args((output(65 * KIB), T.OUTPUT))
        refused(RuntimeError, "heap size: 66560 bytes", orch.submit_sub, w.add, big)
        long = make_args(scalars=range(1900))
        refused(ValueError, "take 15208 bytes", orch.submit_sub, w.add, long)
        refused(ValueError, "take 15208 bytes", orch.submit_sub_group, w.add, [long])
        refused(RuntimeError, "scope_end without scope_begin", orch.scope_end)
        for _ in range(64):
            orch.scope_begin()
        refused(RuntimeError, "64 scopes are open", orch.scope_begin)

    gone = w.register(lambda: None)
    w.unregister(gone)
    with Worker(3, num_sub_workers=1) as other:
        foreign = other.register(lambda: 1)
        graph = w.record(orch_fn)
    assert (len(caught), graph.tasks, graph.run().tasks) == (19, 0, 0)
    refused(RuntimeError, "run has ended", kept[0].submit_sub, w.add)
    refused(TypeError, "record expects an orchestration function", w.record, 17)


@pytest.mark.spec("SPEED-REPLAY-2")
def test_a_callable_that_is_unregistered_is_refused_by_a_replay(w):
    (x,) = numbers(w, 0)
    mine = w.register(add)

    def orch_fn(orch, args, config):
        orch.submit_sub(w.add, make_args((x, T.INOUT), scalars=[1]))
        orch.submit_sub(mine, make_args((x, T.INOUT), scalars=[1]))

    graph = w.record(orch_fn)
    graph.run()
    w.unregister(mine)
    with pytest.raises(KeyError, match="was unregistered"):
        graph.run()
    assert x.tolist() == [2, 2, 2]


@pytest.mark.spec("SPEED-REPLAY-2")
@pytest.mark.parametrize("limit", [{"heap_ring_size": 8 * KIB}, {"task_window": 4}], ids=str)
def test_a_replay_waits_for_room(limit):
    with Worker(3, num_sub_workers=2, **limit) as w:
        handle, x = w.register(add), w.share(np.zeros(3, np.uint8))

        def orch_fn(orch, args, config):
            for _ in range(20):
                with orch.scope():
                    buffer = orch.alloc(3 * KIB, "uint8")
                    tile = (tensor(buffer.data), T.INPUT)
                    orch.submit_sub(handle, make_args(tile, (x, T.INOUT), scalars=[1]))

        graph = w.record(orch_fn)
        for _ in range(2):
            assert graph.run().tasks == 40


@pytest.mark.spec("SPEED-REPLAY-2")
@pytest.mark.parametrize(("patience_s", "error"), [(0.05, RingFullError), (1000, Terminated)])
def test_without_room_in_time_or_at_a_signal_a_replay_ends(patience_s, error):
    with Worker(3, heap_ring_size=8 * KIB, alloc_timeout_s=patience_s) as w:

        def orch_fn(orch, args, config):
            orch.alloc(8 * KIB, "uint8")
            orch.alloc(2 * KIB, "uint8")

        graph = w.record(orch_fn)
        for _ in range(2):
            with (
                pytest.raises(error) as caught,
                terminated_after(0.2 if error is Terminated else 1000),
            ):
                graph.run()
        if error is RingFullError:
            assert "ring 0 (8192 bytes) had no room for 2048" in str(caught.value)
        assert w.record(lambda orch, *_: orch.alloc(8 * KIB, "uint8")).run().tasks == 1


@pytest.mark.spec("SPEED-REPLAY-2")
def test_a_task_that_fails_in_a_replay_makes_it_raise(w):
    (x,) = numbers(w, 0)

    def picky(args):
        if args.scalar(0) > 5:
            raise ValueError(f"{args.scalar(0)} is too much")
        add(args)

    handle = w.register(picky)

    def orch_fn(orch, args, config):
        for _ in range(3):
            task = make_args((args.tensor(0), T.INOUT))
            task.add_scalar(args.scalar(0))
            orch.submit_sub(handle, task)

    graph = w.record(orch_fn, make_args((x, T.INOUT), scalars=[2]))
    graph.run()
    with pytest.raises(TaskError, match="8 is too much") as caught:
        graph.run(make_args((x, T.INOUT), scalars=[8]))
    assert caught.value.task == 0
    graph.run()
    assert x.tolist() == [12, 12, 12]


@pytest.mark.spec("SPEED-REPLAY-1")
def test_replays_and_recordings_during_a_run_or_a_recording_are_refused(w):
    graph, refused = w.record(lambda *_: None), []

    def orch_fn(orch, args, config):
        for call in (
            graph.run,
            lambda: w.record(lambda *_: None),
            lambda: w.run(lambda *_: None),
            w.close,
        ):
            with pytest.raises(RuntimeError, match=r"a run is in progress|during a run"):
                call()
            refused.append(call)

    w.run(orch_fn)
    w.record(orch_fn).run()
    assert len(refused) == 8


@pytest.mark.spec("SPEED-REPLAY-1")
def test_on_a_closed_worker_both_are_refused():
    worker = Worker(3, num_sub_workers=1)
    with pytest.raises(RuntimeError, match="not initialized"):
        worker.record(lambda *_: None)
    with worker:
        graph = worker.record(lambda *_: None)
        graph.run()
    for call in (graph.run, lambda: worker.record(lambda *_: None)):
        with pytest.raises(RuntimeError, match="this Worker is closed"):
            call()


@pytest.mark.spec("SPEED-REPLAY-6")
def test_arrays_live_as_long_as_the_graph_and_replays_leave_nothing_behind(w):
    seen = []
    (x,) = numbers(w, 0)

    def orch_fn(orch, args, config):
        new = w.share(np.full(3, 4, np.int64))
        column = w.share(np.ones((2, 3), np.int64))
        seen.extend([weakref.ref(new), weakref.ref(column)])
        with orch.scope():
            buffer = orch.alloc((3,), np.int64)
            orch.submit_sub(w.set, make_args((buffer, T.INOUT), scalars=[0]))
            orch.submit_sub(w.add, make_args((new, T.INPUT), (buffer, T.INPUT), (x, T.INOUT)))
        orch.submit_sub_many(w.add, [column, make_tensor(x)], [T.INPUT, T.INOUT])

    graph = w.record(orch_fn)
    gc.collect()
    assert all(one() is not None for one in seen)
    w.share(np.full(3, 99, np.int64))  # would stand where they stood
    graph.run()
    before = held(w)
    for _ in range(99):
        graph.run()
    assert (held(w), x.tolist()) == (before, [600, 600, 600])
    del graph
    gc.collect()
    assert all(one() is None for one in seen)


def held(w):
    """Return what of the engine would grow if something were left behind."""
    mem = w._session.engine.mem
    return [int(mem[word]) for word in (L.LIVE, L.NEXT_TASK_ID, L.MAP_COUNT, L.SPILL_USED)]


@pytest.fixture(
    scope="module", params=[8, pytest.param(1, marks=pytest.mark.long)], ids="depth {}".format
)
def both(request):
    """Give a Worker with a sub worker and two endpoints, and handles of a function for both kinds."""
    worker = Worker(level=4, num_sub_workers=1, mailbox_depth=request.param)
    made, there = Program(worker=worker, num_sub_workers=1), f"{list_programs.__name__}:blend"
    handles = [worker.register(list_programs.blend)]
    handles.append(worker.register(RemoteCallable(there), inner=True))
    with made.started():
        yield worker, handles


@pytest.mark.spec("SPEED-REPLAY-12")
@pytest.mark.parametrize("seed", sample(range(6), 3))
def test_random_programs_are_replayed_as_they_are_run(seed, both):
    (worker, handles), numbers = both, np.random.default_rng(seed)
    ops = list_programs.drawn(random.Random(seed), 50, arrays=3)
    arrays = list_programs.fresh_arrays(worker, numbers, 3)

    def orch_fn(orch, args, config):
        list_programs.submit_all(ops, orch, handles, args)

    graph = worker.record(orch_fn, list_programs.arguments(arrays, 1, 0.5))
    for number in range(4):
        arrays = list_programs.fresh_arrays(worker, numbers, 3)
        args = list_programs.arguments(arrays, number, number / 4)
        expected = list_programs.computed(ops, arrays, number, np.float32(number / 4))
        timing = worker.run(orch_fn, args) if number == 2 else graph.run(args)
        for one, right in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-5)
        assert timing.tasks == graph.tasks == len(ops)


@pytest.mark.spec("SPEED-REPLAY-12")
def test_memory_of_endpoints_is_part_of_a_recording_and_cannot_be_rebound():
    made = Program(1)
    with made.worker as worker:
        worker.init()
        handle = made.handle(far_side.add_first)
        buffer = made.buffer(0, [1] * COUNT)
        inline = RemoteTensorRef.host_inline(np.full(COUNT, 2, np.float32))
        there = made.args((buffer, INOUT))

        def orch_fn(orch, args, config):
            orch.submit_next_level(handle, made.args((inline, INPUT), (buffer, INOUT)))

        graph = worker.record(orch_fn, TaskArgs())
        for _ in range(3):
            graph.run()
        assert made.values(buffer).tolist() == [7] * COUNT
        for refuses in (lambda: graph.run(there), lambda: worker.record(orch_fn, there)):
            with pytest.raises(TypeError, match="tensor 0 of args is in an endpoint's memory"):
                refuses()
        worker.remote_free(buffer)
        with pytest.raises(ValueError, match="no longer live"):
            graph.run()
