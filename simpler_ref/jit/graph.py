"""The steps of a task in the graph: wired, ready, complete or failed, retired.

The Scheduler does everything here, that is, the thread that holds the pass lock.

Rule     CALL-CANCEL-1, CALL-CANCEL-2, CALL-FAIL-1, CALL-FAIL-3, CALL-FAIL-7, CALL-HAZARD-4, CALL-LIMIT-3,
         FAIL-OUTCOME-2, FAIL-OUTCOME-3, ORCH-FAIL-1, ORCH-READS-1, ORCH-STATE-2, REMOTE-RETRY-1,
         SCHED-COMPLETE-1, SCHED-COMPLETE-2, SCHED-COMPLETE-3, SCHED-CONSUME-1, SCHED-POISON-1,
         SCHED-POISON-2, SCHED-POISON-3, SCHED-POISON-4, SCHED-READY-1, SCHED-READY-2, SCHED-READY-3,
         SCHED-WIRE-1, SCHED-WIRE-2, SCHED-WIRE-4, SCHED-WIRE-5, SEE-STORY-1, SPEED-AHEAD-1, SPEED-DEPTH-6
"""

from __future__ import annotations

from . import layout as L
from . import queues, slots
from .atomics import store, unlikely
from .journal import note_step
from .mailbox import copy_words, worker_at
from .submit import edges_at, scalars_at

EDGE_WORDS = L.EDGE_WORDS


# ---------------------------------------------------------------- wiring
def wire_all(mem):
    wired = 0
    slot = queues.pop_wiring(mem)
    while slot != L.NONE:
        wire(mem, slot)
        wired += 1
        slot = queues.pop_wiring(mem)
    return wired


def wire(mem, slot):
    """Connect a task with its producers, and make it READY if all are done.

    Fan-in starts at one, a unit that only the end of wiring releases: a producer that completes
    meanwhile can neither make the task READY early nor be missed (D16). Submit has acquired a
    reference on each producer, so none is CONSUMED.
    """
    mem[slot + L.S_FANIN] = 1
    unsent = 0
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & L.LOW_HALF):
        producer = int(mem[edge + L.EDGE_PRODUCER])
        state = int(mem[producer + L.S_STATE])
        consumer = int(mem[edge + L.EDGE_CONSUMER])
        waits = consumer != L.NONE  # else it is kept for its memory alone
        if waits and state == L.FAILED:
            fail_with(mem, consumer, producer)
        ended = state == L.COMPLETED or (state == L.FAILED and has_ended(mem, producer))
        if waits and not ended:
            mem[edge + L.EDGE_NEXT] = mem[producer + L.S_CONSUMERS]
            mem[producer + L.S_CONSUMERS] = edge
            mem[slot + L.S_FANIN] += 1
            unsent += consumer > L.CONSUMER_MASK or not slots.is_in_frame(mem, producer)
        edge += EDGE_WORDS
    mem[slot + L.S_UNSENT] = unsent
    if unsent == 0 and mem[slot + L.S_FANIN] > 1:
        queues.push_candidate(mem, slot)
    release_fanin(mem, slot)
    retire(mem)


def has_ended(mem, producer):
    """Say whether a later task need not wait for one that has failed.

    Where reads are tracked it may stand for earlier ones, which it waits for; so it ends only after them.
    """
    if mem[L.STREAM] == 0 and mem[L.TRACK_READS] == 0:
        return True
    return mem[producer + L.S_FANIN] == 0


def poison(mem, slot):
    """A producer failed: this task will never run, and ends when the last live one has ended."""
    if slots.step(mem, slot, slots.POISON) == L.OK:
        mem[L.FAILED_COUNT] += 1
        if mem[L.STREAM] == 0:
            mem[slot + L.S_BEGAN] = L.NEVER_BEGAN
        if slots.is_in_frame(mem, slot):
            store(mem, int(mem[slot + L.S_FRAME]) + L.W_SKIP, L.SKIPPED)
        else:
            mem[L.DEALT] += 1


def fail_with(mem, consumer, producer):
    """Let the consumer of an edge share a producer's failure, unless it only waits for the end.

    Effects  of a call also S_ORIGIN: the call that failed by itself, with a reference to it
    """
    if consumer & L.ORDER_ONLY != 0:
        return
    slot = consumer & L.CONSUMER_MASK
    poison(mem, slot)
    if mem[L.STREAM] != 0 and mem[slot + L.S_ORIGIN] >= 0:
        origin = int(mem[producer + L.S_ORIGIN])
        origin = origin if origin < 0 else -producer
        if slots.acquire_ref(mem, -origin):
            mem[slot + L.S_ORIGIN] = origin


def release_fanin(mem, slot):
    """Release a unit of fan-in, of a producer or the wiring; the last makes the task READY or ends it."""
    mem[slot + L.S_FANIN] -= 1
    if mem[slot + L.S_FANIN] == 0:
        if mem[slot + L.S_STATE] == L.FAILED:
            push_retiring(mem, slot)
        else:
            make_ready(mem, slot)


def make_ready(mem, slot):
    if slots.step(mem, slot, slots.INPUTS_DONE) != L.OK:
        return L.ILLEGAL
    mem[L.DEALT] += 1
    queue_ready(mem, slot)
    return L.OK


def queue_ready(mem, slot):
    mem[slot + L.S_ORDER] = mem[L.READY_ORDER]
    mem[L.READY_ORDER] += 1
    queues.push_ready(mem, slot)


# ---------------------------------------------------------------- calls whose worker has died
def may_run_again(mem, slot):
    """Say whether a call that its worker had begun may be run once more, and count that."""
    word = int(mem[scalars_at(mem, slot) + L.SCALAR_BITS])
    if mem[slot + L.S_ORIGIN] < 0:
        return False
    if mem[slot + L.S_RUNS] >= mem[(word & L.CALL_KEY) + L.BLOCK_AGAIN]:
        return False
    mem[slot + L.S_RUNS] += 1
    return True


def run_again(mem, slot):
    if slots.step(mem, slot, slots.RUN_AGAIN) != L.OK:
        return L.ILLEGAL
    mem[slot + L.S_FRAME] = 0
    call_consumers_back(mem, slot, L.RETURNED)
    queue_ready(mem, slot)
    return L.OK


def call_consumers_back(mem, slot, answer):
    """Have consumers that were pre-dispatched after a task answer that, instead of starting."""
    edge = int(mem[slot + L.S_CONSUMERS])
    while edge != L.NONE:
        consumer = int(mem[edge + L.EDGE_CONSUMER])
        if consumer <= L.CONSUMER_MASK:
            mem[consumer + L.S_UNSENT] += 1
        consumer &= L.CONSUMER_MASK
        if slots.is_in_frame(mem, consumer):
            store(mem, int(mem[consumer + L.S_FRAME]) + L.W_SKIP, answer)
        edge = int(mem[edge + L.EDGE_NEXT])


# ---------------------------------------------------------------- completion
def complete(mem, slot):
    if slots.step(mem, slot, slots.COMPLETE) != L.OK:
        return L.ILLEGAL
    mem[L.COMPLETED_COUNT] += 1
    push_retiring(mem, slot)
    retire(mem)
    return L.OK


def fail(mem, slot):
    """Fail a task that failed while it ran, or must not run; poison its consumers."""
    if slots.step(mem, slot, slots.FAIL) != L.OK:
        return L.ILLEGAL
    mem[L.FAILED_COUNT] += 1
    if mem[L.STREAM] == 0:  # for who runs again what has failed
        mem[slot + L.S_BEGAN] = L.MAY_HAVE_BEGUN
    push_retiring(mem, slot)
    retire(mem)
    return L.OK


def note_cancelled(mem, slot):
    """Note that a call fails because it is cancelled, unless it shares the failure of another."""
    if mem[L.STREAM] != 0 and mem[slot + L.S_ORIGIN] >= 0:
        mem[slot + L.S_ORIGIN] = -slot


def cancel_ready(mem, slot):
    """Fail a ready task, which has left its queue, because it is cancelled."""
    note_cancelled(mem, slot)
    fail(mem, slot)


def cancel_one(mem, slot):
    """Cancel a task that no worker has been given; say whether it is cancelled.

    One that waits for others ends after them, as if it were poisoned.
    """
    state = int(mem[slot + L.S_STATE])
    if state == L.PENDING and not slots.is_in_frame(mem, slot):
        note_cancelled(mem, slot)
        poison(mem, slot)
        return True
    if state != L.READY:
        return False
    queues.remove_ready(mem, slot)
    if queues.first_ready(mem, slots.kind_of(mem, slot)) == L.NONE:
        mem[L.DEFERRED_SINCE + slots.kind_of(mem, slot)] = 0
    cancel_ready(mem, slot)
    return True


def push_retiring(mem, slot):
    mem[slot + L.S_NEXT] = mem[L.RETIRING]
    mem[L.RETIRING] = slot


def retire(mem):
    """Retire the terminal tasks: release their consumers, then their producers and themselves.

    A poisoned consumer whose last fan-in is released here joins the chain, so a failure reaches
    everything downstream without recursion.
    """
    while mem[L.RETIRING] != L.NONE:
        slot = int(mem[L.RETIRING])
        mem[L.RETIRING] = mem[slot + L.S_NEXT]
        failed = mem[slot + L.S_STATE] == L.FAILED
        edge = int(mem[slot + L.S_CONSUMERS])
        mem[slot + L.S_CONSUMERS] = L.NONE
        while edge != L.NONE:
            consumer = int(mem[edge + L.EDGE_CONSUMER])
            after = int(mem[edge + L.EDGE_NEXT])
            if failed:
                fail_with(mem, consumer, slot)
            release_fanin(mem, consumer & L.CONSUMER_MASK)
            edge = after
        release_producers(mem, slot)


def release_producers(mem, slot):
    if mem[L.STREAM] != 0 and mem[slot + L.S_STATE] == L.FAILED:
        settle_failed_call(mem, slot)
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & L.LOW_HALF):
        drop_reference(mem, int(mem[edge + L.EDGE_PRODUCER]))
        edge += EDGE_WORDS
    drop_reference(mem, slot)


def settle_failed_call(mem, slot):
    """Say how a call failed that did not fail by itself, and keep what it waited for, for its story.

    Effects  S_KIND; EDGE_NEXT, whose chain is over, becomes minus the producer's id, minus 1
    """
    origin = int(mem[slot + L.S_ORIGIN])
    if origin < 0:
        mem[slot + L.S_KIND] = L.VALUE_CANCELLED if origin == -slot else L.VALUE_POISONED
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & L.LOW_HALF):
        mem[edge + L.EDGE_NEXT] = -1 - mem[int(mem[edge + L.EDGE_PRODUCER]) + L.S_ID]
        edge += EDGE_WORDS


def drop_reference(mem, slot):
    """Release one reference; leave a slot consumed by that for the Orch thread."""
    if slots.release_ref(mem, slot):
        if unlikely(mem[L.TRACING] == L.TRACE_ALL):
            note_step(mem, slot, slots.RELEASE, L.JOURNAL_OF_SCHEDULER)
        queues.push_consumed(mem, slot)


def keep_failure(mem, outcome, slot, worker, detail):
    """Note how a call failed by itself; the error that it raised is noted with its answer."""
    noted = int(mem[L.NOTED])
    if noted < L.MOST_NOTED and slots.acquire_ref(mem, slot):
        mem[L.NOTED_CALLS + noted] = slot
        mem[L.NOTED] = noted + 1
    else:
        mem[L.NOT_NOTED] += 1
    if outcome == L.TASK_FAILURE:
        return
    mem[slot + L.S_KIND] = L.VALUE_STRANDED if worker < 0 else L.VALUE_LOST
    mem[slot + L.S_VALUE] = 0 if worker < 0 else worker << L.HALF | detail


def note_neighbour(mem, at, slot):
    """Count a task in the story of a failure, and keep its id and callable word if there is room."""
    told = int(mem[at])
    if told < L.MOST_TOLD:
        mem[at + 1 + 2 * told] = mem[slot + L.S_ID]
        mem[at + 2 + 2 * told] = mem[slot + L.S_CALLABLE]
    mem[at] = told + 1


def note_story(mem, slot):
    """Keep the state of the task that failed first, what it waited for and what waits for it.

    This must be now: once the failure is acted on, the references to its producers are gone.
    """
    mem[L.ERROR_STATE] = mem[slot + L.S_STATE]
    mem[L.ERROR_NEEDED] = 0
    mem[L.ERROR_NEEDING] = 0
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & L.LOW_HALF):
        if mem[edge + L.EDGE_CONSUMER] != L.NONE:  # else it was kept for its memory alone
            note_neighbour(mem, L.ERROR_NEEDED, int(mem[edge + L.EDGE_PRODUCER]))
        edge += EDGE_WORDS
    edge = int(mem[slot + L.S_CONSUMERS])
    while edge != L.NONE:
        note_neighbour(mem, L.ERROR_NEEDING, int(mem[edge + L.EDGE_CONSUMER]) & L.CONSUMER_MASK)
        edge = int(mem[edge + L.EDGE_NEXT])


def record_error(mem, outcome, slot, worker, detail):
    """Keep the first failure of the run: outcome, task, worker, message.

    Message and trace are copied, because the mailbox is reused before Python reads them.

    Ordering the release of RUN_ERROR pairs with the load in `submit_task`
    """
    if mem[L.STREAM] != 0:
        keep_failure(mem, outcome, slot, worker, detail)
        return
    if mem[L.RUN_ERROR] != 0:
        return
    mem[L.ERROR_TASK] = mem[slot + L.S_ID]
    mem[L.ERROR_CALLABLE] = mem[slot + L.S_CALLABLE]
    mem[L.ERROR_WORKER] = worker
    mem[L.ERROR_MEMBER] = -1
    if worker >= 0:
        w = worker_at(mem, worker)
        frame = w + int(mem[w + L.W_HEAD])
        if mem[w + L.W_GIVEN] != 0 and mem[frame + L.W_SLOT] == slot:  # else it never ran there
            mem[L.ERROR_MEMBER] = mem[frame + L.W_MEMBER] - 1
    mem[L.ERROR_DETAIL] = detail
    mem[L.ERROR_TRACE] = 0
    if outcome == L.TASK_FAILURE:
        w = worker_at(mem, worker)
        frame = w + int(mem[w + L.W_HEAD])
        copy_words(mem, L.ERROR_MSG, frame + L.W_MAILBOX + L.MAIL_ERROR_MSG, L.ERROR_MSG_WORDS)
        used = 1 + (int(mem[frame + L.W_TRACE]) + L.WORD - 1) // L.WORD
        copy_words(mem, L.ERROR_TRACE, frame + L.W_TRACE, min(used, L.TRACE_WORDS))
    note_story(mem, slot)
    store(mem, L.RUN_ERROR, outcome)
