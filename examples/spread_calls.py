"""Calls of tasks, on this machine or on endpoints: columns of a matrix get mean 0 and deviation 1.

Nothing says where a call runs: `python spread_calls.py --endpoints 2` runs the same program.
"""

import numpy as np
from where import report, worker_from

import simpler_ref as sr

ROWS, COLUMNS, TILE = 20_000, 32, 2_500


@sr.task
def sums_of(tile: sr.In):
    """The sums of the columns of a tile, and of their squares."""
    return tile.sum(axis=0), np.square(tile).sum(axis=0)


@sr.task
def standardise(tile: sr.InOut, mean, deviation):
    tile -= mean
    tile /= deviation


@sr.task
def farthest(tile: sr.In):
    return float(np.abs(tile).max())


def main():
    rng = np.random.default_rng(0)
    plain = rng.normal(3, 2, (ROWS, COLUMNS))
    with worker_from() as w:
        matrix = w.share(plain)
        tiles = w.tiles(matrix, TILE)
        sums, squares = map(sum, zip(*w.map(sums_of, tiles), strict=True))
        mean = sums / ROWS
        deviation = np.sqrt(squares / ROWS - mean**2)
        for tile in tiles:
            standardise(tile, mean, deviation)
        most = max(w.map(farthest, tiles))
        expected = (plain - plain.mean(axis=0)) / plain.std(axis=0)
        same = np.allclose(matrix, expected) and np.isclose(most, np.abs(expected).max())
        report(
            w, f"as numpy's: {bool(same)}, {len(tiles)} tiles, the farthest element is {most:.3f}"
        )


if __name__ == "__main__":
    main()
