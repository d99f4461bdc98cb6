"""The pass lock: the thread that holds it is the Scheduler. It is a try-lock."""

from __future__ import annotations

from . import layout as L
from .atomics import compare_exchange, load, store
from .kernel import kernel


@kernel
def try_lock(mem):
    """Become the Scheduler if no other thread is; never wait.

    Ordering the exchange pairs with the release in `unlock`: the holder sees all that the last one wrote
    Rule     SCHED-PASS-2
    """
    return load(mem, L.PASS_LOCK) == 0 and compare_exchange(mem, L.PASS_LOCK, 0, 1)


@kernel
def unlock(mem):
    """Stop being the Scheduler."""
    store(mem, L.PASS_LOCK, 0)
