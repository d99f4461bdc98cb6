"""The state machine of a task, and the references that keep its slot alive.

        alloc                       last live producer            worker took it
    FREE ────► COMPLETED      PENDING ───────────► READY ──────────────► RUNNING
      │                        ▲  │                  │                    │   │
      └────────────────────────┘  │ poisoned         │ cancelled          │   │ success
             submit               ▼                  ▼       error, death ▼   ▼
                                FAILED ◄────────────┴────────────────── FAILED  COMPLETED
                                  │                                               │
                                  └──► CONSUMED ◄── last reference released ──────┘
                                          │
                                          └──► FREE   reclaimed by the Orch thread

`NEXT_STATES` is that picture as data; `move` is the only function that writes a state.

References. `fanout_total` counts who needs the slot to stay: its scope (1) and each consumer that
pinned it. `fanout_released` counts who has let go, plus one for the task itself when it is terminal.
The slot is CONSUMED by whoever makes released reach total + 1; both counts live in one atomic word,
so exactly one releaser sees that, and a pin that comes later is refused. Submit pins a producer
before the edge exists: without that, the producer could complete, lose its scope and have its slab
handed out again while the consumer's entry still waits in the wiring queue.
"""

from __future__ import annotations

from . import layout as L
from .atomics import compare_exchange, fetch_add, load, store
from .kernel import kernel

TRANSITIONS = {
    L.FREE: (L.PENDING, L.COMPLETED),
    L.PENDING: (L.READY, L.FAILED),
    L.READY: (L.RUNNING, L.FAILED),
    L.RUNNING: (L.COMPLETED, L.FAILED),
    L.COMPLETED: (L.CONSUMED,),
    L.CONSUMED: (L.FREE,),
    L.FAILED: (L.CONSUMED,),
}
"""Every legal step of a task, by the state it starts from."""

NEXT_STATES = tuple(sum(1 << after for after in TRANSITIONS[state]) for state in range(7))
"""The same as a bit set per state."""


@kernel
def move(mem, slot, state):
    """Move a slot to `state`.

    Ordering release, for those who look from outside; between Orch and Scheduler the wiring queue
             and the pass lock order it
    Returns  OK, or ILLEGAL with nothing changed if the table has no such step
    """
    now = int(mem[slot + L.S_STATE])
    if NEXT_STATES[now] >> state & 1 == 0:
        return L.ILLEGAL
    store(mem, slot + L.S_STATE, state)
    return L.OK


@kernel
def pin(mem, producer):
    """Take a reference on a producer for a consumer, unless the producer is already consumed.

    Ordering the exchange pairs with the add in `release_ref`: of a pin and the last release,
             exactly one comes first, and both sides agree which
    Returns  whether the reference was taken
    """
    while True:
        word = load(mem, producer + L.S_FANOUT)
        if word >> 32 > word & L.FANOUT_TOTAL_MASK:  # released >= total + 1
            return False
        if compare_exchange(mem, producer + L.S_FANOUT, word, word + 1):
            return True


@kernel
def release_ref(mem, slot):
    """Drop one reference; the last one moves the slot to CONSUMED.

    Returns  whether this call consumed the slot: the caller must then see to its reclamation
    Rule     released >= total + 1, the same for the Scheduler and for a scope's end
    """
    word = fetch_add(mem, slot + L.S_FANOUT, L.FANOUT_RELEASE)
    if (word >> 32) + 1 != (word & L.FANOUT_TOTAL_MASK) + 1:
        return False
    move(mem, slot, L.CONSUMED)
    return True


@kernel
def prepare(mem, slot, callable_word, total, released):
    """Fill the fields of a fresh slot that do not come from its arguments."""
    mem[slot + L.S_FANOUT] = total | released << 32
    mem[slot + L.S_FANIN] = 0
    mem[slot + L.S_CONSUMERS] = L.NONE
    mem[slot + L.S_WORKER] = -1
    mem[slot + L.S_CALLABLE] = callable_word
    mem[slot + L.S_EDGES] = 0


# ---------------------------------------------------------------- the callable word
@kernel
def index_of(mem, slot):
    """Return the index of a task's callable."""
    return int(mem[slot + L.S_CALLABLE]) & L.CALLABLE_MASK


@kernel
def kind_of(mem, slot):
    """Return the worker type of a task."""
    return int(mem[slot + L.S_CALLABLE]) >> L.WORD_KIND & 0xF


@kernel
def affinity_of(mem, slot):
    """Return the only worker that may run a task, or -1."""
    return (int(mem[slot + L.S_CALLABLE]) >> L.WORD_WORKER & L.WORKER_MASK) - 1


@kernel
def config_of(mem, slot):
    """Return the index of a task's configuration."""
    return int(mem[slot + L.S_CALLABLE]) >> L.WORD_CONFIG & L.CONFIG_MASK
