"""On which core a thread waits: offering it to others, and staying apart from them.

Rule     SPEED-WAIT-2, SPEED-WAIT-13, SPEED-WAIT-14
"""

from __future__ import annotations

from . import layout as L
from .atomics import (
    allow_core,
    core_here,
    futex_wake,
    load,
    now_ns,
    store,
    visit_core,
    yield_core,
)
from .mailbox import served, worker_at


def offer_core(mem, back_off):
    """Let another thread that waits for this core run first, and learn how long to spin next time.

    After an accepted offer the next wait offers the core at once, since spinning delayed that thread.
    Each refused offer raises the back-off time again, up to YIELD_NS. The calling thread owns the word
    `back_off`.
    """
    before = now_ns()
    yield_core()
    if now_ns() - before > L.CROWDED_NS:
        mem[back_off] = 0
    elif mem[back_off] < mem[L.YIELD_NS]:
        mem[back_off] += mem[L.YIELD_NS] // L.BACK_OFF_STEPS + 1


def wake_elsewhere(mem, w):
    """Wake a worker that sleeps, away from this core (Scheduler).

    The system may queue it behind this thread, which has more to do, though another core is idle. The
    worker may use this core again after `stay_apart`.
    """
    core, thread = core_here(), int(mem[w + L.W_THREAD])
    if load(mem, w + L.W_DEATH) != 0:
        thread = 0  # its number may be another thread's by now
    if thread != 0 and load(mem, w + L.W_KEPT_OFF) == 0 and has_free_core(mem, w):
        if allow_core(thread, core, 0):
            store(mem, w + L.W_KEPT_OFF, core + 1)
    futex_wake(mem, served(mem, w))


def has_free_core(mem, w):
    """Say whether there is a core for a worker besides those of the Orch thread and the other workers."""
    free = mem[L.CORES] - 1
    for other in range(mem[L.WORKERS]):
        o = worker_at(mem, other)
        free -= o != w and load(mem, o + L.W_PARKED) == 0
    return free > 0


def stay_apart(mem, worker):
    """Move to another core than other threads that want this one (worker side).

    Threads woken while a third one is busy may come to share a core, and the system leaves them there
    even beside an idle core. The Orch thread does not offer its core while it submits, so a worker leaves
    that core if another one is free. While the Orch thread waits, each worker has a home core.
    """
    w = worker_at(mem, worker)
    if mem[w + L.W_THREAD] == 0:
        return
    kept_off = load(mem, w + L.W_KEPT_OFF)
    if kept_off != 0:
        store(mem, w + L.W_KEPT_OFF, 0)
        allow_core(0, kept_off - 1, 1)
    core = core_here()
    if mem[w + L.W_CORE] != core + 1:
        store(mem, w + L.W_CORE, core + 1)
    submits = load(mem, L.ORCH_CORE)
    if submits == core + 1:
        if has_free_core(mem, w) and may_move(mem, w) and allow_core(0, core, 0):
            allow_core(0, core, 1)
    elif submits == 0 and mem[w + L.W_HOME] > 0 and mem[w + L.W_HOME] != core + 1:
        shares = mem[L.BESIDE] != 0 or shares_core(mem, worker, core)
        if shares and may_move(mem, w):
            visit_core(int(mem[w + L.W_HOME]) - 1)


def shares_core(mem, worker, core):
    """Say whether another worker is awake on a core."""
    for other in range(mem[L.WORKERS]):
        w = worker_at(mem, other)
        if (
            other != worker
            and load(mem, w + L.W_CORE) == core + 1
            and load(mem, w + L.W_PARKED) == 0
        ):
            return True
    return False


def may_move(mem, w):
    """Say whether a worker has not moved for MOVE_NS; if so, note that it moves now."""
    now = now_ns()
    if now - mem[w + L.W_MOVED] < L.MOVE_NS:
        return False
    mem[w + L.W_MOVED] = now
    return True
