"""Integrate a function: where a result is not good enough, two calls on the halves follow."""

import math
from concurrent.futures import FIRST_COMPLETED, wait

import numpy as np

import simpler_ref as sr

LOW, TOLERANCE = 0.01, 1e-9


@sr.task
def measure(low, high):
    """Return the integral over an interval by two rules, the better one first."""
    middle, half = (low + high) / 2, (high - low) / 2
    rules = [np.polynomial.legendre.leggauss(count) for count in (8, 5)]
    values = [half * weights @ np.sin(1 / (middle + half * at)) for at, weights in rules]
    return low, high, *map(float, values)


def integrate(low, high):
    parts, pending = [], {measure(low, high)}
    while pending:
        done, pending = wait(pending, return_when=FIRST_COMPLETED)
        for low, high, value, check in (future.result() for future in done):
            if abs(value - check) < TOLERANCE:
                parts.append(value)
            else:
                middle = (low + high) / 2
                pending |= {measure(low, middle), measure(middle, high)}
    return math.fsum(parts), len(parts)


def main():
    with sr.Worker():
        value, parts = integrate(LOW, 1.0)
    x = np.linspace(LOW, 1.0, 10_000_001)
    assert abs(value - np.trapezoid(np.sin(1 / x), x)) < 1e-6
    print(f"{value:.6f} from {parts} intervals")


if __name__ == "__main__":
    main()
