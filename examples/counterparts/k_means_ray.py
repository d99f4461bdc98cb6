"""K-means, with Ray."""

import numpy as np
import ray

POINTS, PART, STEPS = 20_000, 2_500, 10


@ray.remote
def sums_of(points, centres):
    """Return the sum and the number of the points that are nearest to each centre."""
    nearest = ((points[:, None] - centres) ** 2).sum(2).argmin(1)
    members = nearest == np.arange(len(centres))[:, None]
    return members @ points, members.sum(1)


def k_means(points, centres):
    parts = [ray.put(points[i : i + PART]) for i in range(0, len(points), PART)]
    for _ in range(STEPS):
        found = ray.get([sums_of.remote(part, centres) for part in parts])
        sums, counts = map(sum, zip(*found, strict=True))
        centres = sums / counts[:, None]
    return centres


def main():
    rng = np.random.default_rng(0)
    truth = np.array([[1, 1], [9, 1], [1, 9], [9, 9]])
    points = truth[rng.integers(4, size=POINTS)] + rng.standard_normal((POINTS, 2))
    with ray.init():
        centres = k_means(points, truth + 2.0)
    assert np.abs(centres - truth).max() < 0.1
    print(centres.round(1).tolist())


if __name__ == "__main__":
    main()
