"""ORCH-TAG: what each tag means."""

import numpy as np
import pytest

from simpler_ref import TaskArgs, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import (
    Driver,
    ignores,
    key,
    make_args,
    overwrites,
    reads,
    updates,
    writes,
)

BUFFER = 4096


@pytest.mark.spec("ORCH-TAG-1")
def test_input_waits_for_the_producer_and_leaves_the_map_alone(driver):
    producer = driver.submit(writes(BUFFER))
    entries = driver.map_count()
    reader = driver.submit(reads(BUFFER), reads(2 * BUFFER))
    assert driver.producers(reader) == [producer]
    assert driver.lookup(BUFFER) == producer
    assert driver.lookup(2 * BUFFER) == L.NONE
    assert driver.map_count() == entries


@pytest.mark.spec("ORCH-TAG-2")
def test_output_becomes_the_producer_without_waiting(driver):
    driver.submit(writes(BUFFER))
    second = driver.submit(writes(BUFFER))
    assert driver.producers(second) == []
    assert driver.lookup(BUFFER) == second


@pytest.mark.spec("ORCH-TAG-3")
def test_inout_waits_for_the_producer_and_takes_its_place(driver):
    first = driver.submit(writes(BUFFER))
    second = driver.submit(updates(BUFFER))
    assert driver.producers(second) == [first]
    assert driver.lookup(BUFFER) == second


@pytest.mark.spec("ORCH-TAG-4")
def test_output_existing_creates_the_same_edges_as_output():
    maps = []
    for tag in (writes, overwrites):
        driver = Driver()
        driver.submit(writes(BUFFER))
        writer = driver.submit(tag(BUFFER), reads(BUFFER))
        reader = driver.submit(reads(BUFFER))
        maps.append(
            (
                [driver.id(p) for p in driver.producers(writer)],
                [driver.id(p) for p in driver.producers(reader)],
                driver.id(driver.lookup(BUFFER)),
                driver.map_count(),
            )
        )
    assert maps[0] == maps[1] == ([0], [1], 1, 1)


@pytest.mark.spec("ORCH-TAG-4")
def test_only_output_without_an_address_is_given_memory(driver):
    task = driver.submit(overwrites(0), writes(0))
    assert driver.address(task, 0) == 0
    assert driver.address(task, 1) != 0


@pytest.mark.spec("ORCH-TAG-5")
def test_no_dep_creates_no_edge_and_no_entry(driver):
    producer = driver.submit(writes(BUFFER))
    task = driver.submit(ignores(BUFFER), ignores(2 * BUFFER))
    assert driver.producers(task) == []
    assert driver.lookup(BUFFER) == producer
    assert driver.lookup(2 * BUFFER) == L.NONE


@pytest.mark.spec("ORCH-TAG-5")
def test_no_dep_tensors_reach_the_workers_function():
    with Worker(3, num_sub_workers=1) as w:
        x, seen = w.share(np.arange(3)), w.empty((3,), np.int64)

        def leaf(args):
            seen[:] = args.tensor(0).numpy()

        handle = w.register(leaf)
        w.run(lambda orch, *_: orch.submit_sub(handle, make_args((x, T.NO_DEP))))
        assert seen.tolist() == [0, 1, 2]


@pytest.mark.spec("ORCH-TAG-6")
def test_inout_without_a_producer_waits_for_nothing_and_produces(driver):
    first = driver.submit(updates(BUFFER))
    assert driver.producers(first) == []
    second = driver.submit(reads(BUFFER))
    assert driver.producers(second) == [first]


@pytest.mark.spec("ORCH-TAG-7")
@pytest.mark.parametrize("tag", [writes, updates, overwrites])
def test_only_inout_keeps_the_allocating_task_alive_while_the_writer_runs(driver, tag):
    driver.open_scope()
    buffer = driver.alloc(2048)
    address, ring = driver.address(buffer), 1
    writer = driver.submit(tag(address))
    keeps = tag is updates
    assert driver.refs(buffer) == (1 + keeps, 1)
    driver.settle()  # the writer runs now
    driver.close_scope()
    assert (driver.held(ring) == 2048) == keeps
    driver.post_done(driver.worker_of(writer))
    driver.settle()
    driver.reclaim()
    assert driver.held(ring) == 0


@pytest.mark.spec("ORCH-TAG-8")
def test_a_tensor_added_without_a_tag_is_input():
    args = TaskArgs()
    args.add_tensor(key(BUFFER))
    assert args.tag(0) is T.INPUT
    explicit = make_args((key(BUFFER), T.INPUT))
    assert args._tensors == explicit._tensors
