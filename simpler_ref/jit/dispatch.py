"""Ready tasks go to idle workers: one by one, to a worker of their own choice, or as a group.

A ready task goes to an idle worker that is awake, if there is one: waking another process costs
about as much as many small tasks. If all idle workers sleep and others are at work, the task is held for
HOLD_NS, then one is woken.

A worker at work may be given more tasks, up to DEPTH, when no worker is idle; also when those that are
idle sleep, if the last task that was held did not have to wait for long (QUICK): tasks are short then.

A group runs on several workers at once. It is placed when each member can have a worker of its own, all
or nothing; until then it keeps its place, and nothing of its pool that became ready later starts.
"""

from __future__ import annotations

from . import layout as L
from .atomics import load, now_ns
from .graph import fail, record_error
from .kernel import inlined, kernel
from .mailbox import awaited, encode, frame_after, publish, worker_at
from .queues import drop_first_ready, first_ready, pop_pinned, ready_empty
from .slots import DISPATCH, step
from .submit import members_at, scalars_at, tensors_at

ANYBODY = -3
"""Every worker of the pool that could run it."""

NOBODY = -1
"""No idle worker."""

HOLD = -2
"""Idle workers sleep; the task waits a moment for one that is awake."""


@kernel
def dispatch(mem, kind):
    """Give ready tasks of one type to idle workers until one of the two runs out.

    A cancelled run fails them instead, and so does a pool whose workers have died.

    Effects  READY → RUNNING, mailboxes; or READY → FAILED
    Returns  how many tasks left the queues
    Rule     SCHED-CANCEL-1; SCHED-DISPATCH-3
    """
    moved = dispatch_pinned(mem, kind)
    moved += dispatch_ready(mem, kind)
    if mem[L.PINNED + kind] != 0:  # what was older than they are may be gone now
        moved += dispatch_pinned(mem, kind)
    return moved


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
    worker = pick_worker(mem, kind)
    return worker >= 0 or (worker == NOBODY and not any_usable(mem, kind, 1))


@kernel
def is_idle(mem, w):
    """Say whether a worker can be given any task: alive, without one, and not claimed."""
    return mem[w + L.W_GIVEN] == 0 and mem[w + L.W_USABLE] == L.ALIVE


@kernel
def has_room(mem, w):
    """Say whether a worker can be given one more task: alive, not claimed, a frame left.

    Rule     SPEED-DEPTH-1
    """
    return mem[w + L.W_GIVEN] < mem[L.DEPTH] and mem[w + L.W_USABLE] == L.ALIVE


@kernel
def any_usable(mem, kind, members):
    """Say whether a pool has so many live workers.

    Rule     SCHED-DEATH-2
    """
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        members -= mem[worker_at(mem, worker) + L.W_USABLE] != 0
    return members <= 0


@inlined
def pick_worker(mem, kind):
    """Choose the worker for a single task at the head of a ready queue, without changing anything.

    Returns  an idle worker that is awake; else the one at work with the fewest tasks, if it may have
             another; else one that sleeps if no task runs or the head has been held long enough; else
             NOBODY or HOLD
    Rule     WM-POOL-3; WM-AFF-2; SPEED-DEPTH-1, -3
    """
    asleep, busy = NOBODY, NOBODY
    fewest = int(mem[L.DEPTH])
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        if has_room(mem, w):
            given = int(mem[w + L.W_GIVEN])
            if given == 0:
                if load(mem, w + L.W_PARKED) == 0:
                    return worker
                if asleep == NOBODY:
                    asleep = worker
            elif given < fewest:
                busy = worker
                fewest = given
    if asleep == NOBODY:
        return busy
    if mem[L.BUSY] == 0:
        return asleep
    if busy != NOBODY and mem[L.QUICK + kind] != 0:
        return busy
    since = int(mem[L.HELD_SINCE + kind])
    if since == 0 or now_ns() - since < mem[L.HOLD_NS]:
        return HOLD
    return asleep


# ---------------------------------------------------------------- tasks for any worker of the pool
@inlined
def dispatch_ready(mem, kind):
    """Give away the tasks that any worker of the pool may run, in the order they became ready.

    The first that cannot be placed stops it: a group that waits for its workers keeps its place.

    Returns  how many tasks left the queue
    Rule     SCHED-DISPATCH-4; SCHED-READY-3; WM-PLACE-1, -3
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
            worker = pick_worker(mem, kind)
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
                if mem[L.HELD_SINCE + kind] != 0:
                    mem[L.HELD_SINCE + kind] = 0
                    mem[L.QUICK + kind] = load(mem, worker_at(mem, worker) + L.W_PARKED) == 0
                assign(mem, slot, worker)
        moved += 1
    mem[L.HELD_SINCE + kind] = 0
    if ready_empty(mem, kind):
        mem[L.STUCK_SINCE + kind] = 0
    return moved


@kernel
def lose(mem, slot, worker):
    """Fail a ready task because the worker it needs, or ANYBODY it could use, has died.

    Rule     SCHED-DEATH-2; WM-PLACE-5; WM-AFF-5
    """
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

    Rule     WM-AFF-4
    """
    slot = int(mem[w + L.W_PINNED_HEAD])
    if slot == L.NONE:
        return False
    if load(mem, L.CANCEL) != 0 or mem[w + L.W_USABLE] == 0:
        return True
    if not has_room(mem, w):
        return False
    return ready_empty(mem, kind) or mem[slot + L.S_ORDER] < mem[first_ready(mem, kind) + L.S_ORDER]


@kernel
def dispatch_pinned(mem, kind):
    """Give idle workers the tasks that want them and no other.

    Returns  how many tasks left the chains
    Rule     WM-AFF-1, -3
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

    Rule     WM-PLACE-5
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
    """Say whether each member of a group can have a worker of its own now. Changes nothing.

    Rule     WM-PLACE-1
    """
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
    """Choose a worker of its own for each member of a group that fits: W_MEMBER names the member.

    Rule     WM-PLACE-2; SPEED-DEPTH-4
    """
    first = members_at(mem, slot)
    for m in range(mem[slot + L.S_MEMBERS]):
        worker = int(mem[first + m * L.MEMBER_WORDS + L.MEMBER_WORKER]) - 1
        if worker >= 0:
            reserve_worker(mem, worker, m)
    for m in range(mem[slot + L.S_MEMBERS]):
        if mem[first + m * L.MEMBER_WORDS + L.MEMBER_WORKER] == 0:
            reserve_worker(mem, pick_unreserved(mem, kind), m)


@kernel
def reserve_worker(mem, worker, m):
    """Keep an idle worker for a member of a group: the frame it waits for names the member."""
    w = worker_at(mem, worker)
    mem[w + int(mem[w + L.W_TAIL]) + L.W_MEMBER] = m + 1


@kernel
def pick_unreserved(mem, kind):
    """Return an idle worker that no member has yet, one that is awake if there is one, or NOBODY."""
    found = NOBODY
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        if is_idle(mem, w) and mem[w + int(mem[w + L.W_TAIL]) + L.W_MEMBER] == 0:
            if load(mem, w + L.W_PARKED) == 0:
                return worker
            if found == NOBODY:
                found = worker
    return found


@kernel
def assign_group(mem, slot, kind):
    """Hand every member to the worker reserved for it: READY → RUNNING once, encode, signal.

    Rule     WM-PLACE-1
    """
    members = int(mem[slot + L.S_MEMBERS])
    step(mem, slot, DISPATCH)
    mem[slot + L.S_LEFT] = members
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        frame = w + int(mem[w + L.W_TAIL])
        if mem[w + L.W_GIVEN] == 0 and mem[frame + L.W_MEMBER] != 0:
            mem[slot + L.S_WORKER] = worker
            encode_member(mem, frame, slot, int(mem[frame + L.W_MEMBER]) - 1)
            send(mem, w, slot)


@kernel
def encode_member(mem, frame, slot, m):
    """Write the frame of one member of a group.

    Rule     WM-GROUP-2
    """
    tensors = tensors_at(mem, slot)
    scalars = scalars_at(mem, slot)
    member = members_at(mem, slot)
    for _ in range(m):
        counts = int(mem[member + L.MEMBER_COUNTS])
        tensors += (counts & 0xFFFFFFFF) * L.TENSOR_WORDS
        scalars += counts >> 32
        member += L.MEMBER_WORDS
    encode(mem, frame, slot, int(mem[member + L.MEMBER_COUNTS]), tensors, scalars)


# ---------------------------------------------------------------- to the worker
@inlined
def assign(mem, slot, worker):
    """Hand a task to a worker that has room: READY → RUNNING, encode, signal.

    Rule     SCHED-DISPATCH-1, -2
    """
    step(mem, slot, DISPATCH)
    mem[slot + L.S_WORKER] = worker
    w = worker_at(mem, worker)
    frame = w + int(mem[w + L.W_TAIL])
    counts = int(mem[slot + L.S_COUNTS])
    encode(mem, frame, slot, counts, tensors_at(mem, slot), scalars_at(mem, slot))
    send(mem, w, slot)


@inlined
def send(mem, w, slot):
    """Note that a worker has a task, which stands in the frame it fills next, and publish that frame."""
    frame = int(mem[w + L.W_TAIL])
    mem[w + frame + L.W_SLOT] = slot
    if mem[w + frame + L.W_SKIP] != 0:
        mem[w + frame + L.W_SKIP] = 0
    if mem[w + L.W_GIVEN] == 0:
        mem[L.BUSY] += 1
        if mem[w + L.W_COLLECTED] != 0:
            mem[w + L.W_COLLECTED] = 0
            mem[L.UNCOLLECTED] -= 1
    mem[w + L.W_GIVEN] += 1
    state_word = awaited(mem, w)
    mem[w + L.W_TAIL] = frame_after(mem, frame)
    publish(mem, w, state_word, L.TASK_READY)
