"""Estimate π with random points: each task has random numbers of its own."""

import numpy as np

import simpler_ref as sr

TASKS, SAMPLES = 100, 10_000


def hits(seed):
    x, y = np.random.default_rng(seed).random((2, SAMPLES))
    return int((x * x + y * y < 1).sum())


def estimate(w):
    seeds = np.random.SeedSequence(42).spawn(TASKS)  # independent streams, one for each task
    return 4 * sum(w.map(hits, seeds)) / (TASKS * SAMPLES)


def main():
    with sr.Worker() as w:
        pi = estimate(w)
    assert abs(pi - np.pi) < 0.01
    print(f"π is about {pi:.4f}")


if __name__ == "__main__":
    main()
