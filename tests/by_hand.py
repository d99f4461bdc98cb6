"""A Worker whose run is opened by hand and whose workers never answer: what was submitted stays to be
looked at, and is the same each time."""

import numpy as np

from simpler_ref import Worker
from simpler_ref.jit import layout as L
from simpler_ref.stepping import Stepper

from .support import Driver

HEAP = 1 << 60
"""Addresses in the heap rings are shown as offsets from here, so that two engines can be compared."""


class ByHand(Stepper):
    """A Worker with an open run and no process behind it, whose submits run their passes.

    `sub` is the handle of a callable for sub workers.
    """

    def __init__(self, prepare=lambda worker: None, **options):
        defaults = {"num_sub_workers": 2, "heap_ring_size": 1 << 16, "alloc_timeout_s": 0}
        worker = Worker(3, **defaults | options)
        self.prepared = prepare(worker)
        super().__init__(worker)
        self.sub = self.register(print)
        self.worker._life.running = False
        self._steps.give_pass(self._mem)
        self.engine, self.mem = self._engine, self._mem

    def relative(self, words):
        """Return words with the addresses in the heap rings made relative to their start."""
        words = np.array(words, np.int64)
        base = int(self.mem[L.RING_BLOCK + L.R_BASE])
        inside = (words >= base) & (words < base + self.engine.heap.nbytes)
        words[inside] += HEAP - base
        return words

    def picture(self, addresses=()):
        """Return everything about the graph: slots, rings, scopes, queues, and who produces what.

        What waits for a pass gets it: a submit may have left it out.
        """
        mem = self.mem
        driver, base = Driver(self.engine, run=False), int(mem[L.RING_BLOCK + L.R_BASE])
        driver.x.pass_after_submit(mem)
        return {
            "slots": self.relative(
                mem[mem[L.A_SLOTS] :][: mem[L.SLOTS_USED] * L.SLOT_WORDS]
            ).tolist(),
            "spilled": self.relative(mem[mem[L.A_SPILL] : mem[L.SPILL_USED]]).tolist(),
            "counts": {
                name: int(mem[getattr(L, name)])
                for name in ("NEXT_TASK_ID", "LIVE", "EDGE_COUNT", "MAP_COUNT", "SCOPE_DEPTH")
            },
            "scopes": [self.scope.tasks(depth) for depth in range(self.scope.depth())],
            "rings": [
                mem[L.RING_BLOCK + ring * L.LINE :][1 : L.LINE].tolist()
                for ring in range(mem[L.RINGS])
            ],
            "wiring": self.wiring_queue(),
            "ready": [self.ready_queue(kind) for kind in (L.NEXT_LEVEL, L.SUB)],
            "given": [driver.given(worker) for worker in range(mem[L.WORKERS])],
            "producers": [
                driver.lookup(base + address - HEAP if address >= HEAP else address)
                for address in addresses
            ],
        }
