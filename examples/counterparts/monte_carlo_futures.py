"""Estimate π with random points, with concurrent.futures."""

from concurrent.futures import ProcessPoolExecutor

import numpy as np

TASKS, SAMPLES = 100, 10_000


def hits(seed):
    x, y = np.random.default_rng(seed).random((2, SAMPLES))
    return int((x * x + y * y < 1).sum())


def estimate(pool):
    seeds = np.random.SeedSequence(42).spawn(TASKS)  # independent streams, one for each task
    return 4 * sum(pool.map(hits, seeds)) / (TASKS * SAMPLES)


def main():
    with ProcessPoolExecutor() as pool:
        pi = estimate(pool)
    assert abs(pi - np.pi) < 0.01
    print(f"π is about {pi:.4f}")


if __name__ == "__main__":
    main()
