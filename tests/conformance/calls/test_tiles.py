"""CALL-TILES: views of an array, one after another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simpler_ref as sr
from simpler_ref.calls.methods import Tiles

from .tasks import update

pytestmark = pytest.mark.spec("CALL-TILES-1")


@sr.task
def corner(x: sr.In):
    return float(x[0, 0])


sizes = st.lists(st.integers(0, 9), min_size=1, max_size=3)


@given(sizes, st.data())
def test_tiles_without_halo_cover_each_element_once_in_c_order(shape, data):
    array = np.zeros(shape, int)
    cut = tuple(data.draw(st.lists(st.none() | st.integers(1, 12), max_size=len(shape))))
    tiles = Tiles(array, cut)
    for number, tile in enumerate(tiles):
        assert tile.base is array or tile is array
        tile += 1
        for axis, size in enumerate(cut):
            assert tile.shape[axis] <= (size or shape[axis])
        assert (tiles[number] == tile).all()
    assert (array == 1).all()
    assert len(tiles) == np.prod(tiles.grid, dtype=int) == len(list(tiles))


def test_a_tile_is_found_by_its_number_or_its_place_in_the_grid():
    array = np.arange(30).reshape(5, 6)
    tiles = Tiles(array, (2, 2))
    assert tiles.grid == (3, 3) and len(tiles) == 9
    assert np.shares_memory(tiles[1, 2], array)
    for one in tiles[5], tiles[1, 2], tiles[-4]:
        assert one.tolist() == array[2:4, 4:].tolist()
    assert tiles[-1].tolist() == tiles[-1, -1].tolist() == array[4:, 4:].tolist()
    assert [tile.tolist() for tile in tiles[7:]] == [tiles[7].tolist(), tiles[8].tolist()]
    assert repr(tiles) == "<3 × 3 tiles of shape (2, 2), of a int64 array of shape (5, 6)>"
    for wrong in (9, -10, (3, 0), (0, -4), (1,), (0, 0, 0)):
        with pytest.raises(IndexError):
            tiles[wrong]
    for wrong in ("a", None, 1.5, ("a", 1), (0, 1.5)):
        for ask in (tiles.__getitem__, tiles.inner):
            with pytest.raises(TypeError, match=r"index=.* is not a whole number"):
                ask(wrong)
    halo = Tiles(np.zeros((6, 6, 6)), (2, 3), 1)
    assert [tile.shape for tile in halo[:4]] == [(3, 4, 6), (3, 4, 6), (4, 4, 6), (4, 4, 6)]
    assert "halo (1, 1)" in repr(halo)


@given(sizes, st.data())
def test_a_halo_goes_as_far_as_the_array_and_inner_leaves_it_out(shape, data):
    array = np.arange(np.prod(shape)).reshape(shape)
    cut = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=len(shape))))
    halo = tuple(data.draw(st.lists(st.integers(0, 5), max_size=len(cut))))
    bare, wide = Tiles(array, cut), Tiles(array, cut, halo)
    assert wide.grid == bare.grid
    for number, (small, large) in enumerate(zip(bare, wide, strict=True)):
        inner = wide.inner(number)
        assert inner == list(wide.inners())[number]
        assert large[inner].tolist() == small.tolist()
        assert all(0 <= one.start <= one.stop for one in inner)
        assert [one.stop - one.start for one in inner] == list(small.shape[: len(cut)])
        place = np.unravel_index(number, bare.grid)
        for axis, margin in enumerate(halo):
            start = place[axis] * cut[axis]
            stop = min(start + cut[axis], shape[axis])
            low, high = max(0, start - margin), min(shape[axis], stop + margin)
            assert large.shape[axis] == high - low


@pytest.mark.parametrize(
    "shape, halo, error, text",
    [
        *((0, 0, ValueError, "shape=0"), (-1, 0, ValueError, "shape=-1")),
        ((1, 1, 1), 0, ValueError, "3 axes, the array has 2"),
        *((1.5, 0, TypeError, "shape is an int"), ("ab", 0, TypeError, "shape is an int")),
        *((1, -1, ValueError, "halo=-1"), (1, (1, 1), ValueError, "more axes than shape")),
        ((1, 1), (1, 1, 1), ValueError, "3 axes"),
        ((1.5, 1), 0, TypeError, "shape=1.5 is not a whole number"),
        (1, "1", TypeError, "halo is an int"),
    ],
)
def test_wrong_shapes_are_refused(shape, halo, error, text):
    with pytest.raises(error, match="(?s)" + text.replace("(", r"\(")):
        Tiles(np.zeros((4, 4)), shape, halo)


def test_tiles_are_arguments_of_calls(w):
    x = w.zeros((7, 5))
    for i, tile in enumerate(w.tiles(x, (3, 2))):
        update(tile, i)
    assert list(w.map(corner, w.tiles(x, (3, 2)))) == list(range(9))
    update(w.tiles(x, (3, 2), halo=1)[1, 1], 100).result()
    assert (x >= 100).sum() == 5 * 4
    with pytest.raises(TypeError, match="not of list"):
        w.tiles([1, 2, 3], 1)
