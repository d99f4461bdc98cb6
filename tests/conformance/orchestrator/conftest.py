"""What these tests share: a Worker for those that leave it as they found it."""

import pytest

from simpler_ref import Worker
from simpler_ref.workers import processes


@pytest.fixture(scope="module")
def w():
    """Give a Worker with two processes and rings of 64 KiB, which the tests of a file share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "why_not_fork", lambda: None)
        made = Worker(3, num_sub_workers=2, heap_ring_size=1 << 16)
        made.init()
        made.start()
    yield made
    made.close()
