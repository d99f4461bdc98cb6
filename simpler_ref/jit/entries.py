"""What Python calls: the few functions that cross into compiled code.

Each is compiled for one signature, before the fork, and cached on disk. Those that may wait release the
GIL; those that take well under a microsecond keep it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

from . import (
    calls,
    claims,
    journal,
    mailbox,
    program,
    ring,
    schedule,
    serve,
    submit,
    tensormap,
    waiting,
)
from . import layout as L
from .atomics import fence, fetch_add, now_ns, store, thread_id, wire_words, words_at
from .kernel import BYTES, INT, WORDS, bind, entry, is_cached

Entry = Callable[..., int]


# ---------------------------------------------------------------- Orch thread
@entry(WORDS, INT, INT, BYTES, nogil=False)
def submit_and_pass(mem, callable_word, counts, wire):
    """Submit a task, then run a scheduler pass; see `submit_task`."""
    if thread_id() != mem[L.ORCH_THREAD]:
        return L.WRONG_THREAD
    slot = submit.submit_task(mem, callable_word, counts, 0, wire_words(wire))
    if slot >= 0:
        schedule.pass_after_submit(mem)
    return slot


@entry(WORDS, INT, INT, INT, BYTES, nogil=False)
def submit_group_and_pass(mem, callable_word, counts, members, wire):
    """Submit a group, then run a scheduler pass; see `submit_task`."""
    if thread_id() != mem[L.ORCH_THREAD]:
        return L.WRONG_THREAD
    slot = submit.submit_task(mem, callable_word, counts, members, wire_words(wire))
    if slot >= 0:
        schedule.pass_after_submit(mem)
    return slot


@entry(WORDS, WORDS, WORDS, nogil=True)
def run_program(mem, words, variables):
    """Carry out a program; see `program.run_program`."""
    if thread_id() != mem[L.ORCH_THREAD]:
        return L.WRONG_THREAD
    began = now_ns() if mem[L.TRACING] == L.TRACE_ALL else 0
    code = program.run_program(mem, words, variables)
    if began != 0:
        journal.note_span(mem, L.JOURNAL_OF_ORCH, L.NOTED_PLAYED, 0, began)
    return code


@entry(WORDS, INT, nogil=False)
def note_submit(mem, began):
    """Note that a submit of Python has lasted until now."""
    journal.note_span(mem, L.JOURNAL_OF_ORCH, L.NOTED_SUBMIT, 0, began)
    return L.OK


@entry(WORDS, INT, INT, INT, INT, nogil=False)
def note_of_orch(mem, what, task, time, value):
    """Put a note into the Orch thread's journal."""
    journal.note(mem, L.JOURNAL_OF_ORCH, what, task, time, value)
    return L.OK


@entry(WORDS, BYTES, nogil=False)
def alloc_buffer(mem, wire):
    """Claim a buffer; see `submit.alloc_buffer`."""
    return submit.alloc_buffer(mem, wire_words(wire))


@entry(WORDS, nogil=False)
def open_scope(mem):
    """Open a scope."""
    return submit.open_scope(mem)


@entry(WORDS, nogil=False)
def close_scope(mem):
    """End the innermost scope; tasks consumed by that are reclaimed at once."""
    return submit.close_scope(mem)


@entry(WORDS, WORDS, nogil=False)
def newest_tasks(mem, slots):
    """Write the slots of the newest tasks of the innermost scope; see `submit.newest_tasks`."""
    submit.newest_tasks(mem, slots)
    return L.OK


@entry(WORDS, INT, INT, INT, INT, nogil=True)
def help_scheduler(mem, live, ended, taken, slice_ns):
    """Run passes and sleep between them until a goal is reached."""
    return schedule.help_scheduler(mem, live, ended, taken, L.NONE, slice_ns)


@entry(WORDS, nogil=False)
def begin_run(mem):
    """Start a run: its own scope is open afterwards."""
    schedule.begin_run(mem)
    mem[L.ORCH_THREAD] = thread_id()
    return submit.open_scope(mem)


@entry(WORDS, INT, nogil=True)
def finish_run(mem, cancel):
    """End every open scope, and with `cancel` fail what has not started. Does not wait."""
    mem[L.ORCH_THREAD] = 0
    if cancel:
        claims.cancel(mem)
    while submit.close_scope(mem) == L.OK:
        pass
    return L.OK


@entry(WORDS, nogil=False)
def end_run(mem):
    """Reset everything after the drain."""
    schedule.end_run(mem)
    return L.OK


# ---------------------------------------------------------------- the stream of calls, any thread
@entry(WORDS, nogil=False)
def begin_stream(mem):
    """Start a stream."""
    mem[L.STREAM] = L.CALLS
    schedule.begin_run(mem)
    mem[L.NOTED] = 0
    mem[L.NOT_NOTED] = 0
    return L.OK


@entry(WORDS, INT, INT, nogil=False)
def forget_memory(mem, low, high):
    """Forget who reads and writes memory that is given back: what was there is gone."""
    calls.forget_memory(mem, low, high)
    return L.OK


@entry(WORDS, nogil=False)
def end_stream(mem):
    """Forget who reads and writes what: every call has ended, and no future refers to one."""
    calls.forget_accesses(mem)
    return L.OK


@entry(WORDS, nogil=False)
def drop_forgotten(mem):
    """Drop the calls that have no future: every call has ended, and every future has its value."""
    calls.drop_forgotten(mem)
    return L.OK


@entry(WORDS, nogil=False)
def reset_stream(mem):
    """Reset everything after the end of a stream."""
    mem[L.STREAM] = 0
    schedule.end_run(mem)
    return L.OK


@entry(WORDS, INT, INT, BYTES, nogil=False)
def call_and_pass(mem, callable_word, counts, wire):
    """Submit a call, then run a scheduler pass; see `calls.submit_call`."""
    slot = calls.submit_call(mem, callable_word, counts, wire_words(wire))
    if slot >= 0:
        schedule.pass_after_submit(mem)
    return slot


@entry(INT, INT, INT, INT, INT, INT, nogil=False)
def call_from_c(memory, size, callable_word, counts, words, count):
    """Submit a call as `call_and_pass` does, for C: the engine's memory and `words` are addresses.

    Returns  the slot; or, with nothing changed, WOULD_BLOCK, also if there is no stream, or another error
    """
    mem = words_at(memory, size)
    if mem[L.STREAM] != L.CALLS:
        return L.WOULD_BLOCK
    slot = calls.submit_call(mem, callable_word, counts, words_at(words, count))
    if slot >= 0:
        schedule.pass_after_submit(mem)
    return slot


@entry(INT, INT, INT, INT, nogil=False)
def read_outcome_from_c(memory, size, slot, outcome):
    """Write the kind and the word of a call's value to an address.

    Returns  1; or 0 if the call has not ended; or 2 if it has failed, or its value is more than a word
    """
    mem = words_at(memory, size)
    if mem[L.STREAM] == 0 or not schedule.has_settled(mem, slot):
        return 0
    kind = mem[slot + L.S_KIND]
    if kind >= L.VALUE_BLOCK or mem[slot + L.S_STATE] == L.FAILED:
        return 2
    words = words_at(outcome, 2)
    words[0] = kind
    words[1] = mem[slot + L.S_VALUE]
    return 1


@entry(INT, INT, INT, nogil=False)
def drop_from_c(memory, size, slot):
    """Drop a future."""
    calls.drop(words_at(memory, size), slot)
    return L.OK


@entry(WORDS, INT, INT, INT, INT, nogil=True)
def help_stream(mem, live, ended, call, slice_ns):
    """Run passes until a goal is reached, or, unless `call` is STAY, another thread wants the turn."""
    return schedule.help_scheduler(mem, live, ended, -1, call, slice_ns)


@entry(WORDS, INT, nogil=False)
def drop_call(mem, slot):
    """Drop a future."""
    calls.drop(mem, slot)
    return L.OK


@entry(WORDS, INT, nogil=True)
def cancel_call(mem, slot):
    """Cancel a call unless a worker has it, and run a pass; see `claims.cancel_call`."""
    cancelled = claims.cancel_call(mem, slot)
    schedule.pass_after_submit(mem)
    return int(cancelled)


@entry(WORDS, nogil=True)
def cancel_calls(mem):
    """Cancel all calls that have not begun; see `claims.cancel`."""
    claims.cancel(mem)
    schedule.pass_after_submit(mem)
    return L.OK


@entry(WORDS, INT, INT, nogil=False)
def hold_block(mem, block, holds):
    """Add holds on a block, or, if negative, release them."""
    fetch_add(mem, block, holds)
    return L.OK


@entry(WORDS, INT, nogil=False)
def has_settled(mem, slot):
    """Say whether a call has ended."""
    return int(schedule.has_settled(mem, slot))


@entry(WORDS, nogil=True)
def settle_deaths(mem):
    """Act on all deaths reported so far."""
    claims.settle_deaths(mem)
    return L.OK


@entry(WORDS, nogil=True)
def forgive_all(mem):
    """Forget the failure of a run all of whose tasks have ended."""
    claims.forgive_all(mem, mem[L.SLOTS_USED])
    return L.OK


@entry(WORDS, nogil=True)
def take_failed(mem):
    """Take a call that has failed; see `claims.take_failed`."""
    return claims.take_failed(mem)


@entry(WORDS, INT, nogil=True)
def strand(mem, stranded):
    """Let calls that have no worker fail (1), or wait for one (0)."""
    claims.strand(mem, stranded)
    return L.OK


@entry(WORDS, INT, INT, nogil=True)
def hand_on(mem, worker, other):
    """Have another worker run the tasks that wait for a lost one; see `claims.hand_on`."""
    claims.hand_on(mem, worker, other)
    return L.OK


@entry(WORDS, INT, nogil=False)
def want_orch(mem, wanted):
    """Say whether another thread wants to be the Orch thread of the stream: the one that helps leaves."""
    store(mem, L.ORCH_WANTED, wanted)
    fence()
    if wanted != 0:
        waiting.notify(mem, L.PARK_ORCH)
    return L.OK


# ---------------------------------------------------------------- other threads of the parent
@entry(WORDS, INT, nogil=True)
def scheduler_loop(mem, timer_ns):
    """Be the Scheduler thread."""
    return schedule.scheduler_loop(mem, timer_ns)


@entry(WORDS, nogil=False)
def stop_scheduler(mem):
    """Ask the Scheduler thread to end."""
    store(mem, L.STOPPING, 1)
    fence()
    waiting.wake(mem, L.PARK_SCHED)
    return L.OK


@entry(WORDS, INT, INT, nogil=False)
def report_death(mem, worker, code):
    """Note that a worker died (monitor thread), and wake the Orch and Scheduler threads."""
    mailbox.mark_dead(mem, worker, code)
    return L.OK


@entry(WORDS, INT, INT, nogil=True)
def wait_ready(mem, worker, timeout_ns):
    """Wait until a worker said INIT_DONE."""
    return mailbox.wait_ready(mem, worker, timeout_ns)


@entry(WORDS, INT, nogil=False)
def request_stop(mem, worker):
    """Tell a worker to stop."""
    mailbox.request_stop(mem, worker)
    return L.OK


@entry(WORDS, INT, INT, nogil=True)
def claim_mailbox(mem, worker, timeout_ns):
    """Get a worker's mailbox for a control request."""
    return claims.claim_mailbox(mem, worker, timeout_ns)


@entry(WORDS, INT, INT, nogil=True)
def request_control(mem, worker, timeout_ns):
    """Send the control request in a claimed mailbox, and wait for the answer."""
    return mailbox.request_control(mem, worker, timeout_ns)


@entry(WORDS, INT, INT, nogil=True)
def await_control(mem, worker, timeout_ns):
    """Go on waiting for the answer to a control request."""
    return mailbox.await_control(mem, worker, timeout_ns)


@entry(WORDS, INT, nogil=True)
def release_mailbox(mem, worker):
    """Release a claimed mailbox."""
    claims.release_mailbox(mem, worker)
    return L.OK


@entry(WORDS, INT, nogil=True)
def abandon_mailbox(mem, worker):
    """Remove a worker that does not answer from its pool."""
    claims.abandon_mailbox(mem, worker)
    return L.OK


@entry(WORDS, nogil=True)
def forget_configs(mem):
    """Allow new numbers for configurations (between runs)."""
    claims.forget_configs(mem)
    return L.OK


@entry(WORDS, INT, INT, nogil=True)
def set_usable(mem, worker, usable):
    """Let the Scheduler use a worker, or (0) clear its words for a fresh process."""
    claims.set_usable(mem, worker, usable)
    return L.OK


# ---------------------------------------------------------------- traces
@entry(WORDS, INT, nogil=False)
def begin_trace(mem, what):
    """Have notes made."""
    journal.begin_trace(mem, what)
    return L.OK


@entry(WORDS, nogil=False)
def end_trace(mem):
    """Have no more notes made."""
    journal.end_trace(mem)
    return L.OK


@entry(WORDS, nogil=False)
def ask_collector(mem):
    """Have the collector return."""
    journal.ask_collector(mem)
    return L.OK


@entry(WORDS, INT, nogil=True)
def collector_loop(mem, fd):
    """Be the collector, until it is asked to return."""
    return journal.collector_loop(mem, fd)


# ---------------------------------------------------------------- workers
@entry(WORDS, INT, INT, nogil=False)
def finish_and_receive(mem, worker, error):
    """Answer a task and wait a short time for the next one."""
    return serve.finish_and_receive(mem, worker, error)


@entry(WORDS, INT, INT, nogil=True)
def finish_and_receive_in_thread(mem, worker, error):
    """The same, while other threads of this process can run Python."""
    return serve.finish_and_receive(mem, worker, error)


@entry(WORDS, INT, nogil=True)
def run_leaves(mem, worker):
    """Run compiled leaves until a task is for something else."""
    return serve.run_leaves(mem, worker)


@entry(WORDS, INT, INT, nogil=True)
def finish_control_and_receive(mem, worker, error):
    """Answer a control request and wait a short time for the next task."""
    return serve.finish_control_and_receive(mem, worker, error)


@entry(WORDS, INT, nogil=True)
def park_and_receive(mem, worker):
    """Sleep until there is something to do."""
    return serve.park_and_receive(mem, worker)


@entry(WORDS, INT, INT, INT, nogil=True)
def look_out(mem, worker, frame, filled):
    """Sleep until a frame is filled again."""
    serve.look_out(mem, worker, frame, filled)
    return L.OK


@entry(WORDS, INT, nogil=False)
def end_look_out(mem, worker):
    """Wake the thread that looks out for tasks."""
    waiting.notify(mem, mailbox.worker_at(mem, worker) + L.W_LOOKOUT)
    return L.OK


@entry(WORDS, INT, INT, nogil=False)
def task_ahead(mem, worker, distance):
    """Look for a task behind the current one that can start already."""
    return serve.task_ahead(mem, worker, distance)


@entry(WORDS, INT, INT, nogil=False)
def task_behind(mem, worker, distance):
    """Look for a task behind the current one that waits for no other worker."""
    return serve.task_behind(mem, worker, distance)


@entry(WORDS, INT, INT, INT, nogil=False)
def remember(mem, worker, local_slot, leaf):
    """Cache the local slot of the digest in the mailbox, and resolve it."""
    return serve.remember(mem, worker, local_slot, leaf)


@entry(WORDS, INT, INT, INT, nogil=False)
def note_code(mem, worker, key, address):
    """Note the compiled code of a function that calls name by a key."""
    serve.note_code(mem, worker, key, address)
    return L.OK


@entry(WORDS, INT, INT, INT, INT, INT, nogil=False)
def note_of_worker(mem, worker, what, task, time, value):
    """Put a note into a worker's journal."""
    journal.note(mem, L.JOURNALS_OF_WORKERS + worker, what, task, time, value)
    return L.OK


@entry(WORDS, INT, nogil=False)
def forget_digests(mem, worker):
    """Empty the worker's cache of digests: a callable was removed."""
    serve.forget_digests(mem, worker)
    return L.OK


@entry(WORDS, INT, nogil=False)
def report_ready(mem, worker):
    """Say INIT_DONE."""
    serve.report_ready(mem, worker)
    return L.OK


# ---------------------------------------------------------------- the documents' classes, one by one
@entry(WORDS, INT, INT, nogil=False)
def ring_alloc(mem, nbytes, depth):
    """Claim a slot and a slab."""
    return ring.alloc(mem, nbytes, depth)


@entry(WORDS, INT, nogil=False)
def ring_release(mem, slot):
    """Release a slot of the ring."""
    ring.release(mem, slot)
    return L.OK


@entry(WORDS, nogil=False)
def ring_reset(mem):
    """Rewind every ring."""
    ring.reset_to_empty(mem)
    return L.OK


@entry(WORDS, INT, INT, nogil=False)
def map_lookup(mem, data, owner):
    """Look a buffer's producer up."""
    return tensormap.lookup(mem, data, owner)


@entry(WORDS, INT, INT, INT, nogil=False)
def map_insert(mem, data, owner, slot):
    """Set a buffer's producer."""
    if not tensormap.has_room(mem, 1):
        return L.WOULD_BLOCK
    tensormap.insert(mem, data, owner, slot)
    return L.OK


@entry(WORDS, INT, INT, INT, nogil=False)
def map_erase(mem, data, owner, slot):
    """Remove a buffer's entry if it names `slot`."""
    return int(tensormap.erase(mem, data, owner, slot))


def _with_progress(found: dict[str, Entry]) -> Iterator[tuple[str, Entry]]:
    """Iterate over entries, and print to stderr how many must be compiled: it takes about a minute.

    On a terminal it shows the progress. Elsewhere, as in a log or a notebook, it prints a line at the
    start and one at the end, if the first entry is not cached.

    Rule     ORCH-TELL-3
    """
    if sys.stderr is None:
        yield from found.items()
        return
    terminal = sys.stderr.isatty()
    missing = []
    if terminal or not all(map(is_cached, list(found.values())[:1])):
        missing = [name for name, function in found.items() if not is_cached(function)]
    if missing and not terminal:
        text = f"compiling {len(missing)} kernels, once on this machine (about a minute)"
        print(f"simpler_ref: {text}", file=sys.stderr, flush=True)
    for name, function in found.items():
        if terminal and name in missing:
            count = f"{missing.index(name) + 1}/{len(missing)}"
            text = f"\rsimpler_ref: compiling kernels, once on this machine: {count} … "
            print(text, end="", file=sys.stderr, flush=True)
        yield name, function
    if missing:
        print("done" if terminal else "simpler_ref: kernels are compiled", file=sys.stderr)


class Entries:
    """Every entry above, bound: ``entries.submit_and_pass(mem, …)``."""

    def __init__(self) -> None:
        found = {
            name: function
            for name, function in globals().items()
            if hasattr(function, "entry_signature")
        }
        for name, function in _with_progress(found):
            setattr(self, name, bind(function))

    def __getattr__(self, name: str) -> Entry:  # for type checkers: every attribute is an entry
        raise AttributeError(name)


_entries: Entries | None = None
_binding = threading.Lock()


def entries() -> Entries:
    """Return the bound entries; the first call compiles them or loads them from the cache."""
    global _entries
    with _binding:
        if _entries is None:
            _entries = Entries()
        return _entries
