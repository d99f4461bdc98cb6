"""FLOW-ARGS: four forms of the arguments."""

import ctypes
import gc
import struct

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.task_interface import read_args_from_blob

KEY = 0x7000_0000


@pytest.mark.spec("FLOW-ARGS-3")
def test_a_task_keeps_its_arguments_and_the_users_memory_is_neither_copied_nor_moved(mode):
    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        seen, data = w.zeros((2, 50), np.int64), w.share(np.arange(50, dtype=np.int64))

        def note(args):
            i, array = args.scalar(0), args.tensor(0).numpy()
            seen[:, i] = array.ravel()[i], args.tensor(0).data
            array.ravel()[i] *= 2

        handle = w.register(note)

        def orch_fn(orch, tensor, config):
            args = TaskArgs()
            for i in range(50):
                args.clear()
                args.add_tensor(tensor, T.INOUT)
                args.add_scalar(i)
                orch.submit_sub(handle, args)
            args.clear()
            del args
            gc.collect()

        by_hand = ContinuousTensor.make(data.ctypes.data, (5, 10), DataType.INT64)
        for times, tensor in enumerate((data, by_hand)):
            w.run(orch_fn, tensor)
            assert seen.tolist() == [[2**times * i for i in range(50)], [data.ctypes.data] * 50]
        assert data.tolist() == list(range(0, 200, 4))


@pytest.mark.spec("FLOW-ARGS-4")
def test_arguments_are_read_from_a_blob_by_address_or_from_its_bytes_if_they_fit():
    tensors = [ContinuousTensor.make(KEY + 64 * i, (i, 2), DataType.UINT16) for i in range(3)]
    scalars = [0, 7, (1 << 64) - 1]
    wires = b"".join(tensor._wire for tensor in tensors)
    blob = struct.pack("<ii", 3, 3) + wires + struct.pack("<3Q", *scalars)
    held = ctypes.create_string_buffer(blob)
    for source in (blob, bytearray(blob), memoryview(blob), ctypes.addressof(held)):
        for capacity in (None, len(blob), len(blob) + 1):
            args = read_args_from_blob(source, capacity)
            assert [args.tensor(i) for i in range(args.tensor_count())] == tensors
            assert [args.scalar(i) for i in range(args.scalar_count())] == scalars
            assert {args.tag(i) for i in range(3)} == {T.INPUT}
    assert len(read_args_from_blob(bytes(8))) == 0
    for counts, capacity in (
        *(((-1, 0), 100), ((0, -1), 100), ((1, 0), 47), ((0, 12), 103), ((376, 0), None)),
        ((2**31 - 1, 2**31 - 1), 15024),
    ):
        held = ctypes.create_string_buffer(struct.pack("<ii", *counts), 15024)
        for source in (ctypes.addressof(held), held.raw):
            with pytest.raises(ValueError, match=f"{counts[0]} tensors and {counts[1]} scalars"):
                read_args_from_blob(source, capacity)
    for short in (b"", bytes(7), 0):
        with pytest.raises(ValueError, match="two counts"):
            read_args_from_blob(short)
