"""What Python calls to move an engine by hand: one kernel of the engine for each step, as it is.

They are compiled together, but apart from those of `entries`, when an engine is first moved by hand: no
program has to wait for them, and the compiler sees the same callers of the kernels in either case.
"""

from __future__ import annotations

from . import collect as collecting
from . import dispatch, graph, mailbox, queues, schedule, serve, slots, submit
from . import layout as L
from .atomics import exchange, load
from .kernel import BYTES, INT, WORDS, entry, entry_of

# ---------------------------------------------------------------- Orch thread
register_task = entry_of(submit.register_task, WORDS, INT, nogil=False)


@entry(WORDS, INT, INT, INT, BYTES, nogil=False)
def submit_task(mem, callable_word, counts, members, words):
    return submit.submit_task(mem, callable_word, counts, members, words)


@entry(WORDS, nogil=False)
def reclaim(mem):
    return submit.reclaim_chain(mem, queues.take_consumed(mem))


# ---------------------------------------------------------------- Scheduler
hold_pass = entry_of(schedule.try_lock, WORDS, nogil=False)
give_pass = entry_of(schedule.unlock, WORDS, nogil=False)
scheduler_pass = entry_of(schedule.scheduler_pass, WORDS, nogil=False)
dispatch_ready = entry_of(dispatch.dispatch, WORDS, INT, nogil=False)
collect = entry_of(collecting.collect, WORDS, nogil=False)
pick_idle = entry_of(dispatch.pick_idle, WORDS, INT, nogil=False)


@entry(WORDS, nogil=False)
def wire_next(mem):
    slot = queues.pop_wiring(mem)
    if slot != L.NONE:
        graph.wire(mem, slot)
    return slot


@entry(WORDS, INT, nogil=False)
def collect_from(mem, worker):
    return collecting.collect_from(mem, worker, mailbox.worker_at(mem, worker))


@entry(WORDS, INT, INT, nogil=False)
def dispatch_to(mem, slot, worker):
    """Take a READY single task out of its queue and send it to a worker; ILLEGAL changes nothing."""
    if mem[slot + L.S_STATE] != L.READY or mem[slot + L.S_MEMBERS] != 0:
        return L.ILLEGAL
    kind, named = slots.kind_of(mem, slot), slots.affinity_of(mem, slot)
    w = mailbox.worker_at(mem, worker)
    in_pool = mem[L.POOL_FIRST + kind] <= worker and worker < mem[L.POOL_END + kind]
    if not in_pool or not dispatch.has_room(mem, w) or (named >= 0 and named != worker):
        return L.ILLEGAL
    queues.remove_ready(mem, slot)
    dispatch.assign(mem, slot, worker)
    dispatch.wake_sleepers(mem, kind)
    return L.OK


@entry(WORDS, INT, nogil=False)
def is_idle(mem, worker):
    return int(dispatch.is_idle(mem, mailbox.worker_at(mem, worker)))


# ---------------------------------------------------------------- one slot, one mailbox
step = entry_of(slots.step, WORDS, INT, INT, nogil=False)
acquire_ref = entry_of(slots.acquire_ref, WORDS, INT, nogil=False)
receive = entry_of(serve.receive, WORDS, INT, nogil=False)


@entry(WORDS, INT, nogil=False)
def may_start(mem, worker):
    """As `serve.may_start`, of the task in a mailbox; WOULD_BLOCK also without one, or after a stop."""
    w = mailbox.worker_at(mem, worker)
    frame = w + int(mem[w + L.W_AT])
    if not serve.has_task(mem, frame) or load(mem, w + L.W_SHUTDOWN) != 0:
        return L.WOULD_BLOCK
    return serve.may_start(mem, frame)


@entry(WORDS, INT, nogil=False)
def release_ref(mem, slot):
    """Release a reference; the last one leaves the slot for the Orch thread."""
    is_last = slots.release_ref(mem, slot)
    if is_last:
        queues.push_consumed(mem, slot)
    return int(is_last)


@entry(WORDS, INT, INT, nogil=False)
def post_done(mem, worker, outcome):
    serve.post_done(mem, mailbox.worker_at(mem, worker), outcome)
    return L.OK


@entry(WORDS, INT, INT, nogil=False)
def write_state(mem, worker, word):
    """Write state and error of the mailbox that a worker serves or waits for."""
    exchange(mem, mailbox.served(mem, mailbox.worker_at(mem, worker)), word)
    return L.OK


@entry(WORDS, INT, INT, INT, BYTES, nogil=False)
def encode(mem, worker, callable_word, counts, words):
    """Write a frame for a task that goes no further: it is cancelled. There are no others."""
    slot = submit.submit_task(mem, callable_word, counts, 0, words)
    if slot < 0:
        return slot
    slot &= ~L.AUTO_OUTPUT
    graph.wire(mem, queues.pop_wiring(mem))
    w = mailbox.worker_at(mem, worker)
    frame = w + int(mem[w + L.W_AT])
    mem[frame + L.W_LAST_CONFIG] = 0
    mem[frame + L.W_LAST_CALLABLE] = 0
    at = submit.tensors_at(mem, slot)
    mailbox.encode(mem, frame, slot, counts, at, submit.scalars_at(mem, slot))
    queues.pop_ready(mem, slots.kind_of(mem, slot))
    graph.cancel_ready(mem, slot)
    submit.reclaim(mem, queues.take_consumed(mem))
    return L.OK


@entry(WORDS, INT, nogil=False)
def decode(mem, worker):
    w = mailbox.worker_at(mem, worker)
    return mailbox.decode(mem, w + int(mem[w + L.W_AT]))
