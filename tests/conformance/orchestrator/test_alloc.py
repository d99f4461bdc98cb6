"""ORCH-ALLOC: buffers that belong to the run."""

from itertools import permutations

import numpy as np
import pytest

from simpler_ref import DataType
from simpler_ref.jit import layout as L
from tests.support import COMPLETED, CONSUMED, auto, inside, reads, updates


@pytest.mark.spec("ORCH-ALLOC-1", "ORCH-ALLOC-6", "ORCH-SCOPE-1")
def test_alloc_returns_an_aligned_tensor_in_the_ring_of_the_scope_depth(w):
    cases = [
        ((3, 5), DataType.FLOAT32, (3, 5), DataType.FLOAT32),
        (7, "int64", (7,), DataType.INT64),
        ((2, 2, 2, 2, 2), np.uint8, (2, 2, 2, 2, 2), DataType.UINT8),
        *[((1,), np.bool_, (1,), DataType.BOOL)] * 3,
    ]

    def orch_fn(orch, args, config):
        ring = orch.ring
        for depth, (shape, dtype, shapes, kind) in enumerate(cases):
            tensor = orch.alloc(shape, dtype)
            assert (tensor.shapes, tensor.dtype, tensor.data % 1024) == (shapes, kind, 0)
            base, size = ring.heap_base(min(depth, 3)), ring.heap_size(min(depth, 3))
            assert inside(tensor.data, tensor.nbytes(), base, size)
            orch.scope_begin()
        empty = orch.alloc((3, 0), "float32")
        assert (empty.data, empty.shapes, empty.nbytes()) == (0, (3, 0), 0)

    assert w.run(orch_fn).tasks == 7


@pytest.mark.spec("ORCH-ALLOC-2")
def test_an_alloc_is_completed_and_has_let_go_from_the_start_and_is_never_dispatched(make_driver):
    driver = make_driver(run=False)
    slot = driver.alloc(100)
    assert (driver.refs(slot), driver.state(slot)) == ((0, 1), COMPLETED), "no scope is open"
    assert inside(driver.address(slot), 100, driver.ring_word(0, L.R_BASE), 1 << 16)
    for nbytes in (100, 0):
        driver.open_scope()
        slot = driver.alloc(nbytes)
        assert (driver.refs(slot), driver.state(slot)) == ((1, 1), COMPLETED)
        assert driver.producers(slot) == driver.wiring_queue() == []
        assert (driver.run_pass(), driver.ready_queue(), driver.worker_of(slot)) == (0, [], -1)


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
            driver.answer_and_settle(driver.worker_of(consumers[step]))
        assert (driver.state(slot) in (CONSUMED, 0)) == (left == 0)
        driver.reclaim()
    assert driver.held(1) == 0


@pytest.mark.spec("ORCH-ALLOC-3", "ORCH-ALLOC-7")
@pytest.mark.parametrize("claim", ["alloc", "auto"])
def test_a_reader_behind_another_producer_keeps_the_slab(driver, claim):
    driver.open_scope()
    owner = driver.alloc(4096) if claim == "alloc" else driver.submit(auto(4096))
    address = driver.address(owner)
    writer, reader = driver.submit(updates(address)), driver.submit(reads(address))
    assert driver.producers(writer) == [owner]
    assert sorted(driver.producers(reader)) == sorted([writer, owner])
    driver.close_scope()
    if claim == "auto":
        driver.finish(owner)
    driver.finish(writer)
    driver.reclaim()
    assert driver.state(writer) == COMPLETED  # nor is it gone before its reader
    assert driver.held(1) == 4096
    driver.finish(reader)
    driver.reclaim()
    assert driver.held(1) == 0
