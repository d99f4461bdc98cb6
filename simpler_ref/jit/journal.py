"""Journals: each thread and worker notes what it does in its own ring; the collector writes them down.

A journal has one writer and one reader. A writer that finds its journal full drops the note and counts
it: no thread ever waits for the collector. The collector sleeps until a part of a journal has filled, or
until it is asked to write what there is.

    party              journal
    Orch               JOURNAL_OF_ORCH
    Scheduler          JOURNAL_OF_SCHEDULER: whoever has the pass lock
    Scheduler thread   JOURNAL_OF_THREAD: its sleep, and the passes it runs
    worker             JOURNALS_OF_WORKERS + its number

Callers look at TRACING first, so that a note costs nothing while no trace is taken.

Rule     SEE-FILE-4, SEE-NOTE-2, SEE-NOTE-3, SEE-ON-1
"""

from __future__ import annotations

from . import layout as L
from .atomics import (
    fence,
    load,
    now_ns,
    stay_aside,
    store,
    unlikely,
    write_words,
)
from .waiting import be_awake, commit, notify, prepare


def journal_at(mem, journal):
    return L.journal_offset(int(mem[L.A_JOURNALS]), journal)


def note(mem, journal, what, task, time, value):
    """Put a note into a journal; without room drop it. Each part that has filled wakes the collector.

    Ordering the release of J_PUSHED pairs with the load in `collect_one`
    """
    stay_aside()
    at = journal_at(mem, journal)
    pushed = int(mem[at + L.J_PUSHED])
    mask = int(mem[at + L.J_MASK])
    if pushed - load(mem, at + L.J_TAKEN) > mask:
        mem[at + L.J_DROPPED] += 1
        return
    entry = at + L.JOURNAL_HEAD_WORDS + (pushed & mask) * L.NOTE_WORDS
    mem[entry + L.NOTE_WHAT] = what
    mem[entry + L.NOTE_TASK] = task
    mem[entry + L.NOTE_TIME] = time
    mem[entry + L.NOTE_VALUE] = value
    store(mem, at + L.J_PUSHED, pushed + 1)
    if (pushed + 1) & (mask // L.WAKE_SHARE) == 0:
        wake_collector(mem)


def wake_collector(mem):
    """Wake the collector, if it sleeps.

    Ordering the fence pairs with the one in `collector_loop`: it sees the notes, or this sees it parked
    """
    fence()
    notify(mem, L.PARK_COLLECTOR)


# ---------------------------------------------------------------- what is noted
def number_of(mem, slot):
    return int(mem[L.TRACED_FROM] + mem[slot + L.S_ID])


def note_step(mem, slot, event, journal):
    """Note an event of the state table: the worker that has or had the task, the line that submits."""
    stay_aside()
    value = 0
    operand = int(mem[slot + L.S_WORKER]) + 1
    if journal == L.JOURNAL_OF_ORCH:
        operand = int(mem[L.SUBMIT_LINE])
        word = int(mem[slot + L.S_CALLABLE])
        if word >= 0:
            digest = int(mem[L.A_CALLABLES]) + (word & L.CALLABLE_MASK) * L.DIGEST_WORDS
            value = int(mem[digest]) & L.FUNCTION_MASK
    note(mem, journal, event + 1 | operand << 8, number_of(mem, slot), now_ns(), value)


def note_span(mem, journal, what, operand, began):
    """Note what a thread has done from `began` until now."""
    stay_aside()
    note(mem, journal, what | operand << 8, 0, began, now_ns())


def note_edge(mem, slot, producer, tensor, tag, kind, address):
    stay_aside()
    operand = tensor | tag << 16 | kind << 24
    number = number_of(mem, slot)
    what = L.NOTED_EDGE | operand << 8
    note(mem, L.JOURNAL_OF_ORCH, what, number, address, number_of(mem, producer))


def note_held(mem, ring):
    stay_aside()
    r = L.RING_BLOCK + ring * L.LINE
    held = int(mem[r + L.R_TOP] - mem[r + L.R_TAIL])
    note(mem, L.JOURNAL_OF_ORCH, L.NOTED_HELD | ring << 8, 0, now_ns(), held)


def note_scope(mem, depth, opened):
    stay_aside()
    what = L.NOTED_SCOPE | (depth | opened << 16) << 8
    note(mem, L.JOURNAL_OF_ORCH, what, int(mem[L.SUBMIT_LINE]), now_ns(), int(mem[L.MAP_COUNT]))


def note_run(mem, kind):
    if unlikely(mem[L.TRACING] != 0):
        what = L.NOTED_RUN | kind << 8
        note(mem, L.JOURNAL_OF_ORCH, what, int(mem[L.TRACED_FROM]), now_ns(), 0)


def journal_of_worker(mem, w):
    return L.JOURNALS_OF_WORKERS + (w - int(mem[L.A_WORKERS])) // int(mem[L.WORKER_STRIDE])


def note_request(mem, w):
    stay_aside()
    box = w + int(mem[w + L.W_AT]) + L.W_MAILBOX
    what = L.NOTED_REQUEST | int(mem[box + L.MAIL_COMMAND]) << 8
    note(mem, journal_of_worker(mem, w), what, 0, int(mem[w + L.W_BEGAN]), now_ns())
    mem[w + L.W_BEGAN] = 0


def note_ran(mem, w, outcome):
    """Note the task that a worker has run, or tried to; nothing if its beginning was not noted."""
    stay_aside()
    frame = w + int(mem[w + L.W_AT])
    box, scalars_at = frame + L.W_MAILBOX, int(mem[frame + L.W_SCALARS_AT])
    function = int(mem[box + L.MAIL_DIGEST]) & L.FUNCTION_MASK
    if mem[L.STREAM] != 0 and scalars_at > 0:
        function = int(mem[box + scalars_at // L.WORD]) & L.CALL_KEY | L.FUNCTION_IS_KEY
    what = L.NOTED_RAN | (outcome | function << 8) << 8
    journal = journal_of_worker(mem, w)
    note(mem, journal, what, int(mem[w + L.W_NUMBER]), int(mem[w + L.W_BEGAN]), now_ns())
    mem[w + L.W_BEGAN] = 0


# ---------------------------------------------------------------- the collector
def begin_trace(mem, what):
    """Have notes made from now on; tasks are numbered from 1 (no run is in progress, no collector runs).

    Notes that are left from an earlier trace are forgotten.
    """
    for journal in range(L.JOURNALS_OF_WORKERS + mem[L.WORKERS]):
        at = journal_at(mem, journal)
        store(mem, at + L.J_TAKEN, load(mem, at + L.J_PUSHED))
    mem[L.TRACED_FROM] = 1
    mem[L.SUBMIT_LINE] = 0
    store(mem, L.COLLECTOR_ASKED, 0)
    store(mem, L.TRACING, what)


def end_trace(mem):
    store(mem, L.TRACING, 0)


def ask_collector(mem):
    store(mem, L.COLLECTOR_ASKED, 1)
    wake_collector(mem)


def write_all(mem, fd, at, count):
    """Write words to a file; return OK, or minus the number of the system's error."""
    done = 0
    while done < count:
        wrote = write_words(mem, at + done, fd, count - done)
        if wrote == -L.EINTR:
            continue
        if wrote < 0:
            return wrote
        if wrote % L.WORD != 0:
            return -L.ENOSPC
        done += wrote // L.WORD
    return L.OK


def collect_one(mem, fd, journal, last):
    """Write what a journal holds to a file, and free its room; the last time also what it has dropped.

    Ordering the load of J_PUSHED pairs with the release in `note`; the release of J_TAKEN with the load
             there
    """
    at = journal_at(mem, journal)
    taken, pushed = int(mem[at + L.J_TAKEN]), load(mem, at + L.J_PUSHED)
    if pushed == taken and (last == 0 or load(mem, at + L.J_DROPPED) == 0):
        return L.OK
    mem[L.COLLECTOR_CHUNK + L.NOTE_WHAT] = L.NOTED_CHUNK | journal << 8
    mem[L.COLLECTOR_CHUNK + L.NOTE_TASK] = pushed - taken
    mem[L.COLLECTOR_CHUNK + L.NOTE_TIME] = now_ns()
    mem[L.COLLECTOR_CHUNK + L.NOTE_VALUE] = load(mem, at + L.J_DROPPED)
    code = write_all(mem, fd, L.COLLECTOR_CHUNK, L.NOTE_WORDS)
    mask = int(mem[at + L.J_MASK])
    while taken < pushed and code == L.OK:
        first = taken & mask
        count = min(pushed - taken, mask + 1 - first)
        entry = at + L.JOURNAL_HEAD_WORDS + first * L.NOTE_WORDS
        code = write_all(mem, fd, entry, count * L.NOTE_WORDS)
        taken += count
        store(mem, at + L.J_TAKEN, taken)
    return code


def has_notes(mem):
    """Say whether a part of a journal has filled."""
    for journal in range(L.JOURNALS_OF_WORKERS + mem[L.WORKERS]):
        at = journal_at(mem, journal)
        if load(mem, at + L.J_PUSHED) - mem[at + L.J_TAKEN] > mem[at + L.J_MASK] // L.WAKE_SHARE:
            return True
    return False


def collector_loop(mem, fd):
    """Be the collector: write notes, sleep, and return when asked to. It never spins and never polls.

    Returns  OK when all that was noted before it was asked is written; else minus the system's error
    """
    while True:
        asked = load(mem, L.COLLECTOR_ASKED)
        for journal in range(L.JOURNALS_OF_WORKERS + mem[L.WORKERS]):
            code = collect_one(mem, fd, journal, asked)
            if code != L.OK:
                return code
        if asked != 0:
            store(mem, L.COLLECTOR_ASKED, 0)
            return L.OK
        prepare(mem, L.PARK_COLLECTOR, 1)
        if not has_notes(mem) and load(mem, L.COLLECTOR_ASKED) == 0:
            commit(mem, L.PARK_COLLECTOR, 1, -1)
        be_awake(mem, L.PARK_COLLECTOR)
