"""A chip, and one that adds."""

import pytest

from simpler_ref.native_chip import ChipCallable, ChipWorker
from tests import chip_kernels as K


@pytest.fixture
def chip():
    with ChipWorker() as worker:
        yield worker


@pytest.fixture
def adder(chip):
    chip.prepare(0, ChipCallable.from_kernel(K.add_core()))
    return chip
