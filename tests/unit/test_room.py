"""Room for bodies and ids: what is handed out, and what is said before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpler_ref.jit import layout as L

from ..conformance.orchestrator.test_ring import Pair
from ..support import Driver, ignores, reads

pytestmark = pytest.mark.kernels
SLOTS = 12
TENSORS = st.sampled_from([0, 1, 7, 8, 11, 23, 50])
KEY = 0x7000_0000


def block_of(words):
    """Return the size of the block for so many words, the next power of two."""
    size = L.SPILL_SMALLEST
    while size < words:
        size *= 2
    return size


@settings(max_examples=60)
@given(
    area=st.integers(1, 40),
    steps=st.lists(
        st.one_of(st.just("end"), st.tuples(TENSORS, st.integers(0, 20), TENSORS)), max_size=40
    ),
)
def test_bodies_take_the_blocks_they_need_and_no_more_than_there_are(area, steps):
    """A block is used again for a body of its size; a fresh one follows those before it."""
    driver = Driver(window=SLOTS, sub=1)
    mem = driver.mem
    first = int(mem[L.A_SPILL])
    mem[L.A_SPILL_END] = end = first + area * L.SPILL_SMALLEST
    driver.close_scope()
    used, free, taken = first, [], []
    for step in steps:
        if step == "end":
            if taken:
                slot, *block = taken.pop(0)
                driver.finish(slot)
                assert driver.reclaim() == 1
                free += [block] if block[1] else []
            if not taken:
                used, free = first, []
            continue
        tensors, scalars, edges = step
        words = -(-(tensors + edges) // L.MASK_TENSORS) + 5 * (tensors + edges)
        words += L.SCALAR_WORDS * scalars + L.EDGE_WORDS * edges
        size = block_of(words) if words > L.INLINE_WORDS else 0
        again = [place for place, of in free if of == size]
        slot = driver.try_submit([ignores(KEY)] * tensors + [reads(KEY)] * edges, range(scalars))
        if size > end - first:
            assert slot == L.TOO_MANY_ARGS
            continue
        if len(taken) == SLOTS or (size and not again and used + size > end):
            assert slot == L.WOULD_BLOCK
            continue
        place = int(mem[slot + L.S_BODY])
        if not size:
            assert place == slot + L.S_INLINE
        elif again:
            assert place == again[-1]
            free.remove([place, size])
        else:
            assert place == used
            used += size
        assert mem[L.SPILL_USED] == used
        taken.append((slot, place, size))
    for slot, *_ in taken:
        driver.finish(slot)
    driver.close()


def test_ids_go_on_when_all_of_a_window_is_reclaimed(make_driver):
    driver = make_driver(rings=1, window=4)
    driver.mem[L.ID_WINDOW] = 4
    for _ in range(3):
        driver.open_scope()
        for _ in range(4):
            driver.submit()
        assert driver.try_submit() == L.WOULD_BLOCK
        driver.close_scope()
        driver.finish_everything()
        driver.reclaim()
        assert driver.live() == 0


@pytest.mark.parametrize("ring", [0, 1, 2, 3])
def test_the_queue_of_a_ring_is_used_to_its_last_entry_before_it_grows(make_driver, ring):
    driver = make_driver(window=64)
    for _ in range(ring):
        driver.open_scope()
    driver.mem[L.FIFO_MASK + ring] = 3
    for _ in range(4):
        driver.submit()
    assert driver.mem[L.FIFO_MASK + ring] == 3
    driver.submit()
    assert driver.mem[L.FIFO_MASK + ring] == 7


def test_a_full_queue_may_be_half_released_and_the_most_bytes_ever_held_are_kept():
    pair = Pair(window=64, fifo=4)
    for _ in range(4):
        pair.alloc(0)
    for _ in range(2):
        pair.release(1)
    pair.alloc(0)
    assert pair.mem[L.FIFO_MASK] == 3
    pair.driver.close()
    pair = Pair(rings=1)
    for nbytes in (4096, 1024):
        pair.alloc(nbytes)
        pair.release(0)
        assert pair.word(0, L.R_PEAK) == 4096
    pair.driver.close()
