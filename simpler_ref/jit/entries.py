"""What Python calls: the few functions that cross into compiled code.

Each is compiled for one signature, before the fork, and cached on disk. Those that may wait release the
GIL; those that take well under a microsecond keep it. Most are kernels as they are (`entry_of`), whose
docstrings say what they do.

Rule     ORCH-TELL-3
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import (
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
from .atomics import fence, fetch_add, now_ns, store, thread_id, words_at
from .kernel import BYTES, INT, WORDS, Compiled, bind, entry, entry_of

# ---------------------------------------------------------------- Orch thread
open_scope = entry_of(submit.open_scope, WORDS, nogil=False)
close_scope = entry_of(submit.close_scope, WORDS, nogil=False)
end_run = entry_of(schedule.end_run, WORDS, nogil=False)
submit_and_pass = entry_of(schedule.submit_and_pass, WORDS, INT, INT, INT, BYTES, nogil=False)
help_scheduler = entry_of(schedule.help_scheduler, WORDS, INT, INT, INT, INT, INT, nogil=True)
alloc_buffer = entry_of(submit.alloc_buffer, WORDS, BYTES, nogil=False)


@entry(WORDS, WORDS, WORDS, nogil=True)
def run_program(mem, words, variables):
    if thread_id() != mem[L.ORCH_THREAD]:
        return L.WRONG_THREAD
    began = now_ns() if mem[L.TRACING] == L.TRACE_ALL else 0
    code = program.run_program(mem, words, variables)
    if began != 0:
        journal.note_span(mem, L.JOURNAL_OF_ORCH, L.NOTED_PLAYED, 0, began)
    return code


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
        schedule.cancel(mem)
    while submit.close_scope(mem) == L.OK:
        pass


# ---------------------------------------------------------------- the stream of calls, any thread
forget_memory = entry_of(submit.forget_memory, WORDS, INT, INT, nogil=False)
end_stream = entry_of(submit.forget_accesses, WORDS, nogil=False)
drop_forgotten = entry_of(submit.drop_forgotten, WORDS, nogil=False)
drop_call = entry_of(submit.drop_call, WORDS, INT, nogil=False)
has_settled = entry_of(schedule.has_settled, WORDS, INT, nogil=False)
settle_deaths = entry_of(schedule.settle_deaths, WORDS, nogil=True)
forgive_all = entry_of(schedule.forgive_all, WORDS, nogil=True)
take_failed = entry_of(schedule.take_failed, WORDS, nogil=True)
strand = entry_of(schedule.strand, WORDS, INT, nogil=True)
hand_on = entry_of(schedule.hand_on, WORDS, INT, INT, INT, nogil=True)


@entry(WORDS, nogil=False)
def begin_stream(mem):
    mem[L.STREAM] = L.CALLS
    schedule.begin_run(mem)
    mem[L.NOTED] = 0
    mem[L.NOT_NOTED] = 0


@entry(WORDS, nogil=False)
def reset_stream(mem):
    mem[L.STREAM] = 0
    schedule.end_run(mem)


@entry(WORDS, INT, INT, BYTES, nogil=False)
def call_and_pass(mem, callable_word, counts, words):
    slot = submit.submit_call(mem, callable_word, counts, words)
    if slot >= 0:
        schedule.pass_after_submit(mem)
    return slot


@entry(WORDS, INT, INT, WORDS, nogil=False)
def call_from_c(mem, callable_word, counts, words):
    """Submit a call as `call_and_pass` does, for C; WOULD_BLOCK also if there is no stream."""
    if mem[L.STREAM] != L.CALLS:
        return L.WOULD_BLOCK
    slot = submit.submit_call(mem, callable_word, counts, words)
    if slot >= 0:
        schedule.pass_after_submit(mem)
    return slot


@entry(WORDS, INT, INT, nogil=False)
def read_outcome_from_c(mem, slot, outcome):
    """Write the kind and the word of a call's value to an address.

    Returns  1; or 0 if the call has not ended; or 2 if it has failed
    """
    if mem[L.STREAM] == 0 or not schedule.has_settled(mem, slot):
        return 0
    kind = mem[slot + L.S_KIND]
    if kind > L.VALUE_BLOCK or mem[slot + L.S_STATE] == L.FAILED:
        return 2
    words = words_at(outcome, 2)
    words[0] = kind
    words[1] = mem[slot + L.S_VALUE]
    return 1


@entry(WORDS, INT, nogil=True)
def cancel_call(mem, slot):
    cancelled = schedule.cancel_call(mem, slot)
    schedule.pass_after_submit(mem)
    return int(cancelled)


@entry(WORDS, nogil=True)
def cancel_calls(mem):
    schedule.cancel(mem)
    schedule.pass_after_submit(mem)


@entry(WORDS, INT, INT, nogil=False)
def hold_block(mem, block, holds):
    """Add holds on a block, or, if negative, release them."""
    fetch_add(mem, block, holds)


@entry(WORDS, INT, nogil=False)
def want_orch(mem, wanted):
    """Say whether another thread wants to be the Orch thread of the stream: the one that helps leaves."""
    store(mem, L.ORCH_WANTED, wanted)
    fence()
    if wanted != 0:
        waiting.notify(mem, L.PARK_ORCH)


# ---------------------------------------------------------------- other threads of the parent
scheduler_loop = entry_of(schedule.scheduler_loop, WORDS, INT, nogil=True)
report_death = entry_of(mailbox.mark_dead, WORDS, INT, INT, nogil=False)
wait_ready = entry_of(mailbox.wait_ready, WORDS, INT, INT, nogil=True)
request_stop = entry_of(mailbox.request_stop, WORDS, INT, nogil=False)
claim_mailbox = entry_of(schedule.claim_mailbox, WORDS, INT, INT, nogil=True)
request_control = entry_of(mailbox.request_control, WORDS, INT, INT, nogil=True)
await_control = entry_of(mailbox.await_control, WORDS, INT, INT, nogil=True)
release_mailbox = entry_of(schedule.release_mailbox, WORDS, INT, nogil=True)
abandon_mailbox = entry_of(schedule.abandon_mailbox, WORDS, INT, nogil=True)
forget_configs = entry_of(schedule.forget_configs, WORDS, nogil=True)
set_usable = entry_of(schedule.set_usable, WORDS, INT, INT, nogil=True)


@entry(WORDS, nogil=False)
def stop_scheduler(mem):
    store(mem, L.STOPPING, 1)
    fence()
    waiting.wake(mem, L.PARK_SCHED)


# ---------------------------------------------------------------- traces
begin_trace = entry_of(journal.begin_trace, WORDS, INT, nogil=False)
end_trace = entry_of(journal.end_trace, WORDS, nogil=False)
ask_collector = entry_of(journal.ask_collector, WORDS, nogil=False)
collector_loop = entry_of(journal.collector_loop, WORDS, INT, nogil=True)
note = entry_of(journal.note, WORDS, INT, INT, INT, INT, INT, nogil=False)


# ---------------------------------------------------------------- workers
run_leaves = entry_of(serve.run_leaves, WORDS, INT, nogil=True)
finish_control_and_receive = entry_of(serve.finish_control_and_receive, WORDS, INT, INT, nogil=True)
park_and_receive = entry_of(serve.park_and_receive, WORDS, INT, nogil=True)
look_out = entry_of(serve.look_out, WORDS, INT, INT, INT, nogil=True)
task_ahead = entry_of(serve.task_ahead, WORDS, INT, INT, INT, nogil=False)
remember = entry_of(serve.remember, WORDS, INT, INT, INT, nogil=False)
note_code = entry_of(serve.note_code, WORDS, INT, INT, INT, nogil=False)
forget_digests = entry_of(serve.forget_digests, WORDS, INT, nogil=False)
report_ready = entry_of(serve.report_ready, WORDS, INT, nogil=False)
finish_and_receive = entry_of(serve.finish_and_receive, WORDS, INT, INT, nogil=False)
finish_and_receive_in_thread = entry_of(serve.finish_and_receive, WORDS, INT, INT, nogil=True)
"""The same, while other threads of this process can run Python."""


@entry(WORDS, INT, nogil=False)
def end_look_out(mem, worker):
    waiting.notify(mem, mailbox.worker_at(mem, worker) + L.W_LOOKOUT)


# ---------------------------------------------------------------- the documents' classes, one by one
ring_alloc = entry_of(ring.alloc, WORDS, INT, INT, nogil=False)
ring_release = entry_of(ring.release, WORDS, INT, nogil=False)
ring_reset = entry_of(ring.reset_to_empty, WORDS, nogil=False)
map_lookup = entry_of(tensormap.lookup, WORDS, INT, INT, nogil=False)
map_erase = entry_of(tensormap.erase, WORDS, INT, INT, INT, nogil=False)


@entry(WORDS, INT, INT, INT, nogil=False)
def map_insert(mem, data, owner, slot):
    if not tensormap.has_room(mem, 1):
        return L.WOULD_BLOCK
    tensormap.insert(mem, data, owner, slot)
    return L.OK


# ---------------------------------------------------------------- all of them
def found() -> dict[str, Any]:
    return {name: one for name, one in globals().items() if hasattr(one, "entry_signature")}


def pack() -> Path:
    """Put the compiled entries into the package; return the file."""
    return Compiled(list(found().values()), in_two=True).pack()


def _tell(text: str) -> None:
    if sys.stderr is not None:
        print(f"simpler_ref: {text}", file=sys.stderr, flush=True)


def bound() -> SimpleNamespace:
    """Load the entries or compile them, of which stderr is told: it takes about a quarter of a minute."""
    every, compiles = found(), False

    def announce() -> None:
        nonlocal compiles
        compiles = True
        _tell(f"compiling {len(every)} kernels, once on this machine (about a quarter of a minute)")

    made = bind(list(every.values()), announce, in_two=True)
    if compiles:
        _tell("kernels are compiled")
    return SimpleNamespace(**dict(zip(every, made, strict=True)))


_binding = threading.Lock()
_bound: SimpleNamespace | None = None


def entries() -> SimpleNamespace:
    """Return the entries as Python calls them: ``entries().submit_and_pass(mem, …)``."""
    global _bound
    with _binding:
        if _bound is None:
            _bound = bound()
        return _bound
