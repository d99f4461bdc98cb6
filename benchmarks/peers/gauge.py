"""How many cores there are at a moment: what two processes get done side by side, beside one alone.

The two cores of a virtual machine may be two cores of its host, or two threads of one, and this changes
while figures are taken. Where two processes get no more done than one, no runtime has half of *two* cores
for useful work, however long its tasks are.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from itertools import cycle
from multiprocessing.connection import Connection

from .catalogue import WORKERS

LOOK_S = 0.02
CALM = 10
"""Looks at one process alone, of which the quickest counts."""


def _work(asked: Connection, core: int) -> None:
    """Count on a core, for as many seconds as is asked, and tell how fast; 0: end."""
    os.sched_setaffinity(0, (core,))  # or both may be woken on the same one
    while seconds := asked.recv():
        begin, rounds = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            for _ in range(100):
                pass
            rounds += 1
        asked.send(rounds / (time.perf_counter() - begin))


class Gauge:
    """Measures it, with processes of its own, which sleep meanwhile."""

    def __init__(self) -> None:
        pairs = [multiprocessing.Pipe() for _ in range(WORKERS)]
        self._ends = [mine for mine, _ in pairs]
        cores = cycle(sorted(os.sched_getaffinity(0)))
        self._processes = [
            multiprocessing.Process(target=_work, args=(theirs, next(cores)), daemon=True)
            for _, theirs in pairs
        ]
        for one, (_, theirs) in zip(self._processes, pairs, strict=True):
            one.start()
            theirs.close()
        self._alone = max(self._rates(self._ends[:1])[0] for _ in range(CALM))

    def _rates(self, ends: list[Connection]) -> list[float]:
        for one in ends:
            one.send(LOOK_S)
        return [one.recv() for one in ends]

    def cores(self) -> float:
        """Return how many cores there are now, 1 to as many as there are workers."""
        rates = self._rates(self._ends)
        self._alone = max(self._alone, *rates)
        return min(max(1.0, sum(rates) / self._alone), float(WORKERS))

    def close(self) -> None:
        """End the processes."""
        for one, process in zip(self._ends, self._processes, strict=True):
            one.send(0)
            process.join()
            one.close()
