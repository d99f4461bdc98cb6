"""What compiled orchestration does to the graph: submit, alloc and scopes, over the usual kernels.

The words of a call (C_…) say where the engine is and which memory the workers see; a *block* is the
address of a task's arguments: how many there are, then the words that submit takes. What is wrong or not
known yet (a handle that is not live, an array in some other memory) the plain Orchestrator submits, with
the same arguments, and it waits where there is no room.
"""

from __future__ import annotations

import numpy as np

from ...jit import entries
from ...jit import layout as L
from ...jit.atomics import now_ns
from ...jit.ring import live_tasks as _live_tasks
from ...jit.ring import next_task_id
from ...jit.submit import (
    argument_words,
    is_auto_output,
    is_child_memory,
    nbytes_of,
    scalars_in,
    tensors_at,
    tensors_in,
)
from ...jit.submit import scope_depth as _scope_depth
from ..scopes import NO_SCOPE_OPEN, SCOPE_ENDED_INSIDE, TOO_MANY_SCOPES
from . import machine as M
from .machine import FIVE, INT, WORDS, ask, ask_about, called, helper, part, peek, word_at, words_at

C_MEM = 0
"""Address of the engine's words, and how many there are."""
C_MEM_WORDS = 1
C_LOOKED = 2
"""When Python last looked for signals, ns."""
C_ROOM = 3
"""Workers of each pool."""
C_SPANS = 5
"""Pairs (start, end) of memory that the workers see."""
C_FIRST_SPAN = 6
MAX_SPANS = 24
SPAN_WORDS = 2
CALL_WORDS = C_FIRST_SPAN + SPAN_WORDS * MAX_SPANS

SUBMITS = SUBMIT_SUB, SUBMIT_NEXT, SUBMIT_SUB_GROUP, SUBMIT_NEXT_GROUP = range(4)
FROM_ARRAY = 1 << 24
"""Set beside the tag of a tensor that was an array: submit sees that its memory is shared."""
LOOK_EVERY = 1024
"""Tasks after which the clock is read, …"""
LOOK_NS = 20_000_000
"""… and time after which Python then looks for signals."""
TENSOR_WORDS, SCALAR_WORDS, MEMBER_WORDS = L.TENSOR_WORDS, L.SCALAR_WORDS, L.MEMBER_WORDS
NEXT_LEVEL, WORD = L.NEXT_LEVEL, L.WORD

_submit_words = called(entries.submit_words)
_alloc_words = called(entries.alloc_words)
_open_scope = called(entries.open_scope)
_close_scope = called(entries.close_scope)


@part
def engine(call):
    """Return the engine's words."""
    return words_at(peek(call), word_at(call, C_MEM_WORDS))


@part
def arguments_at(block):
    """Return the counts of some arguments, and their words; none for block 0."""
    counts = peek(block) if block != 0 else 0
    size = argument_words(tensors_in(counts), scalars_in(counts))
    return counts, words_at(block + WORD, size)


# ---------------------------------------------------------------- what submit sees first
@part
def is_visible(call, address, nbytes):
    """Say whether memory is known to be seen by the workers.

    Rule     SPEED-ORCH-3
    """
    span = call + WORD * C_FIRST_SPAN
    for _ in range(word_at(call, C_SPANS)):
        if peek(span) <= address and address + nbytes <= word_at(span, 1):
            return True
        span += SPAN_WORDS * WORD
    return False


@part
def all_visible(call, counts, words):
    """Say whether no array among some arguments may be in memory of this process alone."""
    for i in range(tensors_in(counts)):
        t = i * TENSOR_WORDS
        if words[t + L.TENSOR_KIND] & FROM_ARRAY:
            if not is_visible(call, words[t + L.TENSOR_DATA], nbytes_of(words, t)):
                return False
            words[t + L.TENSOR_KIND] &= ~FROM_ARRAY
    return True


@part
def affinity(call, how, worker, counts, words):
    """Return the next-level worker a task is for, plus one; 0 for any, -1 if Python has to say."""
    if how in (SUBMIT_SUB, SUBMIT_SUB_GROUP):
        return 0
    room = word_at(call, C_ROOM + NEXT_LEVEL)
    if worker != -1:
        return worker + 1 if 0 <= worker < room else -1
    for t in range(0, tensors_in(counts) * TENSOR_WORDS, TENSOR_WORDS):
        if is_child_memory(words, t):
            return 1 if room == 1 else -1
    return 0


@part
def look_for_signals(call):
    """Let Python run its signal handlers, if that is due.

    Rule     SPEED-ORCH-12
    """
    now = now_ns()
    if now - word_at(call, C_LOOKED) > LOOK_NS:
        words_at(call, CALL_WORDS)[C_LOOKED] = now
        ask(M.ASK_SIGNALS, 0, 0, 0, 0)


@part
def note_outputs(mem, slot, first, counts, words):
    """Write the addresses the runtime chose back into arguments: tensors from `first` of the task."""
    at = tensors_at(mem, slot) + first * TENSOR_WORDS
    for t in range(0, tensors_in(counts) * TENSOR_WORDS, TENSOR_WORDS):
        if is_auto_output(words, t):
            words[t] = mem[at + t]


# ---------------------------------------------------------------- submit
@part
def submit(mem, word, counts, members, words):
    """Submit a task or a group; Python waits for room, or says what is wrong.

    Rule     SPEED-ORCH-4, -5
    """
    slot = _submit_words(mem, word, counts, members, words)
    if slot < 0:
        slot = ask_about(M.ASK_RETRY | -slot << 8 | members << 16, word, counts, words)
    return slot


@helper()
def submit_one(call, how, number, word, worker, config, block):
    """Submit a task: how (SUBMIT_…), its handle's number and word, and what else it is given."""
    counts, words = arguments_at(block)
    where = affinity(call, how, worker, counts, words)
    if word < 0 or where < 0 or not all_visible(call, counts, words):
        ask_about(M.ASK_SUBMIT | how << 8 | 1 << 16, number, config, np.array((block, worker)))
        return
    mem = engine(call)
    slot = submit(mem, word | where << L.WORD_WORKER | config << L.WORD_CONFIG, counts, 0, words)
    if slot & L.AUTO_OUTPUT:
        note_outputs(mem, slot ^ L.AUTO_OUTPUT, 0, counts, words)
    if next_task_id(mem) & (LOOK_EVERY - 1) == 0:
        look_for_signals(call)


@part
def gather(call, how, blocks, workers):
    """Return the words of a group, and its counts: all tensors, then all scalars, then its members."""
    counts, members = 0, len(blocks)
    for block in blocks:
        counts += peek(block)
    rest = tensors_in(counts) * TENSOR_WORDS
    table = argument_words(tensors_in(counts), scalars_in(counts))
    words, at = np.empty(table + members * MEMBER_WORDS, np.int64), 0
    for i in range(members):
        own, given = arguments_at(blocks[i])
        tensors = tensors_in(own) * TENSOR_WORDS
        for k in range(tensors):
            words[at + k] = given[k]
        for k in range(tensors, len(given)):
            words[rest + k - tensors] = given[k]
        at += tensors
        rest += len(given) - tensors
        words[table + i * MEMBER_WORDS + L.MEMBER_COUNTS] = own
        words[table + i * MEMBER_WORDS + L.MEMBER_WORKER] = affinity(
            call, how, workers[i], own, given
        )
    return counts, words


@helper(INT, INT, INT, INT, INT, WORDS, WORDS)
def submit_group(call, how, number, word, config, blocks, workers):
    """Submit a group: the addresses of its members' arguments, and the worker of each, -1 for any."""
    members = len(blocks)
    pool = C_ROOM + (NEXT_LEVEL if how == SUBMIT_NEXT_GROUP else L.SUB)
    fine = word >= 0 and 0 < members == len(workers) <= word_at(call, pool)
    for i in range(members if fine else 0):
        counts, words = arguments_at(blocks[i])
        fine = fine and affinity(call, how, workers[i], counts, words) >= 0
        fine = fine and all_visible(call, counts, words)
        for k in range(i):
            fine = fine and (workers[i] == -1 or workers[i] != workers[k])
    if not fine:
        what = M.ASK_SUBMIT | how << 8 | members << 16
        ask_about(what, number, config, np.concatenate((blocks, workers)))
        return
    mem, first = engine(call), 0
    total, gathered = gather(call, how, blocks, workers)
    slot = submit(mem, word | config << L.WORD_CONFIG, total, members, gathered)
    for block in blocks if slot & L.AUTO_OUTPUT else blocks[:0]:
        counts, words = arguments_at(block)
        note_outputs(mem, slot ^ L.AUTO_OUTPUT, first, counts, words)
        first += tensors_in(counts)
    look_for_signals(call)


# ---------------------------------------------------------------- alloc and scopes
@helper(INT, FIVE)
def alloc_buffer(call, tensor):
    """Return the wire words of a tensor with the address of a new buffer."""
    _, first, second, third, kind = tensor
    tag = L.OUTPUT << L.TENSOR_TAG_SHIFT
    mem, words = engine(call), np.array((0, first, second, third, kind | tag))
    slot = _alloc_words(mem, words)
    if slot < 0:
        ask_about(M.ASK_ALLOC, 0, 0, words)
    else:
        words[L.TENSOR_DATA] = mem[tensors_at(mem, slot) + L.TENSOR_DATA]
    if next_task_id(mem) & (LOOK_EVERY - 1) == 0:
        look_for_signals(call)
    return words[L.TENSOR_DATA], first, second, third, kind


@part
def scope_depth(call):
    """Return how many scopes are open, the run's own included."""
    return _scope_depth(engine(call))


@part
def live_tasks(call):
    """Return how many tasks are not reclaimed."""
    return _live_tasks(engine(call))


@helper()
def begin_scope(call):
    """Open a scope; return how many are open now."""
    if _open_scope(engine(call)) != L.OK:
        raise RuntimeError(TOO_MANY_SCOPES)
    return scope_depth(call)


@helper()
def end_scope(call):
    """End the innermost scope."""
    if scope_depth(call) <= 1:
        raise RuntimeError(NO_SCOPE_OPEN)
    _close_scope(engine(call))


@helper()
def unwind_to(call, depth):
    """End the scopes down to a depth."""
    while scope_depth(call) >= depth:
        _close_scope(engine(call))


@helper()
def leave_scope(call, depth):
    """End the scope that a with block opened, and what was left open inside it."""
    if scope_depth(call) < depth:
        raise RuntimeError(SCOPE_ENDED_INSIDE)
    unwind_to(call, depth)
