"""ORCH-AUTO: outputs without memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import ContinuousTensor, DataType, TaskArgs
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import Arg, Driver, auto, writes


@pytest.mark.spec("ORCH-AUTO-1", "ORCH-AUTO-2")
@pytest.mark.kernels
@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=5), scopes=st.integers(0, 5))
def test_slabs_of_a_submit_are_one_claim_of_aligned_disjoint_pieces_in_the_ring_of_its_depth(
    sizes, scopes
):
    driver, ring = Driver(), min(scopes, 3)
    for _ in range(scopes):
        driver.open_scope()
    driver.alloc(700)
    slot = driver.submit(*[auto(size) for size in sizes])
    rounded = [L.round_up(size, 1024) for size in sizes]
    base = driver.ring_word(ring, L.R_BASE)
    held = 1024 + sum(rounded)
    assert [driver.held(i) for i in range(4)] == [held * (i == ring) for i in range(4)]
    assert driver.ring_word(ring, L.R_NEXT) == 2  # one claim for the alloc, one for the submit
    assert base % 1024 == 0
    addresses = [driver.address(slot, i) for i in range(len(sizes))]
    assert addresses == [base + 1024 + sum(rounded[:i]) for i in range(len(sizes))]
    driver.finish_run()
    driver.finish(slot)
    assert driver.held(ring) == sum(rounded)  # all of them return when the task is reclaimed
    assert (driver.reclaim(), driver.held(ring)) == (1, 0)
    driver.close()


@pytest.mark.spec("ORCH-AUTO-4")
def test_every_output_without_address_is_written_back_and_no_other_tensor(w):
    handle, x = w.register(lambda args: None), w.empty((4,), np.int64)
    args = TaskArgs()
    for i in range(70):  # more than one word of the output mask
        empty = ContinuousTensor.make(0, (1 + i,), DataType.INT64)
        args.add_tensor(empty if i % 2 else x, T.OUTPUT if i % 3 else T.NO_DEP)
    before = [args.tensor(i) for i in range(70)]
    w.run(lambda orch, *_: orch.submit_sub(handle, args))
    for i, tensor in enumerate(before):
        after = args.tensor(i)
        if i % 2 and i % 3:
            assert after.data % 1024 == 0 and after.data != 0
            assert (after.shapes, after.dtype) == (tensor.shapes, tensor.dtype)
        else:
            assert after == tensor


@pytest.mark.spec("ORCH-AUTO-5", "ORCH-AUTO-7")
@pytest.mark.parametrize(
    ("arg", "address"),
    [
        (writes(4096, nbytes=5000), 4096),
        *((Arg(tag, 0, 3000), 0) for tag in T if tag != T.OUTPUT),
        (auto(0), 0),
    ],
)
def test_any_other_tensor_keeps_its_address_and_takes_nothing(driver, arg, address):
    slot = driver.submit(arg)
    assert (driver.address(slot), driver.held(0)) == (address, 0)
    assert driver.map_count() == bool(address)
