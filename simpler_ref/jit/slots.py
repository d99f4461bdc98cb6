"""The state machine of a task, and the references that keep its slot alive.

`EVENTS` is the state machine: each event and the states it can happen in. `step` is the only function
that writes a state, and refuses what the table does not have. The tests drive every event at a slot in
every state, and the documentation draws the table.

References. `fanout_total` counts those that need the slot: its scope (1) and each consumer.
`fanout_released` counts those that have released it, plus one for the task itself when it is terminal.
The release that makes released reach total + 1 moves the slot to CONSUMED; both counts are in one atomic
word, so exactly one releaser sees that, and a later `acquire_ref` is refused. Submit acquires a reference
before the edge exists: otherwise the producer could complete, lose its scope and have its slab reused
while the consumer's entry still waits in the wiring queue.

Rule     ORCH-PIN-1, ORCH-PIN-3, ORCH-STATE-1, ORCH-STATE-3, ORCH-STATE-4, SCHED-CONSUME-1, SEE-NOTE-2
"""

from __future__ import annotations

from typing import NamedTuple

from . import layout as L
from .atomics import compare_exchange, fetch_add, load, store, unlikely
from .journal import note_step

SUBMIT, ALLOC, INPUTS_DONE, POISON, DISPATCH, COMPLETE = range(6)
FAIL, RELEASE, RECLAIM, RUN_AGAIN, FORGIVE = range(6, 11)


class Event(NamedTuple):
    """One thing that can happen to a slot."""

    name: str
    before: tuple[int, ...]
    """The states it can happen in."""
    after: int
    owner: str
    """The party that does it."""
    kernels: tuple[str, ...]
    """The kernels that do it."""
    when: str
    otherwise: str = "refused"
    """What keeps it from a slot in any other state."""


EVENTS = (
    Event(
        *("submit", (L.FREE,), L.PENDING, "Orch", ("submit.submit_task", "submit.submit_call")),
        "a task takes the slot",
        "the free list has no other",
    ),
    Event(
        *("alloc", (L.FREE,), L.COMPLETED, "Orch", ("submit.alloc_buffer",)),
        "a buffer takes the slot",
        "the free list has no other",
    ),
    Event(
        *("inputs done", (L.PENDING,), L.READY, "Scheduler"),
        ("graph.make_ready", "collect.catch_up"),
        "it is wired, and its last live producer is done",
    ),
    Event(
        *("poison", (L.PENDING,), L.FAILED, "Scheduler", ("graph.poison",)),
        "a producer has failed; or it was pre-dispatched and must not start any more",
    ),
    Event(
        *("dispatch", (L.READY,), L.RUNNING, "Scheduler"),
        ("dispatch.assign", "dispatch.start_group", "collect.catch_up"),
        "it is given to a worker, or a group to its workers",
        "the ready queues and chains have no other",
    ),
    Event(
        *("complete", (L.RUNNING,), L.COMPLETED, "Scheduler", ("graph.complete",)),
        "the worker, or each worker of a group, succeeded",
    ),
    Event(
        *("fail", (L.READY, L.RUNNING), L.FAILED, "Scheduler", ("graph.fail",)),
        "the worker reports an error or dies; or, before it started, the run is cancelled or the worker "
        "it needs is dead",
    ),
    Event(
        *("release", (L.COMPLETED, L.FAILED), L.CONSUMED, "Orch or Scheduler"),
        ("slots.release_ref",),
        "the last reference is dropped",
        "the task itself holds a reference until it is terminal",
    ),
    Event(
        *("reclaim", (L.CONSUMED,), L.FREE, "Orch", ("submit.reclaim",)),
        "keys, body, slab and slot are reclaimed",
    ),
    Event(
        *("run again", (L.RUNNING,), L.READY, "Scheduler", ("graph.run_again",)),
        "its worker has died: of a call that it had not begun, or that may be run again",
    ),
    Event(
        *("forgive", (L.FAILED,), L.COMPLETED, "Scheduler", ("schedule.forgive",)),
        "all tasks have ended, and others that are submitted do what it should have done",
    ),
)
"""Every legal step of a task; an event's number is its index."""

STARTS = tuple(sum(1 << state for state in event.before) for event in EVENTS)
"""The states an event can happen in, as a bit set."""
ENDS = tuple(event.after for event in EVENTS)
JOURNALS = tuple(
    {"Orch": L.JOURNAL_OF_ORCH, "Scheduler": L.JOURNAL_OF_SCHEDULER}.get(event.owner, -1)
    for event in EVENTS
)
"""The journal in which an event is noted; -1: who does it notes it."""


def step(mem, slot, event):
    """Let an event happen to a slot.

    It looks at the state, then stores the next one, where the documents compare and exchange: each event
    has one owner (see `EVENTS`), and only the owner of a slot's next event changes its state, so that
    nothing comes in between.

    Ordering release, for readers outside; between Orch and Scheduler the wiring queue and the pass lock
             order it
    Returns  OK, or ILLEGAL with nothing changed if the table has no such step from the slot's state
    """
    if STARTS[event] >> int(mem[slot + L.S_STATE]) & 1 == 0:
        return L.ILLEGAL
    store(mem, slot + L.S_STATE, ENDS[event])
    if unlikely(mem[L.TRACING] == L.TRACE_ALL) and JOURNALS[event] >= 0:
        note_step(mem, slot, event, JOURNALS[event])
    return L.OK


def acquire_ref(mem, producer):
    """Acquire a reference to a producer for a consumer, unless the producer is already consumed.

    Ordering the exchange pairs with the add in `release_ref`: of an acquired reference and the last
             release, one comes first, and both sides agree which
    Returns  whether the reference was acquired
    """
    while True:
        word = load(mem, producer + L.S_FANOUT)
        if word >> L.HALF > word & L.FANOUT_TOTAL_MASK:  # released >= total + 1
            return False
        if compare_exchange(mem, producer + L.S_FANOUT, word, word + 1):
            return True


def release_ref(mem, slot):
    """Release one reference; the last one moves the slot to CONSUMED.

    The documents compare the counts, then compare and exchange the state, since several may find that all
    are released. One add of both counts in one word tells exactly one of them that it was the last.

    Returns  whether this call consumed the slot: the caller must then have it reclaimed
    """
    word = fetch_add(mem, slot + L.S_FANOUT, L.FANOUT_RELEASE)
    if (word >> L.HALF) + 1 != (word & L.FANOUT_TOTAL_MASK) + 1:
        return False
    return step(mem, slot, RELEASE) == L.OK


def prepare(mem, slot, callable_word, total, released):
    mem[slot + L.S_FANOUT] = total | released << L.HALF
    mem[slot + L.S_FANIN] = 0
    mem[slot + L.S_CONSUMERS] = L.NONE
    mem[slot + L.S_WORKER] = -1
    mem[slot + L.S_FRAME] = 0
    mem[slot + L.S_CALLABLE] = callable_word
    mem[slot + L.S_EDGES] = 0
    mem[slot + L.S_VALUE] = 0


def is_in_frame(mem, slot):
    """Say whether a single task that has not ended is in a frame of a worker."""
    return mem[slot + L.S_FRAME] != 0 and mem[slot + L.S_MEMBERS] == 0


# ---------------------------------------------------------------- the callable word
def index_of(mem, slot):
    return int(mem[slot + L.S_CALLABLE]) & L.CALLABLE_MASK


def kind_of(mem, slot):
    return int(mem[slot + L.S_CALLABLE]) >> L.WORD_KIND & 0xF


def affinity_of(mem, slot):
    return (int(mem[slot + L.S_CALLABLE]) >> L.WORD_WORKER & L.WORKER_MASK) - 1


def config_of(mem, slot):
    return int(mem[slot + L.S_CALLABLE]) >> L.WORD_CONFIG & L.CONFIG_MASK
