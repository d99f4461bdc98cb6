"""The queues between the actors: arrays of slots, and chains through them.

wiring      Orch → Scheduler, single producer, single consumer, lock-free: a circular array
ready       one chain per worker type, inside the Scheduler, and one per worker: ready tasks that only
            this worker may run (its affinity chain)
candidates  one array per worker type: hints at tasks that could be pre-dispatched
consumed    a chain, Scheduler → Orch, passed on under the pass lock

A ready chain is two words, its oldest task and, unless that is NONE, its newest.

Rule     ORCH-BACK-6, ORCH-SUBMIT-6, SCHED-CONSUME-1, SCHED-CONSUME-2, SCHED-READY-3, SCHED-WIRE-1,
         SPEED-AHEAD-1, WM-AFF-4
"""

from __future__ import annotations

from . import layout as L
from .atomics import load, store
from .mailbox import worker_at
from .slots import affinity_of, kind_of

WIRING_MASK = L.WIRING_CAPACITY - 1


def wiring_full(mem):
    """Say whether the Scheduler is a whole queue behind (read by the Orch thread)."""
    return mem[L.WIRING_PUSHED] - load(mem, L.WIRING_TAKEN) >= L.WIRING_CAPACITY


def push_wiring(mem, slot):
    """Append a submitted task, for the Scheduler.

    Ordering the release of WIRING_PUSHED pairs with the load in `pop_wiring`: a reader of the entry
             sees the whole slot
    """
    pushed = int(mem[L.WIRING_PUSHED])
    mem[int(mem[L.A_WIRING]) + (pushed & WIRING_MASK)] = slot
    store(mem, L.WIRING_PUSHED, pushed + 1)


def pop_wiring(mem):
    """Take the oldest submitted task, or NONE.

    Ordering the release of WIRING_TAKEN pairs with the load in `wiring_full`: the entry is free
    """
    taken = int(mem[L.WIRING_TAKEN])
    if taken == load(mem, L.WIRING_PUSHED):
        return L.NONE
    slot = int(mem[int(mem[L.A_WIRING]) + (taken & WIRING_MASK)])
    store(mem, L.WIRING_TAKEN, taken + 1)
    return slot


def first_ready(mem, kind):
    return int(mem[L.READY_CHAINS + 2 * kind])


def has_ready(mem, kind):
    """Say whether a task of a worker type is ready, with or without an affinity."""
    return mem[L.AFFINITY + kind] != 0 or first_ready(mem, kind) != L.NONE


def chain_of(mem, slot):
    """Return where a ready task waits: the chain of its worker type, or of the one worker for it."""
    worker = affinity_of(mem, slot)
    if worker < 0:
        return L.READY_CHAINS + 2 * kind_of(mem, slot)
    return worker_at(mem, worker) + L.W_AFFINITY


def push_ready(mem, slot):
    """Append a task whose producers are all done to its chain."""
    chain, kind, is_named = chain_of(mem, slot), kind_of(mem, slot), affinity_of(mem, slot) >= 0
    mem[slot + L.S_NEXT] = L.NONE
    if mem[chain] == L.NONE:
        mem[chain] = slot
    else:
        mem[mem[chain + 1] + L.S_NEXT] = slot
    mem[chain + 1] = slot
    mem[L.AFFINITY + kind] += is_named


def pop_ready(mem, kind):
    slot = first_ready(mem, kind)
    mem[L.READY_CHAINS + 2 * kind] = mem[slot + L.S_NEXT]
    return slot


def pop_affinity(mem, w, kind):
    slot = int(mem[w + L.W_AFFINITY])
    mem[w + L.W_AFFINITY] = mem[slot + L.S_NEXT]
    mem[L.AFFINITY + kind] -= 1
    return slot


def remove_ready(mem, slot):
    chain = chain_of(mem, slot)
    before, at, after = L.NONE, int(mem[chain]), int(mem[slot + L.S_NEXT])
    while at != slot:
        before, at = at, int(mem[at + L.S_NEXT])
    if before == L.NONE:
        mem[chain] = after
    else:
        mem[before + L.S_NEXT] = after
    if after == L.NONE:
        mem[chain + 1] = before
    mem[L.AFFINITY + kind_of(mem, slot)] -= affinity_of(mem, slot) >= 0


def push_candidate(mem, slot):
    """Note a task whose live producers are all in frames. A full array drops it: it is a hint.

    Endpoints run several calls at a time, so a call that waits in a frame there could only be in the way.
    """
    kind = kind_of(mem, slot)
    tail = int(mem[L.CANDIDATES_TAIL + kind])
    if kind == L.NEXT_LEVEL and mem[L.STREAM] != 0:
        return
    if mem[L.DEPTH] > 1 and tail - mem[L.CANDIDATES_HEAD + kind] < L.CANDIDATES_CAPACITY:
        mem[L.CANDIDATES + kind * L.CANDIDATES_CAPACITY + tail % L.CANDIDATES_CAPACITY] = slot
        mem[L.CANDIDATES_TAIL + kind] = tail + 1


def has_candidate(mem, kind):
    return mem[L.CANDIDATES_HEAD + kind] != mem[L.CANDIDATES_TAIL + kind]


def first_candidate(mem, kind):
    """Return the oldest candidate of a worker type (there is one); its state may have changed since."""
    head = int(mem[L.CANDIDATES_HEAD + kind])
    return int(mem[L.CANDIDATES + kind * L.CANDIDATES_CAPACITY + head % L.CANDIDATES_CAPACITY])


def push_consumed(mem, slot):
    """Leave a consumed slot for the Orch thread (the caller holds the pass lock)."""
    mem[slot + L.S_LINK] = mem[L.CONSUMED_HEAD]
    mem[L.CONSUMED_HEAD] = slot


def take_consumed(mem):
    """Take the whole chain of consumed slots (the caller holds the pass lock)."""
    head = int(mem[L.CONSUMED_HEAD])
    mem[L.CONSUMED_HEAD] = L.NONE
    return head
