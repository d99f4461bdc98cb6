"""Ready tasks go to idle workers: one by one, to a worker of their own choice, or as a group.

A ready task goes to an idle worker that is awake, if there is one: waking another process costs
about as much as many small tasks. If all idle workers sleep and others are at work, the task is
held for HOLD_NS, then one is woken.

A group runs on several workers at once. It is placed when each member can have a worker of its own, all
or nothing; until then it keeps its place, and nothing of its pool that became ready later starts.
"""

from __future__ import annotations

from . import layout as L
from .atomics import load, now_ns
from .graph import fail, record_error
from .kernel import kernel
from .mailbox import encode, send, worker_at
from .queues import drop_first_ready, first_ready, pop_pinned, ready_empty
from .slots import move
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
    worker = pick_idle(mem, kind)
    return worker >= 0 or (worker == NOBODY and not any_usable(mem, kind, 1))


@kernel
def is_idle(mem, w):
    """Say whether a worker can be given a task: alive, without one, and not claimed."""
    return mem[w + L.W_SLOT] == L.NONE and mem[w + L.W_USABLE] == L.ALIVE


@kernel
def any_usable(mem, kind, members):
    """Say whether a pool has so many live workers."""
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        members -= mem[worker_at(mem, worker) + L.W_USABLE] != 0
    return members <= 0


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


# ---------------------------------------------------------------- tasks for any worker of the pool
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


# ---------------------------------------------------------------- to the worker
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
