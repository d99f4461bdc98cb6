"""The queues between the actors: circular arrays of slots and one chain.

wiring      Orch → Scheduler, single producer, single consumer, lock-free
ready       one per worker type, inside the Scheduler; it grows to hold every live task, and an emptied
            one is small again
affinity    one chain per worker: ready tasks that only this worker may run
candidates  one per worker type: hints at tasks that could be pre-dispatched
consumed    a chain through the slots, Scheduler → Orch, passed on under the pass lock

Rule     ORCH-BACK-6, SCHED-CONSUME-1, SCHED-CONSUME-2, SCHED-READY-3, WM-AFF-4
"""

from __future__ import annotations

from . import layout as L
from .atomics import load, store
from .kernel import kernel
from .slots import kind_of

WIRING_MASK = L.WIRING_CAPACITY - 1


@kernel
def wiring_full(mem):
    """Say whether the Scheduler is a whole queue behind (read by the Orch thread)."""
    return mem[L.WIRING_PUSHED] - load(mem, L.WIRING_TAKEN) >= L.WIRING_CAPACITY


@kernel
def push_wiring(mem, slot):
    """Append a submitted task, for the Scheduler.

    Ordering the release of WIRING_PUSHED pairs with the load in `pop_wiring`: a reader of the entry
             sees the whole slot
    Rule     ORCH-SUBMIT-6
    """
    pushed = int(mem[L.WIRING_PUSHED])
    mem[int(mem[L.A_WIRING]) + (pushed & WIRING_MASK)] = slot
    store(mem, L.WIRING_PUSHED, pushed + 1)


@kernel
def pop_wiring(mem):
    """Take the oldest submitted task, or NONE.

    Ordering the release of WIRING_TAKEN pairs with the load in `wiring_full`: the entry is free
    Rule     SCHED-WIRE-1
    """
    taken = int(mem[L.WIRING_TAKEN])
    if taken == load(mem, L.WIRING_PUSHED):
        return L.NONE
    slot = int(mem[int(mem[L.A_WIRING]) + (taken & WIRING_MASK)])
    store(mem, L.WIRING_TAKEN, taken + 1)
    return slot


@kernel
def ready_empty(mem, kind):
    return mem[L.READY_HEAD + kind] == mem[L.READY_TAIL + kind]


@kernel
def has_ready(mem, kind):
    """Say whether a task of a worker type is ready, with or without an affinity."""
    return mem[L.AFFINITY + kind] != 0 or not ready_empty(mem, kind)


@kernel
def double(mem, base, first, words, mask):
    """Double a circular array's capacity: move each entry to its new position.

    Returns  the new mask
    """
    wider = 2 * mask + 1
    for position in range(first, first + mask + 1):
        old = base + (position & mask) * words
        new = base + (position & wider) * words
        if new != old:
            for k in range(words):
                mem[new + k] = mem[old + k]
    return wider


@kernel
def push_ready(mem, kind, slot):
    """Append a task whose producers are all done."""
    base = int(mem[L.A_READY + kind])
    head = int(mem[L.READY_HEAD + kind])
    tail = int(mem[L.READY_TAIL + kind])
    if tail - head > mem[L.READY_MASK + kind]:
        mem[L.READY_MASK + kind] = double(mem, base, head, 1, int(mem[L.READY_MASK + kind]))
    mem[base + (tail & int(mem[L.READY_MASK + kind]))] = slot
    mem[L.READY_TAIL + kind] = tail + 1


@kernel
def first_ready(mem, kind):
    head = int(mem[L.READY_HEAD + kind])
    return int(mem[int(mem[L.A_READY + kind]) + (head & int(mem[L.READY_MASK + kind]))])


@kernel
def drop_first_ready(mem, kind):
    """Remove the oldest ready task; an emptied queue starts over where its memory is warm."""
    mem[L.READY_HEAD + kind] += 1
    if ready_empty(mem, kind):
        mem[L.READY_HEAD + kind] = 0
        mem[L.READY_TAIL + kind] = 0
        mem[L.READY_MASK + kind] = L.CIRCULAR_SMALLEST - 1


@kernel
def remove_ready(mem, kind, slot):
    """Remove a ready task from anywhere in its queue; those before it move up by one."""
    base, mask = int(mem[L.A_READY + kind]), int(mem[L.READY_MASK + kind])
    at = int(mem[L.READY_HEAD + kind])
    before = L.NONE
    while before != slot:
        here = base + (at & mask)
        before, mem[here] = int(mem[here]), before
        at += 1
    drop_first_ready(mem, kind)


@kernel
def push_affinity(mem, w, kind, slot):
    """Append a ready task to the chain of the only worker that may run it."""
    mem[slot + L.S_NEXT] = L.NONE
    tail = int(mem[w + L.W_AFFINITY_TAIL])
    if tail == L.NONE:
        mem[w + L.W_AFFINITY_HEAD] = slot
    else:
        mem[tail + L.S_NEXT] = slot
    mem[w + L.W_AFFINITY_TAIL] = slot
    mem[L.AFFINITY + kind] += 1


@kernel
def pop_affinity(mem, w, kind):
    """Take the oldest task of a worker's chain (it is not empty)."""
    slot = int(mem[w + L.W_AFFINITY_HEAD])
    mem[w + L.W_AFFINITY_HEAD] = mem[slot + L.S_NEXT]
    if mem[w + L.W_AFFINITY_HEAD] == L.NONE:
        mem[w + L.W_AFFINITY_TAIL] = L.NONE
    mem[L.AFFINITY + kind] -= 1
    return slot


@kernel
def remove_affinity(mem, w, kind, slot):
    """Remove a ready task from anywhere in the chain of its worker: the others go around once."""
    last = int(mem[w + L.W_AFFINITY_TAIL])
    other = L.NONE
    while other != last:
        other = pop_affinity(mem, w, kind)
        if other != slot:
            push_affinity(mem, w, kind, other)


@kernel
def push_candidate(mem, slot):
    """Note a task whose live producers are all in frames. A full array drops it: it is a hint.

    Endpoints run several calls at a time, so a call that waits in a frame there could only be in the way.

    Rule     SPEED-AHEAD-1
    """
    kind = kind_of(mem, slot)
    tail = int(mem[L.CANDIDATES_TAIL + kind])
    if kind == L.NEXT_LEVEL and mem[L.STREAM] != 0:
        return
    if mem[L.DEPTH] > 1 and tail - mem[L.CANDIDATES_HEAD + kind] < L.CANDIDATES_CAPACITY:
        mem[L.CANDIDATES + kind * L.CANDIDATES_CAPACITY + tail % L.CANDIDATES_CAPACITY] = slot
        mem[L.CANDIDATES_TAIL + kind] = tail + 1


@kernel
def has_candidate(mem, kind):
    return mem[L.CANDIDATES_HEAD + kind] != mem[L.CANDIDATES_TAIL + kind]


@kernel
def first_candidate(mem, kind):
    """Return the oldest candidate of a worker type (there is one); its state may have changed since."""
    head = int(mem[L.CANDIDATES_HEAD + kind])
    return int(mem[L.CANDIDATES + kind * L.CANDIDATES_CAPACITY + head % L.CANDIDATES_CAPACITY])


@kernel
def push_consumed(mem, slot):
    """Leave a consumed slot for the Orch thread (the caller holds the pass lock)."""
    mem[slot + L.S_LINK] = mem[L.CONSUMED_HEAD]
    mem[L.CONSUMED_HEAD] = slot


@kernel
def take_consumed(mem):
    """Take the whole chain of consumed slots (the caller holds the pass lock)."""
    head = int(mem[L.CONSUMED_HEAD])
    mem[L.CONSUMED_HEAD] = L.NONE
    return head
