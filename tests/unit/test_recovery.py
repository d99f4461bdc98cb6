"""What a log of tasks keeps of this machine's memory."""

import random

import numpy as np
import pytest

from simpler_ref.remote.parent_tensors import Recovery
from tests.support import sample


@pytest.mark.parametrize("seed", sample(range(100), 20))
def test_memory_gets_back_what_it_had_before_the_first_write_of_each_byte(seed):
    rng, log = random.Random(seed), Recovery(None, 1)
    memory = np.arange(64, dtype=np.uint8)
    before = memory.copy()
    for number in range(rng.randrange(12)):
        start, end = sorted(rng.sample(range(65), 2))
        log.save_bytes(memory.ctypes.data + start, end - start)
        memory[start:end] = 100 + number
    log.restore()
    assert np.array_equal(memory, before)
    log.clear()
    memory[:] = 7
    log.restore()
    assert set(memory) == {7}, "what was kept before is none of the next tasks' business"
