"""Integrate by recursion: an interval whose estimate is too coarse becomes two calls of the same task."""

import math
from itertools import pairwise

import simpler_ref as sr

PARTS, TOLERANCE = 16, 1e-8


def curve(x):
    return math.sin(1 / x)


def estimate(a, b):
    """Return Simpson's estimate of an integral."""
    return (curve(a) + 4 * curve((a + b) / 2) + curve(b)) * (b - a) / 6


@sr.task
def integral(a, b, tolerance):
    """Return an integral, and of how many intervals it is the sum."""
    middle = (a + b) / 2
    halves = estimate(a, middle) + estimate(middle, b)
    if abs(halves - estimate(a, b)) < 15 * tolerance:
        return halves, 1
    left = integral(a, middle, tolerance / 2)  # calls in a task run in its worker, at once
    right = integral(middle, b, tolerance / 2)
    (one, parts), (other, more) = left.result(), right.result()
    return one + other, parts + more


def integrate(w, a, b):
    bounds = [a + (b - a) * i / PARTS for i in range(PARTS + 1)]
    calls = [integral(*part, TOLERANCE / PARTS) for part in pairwise(bounds)]
    found, intervals = zip(*(call.result() for call in calls), strict=True)
    return sum(found), sum(intervals)


def main():
    with sr.Worker() as w:
        found, intervals = integrate(w, 0.01, 1.0)
    assert abs(found - 0.503982) < 1e-6, found
    print(f"the integral is {found:.6f}, from {intervals} intervals")


if __name__ == "__main__":
    main()
