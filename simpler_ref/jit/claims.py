"""The pass lock: the thread that holds it is the Scheduler. What threads do so beside passes.

They write whether a worker may be used, and who has its mailbox: a requester claims the mailbox, and
releases the claim when it has its answer. They cancel, and change what waits for a lost worker.

Rule     CALL-FAIL-4, CALL-FAIL-7, SCHED-CANCEL-1, SCHED-CANCEL-2, SCHED-DEATH-1, SCHED-DEATH-2,
         SPEED-DEPTH-6, WM-MAIL-2
"""

from __future__ import annotations

from . import layout as L
from .atomics import (
    compare_exchange,
    fence,
    futex_wait,
    load,
    now_ns,
    store,
    yield_core,
)
from .collect import handle_deaths, skip_waiting
from .graph import cancel_one, wire_all
from .mailbox import empty_mailbox, grant_claim, make_idle, worker_at
from .queues import has_ready, push_ready, remove_ready
from .slots import FORGIVE, step
from .waiting import notify


# ---------------------------------------------------------------- the lock
def try_lock(mem):
    """Become the Scheduler if no other thread is; never wait.

    Ordering the exchange pairs with the release in `unlock`: the holder sees all that the last one wrote
    Rule     SCHED-PASS-2
    """
    return load(mem, L.PASS_LOCK) == 0 and compare_exchange(mem, L.PASS_LOCK, 0, 1)


def unlock(mem):
    """Stop being the Scheduler."""
    store(mem, L.PASS_LOCK, 0)


def become_scheduler(mem):
    """Take the pass lock, for the few words that other threads write."""
    while not try_lock(mem):
        yield_core()


def hand_over(mem):
    """Release the pass lock after a change that may let ready tasks start: a pass has to follow.

    Effects  if there are ready tasks: MAY_MOVE, and sleeping threads are woken
    Ordering the fence pairs with those before parking: a thread about to park sees MAY_MOVE, or this one
             sees it parked
    Rule     SCHED-WAKE-1
    """
    waiting = has_ready(mem, 0) or has_ready(mem, 1)
    if waiting:
        mem[L.MAY_MOVE] = 1
    unlock(mem)
    if waiting:
        fence()
        notify(mem, L.PARK_ORCH)
        notify(mem, L.PARK_SCHED)


# ---------------------------------------------------------------- usable workers
def set_usable(mem, worker, usable):
    """Admit a worker that posted INIT_DONE to its pool, or clear a dead one's words for its successor.

    Between runs the lock is free except during an empty pass.

    Rule     WM-LOOP-1, SCHED-DEATH-3
    """
    become_scheduler(mem)
    w = worker_at(mem, worker)
    if not usable:
        empty_mailbox(mem, worker)
    elif load(mem, w + L.W_DEATH) == 0:  # else its death has been handled
        mem[w + L.W_USABLE] |= L.ALIVE  # a request may have claimed it before it was admitted
    hand_over(mem)


def settle_deaths(mem):
    """Act on all deaths reported so far: those workers get no more tasks, and theirs are lost."""
    become_scheduler(mem)
    handle_deaths(mem)
    hand_over(mem)


def forgive(mem, slot):
    """Have a task that has failed count as done.

    Returns  OK, or ILLEGAL with nothing changed if it is not FAILED
    Rule     REMOTE-RETRY-1
    """
    return step(mem, slot, FORGIVE)


def forgive_all(mem):
    """Forget the failure of a run all of whose tasks have ended (Orch thread).

    Effects  FAILED → COMPLETED, so that tasks which are submitted now do not wait for those, or share
             their failure; the run's error and counts
    Rule     REMOTE-RETRY-1
    """
    slot, used = int(mem[L.A_SLOTS]), int(mem[L.SLOTS_USED])
    become_scheduler(mem)
    for _ in range(used):
        forgive(mem, slot)
        mem[slot + L.S_BEGAN] = 0
        slot += L.SLOT_WORDS
    mem[L.COMPLETED_COUNT] += mem[L.FAILED_COUNT]
    mem[L.FAILED_COUNT] = 0
    store(mem, L.RUN_ERROR, 0)
    hand_over(mem)


def take_failed(mem):
    """Return the last of the calls noted as failed, whose reference the caller has now; 0: none."""
    become_scheduler(mem)
    slot = 0
    noted = int(mem[L.NOTED])
    if noted > 0:
        slot = int(mem[L.NOTED_CALLS + noted - 1])
        mem[L.NOTED] = noted - 1
    hand_over(mem)
    return slot


def strand(mem, stranded):
    """Let calls that have no worker fail, or wait for one."""
    become_scheduler(mem)
    mem[L.STREAM] = L.STRANDED if stranded else L.CALLS
    hand_over(mem)


def hand_on(mem, worker, other, stays_lost):
    """Have another worker run a ready task that only one worker may run, which is lost (Orch thread).

    One that waits for a successor is handed on only if there will be none.

    Effects  S_CALLABLE of the oldest such task, which moves behind those of the other worker
    Returns  whether there was one
    Rule     CALL-FAR-10
    """
    become_scheduler(mem)
    slot = int(mem[worker_at(mem, worker) + L.W_AFFINITY])
    while slot != L.NONE and mem[slot + L.S_CALLABLE] & L.WORD_WAITS and not stays_lost:
        slot = int(mem[slot + L.S_NEXT])
    if slot != L.NONE:
        remove_ready(mem, slot)
        mem[slot + L.S_CALLABLE] += (other - worker) << L.WORD_WORKER
        push_ready(mem, slot)
    hand_over(mem)
    return slot != L.NONE


def forget_configs(mem):
    """Forget which configuration each mailbox has: their indices may change (between runs)."""
    become_scheduler(mem)
    for worker in range(mem[L.WORKERS]):
        frame = worker_at(mem, worker)
        for _ in range(mem[L.DEPTH]):
            mem[frame + L.W_LAST_CONFIG] = 0
            frame += L.WORKER_WORDS
    unlock(mem)


# ---------------------------------------------------------------- cancelling
def cancel(mem):
    """Cancel the tasks that have not started (D11), ready ones and those in mailboxes."""
    store(mem, L.CANCEL, 1)
    become_scheduler(mem)
    if mem[L.DEPTH] > 1:
        skip_waiting(mem)
    hand_over(mem)


def cancel_call(mem, slot):
    """Cancel one call, unless a worker has been given it (Orch thread).

    It may still wait to be wired, so that is done first. A pass has to follow.

    Returns  whether it is cancelled
    Rule     CALL-CANCEL-1
    """
    become_scheduler(mem)
    wire_all(mem)
    cancelled = cancel_one(mem, slot)
    unlock(mem)
    return cancelled


# ---------------------------------------------------------------- claims on mailboxes
def claim_mailbox(mem, worker, timeout_ns):
    """Claim a worker's mailbox for a control request, and wait until its tasks, if any, are done.

    One thread at a time claims a worker. Nothing is dispatched to it from the call on.

    Returns  OK; or, without a claim, ILLEGAL when it is dead, TIMED_OUT, or INTERRUPTED by a signal
    Rule     WM-CLAIM-1, WM-CLAIM-2, WM-CLAIM-4
    """
    w = worker_at(mem, worker)
    until = now_ns() + timeout_ns
    become_scheduler(mem)
    alive = load(mem, w + L.W_DEATH) == 0
    if alive:
        mem[w + L.W_USABLE] |= L.CLAIMED  # it may not have been admitted to its pool yet
        store(mem, w + L.W_CLAIM, L.CLAIM_WAITS)
        if mem[w + L.W_COLLECTED] != 0:
            mem[w + L.W_COLLECTED] = 0
            mem[L.UNCOLLECTED] -= 1
        if mem[w + L.W_GIVEN] == 0:
            grant_claim(mem, w)
    unlock(mem)
    if not alive:
        return L.ILLEGAL
    answer = L.OK
    while load(mem, w + L.W_CLAIM) == L.CLAIM_WAITS and answer == L.OK:
        rest = until - now_ns()
        if rest <= 0:
            answer = L.TIMED_OUT
        elif futex_wait(mem, w + L.W_CLAIM, L.CLAIM_WAITS, rest) == L.INTERRUPTED:
            answer = L.INTERRUPTED
    if answer == L.OK and load(mem, w + L.W_DEATH) != 0:
        answer = L.ILLEGAL
    if answer != L.OK:
        release_mailbox(mem, worker)
    return answer


def release_mailbox(mem, worker):
    """Release a claim: the worker can have tasks again.

    The request may have changed the meaning of an index, and has overwritten words of a task: the next
    task in each frame is sent with digest and configuration.

    Rule     WM-CLAIM-2, WM-CLAIM-3, WM-MAIL-4
    """
    w = worker_at(mem, worker)
    become_scheduler(mem)
    store(mem, w + L.W_CLAIM, 0)
    mem[w + int(mem[w + L.W_TAIL]) + L.W_MAILBOX + L.MAIL_COMMAND] = 0
    frame = w
    for _ in range(mem[L.DEPTH]):
        mem[frame + L.W_LAST_CALLABLE] = 0
        mem[frame + L.W_LAST_CONFIG] = 0
        frame += L.WORKER_WORDS
    if mem[w + L.W_USABLE] & L.CLAIMED != 0:
        mem[w + L.W_USABLE] &= L.ALIVE
        if mem[w + L.W_GIVEN] == 0 and load(mem, w + L.W_DEATH) == 0:
            make_idle(mem, w)
    hand_over(mem)


def abandon_mailbox(mem, worker):
    """Remove a worker that does not answer from its pool, with the request in its mailbox.

    Effects  tasks that need this worker fail instead of waiting
    Rule     WM-CTRL-4
    """
    w = worker_at(mem, worker)
    become_scheduler(mem)
    store(mem, w + L.W_CLAIM, 0)
    mem[w + L.W_USABLE] = 0
    hand_over(mem)
