"""What a log of tasks keeps of this machine's memory, and which buffers it knows."""

import random

import numpy as np
import pytest

from simpler_ref.remote.recovery import Recovery
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


def test_memory_of_the_runtime_counts_only_if_there_was_something_in_it():
    log, memory = Recovery(None, 1), np.zeros(32, np.uint8)
    at = memory.ctypes.data
    log.note_memory(at, 16, 2)
    log.note_memory(at + 16, 16, 1)
    log.save_bytes(at, 16)
    memory[:16] = 1
    log.restore()
    assert set(memory[:16]) == {1}
    log.clear()
    log.save_bytes(at + 16, 16)
    memory[:] = 2
    log.end_scope(2)
    assert log.buffer_of(at, 1) is None and log.buffer_of(at + 20, 4).is_old
    log.restore()
    assert set(memory[:16]) == {2} and set(memory[16:]) == {0}
    log.note_memory(at + 24, 8, 1)
    assert not log.buffer_of(at + 24, 8).is_old and log.buffer_of(at + 16, 8) is None
