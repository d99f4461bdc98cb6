"""CHIP-SLOT: the places of callables on a chip."""

import numpy as np
import pytest

from simpler_ref.native_chip import ChipCallable, ChipStatus, ChipStorageTaskArgs, ChipWorker
from simpler_ref.task_interface import CallConfig, ContinuousTensor
from tests import chip_kernels as K
from tests.chip_kernels import host_args, numbers

from .conftest import refused


@pytest.mark.spec("CHIP-SLOT-1", "CHIP-SLOT-3")
def test_slots_are_taken_and_given_back(adder):
    added = ChipCallable.from_kernel(K.add_core())
    x, y = numbers(4)
    for words, call in (
        ("local slot 0 holds simpler_launch_all", lambda: adder.prepare(0, added)),
        ("no local slot 4096", lambda: adder.prepare(4096, added)),
        ("no local slot -1", lambda: adder.run_args(-1, host_args())),
        ("no local slot -1", lambda: adder.run_args(2**32, host_args())),
        ("local slot 5 is empty", lambda: adder.run_args(5, host_args())),
        ("local slot 5 is empty", lambda: adder.unregister(5)),
    ):
        with refused(ChipStatus.SLOT, words):
            call()
    for _ in range(50):
        adder.unregister(0)
        adder.prepare(0, added.to_bytes())
        adder.run_args(0, host_args(x, y, x))


@pytest.mark.spec("CHIP-SLOT-3")
def test_a_callable_is_run_by_its_handle_and_no_other(chip):
    x, y = numbers(8)
    out, callable_ = np.zeros(8, np.float32), ChipCallable.from_kernel(K.add_core())
    first, second = chip.prepare_callable(callable_), chip.prepare_callable(callable_)
    chip.run(first, host_args(x, y, out))
    assert np.array_equal(out, x + y)
    storage = ChipStorageTaskArgs()
    for array in (x, out, out):
        storage.add_tensor(ContinuousTensor.make(array.ctypes.data, array.shape, array.dtype))
    chip.run(second, storage, CallConfig(block_dim=2))
    chip.run(1, storage, config=CallConfig())  # its slot
    assert np.allclose(out, 3 * x + y)
    with refused(ChipStatus.CONFIG, "block_dim is 49"):
        chip.run(second, storage, CallConfig(block_dim=49))
    with ChipWorker(1) as other, pytest.raises(KeyError, match="not prepared on this ChipWorker"):
        other.run(first, host_args())
    chip.unregister_callable(first)
    for use in (chip.unregister_callable, lambda handle: chip.run(handle, host_args())):
        with pytest.raises(KeyError, match="not prepared on this ChipWorker"):
            use(first)
    chip.prepare(0, callable_)  # the slot of the first is free
    chip.run(second, storage)
    with pytest.raises(TypeError, match="expects a ChipCallable, got bytes"):
        chip.prepare_callable(callable_.to_bytes())
    chip.finalize()
    chip.init()
    with pytest.raises(KeyError, match="not prepared"):
        chip.unregister_callable(second)
