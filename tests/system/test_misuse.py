"""Calls that are refused: the right exception, a message with the value and the remedy, no harm."""

import copy
import mmap
import resource
import sys
import types

import numpy as np
import pytest

from simpler_ref import DataType, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.model import enums

from ..support import make_args
from .programs import in_a_fork
from .workers import assert_works, mark, only


@pytest.fixture(scope="module")
def w():
    with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 16, alloc_timeout_s=30) as made:
        made.start()
        yield made


@pytest.fixture
def args(w):
    """Give arguments that must stay as they are, whatever is refused."""
    made = make_args((w.empty(4, np.int64), T.INPUT))
    yield made
    assert (made.tensor_count(), made.scalar_count(), made.tag(0)) == (1, 0, T.INPUT)


# ---------------------------------------------------------------- tensors
def test_a_mapping_that_replaced_another_at_its_address_is_not_taken_for_it():
    page = mmap.PAGESIZE
    old = mmap.mmap(-1, 64 * page)
    address = np.frombuffer(old, np.uint8).ctypes.data
    with Worker(level=3, num_sub_workers=1) as w:
        w.start()
        old.close()
        kept = []
        for _ in range(200):
            new = mmap.mmap(-1, 64 * page)
            kept.append(new)
            array = np.frombuffer(new, np.uint8)
            if array.ctypes.data == address:
                break
        assert array.ctypes.data == address, "the address was not handed out again"
        with pytest.raises(ValueError, match="after the workers were started"):
            TaskArgs().add_tensor(array)


class FakeTorchTensor:
    """What of torch's CPU tensors the package relies on; no package needed."""

    def __init__(self, array, device="cpu", dtype=None):
        self._array = array
        self.device = type("device", (), {"type": device, "__str__": lambda self: self.type})()
        self.shape = array.shape
        self.dtype = f"torch.{dtype or array.dtype}"

    def data_ptr(self):
        return self._array.ctypes.data

    def element_size(self):
        return self._array.itemsize

    def is_contiguous(self):
        return self._array.flags.c_contiguous

    def stride(self):
        return tuple(step // self._array.itemsize for step in self._array.strides)

    needs_gradient = False

    def detach(self):
        detached = copy.copy(self)
        detached.needs_gradient = False
        return detached

    def numpy(self):
        if self.needs_gradient or self.dtype == "torch.bfloat16":
            raise TypeError("Can't call numpy()")
        return self._array

    def view(self, dtype):
        return FakeTorchTensor(self._array.view(dtype))


def test_a_torch_tensor_is_shared_as_its_numbers(w, monkeypatch):
    bits = np.dtype(np.uint16)  # in the place of ml_dtypes.bfloat16
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(int16=np.int16))
    monkeypatch.setitem(enums._TO_NUMPY, DataType.BFLOAT16, bits)
    tensor = FakeTorchTensor(np.arange(3.0))
    tensor.needs_gradient = True
    assert w.share(tensor).tolist() == [0, 1, 2]
    half = w.share(FakeTorchTensor(np.array([0x3F80, 0x4000], np.uint16), dtype="bfloat16"))
    assert (half.dtype, half.tolist()) == (bits, [0x3F80, 0x4000])


# ---------------------------------------------------------------- handles
def test_a_torch_tensor_in_shared_memory_is_taken_and_others_are_refused(w, args):
    shared = w.share(np.zeros((3, 4), np.int64))
    row = make_args((FakeTorchTensor(shared[0]), T.INOUT), scalars=[2])
    w.run(only(w.register(mark), row))
    assert shared[0].tolist() == [0, 0, 1, 0]
    half = make_args((FakeTorchTensor(shared.view(np.uint16), dtype="bfloat16"), T.INPUT))
    assert half.tensor(0).dtype == DataType.BFLOAT16
    for array in (shared.T, shared.view(np.float64), shared.view(np.complex64)[:, ::3]):
        tensor = make_args((FakeTorchTensor(array), T.INPUT)).tensor(0)
        assert (tensor.dtype, tensor.strides) == (array.dtype, array.strides)
        assert (tensor.data, tensor.shapes) == (array.ctypes.data, array.shape)
    for tensor, kind, match in (
        (FakeTorchTensor(np.zeros(3, np.int32)), ValueError, r"private.*share_memory_\(\) before"),
        (FakeTorchTensor(shared, device="cuda:0"), ValueError, "cuda:0.*pass a CPU tensor"),
        (FakeTorchTensor(shared, dtype="qint8"), TypeError, "torch.qint8.*give a DataType"),
    ):
        with pytest.raises(kind, match=match):
            args.add_tensor(tensor)


# ---------------------------------------------------------------- calls
NO_SHAPES = True, None, 2.5, "23", b"23", {2, 3}, (2.7, 3), (2, "3"), np.float64(2)
BY_WORKER = [
    (lambda w: w.empty((2, -2), np.int8), ValueError, "negative dimension"),
    *(
        (lambda w, shape=shape: w.zeros(shape), TypeError, "must be a sequence of integers, or an")
        for shape in NO_SHAPES
    ),
    (lambda w: w.empty(1 << 50, np.int8), MemoryError, "largest free span.*arena_size"),
    (lambda w: w.empty((1 << 40, 1 << 40), np.int8), MemoryError, "largest free span"),
    (lambda w: w.empty(2, "float99"), TypeError, "float99"),
    (lambda w: w.copy_to(4096, w.empty(4), 16), TypeError, r"src=array.* is array\.ctypes\.data"),
    *(
        (lambda w, thing=thing: w.run(thing), TypeError, "expects an orchestration function, got")
        for thing in (None, 3, "name")
    ),
    (lambda w: w.run(lambda orch: None), TypeError, "positional argument"),
]


def test_a_worker_refuses_what_makes_no_sense(w):
    for call, kind, match in BY_WORKER:
        with pytest.raises(kind, match=match):
            call(w)


@pytest.mark.spec("ORCH-SCOPE-4")
def test_a_scope_is_entered_once_and_ends_those_inside_it(w):
    def graph(orch, *_):
        guard = orch.scope()
        with guard, pytest.raises(RuntimeError, match="open already"):
            guard.__enter__()
        with pytest.raises(ValueError, match="mine"), orch.scope():
            orch.scope_begin()
            orch.scope_begin()
            raise ValueError("mine")
        with pytest.raises(RuntimeError, match="scope_end without scope_begin"):
            orch.scope_end()

    w.run(graph)


# ---------------------------------------------------------------- a Worker that cannot be
@pytest.mark.spec("ORCH-MISUSE-11")
@pytest.mark.parametrize(
    "keywords, kind, match",
    [
        ({"device_ids": 2}, TypeError, r"device_ids=2: give a sequence of numbers, \[0\] for one"),
        ({"level": True}, ValueError, "level True not supported"),
        ({"level": 3.0}, ValueError, "level 3.0 not supported"),
        ({"num_sub_workers": "2"}, TypeError, "num_sub_workers.*'2'"),
        ({"heap_ring_size": 1e6}, TypeError, "heap_ring_size.*1000000.0"),
        ({"alloc_timeout_s": "1"}, TypeError, "alloc_timeout_s.*'1'"),
        ({"task_window": 1.0}, TypeError, "task_window.*1.0"),
        ({"platform": None}, TypeError, "platform=None is no str"),
        ({"runtime": 3}, TypeError, "runtime=3 is no path of a file"),
        ({"trace_detail": []}, ValueError, r"trace_detail=\[\]"),
    ],
)
def test_a_worker_that_cannot_be_is_refused(keywords, kind, match):
    with pytest.raises(kind, match=match):
        Worker(**{"level": 3, **keywords})


def test_more_memory_than_can_be_mapped_is_an_error_with_a_remedy():
    def program():
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        w = Worker(level=3, num_sub_workers=1, heap_ring_size=1 << 40, arena_size=1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 36, hard))
        remedy = "cannot map.*ask for less: heap_ring_size, arena_size, values_size and task_window"
        with pytest.raises(MemoryError, match=remedy):
            w.init()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        w.init()
        assert_works(w, w.register(mark), w.share(np.zeros(4, np.int64)))
        w.close()

    in_a_fork(program)
