"""Calls: tasks of a stream, which is a run without scopes.

A call is submitted from any thread (one at a time), depends on others through the hazards of its tensors
(see `hazards`) and through the futures among its scalars, and keeps its own outcome: its value, or how it
failed, in S_VALUE and S_KIND, until its future drops it.

Rule     CALL-FUTURE-4, CALL-HAZARD-4
"""

from __future__ import annotations

from . import hazards, submit
from . import layout as L
from .atomics import load, now_ns, unlikely
from .journal import note, note_edge, number_of
from .queues import push_wiring, wiring_full
from .ring import alloc
from .slots import SUBMIT, prepare, release_ref, step


def submit_call(mem, callable_word, counts, words):
    """Add one call to the stream, with a reference for its future.

    `words` are tensors with their tags, then scalars with their kinds; a scalar of the kind FUTURE is the
    slot of a call that is not dropped.

    Returns  the slot; or, with nothing changed, WOULD_BLOCK, TOO_MANY_ARGS, or ILLEGAL if the words are
             invalid
    Rule     CALL-STREAM-1, CALL-STREAM-2
    """
    tensors, scalars = counts & L.LOW_HALF, counts >> L.HALF
    if not submit.are_there(mem, words, counts, 0):
        return L.ILLEGAL
    if not submit.fits_mailbox(words, counts, 0):
        return L.TOO_MANY_ARGS
    conflicts = hazards.collect_conflicts(mem, words, tensors)
    most_edges = conflicts
    for k in range(scalars):
        kind = tensors * L.TENSOR_WORDS + k * L.SCALAR_WORDS + L.SCALAR_KIND
        most_edges += words[kind] == L.FUTURE
    room = submit.body_words(tensors, scalars, 0, most_edges)
    if not submit.could_have_room(mem, room):
        return L.TOO_MANY_ARGS
    if wiring_full(mem):
        return L.WOULD_BLOCK
    if not has_call_room(mem, room, tensors):
        submit.reclaim_chain(mem, hazards.drop_over(mem, L.NONE))
        if not has_call_room(mem, room, tensors):
            return L.WOULD_BLOCK
        # once more: one may have ended and be reclaimed
        conflicts = hazards.collect_conflicts(mem, words, tensors)
    slot = alloc(mem, 0, 0)
    prepare(mem, slot, callable_word, 1, 0)
    submit.take_body(mem, slot, counts, 0, room)
    submit.store_arguments(mem, slot, words, 0)
    edges = add_edges(mem, slot, words, conflicts)
    mem[slot + L.S_EDGES] = edges | most_edges << L.HALF
    submit.reclaim_chain(mem, hazards.note_accesses(mem, slot, words, tensors))
    if unlikely(mem[L.TRACING] == L.TRACE_ALL):
        submit.note_arguments(mem, slot, words)
        key = int(mem[submit.scalars_at(mem, slot) + L.SCALAR_BITS]) & L.CALL_KEY
        note(mem, L.JOURNAL_OF_ORCH, L.NOTED_CALL, number_of(mem, slot), now_ns(), key)
    step(mem, slot, SUBMIT)
    push_wiring(mem, slot)
    return slot


def has_call_room(mem, room, tensors):
    """Say whether a call fits, with a body of `room` words; `drop_over` may make room.

    Calls that have ended keep their slots while they are noted as the last to write something.
    """
    return (
        mem[L.LIVE] < mem[L.WINDOW]
        and submit.spill_has_room(mem, room)
        and hazards.has_access_room(mem, tensors)
    )


def add_edges(mem, slot, words, conflicts):
    """Reference each call that this one waits for, and note the edge.

    Returns  the number of edges
    Rule     CALL-STREAM-2, CALL-FAIL-1
    """
    edge = submit.edges_at(mem, slot)
    edges = 0
    for i in range(conflicts):
        conflict = int(mem[L.A_CONFLICTS]) + i * L.CONFLICT_WORDS
        flag = 0 if mem[conflict + L.CONFLICT_KIND] == L.NEEDS else L.ORDER_ONLY
        at = edge + edges * L.EDGE_WORDS
        producer = int(mem[conflict + L.CONFLICT_SLOT])
        if unlikely(mem[L.TRACING] == L.TRACE_ALL):
            hazards.note_conflict(mem, slot, words, conflict)
        edges += submit.write_edge(mem, at, producer, slot | flag)
    scalar = submit.scalars_at(mem, slot)
    for _ in range(int(mem[slot + L.S_COUNTS]) >> L.HALF):
        if mem[scalar + L.SCALAR_KIND] == L.FUTURE:
            producer = int(mem[scalar + L.SCALAR_BITS])
            if unlikely(mem[L.TRACING] == L.TRACE_ALL):
                note_edge(mem, slot, producer, L.NO_TENSOR, 0, L.OWED_FUTURE, 0)
            edges += submit.write_edge(mem, edge + edges * L.EDGE_WORDS, producer, slot | L.FETCHES)
        scalar += L.SCALAR_WORDS
    return edges


def drop(mem, slot):
    """Release the reference of a future that no one refers to any more."""
    if release_ref(mem, slot):
        submit.reclaim(mem, slot)


def forget_memory(mem, low, high):
    """Forget who reads and writes memory that is given back."""
    submit.reclaim_chain(mem, hazards.forget_range(mem, low, high))


def forget_accesses(mem):
    """Forget who reads and writes what: everything has ended."""
    submit.reclaim_chain(mem, hazards.forget_all(mem))


def drop_forgotten(mem):
    """Drop the calls that have no future, when all have ended and all futures have their values.

    A signal may have come between a call and its future.

    Rule     CALL-STREAM-8
    """
    slot = int(mem[L.A_SLOTS])
    for _ in range(mem[L.SLOTS_USED]):
        state = load(mem, slot + L.S_STATE)
        if state == L.COMPLETED or state == L.FAILED:
            drop(mem, slot)
        slot += L.SLOT_WORDS
