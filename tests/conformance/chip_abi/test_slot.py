"""CHIP-SLOT: the places of callables on a chip."""

import pytest

from simpler_ref.native_chip import ChipCallable, ChipStatus
from tests import chip_kernels as K
from tests.chip_kernels import host_args, numbers

from .refusal import refused


@pytest.mark.spec("CHIP-SLOT-1", "CHIP-SLOT-2")
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
