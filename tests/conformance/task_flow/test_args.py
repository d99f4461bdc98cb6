"""FLOW-ARGS: four forms of the arguments."""

import gc
import struct

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType, TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.task_interface import TensorArgType
from tests.support import Driver, ignores, make_args, member, reads, updates

MODES = pytest.mark.parametrize("mode", ["process", "thread"])
KEY = 0x7000_0000


# ---------------------------------------------------------------- the same in all forms
@pytest.mark.spec("FLOW-ARGS-1")
def test_slot_and_mailbox_hold_what_was_submitted_without_tags():
    driver = Driver(sub=1)
    args = [updates(KEY, nbytes=3), reads(KEY + 8, nbytes=5), ignores(0, nbytes=0)]
    scalars = [2**64 - 1, 0, 7]
    slot = driver.submit(*args, scalars=scalars)
    plain = b"".join(arg.wire()[:34] + bytes(6) for arg in args)
    expected = plain + struct.pack("<3Q", *scalars)
    words = driver.argument_words(slot)
    assert np.array(words, np.int64).tobytes() == expected
    driver.settle()
    box = driver.mailbox(0)[1104:].tobytes()
    assert box[:8] == struct.pack("<ii", 3, 3)
    assert box[8 : 8 + len(expected)] == expected
    driver.close()


@pytest.mark.spec("FLOW-ARGS-1")
@pytest.mark.parametrize("tag", list(TensorArgType))
def test_whatever_the_tag_the_worker_is_sent_the_same(tag):
    driver = Driver(sub=1)
    from tests.support import Arg

    slot = driver.submit(Arg(tag, KEY, 16), scalars=[1])
    driver.settle()
    frame = driver.mailbox(0)[1104:1160].tobytes()
    assert frame[8 + 34 : 8 + 40] == bytes(6)
    assert frame == struct.pack("<iiQ5IIBB6xQ", 1, 1, KEY, 16, 0, 0, 0, 0, 1, 5, 0, 1)
    driver.finish(slot)
    driver.close()


# ---------------------------------------------------------------- the blob
@pytest.mark.spec("FLOW-ARGS-2")
@pytest.mark.parametrize("tensors, scalars", [(0, 0), (1, 0), (0, 3), (5, 2), (128, 128)])
def test_a_blob_has_8_bytes_and_40_for_each_tensor_and_8_for_each_scalar(tensors, scalars):
    driver = Driver(sub=2)
    for group in (False, True):
        args = [ignores(KEY + i) for i in range(tensors)]
        numbers = range(1, scalars + 1)
        driver.mailbox(0)[1104:16128] = 0xEE
        driver.mailbox(1)[1104:16128] = 0xEE
        if group:
            slot = driver.submit_group(member(), member(*args, scalars=numbers))
        else:
            slot = driver.submit(*args, scalars=numbers)
        driver.settle()
        worker = next(w for w, m in driver.members(slot).items() if m == (1 if group else -1))
        blob = driver.mailbox(worker)[1104:16128].tobytes()
        used = 8 + 40 * tensors + 8 * scalars
        assert struct.unpack_from("<ii", blob) == (tensors, scalars)
        for i in range(tensors):
            assert blob[8 + 40 * i :][:40] == ignores(KEY + i).wire()[:34] + bytes(6)
        assert blob[8 + 40 * tensors : used] == struct.pack(f"<{scalars}Q", *numbers)
        assert set(blob[used:]) <= {0xEE}, "and nothing behind it"
        for worker in driver.members(slot):
            driver.post_done(worker)
        driver.settle()
    driver.close()


# ---------------------------------------------------------------- lifetimes
@pytest.mark.spec("FLOW-ARGS-3")
@MODES
def test_a_task_keeps_its_arguments_whatever_becomes_of_those_of_the_caller(mode):
    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        seen = w.share(np.zeros(50, np.int64))
        data = w.share(np.arange(50, dtype=np.int64))
        handle = w.register(
            lambda args: seen.__setitem__(args.scalar(0), args.tensor(0).numpy()[args.scalar(0)])
        )

        def orch_fn(orch, *_):
            args = TaskArgs()
            for i in range(50):
                args.clear()
                args.add_tensor(data, T.INPUT)
                args.add_scalar(i)
                orch.submit_sub(handle, args)
            args.clear()
            del args
            gc.collect()

        w.run(orch_fn)
        assert seen.tolist() == list(range(50))


@pytest.mark.spec("FLOW-ARGS-3")
@MODES
def test_the_users_memory_is_neither_copied_nor_moved(mode):
    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        data = w.share(np.zeros(4, np.int64))
        where = w.share(np.zeros(1, np.int64))

        def note(args):
            where[0] = args.tensor(0).data
            args.tensor(0).numpy()[:] = 5

        handle = w.register(note)
        w.run(lambda orch, *_: orch.submit_sub(handle, make_args((data, T.INOUT))))
        assert where[0] == data.ctypes.data
        assert data.tolist() == [5] * 4
        by_hand = ContinuousTensor.make(data.ctypes.data, (2, 2), DataType.INT64)
        w.run(lambda orch, *_: orch.submit_sub(handle, make_args((by_hand, T.INOUT))))
        assert where[0] == data.ctypes.data
