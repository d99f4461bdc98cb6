"""METG(50 %): the smallest task length at which half of the cores' time is useful work.

Task Bench (Slaughter and others, 2020) defines it on a graph whose tasks all work equally long:
efficiency is useful work ÷ (cores × wall time). The cores are those that there are meanwhile, see
`gauge`. Its "granularity" is cores × wall time ÷ tasks, which at an efficiency of one half is twice the
task length given here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

HALF = 0.5
STEP = 2.0
CLOSE = 1.08
"""The search ends when the lengths on both sides of the answer are as near as this."""


def efficiency(tasks: int, length_s: float, cores: float, wall_s: float) -> float:
    """Return the share of the cores' time that was useful work."""
    return tasks * length_s / (cores * wall_s)


def smallest_length(
    measure: Callable[[float], float], guess: float, shortest: float, longest: float
) -> float | None:
    """Return the task length, in seconds, at which the efficiency is one half.

    Parameters
    ----------
    measure
        Returns the efficiency at a task length.
    guess
        Where to begin.
    shortest, longest
        Lengths outside of which nothing is measured.

    Returns
    -------
    float | None
        None if not even the longest tasks reach it; `shortest` if the shortest do.
    """
    low = high = min(max(guess, shortest), longest)
    at_low = at_high = measure(low)
    while at_low >= HALF:
        if low <= shortest:
            return shortest
        high, at_high = low, at_low
        low = max(low / STEP, shortest)
        at_low = measure(low)
    while at_high < HALF:
        if high >= longest:
            return None
        low, at_low = high, at_high
        high = min(high * STEP, longest)
        at_high = measure(high)
    while high / low > CLOSE:
        middle = math.sqrt(low * high)
        value = measure(middle)
        if value >= HALF:
            high, at_high = middle, value
        else:
            low, at_low = middle, value
    if at_high <= at_low:
        return high
    share = (HALF - at_low) / (at_high - at_low)
    return low * (high / low) ** share
