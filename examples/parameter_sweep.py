"""Choose the parameters of a fit: a call for each pair, all on the same arrays."""

from itertools import product

import numpy as np

import simpler_ref as sr

POINTS, DEGREES, PENALTIES = 2_000, range(1, 11), (0.0, 0.1, 10.0)


@sr.task
def error_of(x: sr.In, y: sr.In, degree, penalty):
    """Fit a polynomial to every second point, and return its error at the others."""
    powers = np.polynomial.legendre.legvander(x, degree)
    a, b = powers[::2], powers[1::2]
    fit = np.linalg.solve(a.T @ a + penalty * np.eye(degree + 1), a.T @ y[::2])
    return float(((b @ fit - y[1::2]) ** 2).mean())


def sweep(x, y):
    errors = {pair: error_of(x, y, *pair) for pair in product(DEGREES, PENALTIES)}
    return {pair: future.result() for pair, future in errors.items()}


def main():
    x = np.linspace(-1, 1, POINTS)
    y = np.polynomial.Legendre([0, 1, 0, 2, 0, 3])(x)
    y += np.random.default_rng(0).normal(scale=0.5, size=POINTS)
    with sr.Worker() as w:
        errors = sweep(w.share(x), w.share(y))
    best = min(errors, key=errors.get)
    assert errors[best] == error_of(x, y, *best)  # without a Worker: a plain call
    print(f"best of {len(errors)}: degree {best[0]}, penalty {best[1]}")


if __name__ == "__main__":
    main()
