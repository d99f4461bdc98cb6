"""CHIP-MEM: memory of the device."""

import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.native_chip import ChipCallable, ChipError, ChipStatus, ChipWorker
from simpler_ref.task_interface import ContinuousTensor, DataType
from tests import chip_kernels as K
from tests.chip_kernels import ADD, D, host_args, numbers, orchestration

from .conftest import refused


def child(address, count):
    return ContinuousTensor.make(address, (count,), DataType.FLOAT32, child_memory=True)


@pytest.mark.spec("CHIP-MEM-1")
@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=30), data=st.data())
def test_allocations_do_not_overlap_and_come_back(sizes, data):
    with ChipWorker() as chip:
        held = {}
        for fill, size in enumerate(sizes):
            at = chip.malloc(size)
            assert at % 64 == 0
            assert all(at + size <= a or a + s <= at for a, (s, _) in held.items())
            chip.copy_to(at, bytes([fill]) * size)
            held[at] = size, fill
            if data.draw(st.booleans()):
                gone = data.draw(st.sampled_from(sorted(held)))
                chip.free(gone)
                del held[gone]
        for at, (size, fill) in held.items():
            back = bytearray(size)
            chip.copy_from(back, at)
            assert back == bytes([fill]) * size


@pytest.mark.spec("CHIP-MEM-2")
def test_misuse_of_device_memory_is_refused(monkeypatch):
    monkeypatch.setenv("SIMPLER_SIM_DEVICE_MEMORY", str(4 << 20))
    with ChipWorker() as chip:
        at, buffer = chip.malloc(1000), bytearray(2000)
        host = np.frombuffer(buffer, np.uint8).ctypes.data
        for code, words, call in (
            (ChipStatus.ADDRESS, "no live allocation", lambda: chip.free(at + 64)),
            (ChipStatus.ADDRESS, "no live allocation", lambda: chip.free(0)),
            (ChipStatus.ADDRESS, "not inside one", lambda: chip.copy_to(at, host, 1001)),
            (ChipStatus.ADDRESS, "not inside one", lambda: chip.copy_to(at - 1, host, 1)),
            (ChipStatus.ADDRESS, "not inside one", lambda: chip.copy_from(host, at + 1000, 1)),
            (ChipStatus.ADDRESS, "not inside one", lambda: chip.copy_from(host, at, 1 << 62)),
            (ChipStatus.ADDRESS, "read a bad address 0x10", lambda: chip.copy_to(at, 16, 8)),
            (ChipStatus.ADDRESS, "wrote to a bad address", lambda: chip.copy_from(16, at, 8)),
            (ChipStatus.MEMORY, "no room for 8388608", lambda: chip.malloc(8 << 20)),
            (ChipStatus.MEMORY, "no room", lambda: chip.malloc((1 << 63) - 1)),
        ):
            with refused(code, words):
                call()
        chip.free(at)
        with pytest.raises(ChipError, match="freed already"):
            chip.free(at)
        assert chip.malloc(4 << 20)
        with pytest.raises(ChipError, match="4194304 of 4194304 are allocated in 1"):
            chip.malloc(1)


@pytest.mark.spec("CHIP-MEM-4")
def test_child_memory_stays_between_runs_and_must_be_in_one_live_allocation(adder):
    x, y = numbers(50)
    at = adder.malloc(200)
    adder.copy_to(at, np.zeros(50, np.float32))
    for _ in range(3):
        adder.run_args(0, host_args(x, child(at, 50), child(at, 50)))
    back = np.empty(50, np.float32)
    adder.copy_from(back, at)
    assert np.array_equal(back, 3 * x)
    wrong = [(at, 51), (at - 4, 50), (at + 4, 50), (0x1000, 1), (x.ctypes.data, 50), (at, 50)]
    for address, count in wrong:
        if (address, count) == (at, 50):
            adder.free(at)
        with refused(ChipStatus.ADDRESS, "not inside one live allocation"):
            adder.run_args(0, host_args(x, y, child(address, count)))


@pytest.mark.spec("CHIP-MEM-6")
def test_devices_have_addresses_of_their_own_also_one_that_is_open_twice():
    with ChipWorker(0) as zero, ChipWorker(1) as one, ChipWorker(7) as seven:
        chips = (zero, one, seven)
        whole = int(os.environ.get("SIMPLER_SIM_DEVICE_MEMORY", 1 << 30))
        spans = sorted((chip.malloc(whole), chip.device_id) for chip in chips)
        assert [number for _, number in spans] == [0, 1, 7]
        for (below, _), (above, _) in pairwise(spans):
            assert below + whole < above
    with ChipWorker(2) as one, ChipWorker(2) as two:
        first, second = one.malloc(64), two.malloc(64)
        assert first != second
        one.copy_to(first, b"1" * 64)
        two.copy_to(second, b"2" * 64)
        back = bytearray(64)
        one.copy_from(back, first)
        assert back == b"1" * 64
        with pytest.raises(ChipError, match="not inside one live allocation"):
            two.copy_from(back, first)


@pytest.mark.spec("CHIP-MEM-6")
@pytest.mark.parametrize("number", [0, 5])
def test_another_devices_address_is_refused_with_both_devices(number):
    host = np.zeros(10, np.float32)
    with ChipWorker(number) as chip, ChipWorker(3) as other:
        chip.prepare(0, ChipCallable.from_kernel(K.add_core()))
        chip.prepare(1, orchestration("launches_on_host", [*ADD, D.SCALAR], [(0, K.add_core())]))
        mine, foreign = chip.malloc(40), other.malloc(40)
        for call in (
            lambda: chip.copy_to(foreign, host),
            lambda: chip.copy_from(host, foreign),
            lambda: chip.free(foreign),
            lambda: chip.run_args(0, host_args(host, child(foreign, 10), child(mine, 10))),
            lambda: chip.run_args(1, host_args(host, host, host, scalars=[foreign])),
        ):
            words = f"address {foreign:#x} belongs to device 3, this is device {number}$"
            with refused(ChipStatus.ADDRESS, words):
                call()
        for address in (mine + 40, 64, 0x51 << 40, 1 << 63):  # nobody's
            with pytest.raises(ChipError, match=r"not inside one live allocation$"):
                chip.copy_to(address, host)


@pytest.mark.spec("CHIP-MEM-5")
def test_the_host_finds_inputs_that_are_not_there(adder):
    nowhere = ContinuousTensor.make(0x10, (10,), DataType.FLOAT32)
    with pytest.raises(ChipError, match=r"tensor 0: the host memory .* read a bad address 0x10"):
        adder.run_args(0, host_args(nowhere, *numbers(10)))
