"""The pass lock: whoever holds it is the Scheduler. Nobody ever waits for it."""

from __future__ import annotations

from . import layout as L
from .atomics import compare_exchange, load, store
from .kernel import kernel


# ---------------------------------------------------------------- who runs it
@kernel
def try_lock(mem):
    """Become the Scheduler if nobody else is; never waits.

    Ordering the exchange pairs with the release in `unlock`: the holder sees all the last one wrote
    Rule     SCHED-PASS-2
    """
    return load(mem, L.PASS_LOCK) == 0 and compare_exchange(mem, L.PASS_LOCK, 0, 1)


@kernel
def unlock(mem):
    """Stop being the Scheduler."""
    store(mem, L.PASS_LOCK, 0)
