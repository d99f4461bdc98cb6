"""The worker's side of its mailbox: wait for a task or a request, run it, answer.

A worker spins for SPIN_NS, then announces that it sleeps and looks once more, as described in the mailbox
module. After an answer it wakes the thread that sleeps until then.

Rule     CALL-COMPILED-1, REMOTE-AHEAD-1, REMOTE-AHEAD-2, REMOTE-AHEAD-7, SCHED-COMPLETE-5, SCHED-MAIL-2,
         SCHED-MAIL-3, SCHED-MAIL-4, SCHED-MAIL-8, SCHED-MAIL-9, SCHED-WAKE-1, SCHED-WAKE-5, SCHED-WAKE-7,
         SEE-NOTE-2, SEE-TOP-1, SPEED-AHEAD-1, SPEED-DEPTH-1, SPEED-DEPTH-2, SPEED-DEPTH-6, SPEED-LEAF-1,
         SPEED-WAIT-2, WM-DONE-3, WM-LOOP-1
"""

from __future__ import annotations

from . import fail_points
from . import layout as L
from .atomics import (
    address_of,
    coarse_ns,
    exchange,
    futex_wake,
    load,
    load_sc,
    now_ns,
    pause,
    run_leaf,
    store,
    unlikely,
)
from .cores import offer_core, stay_apart
from .fail_points import fail_point
from .journal import journal_of_worker, note_ran, note_request, note_span
from .mailbox import (
    STATE_MASK,
    copy_words,
    decode,
    frame_after,
    frame_before,
    served,
    worker_at,
)
from .waiting import be_awake, commit, notify_as_worker, prepare


def announce_done(mem, w):
    """Wake the thread that has to collect a completion of this worker.

    A Scheduler thread on standby sleeps on: the Orch thread is running passes.
    """
    if load_sc(mem, L.PARK_ORCH) != 0:
        notify_as_worker(mem, w, L.PARK_ORCH)
    elif load_sc(mem, L.PARK_SCHED) == L.ACTIVE:
        notify_as_worker(mem, w, L.PARK_SCHED)


def announce_uncollected(mem, w):
    """Wake a sleeping thread, also on standby, if the last answer of an idle worker is uncollected."""
    last = w + frame_before(mem, int(mem[w + L.W_AT])) + L.W_MAILBOX + L.MAIL_STATE
    if load(mem, last) & STATE_MASK != L.TASK_DONE:
        return
    if load_sc(mem, L.PARK_ORCH) != 0:
        notify_as_worker(mem, w, L.PARK_ORCH)
    else:
        notify_as_worker(mem, w, L.PARK_SCHED)


def post(mem, w, state, error):
    """Write the worker's answer: state and error code in one store (worker side).

    Ordering the exchange pairs with the load in `collect`: results are visible before TASK_DONE
    """
    exchange(mem, served(mem, w), state | error << L.HALF)


def post_done(mem, w, outcome):
    """Answer the task in the current frame, and go on to the next one (worker side).

    W_SINCE is not positive before the answer, so nobody takes it for when the next task began; nor 0, so
    the death of a worker in between is not one before its task.

    Ordering the release of W_ENDED pairs with the load in `may_start`: a worker that sees the end sees
             the results; and a thread that sees that worker's answer sees this one
    """
    if unlikely(mem[L.TRACING] != 0) and mem[w + L.W_BEGAN] != 0:
        note_ran(mem, w, outcome)
    mem[w + L.W_SINCE] = L.ANSWERING
    post(mem, w, L.TASK_DONE, outcome)
    mem[w + L.W_SINCE] = 0
    if mem[L.DEPTH] == 1:
        return
    at = int(mem[w + L.W_AT])
    how = L.ENDED_BADLY
    if outcome == L.SUCCESS:
        how = L.ENDED_WELL
    elif outcome == L.RETURNED:
        how = L.ENDED_NOT
    answers = (mem[w + at + L.W_ENDED] >> 2) + 1
    store(mem, w + at + L.W_ENDED, answers << 2 | how)
    mem[w + L.W_AT] = frame_after(mem, at)


def note_beginning(mem, w, number):
    """Note when a task, or a control request, begins (worker side): exactly, if a trace is taken."""
    mem[w + L.W_SINCE] = coarse_ns()
    if unlikely(mem[L.TRACING] != 0):
        mem[w + L.W_NUMBER] = number
        mem[w + L.W_BEGAN] = now_ns()


def cache_line(mem, w):
    digest = w + int(mem[w + L.W_AT]) + L.W_MAILBOX + L.MAIL_DIGEST
    return w + L.W_CACHE + (int(mem[digest]) & (L.DIGEST_CACHE - 1)) * L.DIGEST_CACHE_WORDS


def resolve(mem, w):
    """Decode a task, and look up its callable: its local slot, COMPILED with W_LEAF set, or RESOLVE.

    A local slot, which Python calls, has the number of the frame in the upper half. MALFORMED is a task
    whose arguments `decode` refuses.
    """
    at = int(mem[w + L.W_AT])
    if decode(mem, w + at) != L.OK:
        return L.MALFORMED
    digest = w + at + L.W_MAILBOX + L.MAIL_DIGEST
    line = cache_line(mem, w)
    for k in range(L.DIGEST_WORDS):
        if mem[line + k] != mem[digest + k]:
            return L.RESOLVE
    leaf = int(mem[line + L.CACHE_LEAF])
    if leaf == L.BY_KEY:  # it depends on the function that is called, which may have none here
        key = int(mem[w + at + L.W_MAILBOX + mem[w + at + L.W_SCALARS_AT] // L.WORD]) & L.CALL_KEY
        code = code_line(mem, w, key)
        leaf = int(mem[code + L.CODE_ADDRESS]) if mem[code + L.CODE_KEY] == key else 0
    if leaf != 0:
        mem[w + L.W_LEAF] = leaf
        return L.COMPILED
    return (int(mem[line + L.CACHE_LOCAL]) - 1) | at // L.WORKER_WORDS << L.HALF


def code_line(mem, w, key):
    """Return the entry of a key; if it has none, a free one, or the one that it may replace."""
    first = key // L.LINE
    for i in range(L.LOOKS_FOR_CODE):
        line = w + L.W_CODES + (first + i) % L.CODES * L.CODE_WORDS
        if mem[line + L.CODE_KEY] == key or mem[line + L.CODE_KEY] == 0:
            return line
    return w + L.W_CODES + first % L.CODES * L.CODE_WORDS


def note_code(mem, worker, key, address):
    line = code_line(mem, worker_at(mem, worker), key)
    mem[line + L.CODE_KEY] = key
    mem[line + L.CODE_ADDRESS] = address


def remember(mem, worker, local_slot, leaf):
    """Put the digest in the mailbox into the worker's cache, and resolve it (worker side)."""
    w = worker_at(mem, worker)
    digest = w + int(mem[w + L.W_AT]) + L.W_MAILBOX + L.MAIL_DIGEST
    line = cache_line(mem, w)
    copy_words(mem, line, digest, L.DIGEST_WORDS)
    mem[line + L.CACHE_LOCAL] = local_slot + 1
    mem[line + L.CACHE_LEAF] = leaf
    return resolve(mem, w)


def forget_digests(mem, worker):
    start = worker_at(mem, worker) + L.W_CACHE
    for k in range(L.DIGEST_CACHE * L.DIGEST_CACHE_WORDS):
        mem[start + k] = 0


def may_start(mem, frame):
    """Say whether the tasks that a task in a frame waits for have ended (worker side).

    If a later task has ended in the same frame, the Scheduler has collected the awaited end; unless that
    was a success, it has set W_SKIP before.

    Returns  OK; WOULD_BLOCK if not all have ended; or the answer instead of starting, SKIPPED or RETURNED
    """
    answer = L.OK
    at = frame + L.W_WAIT_FOR
    for _ in range(mem[frame + L.W_WAITS]):
        answer = how_it_ended(mem, at)
        if answer != L.OK:
            break
        at += 2
    skip = load(mem, frame + L.W_SKIP)
    return answer if skip == 0 else skip


def how_it_ended(mem, at):
    """Return what an awaited end means for the task that waits for it: as `may_start`, without W_SKIP."""
    ended = load(mem, int(mem[at]))
    if ended >> 2 < mem[at + 1]:
        return L.WOULD_BLOCK
    if ended >> 2 > mem[at + 1] or ended & 3 == L.ENDED_WELL:
        return L.OK
    return L.SKIPPED if ended & 3 == L.ENDED_BADLY else L.RETURNED


def may_follow(mem, w, frame):
    """Say whether a task in a frame waits only for tasks in front of it (worker side).

    Those of other workers that it was to wait for have ended well. Nothing returns it then, and it is
    skipped only if one in front of it fails, or the run is cancelled.
    """
    at = frame + L.W_WAIT_FOR
    for _ in range(mem[frame + L.W_WAITS]):
        answer = how_it_ended(mem, at)
        is_here = w <= mem[at] and mem[at] < w + mem[L.WORKER_STRIDE]
        if answer != L.OK and not (is_here and answer == L.WOULD_BLOCK):
            return False
        at += 2
    return load(mem, frame + L.W_SKIP) == 0


def task_ahead(mem, worker, distance, may_wait):
    """Say whether the task that is `distance` behind the current one will start (worker side).

    What it waits for has ended well; or it `may_wait`, but only for tasks in front of it: then it may
    still be skipped, if one of these fails. Either may be, if the run is cancelled. One that is malformed
    waits for its turn to be refused.

    Returns  its ticket: how often its frame was filled, and the number of the frame; that of the current
             task for 0; else NONE
    Ordering the load of the state pairs with the store in `send`: the frame is as it was sent
    """
    w = worker_at(mem, worker)
    at = int(mem[w + L.W_AT])
    for _ in range(distance):
        at = frame_after(mem, at)
    frame = w + at
    if distance > 0 or may_wait:
        if not has_task(mem, frame):
            return L.NONE
        if not may_wait and may_start(mem, frame) != L.OK:
            return L.NONE
        if may_wait and not may_follow(mem, w, frame):
            return L.NONE
    if decode(mem, frame) != L.OK:
        return L.NONE
    return ((int(mem[frame + L.W_ENDED]) >> 2) + 1) << L.HALF | at // L.WORKER_WORDS


def has_task(mem, frame):
    return load(mem, frame + L.W_MAILBOX + L.MAIL_STATE) & STATE_MASK == L.TASK_READY


def look_out(mem, worker, frame, filled):
    """Sleep until a frame is filled again or `end_look_out`, or less (worker side, a second thread).

    Ordering like `park_and_receive`, with W_LOOKOUT and W_FILLED for W_PARKED and the state
    """
    w = worker_at(mem, worker)
    prepare(mem, w + L.W_LOOKOUT, 1)
    now = load(mem, w + frame * L.WORKER_WORDS + L.W_FILLED)
    if now == filled and load(mem, w + L.W_SHUTDOWN) == 0:
        commit(mem, w + L.W_LOOKOUT, 1, -1)
    be_awake(mem, w + L.W_LOOKOUT)


def receive(mem, worker):
    """Spin until a task or a request to stop is there, at most SPIN_NS (worker side).

    After its back-off time, at most YIELD_NS, it offers its core after each look: the thread that it
    waits for may be waiting for this core.

    Tasks to be skipped are answered here. A pre-dispatched task that still waits after RETURN_BUDGETS
    spin budgets is returned.

    Returns  the callable (see `resolve`), CONTROL, STOP, or PARK when the time is up
    """
    w = worker_at(mem, worker)
    start = 0
    looks = 1
    waits, told = False, False
    if mem[w + L.W_AT] == 0:
        stay_apart(mem, worker)
    while True:
        state_word = served(mem, w)
        for _ in range(looks):
            waits = False
            word = load(mem, state_word)
            state = word & STATE_MASK
            if state == L.TASK_READY or state == L.CONTROL_REQUEST:
                if load(mem, w + L.W_SHUTDOWN) != 0:
                    return L.STOP
                if state == L.CONTROL_REQUEST:
                    note_beginning(mem, w, 0)
                    return L.CONTROL
                turn = may_start(mem, w + int(mem[w + L.W_AT]))
                if turn == L.OK:
                    note_beginning(mem, w, word >> L.HALF)
                    fail_point(mem, w, fail_points.FAIL_RECEIVED)
                    return resolve(mem, w)
                if turn != L.WOULD_BLOCK:
                    post_done(mem, w, turn)
                    announce_done(mem, w)
                    told = False
                    break
                waits = True
                fail_point(mem, w, fail_points.FAIL_WAITING)
            pause()
        if load(mem, w + L.W_SHUTDOWN) != 0:
            return L.STOP
        now = now_ns()
        if start == 0:
            start = now
        elif waits and now - start > L.RETURN_BUDGETS * mem[L.SPIN_NS]:
            post_done(mem, w, L.RETURNED)
            announce_done(mem, w)
            told = False
            start = now
        elif not waits and now - start > mem[L.SPIN_NS]:
            return L.PARK
        if not told and now - start > L.UNSEEN_NS:
            told = True
            announce_uncollected(mem, w)
        if now - start < mem[w + L.W_BACK_OFF]:
            looks = L.LOOKS
        else:
            looks = 1
            stay_apart(mem, worker)
            offer_core(mem, w + L.W_BACK_OFF)


def finish_and_receive(mem, worker, error):
    """Post TASK_DONE with an error code and wait for the next task (worker side); see `receive`."""
    w = worker_at(mem, worker)
    fail_point(mem, w, fail_points.FAIL_BEFORE_DONE)
    post_done(mem, w, error)
    fail_point(mem, w, fail_points.FAIL_DONE)
    announce_done(mem, w)
    return receive(mem, worker)


def run_leaves(mem, worker):
    """Run the compiled leaf of the task received, and those of the tasks that follow (worker side).

    An exception of Python's that a leaf raises is left to the caller, with W_LEAF set.

    Returns  the first result of `receive` other than COMPILED; or, with the task not answered, MISMATCH,
             or RAISED with W_LEAF set
    """
    w = worker_at(mem, worker)
    layouts = address_of(mem, mem[L.A_LAYOUTS])
    local = L.COMPILED
    while local == L.COMPILED:
        fail_point(mem, w, fail_points.FAIL_CALLING)
        args = address_of(mem, w + int(mem[w + L.W_AT]) + L.W_MAILBOX + L.MAIL_COUNTS)
        code = run_leaf(mem, w + L.W_LEAF, int(mem[w + L.W_LEAF]), args, layouts)
        if code == L.RAISED:
            return code
        if code != L.OK:
            mem[w + L.W_LEAF] = 0
            return L.MISMATCH
        mem[w + L.W_LEAF] = 0
        fail_point(mem, w, fail_points.FAIL_CALLED)
        local = finish_and_receive(mem, worker, L.SUCCESS)
    return local


def finish_control_and_receive(mem, worker, error):
    """Post CONTROL_DONE with an error code and wait for the next task (worker side).

    W_SINCE is 0 before the answer: not even the next request has begun.
    """
    w = worker_at(mem, worker)
    fail_point(mem, w, fail_points.FAIL_BEFORE_CONTROL_DONE)
    if unlikely(mem[L.TRACING] != 0) and mem[w + L.W_BEGAN] != 0:
        note_request(mem, w)
    mem[w + L.W_SINCE] = 0
    post(mem, w, L.CONTROL_DONE, error)
    fail_point(mem, w, fail_points.FAIL_CONTROL_DONE)
    futex_wake(mem, served(mem, w))
    return receive(mem, worker)


def park_and_receive(mem, worker):
    """Sleep until a task or a request to stop is there (worker side); see `receive`."""
    w = worker_at(mem, worker)
    answer = L.PARK
    while answer == L.PARK:
        state_word = served(mem, w)
        prepare(mem, w + L.W_PARKED, 1)
        seen = load(mem, state_word)
        state = seen & STATE_MASK
        busy = state == L.TASK_READY or state == L.CONTROL_REQUEST
        if not busy and load(mem, w + L.W_SHUTDOWN) == 0:
            announce_uncollected(mem, w)
            fail_point(mem, w, fail_points.FAIL_PARKED)
            began = now_ns()
            commit(mem, state_word, seen, -1)
            if unlikely(mem[L.TRACING] == L.TRACE_ALL):
                note_span(mem, journal_of_worker(mem, w), L.NOTED_PARKED, 0, began)
        be_awake(mem, w + L.W_PARKED)
        if load(mem, w + L.W_SHUTDOWN) != 0:
            return L.STOP
        stay_apart(mem, worker)
        answer = receive(mem, worker)
    return answer


def report_ready(mem, worker):
    w = worker_at(mem, worker)
    fail_point(mem, w, fail_points.FAIL_BEFORE_READY)
    post(mem, w, L.INIT_DONE, 0)
    fail_point(mem, w, fail_points.FAIL_READY)
    futex_wake(mem, served(mem, w))
