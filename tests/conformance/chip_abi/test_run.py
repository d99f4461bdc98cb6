"""CHIP-RUN: what a run does."""

import mmap
import os

import numpy as np
import pytest

from simpler_ref.native_chip import ChipCallable, ChipStatus, ChipWorker
from simpler_ref.task_interface import CallConfig
from tests import chip_kernels as K
from tests.chip_kernels import ADD, host_args, numbers, orchestration

from .conftest import refused


@pytest.mark.spec("CHIP-RUN-1", "CHIP-RUN-2")
@pytest.mark.parametrize("block_dim", [0, 1, 7, 24])
@pytest.mark.parametrize("count", [1, 3, 1001, 4096])
def test_a_kernel_in_c_does_what_numpy_does(adder, block_dim, count):
    x, y = numbers(count)
    out, empty = np.full(count, -1, np.float32), np.zeros((3, 0), np.float32)
    adder.run_args(0, host_args(empty, empty, empty), CallConfig(block_dim=block_dim))
    adder.run_args(0, host_args(x, y, out), CallConfig(block_dim=block_dim))
    assert np.array_equal(out, x + y)
    assert adder.device_wall_ns > 0


@pytest.mark.spec("CHIP-RUN-1")
def test_many_more_blocks_than_cores_come_to_their_end(monkeypatch):
    monkeypatch.setenv("SIMPLER_SIM_CORES", "4000")
    with ChipWorker() as chip:
        chip.prepare(0, ChipCallable.from_kernel(K.mark_core()))
        seen = np.zeros(4000, np.int32)
        for _ in range(20):
            chip.run_args(0, host_args(seen))
    assert (seen == 20).all()


@pytest.mark.spec("CHIP-RUN-5")
def test_blocks_may_wait_for_each_other_when_there_is_a_thread_for_each(chip):
    chip.prepare(0, ChipCallable.from_kernel(K.meet_core()))
    blocks = min(len(os.sched_getaffinity(0)), 48)
    for _ in range(50):
        here = np.zeros(1, np.int32)
        chip.run_args(0, host_args(here), CallConfig(block_dim=blocks))
        assert here[0] == blocks


@pytest.mark.spec("CHIP-RUN-3")
def test_tensors_overlap_on_the_device_too_and_what_is_only_read_is_not_written_back(adder):
    x, y = numbers(100)
    wanted = x + y
    adder.run_args(0, host_args(x, y, x), CallConfig(block_dim=1))
    assert np.array_equal(x, wanted)
    memory, ones = np.arange(10, dtype=np.float32), np.ones(9, np.float32)
    adder.run_args(0, host_args(memory[:-1], ones, memory[1:]), CallConfig(block_dim=1))
    assert memory.tolist() == [float(k) for k in range(10)]  # each read what was written before it
    x.flags.writeable = y.flags.writeable = False
    page = np.frombuffer(mmap.mmap(-1, 4096, prot=mmap.PROT_READ), np.float32, 100)
    out = np.zeros(100, np.float32)
    adder.run_args(0, host_args(page, y, out))
    assert np.array_equal(out, y)
    with refused(ChipStatus.ADDRESS, r"tensor 2: the host memory .* wrote to a bad address"):
        adder.run_args(0, host_args(x, y, page))


@pytest.mark.spec("CHIP-RUN-5")
def test_memory_of_a_run_is_free_when_it_ends(monkeypatch):
    monkeypatch.setenv("SIMPLER_SIM_DEVICE_MEMORY", str(1 << 20))
    with ChipWorker() as chip:
        chip.prepare(0, orchestration("twice", ADD, [(0, K.add_core())]))
        x, y = numbers(40_000)  # four of these fill most of the memory
        out = np.zeros(40_000, np.float32)
        for _ in range(5):
            chip.run_args(0, host_args(x, y, out))
            assert np.array_equal(out, 2 * (x + y))
