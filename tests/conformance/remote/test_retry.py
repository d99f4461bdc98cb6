"""Rules REMOTE-RETRY-1 to -4."""

import contextlib
import os
import random
import re
import signal
import time

import numpy as np
import pytest

from simpler_ref import RemoteError, TaskError, Worker, WorkerLostError

from ... import far_side
from ...endpoints import COUNT, INOUT, INPUT, Moody, Program, reference
from ...support import make_args, sample
from .test_copy import Mixed


@pytest.fixture
def mixed():
    with Mixed(mailbox_depth=4, retries=2).started() as made:
        yield made


def kill(program, endpoint):
    """Kill the session of an endpoint."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(program.worker.endpoints()[endpoint]["pid"], signal.SIGKILL)


def update(program, orch, where, source, target):
    """Copy a tensor; whoever writes the source later waits for that."""
    return program.submit(orch, far_side.copy, where, (source, INOUT), (target, INOUT))


# ---------------------------------------------------------------- what runs again
@pytest.mark.spec("REMOTE-RETRY-1")
@pytest.mark.parametrize("endpoint", sample([0, 1], 1))
def test_tasks_that_an_endpoint_had_run_again_and_the_run_goes_on(mixed, endpoint):
    x, y = mixed.shared(), mixed.shared()

    def orch_fn(orch, args, config):
        for _ in range(3):
            update(mixed, orch, 1, x, y)
            mixed.add(orch, 0, x)
        kill(mixed, endpoint)
        for _ in range(3):
            mixed.add(orch, 0, x)
            update(mixed, orch, 1, x, y)
        mixed.add(orch, None, y)

    mixed.worker.run(orch_fn)
    assert (x.tolist(), y.tolist()) == ([6] * COUNT, [7] * COUNT)
    mixed.worker.run(lambda orch, args, config: mixed.add(orch, endpoint, x))
    assert x.tolist() == [7] * COUNT


@pytest.mark.long
@pytest.mark.spec("REMOTE-RETRY-1")
@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_task_that_ends_its_endpoint_runs_as_often_as_it_may(retries, caplog):
    with Mixed(retries=retries).started() as made:
        x, y, z = (made.shared() for _ in range(3))

        def orch_fn(orch, args, config):
            made.add(orch, 0, y)
            made.submit(orch, far_side.die, 0, (x, INOUT), (y, INOUT))

        with pytest.raises(WorkerLostError, match="endpoint 0"):
            made.worker.run(orch_fn)
        made.worker.run(lambda orch, args, config: made.copy(orch, None, x, z))  # it has no other
        with pytest.raises(RemoteError, match="is lost"):
            made.worker.run(lambda orch, args, config: made.copy(orch, None, y, z))
        assert len([one for one in caplog.messages if "tasks run again" in one]) == retries


@pytest.mark.long
@pytest.mark.spec("REMOTE-RETRY-1")
@pytest.mark.parametrize("where", sample([0, None], 1))
def test_a_task_that_raises_does_not_run_again_also_beside_a_loss(mixed, where):
    x, y = mixed.shared(), mixed.shared()

    def orch_fn(orch, args, config):
        mixed.add(orch, 1, x)
        orch._until_idle()
        if where is None:
            mixed.submit(orch, far_side.copy, None, (x, INPUT), (np.zeros(3, np.float32), INOUT))
        else:
            mixed.submit(orch, far_side.fail, where, (y, INOUT))
        kill(mixed, 1)

    with pytest.raises((TaskError, ValueError)):
        mixed.worker.run(orch_fn)


# ---------------------------------------------------------------- graphs
def kill_here(args):
    with contextlib.suppress(ProcessLookupError):
        os.kill(args.scalar(0), signal.SIGKILL)


@pytest.mark.spec("REMOTE-RETRY-1", "REMOTE-COPY-8")
@pytest.mark.parametrize("retries", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.slow("starts the session of an endpoint twice")
def test_a_replay_that_loses_an_array_says_what_helps_and_with_retries_goes_on(retries):
    made = Mixed(endpoints=1, retries=retries)
    ending = made.worker.register(kill_here)
    with made.worker as worker:
        worker.init()
        made.handle(far_side.add_first)
        x, y = made.shared(), made.shared()

        def orch_fn(orch, args, config):
            made.add(orch, 0, x)
            made.copy(orch, 0, x, y)
            orch.submit_sub(ending, make_args((y, INOUT), scalars=[first]))
            made.submit(orch, far_side.add_first, 0, (y, INPUT), (x, INOUT))

        worker.run(lambda orch, *_: made.add(orch, 0, y))  # which starts the endpoints
        first = worker.endpoints()[0]["pid"]
        graph = worker.record(orch_fn)
        if retries:
            graph.run()
        else:
            words = "only at endpoint 0, which was lost.*write it before .*Worker.renew.*retries="
            with pytest.raises(WorkerLostError) as caught:
                graph.run()
            assert re.search(words, caught.value.story)
            with pytest.raises(RemoteError, match=words):
                graph.run()
            worker.renew(x)
            x[:] = 2
        graph.run()
        assert (x.tolist(), y.tolist()) == ([6] * COUNT, [3] * COUNT)


# ---------------------------------------------------------------- what they begin with
@pytest.mark.spec("REMOTE-RETRY-2")
def test_tasks_that_run_again_see_what_there_was_before_the_first_of_them(mixed):
    x, y = mixed.shared(), mixed.shared()

    def orch_fn(orch, args, config):
        mixed.add(orch, 1, x)
        orch.drain()
        update(mixed, orch, 0, x, y)  # y from the first x
        mixed.add(orch, None, x)  # which is overwritten here
        mixed.add(orch, None, y, 3)  # and y comes home
        orch._until_idle()
        kill(mixed, 0)
        mixed.add(orch, 0, y)

    mixed.worker.run(orch_fn)
    assert (x.tolist(), y.tolist()) == ([2] * COUNT, [5] * COUNT)


@pytest.mark.spec("REMOTE-RETRY-2", "REMOTE-RETRY-4")
@pytest.mark.parametrize("is_over", [False, True])
def test_what_the_program_has_written_into_a_buffer_is_there_again_or_the_run_fails(is_over, mixed):
    x = mixed.shared()

    def orch_fn(orch, args, config):
        with orch.scope() if is_over else contextlib.nullcontext():
            buffer = orch.alloc((COUNT,), np.float32)
            buffer.numpy()[:] = 7
            mixed.add(orch, 0, buffer)
            mixed.add(orch, None, buffer, 10)
            mixed.copy(orch, 0, buffer, x)
        orch._until_idle()
        kill(mixed, 0)
        mixed.add(orch, 0, x, 100)

    with pytest.raises(WorkerLostError) if is_over else contextlib.nullcontext():
        mixed.worker.run(orch_fn)
    assert is_over or x.tolist() == [118] * COUNT


# ---------------------------------------------------------------- where
@pytest.mark.long
@pytest.mark.spec("REMOTE-RETRY-3")
def test_tasks_of_an_endpoint_that_cannot_be_started_again_run_at_another(tmp_path):
    file, worker = tmp_path / "no more", Worker(level=4, retries=1)
    made = Program(worker=worker, fleet=Moody(file))
    add = made.handle(far_side.add_scalar)
    with made.started():
        x = worker.share(np.zeros(COUNT, np.float32))

        def orch_fn(orch, args, config):
            for k in range(6):
                orch.submit_next_level(add, make_args((x, INOUT), scalars=[1]), worker=0)
                if k == 3:
                    orch._until_idle()
                    file.touch()
                    os.kill(worker.endpoints()[0]["pid"], signal.SIGKILL)

        worker.run(orch_fn)
        assert x.tolist() == [6] * COUNT
        first, second = worker.endpoints()
        assert (first["alive"], second["alive"], second["tasks"]) == (False, True, 6)


# ---------------------------------------------------------------- what cannot run again
@pytest.mark.long
@pytest.mark.spec("REMOTE-RETRY-4")
def test_tasks_with_memory_of_an_endpoint_do_not_run_again(mixed):
    buffer, x = mixed.buffer(0, [1] * COUNT), mixed.shared()

    def orch_fn(orch, args, config):
        mixed.submit(orch, far_side.copy, 0, (reference(buffer), INPUT), (x, INOUT))
        orch._until_idle()
        kill(mixed, 0)
        mixed.add(orch, 0, x)

    with pytest.raises(TaskError, match="endpoint 0"):
        mixed.worker.run(orch_fn)


# ---------------------------------------------------------------- random programs
@pytest.mark.long
@pytest.mark.spec("REMOTE-RETRY-1", "REMOTE-RETRY-2")
@pytest.mark.parametrize(("depth", "check"), [(1, False), (4, True)])
def test_random_programs_whose_endpoints_are_killed_end_as_if_run_in_order_or_fail(depth, check):
    """A run that fails leaves each tensor lost, or as it was at some time; no two kills are alike."""
    right = 0
    with Mixed(mailbox_depth=depth, check=check, retries=5).started() as made:
        for seed in range(5):
            rng = random.Random(seed)
            arrays = [made.shared(np.full(COUNT, k, np.float32)) for k in range(4)]
            model = [one.copy() for one in arrays]

            def orch_fn(orch, args, config, rng=rng, arrays=arrays, model=model):
                for step in range(24):
                    i, j = rng.sample(range(4), 2)
                    where = rng.choice([0, 1, -1, 0, 1, None])
                    if rng.random() < 0.5:
                        made.add(orch, where, arrays[i], step)
                        model[i] += step
                    else:
                        update(made, orch, where, arrays[i], arrays[j])
                        model[j][:] = model[i]
                    if rng.random() < 0.08:
                        time.sleep(rng.random() * 0.01)
                        kill(made, rng.randrange(2))

            try:
                made.worker.run(orch_fn)
            except TaskError:
                continue
            right += 1
            for one, expected in zip(arrays, model, strict=True):
                np.testing.assert_array_equal(one, expected)
    assert right > 2


@pytest.mark.spec("REMOTE-RETRY-1")
def test_a_worker_that_can_have_no_endpoints_takes_no_retries():
    with pytest.raises(ValueError, match=r"retries=2.*level 3.*fleet="):
        Worker(num_sub_workers=1, retries=2)
