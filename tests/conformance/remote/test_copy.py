"""REMOTE-COPY: endpoints get copies of the parent's tensors."""

import os
import signal

import numpy as np
import pytest

from simpler_ref import (
    ContinuousTensor,
    RemoteError,
    RemoteWorkerSpec,
    TaskError,
    Worker,
    WorkerLostError,
)
from simpler_ref.remote import ProcessFleet

from ... import far_side
from ...endpoints import COUNT, EXISTING, INOUT, INPUT, OUTPUT, Program, fresh, program
from ...support import make_args, stopped, wait_until


def add_here(args):
    args.tensor(0).numpy()[...] += np.float32(args.scalar(0))


def copy_here(args):
    args.tensor(1).numpy()[...] = args.tensor(0).numpy()


class Mixed(Program):
    """A program with endpoints and a sub worker, and handles for both."""

    def __init__(self, endpoints=2, arena_size=None, **options):
        worker = Worker(level=4, num_sub_workers=1, **options)
        there = arena_size and {"arena_size": arena_size}
        super().__init__(endpoints, worker=worker, options=there)
        self.here = {
            far_side.add_scalar: worker.register(add_here),
            far_side.copy: worker.register(copy_here),
        }
        for one in self.here:
            self.handle(one)

    def submit(self, orch, function, where, *tensors, scalars=()):
        """Submit a task of an endpoint, of any (−1), or here (None); return its arguments."""
        args = make_args(*tensors, scalars=scalars)
        if where is None:
            orch.submit_sub(self.here[function], args)
        else:
            orch.submit_next_level(self.handle(function), args, worker=where)
        return args

    def add(self, orch, where, tensor, number=1):
        """Add a number to a tensor there."""
        return self.submit(orch, far_side.add_scalar, where, (tensor, INOUT), scalars=(number,))

    def copy(self, orch, where, source, target, tag=EXISTING):
        """Copy a tensor there."""
        return self.submit(orch, far_side.copy, where, (source, INPUT), (target, tag))

    def moved(self):
        """Return how many copies were stored, fetched, found there, and brought home."""
        names = ("copies_stored", "copies_fetched", "copies_hits", "copies_brought")
        told = self.worker.transfers()
        return [sum(one[name] for one in told) for name in names]

    def shared(self, values=None):
        """Return a shared array of float32."""
        return self.worker.share(np.zeros(COUNT, np.float32) if values is None else values)


@pytest.fixture(scope="module")
def mixed():
    with Mixed(mailbox_depth=16).started() as made:
        yield made


@pytest.fixture
def since(mixed):
    """Return what has moved since the test began."""
    before = mixed.moved()
    return lambda: [now - was for now, was in zip(mixed.moved(), before, strict=True)]


# ---------------------------------------------------------------- any numpy array
ARRAYS = {
    "float64": lambda: np.arange(COUNT, dtype=np.float64),
    "transposed": lambda: np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "seven dimensions": lambda: np.arange(64, dtype=np.int16).reshape(1, 2, 4, 1, 2, 4, 1),
    "complex": lambda: np.linspace(0, 1, 6).astype(np.complex128).reshape(2, 3),
    "dates": lambda: np.arange(5).astype("M8[D]"),
    "structured": lambda: np.array([(1, (0.5, 2)), (2, (3, 4))], [("a", "i4"), ("b", "f8", (2,))]),
    "no elements": lambda: np.zeros((0, 3)),
}


@pytest.mark.spec("REMOTE-COPY-1", "REMOTE-COPY-2", "REMOTE-TASK-8")
@pytest.mark.parametrize("name", ARRAYS)
def test_copies_of_any_contiguous_array_arrive_and_come_home(mixed, since, name):
    values = ARRAYS[name]()
    source = mixed.worker.share(values)
    first, second = (mixed.worker.share(np.zeros_like(values)) for _ in range(2))

    def orch_fn(orch, args, config):
        mixed.copy(orch, 0, source, first)
        mixed.copy(orch, 1, first, second)
        mixed.copy(orch, 0, second, source)

    mixed.worker.run(orch_fn)
    for array in source, first, second:
        assert array.dtype == values.dtype
        assert array.tobytes() == values.tobytes()
    assert since()[:2] == [1, 2] or not values.size


@pytest.mark.spec("REMOTE-COPY-3", "REMOTE-TASK-8")
def test_local_tasks_and_outputs_of_float64_go_with_those_of_endpoints(mixed):
    x, result = mixed.worker.share(np.ones(COUNT)), mixed.worker.zeros((COUNT,), np.float64)

    def orch_fn(orch, args, config):
        mixed.add(orch, 0, x, 2)
        mixed.add(orch, None, x, 0.5)
        made = ContinuousTensor.make(0, (COUNT,), np.dtype(np.float64))
        after = mixed.copy(orch, 1, x, made, OUTPUT)
        mixed.add(orch, 0, after.tensor(1), 1)
        mixed.copy(orch, None, after.tensor(1), result)

    for turn in range(2):
        mixed.worker.run(orch_fn)
        assert result.tolist() == [4.5 + 2.5 * turn] * COUNT


@pytest.mark.spec("REMOTE-ARGS-4")
def test_a_tensor_with_gaps_or_without_memory_that_is_no_output_is_refused(mixed):
    x = mixed.worker.zeros((8, 8), np.float64)

    def orch_fn(orch, args, config):
        for view in x[:, ::2], x[::-1], x[:, :4]:
            with pytest.raises(TypeError, match="tensor 0 cannot be copied to an endpoint"):
                mixed.add(orch, 0, view)
        for tag in INPUT, INOUT, EXISTING:
            with pytest.raises(ValueError, match="tensor 0 has no memory yet: tag it OUTPUT"):
                mixed.submit(orch, far_side.add_scalar, 0, (fresh(), tag), scalars=(1,))
        mixed.add(orch, 0, x[2:4])

    mixed.worker.run(orch_fn)
    assert x.sum() == 16


# ---------------------------------------------------------------- versions
@pytest.mark.spec("REMOTE-COPY-1")
def test_a_tensor_goes_from_endpoint_to_endpoint_and_home(mixed, since):
    x = mixed.shared()

    def orch_fn(orch, args, config):
        for k in range(7):
            mixed.add(orch, (0, 1, None)[k % 3], x)

    mixed.worker.run(orch_fn)
    assert x.tolist() == [7] * COUNT
    # here → 0 → 1 → here → 0 → 1 → here → 0 → here
    assert since() == [3, 2, 0, 3]


# ---------------------------------------------------------------- races
@pytest.mark.spec("REMOTE-COPY-4")
def test_a_version_that_was_replaced_is_not_given_out(mixed):
    x, y, gate = mixed.shared(), mixed.shared(), mixed.shared()

    def orch_fn(orch, args, config):
        mixed.add(orch, 0, x)
        mixed.submit(orch, far_side.wait, 1, (gate, INOUT), scalars=(300,))
        # waits for the gate, and then needs the first version
        mixed.submit(orch, far_side.copy, 1, (x, INPUT), (y, EXISTING), (gate, INPUT))
        mixed.add(orch, 0, x)

    with pytest.raises(TaskError, match="a later task has written the tensor already"):
        mixed.worker.run(orch_fn)


# ---------------------------------------------------------------- ends
@pytest.mark.spec("REMOTE-COPY-5")
def test_the_program_reads_and_writes_arrays_between_runs_and_after_drain(mixed):
    x, y = mixed.shared(), mixed.shared()

    def orch_fn(orch, args, config):
        mixed.add(orch, 0, x)
        mixed.copy(orch, 1, x, y)
        orch.drain()
        assert (x[0], y[0]) == (1, 1)
        x[:] = 10
        mixed.add(orch, 0, x)
        mixed.copy(orch, 1, x, y)

    mixed.worker.run(orch_fn)
    assert (x[0], y[0]) == (11, 11)
    x[:] = 20

    mixed.worker.run(lambda orch, *_: mixed.copy(orch, 0, x, y))
    assert y.tolist() == [20] * COUNT


# ---------------------------------------------------------------- shared bytes
@pytest.mark.spec("REMOTE-COPY-6")
def test_tensors_that_share_bytes_are_one_memory(mixed):
    x, y = mixed.shared(), mixed.shared(np.zeros(COUNT // 2, np.float32))
    half = COUNT // 2

    def orch_fn(orch, args, config):
        mixed.add(orch, 0, x)  # all of it, there
        mixed.add(orch, 1, x[half:])  # its second half, elsewhere
        mixed.add(orch, None, x[: half // 2])  # its first quarter, here
        mixed.add(orch, 0, x)
        mixed.copy(orch, 1, x[:half], y)

    timing = mixed.worker.run(orch_fn)
    assert timing.tasks == 5, "what brings tensors home is no task of the program"
    assert x.tolist() == [3] * (half // 2) + [2] * (half // 2) + [3] * half
    assert y.tolist() == [3] * (half // 2) + [2] * (half // 2)


@pytest.mark.spec("REMOTE-COPY-6")
@pytest.mark.parametrize("second", [slice(None), slice(1, None)], ids=["same", "part"])
@pytest.mark.parametrize("tags", [(INOUT, INOUT), (INPUT, EXISTING), (EXISTING, INPUT)], ids=str)
def test_members_of_a_group_do_not_share_what_one_of_them_writes(mixed, tags, second):
    x = mixed.shared(np.full(COUNT, 3, np.float32))

    def orch_fn(orch, args, config):
        members = [make_args((x, tags[0])), make_args((x[second], tags[1]))]
        orch.submit_next_level_group(mixed.handle(far_side.add_one), members)

    with pytest.raises(ValueError, match="members 0 and 1 of the group name the same bytes"):
        mixed.worker.run(orch_fn)
    assert x.tolist() == [3] * COUNT


# ---------------------------------------------------------------- placement
@pytest.mark.spec("REMOTE-COPY-7")
def test_a_task_goes_where_its_bytes_are(mixed, since):
    large = [mixed.shared(np.zeros(1 << 22, np.float32)) for _ in range(2)]

    def orch_fn(orch, args, config):
        for k in (0, 1):
            mixed.add(orch, k, large[k])
        orch._until_idle()
        for _ in range(3):
            for one in large:
                mixed.add(orch, -1, one)

    mixed.worker.run(orch_fn)
    assert [one[0] for one in large] == [4, 4]
    assert since()[:2] == [2, 0]


# ---------------------------------------------------------------- failures
@pytest.mark.spec("REMOTE-COPY-8")
def test_what_a_failed_task_alone_had_is_lost_until_it_is_written(mixed, caplog):
    x, y = mixed.shared(), mixed.shared()

    def orch_fn(orch, args, config):
        mixed.add(orch, 0, x)
        mixed.submit(orch, far_side.fail, 0, (x, INOUT))

    def use(orch, args, config):
        mixed.copy(orch, args, x, y)

    with pytest.raises(TaskError):
        mixed.worker.run(orch_fn)
    assert "is lost" in caplog.text
    for where in (None, 1):
        with pytest.raises(RemoteError, match="tensor 0 is lost"):
            mixed.worker.run(use, where)
    x[:] = 8
    mixed.worker.run(use, None)
    assert y.tolist() == [8] * COUNT


@pytest.mark.spec("REMOTE-COPY-8")
def test_a_signal_that_keeps_a_tensor_from_coming_home_leaves_no_old_version(mixed, monkeypatch):
    x = mixed.shared()

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(mixed.worker._life.endpoints.tensors, "_bring", interrupt)
        with pytest.raises(KeyboardInterrupt):
            mixed.worker.run(lambda orch, *_: mixed.add(orch, 0, x))
    with pytest.raises(RemoteError, match="tensor 0 is lost"):
        mixed.worker.run(lambda orch, *_: mixed.add(orch, 1, x))
    mixed.worker.renew(x)
    mixed.worker.run(lambda orch, *_: mixed.add(orch, 1, x))
    assert x.tolist() == [1] * COUNT


@pytest.mark.slow("endpoints are lost, and others take their places")
@pytest.mark.spec("REMOTE-COPY-8")
def test_what_was_not_made_before_its_endpoint_was_lost_is_not_lost_with_it():
    with program(2) as two:
        x, y, z = (two.worker.full(COUNT, 3.0, np.float32) for _ in range(3))

        def task(function, worker, *arrays):
            args = make_args(*((array, INOUT) for array in arrays))
            return function, args, {"worker": worker}

        with pytest.raises(WorkerLostError) as caught:
            two.run(
                *(task(far_side.add_one, 1, y), task(far_side.add_one, 0, z)),
                *(task(far_side.die, 0, x, y), task(far_side.add_one, 1, x)),
            )
        assert [one.tolist() for one in (x, y)] == [[3] * COUNT, [4] * COUNT]
        assert str(caught.value.__notes__).count("the newest version of") == 1, "that of z"
        two.run(task(far_side.add_one, 1, x, y))
        with pytest.raises(RemoteError, match="is lost"):
            two.run(task(far_side.add_one, 1, z))


@pytest.mark.slow("an endpoint is lost")
@pytest.mark.spec("REMOTE-COPY-8")
@pytest.mark.parametrize("others", [[], [2]], ids=["alone", "beside a sub worker"])
def test_the_loss_is_the_failure_also_if_a_task_that_missed_something_has_failed_first(
    others, monkeypatch
):
    with Mixed().started() as two:
        endpoints = two.worker._life.endpoints
        lost = endpoints.lost
        monkeypatch.setattr(endpoints, "lost", lambda **how: [*others, *lost(**how)])
        x, y = two.shared(), two.shared()

        def orchestrate(orch, args, config):
            two.add(orch, 0, x)
            wait_until(lambda: two.worker._life.session.engine.view.ended == 1)
            link = two.worker._life.session.manager.pids[0]
            with stopped(link):  # which does not see yet that its session is lost
                os.kill(two.worker.endpoints()[0]["pid"], signal.SIGKILL)
                two.copy(orch, 1, x, y)
                wait_until(lambda: two.worker._life.session.engine.view.ended == 2)

        told = "endpoint 0 .* is lost: .* for want .* SourceLost"
        with pytest.raises(WorkerLostError, match=told) as caught:
            two.worker.run(orchestrate)
        assert caught.value.worker == 0 and caught.value.task == 1
        assert "the newest version of" in caught.value.story


# ---------------------------------------------------------------- fleets
@pytest.mark.spec("REMOTE-COPY-9")
@pytest.mark.parametrize(
    "how", ["checked", *(pytest.param(one, marks=pytest.mark.long) for one in ("run", "recorded"))]
)
def test_each_member_of_a_group_for_sub_workers_runs_at_an_endpoint_of_its_own(how):
    spec = RemoteWorkerSpec(num_sub_workers=1, serialized=True)
    with Worker(fleet=spec, endpoints=2, check=how == "checked") as worker:
        handle = worker.register(far_side.scale)
        arrays = [worker.share(np.full(COUNT, k, np.float32)) for k in range(1, 4)]

        def member(array, factor):
            return make_args((array, INOUT), scalars=[factor])

        def orch_fn(orch, args, config):
            for factor in (2.0, 3.0):
                orch.submit_sub_group(handle, [member(one, factor) for one in arrays[:2]])
            orch.submit_sub(handle, member(arrays[2], 2.0))
            with pytest.raises(ValueError, match=r"group of 3 .* each at an endpoint of its own"):
                orch.submit_sub_group(handle, [member(one, 2.0) for one in arrays])

        before = [one["tasks"] for one in worker.endpoints()]
        graph = worker.record(orch_fn) if how == "recorded" else None
        for _ in range(2):
            worker.run(orch_fn) if graph is None else graph.run()
        assert [set(one) for one in arrays] == [{36}, {72}, {12}]
        ran = [one["tasks"] - was for one, was in zip(worker.endpoints(), before, strict=True)]
        assert min(ran) >= 4
        assert sum(ran) == 10


@pytest.mark.spec("REMOTE-COPY-11")
def test_a_program_for_workers_of_this_machine_runs_on_a_fleet():
    offset = 3

    def add_offset(args):  # no module has it: it travels
        args.tensor(0).numpy()[...] += offset

    def program(worker):
        add, scale = worker.register(add_offset), worker.register(far_side.scale)
        arrays = worker.share(np.arange(3, dtype=np.float32)[:, None] + np.zeros(COUNT, np.float32))

        def orch_fn(orch, args, config):
            for one in arrays:
                orch.submit_sub(add, make_args((one, INOUT)))
                orch.submit_sub(scale, make_args((one, INOUT), scalars=[2.0]))
            orch.submit_sub_many(add, [arrays], [INOUT])

        timing = worker.run(orch_fn)
        return [one.tolist() for one in arrays], timing.tasks, timing.edges

    with Worker(num_sub_workers=1) as worker:
        expected = program(worker)
    with Worker(fleet=ProcessFleet(), endpoints=2, num_sub_workers=1) as worker:
        assert (program(worker), worker.level, worker.num_sub_workers) == (expected, 4, 0)
        assert all(one["tasks"] for one in worker.endpoints())


@pytest.mark.spec("REMOTE-COPY-11")
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"endpoints": 2}, ValueError, "fleet=ProcessFleet"),
        ({"fleet": 2}, TypeError, "neither a Fleet"),
        ({"fleet": ProcessFleet(), "endpoints": 0}, ValueError, "endpoints"),
        ({"fleet": RemoteWorkerSpec(), "num_sub_workers": 1}, ValueError, "RemoteWorkerSpec"),
        ({"fleet": RemoteWorkerSpec(serialized=True)}, ValueError, "give it num_sub"),
        ({"fleet": ProcessFleet(), "level": 3}, RuntimeError, "level >= 4"),
        ({"fleet": ProcessFleet(), "initializer": print}, ValueError, "initializer"),
    ],
)
def test_a_fleet_that_makes_no_sense_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        Worker(**options)


# ---------------------------------------------------------------- memory
@pytest.mark.long
@pytest.mark.spec("REMOTE-COPY-10")
def test_copies_of_ring_memory_go_with_it():
    with Mixed(1, heap_ring_size=1 << 20).started() as made:
        worker = made.worker

        def orch_fn(orch, args, config):
            for k in range(64):
                with orch.scope():
                    args = make_args((fresh(50_000 + k), OUTPUT))
                    orch.submit_next_level(made.handle(far_side.clear), args)
            orch._until_idle()
            (told,) = worker.transfers()
            assert told["copy_bytes"] < 16 << 20  # of 12.8 MB × 64 / 1 MiB
            assert told["copies_dropped"] > 32

        worker.run(orch_fn)


# ---------------------------------------------------------------- little room
PAGE = 4096
"""The bytes of each tensor; endpoints have room for four."""


@pytest.mark.spec("REMOTE-COPY-13")
def test_a_task_whose_own_tensors_do_not_fit_fails_and_says_how_large_they_are():
    with Mixed(arena_size=4 * PAGE, mailbox_depth=16).started() as narrow:
        x, y = (narrow.shared(np.zeros(3 * PAGE // 4, np.float32)) for _ in range(2))
        with pytest.raises(TaskError) as caught:
            narrow.worker.run(lambda orch, args, config: narrow.copy(orch, 0, x, y))
        told = "have 24576 bytes", "no room for 12288 bytes", "arena of 16384 bytes", "arena_size"
        assert all(part in str(caught.value) for part in told)
        assert "MemoryError: MemoryError" not in str(caught.value)
        narrow.worker.run(lambda orch, args, config: narrow.add(orch, 0, x))
        assert x.tolist() == [1] * (3 * PAGE // 4)


@pytest.mark.spec("REMOTE-COPY-13")
def test_a_task_fails_for_which_the_parent_cannot_store_what_is_long():
    with Mixed(arena_size=128 * PAGE).started() as narrow:
        x, y = (narrow.shared(np.zeros(count * PAGE // 4, np.float32)) for count in (100, 200))
        with pytest.raises(TaskError) as caught:
            narrow.worker.run(lambda orch, args, config: narrow.add(orch, 0, y))
        told = "MemoryError", "no room for 819200 bytes", "arena of 524288 bytes", "arena_size"
        assert all(part in str(caught.value) for part in told)
        narrow.worker.run(lambda orch, args, config: narrow.add(orch, 0, x))
        assert (x == 1).all() and not y.any()
