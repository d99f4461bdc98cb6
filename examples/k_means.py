"""K-means: in each step, a call for each part of the points finds the nearest centres."""

from itertools import repeat

import numpy as np

import simpler_ref as sr

POINTS, PART, STEPS = 20_000, 2_500, 10


def sums_of(points, centres):
    """Return the sum and the number of the points that are nearest to each centre."""
    nearest = ((points[:, None] - centres) ** 2).sum(2).argmin(1)
    members = nearest == np.arange(len(centres))[:, None]
    return members @ points, members.sum(1)


def k_means(w, points, centres):
    parts = w.tiles(w.share(points), PART)
    for _ in range(STEPS):
        sums, counts = map(sum, zip(*w.map(sums_of, parts, repeat(centres)), strict=True))
        centres = sums / counts[:, None]
    return centres


def main():
    rng = np.random.default_rng(0)
    truth = np.array([[1, 1], [9, 1], [1, 9], [9, 9]])
    points = truth[rng.integers(4, size=POINTS)] + rng.standard_normal((POINTS, 2))
    with sr.Worker() as w:
        centres = k_means(w, points, truth + 2.0)
    assert np.abs(centres - truth).max() < 0.1
    print(centres.round(1).tolist())


if __name__ == "__main__":
    main()
