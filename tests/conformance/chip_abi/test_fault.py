"""CHIP-FAULT: what fails on a chip."""

import ctypes
import faulthandler
import platform
import signal

import numpy as np
import pytest

from simpler_ref.native_chip import ChipCallable, ChipStatus, ChipWorker
from simpler_ref.task_interface import CallConfig
from tests import chip_kernels as K
from tests.chip_kernels import ADD, D, host_args, numbers, orchestration
from tests.system.programs import Fork

from .conftest import refused


@pytest.mark.spec("CHIP-FAULT-1", "CHIP-FAULT-4")
@pytest.mark.parametrize("block_dim", [1, 8])
@pytest.mark.parametrize(
    ("what", "value", "words", "code"),
    [
        (K.RETURN_CODE, -5, "returned error -5", ChipStatus.KERNEL),
        (K.READ_AT, 0, "read a bad address 0x0 .SIGSEGV", ChipStatus.FAULT),
        (K.WRITE_AT, 0x18, "wrote to a bad address 0x18 .SIGSEGV", ChipStatus.FAULT),
        (K.READ_AT, 0xDEAD << 48, "accessed a bad address", ChipStatus.FAULT),
        (K.ILLEGAL, 0, "met an illegal instruction", ChipStatus.FAULT),
        (K.OVERFLOW, 0, ".*bad address 0x", ChipStatus.FAULT),
        pytest.param(
            *(K.DIVIDE, 0, "divided an integer by zero", ChipStatus.FAULT),
            marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="no trap here"),
        ),
    ],
)
def test_a_kernel_that_fails_is_named_with_its_block(adder, block_dim, what, value, words, code):
    adder.prepare(1, ChipCallable.from_kernel(K.bad_core()))
    block = rf"kernel func_id 0 \(block {block_dim - 1} of {block_dim}\) "
    for _ in range(3):
        with refused(code, block + words):
            adder.run_args(1, host_args(scalars=[what, value]), CallConfig(block_dim=block_dim))
    x, y = numbers(10)  # the chip works as before
    adder.run_args(0, host_args(x, y, x))
    assert np.array_equal(x, np.arange(10) + 0.5)


@pytest.mark.spec("CHIP-FAULT-1", "CHIP-FAULT-4")
@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("returns_5", "orchestration function returns_5 returned error 5", "ORCHESTRATION"),
        ("fails", "fails: no luck today", "ORCHESTRATION"),
        ("crashes", "orchestration function crashes wrote to a bad address 0x10", "FAULT"),
        ("allocates_too_much", "no room for 1125899906842624", "MEMORY"),
        ("launches_unknown", "func_id 99 and has no such child", "ARGS"),
        ("launches_too_wide", "over 1048576 blocks; this chip has 48", "CONFIG"),
        ("launches_with_less", "with 2 tensors and 0 scalars; by its signature it takes 3", "ARGS"),
        ("launches_on_host", "as tensor 1, which are not device memory", "ADDRESS"),
    ],
)
def test_an_orchestration_function_that_fails_or_launches_what_cannot_be_says_why(
    chip, name, words, code
):
    chip.prepare(0, orchestration(name, [*ADD, D.SCALAR], [(0, K.add_core())]))
    x, y = numbers(4)
    for _ in range(2):
        with refused(ChipStatus[code], words):
            chip.run_args(0, host_args(x, y, x, scalars=[y.ctypes.data]))
    assert np.array_equal(x, numbers(4)[0])


@pytest.mark.spec("CHIP-FAULT-4")
@pytest.mark.parametrize(("opened", "closed"), [(1, 0), (1, 1), (2, 1), (2, 2)])
def test_a_fault_that_is_not_a_kernels_kills_the_process_as_it_should(capfd, opened, closed):
    def crash():
        faulthandler.enable(2)
        chips = [ChipWorker() for _ in range(opened)]
        for chip in chips:
            chip.init()
        for chip in chips[:closed][::-1]:
            chip.finalize()
        ctypes.string_at(16)

    with Fork(crash) as fork:
        assert fork.wait() == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in capfd.readouterr().err
