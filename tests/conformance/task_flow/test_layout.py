"""FLOW-LAYOUT: tensors that DataType, contiguous memory and five dimensions cannot describe."""

import pickle

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from simpler_ref.model.tensor import DescribedTensor
from simpler_ref.native_chip import ChipCallable
from tests.chip_kernels import add_core
from tests.support import make_args

RECORD = np.dtype([("key", "i4"), ("weight", "f8")])


def values(dtype, *shape):
    """Return an array with a different value in each element."""
    numbers = np.arange(np.prod(shape)).reshape(shape)
    if np.dtype(dtype).names is None:
        return numbers.astype(dtype)
    made = np.zeros(shape, dtype)
    for name in made.dtype.names:
        made[name] = numbers
    return made


VIEWS = {
    "float64": lambda w: w.share(values("f8", 3, 4)),
    "complex": lambda w: w.share(values("c16", 5)),
    "dates": lambda w: w.share(values("M8[s]", 4)),
    "text": lambda w: w.share(values("U5", 4)),
    "records": lambda w: w.share(values(RECORD, 6)),
    "a field": lambda w: w.share(values(RECORD, 6))["weight"],
    "big-endian": lambda w: w.share(values(">i4", 6)),
    "columns": lambda w: w.share(values("f4", 4, 6))[:, 1::2],
    "reversed": lambda w: w.share(values("i8", 4, 6))[::-1, ::-2],
    "transposed": lambda w: w.share(values("i2", 4, 6)).T,
    "broadcast": lambda w: np.broadcast_to(w.share(values("f4", 4)), (3, 4)),
    "six dimensions": lambda w: w.share(values("f4", 2, 1, 3, 1, 2, 2)),
    "none": lambda w: w.share(values("f8", 0, 3)),
    "one": lambda w: w.share(np.array(2.5)),
}


def described(array):
    """Return as text what an array has, and how it is reached."""
    strides = array.strides if array.size else None
    return repr((array.dtype, array.shape, strides, array.tolist())).encode()


def double(args):
    args.tensor(1).numpy()[...] = 2 * args.tensor(0).numpy()


@pytest.mark.spec("FLOW-LAYOUT-1")
def test_an_array_that_wire_bytes_cannot_describe_keeps_its_layout():
    with Worker(3) as w:
        for array in (view(w) for view in VIEWS.values()):
            dtype, shape, strides = array.dtype, array.shape, array.strides
            args = make_args((array, T.INPUT))
            tensor = args.tensor(0)
            assert isinstance(tensor, DescribedTensor)
            assert (tensor.dtype, tensor.shapes, tensor.strides) == (dtype, shape, strides)
            assert (tensor.data, tensor.ndims) == (array.ctypes.data, array.ndim)
            assert tensor.nbytes() == array.nbytes
            args.set_tag(0, T.INOUT)
            assert (args.tag(0), args.tensor(0)) == (T.INOUT, tensor)
            assert pickle.loads(pickle.dumps(tensor)) == tensor
            text = f"DescribedTensor({tensor.data:#x}, {shape}, {dtype}, strides={strides})"
            assert repr(tensor) == text
        x = w.share(values("f4", 4, 6))
        for array in (x, x[1:3], x[:0, ::2], x[:1, :], x.reshape(1, 4, 6, 1, 1)[:, :, :, ::1]):
            tensor = make_args((array, T.INPUT)).tensor(0)
            assert type(tensor) is ContinuousTensor, "wire bytes describe it"
            assert not array.size or tensor.strides == np.ascontiguousarray(array).strides
        by_hand = ContinuousTensor.make(x.ctypes.data, (4, 6), np.float32, strides=x.strides)
        assert by_hand == ContinuousTensor(x.ctypes.data, (4, 6), DataType.FLOAT32)
    one, other = (ContinuousTensor.make(4096, shape, np.float64) for shape in ((2, 4), (4, 2)))
    assert one == ContinuousTensor.make(4096, [2, 4], "float64", strides=[32, 8])
    assert one != other and one._wire == other._wire, "only their layouts differ"
    assert one != ContinuousTensor.make(4096, (2, 4), np.complex64)
    assert one != ContinuousTensor.make(4104, (2, 4), np.float64)


@pytest.mark.spec("FLOW-LAYOUT-1")
def test_types_of_objects_and_layouts_that_are_none_are_refused():
    make = ContinuousTensor.make
    for dtype in (object, [("name", "O")]):
        with pytest.raises(TypeError, match=r"elements of type .*Python objects; convert"):
            make(0, (3,), dtype)
    for dtype in (None, "nonsense", 3.5):
        with pytest.raises(TypeError, match=r"no element type: give a DataType or a numpy dtype"):
            make(0, (3,), dtype)
    for shape in ((3.5,), 3, None):
        with pytest.raises(TypeError, match=r"sequences? of integers"):
            make(0, shape, np.float64)
        with pytest.raises(TypeError, match=r"sequences? of integers"):
            make(0, shape, np.float32)
    with pytest.raises(ValueError, match=r"1 strides \(8,\) for 2 dimensions \(2, 3\)"):
        make(0, (2, 3), np.float64, strides=(8,))
    with pytest.raises(ValueError, match="negative dimension"):
        make(0, (-2,), np.float64)
    with pytest.raises(ValueError, match="does not fit an address space"):
        make(0, (1 << 40, 1 << 20), np.float64)
    with pytest.raises(ValueError, match=r"address=.* is out of range: 0 … 18446744073709551615"):
        make(-1, (3,), np.float64)
    with pytest.raises(ValueError, match=r"child memory has contiguous tensors.*as UINT8"):
        make(4096, (3,), np.float64, True)
    with pytest.raises(ValueError, match=r"child memory has contiguous tensors.*as UINT8"):
        make(4096, (3,), DataType.INT8, True, strides=(2,))


@pytest.mark.spec("FLOW-LAYOUT-3")
def test_a_task_gets_the_view_that_was_passed(mode):
    with Worker(3, num_sub_workers=2, child_mode=mode) as w:

        @w.register
        def look(args):
            array, out = args.tensor(0).numpy(), args.tensor(1).numpy()
            seen = described(array)
            out[: len(seen)] = np.frombuffer(seen, np.uint8)

        for array in (view(w) for view in VIEWS.values()):
            out = w.zeros(2000, np.uint8)
            args = make_args((array, T.INPUT), (out, T.OUTPUT_EXISTING))
            w.run(lambda orch, *_, args=args: orch.submit_sub(look, args))
            assert out.tobytes().rstrip(b"\0") == described(array)


@pytest.mark.spec("FLOW-LAYOUT-3")
def test_workers_below_pass_them_on(mode):
    top, middle = Worker(5, child_mode=mode), Worker(4)
    low = Worker(3, num_sub_workers=1)
    middle.add_worker(low)
    top.add_worker(middle)
    with top:
        x = top.share(values("f8", 4, 6))
        y, z = top.share(np.zeros((4, 6))), top.share(np.zeros((4, 3)))
        doubling = low.register(double)

        def orch3(orch, args, config):
            orch.submit_sub(doubling, make_args((args.tensor(0), 0), (args.tensor(1), T.INOUT)))
            part = args.tensor(1).numpy()[:, ::2]  # another layout, which only this level has
            orch.submit_sub(doubling, make_args((part, 0), (args.tensor(2), T.INOUT)))

        inner = middle.register(orch3)

        def orch4(orch, args, config):
            tensors = [(args.tensor(i), (0, T.INOUT, T.INOUT)[i]) for i in range(3)]
            orch.submit_next_level(inner, make_args(*tensors))

        outer = top.register(orch4)
        args = make_args((x[::-1], T.INPUT), (y, T.INOUT), (z[:, ::-1], T.INOUT))
        top.run(lambda orch, *_: orch.submit_next_level(outer, args))
        assert (y == 2 * x[::-1]).all() and (z[:, ::-1] == 4 * x[::-1, ::2]).all()


@pytest.mark.spec("FLOW-LAYOUT-1")
def test_buffers_and_outputs_have_the_bytes_of_their_layouts(mode):
    with Worker(3, num_sub_workers=1, child_mode=mode, heap_ring_size=1 << 20) as w:
        x, y = w.share(values("f8", 100, 6)), w.share(np.zeros((100, 6), complex))
        handle, wrote = w.register(double), []

        def orch_fn(orch, *_):
            buffer = orch.alloc((100, 6), complex)
            orch.submit_sub(handle, make_args((x, T.INPUT), (buffer, T.INOUT)))
            out = ContinuousTensor.make(0, (100, 6), complex, strides=(192, 32))
            args = make_args((buffer, T.INPUT), (out, T.OUTPUT))
            orch.submit_sub(handle, args)
            wrote[:] = buffer, args.tensor(1), orch.alloc((0, 3), np.float64)
            orch.submit_sub(handle, make_args((args.tensor(1), T.INPUT), (y, T.OUTPUT_EXISTING)))
            slabs = [orch.ring.slot_state(task).slab for task in (0, 2)]
            assert [slab.nbytes for slab in slabs] == [10240, 19456]

        timing = w.run(orch_fn)
        assert (y == 8 * x).all()
        buffer, out, nothing = wrote
        assert (buffer.dtype, buffer.strides, buffer.nbytes()) == (complex, (96, 16), 9600)
        assert (out.strides, out._span()[1], nothing.data) == ((192, 32), 19184, 0)
        assert sum(timing.ring_peak_bytes) == 10240 + 19456
        with pytest.raises(ValueError, match=r"no negative strides, and these are \(-8,\)"):
            ContinuousTensor.make(0, (4,), np.float64, strides=(-8,))
        too_large = ContinuousTensor.make(0, (1 << 18,), np.float64)

        def exceed(orch, *_):
            with pytest.raises(RuntimeError, match=r"2.0 MiB were asked for"):
                orch.alloc((1 << 18,), np.float64)
            with pytest.raises(RuntimeError, match=r"2.0 MiB were asked for"):
                orch.submit_sub(handle, make_args((too_large, T.OUTPUT)))

        assert w.run(exceed).tasks == 0


@pytest.mark.spec("ORCH-MISUSE-3")
def test_a_chip_refuses_them_by_name():
    with Worker(3, device_ids=[0], num_sub_workers=1) as w:
        handle = w.register(ChipCallable.from_kernel(add_core()))
        x, y, z = (w.share(np.ones(size, np.float32)) for size in (8, 16, 8))
        wrong = [
            (w.share(np.ones(8)), r"tensor 1 has elements of type float64.*FLOAT32"),
            (y[::2], r"tensor 1 has shape \(8,\) and strides \(8,\), .*Worker.share\(np.ascontig"),
            (y.reshape((1,) * 5 + (16,)), r"tensor 1 has 6 dimensions .* reshape it"),
        ]

        def orch_fn(orch, *_):
            for array, why in wrong:
                args = make_args((x, T.INPUT), (array, T.INPUT), (z, T.OUTPUT_EXISTING))
                with pytest.raises(TypeError, match=rf"^chip callable \S+: {why}"):
                    orch.submit_next_level(handle, args)
                with pytest.raises(TypeError, match=rf"^chip callable \S+: {why}"):
                    orch.submit_next_level_group(handle, [args])

        assert w.run(orch_fn).tasks == 0
        args = make_args((x, T.INPUT), (wrong[0][0], T.INPUT), (z, T.INOUT))
        with pytest.raises(TypeError, match=wrong[0][1]):
            w.record(lambda orch, args, _: orch.submit_next_level(handle, args), args)
        many, part = w.register(double), make_args((y[::2], T.INPUT)).tensor(0)
        with pytest.raises(TypeError, match=r"^tensors\[0\]: Desc.* is for submit_sub"):
            w.run(lambda orch, *_: orch.submit_sub_many(many, [part], [T.INPUT], count=1))


@pytest.mark.spec("FLOW-LAYOUT-3")
def test_a_run_waits_for_its_tasks_where_there_is_no_room_for_layouts(mode, monkeypatch):
    monkeypatch.setattr(L, "LAYOUTS_CAPACITY", 60)  # of some 25 words each
    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        x, y = w.share(values("f8", 40)), w.share(np.zeros(40))
        handle = w.register(double)

        def orch_fn(orch, *_):
            for i in range(20):
                args = make_args((x[i : 2 * i + 1], T.INPUT), (y[i : 2 * i + 1], T.INOUT))
                orch.submit_sub(handle, args)

        w.run(orch_fn)
        assert (y[:39] == 2 * x[:39]).all()
        assert w._session.engine.mem[L.LAYOUTS_EPOCH] > 2
        too_many = make_args(*[(x[i:], T.INPUT) for i in range(20)])

        def refused(orch, *_):
            with pytest.raises(MemoryError, match="no room for one more layout"):
                orch.submit_sub(handle, too_many)

        assert w.run(refused).tasks == 0


@pytest.mark.spec("FLOW-LAYOUT-3")
def test_calls_number_their_arrays_anew_once_numbers_are_forgotten(mode):
    with Worker(num_sub_workers=1, child_mode=mode) as w:
        x, y = w.share(values("f8", 4, 6)), w.share(values("i2", 3))
        assert w.submit(np.sum, x[:, ::2]).result() == x[:, ::2].sum()
        view = x.T
        assert w.submit(np.sum, view).result() == x.sum()
        w._session.engine.layouts.reset()
        for part in (y[::-1], x[1:, 1:], x[::-1], x[:, :1]):  # they take the place of the others
            assert w.submit(np.sum, part).result() == part.sum()
        assert w.submit(np.sum, view).result() == x.sum()
        handle, z = w.register(double), w.zeros((4, 6))
        for step in (1, 2, 3):  # in a run between calls
            args = make_args((x[:, ::step], T.INPUT), (z[:, ::step], T.INOUT))
            w.run(lambda orch, *_, args=args: orch.submit_sub(handle, args))
            assert w.submit(np.sum, z[:, ::-step]).result() == 2 * x[:, ::-step].sum()
            z[:] = 2 * x


@pytest.mark.spec("FLOW-LAYOUT-3")
def test_the_address_of_the_first_element_makes_the_dependencies():
    with Worker(3, num_sub_workers=1) as w:
        x, handle = w.share(values("f8", 4, 6)), w.register(lambda: None)

        def edges(first, second):
            def orch_fn(orch, *_):
                orch.submit_sub(handle, make_args((first, T.INOUT)))
                orch.submit_sub(handle, make_args((second, T.INPUT)))

            return w.run(orch_fn).edges

        assert edges(x, x[:, ::2]) == edges(x[::2], x.view(np.int64)[:1]) == 1
        assert edges(x, x[1:]) == edges(x, x[::-1]) == 0
        assert edges(x[::-1], x[3, ::2]) == 1
