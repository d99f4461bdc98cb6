"""FLOW-BUILD: what the caller fills in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import task_interface as ti
from simpler_ref.system import regions
from simpler_ref.task_interface import ContinuousTensor, DataType, TaskArgs
from simpler_ref.task_interface import TensorArgType as T
from tests.conformance.task_flow.test_data import tensors


@pytest.mark.spec("FLOW-BUILD-1")
@given(
    given_tensors=st.lists(st.tuples(tensors, st.sampled_from(list(T))), max_size=6),
    scalars=st.lists(st.integers(0, 2**64 - 1), max_size=6),
)
def test_arguments_are_what_was_added_in_order(given_tensors, scalars):
    args = TaskArgs()
    for tensor, tag in given_tensors:
        args.add_tensor(tensor, tag)
    for value in scalars:
        args.add_scalar(value)
    assert (args.tensor_count(), args.scalar_count()) == (len(given_tensors), len(scalars))
    assert len(args) == len(given_tensors) + len(scalars)
    for i, (tensor, tag) in enumerate(given_tensors):
        assert (args.tensor(i), args.tag(i)) == (tensor, tag)
    assert [args.scalar(i) for i in range(len(scalars))] == scalars
    args.clear()
    assert len(args) == 0
    for look, what in ((args.tensor, "tensor"), (args.tag, "tag"), (args.scalar, "scalar")):
        with pytest.raises(IndexError, match=what):
            look(0)


@pytest.mark.spec("FLOW-BUILD-2")
def test_a_tag_can_be_set_and_changes_nothing_else():
    tensor, args = ContinuousTensor.make(4096, (2, 3), DataType.INT16), TaskArgs()
    args.add_tensor(tensor)
    assert args.tag(0) == T.INPUT
    args.set_tag(0, T.INOUT)
    assert (args.tag(0), args.tensor(0)) == (T.INOUT, tensor)
    for bad in (5, -1, "INPUT", None):
        with pytest.raises(ValueError, match="no TensorArgType"):
            args.set_tag(0, bad)
        with pytest.raises(ValueError, match="no TensorArgType"):
            args.add_tensor(tensor, bad)
    assert (len(args), args.tag(0)) == (1, T.INOUT)
    for index in (1, -1):
        with pytest.raises(IndexError, match="tag index"):
            args.set_tag(index, T.INPUT)


class Column:
    """An array of another library: numpy makes a view of it."""

    def __init__(self, array, way):
        setattr(self, way, getattr(array, way))


@pytest.mark.spec("FLOW-BUILD-5")
@pytest.mark.parametrize("way", ["__array_interface__", "__dlpack__"])
def test_arrays_of_other_libraries_are_accepted_where_they_are(way):
    shared = regions.create(4096)[:24].view(np.int16).reshape(3, 4)
    column = Column(shared, way)
    if way == "__dlpack__":
        column.__dlpack_device__ = shared.__dlpack_device__
    expected = ContinuousTensor.make(shared.ctypes.data, (3, 4), DataType.INT16)
    assert ti.make_tensor(column) == expected
    with pytest.raises(ValueError, match="private to this process"):
        private = np.zeros(3, np.float32)
        column = Column(private, way)
        column.__dlpack_device__ = private.__dlpack_device__
        ti.make_tensor(column)

    class Series:
        def __array__(self, dtype=None, copy=None):
            return shared[::-1]

    tensor = ti.make_tensor(Series())
    assert (tensor.data, tensor.strides) == (shared[-1:].ctypes.data, (-8, 2))
