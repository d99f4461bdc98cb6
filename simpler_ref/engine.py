"""The shared memory of one engine: the words the kernels work on, and the heap rings."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .jit import layout as L
from .jit.entries import entries
from .shared_arrays import create_region, make_private

SPIN_NS = 50_000
YIELD_NS = 3_000
HOLD_NS = 30_000
PARK_NS = 100_000_000
TIMER_NS = 500_000


def available_cores() -> int:
    """Return the cores this process may use: its affinity mask, less by a cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


class Engine:
    """One engine's memory and its kernels.

    Attributes
    ----------
    mem : numpy.ndarray
        int64 words; `jit/layout.py` says what stands where.
    heap : numpy.ndarray
        The bytes of all heap rings, one after the other.
    kernels : Entries
        The compiled functions, to be called with `mem`.
    """

    def __init__(
        self,
        *,
        heap_ring_size: int,
        ring_depth: int = L.MAX_RING_DEPTH,
        task_window: int = L.DEFAULT_TASK_WINDOW,
        next_level: int = 0,
        sub: int = 0,
    ) -> None:
        self.kernels = entries()
        words, geometry = L.plan(
            window=task_window, rings=ring_depth, next_level=next_level, sub=sub
        )
        region = create_region(8 * words)
        make_private(region, 8 * geometry[L.PRIVATE])
        self.mem = region[: 8 * words].view(np.int64)
        size = L.round_up(heap_ring_size, L.HEAP_ALIGN)
        self.heap = create_region(size * ring_depth)
        base: int = self.heap.ctypes.data
        L.initialise(
            self.mem,
            geometry,
            heap_bases=[base + ring * size for ring in range(ring_depth)],
            heap_size=size,
            cores=available_cores(),
            spin_ns=SPIN_NS,
            yield_ns=YIELD_NS,
            hold_ns=HOLD_NS,
            park_ns=PARK_NS,
        )
