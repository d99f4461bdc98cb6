"""A Worker whose run is opened by hand and whose workers never answer: what was submitted stays to be
looked at, and is the same each time."""

import numpy as np

from simpler_ref import Worker
from simpler_ref.jit import layout as L
from simpler_ref.model import visibility

from .kernels import kernels
from .support import Driver

HEAP = 1 << 60
"""Addresses in the heap rings are shown as offsets from here, so that two engines can be compared."""


class ByHand:
    """A Worker with an open run, and no process behind it.

    `orch` is its Orchestrator, `sub` the handle of a callable for sub workers.
    """

    def __init__(self, prepare=lambda worker: None, **options):
        self.worker = Worker(
            3, **{"num_sub_workers": 2, "heap_ring_size": 1 << 16, "alloc_timeout_s": 0} | options
        )
        self.prepared = prepare(self.worker)
        self.worker.init()
        self.sub = self.worker.register(print)
        runtime = self.worker._session
        self.engine = runtime.engine
        self.mem = runtime.engine.mem
        self.orch = runtime.orch
        for worker in range(int(self.mem[L.WORKERS])):
            self.engine.kernels.set_usable(self.mem, worker, 1)
        self._outer = visibility.current.check, visibility.current.kept
        visibility.set_current(runtime.why_invisible)
        self.engine.kernels.begin_run(self.mem)
        self.orch._open(*self.worker._life.session.words)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.orch._close()
        visibility.set_current(*self._outer)
        self.worker.close()

    def looks(self):
        """Return a `Driver` for its looks at the engine."""
        driver = Driver.__new__(Driver)
        driver.engine, driver.mem, driver.k = self.engine, self.mem, self.engine.kernels
        return driver

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
        kernels.pass_after_submit(mem)
        driver, base = self.looks(), int(mem[L.RING_BLOCK + L.R_BASE])
        return {
            "slots": self.relative(
                mem[mem[L.A_SLOTS] :][: mem[L.SLOTS_USED] * L.SLOT_WORDS]
            ).tolist(),
            "spilled": self.relative(mem[mem[L.A_SPILL] : mem[L.SPILL_USED]]).tolist(),
            "counts": {
                name: int(mem[getattr(L, name)])
                for name in ("NEXT_TASK_ID", "LIVE", "EDGE_COUNT", "MAP_COUNT", "SCOPE_DEPTH")
            },
            "scopes": mem[L.SCOPE_STACK : L.SCOPE_STACK + mem[L.SCOPE_DEPTH]].tolist(),
            "rings": [
                mem[L.RING_BLOCK + ring * L.LINE :][1 : L.LINE].tolist()
                for ring in range(mem[L.RINGS])
            ],
            "wiring": driver.wiring_queue(),
            "ready": [driver.ready_queue(kind) for kind in (L.NEXT_LEVEL, L.SUB)],
            "given": [driver.given(worker) for worker in range(mem[L.WORKERS])],
            "producers": [
                driver.lookup(base + address - HEAP if address >= HEAP else address)
                for address in addresses
            ],
        }
