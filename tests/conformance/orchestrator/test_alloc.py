"""ORCH-ALLOC: buffers that belong to the run."""

import time
from itertools import permutations

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import COMPLETED, CONSUMED, Driver, inside, make_args, reads, updates, writes


@pytest.mark.spec("ORCH-ALLOC-1")
def test_alloc_returns_an_aligned_tensor_in_the_ring_of_the_scope_depth(w):
    cases = [
        ((3, 5), DataType.FLOAT32, (3, 5), DataType.FLOAT32),
        (7, "int64", (7,), DataType.INT64),
        ((2, 2, 2, 2, 2), np.uint8, (2, 2, 2, 2, 2), DataType.UINT8),
        ((1,), np.bool_, (1,), DataType.BOOL),
    ]

    def orch_fn(orch, args, config):
        ring = orch.ring
        for depth, (shape, dtype, shapes, kind) in enumerate(cases):
            tensor = orch.alloc(shape, dtype)
            assert (tensor.shapes, tensor.dtype, tensor.data % 1024) == (shapes, kind, 0)
            base, size = ring.heap_base(depth), ring.heap_size(depth)
            assert inside(tensor.data, tensor.nbytes(), base, size)
            orch.scope_begin()

    w.run(orch_fn)


@pytest.mark.spec("ORCH-ALLOC-2")
def test_an_alloc_is_completed_from_the_start_and_never_dispatched(driver):
    slot = driver.alloc(100)
    assert driver.state(slot) == COMPLETED
    assert driver.producers(slot) == []
    assert driver.wiring_queue() == []
    assert driver.run_pass() == 0
    assert driver.ready_queue() == []
    assert driver.worker_of(slot) == -1


@pytest.mark.spec("ORCH-ALLOC-2")
def test_a_run_of_allocs_only_ends_without_any_worker():
    with Worker(3, heap_ring_size=1 << 16) as alone:
        assert alone.run(lambda orch, *_: [orch.alloc(10, "int8") for _ in range(20)]).tasks == 20


@pytest.mark.spec("ORCH-ALLOC-3")
def test_the_address_leads_to_the_alloc_until_another_task_writes(driver):
    slot = driver.alloc(100)
    address = driver.address(slot)
    assert driver.lookup(address) == slot
    reader = driver.submit(reads(address))
    assert driver.producers(reader) == [slot]
    assert driver.lookup(address) == slot
    writer = driver.submit(writes(address))
    assert driver.lookup(address) == writer


@pytest.mark.spec("ORCH-ALLOC-4")
def test_an_alloc_begins_with_its_own_reference_released_and_one_for_the_scope(driver):
    assert driver.refs(driver.alloc(100)) == (1, 1)
    driver.open_scope()
    assert driver.refs(driver.alloc(0)) == (1, 1)


@pytest.mark.spec("ORCH-ALLOC-4")
def test_an_alloc_without_an_open_scope_has_no_scope_reference():
    driver = Driver(run=False)
    slot = driver.alloc(100)
    assert driver.refs(slot) == (0, 1)
    assert driver.state(slot) == COMPLETED
    assert inside(driver.address(slot), 100, driver.ring(0, L.R_BASE), 1 << 16)


@pytest.mark.spec("ORCH-ALLOC-5")
@pytest.mark.parametrize("releases", list(permutations(["scope", "first", "second"])), ids=" ".join)
def test_a_consumer_never_waits_for_an_alloc_but_keeps_its_slab(driver, releases):
    driver.open_scope()
    slot = driver.alloc(2000)
    address = driver.address(slot)
    driver.open_scope()  # the consumers' own scope ends first, so that it does not matter
    consumers = {name: driver.submit(reads(address)) for name in ("first", "second")}
    driver.close_scope()
    driver.settle()
    assert [driver.fanin(c) for c in consumers.values()] == [0, 0]
    assert sorted(driver.given(w) for w in range(2)) == sorted(consumers.values())
    for left, step in zip((2, 1, 0), releases, strict=True):
        assert driver.held(1) == 2048
        if step == "scope":
            driver.close_scope()
        else:
            driver.post_done(driver.worker_of(consumers[step]))
            driver.settle()
        assert (driver.state(slot) in (CONSUMED, 0)) == (left == 0)
        driver.reclaim()
    assert driver.held(1) == 0


@pytest.mark.spec("ORCH-ALLOC-6")
def test_an_alloc_of_zero_bytes_is_a_task_without_slab_and_key(driver):
    slot = driver.alloc(0)
    assert driver.state(slot) == COMPLETED
    assert driver.id(slot) == 0
    assert driver.id(driver.alloc(8)) == 1
    assert driver.address(slot) == 0
    assert driver.held(0) == 1024
    assert driver.map_count() == 1
    assert driver.refs(slot) == (1, 1)
    task = driver.submit(updates(0))
    assert driver.producers(task) == []
    driver.close_scope()
    assert driver.live() == 1  # the task; both allocs are gone


@pytest.mark.spec("ORCH-ALLOC-6")
def test_an_empty_alloc_has_address_zero_for_the_user_too(w):
    def orch_fn(orch, args, config):
        tensor = orch.alloc((3, 0), "float32")
        assert (tensor.data, tensor.shapes, tensor.nbytes()) == (0, (3, 0), 0)
        assert orch.live_tasks() == 1

    assert w.run(orch_fn).tasks == 1


@pytest.mark.spec("ORCH-ALLOC-5", "ORCH-ALLOC-7")
@pytest.mark.parametrize("claim", ["alloc", "auto"])
def test_a_reader_behind_another_producer_keeps_the_slab(claim):
    """The ring holds one slab: the next scope waits until the last reader is done."""

    def fill(args):
        args.tensor(0).numpy()[:] = args.scalar(0)

    def read_late(args):
        source, target = args.tensor(0).numpy(), args.tensor(1).numpy()
        time.sleep(0.05)
        target[:] = source[:1]

    with Worker(3, num_sub_workers=2, heap_ring_size=1 << 20) as w:
        filling, reading = w.register(fill), w.register(read_late)
        rows = [w.empty((1,), np.int32) for _ in range(4)]

        def orch_fn(orch, _args, _config):
            for i, row in enumerate(rows):
                with orch.scope():
                    if claim == "alloc":
                        buffer = orch.alloc((150_000,), "int32")
                    else:
                        nowhere = ContinuousTensor.make(0, (150_000,), DataType.INT32)
                        first = make_args((nowhere, T.OUTPUT), scalars=[99])
                        orch.submit_sub(filling, first)
                        buffer = first.tensor(0)
                    orch.submit_sub(filling, make_args((buffer, T.INOUT), scalars=[i]))
                    orch.submit_sub(reading, make_args((buffer, T.INPUT), (row, T.OUTPUT_EXISTING)))

        w.run(orch_fn)
        assert [int(row[0]) for row in rows] == [0, 1, 2, 3]


@pytest.mark.spec("ORCH-ALLOC-7")
def test_the_owner_of_a_slab_is_pinned_beside_its_producer(driver):
    buffer = driver.alloc(4096)
    address = driver.address(buffer)
    writer = driver.submit(updates(address))
    reader = driver.submit(reads(address))
    assert driver.producers(writer) == [buffer]
    assert sorted(driver.producers(reader)) == sorted([writer, buffer])
