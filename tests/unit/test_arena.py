"""The memory behind `Worker.empty` and `Worker.share`."""

import numpy as np
import pytest

from simpler_ref.shared_arrays import ARENA_ALIGN, Arena


@pytest.fixture
def arena():
    return Arena(1 << 16)


def test_arrays_that_are_alive_do_not_overlap(arena):
    arrays = [arena.empty((3, 5), np.float64) for _ in range(10)]
    for i, array in enumerate(arrays):
        array[...] = i
    assert [array.tolist() for array in arrays] == [[[i] * 5] * 3 for i in range(10)]


def test_a_view_keeps_the_memory_of_an_array_that_is_gone(arena):
    array = arena.empty((4, 4), np.int64)
    address = array.ctypes.data
    view = array[1:].view(np.uint8).T
    del array
    assert arena.empty((4, 4), np.int64).ctypes.data != address
    del view
    assert arena.empty((4, 4), np.int64).ctypes.data == address


def test_memory_that_nobody_refers_to_is_given_out_again(arena):
    for _ in range(100):
        arena.empty((1 << 15,), np.uint8)
    assert len(arena.empty((1 << 16,), np.uint8)) == 1 << 16


def test_a_full_arena_says_how_much_is_left(arena):
    held = arena.empty((1 << 16) - 2 * ARENA_ALIGN, np.uint8)
    with pytest.raises(MemoryError, match=f"largest free span of {2 * ARENA_ALIGN}"):
        arena.empty(3 * ARENA_ALIGN, np.uint8)
    del held


def test_arrays_of_no_elements_and_of_no_dimensions_have_places_too(arena):
    nothing, number = arena.empty((0, 3), np.float32), arena.empty((), np.float32)
    number[...] = 7
    assert (nothing.size, number.item()) == (0, 7)
