"""One engine: the words that the kernels work on, the heap rings, and the Scheduler thread.

Rule     HIER-ENGINE-1, HIER-ENGINE-2, ORCH-RING-2, ORCH-WINDOW-1, ORCH-WINDOW-2, ORCH-WINDOW-3,
         ORCH-FORK-4, ORCH-INV-3, SCHED-PASS-2, WM-PLACE-4
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from ..jit import layout as L
from ..jit import steps
from ..jit.entries import entries
from ..jit.kernel import INTERPRETED
from ..model.config import CallConfig
from ..system import regions
from ..system.cores import Placement
from ..system.signals import signals_blocked
from ..system.types import Array
from .view import View
from .view.layouts import Layouts

PARK_NS = 100_000_000
"""Longest sleep of the Orch thread, after which Python handles signals such as Ctrl-C."""
STUCK_NS = 5_000_000_000
"""How long a group waits for its workers before a warning."""
TIMER_NS = 500_000
"""Longest sleep of the Scheduler thread while a task is deferred."""
JOIN_TIMEOUT_S = 10.0
log = logging.getLogger("simpler_ref")


def _uninterrupted(functions: Mapping[str, Any]) -> SimpleNamespace:
    """Return interpreted kernels that no signal handler interrupts, as none does compiled ones."""
    return SimpleNamespace(
        **{name: signals_blocked()(one) for name, one in functions.items() if callable(one)}
    )


def _kernels() -> SimpleNamespace:
    return _uninterrupted(vars(entries())) if INTERPRETED else entries()


class Engine:
    """One engine's memory and its kernels.

    `task_window` is how many tasks may be alive at once; with one ring, how far the ids of a run may be
    above the oldest live task's.
    """

    def __init__(
        self,
        *,
        heap_ring_size: int,
        ring_depth: int = L.MAX_RING_DEPTH,
        task_window: int | None = None,
        next_level: int = 0,
        sub: int = 0,
        endpoints: int = 0,
        depth: int = 1,
        blocks_size: int = 0,
        track_reads: bool = False,
        placement: Placement | None = None,
    ) -> None:
        self.kernels = _kernels()
        self.runs = 0
        """Runs begun so far; ids are unique within one."""
        self.lacks = ""
        """What the program waits for, while it waits for room for another task."""
        window = L.DEFAULT_TASK_WINDOW if task_window is None else task_window
        one_ring = ring_depth == 1 and task_window is not None
        words, geometry = L.plan(
            window=window,
            rings=ring_depth,
            next_level=next_level,
            sub=sub,
            endpoints=endpoints,
            depth=depth,
            id_window=window if one_ring else 0,
            blocks_size=blocks_size,
        )
        nbytes = L.WORD * words
        self.mem = regions.create(nbytes, L.WORD * geometry[L.PRIVATE])[:nbytes].view(np.int64)
        """The words for the kernels; `jit/layout.py` has their offsets."""
        self.view = View(self.mem)
        size = L.round_up(heap_ring_size, L.HEAP_ALIGN)
        self.heap = regions.create(size * ring_depth, huge=True)
        """The bytes of all heap rings, contiguous."""
        base: int = self.heap.ctypes.data
        self.placement = placement or Placement.find(1 + next_level + sub)
        spin_ns, yield_ns, hold_ns = self.placement.waits
        L.initialise(
            self.mem,
            geometry,
            heap_bases=[base + ring * size for ring in range(ring_depth)],
            heap_size=size,
            spin_ns=spin_ns,
            yield_ns=yield_ns,
            defer_ns=hold_ns,
            cores=self.placement.cores.available,
            beside=self.placement.beside,
            track_reads=track_reads,
            park_ns=PARK_NS,
            stuck_ns=STUCK_NS,
        )
        self.layouts = Layouts(self.mem)
        """Their numbers for the program; workers read them with objects of their own."""
        self.view.write_config(0, CallConfig().to_bytes())

    @cached_property
    def steps(self) -> SimpleNamespace:
        """The kernels of single steps, for who moves the engine by hand."""
        return _uninterrupted(vars(steps))

    @classmethod
    def attached(cls, mem: Array, heap: Array, placement: Placement) -> Engine:
        """Return the engine of another process over its memory, mapped here."""
        engine = cls.__new__(cls)
        engine.kernels = _kernels()
        engine.mem, engine.heap, engine.placement = mem, heap, placement
        engine.view = View(mem)
        return engine

    def close(self) -> None:
        """Close the descriptors; the memory stays as long as an array refers to it."""
        regions.release(self.mem)
        regions.release(self.heap)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Engine is memory of one process: it cannot be pickled")


class Scheduler:
    """Runs scheduler passes while the Orch thread does not.

    `jit/schedule.py` has the pass, and how the two threads share it. The kernel returns to Python only to
    warn of a group that waits too long.
    """

    def __init__(self, engine: Engine, describe_stuck: Callable[[], str]) -> None:
        self._engine = engine
        self._describe_stuck = describe_stuck
        self._thread = threading.Thread(target=self._loop, name="simpler-scheduler", daemon=True)

    def _loop(self) -> None:
        loop, mem = self._engine.kernels.scheduler_loop, self._engine.mem
        while loop(mem, TIMER_NS) == L.STUCK:
            text = self._describe_stuck()
            if text:
                log.warning("%s", text)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._engine.kernels.stop_scheduler(self._engine.mem)
        self._thread.join(JOIN_TIMEOUT_S)
