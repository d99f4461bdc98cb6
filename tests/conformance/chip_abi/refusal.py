"""What a chip refuses, and how."""

from contextlib import contextmanager

import pytest

from simpler_ref.native_chip import ChipError


@contextmanager
def refused(status, words):
    """Expect a `ChipError` with a status, and words that match."""
    with pytest.raises(ChipError, match=words) as error:
        yield error
    assert error.value.code == status
