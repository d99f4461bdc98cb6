"""The Scheduler: one pass wires, dispatches and completes; the holder of the pass lock runs it.

What a pass does. It takes what was submitted from the wiring queue and connects it to its producers
(`graph`); gives ready tasks to workers (`dispatch`); and collects the answers of workers, which
makes further tasks ready (`collect`). In this order, because wiring and collecting are what fills
the ready queues, and dispatch is what a sleeping worker waits for. A pass never waits and never
calls Python. It looks at words that changed, not at all tasks: its cost is that of what moves.

Who runs it. The lock is a try-lock: no thread waits for it. The Orch thread runs passes while it
submits, drains or waits for room: it has a core anyhow, and on two cores a third thread that spins
would be one too many. The Scheduler thread runs them while the user's orchestration function is
busy elsewhere, for instance in Python code that submits nothing; it never spins. The thread that
holds the lock *is* the Scheduler as far as ownership goes: "written by the Scheduler" in the tables
of words means: while holding the lock.

Two passes. What a first pass collects has made tasks ready whose workers have just become free; a
second one at once sends them. Without it independent tasks of Python take twice as long at depth 1.

How threads sleep, and are woken, stands in `waiting`. What follows an event:

    event                          what follows
    submit                         the Orch thread runs a pass if a worker needs a task
    TASK_DONE, a thread active     the worker wakes it
    TASK_DONE, Orch running passes its next pass collects; if none comes, the worker wakes the
                                   Scheduler thread before it parks, or after UNSEEN_NS
    TASK_DONE, worker goes on to   the next pass collects. If the Orch thread may stay away, and a
    its next frame                 worker is idle meanwhile, the Scheduler thread sleeps with a timer
                                   (`may_miss_an_end`)
    death of a worker              the monitor thread wakes both threads, parked or not

Words read without the lock are hints. A thread compares them and never uses one as an offset, since
the memory there may have changed. The holder of the lock leaves the answer in a word (MAY_MOVE).

What must never happen. A wake-up that is lost: see above. A task that is ready beside an idle
worker while all threads sleep: the table above, row by row, is what prevents it, and the
interleaving tests go through it. A thread that spins while another one could use its core: who
waits offers it (`cores`), and parks when its budget is spent. A pass that outlives its holder: a
process has one Orch thread and one Scheduler thread, and both die with it.

What else needs the lock. Other threads become the Scheduler, without a pass, to write whether a worker
may be used and who has its mailbox: a requester claims the mailbox, and releases the claim when it has
its answer. They cancel, and change what waits for a lost worker. If that may let tasks start, a pass
has to follow (`hand_over`).

Why not a thread that does nothing else: an answer would take two wake-ups instead of none, 16 to 43
µs each on a virtual machine, and with two workers on two cores it would keep one of them from
running.

Rule     CALL-CANCEL-1, CALL-FAIL-4, CALL-FAIL-7, CALL-FAR-10, FAIL-AGAIN-1, ORCH-BACK-1, ORCH-BACK-3,
         ORCH-DRAIN-1, ORCH-INV-1, ORCH-RUN-4, ORCH-RUN-5, REMOTE-RETRY-1, SCHED-CANCEL-1, SCHED-CANCEL-2,
         SCHED-CANCEL-4, SCHED-CONSUME-2, SCHED-DEATH-1, SCHED-DEATH-2, SCHED-DEATH-3, SCHED-PASS-1,
         SCHED-PASS-2, SCHED-PASS-3, SCHED-WAKE-1, SCHED-WAKE-2, SCHED-WAKE-3, SCHED-WAKE-4, SCHED-WAKE-5,
         SCHED-WAKE-7, SPEED-DEPTH-6, SPEED-MANY-7, SPEED-WAIT-2, SPEED-WAIT-13, WM-CLAIM-1, WM-CLAIM-2,
         WM-CLAIM-3, WM-CLAIM-4, WM-CTRL-4, WM-LOOP-1, WM-MAIL-2, WM-MAIL-4, WM-PLACE-4, WM-POOL-3
"""

from __future__ import annotations

from . import layout as L
from .atomics import (
    compare_exchange,
    core_here,
    exchange,
    fence,
    futex_wait,
    futex_wake,
    load,
    now_ns,
    pause,
    store,
    thread_id,
    unlikely,
    yield_core,
)
from .collect import collect, handle_deaths, set_idle, skip_waiting
from .cores import offer_core
from .dispatch import dispatch
from .graph import cancel_one, wire_all
from .hazards import forget_all
from .journal import note_run, note_span
from .kernel import shared
from .mailbox import STATE_MASK, empty_mailbox, grant_claim, is_done, make_idle, worker_at
from .queues import has_candidate, has_ready, push_ready, remove_ready, take_consumed
from .ring import reset_to_empty
from .slots import FORGIVE, kind_of, step
from .submit import edges_at, reclaim_chain, submit_task
from .tensormap import reset as reset_map
from .waiting import be_awake, commit, notify, prepare


# ---------------------------------------------------------------- the lock
def try_lock(mem):
    """Become the Scheduler if no other thread is; never wait.

    Ordering the exchange pairs with the release in `unlock`: the holder sees all that the last one wrote
    """
    return load(mem, L.PASS_LOCK) == 0 and compare_exchange(mem, L.PASS_LOCK, 0, 1)


def unlock(mem):
    store(mem, L.PASS_LOCK, 0)


def become_scheduler(mem):
    """Take the pass lock, for the few words that other threads write."""
    while not try_lock(mem):
        yield_core()


def hand_over(mem):
    """Release the pass lock after a change that may let ready tasks start: a pass has to follow.

    If there are ready tasks, MAY_MOVE says so, and sleeping threads are woken.

    Ordering the fence pairs with those before parking: a thread about to park sees MAY_MOVE, or this one
             sees it parked
    """
    waiting = has_ready(mem, 0) or has_ready(mem, 1)
    if waiting:
        mem[L.MAY_MOVE] = 1
    unlock(mem)
    if waiting:
        fence()
        notify(mem, L.PARK_ORCH)
        notify(mem, L.PARK_SCHED)


# ---------------------------------------------------------------- the pass
@shared
def scheduler_pass(mem):
    """Run one pass: deaths, wiring, dispatch to either pool, completions.

    MAY_MOVE is then whether what has ended has left ready tasks that it has not dispatched.

    Returns  how much moved; 0 means that nothing can until an event comes
    """
    moved = 0
    if load(mem, L.DEATHS) != mem[L.DEATHS_SEEN]:
        moved = handle_deaths(mem)
    moved += wire_all(mem)
    failed = mem[L.FAILED_COUNT]
    for kind in range(2):
        if has_ready(mem, kind) or has_candidate(mem, kind):
            moved += dispatch(mem, kind)
    if mem[L.UNCOLLECTED] != 0:
        set_idle(mem)
    collected = 0
    if mem[L.BUSY] != 0:
        collected = collect(mem)
    # a task that fails undispatched may make one of the other kind ready that waits only for its end
    ended = collected != 0 or mem[L.FAILED_COUNT] != failed
    may_move = ended and (has_ready(mem, 0) or has_ready(mem, 1))
    if mem[L.MAY_MOVE] != may_move:
        mem[L.MAY_MOVE] = may_move
    return moved + collected


def two_passes(mem):
    before = answers(mem)
    moved = scheduler_pass(mem)
    if mem[L.UNCOLLECTED] != 0 or answers(mem) != before:
        moved += scheduler_pass(mem)
    return moved


def answers(mem):
    """Return a number that changes with each answer collected."""
    return ended_tasks(mem) + mem[L.RETURNED_COUNT]


def has_work(mem):
    """Say whether a pass would find work: what a thread checks before it parks.

    A deferred task does not count, see `any_deferred`. All it reads are hints, none used as an offset
    except W_HEAD, which always names a frame.
    """
    if mem[L.WIRING_TAKEN] != load(mem, L.WIRING_PUSHED):
        return True
    if load(mem, L.DEATHS) != mem[L.DEATHS_SEEN]:
        return True
    if mem[L.UNCOLLECTED] != 0 or mem[L.MAY_MOVE] != 0:
        return True
    if mem[L.BUSY] != 0:
        for worker in range(mem[L.WORKERS]):
            w = worker_at(mem, worker)
            if mem[w + L.W_GIVEN] != 0 and is_done(mem, w):
                return True
    return False


def any_deferred(mem):
    return mem[L.DEFERRED_SINCE] != 0 or mem[L.DEFERRED_SINCE + 1] != 0


def may_miss_an_end(mem):
    """Say whether a worker may stay idle because no thread sees the end that a task waits for.

    A worker that has another frame goes on to it without waking anyone: the next pass collects, but the
    Orch thread may stay away. A worker without a task reports an uncollected end, so nothing is missed
    while all workers have tasks; nor while no task waits, since a task in a frame starts without a pass.
    """
    if mem[L.MAY_MOVE] != 0:
        return True
    if mem[L.DEPTH] == 1 or mem[L.BUSY] == 0 or mem[L.BUSY] == mem[L.WORKERS]:
        return False
    return load(mem, L.WIRING_PUSHED) != mem[L.DEALT]


# ---------------------------------------------------------------- the Orch thread's share
def orch_pass(mem):
    """Run a pass as the Orch thread and reclaim what was consumed.

    The Scheduler thread goes on standby: it sees that the Orch thread is here.

    Returns  how much moved, or -1 if another thread holds the lock
    """
    mem[L.ORCH_PASSES] += 1
    if not try_lock(mem):
        return -1
    moved = two_passes(mem)
    slot = take_consumed(mem)
    unlock(mem)
    return moved + reclaim_chain(mem, slot)  # which may be room for a submit that waits


def pass_after_submit(mem):
    """Run the pass that a submit needs, as the Orch thread; put an active Scheduler thread on standby."""
    show_up(mem)
    if orch_pass(mem) < 0:
        fence()  # pairs with the one in `scheduler_loop`: it sees the entry, or this sees it parked
        notify(mem, L.PARK_SCHED)
    have_time_kept(mem)


def submit_and_pass(mem, callable_word, counts, members, words):
    """Submit a task or a group, as `submit_task` does, with the pass that it needs; or WRONG_THREAD."""
    if thread_id() != mem[L.ORCH_THREAD]:
        return L.WRONG_THREAD
    slot = submit_task(mem, callable_word, counts, members, words)
    if slot >= 0:
        pass_after_submit(mem)
    return slot


def have_time_kept(mem):
    """Have the Scheduler thread sleep with a timer if a task waits and the Orch thread may go away."""
    if any_deferred(mem) or may_miss_an_end(mem):
        fence()  # pairs with the one in `scheduler_loop`: it sees the task, or this sees it parked
        ask_for_clock(mem)
    watch_groups(mem)


def ask_for_clock(mem):
    """Have the Scheduler thread, if it sleeps and needs a timer, sleep on with one.

    A pass of its own would be useless: the Orch thread has run one, or needs none. An active thread is
    woken by every end, so it needs a timer only for a deferred task.
    """
    parked = load(mem, L.PARK_SCHED)
    if parked == L.STANDBY or (parked == L.ACTIVE and any_deferred(mem)):
        if compare_exchange(mem, L.PARK_SCHED, parked, L.KEEP_TIME):
            futex_wake(mem, L.PARK_SCHED)


def show_up(mem):
    """Say that the Orch thread is here, and on which core; an active Scheduler thread goes on standby."""
    core = core_here() + 1
    if mem[L.ORCH_CORE] != core:
        store(mem, L.ORCH_CORE, core)
    if load(mem, L.PARK_SCHED) == L.ACTIVE:
        compare_exchange(mem, L.PARK_SCHED, L.ACTIVE, L.STANDBY)


def pass_in_bulk(mem, slot):
    """Run a pass as the Orch thread after a submit in bulk, if one is due.

    A pass costs more than such a submit, and as much for one task as for eight. One task for each worker
    is enough until the next submit. A look at a worker's mailbox takes a cache line from it, so only one
    in LOOK_EVERY submits takes it. A bulk ends with `pass_after_submit`, or with the drain.

    Ordering the fence pairs with the one in `scheduler_loop`, before it looks for work: that thread sees
             the entry in the wiring queue, or this one sees the worker whose task was collected; the
             same for a producer whose end `has_to_wait` does not see
    """
    fence()
    look = mem[L.WIRING_PUSHED] % L.LOOK_EVERY == 0
    due = is_due(mem, slot & ~L.AUTO_OUTPUT) or is_any_worker_free(mem, slot & ~L.AUTO_OUTPUT)
    if due or (look and runs_low(mem)):
        pass_after_submit(mem)
    else:
        leave_pass_out(mem)


def leave_pass_out(mem):
    """Show up as the Orch thread without a pass; it may go away for long afterwards."""
    mem[L.ORCH_PASSES] += 1
    show_up(mem)
    if load(mem, L.PARK_SCHED) == L.STANDBY and may_miss_an_end(mem):
        ask_for_clock(mem)


def is_due(mem, slot):
    """Say whether a submit needs a pass whatever the workers have: for a group, which may have to wait,
    for a deferred task, after a death, and when many tasks wait to be wired.
    """
    if mem[slot + L.S_MEMBERS] != 0 or any_deferred(mem) or mem[L.MAY_MOVE] != 0:
        return True
    if load(mem, L.DEATHS) != mem[L.DEATHS_SEEN]:
        return True
    return mem[L.WIRING_PUSHED] - load(mem, L.WIRING_TAKEN) >= L.PASS_AT_LATEST


def is_any_worker_free(mem, slot):
    """Say whether a worker of a task's type has no task.

    Workers that sleep do not count if the task has to wait and others are busy.
    """
    kind, asleep, at_work = kind_of(mem, slot), False, False
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        if load(mem, w + L.W_GIVEN) != 0:
            at_work = True
        elif load(mem, w + L.W_PARKED) == 0:
            return True
        else:
            asleep = True
    return asleep and not (at_work and has_to_wait(mem, slot))


def runs_low(mem):
    """Say whether a busy worker has no more tasks left than its reserve."""
    for worker in range(mem[L.WORKERS]):
        w = worker_at(mem, worker)
        if load(mem, w + L.W_GIVEN) != 0 and not has_reserve(mem, w):
            return True
    return False


def has_to_wait(mem, slot):
    """Say whether a task just submitted waits for another that is not done."""
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & L.LOW_HALF):
        if mem[edge + L.EDGE_CONSUMER] != L.NONE:
            state = load(mem, int(mem[edge + L.EDGE_PRODUCER]) + L.S_STATE)
            if state < L.COMPLETED:
                return True
        edge += L.EDGE_WORDS
    return False


def has_reserve(mem, w):
    """Say whether a worker has more tasks left than its reserve; look at one frame.

    It reads hints: the caller acts on the answer under the lock.
    """
    reserve = int(mem[L.DEPTH]) // L.RESERVES
    if load(mem, w + L.W_GIVEN) <= reserve:
        return False
    at = load(mem, w + L.W_TAIL) - (1 + reserve) * L.WORKER_WORDS
    if at < 0:
        at += int(mem[L.WORKER_STRIDE])
    return load(mem, w + at + L.W_MAILBOX + L.MAIL_STATE) & STATE_MASK == L.TASK_READY


def stuck_since(mem):
    """Return since when a group not yet warned of has waited for its workers, or 0.

    Of two pools the one whose group waits longer comes first, so that neither is skipped.
    """
    first = 0
    for kind in range(2):
        since = int(mem[L.STUCK_SINCE + kind])
        if since > mem[L.STUCK_TOLD] and (first == 0 or since < first):
            first = since
    return first


def watch_groups(mem):
    """Have the Scheduler thread watch a group that waits, at most once in STUCK_NS."""
    if stuck_since(mem) != 0:
        fence()  # pairs with the one in `scheduler_loop`: it sees the group, or this sees it parked
        if load(mem, L.WATCHING) == 0:
            notify(mem, L.PARK_SCHED)


def help_scheduler(mem, live, ended, taken, call, slice_ns):
    """Help until a goal is reached, see `help_until`; the Orch thread may go away for long afterwards."""
    began = now_ns() if mem[L.TRACING] == L.TRACE_ALL else 0
    answer = help_until(mem, live, ended, taken, call, slice_ns)
    if began != 0:
        goal = L.WAITED_END
        if taken >= 0:
            goal = L.WAITED_ROOM
        elif call > L.NONE:
            goal = L.WAITED_CALL
        elif ended >= 0:
            goal = L.WAITED_TASKS
        note_span(mem, L.JOURNAL_OF_ORCH, L.NOTED_WAITED, goal, began)
    have_time_kept(mem)
    return answer


def have_ended(mem, ended):
    """Say whether `ended` tasks of the run are terminal; never if it is negative.

    The count only grows during a run; a thread that takes the lock afterwards sees the results.
    """
    return 0 <= ended <= ended_tasks(mem)


def ended_tasks(mem):
    return mem[L.COMPLETED_COUNT] + mem[L.FAILED_COUNT]


def help_until(mem, live, ended, taken, call, slice_ns):
    """Run passes as the Orch thread, and sleep between them, until a goal is reached.

    Goals: at most `live` tasks alive; unless `ended` is negative, as many tasks of the run terminal;
    `call`, unless NONE or STAY, settled; unless it is STAY, another thread wants the turn; or, unless
    `taken` is negative, a pass of any thread moved something, or a task failed. `taken` is
    WIRING_TAKEN before the call that found no room: if the Scheduler thread has emptied the wiring queue
    since, there is room.

    Returns  OK; TIMED_OUT when `slice_ns` are over; INTERRUPTED when a signal came; WANTED
    """
    start = now_ns()
    quiet_since = 0
    offered = False
    if mem[L.ORCH_CORE] != 0:
        store(mem, L.ORCH_CORE, 0)
    while True:
        moved = orch_pass(mem)
        if mem[L.LIVE] <= live:
            return L.OK
        if have_ended(mem, ended) and try_lock(mem):  # the pass that ended the last one is over
            unlock(mem)
            return L.OK
        if has_come_on(mem, taken) or (taken >= 0 and moved > 0):
            return L.OK
        if call > L.NONE and has_settled(mem, call):
            return L.OK
        if call != L.STAY and load(mem, L.ORCH_WANTED) != 0:
            return L.WANTED
        now = now_ns()
        if now - start > slice_ns:
            return L.TIMED_OUT
        if moved > 0:
            if quiet_since != 0 and not offered:
                mem[L.ORCH_KEEPS] = L.KEEPS
            quiet_since = 0
            offered = False
            continue
        if quiet_since == 0:
            quiet_since = now
        spins = now - quiet_since < mem[L.SPIN_NS]
        if any_deferred(mem) or spins:
            waited = now - quiet_since
            if waited < mem[L.ORCH_BACK_OFF] or (not offered and keeps_core(mem, waited)):
                pause()
            else:
                offered = True
                offer_core(mem, L.ORCH_BACK_OFF)
            continue
        watch_groups(mem)
        prepare(mem, L.PARK_ORCH, L.ACTIVE)
        answer = L.OK
        stays = not has_work(mem) and mem[L.CONSUMED_HEAD] == L.NONE
        stays = stays and not have_ended(mem, ended) and not has_come_on(mem, taken)
        stays = stays and (call == L.STAY or load(mem, L.ORCH_WANTED) == 0)
        stays = stays and (call <= L.NONE or not has_settled(mem, call))
        if stays:
            rest = slice_ns - (now - start) + 1
            answer = commit(mem, L.PARK_ORCH, L.ACTIVE, min(int(mem[L.PARK_NS]), rest))
            if unlikely(mem[L.TRACING] == L.TRACE_ALL):
                note_span(mem, L.JOURNAL_OF_ORCH, L.NOTED_PARKED, L.ACTIVE, now)
        be_awake(mem, L.PARK_ORCH)
        if answer == L.INTERRUPTED:
            return answer


def has_settled(mem, slot):
    """Say whether a call has ended, and its value or its failure is there.

    Ordering the load of the state pairs with the release in `step`
    """
    state = load(mem, slot + L.S_STATE)
    return state == L.COMPLETED or (state == L.FAILED and mem[slot + L.S_FANIN] == 0)


def has_come_on(mem, taken):
    """Say whether the Scheduler has progressed since a call found no room: `taken` is WIRING_TAKEN then.

    A failure ends the wait, too. Never if `taken` is negative: the call does not wait for room.
    """
    return taken >= 0 and (load(mem, L.RUN_ERROR) != 0 or load(mem, L.WIRING_TAKEN) != taken)


def keeps_core(mem, waited):
    """Say whether the Orch thread, due to back off, still keeps its core: an answer may be near.

    It could send the worker that answers a ready task at once, and offering the core to a worker on it
    costs more than a small task takes. An answer in time resets ORCH_KEEPS to KEEPS, each wait in vain
    counts it down.
    """
    if mem[L.BUSY] > mem[L.CORES] or mem[L.STUCK_SINCE] != 0 or mem[L.STUCK_SINCE + 1] != 0:
        return False
    if not has_ready(mem, 0) and not has_ready(mem, 1):
        return False
    if mem[L.ORCH_KEEPS] <= 0:
        mem[L.ORCH_KEEPS] += 1
        return False
    if not is_one_at_work_elsewhere(mem):
        return False
    if waited < L.KEEP_NS:
        return True
    mem[L.ORCH_KEEPS] -= 1
    if mem[L.ORCH_KEEPS] == 0:
        mem[L.ORCH_KEEPS] = 1 - L.KEEPS_OFF
    return False


def is_one_at_work_elsewhere(mem):
    """Say whether a worker process with a task was last seen on another core."""
    here = core_here() + 1
    for worker in range(mem[L.WORKERS]):
        w = worker_at(mem, worker)
        core = load(mem, w + L.W_CORE)
        if core != 0 and core != here and mem[w + L.W_GIVEN] != 0:
            return True
    return False


# ---------------------------------------------------------------- runs
def begin_run(mem):
    store(mem, L.CANCEL, 0)
    store(mem, L.RUN_ERROR, 0)
    mem[L.EDGE_COUNT] = 0
    mem[L.COMPLETED_COUNT] = 0
    mem[L.FAILED_COUNT] = 0
    for ring in range(mem[L.RINGS]):
        mem[L.RING_BLOCK + ring * L.LINE + L.R_PEAK] = 0
    note_run(mem, 2 if mem[L.STREAM] != 0 else 1)


def end_run(mem):
    """Start over after everything is reclaimed: ids at 0, every structure as small as at first."""
    if mem[L.TRACK_READS] != 0:
        forget_all(mem)
    reset_to_empty(mem)
    reset_map(mem)
    note_run(mem, 0)


# ---------------------------------------------------------------- the Scheduler thread
def scheduler_loop(mem, timer_ns):
    """Be the Scheduler thread until STOPPING is set. It never spins and never polls.

    Active, it is woken by every completion. It is on standby while the Orch thread runs passes, that is,
    unless the Orch thread ran none while this one slept for `timer_ns` in all: time awake does not count,
    since it may keep the Orch thread from running. While a task is deferred it sleeps `timer_ns` at most;
    likewise on standby while an end may stay unseen, and leaves the passes to the Orch thread while that
    keeps running them.

    Returns  OK at the end; STUCK when a group has waited for its workers for STUCK_NS: the caller should
             warn, and call again
    """
    seen = -1
    slept = 0
    only_clock = False
    while load(mem, L.STOPPING) == 0:
        moved = 0
        looks = not only_clock and try_lock(mem)
        began = now_ns() if looks and mem[L.TRACING] == L.TRACE_ALL else 0
        if looks:
            moved = two_passes(mem)
            unlock(mem)
        if moved > 0:
            if began != 0:
                note_span(mem, L.JOURNAL_OF_THREAD, L.NOTED_PASSES, moved, began)
            if mem[L.ORCH_PASSES] == seen:  # the Orch thread is away
                store(mem, L.ORCH_CORE, 0)
            fence()  # pairs with the one in `help_scheduler`: it sees the moves, or this sees it parked
            notify(mem, L.PARK_ORCH)
            continue
        if mem[L.ORCH_PASSES] != seen:
            seen = int(mem[L.ORCH_PASSES])
            slept = 0
        mode = L.ACTIVE if slept > timer_ns else L.STANDBY
        timeout = -1
        since = stuck_since(mem)
        if since != 0:
            timeout = max(0, since + int(mem[L.STUCK_NS]) - now_ns())
            if timeout == 0:
                mem[L.STUCK_TOLD] = since
                return L.STUCK
        if only_clock or any_deferred(mem) or (mode == L.STANDBY and may_miss_an_end(mem)):
            mode = L.TIMED
            timeout = timer_ns
        store(mem, L.WATCHING, since != 0)
        prepare(mem, L.PARK_SCHED, mode)
        quiet = only_clock or is_quiet(mem, mode)
        quiet = quiet and (since != 0 or stuck_since(mem) == 0)
        only_clock = False
        if quiet and load(mem, L.STOPPING) == 0:
            began = now_ns()
            answer = commit(mem, L.PARK_SCHED, mode, timeout)
            slept += now_ns() - began
            if unlikely(mem[L.TRACING] == L.TRACE_ALL):
                note_span(mem, L.JOURNAL_OF_THREAD, L.NOTED_PARKED, mode, began)
            still = mem[L.ORCH_PASSES] != seen and not any_deferred(mem) and may_miss_an_end(mem)
            asked = exchange(mem, L.PARK_SCHED, 0) == L.KEEP_TIME
            only_clock = asked or (answer == L.TIMED_OUT and still)
        if not quiet and not looks:
            yield_core()  # to the holder of the lock
        be_awake(mem, L.PARK_SCHED)
        store(mem, L.WATCHING, 0)
    return L.OK


def is_quiet(mem, mode):
    """Say whether the Scheduler thread may sleep: nothing to do, and a timer if it needs one."""
    if has_work(mem):
        return False
    if mode == L.TIMED:
        return True
    return not any_deferred(mem) and (mode == L.ACTIVE or not may_miss_an_end(mem))


# ---------------------------------------------------------------- usable workers
def set_usable(mem, worker, usable):
    """Admit a worker that posted INIT_DONE to its pool, or clear a dead one's words for its successor.

    Between runs the lock is free except during an empty pass.
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
    return step(mem, slot, FORGIVE)  # which nothing but a failed task takes


def forgive_all(mem):
    """Forget the failure of a run all of whose tasks have ended (Orch thread).

    They are COMPLETED, so that tasks which are submitted now do not wait for those, or share their
    failure.
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

    It is the oldest such task, and goes behind those of the other worker. One that waits for a
    successor is handed on only if there will be none.

    Returns  whether there was one
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
        forget_sent(mem, worker_at(mem, worker))
    unlock(mem)


def forget_sent(mem, w):
    """Have the next task in each of a worker's frames sent with digest and configuration."""
    for frame in range(w, w + int(mem[L.WORKER_STRIDE]), L.WORKER_WORDS):
        mem[frame + L.W_LAST_CALLABLE] = 0
        mem[frame + L.W_LAST_CONFIG] = 0


# ---------------------------------------------------------------- cancelling
def cancel(mem):
    """Cancel the tasks that have not started (D11), ready ones and those in mailboxes."""
    store(mem, L.CANCEL, 1)
    become_scheduler(mem)
    if mem[L.DEPTH] > 1:
        skip_waiting(mem)
    hand_over(mem)


def cancel_call(mem, slot):
    """Cancel one call, unless a worker has been given it (Orch thread); say whether it is cancelled.

    It may still wait to be wired, so that is done first. A pass has to follow.
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

    The request may have changed the meaning of an index, and has overwritten words of a task.
    """
    w = worker_at(mem, worker)
    become_scheduler(mem)
    store(mem, w + L.W_CLAIM, 0)
    mem[w + int(mem[w + L.W_TAIL]) + L.W_MAILBOX + L.MAIL_COMMAND] = 0
    forget_sent(mem, w)
    if mem[w + L.W_USABLE] & L.CLAIMED != 0:
        mem[w + L.W_USABLE] &= L.ALIVE
        if mem[w + L.W_GIVEN] == 0 and load(mem, w + L.W_DEATH) == 0:
            make_idle(mem, w)
    hand_over(mem)


def abandon_mailbox(mem, worker):
    """Remove a worker that does not answer from its pool, with the request in its mailbox.

    Tasks that need this worker fail instead of waiting.
    """
    w = worker_at(mem, worker)
    become_scheduler(mem)
    store(mem, w + L.W_CLAIM, 0)
    mem[w + L.W_USABLE] = 0
    hand_over(mem)
