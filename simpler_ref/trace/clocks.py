"""The clock of another machine: how its times become those of the parent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..system.types import Array

STRETCH_NS = 5_000_000_000
"""How long the difference of two clocks counts as one number; from one stretch to the next it changes."""
MOST_STRETCHES = 64


class Clock:
    """A clock that was asked several times for its time.

    Parameters
    ----------
    samples : sequence of (int, int, int)
        When, by the parent's clock; how far it was ahead; plus or minus what.

    Attributes
    ----------
    error_ns : int
        A time is wrong by at most so much.

    Notes
    -----
    Rule     SEE-REMOTE-3
    """

    def __init__(self, samples: Sequence[tuple[int, int, int]]) -> None:
        when, ahead, half = np.array(samples, np.int64).T
        self._zero, self._base = int(when[0]), int(ahead[0])  # floats have too few digits for times
        when, ahead = when - self._zero, ahead - self._base
        least, most = ahead - half, ahead + half
        count = int(np.clip(np.ptp(when) // STRETCH_NS, 1, MOST_STRETCHES))
        stretch = (when - when.min()) * count // (np.ptp(when) + 1)
        places, values, errors = [], [], []
        for one in np.unique(stretch):
            mine = stretch == one
            low, high = int(least[mine].max()), int(most[mine].min())
            if low > high:  # it has gained or lost time meanwhile: the quickest answer says most
                best = np.flatnonzero(mine)[half[mine].argmin()]
                low, high = int(least[best]), int(most[best])
            places.append(float(when[mine].mean()))
            values.append((low + high) / 2)
            errors.append((high - low + 1) // 2)
        self._places = np.array(places)
        self._values = np.array(values)
        found = np.interp(when, self._places, self._values)
        outside = np.maximum(np.maximum(least - found, found - most), 0).max()
        self.error_ns = int(max(errors)) + int(np.ceil(outside))

    def to_parent(self, times: Array) -> Array:
        """Return times of the parent's clock for times of this one."""
        apart = times.astype(np.int64) - (self._zero + self._base)
        ahead = np.interp(apart, self._places + self._values, self._values)
        shifted: Array = apart - np.rint(ahead).astype(np.int64) + self._zero
        return shifted


class SameClock(Clock):
    """The clock of a process of the parent's machine."""

    def __init__(self) -> None:
        self.error_ns = 0

    def to_parent(self, times: Array) -> Array:
        """Return the times themselves."""
        return times


class Chained(Clock):
    """The clock of a Worker below one that has a parent itself."""

    def __init__(self, first: Clock, then: Clock) -> None:
        self.error_ns = first.error_ns + then.error_ns
        self._first, self._then = first, then

    def to_parent(self, times: Array) -> Array:
        """Return times of the parent's parent."""
        return self._then.to_parent(self._first.to_parent(times))
