"""CHIP-LIFE: opening and closing a chip."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref.native_chip import ChipCallable, ChipError, ChipStatus, ChipWorker
from tests import chip_kernels as K
from tests.chip_kernels import host_args, numbers
from tests.system.programs import Fork

from .conftest import refused


@pytest.mark.spec("CHIP-LIFE-1")
def test_a_closed_chip_says_so_and_can_be_opened_again():
    worker = ChipWorker()
    for _ in range(3):
        for call in (
            lambda: worker.run(0, bytes(8), 8, bytes(1052)),
            lambda: worker.malloc(8),
            lambda: worker.device_wall_ns,
        ):
            with refused(ChipStatus.CLOSED, "not open: call init"):
                call()
        worker.init()
        with pytest.raises(RuntimeError, match="already initialized"):
            worker.init()
        assert worker.malloc(8)
        worker.finalize()
        worker.finalize()


@pytest.mark.spec("CHIP-LIFE-2")
def test_a_process_forked_before_has_a_chip_of_its_own_and_one_forked_after_is_told_so(adder):
    x, y = numbers(100)
    adder.run_args(0, host_args(x, y, x))  # its threads exist

    def after_the_fork():
        with pytest.raises(ChipError, match="was forked from the one that opened the chip"):
            adder.run_args(0, host_args(x, y, x))
        adder.finalize()
        with ChipWorker() as own:
            own.prepare(0, ChipCallable.from_kernel(K.add_core()))
            out, more = numbers(100)
            own.run_args(0, host_args(out, more, out))
            assert np.array_equal(out, np.arange(100) + 0.5)

    with Fork(after_the_fork) as fork:
        assert fork.wait() == 0
    adder.run_args(0, host_args(x, y, x))


@pytest.mark.spec("CHIP-LIFE-2")
def test_a_chip_that_is_forgotten_is_closed():
    worker = ChipWorker()
    worker.init()
    worker.prepare(0, ChipCallable.from_kernel(K.mark_core()))
    worker.run_args(0, host_args(np.zeros(48, np.int32)))
    threads = len(os.listdir("/proc/self/task"))
    del worker
    assert len(os.listdir("/proc/self/task")) < threads or len(os.sched_getaffinity(0)) == 1


@pytest.mark.spec("CHIP-LIFE-4", "CHIP-FAULT-4")
def test_chips_of_several_threads_open_run_fail_and_close_at_the_same_time():
    adds, fails = (ChipCallable.from_kernel(core) for core in (K.add_core(), K.bad_core()))

    def work(k):
        x, y = numbers(1000)
        out = np.zeros(1000, np.float32)
        for _ in range(40):
            with ChipWorker(k) as chip:
                chip.prepare(0, adds)
                chip.prepare(1, fails)
                for _ in range(3):
                    chip.run_args(0, host_args(x, y, out))
                    with pytest.raises(ChipError, match="bad address 0x0"):
                        chip.run_args(1, host_args(scalars=[K.READ_AT, 0]))
        return np.array_equal(out, x + y)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [True] * 4
