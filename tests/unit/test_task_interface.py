"""Tensors, arguments, scalars and configuration, byte by byte."""

from __future__ import annotations

import ctypes
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import task_interface as ti
from simpler_ref.shared_arrays import create_region
from simpler_ref.task_interface import CallConfig, ContinuousTensor, DataType, TaskArgs
from simpler_ref.task_interface import TensorArgType as T

NUMPY = {
    DataType.FLOAT32: np.float32,
    DataType.FLOAT16: np.float16,
    DataType.INT32: np.int32,
    DataType.INT16: np.int16,
    DataType.INT8: np.int8,
    DataType.UINT8: np.uint8,
    DataType.INT64: np.int64,
    DataType.UINT64: np.uint64,
    DataType.UINT16: np.uint16,
    DataType.UINT32: np.uint32,
    DataType.BOOL: np.bool_,
}

tensors = st.builds(
    ContinuousTensor.make,
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 4000), max_size=5),
    st.sampled_from(list(DataType)),
    st.booleans(),
)


# ---------------------------------------------------------------- tensors
@given(tensor=tensors)
def test_a_tensor_survives_its_wire_form(tensor):
    padded = [*tensor.shapes, 0, 0, 0, 0, 0][:5]
    expected = struct.pack(
        "<Q5IIBB6x", tensor.data, *padded, tensor.ndims, tensor.dtype, tensor.child_memory
    )
    assert tensor._wire == expected
    assert ContinuousTensor._from_wire(expected) == tensor
    assert hash(ContinuousTensor._from_wire(expected)) == hash(tensor)


@given(tensor=tensors, tag=st.sampled_from(list(T)))
def test_a_tag_rides_in_the_padding_and_nowhere_else(tensor, tag):
    tagged = tensor._wires[tag]
    assert len(tagged) == 40
    assert tagged[34] == tag
    assert tagged[:34] + bytes(6) == tensor._wire


@given(tensor=tensors)
def test_the_bytes_of_a_tensor_are_its_elements_times_their_size(tensor):
    assert tensor.nbytes() == math.prod(tensor.shapes) * ti.get_element_size(tensor.dtype)


def test_a_tensor_without_dimensions_has_one_element():
    assert ContinuousTensor.make(4096, (), DataType.INT32).nbytes() == 4


@pytest.mark.parametrize(
    ("data", "shapes", "dtype", "word"),
    [
        (-1, (1,), DataType.INT8, "-1"),
        (2**64, (1,), DataType.INT8, str(2**64)),
        (0, (1, 1, 1, 1, 1, 1), DataType.INT8, "at most 5"),
        (0, (-1,), DataType.INT8, "outside"),
        (0, (2**32,), DataType.INT8, "outside"),
        (0, (2**31, 2**31), DataType.INT8, "address space"),
        (0, (1,), 12, "12"),
    ],
)
def test_what_is_no_tensor_is_refused(data, shapes, dtype, word):
    with pytest.raises(ValueError, match=word):
        ContinuousTensor.make(data, shapes, dtype)


def test_a_tensor_cannot_be_changed():
    tensor = ContinuousTensor.make(4096, (2,), DataType.INT8)
    for name in ("data", "shapes", "dtype", "child_memory"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(tensor, name, getattr(tensor, name))


@pytest.mark.parametrize("dtype", NUMPY, ids=lambda dtype: dtype.name)
def test_a_view_is_the_memory_itself(dtype):
    memory = np.zeros((3, 4), NUMPY[dtype])
    tensor = ContinuousTensor.make(memory.ctypes.data, memory.shape, dtype)
    view = tensor.numpy()
    assert (view.shape, view.dtype) == (memory.shape, memory.dtype)
    view[1, 2] = 1
    assert memory[1, 2] == 1
    assert memory.sum() == 1


def test_a_tensor_without_memory_of_the_host_has_no_view():
    with pytest.raises(ValueError, match="no memory yet"):
        ContinuousTensor.make(0, (3,), DataType.INT8).numpy()
    with pytest.raises(ValueError, match="next-level"):
        ContinuousTensor.make(4096, (3,), DataType.INT8, True).numpy()
    assert ContinuousTensor.make(0, (0, 3), DataType.INT8).numpy().shape == (0, 3)


# ---------------------------------------------------------------- element types
@pytest.mark.parametrize("dtype", DataType, ids=lambda dtype: dtype.name)
def test_element_types_have_a_size_and_a_name(dtype):
    if dtype in NUMPY:
        assert ti.get_element_size(dtype) == np.dtype(NUMPY[dtype]).itemsize
        assert ti.numpy_dtype(dtype) == np.dtype(NUMPY[dtype])
        for same in (NUMPY[dtype], np.dtype(NUMPY[dtype]), np.dtype(NUMPY[dtype]).name, dtype):
            assert ti.to_dtype(same) is dtype
    assert ti.get_dtype_name(dtype) == dtype.name
    assert ti.to_dtype(int(dtype)) is dtype


def test_bfloat16_is_two_bytes_and_known_by_name():
    assert ti.get_element_size(DataType.BFLOAT16) == 2
    assert ti.to_dtype("torch.bfloat16") is DataType.BFLOAT16


@pytest.mark.parametrize(
    "bad", [np.float64, np.complex64, np.dtype(">i4"), "U3", "nonsense", object, None, []]
)
def test_a_type_that_no_tensor_can_have_is_refused(bad):
    with pytest.raises(TypeError, match="cannot be passed to a task"):
        ti.to_dtype(bad)


# ---------------------------------------------------------------- scalars
@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0, 0),
        (1, 1),
        (True, 1),
        (2**64 - 1, 2**64 - 1),
        (-1, 2**64 - 1),
        (-(2**63), 2**63),
        (1.0, 0x3FF0000000000000),
        (-0.0, 0x8000000000000000),
        (float("inf"), 0x7FF0000000000000),
        (np.float64(1.0), 0x3FF0000000000000),
        (np.float32(1.0), 0x3F800000),
        (ctypes.c_float(1.0), 0x3F800000),
        (ctypes.c_double(1.0), 0x3FF0000000000000),
        (ctypes.c_int32(-1), 2**64 - 1),
        (np.int8(-1), 2**64 - 1),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), 1),
    ],
)
def test_a_scalar_becomes_64_bits(value, bits):
    assert ti.scalar_to_uint64(value) == bits
    args = TaskArgs()
    args.add_scalar(value)
    assert args.scalar(0) == bits


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_a_scalar_that_does_not_fit_64_bits_is_refused(value):
    args = TaskArgs()
    with pytest.raises(OverflowError, match="does not fit"):
        args.add_scalar(value)
    assert len(args) == 0


@given(value=st.floats(allow_nan=False))
def test_a_float_comes_back_as_it_was(value):
    args = TaskArgs()
    args.add_scalar(value)
    assert struct.pack("<d", args.scalar_float(0)) == struct.pack("<d", value)


# ---------------------------------------------------------------- arguments
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


def test_a_tag_can_be_set_and_changes_nothing_else():
    tensor = ContinuousTensor.make(4096, (2, 3), DataType.INT16)
    args = TaskArgs()
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


def test_tensors_come_before_scalars():
    args = TaskArgs()
    args.add_scalar(1)
    with pytest.raises(RuntimeError, match="cannot add tensor after scalar"):
        args.add_tensor(ContinuousTensor.make(4096, (1,), DataType.INT8))


def test_what_is_no_array_is_no_argument():
    args = TaskArgs()
    for thing in (None, 3, "text", [1, 2], memoryview(b"abc")):
        with pytest.raises(TypeError, match="expected a ContinuousTensor or an array"):
            args.add_tensor(thing)
    assert len(args) == 0


def test_an_array_in_shared_memory_is_described_and_a_private_one_refused():
    shared = create_region(4096)[:24].view(np.int16).reshape(3, 4)
    tensor = ti.make_tensor(shared)
    assert (tensor.data, tensor.shapes, tensor.dtype) == (
        shared.ctypes.data,
        (3, 4),
        DataType.INT16,
    )
    with pytest.raises(ValueError, match="not contiguous"):
        ti.make_tensor(shared[:, ::2])
    with pytest.raises(ValueError, match="private to this process"):
        ti.make_tensor(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="cannot be passed"):
        ti.make_tensor(shared.view(np.dtype(">i2")))


# ---------------------------------------------------------------- configuration
def test_the_defaults_of_a_config():
    config = CallConfig()
    assert config.aicpu_thread_num == 3
    assert config.block_dim == 0
    assert config.output_prefix == ""
    config.validate()


@pytest.mark.parametrize(
    "name",
    [
        "enable_l2_swimlane",
        "enable_dump_tensor",
        "enable_pmu",
        "enable_dep_gen",
        "enable_scope_stats",
    ],
)
def test_a_diagnostic_needs_a_place_to_write_to(name):
    config = CallConfig(**{name: 1})
    with pytest.raises(ValueError, match="output_prefix"):
        config.validate()
    config.output_prefix = "/tmp/x"
    config.validate()


@pytest.mark.parametrize(
    "fields",
    [
        {"block_dim": -1},
        {"block_dim": 2**31},
        {"block_dim": "3"},
        {"enable_l2_swimlane": 5, "output_prefix": "x"},
        {"output_prefix": "x" * 1024},
        {"output_prefix": "ü" * 512},
    ],
    ids=str,
)
def test_a_config_out_of_range_is_refused(fields):
    with pytest.raises(ValueError, match=r"CallConfig\."):
        CallConfig(**fields).to_bytes()


def test_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="no field 'blockdim'"):
        CallConfig(blockdim=3)


@given(
    block_dim=st.integers(0, 2**31 - 1),
    swimlane=st.integers(0, 4),
    prefix=st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=255
    ),
)
def test_a_config_survives_its_wire_form(block_dim, swimlane, prefix):
    config = CallConfig(block_dim=block_dim, enable_l2_swimlane=swimlane, output_prefix=prefix)
    again = CallConfig.from_bytes(config.to_bytes())
    assert repr(again) == repr(config)
