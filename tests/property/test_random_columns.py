"""Random columns: many tasks in one call leave the graph that a loop over the rows leaves.

The acts of tests/preemption do the same with chains on workers, and compare what they compute.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from simpler_ref import ContinuousTensor, DataType, Rows, TaskArgs, TensorArgType
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.model.enums import to_dtype

from ..by_hand import ByHand

BLOCKS = np.frombuffer(mmap.mmap(-1, 1 << 17), np.uint8).reshape(128, 1024)
"""Shared memory that the tensors of all columns are parts of."""
SCALARS = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(width=64),
    st.booleans(),
    st.floats(width=32).map(np.float32),
    st.integers(-100, 100).map(ctypes.c_int32),
)
ELEMENTS = [np.uint8, np.int16, np.float16, np.float32, np.int64]
DTYPES = [np.uint8, np.int16, np.uint32, np.int64, np.uint64, np.float32, np.float64, np.bool_]


@st.composite
def tensor_columns(draw, count):
    """Draw a column of tensors, and the same as a list of what the loop is given."""
    kind = draw(st.sampled_from(["rows", "named", "list", "one", "outputs", "broadcast"]))
    first, step = draw(st.integers(0, 4)), draw(st.sampled_from([1, 2, -1]))
    if kind == "rows":
        array = BLOCKS.view(draw(st.sampled_from(ELEMENTS)))[first:][::step][:count]
        return array, [make_tensor_of(row) for row in array]
    if kind == "named":
        array = BLOCKS.view(draw(st.sampled_from(ELEMENTS)))[first:][::step]
        rows = st.integers(0, len(array) - 1)
        index = draw(st.lists(rows, min_size=count, max_size=count))
        named = np.array(index, draw(st.sampled_from([np.int64, np.uint8]))) if index else index
        return Rows(array, named), [make_tensor_of(array[i]) for i in index]
    if kind == "broadcast":
        array = as_strided(BLOCKS[first], (count, 1024), (0, 1))  # one that may be written
        return array, [make_tensor_of(row) for row in array]
    if kind == "list":
        some = [*map(make_tensor_of, BLOCKS[:6]), output(100), output(0), output(3000)]
        rows = [some[draw(st.integers(0, len(some) - 1))] for _ in range(count)]
        return rows, rows
    tensor = make_tensor_of(BLOCKS[first]) if kind == "one" else output(draw(st.integers(0, 1500)))
    return tensor, [tensor] * count


def make_tensor_of(array):
    return ContinuousTensor.make(array.ctypes.data, array.shape, to_dtype(array.dtype))


def output(nbytes):
    return ContinuousTensor.make(0, (nbytes,), DataType.UINT8)


@st.composite
def tag_columns(draw, count):
    if draw(st.booleans()):
        tag = draw(st.sampled_from(TensorArgType))
        return tag, [tag] * count
    tags = draw(st.lists(st.sampled_from(TensorArgType), min_size=count, max_size=count))
    return tags, tags


@st.composite
def scalar_columns(draw, count):
    kind = draw(st.sampled_from(["array", "list", "one"]))
    if kind == "one":
        value = draw(SCALARS)
        return value, [value] * count
    if kind == "list":
        values = draw(st.lists(SCALARS, min_size=count, max_size=count))
        return values, values
    array = np.arange(count).astype(draw(st.sampled_from(DTYPES))) * 3
    return array, list(array)


@st.composite
def batches(draw):
    count = draw(st.integers(0, 6 if INTERPRETED else 40))
    tensors = draw(st.lists(tensor_columns(count), max_size=8))
    tags = [draw(tag_columns(count)) for _ in tensors]
    scalars = draw(st.lists(scalar_columns(count), max_size=4))
    return count, tensors, tags, scalars


def submit_rows(orch, handle, count, tensors, tags, scalars):
    """Submit the same one by one; return the addresses of all tensors."""
    addresses = np.zeros((count, len(tensors)), np.uint64)
    for i in range(count):
        args = TaskArgs()
        for (_, column), (_, tag) in zip(tensors, tags, strict=True):
            args.add_tensor(column[i], tag[i])
        for _, column in scalars:
            args.add_scalar(column[i])
        orch.submit_sub(handle, args)
        addresses[i] = [args.tensor(j).data for j in range(len(tensors))]
    return addresses


@pytest.mark.spec("SPEED-MANY-1", "SPEED-MANY-2", "SPEED-MANY-3", "SPEED-MANY-4")
@given(before=batches(), batch=batches(), depth=st.integers(0, 5))
def test_many_tasks_in_one_call_leave_the_graph_that_a_loop_leaves(before, batch, depth):
    size = {"heap_ring_size": 1 << 22}
    with ByHand(**size) as one, ByHand(**size) as other:
        answers = []
        for hand, in_bulk in ((one, False), (other, True)):
            submit_rows(hand.orch, hand.sub, *before)
            for _ in range(depth):
                hand.orch.scope_begin()
            count, tensors, tags, scalars = batch
            if in_bulk:
                columns = ([column for column, _ in part] for part in (tensors, tags, scalars))
                got = hand.orch.submit_sub_many(hand.sub, *columns, count=count)
                assert got.shape == (count, len(tensors))
            else:
                got = submit_rows(hand.orch, hand.sub, *batch)
            addresses = hand.relative(got.reshape(-1).view(np.int64)).tolist()
            answers.append((addresses, hand.picture(addresses)))
        assert answers[0] == answers[1]
