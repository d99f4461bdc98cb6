"""FLOW-DATA: numbers and tensors."""

import copy
import itertools
import math
import pickle
import struct

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from simpler_ref import task_interface as ti
from simpler_ref.callable_identity import CallableKind, TargetNamespace
from simpler_ref.model.tensor import RECORDED_FIRST, RECORDED_LAST
from simpler_ref.task_interface import ContinuousTensor, DataType, TaskArgs
from simpler_ref.task_interface import TensorArgType as T
from tests.spec_rules import tables

NUMPY = {one: np.dtype(one.name.lower()) for one in DataType if one != DataType.BFLOAT16}

tensors = st.builds(
    ContinuousTensor.make,
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 3000), max_size=5),
    st.sampled_from(list(DataType)),
    st.booleans(),
)


@pytest.mark.spec("FLOW-DATA-1", "FLOW-DATA-2")
def test_element_types_and_enumerations_have_the_values_of_the_tables():
    types, enumerations = tables("FLOW-DATA")
    rows = [row[i : i + 3] for row in types for i in (0, 3)]
    assert {name: (int(n), int(size)) for name, n, size in rows} == {
        kind.name: (int(kind), ti.get_element_size(kind)) for kind in DataType
    }
    kinds = (
        *(ti.TensorArgType, ti.ArgDirection, ti.WorkerType, ti.TaskState, ti.MailboxState),
        *(CallableKind, TargetNamespace),
    )
    for kind, (name, values) in zip(kinds, enumerations, strict=True):
        assert name == kind.__name__
        first, *_ = names = values.split(", ")
        start = int(first.split()[1]) if " " in first else 0
        assert [one.name for one in kind] == [text.split()[0] for text in names]
        assert list(map(int, kind)) == list(range(start, start + len(names)))


@pytest.mark.spec("FLOW-DATA-3", "FLOW-DATA-5", "FLOW-DATA-8")
@given(tensor=tensors)
@example(ContinuousTensor.make(4096, (), DataType.INT32))
def test_a_tensor_survives_its_wire_form_and_has_its_elements_times_their_size_as_bytes(tensor):
    assert tensor.nbytes() == math.prod(tensor.shapes) * ti.get_element_size(tensor.dtype)
    padded = [*tensor.shapes, 0, 0, 0, 0, 0][:5]
    rest = tensor.ndims, tensor.dtype, tensor.child_memory
    expected = struct.pack("<Q5IIBB6x", tensor.data, *padded, *rest)
    assert (tensor._wire, ContinuousTensor._from_wire(expected)) == (expected, tensor)
    assert hash(ContinuousTensor._from_wire(expected)) == hash(tensor)
    for tag in T:  # it rides in the padding and nowhere else
        tagged = tensor._wires[tag]
        assert (len(tagged), tagged[34], tagged[:34] + bytes(6)) == (40, tag, expected)
    assert copy.copy(tensor) == pickle.loads(pickle.dumps(tensor)) == tensor


@pytest.mark.spec("FLOW-DATA-4")
def test_what_is_no_tensor_is_refused():
    for data, shapes, dtype, word in (
        *((-1, (1,), DataType.INT8, "-1"), (2**64, (1,), DataType.INT8, str(2**64))),
        (0, (1, 1, 1, 1, 1, 1), DataType.INT8, "at most 5"),
        *((0, (-1,), DataType.INT8, "outside"), (0, (2**32,), DataType.INT8, "outside")),
        *((0, (2**31, 2**31), DataType.INT8, "address space"), (0, (1,), 12, "12")),
    ):
        for make in (ContinuousTensor, ContinuousTensor.make):
            with pytest.raises(ValueError, match=word):
                make(data, shapes, dtype)
    for data, dtype in itertools.product((None, 1.5, "x", [0]), (DataType.INT8, np.complex64)):
        with pytest.raises(TypeError, match=r"address=.* is not a whole number"):
            ContinuousTensor.make(data, (1,), dtype)
    with pytest.raises(TypeError, match=r"address=array.* is not a .* array\.ctypes\.data"):
        ContinuousTensor.make(np.zeros(3), (1,), DataType.INT8)
    for at, value in ((28, 6), (31, 1), (33, 2), (33, 255), (32, 12)):
        wire = bytearray(ContinuousTensor.make(4096, (2, 3), DataType.INT8)._wire)
        wire[at] = value
        with pytest.raises(ValueError, match=r"no tensor|DataType"):
            ContinuousTensor._from_wire(bytes(wire))


@pytest.mark.spec("FLOW-DATA-8")
@given(before=tensors, after=tensors)
def test_the_fields_of_a_tensor_can_be_set(before, after):
    args = TaskArgs()
    args.add_tensor(before, T.INOUT)
    added = args.tensor(0)
    for name in ("shapes", "data", "dtype", "child_memory"):
        assume(not RECORDED_FIRST <= before.data < RECORDED_LAST)
        setattr(before, name, getattr(after, name))
    assert before == after and hash(before) == hash(after) and before.ndims == after.ndims
    assert [before._tagged(tag) for tag in T] == [after._tagged(tag) for tag in T]
    assert args.tensor(0) == added


@pytest.mark.spec("FLOW-DATA-8")
def test_a_field_is_not_set_to_what_is_no_tensor():
    tensor = ContinuousTensor.make(4096, (2,), DataType.INT8)
    for name, value in (("data", -1), ("shapes", (1,) * 6), ("shapes", (-1,)), ("dtype", 12)):
        with pytest.raises(ValueError, match=r"\d"):
            setattr(tensor, name, value)
    for name in ("ndims", "nbytes", "strides", "_wire", "other"):
        with pytest.raises(AttributeError, match="cannot be set"):
            setattr(tensor, name, 1)
    assert tensor == ContinuousTensor.make(4096, (2,), DataType.INT8)
    described = ContinuousTensor.make(4096, (2, 2), np.float32, strides=(16, 4))
    recorded = ContinuousTensor.make(RECORDED_FIRST, (2,), np.float32)
    for tensor in (described, recorded):  # more belongs to them
        with pytest.raises(AttributeError, match="cannot be"):
            tensor.shapes = (1,)
        assert tensor.shapes != (1,)


@pytest.mark.spec("FLOW-DATA-5")
def test_a_tensor_made_of_nothing_is_forty_zeros():
    tensor = ContinuousTensor()
    assert (tensor.data, tensor.shapes, tensor.ndims) == (0, (), 0)
    assert tensor == ContinuousTensor.make(0, (), DataType.FLOAT32, child_memory=False)
    assert tensor._wire == bytes(40)
    here, there = (ContinuousTensor.make(4096, (2,), DataType.INT8, child) for child in (0, 1))
    assert repr(here) == "ContinuousTensor(0x1000, (2,), INT8)"
    assert repr(there) == "ContinuousTensor(0x1000, (2,), INT8, child_memory=True)"


@pytest.mark.spec("FLOW-DATA-6")
@pytest.mark.parametrize("dtype", NUMPY, ids=lambda dtype: dtype.name)
def test_a_view_is_the_memory_itself_if_the_host_has_any(dtype):
    memory = np.zeros((3, 4), NUMPY[dtype])
    tensor = ContinuousTensor.make(memory.ctypes.data, memory.shape, dtype)
    view = tensor.numpy()
    assert (view.shape, view.dtype) == (memory.shape, memory.dtype)
    view[1, 2] = 1
    assert memory[1, 2] == memory.sum() == 1
    tensor.data, tensor.shapes = memory[1:].ctypes.data, [2, 2]
    assert np.array_equal(tensor.numpy(), memory.ravel()[4:8].reshape(2, 2)), "what it names now"
    for address, words in (
        *((0, "no memory yet"), (8, "no program has"), (4095, "no program has memory")),
        *((at, "no program has memory") for at in (1 << 47, 1 << 63, (1 << 64) - 8)),
    ):
        with pytest.raises(ValueError, match=words):
            ContinuousTensor.make(address, (3,), dtype).numpy()
    with pytest.raises(ValueError, match="next-level"):
        ContinuousTensor.make(4096, (3,), dtype, True).numpy()
    assert ContinuousTensor.make(0, (0, 3), dtype).numpy().shape == (0, 3)


@pytest.mark.spec("FLOW-DATA-6")
def test_element_types_have_a_size_and_names_and_what_is_none_is_refused():
    for dtype in DataType:
        names = ["torch.bfloat16"]
        if dtype in NUMPY:
            numpys = NUMPY[dtype]
            assert (ti.get_element_size(dtype), ti.numpy_dtype(dtype)) == (numpys.itemsize, numpys)
            names = [numpys.type, numpys, numpys.name]
        for name in (*names, dtype, int(dtype)):
            assert ti.to_dtype(name) is dtype
        assert ti.get_dtype_name(dtype) == dtype.name
    for bad in (np.float64, np.complex64, np.dtype(">i4"), "U3", "nonsense", object, None, []):
        with pytest.raises(TypeError, match=r"is no DataType; convert"):
            ti.to_dtype(bad)
