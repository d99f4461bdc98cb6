"""One word says what a task runs, in which pool, on which worker, with which configuration."""

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.workers.options import MOST_WORKERS

pytestmark = pytest.mark.kernels


def test_the_parts_have_room_for_all_there_can_be_and_do_not_overlap():
    assert L.MAX_REGISTERED_CALLABLE_IDS <= L.CALLABLE_MASK + 1
    assert 2 * MOST_WORKERS < L.WORKER_MASK
    assert L.MAX_CONFIGS <= L.CONFIG_MASK + 1
    assert L.CALLABLE_MASK < 1 << L.WORD_KIND
    assert 0xF << L.WORD_KIND < 1 << L.WORD_WORKER
    assert L.WORKER_MASK << L.WORD_WORKER < 1 << L.WORD_CONFIG
    assert L.CONFIG_MASK << L.WORD_CONFIG < 1 << 63
