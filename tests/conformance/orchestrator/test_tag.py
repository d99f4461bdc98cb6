"""ORCH-TAG: what each tag means."""

import pytest

from simpler_ref import TaskArgs
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import ignores, key, make_args, overwrites, reads, updates, writes

BUFFER = 4096


MEANING = {  # whether a task waits for the buffer's producer, and whether it becomes the producer
    reads: (True, False),
    writes: (False, True),
    updates: (True, True),
    overwrites: (False, True),
    ignores: (False, False),
}


@pytest.mark.spec("ORCH-TAG-1", "ORCH-TAG-2", "ORCH-TAG-3", "ORCH-TAG-4", "ORCH-TAG-5")
@pytest.mark.parametrize("tag", MEANING, ids=lambda tag: tag.__name__)
def test_a_tag_says_whether_a_task_waits_and_whether_it_produces(driver, tag):
    waits, produces = MEANING[tag]
    first = driver.submit(writes(BUFFER))
    task = driver.submit(tag(BUFFER), tag(2 * BUFFER))
    assert driver.producers(task) == [first] * waits
    assert driver.lookup(BUFFER) == (task if produces else first)
    assert driver.lookup(2 * BUFFER) == (task if produces else L.NONE)
    assert driver.map_count() == 1 + produces
    assert driver.producers(driver.submit(reads(2 * BUFFER))) == [task] * produces


@pytest.mark.spec("ORCH-TAG-7")
@pytest.mark.parametrize("tag", [writes, updates, overwrites])
def test_only_inout_keeps_the_allocating_task_alive_while_the_writer_runs(driver, tag):
    driver.open_scope()
    buffer = driver.alloc(2048)
    writer, keeps = driver.submit(tag(driver.address(buffer))), tag is updates
    assert driver.refs(buffer) == (1 + keeps, 1)
    driver.settle()  # the writer runs now
    driver.close_scope()
    assert (driver.held(1) == 2048) == keeps
    driver.answer_and_settle(driver.worker_of(writer))
    driver.reclaim()
    assert driver.held(1) == 0


@pytest.mark.spec("ORCH-TAG-8")
def test_a_tensor_added_without_a_tag_is_input():
    args = TaskArgs()
    args.add_tensor(key(BUFFER))
    assert args.tag(0) is T.INPUT
    assert args._tensors == make_args((key(BUFFER), T.INPUT))._tensors
