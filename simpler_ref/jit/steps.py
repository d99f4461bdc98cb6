"""What moves an engine by hand: for each step a kernel of the engine, as it is, interpreted.

So nothing is compiled for who takes a few steps. `words` are bytes here.
"""

from __future__ import annotations

import numpy as np

from . import collect as collecting
from . import dispatch, graph, mailbox, queues, schedule, serve, slots, submit
from . import layout as L
from .atomics import exchange, load

register_task = submit.register_task
hold_pass, give_pass = schedule.try_lock, schedule.unlock
scheduler_pass, collect = schedule.scheduler_pass, collecting.collect
dispatch_ready, pick_idle = dispatch.dispatch, dispatch.pick_idle
receive = serve.receive
step, acquire_ref = slots.step, slots.acquire_ref


# ---------------------------------------------------------------- Orch thread
def submit_task(mem, callable_word, counts, members, words):
    """Submit, without the pass that follows."""
    words = np.frombuffer(words, np.int64)
    return submit.submit_task(mem, callable_word, counts, members, words)


def reclaim(mem):
    return submit.reclaim_chain(mem, queues.take_consumed(mem))


# ---------------------------------------------------------------- Scheduler
def wire_next(mem):
    """Wire the oldest entry of the wiring queue; return its slot, NONE if there is none."""
    slot = queues.pop_wiring(mem)
    if slot != L.NONE:
        graph.wire(mem, slot)
    return slot


def collect_from(mem, worker):
    return collecting.collect_from(mem, worker, mailbox.worker_at(mem, worker))


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


def is_idle(mem, worker):
    return dispatch.is_idle(mem, mailbox.worker_at(mem, worker))


# ---------------------------------------------------------------- one slot, one mailbox
def may_start(mem, worker):
    """As `serve.may_start`, of the task in a mailbox; WOULD_BLOCK also without one, or after a stop."""
    w = mailbox.worker_at(mem, worker)
    frame = w + int(mem[w + L.W_AT])
    if not serve.has_task(mem, frame) or load(mem, w + L.W_SHUTDOWN) != 0:
        return L.WOULD_BLOCK
    return serve.may_start(mem, frame)


def release_ref(mem, slot):
    """Release a reference; the last one leaves the slot for the Orch thread."""
    is_last = slots.release_ref(mem, slot)
    if is_last:
        queues.push_consumed(mem, slot)
    return is_last


def post_done(mem, worker, outcome):
    serve.post_done(mem, mailbox.worker_at(mem, worker), outcome)


def write_state(mem, worker, word):
    """Write state and error of the mailbox that a worker serves or waits for."""
    exchange(mem, mailbox.served(mem, mailbox.worker_at(mem, worker)), word)


def encode(mem, worker, callable_word, counts, words):
    """Write a frame for a task that goes no further: it is cancelled. There are no others."""
    slot = submit_task(mem, callable_word, counts, 0, words)
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


def decode(mem, worker):
    w = mailbox.worker_at(mem, worker)
    return mailbox.decode(mem, w + int(mem[w + L.W_AT]))
