"""Tiles of an array: the parts that tasks work on, as views.

Rule     CALL-TILES-1
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from ..system.types import Array
from ..system.values import integer

Index = tuple[slice, ...]


class Tiles(Sequence[Array]):
    """The tiles of an array, in C order; see `Worker.tiles`.

    ``tiles[3]`` is the fourth one, ``tiles[i, j]`` that of a row and a column of the grid.

    Attributes
    ----------
    array : ndarray
        What they are views of.
    shape : tuple of int
        Of a whole tile without halo, along each axis that is cut.
    grid : tuple of int
        How many tiles there are, along each of these axes.
    halo : tuple of int
        How many more elements a tile has on each side, as far as the array goes.
    """

    def __init__(self, array: Any, shape: Any, halo: Any = 0) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"tiles are views of a numpy array, not of {type(array).__name__}")
        sizes = _per_axis("shape", shape, array, 1)
        self.array = array
        self.shape = tuple(
            max(1, whole) if size is None else size
            for size, whole in zip(sizes, array.shape, strict=False)
        )
        self.grid = tuple(
            1 if size is None else -(-whole // size)
            for size, whole in zip(sizes, array.shape, strict=False)
        )
        margins = _per_axis("halo", halo, array, 0)
        if _is_number(halo):
            margins *= len(sizes)
        if len(margins) > len(sizes):
            raise ValueError(
                f"halo={halo!r} has more axes than shape={shape!r}: give None for those"
            )
        self.halo = tuple(
            margin or 0 for margin, _ in itertools.zip_longest(margins, sizes, fillvalue=None)
        )

    def __len__(self) -> int:
        return math.prod(self.grid)

    @overload
    def __getitem__(self, index: int | tuple[int, ...]) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._view(self._place(index))

    def __iter__(self) -> Iterator[Array]:
        return map(self._view, itertools.product(*map(range, self.grid)))

    def inner(self, index: int | tuple[int, ...]) -> Index:
        """Return which part of a tile is not halo: ``tiles[i][tiles.inner(i)]``."""
        place = self._place(index)
        inside = []
        for outer, (start, stop) in zip(self._slices(place), self._bounds(place), strict=True):
            inside.append(slice(start - outer.start, stop - outer.start))
        return tuple(inside)

    def inners(self) -> Iterator[Index]:
        """Yield `inner` of each tile, in their order."""
        return map(self.inner, range(len(self)))

    def __repr__(self) -> str:
        grid = " × ".join(map(str, self.grid))
        halo = f", halo {self.halo}" if any(self.halo) else ""
        of = f"{self.array.dtype} array of shape {self.array.shape}"
        return f"<{grid} tiles of shape {self.shape}{halo}, of a {of}>"

    # ------------------------------------------------------------ places in the grid
    def _place(self, index: Any) -> tuple[int, ...]:
        """Return where in the grid a tile is."""
        if not isinstance(index, tuple):
            flat = _within(index, len(self), f"{len(self)} tiles")
            return tuple(map(int, np.unravel_index(flat, self.grid)))
        if len(index) != len(self.grid):
            raise IndexError(f"{index} has {len(index)} numbers, the grid {self.grid} has others")
        return tuple(
            _within(one, count, f"a grid of {self.grid}")
            for one, count in zip(index, self.grid, strict=True)
        )

    def _bounds(self, place: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        for number, size, whole in zip(place, self.shape, self.array.shape, strict=False):
            yield number * size, min((number + 1) * size, whole)

    def _slices(self, place: tuple[int, ...]) -> Index:
        sides = zip(self._bounds(place), self.halo, self.array.shape, strict=False)
        return tuple(
            slice(max(start - margin, 0), min(stop + margin, whole))
            for (start, stop), margin, whole in sides
        )

    def _view(self, place: tuple[int, ...]) -> Array:
        view: Array = self.array[self._slices(place)]
        return view


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__")


def _per_axis(name: str, value: Any, array: Array, least: int) -> list[int | None]:
    """Return a size for each axis that has one.

    Raises
    ------
    TypeError, ValueError
        It is no size, or the array does not have so many axes.
    """
    values = [value] if _is_number(value) else value
    if not isinstance(values, (tuple, list)):
        raise TypeError(f"{name} is an int or a tuple of them, not {value!r}")
    if len(values) > array.ndim:
        raise ValueError(
            f"{name}={value!r} is for {len(values)} axes, the array has {array.ndim}: {array.shape}"
        )
    sizes = [one if one is None else integer(name, one) for one in values]
    if any(size is not None and size < least for size in sizes):
        raise ValueError(f"{name}={value!r}: each number is at least {least}")
    return sizes


def _within(index: Any, count: int, what: str) -> int:
    """Return an index that may be negative as one from 0."""
    number = integer("index", index)
    if not -count <= number < count:
        raise IndexError(f"tile {number} of {what}")
    return number % count
