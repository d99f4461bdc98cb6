"""ORCH-SUBMIT: the seven steps of a submit."""

import struct

import numpy as np
import pytest

from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import auto, make_args, no_passes, reads, updates, writes


@pytest.mark.spec("ORCH-SUBMIT-2", "ORCH-SUBMIT-3")
def test_changing_the_task_args_after_submit_changes_nothing_for_the_task_which_sees_no_tag(w):
    x, y, seen = w.share(np.full(1, 1)), w.share(np.full(1, 2)), w.zeros(3, np.int64)

    @w.register
    def look(args):
        with pytest.raises(RuntimeError, match="tags"):
            args.tag(0)
        seen[:] = args.tensor(0).numpy()[0], args.tensor_count(), args.scalar(0)

    def orch_fn(orch, _args, _config):
        with no_passes(orch._mem):
            args = make_args((x, T.INPUT), scalars=[42])
            orch.submit_sub(look, args)
            args.clear()
            args.add_tensor(y)
            args.add_tensor(y)
            args.add_scalar(43)

    w.run(orch_fn)
    assert seen.tolist() == [1, 1, 42]


@pytest.mark.spec("ORCH-SUBMIT-1", "ORCH-SUBMIT-4", "ORCH-SUBMIT-5", "ORCH-SUBMIT-6")
@pytest.mark.spec("ORCH-SUBMIT-7")
def test_submit_claims_once_queues_once_takes_one_reference_and_writes_no_producers_list(driver):
    producers = [driver.submit(writes(4096)), driver.submit(writes(8192), auto(1500), auto(10))]
    assert (driver.live(), driver.held(0)) == (2, 3 * 1024)
    before = driver.words()
    assert driver.try_submit([auto(62 * 1024)]) == L.WOULD_BLOCK
    assert driver.changed_since(before) == [], "no slot either"
    assert [driver.lookup(4096), driver.lookup(8192)] == producers
    assert [driver.id(slot) for slot in producers] == [0, 1]
    assert driver.wiring_queue() == producers
    driver.open_scope()
    consumer = driver.submit(reads(4096), updates(8192), reads(8192), reads(12288))
    driver.close_scope()
    assert [driver.refs(slot) for slot in (*producers, consumer)] == [(2, 0), (2, 0), (1, 1)]
    assert driver.wiring_queue() == [*producers, consumer]
    assert {edge.producer for edge in driver.edges(consumer)} == set(producers)
    assert {edge.consumer for edge in driver.edges(consumer)} == {consumer}
    assert [driver.consumers(producer) for producer in producers] == [[], []]
    driver.run_pass()
    assert [driver.consumers(producer) for producer in producers] == [[consumer], [consumer]]
    assert driver.fanin(consumer) == 2, "its distinct producers"


TENSOR = auto(100).wire()
TWO = struct.pack("<QQ", 1 | 1 << 32, 1)
"""A member with one tensor and one scalar, for worker 0."""
SCALAR = bytes(8 * L.SCALAR_WORDS)
GROUP = TENSOR * 2 + SCALAR * 2 + TWO * 2
BYTES = {
    "a scalar less": (2 << 32, 0, SCALAR),
    "part of a scalar": (1 << 32, 0, SCALAR[:-1]),
    "a tensor less": (2, 0, TENSOR),
    "no tensor": (1, 0, b""),
    "scalars below none": (5 | -25 << 32, 0, TENSOR),
    "many tensors, paid for with scalars": (0xFFFFFFFF | -(1 << 31) << 32, 0, TENSOR),
    "members that are not there": (2 | 2 << 32, 2, GROUP[:-8]),
    "members below none": (2 | 2 << 32, -1, GROUP),
    "more members than words": (2 | 2 << 32, 1 << 62, GROUP),
    "members with less than all": (3 | 2 << 32, 2, TENSOR + GROUP),
    "members with more than all": (2 | 1 << 32, 2, TENSOR * 2 + SCALAR + TWO * 2),
    "a member for a worker that is none": (2 | 2 << 32, 2, GROUP[:-8] + struct.pack("<Q", 3)),
    "a member for a worker below none": (2 | 2 << 32, 2, GROUP[:-8] + b"\xff" * 8),
    "an element type that is none": (1, 0, TENSOR[:32] + b"\x0c" + TENSOR[33:]),
    "six dimensions": (1, 0, TENSOR[:28] + b"\6" + TENSOR[29:]),
    "dimensions below none": (1, 0, TENSOR[:28] + b"\xff" * 4 + TENSOR[32:]),
    "more bytes than there can be": (1, 0, TENSOR[:8] + b"\xff" * 20 + b"\5" + TENSOR[29:]),
}


@pytest.mark.spec("ORCH-MISUSE-1")
@pytest.mark.parametrize("what", BYTES)
def test_bytes_that_are_not_what_was_announced_are_refused_and_change_nothing(driver, what):
    before, word, k = driver.words(), L.SUB << L.WORD_KIND, driver.k
    counts, members, wire = BYTES[what]
    assert k.submit_and_pass(driver.mem, word, counts, members, wire) == L.ILLEGAL
    if what.startswith(("an element", "six", "dimensions", "more bytes", "no tensor")):
        assert k.alloc_buffer(driver.mem, wire) == L.ILLEGAL
    assert driver.changed_since(before) == []
