"""The Scheduler: one pass wires, dispatches and completes; whoever holds the pass lock runs it.

The lock is a try-lock: nobody ever waits for it. The Orch thread runs passes while it submits,
drains or waits for room; the Scheduler thread runs them while the user's orchestration function is
busy elsewhere. Whoever holds the lock *is* the Scheduler as far as ownership goes.

Who sleeps is woken as follows. Before a thread parks it announces that, then looks for work once
more (`has_work`); whoever makes work looks for the announcement afterwards, with a full barrier
between. So a change is seen by one side or the other, and no time limit is ever what saves it.

    event                          seen by
    submit                         the Orch thread itself, which runs a pass at once
    TASK_DONE, somebody on duty    woken by the worker
    TASK_DONE, Orch running passes collected by its next pass; if that does not come, the worker
                                   wakes the Scheduler thread when it has spun for SPIN_NS
    death of a worker              both threads woken by the monitor thread

A ready task goes to an idle worker that is awake, if there is one: waking another process costs
about as much as many small tasks. If all idle workers sleep and others are at work, the task is
held for HOLD_NS, then one is woken.
"""

from __future__ import annotations

from . import layout as L
from .atomics import (
    INTERRUPTED,
    compare_exchange,
    fence,
    futex_wait,
    futex_wake,
    load,
    now_ns,
    pause,
    store,
    yield_core,
)
from .kernel import kernel
from .mailbox import (
    STATE_MASK,
    copy_words,
    empty_mailbox,
    encode,
    grant_claim,
    mailbox_state,
    make_idle,
    notify,
    send,
    worker_at,
)
from .queues import (
    drop_first_ready,
    first_ready,
    pop_pinned,
    pop_wiring,
    push_consumed,
    push_pinned,
    push_ready,
    ready_empty,
    take_consumed,
)
from .ring import reset_to_empty
from .slots import affinity_of, kind_of, move, release_ref
from .submit import edges_at, members_at, reclaim, scalars_at, tensors_at
from .tensormap import reset as reset_map

EDGE_WORDS = L.EDGE_WORDS

ANYBODY = -3
"""Every worker of the pool that could run it."""
NOBODY = -1
"""No idle worker."""
HOLD = -2
"""Idle workers sleep; the task waits a moment for one that is awake."""


# ---------------------------------------------------------------- wiring
@kernel
def wire(mem, slot):
    """Connect a task with its producers, and make it READY if none of them is still to come.

    Fan-in starts at one, a unit that only the end of wiring releases: a producer that completes
    meanwhile can neither make the task READY early nor be missed (D16).

    Reads    each producer's state (pinned by submit, so none is CONSUMED)
    Effects  the producers' chains of consumers; this task's fan-in
    """
    mem[slot + L.S_FANIN] = 1
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & 0xFFFFFFFF):
        producer = int(mem[edge + L.EDGE_PRODUCER])
        state = int(mem[producer + L.S_STATE])
        waits = mem[edge + L.EDGE_CONSUMER] != L.NONE  # else it is kept for its memory alone
        if waits and state == L.FAILED:
            poison(mem, slot)
        elif waits and state != L.COMPLETED:
            mem[edge + L.EDGE_NEXT] = mem[producer + L.S_CONSUMERS]
            mem[producer + L.S_CONSUMERS] = edge
            mem[slot + L.S_FANIN] += 1
        edge += EDGE_WORDS
    release_fanin(mem, slot)
    retire(mem)


@kernel
def poison(mem, slot):
    """A producer failed: this task will never run.

    Effects  PENDING → FAILED; it lets go of its producers when the last live one is terminal
    """
    if mem[slot + L.S_STATE] == L.PENDING:
        move(mem, slot, L.FAILED)
        mem[L.FAILED_COUNT] += 1


@kernel
def release_fanin(mem, slot):
    """One producer is done, or wiring is: the last release makes the task READY, or retires it."""
    mem[slot + L.S_FANIN] -= 1
    if mem[slot + L.S_FANIN] == 0:
        if mem[slot + L.S_STATE] == L.FAILED:
            push_retiring(mem, slot)
        else:
            move(mem, slot, L.READY)
            make_placeable(mem, slot)


@kernel
def make_placeable(mem, slot):
    """Queue a task that has just become READY: with its pool, or with the one worker it wants."""
    kind = kind_of(mem, slot)
    mem[slot + L.S_ORDER] = mem[L.READY_ORDER]
    mem[L.READY_ORDER] += 1
    worker = affinity_of(mem, slot)
    if worker < 0:
        push_ready(mem, kind, slot)
    else:
        push_pinned(mem, worker_at(mem, worker), kind, slot)


# ---------------------------------------------------------------- completion
@kernel
def complete(mem, slot):
    """A worker has done the task.

    Effects  RUNNING → COMPLETED; consumers released, producers and itself dereferenced
    Returns  OK, or ILLEGAL with nothing changed
    """
    if mem[slot + L.S_STATE] != L.RUNNING:
        return L.ILLEGAL
    move(mem, slot, L.COMPLETED)
    mem[L.COMPLETED_COUNT] += 1
    push_retiring(mem, slot)
    retire(mem)
    return L.OK


@kernel
def fail(mem, slot):
    """A task has failed while it ran, or shall not run: FAILED, consumers poisoned.

    Returns  OK, or ILLEGAL with nothing changed if it is neither READY nor RUNNING
    """
    state = int(mem[slot + L.S_STATE])
    if state != L.READY and state != L.RUNNING:
        return L.ILLEGAL
    move(mem, slot, L.FAILED)
    mem[L.FAILED_COUNT] += 1
    push_retiring(mem, slot)
    retire(mem)
    return L.OK


@kernel
def push_retiring(mem, slot):
    """Note a terminal task for `retire`."""
    mem[slot + L.S_NEXT] = mem[L.RETIRING]
    mem[L.RETIRING] = slot


@kernel
def retire(mem):
    """See the terminal tasks off: their consumers, then their producers and themselves.

    A poisoned consumer whose last fan-in is released here joins the chain, so a failure reaches
    everything downstream without recursion.

    Effects  each consumer's fan-in; one reference less on each producer and on the task itself
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
                poison(mem, consumer)
            release_fanin(mem, consumer)
            edge = after
        release_producers(mem, slot)


@kernel
def release_producers(mem, slot):
    """Drop the task's reference on each of its producers, then its own."""
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & 0xFFFFFFFF):
        drop_reference(mem, int(mem[edge + L.EDGE_PRODUCER]))
        edge += EDGE_WORDS
    drop_reference(mem, slot)


@kernel
def drop_reference(mem, slot):
    """Release one reference; a slot consumed by it is left for the Orch thread."""
    if release_ref(mem, slot):
        push_consumed(mem, slot)


@kernel
def record_error(mem, outcome, slot, worker, detail):
    """Keep the first failure of the run: what, which task, which worker, its words.

    Effects  the run's error words; with TASK_FAILURE also message and trace from the worker's area,
             because its mailbox is used again before Python comes to read them
    Ordering the release of RUN_ERROR pairs with the load in `submit_task`
    """
    if mem[L.RUN_ERROR] != 0:
        return
    mem[L.ERROR_TASK] = mem[slot + L.S_ID]
    mem[L.ERROR_CALLABLE] = mem[slot + L.S_CALLABLE]
    mem[L.ERROR_WORKER] = worker
    mem[L.ERROR_MEMBER] = -1
    if worker >= 0 and mem[worker_at(mem, worker) + L.W_SLOT] == slot:  # else it never ran there
        mem[L.ERROR_MEMBER] = mem[worker_at(mem, worker) + L.W_MEMBER] - 1
    mem[L.ERROR_DETAIL] = detail
    mem[L.ERROR_TRACE] = 0
    if outcome == L.TASK_FAILURE:
        w = worker_at(mem, worker)
        copy_words(mem, L.ERROR_MSG, w + L.W_MAILBOX + L.MAIL_ERROR_MSG, L.ERROR_MSG_WORDS)
        used = 1 + (int(mem[w + L.W_TRACE]) + L.WORD - 1) // L.WORD
        copy_words(mem, L.ERROR_TRACE, w + L.W_TRACE, min(used, L.TRACE_WORDS))
    store(mem, L.RUN_ERROR, outcome)


# ---------------------------------------------------------------- dispatch
@kernel
def is_idle(mem, w):
    """Say whether a worker can be given a task: alive, without one, and not claimed."""
    return mem[w + L.W_SLOT] == L.NONE and mem[w + L.W_USABLE] == L.ALIVE


@kernel
def pick_idle(mem, kind):
    """Choose the worker for a single task at the head of a ready queue, without changing anything.

    Returns  an idle worker that is awake, else one that sleeps if no task runs or the head has been
             held long enough; else NOBODY or HOLD
    """
    asleep = NOBODY
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        if is_idle(mem, w):
            if load(mem, w + L.W_PARKED) == 0:
                return worker
            if asleep == NOBODY:
                asleep = worker
    if asleep == NOBODY or mem[L.BUSY] == 0:
        return asleep
    since = int(mem[L.HELD_SINCE + kind])
    if since == 0 or now_ns() - since < mem[L.HOLD_NS]:
        return HOLD
    return asleep


@kernel
def any_usable(mem, kind, members):
    """Say whether a pool has so many live workers."""
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        members -= mem[worker_at(mem, worker) + L.W_USABLE] != 0
    return members <= 0


@kernel
def dispatch(mem, kind):
    """Give ready tasks of one type to idle workers until one of the two runs out.

    A cancelled run fails them instead, and so does a pool whose workers have died.

    Effects  READY → RUNNING, mailboxes; or READY → FAILED
    Returns  how many tasks left the queues
    """
    moved = dispatch_pinned(mem, kind)
    moved += dispatch_ready(mem, kind)
    if mem[L.PINNED + kind] != 0:  # what was older than they are may be gone now
        moved += dispatch_pinned(mem, kind)
    return moved


@kernel
def dispatch_ready(mem, kind):
    """Give away the tasks that any worker of the pool may run, in the order they became ready.

    The first that cannot be placed stops it: a group that waits for its workers keeps its place.

    Returns  how many tasks left the queue
    """
    moved = 0
    while not ready_empty(mem, kind):
        slot = first_ready(mem, kind)
        members = int(mem[slot + L.S_MEMBERS])
        if load(mem, L.CANCEL) != 0:
            drop_first_ready(mem, kind)
            fail(mem, slot)
        elif members != 0:
            lost = lost_member(mem, slot, kind)
            if lost != NOBODY:
                drop_first_ready(mem, kind)
                lose(mem, slot, lost)
                mem[L.STUCK_SINCE + kind] = 0
            elif group_fits(mem, slot, kind):
                drop_first_ready(mem, kind)
                reserve(mem, slot, kind)
                assign_group(mem, slot, kind)
                mem[L.STUCK_SINCE + kind] = 0
            else:
                if mem[L.STUCK_SINCE + kind] == 0:
                    mem[L.STUCK_SINCE + kind] = now_ns()
                break
        else:
            worker = pick_idle(mem, kind)
            if worker == HOLD:
                if mem[L.HELD_SINCE + kind] == 0:
                    mem[L.HELD_SINCE + kind] = now_ns()
                return moved
            if worker == NOBODY:
                if any_usable(mem, kind, 1):
                    break
                drop_first_ready(mem, kind)
                lose(mem, slot, ANYBODY)
            else:
                drop_first_ready(mem, kind)
                assign(mem, slot, worker)
                mem[L.HELD_SINCE + kind] = 0
        moved += 1
    mem[L.HELD_SINCE + kind] = 0
    if ready_empty(mem, kind):
        mem[L.STUCK_SINCE + kind] = 0
    return moved


@kernel
def lose(mem, slot, worker):
    """Fail a ready task because the worker it needs, or ANYBODY it could use, has died."""
    detail = 0
    if worker >= 0:
        detail = int(load(mem, worker_at(mem, worker) + L.W_DEATH))
    record_error(mem, L.ENDPOINT_FAILURE, slot, max(worker, -1), detail)
    fail(mem, slot)


# ---------------------------------------------------------------- tasks for one worker and no other
@kernel
def may_start_pinned(mem, w, kind):
    """Say whether the first task of a worker's own chain can leave it.

    What any worker may run and became ready earlier goes first, a waiting group above all (D19).
    """
    slot = int(mem[w + L.W_PINNED_HEAD])
    if slot == L.NONE:
        return False
    if load(mem, L.CANCEL) != 0 or mem[w + L.W_USABLE] == 0:
        return True
    if not is_idle(mem, w):
        return False
    return ready_empty(mem, kind) or mem[slot + L.S_ORDER] < mem[first_ready(mem, kind) + L.S_ORDER]


@kernel
def dispatch_pinned(mem, kind):
    """Give idle workers the tasks that want them and no other.

    Returns  how many tasks left the chains
    """
    moved = 0
    if mem[L.PINNED + kind] == 0:
        return moved
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        while may_start_pinned(mem, w, kind):
            slot = pop_pinned(mem, w, kind)
            if load(mem, L.CANCEL) != 0:
                fail(mem, slot)
            elif mem[w + L.W_USABLE] == 0:
                lose(mem, slot, worker)
            else:
                assign(mem, slot, worker)
            moved += 1
    return moved


# ---------------------------------------------------------------- groups
@kernel
def lost_member(mem, slot, kind):
    """Return a worker without which a group cannot run and that has died; ANYBODY if the pool has
    too few left; else NOBODY.
    """
    members = int(mem[slot + L.S_MEMBERS])
    member = members_at(mem, slot)
    for _ in range(members):
        worker = int(mem[member + L.MEMBER_WORKER]) - 1
        if worker >= 0 and mem[worker_at(mem, worker) + L.W_USABLE] == 0:
            return worker
        member += L.MEMBER_WORDS
    if not any_usable(mem, kind, members):
        return ANYBODY
    return NOBODY


@kernel
def group_fits(mem, slot, kind):
    """Say whether each member of a group can have a worker of its own now. Changes nothing."""
    members = int(mem[slot + L.S_MEMBERS])
    member = members_at(mem, slot)
    for _ in range(members):  # those that want one worker and no other
        worker = int(mem[member + L.MEMBER_WORKER]) - 1
        if worker >= 0 and not is_idle(mem, worker_at(mem, worker)):
            return False
        member += L.MEMBER_WORDS
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        members -= is_idle(mem, worker_at(mem, worker))
    return members <= 0


@kernel
def reserve(mem, slot, kind):
    """Choose a worker of its own for each member of a group that fits: W_MEMBER names the member."""
    first = members_at(mem, slot)
    for m in range(mem[slot + L.S_MEMBERS]):
        worker = int(mem[first + m * L.MEMBER_WORDS + L.MEMBER_WORKER]) - 1
        if worker >= 0:
            mem[worker_at(mem, worker) + L.W_MEMBER] = m + 1
    for m in range(mem[slot + L.S_MEMBERS]):
        if mem[first + m * L.MEMBER_WORDS + L.MEMBER_WORKER] == 0:
            mem[worker_at(mem, pick_unreserved(mem, kind)) + L.W_MEMBER] = m + 1


@kernel
def pick_unreserved(mem, kind):
    """Return an idle worker that no member has yet, one that is awake if there is one, or NOBODY."""
    found = NOBODY
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        if is_idle(mem, w) and mem[w + L.W_MEMBER] == 0:
            if load(mem, w + L.W_PARKED) == 0:
                return worker
            if found == NOBODY:
                found = worker
    return found


@kernel
def assign_group(mem, slot, kind):
    """Hand every member to the worker reserved for it: READY → RUNNING once, encode, signal."""
    members = int(mem[slot + L.S_MEMBERS])
    move(mem, slot, L.RUNNING)
    mem[slot + L.S_LEFT] = members
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        if mem[w + L.W_SLOT] == L.NONE and mem[w + L.W_MEMBER] != 0:
            mem[slot + L.S_WORKER] = worker
            occupy(mem, w, slot)
            encode_member(mem, worker, slot, int(mem[w + L.W_MEMBER]) - 1)
            send(mem, worker)


@kernel
def encode_member(mem, worker, slot, m):
    """Write the frame of one member of a group."""
    tensors = tensors_at(mem, slot)
    scalars = scalars_at(mem, slot)
    member = members_at(mem, slot)
    for _ in range(m):
        counts = int(mem[member + L.MEMBER_COUNTS])
        tensors += (counts & 0xFFFFFFFF) * L.TENSOR_WORDS
        scalars += counts >> 32
        member += L.MEMBER_WORDS
    encode(mem, worker, slot, int(mem[member + L.MEMBER_COUNTS]), tensors, scalars)


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


# ---------------------------------------------------------------- to the worker and back
@kernel
def assign(mem, slot, worker):
    """Hand a task to an idle worker: READY → RUNNING, encode, signal."""
    move(mem, slot, L.RUNNING)
    mem[slot + L.S_WORKER] = worker
    occupy(mem, worker_at(mem, worker), slot)
    encode(
        mem, worker, slot, int(mem[slot + L.S_COUNTS]), tensors_at(mem, slot), scalars_at(mem, slot)
    )
    send(mem, worker)


@kernel
def occupy(mem, w, slot):
    """Note that a worker has a task."""
    mem[w + L.W_SLOT] = slot
    mem[L.BUSY] += 1
    if mem[w + L.W_COLLECTED] != 0:
        mem[w + L.W_COLLECTED] = 0
        mem[L.UNCOLLECTED] -= 1
    if mem[w + L.W_SKIP] != 0:
        mem[w + L.W_SKIP] = 0


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
def finish(mem, slot, failed):
    """Act on the outcome of a task, or of one member of a group."""
    if mem[slot + L.S_MEMBERS] != 0:
        finish_member(mem, slot, kind_of(mem, slot), failed)
    elif failed:
        fail(mem, slot)
    else:
        complete(mem, slot)


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


# ---------------------------------------------------------------- the pass
@kernel
def scheduler_pass(mem):
    """Run one pass: deaths, wiring, dispatch to either pool, completions.

    Returns  how much moved; 0 means that nothing can until an event comes
    """
    moved = bury(mem)
    slot = pop_wiring(mem)
    while slot != L.NONE:
        wire(mem, slot)
        moved += 1
        slot = pop_wiring(mem)
    moved += dispatch(mem, L.NEXT_LEVEL)
    moved += dispatch(mem, L.SUB)
    set_idle(mem)
    moved += collect(mem)
    return moved


@kernel
def try_lock(mem):
    """Become the Scheduler if nobody else is; never waits.

    Ordering the exchange pairs with the release in `unlock`: the holder sees all the last one wrote
    """
    return load(mem, L.PASS_LOCK) == 0 and compare_exchange(mem, L.PASS_LOCK, 0, 1)


@kernel
def unlock(mem):
    """Stop being the Scheduler."""
    store(mem, L.PASS_LOCK, 0)


@kernel
def two_passes(mem):
    """Run a pass, and a second one for what the first has completed."""
    moved = scheduler_pass(mem)
    if moved != 0:
        moved += scheduler_pass(mem)
    return moved


@kernel
def has_work(mem):
    """Say whether a pass would find something: the look a thread takes before it parks.

    A task that is held back does not count, see `held`.
    """
    if mem[L.WIRING_TAKEN] != load(mem, L.WIRING_PUSHED):
        return True
    if load(mem, L.DEATHS) != mem[L.DEATHS_SEEN] or mem[L.UNCOLLECTED] != 0:
        return True
    for kind in range(2):
        if can_dispatch(mem, kind):
            return True
    if mem[L.BUSY] != 0:
        for worker in range(mem[L.WORKERS]):
            if mem[worker_at(mem, worker) + L.W_SLOT] != L.NONE:
                if mailbox_state(mem, worker) == L.TASK_DONE:
                    return True
    return False


@kernel
def can_dispatch(mem, kind):
    """Say whether a ready task of one type could leave its queue."""
    if mem[L.PINNED + kind] != 0:
        for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
            if may_start_pinned(mem, worker_at(mem, worker), kind):
                return True
    if ready_empty(mem, kind):
        return False
    if load(mem, L.CANCEL) != 0:
        return True
    slot = first_ready(mem, kind)
    if mem[slot + L.S_MEMBERS] != 0:
        return lost_member(mem, slot, kind) != NOBODY or group_fits(mem, slot, kind)
    worker = pick_idle(mem, kind)
    return worker >= 0 or (worker == NOBODY and not any_usable(mem, kind, 1))


@kernel
def held(mem):
    """Say whether a ready task is being held back for a worker that is awake."""
    return mem[L.HELD_SINCE] != 0 or mem[L.HELD_SINCE + 1] != 0


# ---------------------------------------------------------------- the Orch thread's share
@kernel
def orch_pass(mem):
    """Run a pass as the Orch thread and reclaim what was consumed.

    The Scheduler thread goes off duty: it sees that the Orch thread is here.

    Returns  how much moved, or -1 if the Scheduler thread is at it
    """
    mem[L.ORCH_PASSES] += 1
    if not try_lock(mem):
        return -1
    moved = two_passes(mem)
    slot = take_consumed(mem)
    unlock(mem)
    while slot != L.NONE:  # room for whoever waits for it: that counts as a move, too
        after = int(mem[slot + L.S_LINK])
        reclaim(mem, slot)
        slot = after
        moved += 1
    return moved


@kernel
def pass_after_submit(mem):
    """What the Orch thread does for the Scheduler at the end of each submit.

    While it submits it runs the passes; a Scheduler thread on duty is told to stand down. A task
    that is held back while the Orch thread goes away needs somebody with a clock: the Scheduler
    thread is woken once to keep time.
    """
    if orch_pass(mem) < 0:
        fence()  # pairs with the one in `scheduler_loop`: it sees the entry, or this sees it parked
        notify(mem, L.PARK_SCHED)
    if load(mem, L.PARK_SCHED) == L.ON_DUTY:
        store(mem, L.PARK_SCHED, L.OFF_DUTY)
    if held(mem):
        fence()  # pairs with the one in `scheduler_loop`: it sees the task, or this sees it parked
        if load(mem, L.PARK_SCHED) != L.TIMED:
            notify(mem, L.PARK_SCHED)
    watch_groups(mem)


@kernel
def stuck_since(mem):
    """Return since when a group that nobody was told of has waited for its workers, or 0.

    Of two pools the one whose group waits longer comes first, so that neither is passed over.
    """
    first = 0
    for kind in range(2):
        since = int(mem[L.STUCK_SINCE + kind])
        if since > mem[L.STUCK_TOLD] and (first == 0 or since < first):
            first = since
    return first


@kernel
def watch_groups(mem):
    """Have the Scheduler thread keep an eye on a group that waits, once in STUCK_NS at most."""
    if stuck_since(mem) != 0:
        fence()  # pairs with the one in `scheduler_loop`: it sees the group, or this sees it parked
        if load(mem, L.WATCHING) == 0:
            notify(mem, L.PARK_SCHED)


@kernel
def help_scheduler(mem, live, taken, slice_ns):
    """Run passes as the Orch thread, and sleep between them, until a goal is reached.

    Goals: at most `live` tasks alive; or, unless `taken` is negative, anything at all has moved, or a
    task has failed, whoever has seen to that. `taken` is WIRING_TAKEN before the call that found no
    room: should the Scheduler thread have emptied the wiring queue since, there is room already.

    Returns  OK; TIMED_OUT when `slice_ns` are over; INTERRUPTED when a signal came
    """
    start = now_ns()
    quiet_since = 0
    while True:
        moved = orch_pass(mem)
        if mem[L.LIVE] <= live:
            return L.OK
        if taken >= 0 and (moved > 0 or load(mem, L.RUN_ERROR) != 0):
            return L.OK
        if taken >= 0 and load(mem, L.WIRING_TAKEN) != taken:
            return L.OK
        now = now_ns()
        if now - start > slice_ns:
            return L.TIMED_OUT
        if moved > 0:
            quiet_since = 0
            continue
        if quiet_since == 0:
            quiet_since = now
        if held(mem) or now - quiet_since < mem[L.SPIN_NS]:
            if now - quiet_since < mem[L.YIELD_NS]:
                pause()
            else:
                yield_core()
            continue
        watch_groups(mem)
        store(mem, L.PARK_ORCH, L.ON_DUTY)
        fence()
        answer = L.OK
        if not has_work(mem) and mem[L.CONSUMED_HEAD] == L.NONE:
            answer = futex_wait(
                mem, L.PARK_ORCH, L.ON_DUTY, min(int(mem[L.PARK_NS]), slice_ns - (now - start) + 1)
            )
        store(mem, L.PARK_ORCH, 0)
        if answer == INTERRUPTED:
            return L.INTERRUPTED


@kernel
def set_usable(mem, worker, usable):
    """Admit a worker that said INIT_DONE to its pool, or clear a dead one's words for its successor.

    Between runs, as the Scheduler: the lock is free but for the moment of an empty pass.
    """
    become_scheduler(mem)
    w = worker_at(mem, worker)
    if not usable:
        empty_mailbox(mem, worker)
    elif load(mem, w + L.W_DEATH) == 0:  # who died since has been buried already
        mem[w + L.W_USABLE] = L.ALIVE
    unlock(mem)


@kernel
def become_scheduler(mem):
    """Take the pass lock, for the few words that a thread other than those two has to write."""
    while not try_lock(mem):
        yield_core()


@kernel
def forget_configs(mem):
    """Between runs: no mailbox holds a configuration that could be told by its index any more."""
    become_scheduler(mem)
    for worker in range(mem[L.WORKERS]):
        mem[worker_at(mem, worker) + L.W_LAST_CONFIG] = 0
    unlock(mem)


# ---------------------------------------------------------------- claims on mailboxes
@kernel
def claim_mailbox(mem, worker, timeout_ns):
    """Get a worker's mailbox for a control request, when its task, if it has one, is done.

    One thread at a time claims a worker. Nothing is dispatched to it from the call on.

    Returns  OK; ILLEGAL when it is dead, TIMED_OUT, or INTERRUPTED by a signal: without a claim then
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
        if mem[w + L.W_SLOT] == L.NONE:
            grant_claim(mem, w)
    unlock(mem)
    if not alive:
        return L.ILLEGAL
    answer = L.OK
    while load(mem, w + L.W_CLAIM) == L.CLAIM_WAITS and answer == L.OK:
        rest = until - now_ns()
        if rest <= 0:
            answer = L.TIMED_OUT
        elif futex_wait(mem, w + L.W_CLAIM, L.CLAIM_WAITS, rest) == INTERRUPTED:
            answer = L.INTERRUPTED
    if answer == L.OK and load(mem, w + L.W_DEATH) != 0:
        answer = L.ILLEGAL
    if answer != L.OK:
        release_mailbox(mem, worker)
    return answer


@kernel
def release_mailbox(mem, worker):
    """Give a claim back: the worker can have tasks again.

    What the mailbox held of a task is overwritten, so the next frame brings all of it again.
    """
    w = worker_at(mem, worker)
    become_scheduler(mem)
    store(mem, w + L.W_CLAIM, 0)
    mem[w + L.W_LAST_CALLABLE] = 0
    mem[w + L.W_LAST_CONFIG] = 0
    mem[w + L.W_MAILBOX + L.MAIL_COMMAND] = 0
    if mem[w + L.W_USABLE] & L.CLAIMED != 0:
        mem[w + L.W_USABLE] &= L.ALIVE
        if mem[w + L.W_SLOT] == L.NONE and load(mem, w + L.W_DEATH) == 0:
            make_idle(mem, w)
    unlock(mem)
    fence()  # pairs with those before parking: a ready task can be placed now
    notify(mem, L.PARK_ORCH)
    notify(mem, L.PARK_SCHED)


@kernel
def abandon_mailbox(mem, worker):
    """Take a worker that does not answer a request out of its pool, with the request in its mailbox.

    Effects  what needs this worker fails instead of waiting for it
    """
    w = worker_at(mem, worker)
    become_scheduler(mem)
    store(mem, w + L.W_CLAIM, 0)
    mem[w + L.W_USABLE] = 0
    unlock(mem)
    fence()  # pairs with those before parking: a ready task can be failed now
    notify(mem, L.PARK_ORCH)
    notify(mem, L.PARK_SCHED)


@kernel
def begin_run(mem):
    """Forget the last run's error and counts."""
    store(mem, L.CANCEL, 0)
    store(mem, L.RUN_ERROR, 0)
    mem[L.EDGE_COUNT] = 0
    mem[L.COMPLETED_COUNT] = 0
    mem[L.FAILED_COUNT] = 0
    for ring in range(mem[L.RINGS]):
        mem[L.RING_BLOCK + ring * L.LINE + L.R_PEAK] = 0


@kernel
def end_run(mem):
    """Everything is reclaimed: ids start at 0 again, every structure is as small as at first."""
    reset_to_empty(mem)
    reset_map(mem)


# ---------------------------------------------------------------- the Scheduler thread
@kernel
def scheduler_loop(mem, timer_ns):
    """Be the Scheduler thread until STOPPING is set. It never spins and never polls.

    Returns  OK at the end; STUCK when a group has waited for its workers for STUCK_NS: somebody
             should say so, and call again

    On duty it is woken by every completion. It is off duty while the Orch thread runs passes, that
    is, unless the Orch thread ran none while this one slept for `timer_ns` in all: time spent awake
    does not count, since it may be what keeps the Orch thread from running. While a task is held
    back it sleeps `timer_ns` at most.
    """
    seen = -1
    slept = 0
    while load(mem, L.STOPPING) == 0:
        moved = 0
        if try_lock(mem):
            moved = two_passes(mem)
            unlock(mem)
        if moved > 0:
            fence()  # pairs with the one in `help_scheduler`: it sees the moves, or this sees it parked
            notify(mem, L.PARK_ORCH)
            continue
        if mem[L.ORCH_PASSES] != seen:
            seen = int(mem[L.ORCH_PASSES])
            slept = 0
        duty = L.ON_DUTY if slept > timer_ns else L.OFF_DUTY
        timeout = -1
        since = stuck_since(mem)
        if since != 0:
            timeout = max(0, since + int(mem[L.STUCK_NS]) - now_ns())
            if timeout == 0:
                mem[L.STUCK_TOLD] = since
                return L.STUCK
        if held(mem):
            duty = L.TIMED
            timeout = timer_ns
        store(mem, L.WATCHING, since != 0)
        store(mem, L.PARK_SCHED, duty)
        fence()
        quiet = not has_work(mem) and held(mem) == (duty == L.TIMED)
        quiet = quiet and (since != 0 or stuck_since(mem) == 0)
        if quiet and load(mem, L.STOPPING) == 0:
            slept -= now_ns()
            futex_wait(mem, L.PARK_SCHED, duty, timeout)
            slept += now_ns()
        store(mem, L.PARK_SCHED, 0)
        store(mem, L.WATCHING, 0)
    return L.OK
