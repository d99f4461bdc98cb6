"""What the tests of calls share: a Worker of either kind, and functions to call."""

import gc
import threading

import numpy as np
import pytest

import simpler_ref as sr


@pytest.fixture(scope="module", params=["process", "thread"])
def w(request):
    """Give a started Worker with two workers, to all tests of a file: they leave it as it was."""
    if request.param is None:  # see `without_worker`
        yield None
        return
    with sr.Worker(num_sub_workers=2, child_mode=request.param, arena_size=1 << 28) as w:
        w.start()
        told = threading.Event()
        w.submit(int).add_done_callback(lambda _: told.set())
        assert told.wait(30)
        yield w


@pytest.fixture(autouse=True, scope="module")
def _small_garbage():
    """Let collections look only at what a file makes: many tests ask for them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def gate(w):
    """Give a number that is 0 until the end of the test, or until it is set."""
    gate = w.share(np.zeros(1, np.int32))
    yield gate
    gate[0] = 1
