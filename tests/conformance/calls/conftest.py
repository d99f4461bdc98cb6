"""What the tests of calls share: a Worker of either kind, and functions to call."""

import numpy as np
import pytest

import simpler_ref as sr


@pytest.fixture(params=["process", "thread"])
def w(request):
    """Give an open Worker with two workers."""
    with sr.Worker(num_sub_workers=2, child_mode=request.param, arena_size=1 << 28) as w:
        yield w


@pytest.fixture
def gate(w):
    """Give a number that is 0 until the end of the test, or until it is set."""
    gate = w.share(np.zeros(1, np.int32))
    yield gate
    gate[0] = 1
