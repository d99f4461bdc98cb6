"""Dispatch: ready tasks go to idle workers, with or without an affinity, singly or as a group.

A ready task goes to an idle worker that is awake, if there is one: waking another process costs about as
much as many small tasks. If all idle workers sleep and others are busy, the task is deferred for
DEFER_NS; then one is woken.

A busy worker is given more tasks, up to DEPTH, only when no worker is idle: otherwise a task could wait
behind a long one beside a worker that sleeps.

A group starts when each member can have a worker of its own. Until then it stays at the head of the
queue, and no task of its pool that became ready later starts.

When nothing is ready and frames are left, tasks are pre-dispatched, see `dispatch_candidates`.

Rule     CALL-FAIL-4, SCHED-CANCEL-1, SCHED-DEATH-2, SCHED-DISPATCH-1, SCHED-DISPATCH-2,
         SCHED-DISPATCH-3, SCHED-DISPATCH-4, SCHED-READY-3, SCHED-WAKE-7, SPEED-AHEAD-1, SPEED-DEPTH-1,
         SPEED-DEPTH-2, WM-AFF-1, WM-AFF-3, WM-AFF-4, WM-AFF-5, WM-GROUP-2, WM-PLACE-1, WM-PLACE-2,
         WM-PLACE-3, WM-PLACE-4, WM-PLACE-5, WM-POOL-3
"""

from __future__ import annotations

from . import layout as L
from . import queues
from .atomics import fence, load, now_ns, store, unlikely
from .cores import wake_elsewhere
from .graph import cancel_ready, fail, record_error
from .journal import note, number_of
from .mailbox import awaited, encode, frame_after, worker_at
from .slots import DISPATCH, affinity_of, step
from .submit import edges_at, members_at, scalars_at, tensors_at
from .tensors import member_affinity
from .waiting import notify

ANY_WORKER = -3
"""All workers of the pool that could run the task."""

NO_WORKER = -1
"""No idle worker."""

DEFER = -2
"""Idle workers sleep; the task is deferred for one that is awake."""


def dispatch(mem, kind):
    """Give ready tasks of one type to idle workers until one of the two runs out; return how many left.

    A cancelled run fails them instead, and so does a pool whose workers have died.
    """
    moved = dispatch_affinity(mem, kind)
    moved += dispatch_ready(mem, kind)
    if mem[L.AFFINITY + kind] != 0:  # older tasks that held them back may be gone
        moved += dispatch_affinity(mem, kind)
    if queues.has_candidate(mem, kind):
        moved += dispatch_candidates(mem, kind)
    if moved > 0:
        wake_sleepers(mem, kind)
    return moved


def wake_sleepers(mem, kind):
    """Wake those workers of a pool that sleep and were sent a task.

    Ordering the fence separates the states that `send` wrote from the loads of W_PARKED and W_LOOKOUT,
             see the docstring of the mailbox module
    """
    fence()
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        if mem[w + L.W_UNTOLD] != 0:
            mem[w + L.W_UNTOLD] = 0
            if load(mem, w + L.W_PARKED) != 0:
                wake_elsewhere(mem, w)
            notify(mem, w + L.W_LOOKOUT)


def is_idle(mem, w):
    return mem[w + L.W_GIVEN] == 0 and mem[w + L.W_USABLE] == L.ALIVE


def has_room(mem, w):
    """Say whether a worker can take one more task: it is alive, not claimed, and has a frame left."""
    return mem[w + L.W_GIVEN] < mem[L.DEPTH] and mem[w + L.W_USABLE] == L.ALIVE


def any_usable(mem, kind):
    """Say whether a live worker of a pool takes tasks that name none."""
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_OPEN + kind]):
        if mem[worker_at(mem, worker) + L.W_USABLE] != 0:
            return True
    return False


def pick_worker(mem, kind):
    """Choose the worker for a single task at the head of a ready queue, without changing anything.

    Returns  an idle worker that is awake; else, if none is idle, the busy one with the fewest tasks, if
             it has a frame left; else one that sleeps, if no task runs or the head has been deferred
             for DEFER_NS; else NO_WORKER or DEFER
    """
    asleep, busy = NO_WORKER, NO_WORKER
    fewest = int(mem[L.DEPTH])
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_OPEN + kind]):
        w = worker_at(mem, worker)
        if has_room(mem, w):
            given = int(mem[w + L.W_GIVEN])
            if given == 0:
                if load(mem, w + L.W_PARKED) == 0:
                    return worker
                if asleep == NO_WORKER:
                    asleep = worker
            elif given < fewest:
                busy = worker
                fewest = given
    if asleep == NO_WORKER:
        return busy
    since = mem[L.DEFERRED_SINCE + kind]
    is_over = mem[L.DEFER_NS] == 0 or (since != 0 and now_ns() - since >= mem[L.DEFER_NS])
    return asleep if mem[L.BUSY] == 0 or is_over else DEFER


def get_successors(mem):
    """Say whether dead workers get successors while tasks wait: those of a stream do."""
    return mem[L.STREAM] == L.CALLS


# ---------------------------------------------------------------- tasks for any worker of the pool
def dispatch_ready(mem, kind):
    """Dispatch the tasks that any worker of the pool may run, in the order they became ready.

    It stops at the first that cannot start: a group that waits for its workers stays at the head.
    """
    moved = 0
    while queues.first_ready(mem, kind) != L.NONE:
        slot = queues.first_ready(mem, kind)
        members = int(mem[slot + L.S_MEMBERS])
        if load(mem, L.CANCEL) != 0:
            queues.pop_ready(mem, kind)
            cancel_ready(mem, slot)
        elif members != 0:
            answer = look_for_workers(mem, slot, kind)
            if answer == DEFER:
                if mem[L.STUCK_SINCE + kind] == 0:
                    mem[L.STUCK_SINCE + kind] = now_ns()
                break
            queues.pop_ready(mem, kind)
            mem[L.STUCK_SINCE + kind] = 0
            if answer == NO_WORKER:
                start_group(mem, slot, kind)
            else:
                lose(mem, slot, answer)
        else:
            worker = pick_worker(mem, kind)
            if worker == DEFER:
                if mem[L.DEFERRED_SINCE + kind] == 0:
                    mem[L.DEFERRED_SINCE + kind] = now_ns()
                return moved
            if worker == NO_WORKER:
                if any_usable(mem, kind) or get_successors(mem):
                    break
                queues.pop_ready(mem, kind)
                lose(mem, slot, ANY_WORKER)
            else:
                queues.pop_ready(mem, kind)
                mem[L.DEFERRED_SINCE + kind] = 0
                assign(mem, slot, worker)
        moved += 1
    mem[L.DEFERRED_SINCE + kind] = 0
    if queues.first_ready(mem, kind) == L.NONE:
        mem[L.STUCK_SINCE + kind] = 0
    return moved


def lose(mem, slot, worker):
    """Fail a ready task because the worker it needs has died, or all it could use (ANY_WORKER).

    A call never had that worker: it fails because none takes its place.
    """
    detail = 0
    if mem[L.STREAM] != 0:
        worker = ANY_WORKER
    if worker >= 0:
        detail = int(load(mem, worker_at(mem, worker) + L.W_DEATH))
    record_error(mem, L.ENDPOINT_FAILURE, slot, max(worker, -1), detail)
    fail(mem, slot)


# ---------------------------------------------------------------- tasks with an affinity
def may_start_affinity(mem, w, kind):
    """Say whether the first task of a worker's affinity chain can leave it.

    Tasks for any worker that became ready earlier go first, a waiting group included (D19).
    """
    slot = int(mem[w + L.W_AFFINITY])
    if slot == L.NONE:
        return False
    if load(mem, L.CANCEL) != 0 or (mem[w + L.W_USABLE] == 0 and not get_successors(mem)):
        return True
    if not has_room(mem, w):
        return False
    other = queues.first_ready(mem, kind)
    return other == L.NONE or mem[slot + L.S_ORDER] < mem[other + L.S_ORDER]


def dispatch_affinity(mem, kind):
    moved = 0
    if mem[L.AFFINITY + kind] == 0:
        return moved
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        while may_start_affinity(mem, w, kind):
            slot = queues.pop_affinity(mem, w, kind)
            if load(mem, L.CANCEL) != 0:
                cancel_ready(mem, slot)
            elif mem[w + L.W_USABLE] == 0:
                lose(mem, slot, worker)
            else:
                assign(mem, slot, worker)
            moved += 1
    return moved


# ---------------------------------------------------------------- groups
def look_for_workers(mem, slot, kind):
    """Say whether each member of a group can have a worker of its own.

    Returns  NO_WORKER if each can now; DEFER if the group has to wait; or the dead worker that it needs,
             ANY_WORKER if too few are left
    """
    members = open_members = int(mem[slot + L.S_MEMBERS])
    member, fits = members_at(mem, slot), True
    for _ in range(members):
        worker = member_affinity(mem, member)
        if worker >= 0:
            if mem[worker_at(mem, worker) + L.W_USABLE] == 0:
                return worker
            fits = fits and is_idle(mem, worker_at(mem, worker))
        open_members -= worker >= mem[L.POOL_OPEN + kind]
        member += L.MEMBER_WORDS
    usable, idle = 0, 0
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_OPEN + kind]):
        usable += mem[worker_at(mem, worker) + L.W_USABLE] != 0
        idle += is_idle(mem, worker_at(mem, worker))
    if usable < open_members:
        return ANY_WORKER
    return NO_WORKER if fits and idle >= open_members else DEFER


def start_group(mem, slot, kind):
    """Send each member of a group that fits to a worker of its own: READY → RUNNING once.

    Members with an affinity come first: no other takes their workers.
    """
    members, first = int(mem[slot + L.S_MEMBERS]), members_at(mem, slot)
    step(mem, slot, DISPATCH)
    mem[slot + L.S_LEFT] = members
    for m in range(members):
        worker = member_affinity(mem, first + m * L.MEMBER_WORDS)
        if worker >= 0:
            send_member(mem, slot, worker, m)
    for m in range(members):
        if member_affinity(mem, first + m * L.MEMBER_WORDS) < 0:
            send_member(mem, slot, pick_idle(mem, kind), m)


def pick_idle(mem, kind):
    """Return an idle worker, awake if possible; else NO_WORKER."""
    found = NO_WORKER
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_OPEN + kind]):
        w = worker_at(mem, worker)
        if is_idle(mem, w):
            if load(mem, w + L.W_PARKED) == 0:
                return worker
            if found == NO_WORKER:
                found = worker
    return found


def send_member(mem, slot, worker, m):
    """Write the frame of a member of a group, and send it; note in the member's words to whom."""
    w = worker_at(mem, worker)
    frame = w + int(mem[w + L.W_TAIL])
    mem[slot + L.S_WORKER] = worker
    mem[frame + L.W_MEMBER] = m + 1
    tensors = tensors_at(mem, slot)
    scalars = scalars_at(mem, slot)
    member = members_at(mem, slot)
    for _ in range(m):
        counts = int(mem[member + L.MEMBER_COUNTS])
        tensors += (counts & L.LOW_HALF) * L.TENSOR_WORDS
        scalars += (counts >> L.HALF) * L.SCALAR_WORDS
        member += L.MEMBER_WORDS
    affinity = int(mem[member + L.MEMBER_WORKER]) & L.LOW_HALF
    mem[member + L.MEMBER_WORKER] = worker + 1 << L.HALF | affinity
    encode(mem, frame, slot, int(mem[member + L.MEMBER_COUNTS]), tensors, scalars)
    send(mem, w, slot, 0)


# ---------------------------------------------------------------- pre-dispatch
def dispatch_candidates(mem, kind):
    """Pre-dispatch tasks that are not ready yet, but wait only for tasks in frames; return how many.

    The frame lists the ends that the task waits for; its worker starts it when it has seen them. No pass
    is needed in between, and the worker finds its next task waiting. The task stays PENDING until its
    end is collected, with one more fan-in until then.

    Producers are sent before their consumers, and each worker serves its frames in order, so two workers
    never wait for each other. A worker that has waited for too long returns the task, which pauses
    pre-dispatch. Ready tasks go first.
    """
    moved = 0
    paused = mem[L.READY_ORDER] < mem[L.PREDISPATCH_AFTER] or load(mem, L.RUN_ERROR) != 0
    while queues.has_candidate(mem, kind):
        if queues.has_ready(mem, kind) or load(mem, L.CANCEL) != 0:
            return moved
        slot = queues.first_candidate(mem, kind)
        if not paused and may_predispatch(mem, slot):
            worker = pick_for_candidate(mem, slot, kind)
            if worker != NO_WORKER:
                predispatch(mem, slot, worker)
                moved += 1
            elif affinity_of(mem, slot) < 0:
                return moved
        mem[L.CANDIDATES_HEAD + kind] += 1
    return moved


def may_predispatch(mem, slot):
    """Say whether a candidate can still be pre-dispatched: it may have changed since it was noted."""
    if (
        mem[slot + L.S_STATE] != L.PENDING
        or mem[slot + L.S_FANIN] == 0
        or mem[slot + L.S_MEMBERS] != 0
    ):
        return False
    if mem[slot + L.S_FRAME] != 0 or mem[slot + L.S_UNSENT] != 0:
        return False
    waits = 0
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & L.LOW_HALF):
        if has_failed(mem, edge):
            return False
        if is_awaited(mem, edge):
            waits += 1
        edge += L.EDGE_WORDS
    return waits <= L.MOST_WAITS


def has_failed(mem, edge):
    """Say whether the producer of an edge has failed: its consumer will fail with it, and must not start.

    It may be in a frame still, whose worker has yet to answer that it skips it.
    """
    consumer = int(mem[edge + L.EDGE_CONSUMER])
    if consumer == L.NONE or consumer & L.ORDER_ONLY != 0:
        return False
    return mem[int(mem[edge + L.EDGE_PRODUCER]) + L.S_STATE] == L.FAILED


def is_awaited(mem, edge):
    """Say whether an edge's consumer waits for a producer that is not done."""
    if mem[edge + L.EDGE_CONSUMER] == L.NONE:
        return False
    state = int(mem[int(mem[edge + L.EDGE_PRODUCER]) + L.S_STATE])
    return state == L.PENDING or state == L.RUNNING


def pick_for_candidate(mem, slot, kind):
    """Choose the worker that could start a task first, if all tasks took the same time.

    It starts after the tasks that the worker has, and after all that it waits for. Among equals the
    worker of the last of these is chosen: its end is in that worker's own memory.

    Returns  a worker with a frame left; NO_WORKER also if one that sleeps could start it first: it is
             woken when the task is ready
    """
    latest, last = 0, NO_WORKER
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & L.LOW_HALF):
        if is_awaited(mem, edge):
            producer = int(mem[edge + L.EDGE_PRODUCER])
            turn = turn_of(mem, producer)
            if turn >= latest:
                latest = turn
                last = int(mem[producer + L.S_WORKER])
        edge += L.EDGE_WORDS
    wanted = affinity_of(mem, slot)
    best, found, is_one_asleep = int(mem[L.DEPTH]), NO_WORKER, False
    for worker in range(mem[L.POOL_FIRST + kind], mem[L.POOL_END + kind]):
        w = worker_at(mem, worker)
        given = int(mem[w + L.W_GIVEN])
        if not has_room(mem, w) or (wanted >= 0 and worker != wanted):
            continue
        if wanted < 0 and worker >= mem[L.POOL_OPEN + kind]:
            break
        start = max(given, latest)
        if given == 0 and load(mem, w + L.W_PARKED) != 0:
            is_one_asleep = True
        elif found == NO_WORKER or start < best or (start == best and worker == last):
            best, found = start, worker
    return NO_WORKER if is_one_asleep and latest < best else found


def turn_of(mem, slot):
    """Return how many tasks the worker will have done when it has done this one, which is in a frame."""
    w = worker_at(mem, int(mem[slot + L.S_WORKER]))
    distance = int(mem[slot + L.S_FRAME]) - w - int(mem[w + L.W_HEAD])
    if distance < 0:
        distance += int(mem[L.WORKER_STRIDE])
    return distance // L.WORKER_WORDS + 1


def predispatch(mem, slot, worker):
    w = worker_at(mem, worker)
    frame = w + int(mem[w + L.W_TAIL])
    at = frame + L.W_WAIT_FOR
    edge = edges_at(mem, slot)
    for _ in range(mem[slot + L.S_EDGES] & L.LOW_HALF):
        if is_awaited(mem, edge):
            other = int(mem[int(mem[edge + L.EDGE_PRODUCER]) + L.S_FRAME])
            mem[at] = other + L.W_ENDED
            mem[at + 1] = mem[other + L.W_FILLED]
            at += 2
        edge += L.EDGE_WORDS
    mem[slot + L.S_FANIN] += 1
    mem[L.DEALT] += 1
    waits = (at - frame - L.W_WAIT_FOR) // 2
    if unlikely(mem[L.TRACING] == L.TRACE_ALL):
        what = L.NOTED_AHEAD | worker << 8
        note(mem, L.JOURNAL_OF_SCHEDULER, what, number_of(mem, slot), now_ns(), waits)
    encode_and_send(mem, slot, worker, waits)


# ---------------------------------------------------------------- to the worker
def assign(mem, slot, worker):
    """Send a task to a worker that has room: READY → RUNNING, encode, signal."""
    mem[slot + L.S_WORKER] = worker
    step(mem, slot, DISPATCH)
    encode_and_send(mem, slot, worker, 0)


def encode_and_send(mem, slot, worker, waits):
    """Write a task into its worker's next free frame, and send it; the frame lists its `waits` already.

    Consumers that wait only for tasks in frames become candidates.
    """
    w = worker_at(mem, worker)
    frame = w + int(mem[w + L.W_TAIL])
    mem[slot + L.S_WORKER] = worker
    mem[slot + L.S_FRAME] = frame
    counts = int(mem[slot + L.S_COUNTS])
    encode(mem, frame, slot, counts, tensors_at(mem, slot), scalars_at(mem, slot))
    send(mem, w, slot, waits)
    if mem[L.DEPTH] > 1:
        edge = int(mem[slot + L.S_CONSUMERS])
        while edge != L.NONE:
            consumer = int(mem[edge + L.EDGE_CONSUMER])
            if consumer <= L.CONSUMER_MASK:
                mem[consumer + L.S_UNSENT] -= 1
                if mem[consumer + L.S_UNSENT] == 0:
                    queues.push_candidate(mem, consumer)
            edge = int(mem[edge + L.EDGE_NEXT])


def send(mem, w, slot, waits):
    """Note that a worker has a task, which is in its next free frame, and signal the worker.

    W_UNTOLD has `wake_sleepers` wake it if it sleeps.

    Ordering the release of the state pairs with the load in `receive`
    """
    at = int(mem[w + L.W_TAIL])
    frame = w + at
    mem[frame + L.W_SLOT] = slot
    store(mem, frame + L.W_FILLED, mem[frame + L.W_FILLED] + 1)
    if mem[frame + L.W_WAITS] != waits:
        mem[frame + L.W_WAITS] = waits
    if mem[frame + L.W_SKIP] != 0:
        mem[frame + L.W_SKIP] = 0
    if mem[w + L.W_GIVEN] == 0:
        mem[L.BUSY] += 1
        if mem[w + L.W_COLLECTED] != 0:
            mem[w + L.W_COLLECTED] = 0
            mem[L.UNCOLLECTED] -= 1
    mem[w + L.W_GIVEN] += 1
    state_word = awaited(mem, w)
    mem[w + L.W_TAIL] = frame_after(mem, at)
    mem[w + L.W_UNTOLD] = 1
    state = L.TASK_READY
    if unlikely(mem[L.TRACING] != 0):
        state |= (number_of(mem, slot) & L.NUMBER_MASK) << L.HALF
    store(mem, state_word, state)
