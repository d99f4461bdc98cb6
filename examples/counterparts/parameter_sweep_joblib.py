"""Choose the parameters of a fit, with joblib."""

from itertools import product

import numpy as np
from joblib import Parallel, delayed

POINTS, DEGREES, PENALTIES = 2_000, range(1, 11), (0.0, 0.1, 10.0)


def error_of(x, y, degree, penalty):
    """Fit a polynomial to every second point, and return its error at the others."""
    powers = np.polynomial.legendre.legvander(x, degree)
    a, b = powers[::2], powers[1::2]
    fit = np.linalg.solve(a.T @ a + penalty * np.eye(degree + 1), a.T @ y[::2])
    return float(((b @ fit - y[1::2]) ** 2).mean())


def sweep(parallel, x, y):
    pairs = list(product(DEGREES, PENALTIES))
    errors = parallel(delayed(error_of)(x, y, *pair) for pair in pairs)
    return dict(zip(pairs, errors, strict=True))


def main():
    x = np.linspace(-1, 1, POINTS)
    y = np.polynomial.Legendre([0, 1, 0, 2, 0, 3])(x)
    y += np.random.default_rng(0).normal(scale=0.5, size=POINTS)
    with Parallel(n_jobs=-1) as parallel:
        errors = sweep(parallel, x, y)
    best = min(errors, key=errors.get)
    assert errors[best] == error_of(x, y, *best)
    print(f"best of {len(errors)}: degree {best[0]}, penalty {best[1]}")


if __name__ == "__main__":
    main()
