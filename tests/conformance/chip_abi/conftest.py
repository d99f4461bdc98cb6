"""A chip, one that adds, and how they refuse."""

from contextlib import contextmanager

import pytest

from simpler_ref.native_chip import ChipCallable, ChipError, ChipWorker
from tests import chip_kernels as K


@pytest.fixture
def chip():
    with ChipWorker() as worker:
        yield worker


@pytest.fixture
def adder(chip):
    chip.prepare(0, ChipCallable.from_kernel(K.add_core()))
    return chip


@contextmanager
def refused(status, words):
    """Expect a `ChipError` with a status, and words that match."""
    with pytest.raises(ChipError, match=words) as error:
        yield error
    assert error.value.code == status
