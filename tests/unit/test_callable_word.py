"""One word says what a task runs, in which pool, on which worker, with which configuration."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.workers.options import MOST_WORKERS

from ..kernels import kernels as k

pytestmark = pytest.mark.kernels


@given(
    index=st.integers(0, L.CALLABLE_MASK),
    kind=st.sampled_from([L.NEXT_LEVEL, L.SUB]),
    worker=st.integers(-1, L.WORKER_MASK - 1),
    config=st.integers(0, L.MAX_CONFIGS - 1),
)
@example(0, L.NEXT_LEVEL, -1, 0)
@example(L.CALLABLE_MASK, L.SUB, L.WORKER_MASK - 1, L.CONFIG_MASK)
def test_every_part_of_the_callable_word_is_read_back(index, kind, worker, config):
    slot = np.zeros(L.SLOT_WORDS, np.int64)
    slot[L.S_CALLABLE] = (
        index | kind << L.WORD_KIND | worker + 1 << L.WORD_WORKER | config << L.WORD_CONFIG
    )
    parts = [one(slot, 0) for one in (k.index_of, k.kind_of, k.affinity_of, k.config_of)]
    assert parts == [index, kind, worker, config]


def test_the_parts_have_room_for_all_there_can_be_and_do_not_overlap():
    assert L.MAX_REGISTERED_CALLABLE_IDS <= L.CALLABLE_MASK + 1
    assert 2 * MOST_WORKERS < L.WORKER_MASK
    assert L.MAX_CONFIGS <= L.CONFIG_MASK + 1
    assert L.CALLABLE_MASK < 1 << L.WORD_KIND
    assert 0xF << L.WORD_KIND < 1 << L.WORD_WORKER
    assert L.WORKER_MASK << L.WORD_WORKER < 1 << L.WORD_CONFIG
    assert L.CONFIG_MASK << L.WORD_CONFIG < 1 << 63
