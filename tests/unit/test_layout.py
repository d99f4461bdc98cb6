"""Sizes and offsets, as literal numbers, and areas that do not overlap."""

import itertools
import mmap

import pytest

from simpler_ref.jit import layout as L

# ---------------------------------------------------------------- words


def test_areas_that_kernels_copy_as_a_whole_are_lines():
    areas = (L.RING_BLOCK, L.CANDIDATES, L.ERROR_MSG, L.W_CACHE, L.W_MAILBOX, L.W_KINDS, L.W_TRACE)
    assert [area % L.LINE for area in areas] == [0] * len(areas)
    assert L.RING.size == L.LINE
    assert [L.SLOT_WORDS % L.LINE, L.WORKER_WORDS % L.LINE, L.HEADER_WORDS % L.LINE] == [0, 0, 0]
    assert (L.SLOT.size, L.W_KINDS - L.W_MAILBOX) == (L.SLOT_WORDS, 2048)
    assert L.KINDS_WORDS * L.WORD >= (L.MAILBOX_ARGS_CAPACITY - L.WORD) // L.WORD
    assert L.NONE not in {field.at for field in L.HEADER.fields}


@pytest.mark.parametrize("window", [1, 3, 64, 1000, 1 << 21])
@pytest.mark.parametrize(
    ("rings", "next_level", "sub", "depth"), [(1, 0, 0, 1), (4, 2, 3, 2), (2, 0, 100, 1)]
)
def test_areas_follow_each_other_and_each_has_room(window, rings, next_level, sub, depth):
    sizes = {"next_level": next_level, "sub": sub, "depth": depth}
    words, geometry = L.plan(window=window, rings=rings, **sizes)
    circular = 1 << (window - 1).bit_length()
    needs = {
        L.A_WORKERS: (next_level + sub) * depth * L.WORKER_WORDS,
        L.A_CALLABLES: 4096 * 4,
        L.A_WIRING: L.WIRING_CAPACITY,
        **{L.A_FIFO + ring: 2 * circular * L.FIFO_WORDS for ring in range(rings)},
        L.A_MAP: geometry[L.MAP_AREA] * L.ENTRY_WORDS,
        L.A_MAP + 1: geometry[L.MAP_AREA] * L.ENTRY_WORDS,
        L.A_SLOTS: window * L.SLOT_WORDS,
        L.A_SPILL: geometry[L.A_SPILL_END] - geometry[L.A_SPILL],
    }
    spans = sorted((geometry[area], geometry[area] + need) for area, need in needs.items())
    assert spans[0][0] >= L.HEADER_WORDS
    assert spans[-1][1] <= words
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start
    assert all(start % L.LINE == 0 for start, _ in spans)
    private = geometry[L.PRIVATE]
    assert private % L.PAGE_WORDS == 0 and 8 * L.PAGE_WORDS % mmap.PAGESIZE == 0
    shared = [L.A_WORKERS, L.A_CALLABLES, L.A_WIRING, *[L.A_FIFO + r for r in range(rings)]]
    for area, need in needs.items():
        assert geometry[area] + need <= private if area in shared else geometry[area] >= private
