"""Collecting from the workers: completions, failures, deaths.

Rule     CALL-LIMIT-3, FAIL-OUTCOME-2, SCHED-COMPLETE-1, SCHED-COMPLETE-4, SCHED-DEATH-1, SCHED-DEATH-2,
         SPEED-AHEAD-1, SPEED-DEPTH-2, SPEED-DEPTH-6, WM-CLAIM-1, WM-CLAIM-4, WM-DONE-1, WM-DONE-2,
         WM-DONE-3, WM-DONE-4, WM-DONE-5, WM-LEFT-2
"""

from __future__ import annotations

from . import graph
from . import layout as L
from .atomics import futex_wake, load, store
from .mailbox import frame_after, frame_before, grant_claim, is_done, worker_at
from .slots import DISPATCH, INPUTS_DONE, kind_of, step


def collect(mem):
    """Collect the completions from the mailboxes, each worker's in the order of its tasks.

    The end of a pre-dispatched task may be there before those that it waited for are collected: it is
    left for another round.
    """
    moved, before = 0, -1
    while moved != before:
        before = moved
        waiting = int(mem[L.BUSY])
        worker = 0
        left = False
        while waiting > 0:
            w = worker_at(mem, worker)
            if mem[w + L.W_GIVEN] != 0:
                waiting -= 1
                moved += collect_from(mem, worker, w)
                left |= mem[w + L.W_GIVEN] != 0 and is_done(mem, w)
            worker += 1
        if not left:
            break
    return moved


def collect_from(mem, worker, w):
    """Collect the completions from a worker's mailboxes; return how many.

    The worker has room again before a completion is acted on, so that tasks which become ready find it.
    W_RAN is for the message should the worker die in its next task.
    """
    moved = 0
    while mem[w + L.W_GIVEN] != 0 and is_done(mem, w):
        frame = w + int(mem[w + L.W_HEAD])
        slot = int(mem[frame + L.W_SLOT])
        outcome = int(mem[frame + L.W_MAILBOX + L.MAIL_STATE]) >> L.HALF
        started = outcome != L.SKIPPED and outcome != L.RETURNED
        if mem[frame + L.W_WAITS] != 0 and started and not catch_up(mem, slot):
            break
        if outcome != L.SUCCESS and started:
            graph.record_error(mem, L.TASK_FAILURE, slot, worker, 0)
        if started and mem[L.STREAM] != 0:
            mem[slot + L.S_VALUE] = mem[frame + L.W_VALUE]
            mem[slot + L.S_KIND] = mem[frame + L.W_KIND]
        if started:
            ran = int(mem[slot + L.S_CALLABLE]) & L.CALLABLE_MASK
            mem[w + L.W_RAN] = (mem[slot + L.S_ID] + 1) << L.RAN_TASK | ran
        elif load(mem, L.CANCEL) != 0:
            graph.note_cancelled(mem, slot)
        vacate(mem, w)
        moved += 1
        if mem[frame + L.W_WAITS] != 0 and not started:
            take_back(mem, slot, outcome)
        else:
            finish(mem, slot, outcome != L.SUCCESS)
    return moved


def catch_up(mem, slot):
    """Bring a pre-dispatched task that has ended to RUNNING.

    Returns  whether the ends of all tasks that it waited for are collected; else nothing has changed
    """
    if mem[slot + L.S_FANIN] != 1:
        return False
    mem[slot + L.S_FANIN] = 0
    if mem[L.PREDISPATCH_PENALTY] != 0:
        mem[L.PREDISPATCH_PENALTY] -= 1
    step(mem, slot, INPUTS_DONE)
    step(mem, slot, DISPATCH)
    return True


def take_back(mem, slot, outcome):
    """Take a pre-dispatched task back that was not started: it has failed, or is dispatched when ready.

    Consumers that were pre-dispatched after it must not start: they are told before its frame is filled
    again, since it may be retired later: the failure that it was skipped for may be still uncollected.
    """
    mem[slot + L.S_FRAME] = 0
    mem[L.DEALT] -= mem[slot + L.S_STATE] == L.PENDING
    answer = L.SKIPPED
    if outcome == L.RETURNED:
        answer = L.RETURNED
        mem[L.RETURNED_COUNT] += 1
        pause_predispatch(mem)
    else:
        graph.poison(mem, slot)
    graph.call_consumers_back(mem, slot, answer)
    graph.release_fanin(mem, slot)
    graph.retire(mem)


def pause_predispatch(mem):
    """Pause pre-dispatch for some ready tasks, longer each time; returns in a pause do not count."""
    if mem[L.READY_ORDER] >= mem[L.PREDISPATCH_AFTER]:
        mem[L.PREDISPATCH_PENALTY] = min(
            2 * mem[L.PREDISPATCH_PENALTY] + L.FIRST_PENALTY, L.MOST_PENALTY
        )
        mem[L.PREDISPATCH_AFTER] = mem[L.READY_ORDER] + mem[L.PREDISPATCH_PENALTY]


def set_idle(mem):
    """Set the mailboxes of idle workers from TASK_DONE to IDLE.

    This comes after dispatch, so that a worker that gets its next task at once sees one write.
    """
    for worker in range(mem[L.WORKERS]):
        w = worker_at(mem, worker)
        if mem[w + L.W_COLLECTED] != 0:
            mem[w + L.W_COLLECTED] = 0
            frame = w + frame_before(mem, int(mem[w + L.W_TAIL]))
            store(mem, frame + L.W_MAILBOX + L.MAIL_STATE, L.IDLE)
    mem[L.UNCOLLECTED] = 0


def vacate(mem, w):
    """Note that the oldest of a worker's tasks is done, or lost.

    An idle worker's mailbox goes to a thread that waits for it.
    """
    at = int(mem[w + L.W_HEAD])
    mem[w + at + L.W_SLOT] = L.NONE
    mem[w + at + L.W_MEMBER] = 0
    mem[w + L.W_HEAD] = frame_after(mem, at)
    mem[w + L.W_GIVEN] -= 1
    if mem[w + L.W_GIVEN] != 0:
        return
    mem[L.BUSY] -= 1
    if mem[w + L.W_USABLE] == L.ALIVE:
        mem[w + L.W_COLLECTED] = 1
        mem[L.UNCOLLECTED] += 1
    elif mem[w + L.W_USABLE] == L.ALIVE | L.CLAIMED:
        grant_claim(mem, w)


# ---------------------------------------------------------------- outcomes
def finish(mem, slot, failed):
    """Act on the outcome of a task, or of a member: the last one ends its group.

    The first failure of a group skips the members that have not started.
    """
    if mem[slot + L.S_MEMBERS] != 0:
        left = int(mem[slot + L.S_LEFT]) - 1
        if failed and left >> L.HALF == 0:
            left += 1 << L.HALF
            skip_rest(mem, slot, kind_of(mem, slot))
        mem[slot + L.S_LEFT] = left
        if left & L.LOW_HALF != 0:
            return
        failed = left >> L.HALF != 0
    if failed:
        graph.fail(mem, slot)
    else:
        graph.complete(mem, slot)


def skip_rest(mem, slot, kind):
    """Tell the workers of a group to skip members that have not started."""
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        frame = w + int(mem[w + L.W_HEAD])
        if mem[w + L.W_GIVEN] != 0 and mem[frame + L.W_SLOT] == slot:
            store(mem, frame + L.W_SKIP, L.SKIPPED)


def skip_waiting(mem):
    """Tell every worker to skip the tasks behind its current one (D11)."""
    for worker in range(mem[L.WORKERS]):
        w = worker_at(mem, worker)
        at = int(mem[w + L.W_HEAD])
        for i in range(mem[w + L.W_GIVEN]):
            if i > 0 or mem[w + at + L.W_WAITS] != 0:  # pre-dispatched: perhaps not started
                store(mem, w + at + L.W_SKIP, L.SKIPPED)
            at = frame_after(mem, at)


# ---------------------------------------------------------------- deaths
def handle_deaths(mem):
    """Act on deaths of workers: they are unusable, and their unfinished tasks fail.

    A worker that posted TASK_DONE before it died has done its task.
    """
    deaths = load(mem, L.DEATHS)
    if deaths == mem[L.DEATHS_SEEN]:
        return 0
    mem[L.DEATHS_SEEN] = deaths
    note_deaths(mem)
    collect(mem)
    lose_tasks(mem)
    return 1


def note_deaths(mem):
    """Mark dead workers as unusable.

    This comes before the last collection: a worker that dies later is left for another round, or a task
    that it ended in between would count as lost, though other workers may have seen that end.
    """
    for worker in range(mem[L.WORKERS]):
        w = worker_at(mem, worker)
        if load(mem, w + L.W_DEATH) != 0:
            mem[w + L.W_USABLE] = 0


def lose_tasks(mem):
    """Fail the tasks that dead workers have not ended; wake the thread that waits for such a mailbox.

    A call that its worker had not begun, or that may run once more, runs again instead.
    """
    for worker in range(mem[L.WORKERS]):
        w = worker_at(mem, worker)
        if mem[w + L.W_USABLE] != 0:
            continue
        began = mem[w + L.W_SINCE] != 0
        while mem[w + L.W_GIVEN] != 0:  # its current one comes first
            frame = w + int(mem[w + L.W_HEAD])
            slot = int(mem[frame + L.W_SLOT])
            began = began or mem[frame + L.W_SENT] == mem[frame + L.W_FILLED]
            lost = mem[L.STREAM] == 0 or (began and not graph.may_run_again(mem, slot))
            began = False
            if lost and mem[slot + L.S_STATE] != L.FAILED:  # else it was poisoned before
                graph.record_error(
                    mem, L.ENDPOINT_FAILURE, slot, worker, int(load(mem, w + L.W_DEATH))
                )
            vacate(mem, w)
            if mem[frame + L.W_WAITS] != 0:
                take_back(mem, slot, L.ENDPOINT_FAILURE if lost else L.RETURNED)
            elif lost:
                finish(mem, slot, True)
            else:
                graph.run_again(mem, slot)
        if mem[w + L.W_CLAIM] == L.CLAIM_WAITS:
            store(mem, w + L.W_CLAIM, L.CLAIM_GRANTED)
            futex_wake(mem, w + L.W_CLAIM)
