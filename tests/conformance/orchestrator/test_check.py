"""ORCH-CHECK: a Worker with ``check=True`` reports what nothing orders."""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref import ContinuousTensor, DataType, HazardError, TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.workers.kinds import SubWorker
from tests.by_hand import ByHand
from tests.support import make_args

WORDS = 16


def look(args):
    pass


def fill(args):
    args.tensor(0).numpy()[:] = 7


def add(args):
    args.tensor(1).numpy()[:] += args.tensor(0).numpy()


@pytest.fixture(scope="module")
def w():
    """Give a checked Worker, which the tests of this file share."""
    with Worker(3, num_sub_workers=2, heap_ring_size=1 << 16, check=True) as made:
        made.look, made.fill, made.add = map(made.register, (look, fill, add))
        made.start()
        yield made


@pytest.fixture
def x(w):
    return w.share(np.zeros(WORDS, np.int64))


def submits(w, *tasks):
    """Return an orchestration function that submits tasks, each given by (tensor, tag) pairs."""

    def orch_fn(orch, *_):
        for task in tasks:
            if task == "drain":
                orch.drain()
            else:
                orch.submit_sub(w.look, make_args(*task))

    return orch_fn


def hazard_of(w, orch_fn):
    with pytest.raises(HazardError) as caught:
        w.run(orch_fn)
    return caught.value


@pytest.mark.spec("ORCH-CHECK-1")
def test_what_waits_directly_through_others_or_by_a_drain_is_not_reported(w, x):
    y, z = w.empty(WORDS), w.empty(WORDS)
    w.run(submits(w, [(x, T.OUTPUT_EXISTING)], [(x, T.INPUT)], [(x, T.INPUT)]))
    w.run(submits(w, [(x, T.INOUT)], [(x, T.INOUT)], [(x, T.INPUT)]))
    w.run(submits(w, [(x[4:], T.INOUT)], [(x[:4], T.INOUT)]))
    through = [(y, T.INPUT), (z, T.INOUT)]
    w.run(submits(w, [(x, T.INPUT), (y, T.INOUT)], through, [(x, T.INOUT), (z, T.INPUT)]))
    hazard_of(w, submits(w, [(x, T.INPUT), (y, T.INOUT)], through, [(x, T.INOUT)]))
    w.run(submits(w, [(x, T.INPUT)], "drain", [(x, T.INOUT)], "drain", [(x[2:], T.INPUT)]))
    w.run(submits(w, [(x, T.INOUT)]))
    w.run(submits(w, [(x[1:], T.OUTPUT_EXISTING)]))
    w.run(submits(w, *[[(x, T.INPUT)]] * 3, "drain", [(x, T.INOUT)]))
    error = hazard_of(w, submits(w, "drain", [(x, T.INPUT)], [(x, T.INOUT)]))
    assert error.tasks == (0, 1)


@pytest.mark.spec("ORCH-CHECK-1")
def test_the_error_names_both_tasks_what_they_do_and_where_they_were_submitted(w, x):
    lines = []

    def give(orch, handle, tag):
        orch.submit_sub(handle, make_args((x, tag)))

    def orch_fn(orch, args, config):
        lines.append(sys._getframe().f_lineno + 1)
        give(orch, w.look, T.INPUT)
        give(orch, w.fill, T.OUTPUT_EXISTING)

    error = hazard_of(w, orch_fn)
    here, line = Path(__file__).name, lines[0]
    text = str(error)
    assert "write after read: task 1 (fill) writes 128 bytes that task 0 (look) reads" in text
    assert f"INPUT of 128 bytes at {x.ctypes.data:#x}" in text
    assert "OUTPUT_EXISTING of 128 bytes" in text and "INOUT in both tasks" in text
    assert f"{here}:{line}" in error.places[0] and f"{here}:{line + 1}" in error.places[1]
    assert all(place in text for place in error.places)


@pytest.mark.spec("ORCH-CHECK-5")
def test_a_buffer_is_refused_after_its_scope_or_run_even_if_its_bytes_are_another_ones(w):
    kept = []

    def orch_fn(orch, args, config):
        with orch.scope():
            kept.append(orch.alloc(WORDS, np.int64))
            submits(w, [(kept[-1], T.INOUT)])(orch)
        orch.drain()
        with orch.scope():
            new = orch.alloc(WORDS, np.int64)
            assert new.data == kept[0].data
            submits(w, [(new, T.INOUT)], [(kept[0], T.NO_DEP)], [(kept[0], T.INPUT)])(orch)

    for _ in range(2):  # the second time it is of an earlier run
        error = hazard_of(w, orch_fn)
        assert (error.kind, error.tasks) == ("use after scope", (5,))


@pytest.mark.spec("ORCH-CHECK-5")
def test_a_scope_does_not_end_under_a_task_that_does_not_keep_its_memory(w):
    def scope_with(*steps):
        def orch_fn(orch, args, config):
            with orch.scope():
                buffer = orch.alloc(WORDS, np.int64)
                submits(w, *[step if step == "drain" else [(buffer, step)] for step in steps])(orch)
                if leaves:
                    raise LookupError("mine")

        return orch_fn

    leaves, write = False, T.OUTPUT_EXISTING
    for steps in ([T.INOUT], [write, "drain"]):
        w.run(scope_with(*steps))
    for steps in ([write], [T.INPUT, "drain", write]):
        assert hazard_of(w, scope_with(*steps)).kind == "use after scope"
    leaves = True
    with pytest.raises(LookupError, match="mine"):  # is not replaced
        w.run(scope_with(write))


@sr.task
def fill_below(x: sr.In):
    ctypes.memset(x.ctypes.data, 7, x.nbytes)


@pytest.mark.spec("ORCH-CHECK-7")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_a_task_that_writes_its_input_fails(mode):
    with Worker(3, num_sub_workers=1, child_mode=mode, check=True) as w:
        handle, y = w.register(fill), w.share(np.zeros(4, np.int64))
        for submit in (
            lambda orch, *_: orch.submit_sub(handle, make_args((y, T.INPUT))),
            lambda orch, *_: orch.submit_sub_group(handle, [make_args((y, T.INPUT))]),
            lambda orch, *_: orch.submit_sub_many(handle, [y[None]], [T.INPUT]),
        ):
            with pytest.raises(TaskError, match="read-only") as caught:
                w.run(submit)
            assert "in fill" in caught.value.remote_traceback
        assert not y.any()
        for tag in (T.INOUT, T.OUTPUT_EXISTING, T.OUTPUT, T.NO_DEP):
            y[:] = 0
            w.run(lambda orch, *_, tag=tag: orch.submit_sub(handle, make_args((y, tag))))
            assert y.tolist() == [7] * 4


@pytest.mark.spec("ORCH-CHECK-7", "SEE-INPUT-1")
@pytest.mark.parametrize(
    "own", [{}, pytest.param({"check": False}, marks=pytest.mark.long)], ids=["checked", "not"]
)
def test_a_task_that_writes_its_input_at_an_endpoint_of_a_fleet_fails_unless_it_says_no(own):
    spec = sr.RemoteWorkerSpec(num_sub_workers=1, serialized=True, options=own)
    with Worker(fleet=spec, endpoints=1, check=True) as w:
        handle, y = w.register(fill), w.share(np.zeros(4, np.int64))
        with nullcontext() if own else pytest.raises(TaskError, match="read-only"):
            w.run(lambda orch, *_: orch.submit_sub(handle, make_args((y, T.INPUT))))
        with nullcontext() if own else pytest.raises(HazardError, match="write to INPUT"):
            w.submit(fill_below, y).result()
        assert not y.any()
        for tag in (T.INOUT, T.OUTPUT_EXISTING):
            y[:] = 0
            w.run(lambda orch, *_, tag=tag: orch.submit_sub(handle, make_args((y, tag))))
            assert y.tolist() == [7] * 4


@pytest.mark.spec("ORCH-CHECK-9")
def test_memory_of_other_workers_is_not_compared():
    def prepare(worker):
        for _ in range(2):
            worker.add_next_level(SubWorker())

    with ByHand(prepare, check=True) as by_hand:
        there = ContinuousTensor.make(0x5000, (8,), DataType.UINT8, child_memory=True)
        here = ContinuousTensor.make(0x5000, (8,), DataType.UINT8)
        handle = by_hand.worker.register(print)

        def overwrite(worker, tensor):
            task = make_args((tensor, T.OUTPUT_EXISTING))
            by_hand.orch.submit_next_level(handle, task, worker=worker)

        for worker, tensor in ((0, there), (1, there), (0, here)):
            overwrite(worker, tensor)
        with pytest.raises(HazardError):
            overwrite(1, there)


@pytest.mark.spec("ORCH-CHECK-9")
def test_a_recording_is_checked_when_made_and_arguments_of_replays_must_not_share_memory(w):
    table = w.share(np.ones((3, WORDS), np.int64))

    def orch_fn(orch, args, config):
        buffer = orch.alloc(WORDS, np.int64)
        orch.submit_sub(w.fill, make_args((buffer, T.INOUT)))
        orch.submit_sub(w.add, make_args((buffer, T.INPUT), (args.tensor(0), T.INOUT)))
        orch.submit_sub(w.add, make_args((args.tensor(0), T.INPUT), (args.tensor(1), T.INOUT)))

    def race(orch, args, config):
        submits(w, [(args.tensor(0), T.INPUT)], [(args.tensor(0), T.INOUT)])(orch)

    def forget(orch, args, config):
        with orch.scope():
            buffer = orch.alloc(WORDS, np.int64)
        submits(w, [(buffer, T.INPUT)])(orch)

    first = make_args((table[0], T.INPUT), (table[1], T.INPUT))
    for wrong, kind in ((race, "write after read"), (forget, "use after scope")):
        with pytest.raises(HazardError, match=kind):
            w.record(wrong, first)
    graph = w.record(orch_fn, first)
    graph.run()
    graph.run(make_args((table[1], T.INPUT), (table[2], T.INPUT)))
    assert table[:, 0].tolist() == [8, 16, 17]
    with pytest.raises(ValueError, match="tensors 0 and 1 of args share memory"):
        graph.run(make_args((table[1], T.INPUT), (table[1], T.INPUT)))
