"""The first program of the README: calls of tasks, shared arrays, results that come back."""

import numpy as np

import simpler_ref as sr


@sr.task
def axpy(y: sr.InOut, x: sr.In, a: float):  # runs in a worker, on shared memory
    y += a * x


@sr.task
def total(x: sr.In):
    return float(x.sum())


def main():
    with sr.Worker() as w:  # a worker for each core
        x = w.share(np.arange(1_000_000.0))
        y = w.zeros_like(x)
        for _ in range(10):
            axpy(y, x, 0.5)  # submits, and returns a future
        print(total(y).result())
        print(sum(w.map(total, w.tiles(x, 125_000))))


if __name__ == "__main__":
    main()
