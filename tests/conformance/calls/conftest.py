"""What the tests of calls share: a Worker of either kind, and functions to call."""

import pytest

import simpler_ref as sr


@pytest.fixture(params=["process", "thread"])
def w(request):
    """Give an open Worker with two workers."""
    with sr.Worker(num_sub_workers=2, child_mode=request.param, arena_size=1 << 28) as w:
        yield w
