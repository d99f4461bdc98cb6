"""The edit distance of two texts in thousands of small tasks, submitted in one call.

The table of distances is split into tiles. A tile needs the lowest row of the tile above and the last
column of the tile to the left, and keeps only its own last row and column. Nothing states an order: it
follows from what each task reads and writes.
"""

import argparse
import sys

import numpy as np
from numba import int64, uint8

from simpler_ref import Rows, Worker, leaf
from simpler_ref import TensorArgType as T

LETTERS = 4


# ---------------------------------------------------------------- what the workers run
@leaf
def tile(
    one: uint8[:],
    other: uint8[:],
    above: int64[:],
    left: int64[:],
    below: int64[:],
    right: int64[:],
):
    """Compute the distances of a tile; a column begins one row above its tile, with the corner."""
    below[:] = above
    right[0] = above[-1]
    for i in range(one.size):
        diagonal, before = left[i], left[i + 1]
        for j in range(other.size):
            best = min(below[j], before) + 1
            best = min(best, diagonal + (one[i] != other[j]))
            diagonal, below[j], before = below[j], best, best
        right[i + 1] = before


# ---------------------------------------------------------------- the graph
def distances(tile_handle, one, other, rows, columns):
    """Return the orchestration function; texts and borders are already split into tiles."""
    tiles, letters = one.shape
    i, j = np.divmod(np.arange(tiles * tiles), tiles)  # of each task
    left = (tiles + 1) * i + j
    columns = columns.reshape(-1, letters + 1)
    tensors = [
        *(Rows(one, i), Rows(other, j)),
        *(rows[:-1].reshape(-1, letters), Rows(columns, left)),
        *(rows[1:].reshape(-1, letters), Rows(columns, left + 1)),
    ]
    tags = [T.INPUT] * 4 + [T.OUTPUT_EXISTING] * 2
    return lambda orch, args, config: orch.submit_sub_many(tile_handle, tensors, tags)


def plain_numpy(one, other):
    """Return the distance, computed row by row."""
    at = np.arange(len(other) + 1)
    row = at
    for i, letter in enumerate(one, 1):
        best = np.minimum(row[1:] + 1, row[:-1] + (other != letter))
        row = np.minimum.accumulate(np.concatenate([[i], best]) - at) + at
    return row[-1]


# ---------------------------------------------------------------- command line
def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiles", type=positive, default=50, help="in each direction (50)")
    parser.add_argument("--tile", type=positive, default=64, help="letters of a tile (64)")
    options = parser.parse_args()
    tiles, letters = options.tiles, options.tile
    if tiles * letters > 100_000:
        parser.error("the texts are too long: --tiles times --tile is at most 100000")

    rng = np.random.default_rng(0)
    with Worker(level=3, num_sub_workers=2, mailbox_depth=16) as w:
        one = w.share(rng.integers(LETTERS, size=(tiles, letters), dtype=np.uint8))
        other = w.share(rng.integers(LETTERS, size=(tiles, letters), dtype=np.uint8))
        rows = w.empty((tiles + 1, tiles, letters), np.int64)
        columns = w.empty((tiles, tiles + 1, letters + 1), np.int64)
        rows[0] = np.arange(1, tiles * letters + 1).reshape(tiles, letters)
        columns[:, 0] = letters * np.arange(tiles)[:, None] + np.arange(letters + 1)
        timing = w.run(distances(w.register(tile), one, other, rows, columns))
        distance = rows[-1, -1, -1]
        equal = distance == plain_numpy(one.ravel(), other.ravel())
    print(
        f"distance {distance} of {tiles * letters} letters, {timing.tasks} tasks, "
        f"{timing.edges} edges; equal to numpy: {'yes' if equal else 'NO'}"
    )
    return 0 if equal else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
