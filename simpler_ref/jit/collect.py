"""What comes back from the workers: completions, failures, deaths."""

from __future__ import annotations

from . import layout as L
from .atomics import futex_wake, load, store
from .graph import complete, fail, record_error
from .kernel import kernel
from .mailbox import STATE_MASK, grant_claim, mailbox_state, worker_at
from .slots import kind_of


@kernel
def collect(mem):
    """Take the completions that stand in the mailboxes.

    A worker is idle again before its task's completion is acted on, so that whatever the
    completion makes ready finds it.

    Returns  how many were taken
    """
    waiting = int(mem[L.BUSY])
    moved = 0
    worker = 0
    while waiting > 0:
        w = worker_at(mem, worker)
        slot = int(mem[w + L.W_SLOT])
        if slot != L.NONE:
            waiting -= 1
            word = load(mem, w + L.W_MAILBOX + L.MAIL_STATE)
            if word & STATE_MASK == L.TASK_DONE:
                outcome = word >> 32
                skipped = outcome == L.SKIPPED and mem[slot + L.S_MEMBERS] != 0
                if outcome != L.SUCCESS and not skipped:
                    record_error(mem, L.TASK_FAILURE, slot, worker, 0)
                vacate(mem, w)
                moved += 1
                finish(mem, slot, outcome != L.SUCCESS)
        worker += 1
    return moved


@kernel
def set_idle(mem):
    """Bring TASK_DONE mailboxes whose completion was taken, and that got no new task, to IDLE.

    It stands after dispatch so that a worker that gets its next task at once sees one write.
    """
    if mem[L.UNCOLLECTED] == 0:
        return
    for worker in range(mem[L.WORKERS]):
        w = worker_at(mem, worker)
        if mem[w + L.W_COLLECTED] != 0:
            mem[w + L.W_COLLECTED] = 0
            store(mem, w + L.W_MAILBOX + L.MAIL_STATE, L.IDLE)
    mem[L.UNCOLLECTED] = 0


@kernel
def vacate(mem, w):
    """Note that a worker's task is done, or lost; a thread that waits for its mailbox gets it."""
    mem[w + L.W_SLOT] = L.NONE
    mem[w + L.W_MEMBER] = 0
    mem[L.BUSY] -= 1
    if mem[w + L.W_USABLE] == L.ALIVE:
        mem[w + L.W_COLLECTED] = 1
        mem[L.UNCOLLECTED] += 1
    elif mem[w + L.W_USABLE] == L.ALIVE | L.CLAIMED:
        grant_claim(mem, w)


# ---------------------------------------------------------------- outcomes
@kernel
def finish(mem, slot, failed):
    """Act on the outcome of a task, or of one member of a group."""
    if mem[slot + L.S_MEMBERS] != 0:
        finish_member(mem, slot, kind_of(mem, slot), failed)
    elif failed:
        fail(mem, slot)
    else:
        complete(mem, slot)


@kernel
def finish_member(mem, slot, kind, failed):
    """One member of a group is done: the last one ends the group, the first failure skips the rest.

    Effects  S_LEFT; W_SKIP of the workers whose members may not have started; at the end COMPLETED
             or FAILED
    """
    left = int(mem[slot + L.S_LEFT]) - 1
    if failed and left >> 32 == 0:
        left += 1 << 32
        skip_rest(mem, slot, kind)
    mem[slot + L.S_LEFT] = left
    if left & 0xFFFFFFFF == 0:
        if left >> 32 != 0:
            fail(mem, slot)
        else:
            complete(mem, slot)


@kernel
def skip_rest(mem, slot, kind):
    """Tell the workers of a group that what has not started need not start."""
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        if mem[w + L.W_SLOT] == slot:
            store(mem, w + L.W_SKIP, 1)


# ---------------------------------------------------------------- deaths
@kernel
def bury(mem):
    """Take note of workers that died: unusable, and their unfinished tasks failed.

    A worker that had posted TASK_DONE before it died has done its task: that is left to `collect`.

    Returns  1 if anybody died since the last look
    """
    deaths = load(mem, L.DEATHS)
    if deaths == mem[L.DEATHS_SEEN]:
        return 0
    mem[L.DEATHS_SEEN] = deaths
    for worker in range(mem[L.WORKERS]):
        w = worker_at(mem, worker)
        status = load(mem, w + L.W_DEATH)
        if status != 0 and mem[w + L.W_USABLE] != 0:
            mem[w + L.W_USABLE] = 0
            slot = int(mem[w + L.W_SLOT])
            if slot != L.NONE and mailbox_state(mem, worker) != L.TASK_DONE:
                record_error(mem, L.ENDPOINT_FAILURE, slot, worker, status)
                vacate(mem, w)
                finish(mem, slot, True)
            if mem[w + L.W_CLAIM] == L.CLAIM_WAITS:  # who waits for its mailbox shall see that
                store(mem, w + L.W_CLAIM, L.CLAIM_GRANTED)
                futex_wake(mem, w + L.W_CLAIM)
    return 1
