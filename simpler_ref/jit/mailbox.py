"""The mailbox of one worker: encode, decode, and the handshake.

    IDLE ──► TASK_READY ──────► TASK_DONE ─────► IDLE        state and error code are one word
    IDLE ──► CONTROL_REQUEST ─► CONTROL_DONE ──► IDLE
           parent             worker         parent

The parent writes the frame (configuration, digest, counts, tensors, scalars), then the state; the
worker writes the error, if any, then the state. Before its first task a worker says INIT_DONE, which
counts as idle. A request to stop is a word of its own, so that no state written late can erase it
(D20).

A worker may be given several tasks at once (DEPTH). Each then has a mailbox of its own, a frame; both
sides go through the frames in turn, so tasks are run, and seen to end, in the order in which they were
sent, and a worker that ends one finds the next waiting. A worker without a task waits for the frame that
the parent fills next.

A control request (register a callable, allocate device memory, …) comes from whatever thread makes it.
Only the Scheduler gives mailboxes away: the thread claims the worker under the pass lock, and has the
mailbox from the moment the worker's task, if it has one, is collected until it gives the claim back.

Nobody waits by polling for ever. A worker spins for SPIN_NS, then announces that it sleeps
(W_PARKED), looks once more, and sleeps on the state word; the parent writes the state, then looks
whether the worker announced itself. Each side stores, then loads what the other stores, with a full
barrier between, so at least one of them sees the other: no wake-up is lost.
"""

from __future__ import annotations

from . import layout as L
from .atomics import (
    INTERRUPTED,
    compare_exchange,
    core_here,
    exchange,
    fence,
    futex_wait,
    futex_wake,
    keep_off_core,
    let_on_core,
    load,
    load_sc,
    now_ns,
    pause,
    store,
    visit_core,
    yield_core,
)
from .fail_points import (
    FAIL_BEFORE_CONTROL_DONE,
    FAIL_BEFORE_DONE,
    FAIL_BEFORE_READY,
    FAIL_CALLED,
    FAIL_CALLING,
    FAIL_CONTROL_DONE,
    FAIL_DONE,
    FAIL_PARKED,
    FAIL_READY,
    FAIL_RECEIVED,
    FAIL_WAITING,
    FAIL_WAKING,
    fail_point,
)
from .kernel import inlined, kernel
from .leaves import address_of, call_leaf
from .slots import config_of, index_of

STATE_MASK = 0xFFFFFFFF


@inlined
def copy_words(mem, to, start, count):
    """Copy `count` words inside the engine's memory."""
    for k in range(count):
        mem[to + k] = mem[start + k]


@kernel
def worker_at(mem, worker):
    """Return where a worker's words begin."""
    return int(mem[L.A_WORKERS]) + worker * int(mem[L.WORKER_STRIDE])


@kernel
def frame_after(mem, frame):
    """Return the frame that follows another one, both as offsets from a worker's first block."""
    frame += L.WORKER_WORDS
    return 0 if frame == mem[L.WORKER_STRIDE] else frame


@kernel
def frame_before(mem, frame):
    """Return the frame before another one."""
    return (int(mem[L.WORKER_STRIDE]) if frame == 0 else frame) - L.WORKER_WORDS


@kernel
def served(mem, w):
    """Return the state word of the frame that a worker serves or waits for (worker side)."""
    return w + int(mem[w + L.W_AT]) + L.W_MAILBOX + L.MAIL_STATE


@kernel
def awaited(mem, w):
    """Return the state word of the frame that a worker without a task waits for (parent side)."""
    return w + int(mem[w + L.W_TAIL]) + L.W_MAILBOX + L.MAIL_STATE


@kernel
def is_done(mem, w):
    """Say whether the oldest of the tasks that a worker has been given is done (parent side)."""
    word = load(mem, w + int(mem[w + L.W_HEAD]) + L.W_MAILBOX + L.MAIL_STATE)
    return word & STATE_MASK == L.TASK_DONE


@inlined
def encode(mem, frame, slot, counts, tensors, scalars):
    """Write a frame: configuration, digest, counts, tensors, scalars. Tags do not travel.

    Reads    the slot's callable word; its body at `tensors` and `scalars`
    Effects  the mailbox but for its state; configuration and digest only if others stand there; beside
             it the kinds of the scalars
    Rule     SCHED-MAIL-1; SCHED-PASS-4; FLOW-ARGS-1, -2; FLOW-ID-5; WM-MAIL-1, -2; ORCH-INV-2
    """
    box = frame + L.W_MAILBOX
    config = config_of(mem, slot)
    if mem[frame + L.W_LAST_CONFIG] != config + 1:
        source = int(mem[L.A_CONFIGS]) + config * L.CONFIG_WORDS
        copy_words(mem, box + L.MAIL_CONFIG, source, L.CONFIG_WORDS)
        mem[frame + L.W_LAST_CONFIG] = config + 1
    index = index_of(mem, slot)
    if mem[frame + L.W_LAST_CALLABLE] != index + 1:
        copy_words(
            mem,
            box + L.MAIL_DIGEST,
            int(mem[L.A_CALLABLES]) + index * L.DIGEST_WORDS,
            L.DIGEST_WORDS,
        )
        mem[frame + L.W_LAST_CALLABLE] = index + 1
    mem[box + L.MAIL_COUNTS] = counts
    words = (counts & 0xFFFFFFFF) * L.TENSOR_WORDS
    copy_words(mem, box + L.MAIL_TENSORS, tensors, words)
    if counts >> 32 != 0:
        encode_scalars(mem, frame, box + L.MAIL_TENSORS + words, scalars, counts >> 32)


@inlined
def encode_scalars(mem, frame, to, scalars, count):
    """Write the scalars of a frame, and their kinds beside the mailbox.

    The line of the kinds stays in the worker's cache if they are those of the task before.

    Rule     FLOW-SCALAR-5, -6
    """
    kinds = 0
    for k in range(count):
        mem[to + k] = mem[scalars + L.SCALAR_BITS]
        kinds |= int(mem[scalars + L.SCALAR_KIND]) << 8 * (k & 7)
        scalars += L.SCALAR_WORDS
        if k & 7 == 7 or k == count - 1:
            at = frame + L.W_KINDS + (k >> 3)
            if mem[at] != kinds:
                mem[at] = kinds
            kinds = 0


@inlined
def publish(mem, w, state_word, state):
    """Hand a mailbox to its worker, and wake the worker if it sleeps.

    Ordering the exchange pairs with the load of the state in `receive`; it also stands between this
             store and the load of W_PARKED, see the module text
    Rule     SCHED-DISPATCH-1; SCHED-MAIL-2, -3
    """
    exchange(mem, state_word, state)
    if load_sc(mem, w + L.W_PARKED) != 0:
        futex_wake(mem, state_word)


@kernel
def wake_elsewhere(mem, w):
    """Wake a worker that sleeps, away from this core (Scheduler).

    The system may put it in line behind this thread, which has more to do, though another core is idle.
    The worker itself ends that, see `stay_apart`.

    Effects  W_KEPT_OFF
    Rule     SPEED-WAIT-14
    """
    core, thread = core_here(), int(mem[w + L.W_THREAD])
    if load(mem, w + L.W_DEATH) != 0:
        thread = 0  # its number may be somebody else's by now
    if thread != 0 and load(mem, w + L.W_KEPT_OFF) == 0 and has_free_core(mem, w):
        if keep_off_core(thread, core):
            store(mem, w + L.W_KEPT_OFF, core + 1)
    futex_wake(mem, served(mem, w))


@kernel
def has_free_core(mem, w):
    """Say whether there is a core for a worker besides those of the Orch thread and the other workers."""
    free = mem[L.CORES] - 1
    for other in range(mem[L.WORKERS]):
        o = worker_at(mem, other)
        free -= o != w and load(mem, o + L.W_PARKED) == 0
    return free > 0


@kernel
def notify(mem, park_word):
    """Wake the thread that sleeps on a park word, if one does.

    Rule     SCHED-WAKE-4
    """
    if load(mem, park_word) != 0:
        store(mem, park_word, 0)
        futex_wake(mem, park_word)


@kernel
def notify_as_worker(mem, w, park_word):
    """Do the same as `notify` (worker side).

    Should the worker die between the two steps, whoever sleeps is not parked any more for all others to
    see: the death wakes it, see `wake`.
    """
    if load(mem, park_word) != 0:
        store(mem, park_word, 0)
        fail_point(mem, w, FAIL_WAKING)
        futex_wake(mem, park_word)


@kernel
def wake(mem, park_word):
    """Wake the thread that sleeps on a park word, whatever the word says.

    Who has cleared the word may have died before he woke the sleeper.

    Rule     SCHED-WAKE-4, -8
    """
    store(mem, park_word, 0)
    futex_wake(mem, park_word)


@kernel
def announce_done(mem, w):
    """Tell whoever runs the passes that a completion stands in a mailbox of this worker.

    A Scheduler thread that is off duty is left asleep: the Orch thread is running passes.

    Rule     SCHED-WAKE-1
    """
    if load_sc(mem, L.PARK_ORCH) != 0:
        notify_as_worker(mem, w, L.PARK_ORCH)
    elif load_sc(mem, L.PARK_SCHED) == L.ON_DUTY:
        notify_as_worker(mem, w, L.PARK_SCHED)


@kernel
def announce_uncollected(mem, w):
    """Tell whoever sleeps, on duty or not, if the last answer of a worker without a task is uncollected.

    Rule     SCHED-WAKE-7
    """
    last = w + frame_before(mem, int(mem[w + L.W_AT])) + L.W_MAILBOX + L.MAIL_STATE
    if load(mem, last) & STATE_MASK != L.TASK_DONE:
        return
    if load_sc(mem, L.PARK_ORCH) != 0:
        notify_as_worker(mem, w, L.PARK_ORCH)
    else:
        notify_as_worker(mem, w, L.PARK_SCHED)


@kernel
def post(mem, w, state, error):
    """Write the worker's answer: state and error code in one store (worker side).

    Ordering the exchange pairs with the load in `collect`: results are visible before TASK_DONE
    Rule     SCHED-MAIL-3; SCHED-COMPLETE-5
    """
    exchange(mem, served(mem, w), state | error << 32)


@kernel
def post_done(mem, w, outcome):
    """Answer the task in the frame that is served, and go on to the next frame (worker side).

    Ordering the release of W_ENDED pairs with the load in `may_start`: who has seen the end sees the
             results; and whoever sees his answer sees this one
    Rule     SCHED-MAIL-2; SPEED-DEPTH-2
    """
    post(mem, w, L.TASK_DONE, outcome)
    if mem[L.DEPTH] == 1:
        return
    at = int(mem[w + L.W_AT])
    how = L.ENDED_BADLY
    if outcome == L.SUCCESS:
        how = L.ENDED_WELL
    elif outcome == L.GIVEN_BACK:
        how = L.ENDED_NOT
    answers = (mem[w + at + L.W_ENDED] >> 2) + 1
    store(mem, w + at + L.W_ENDED, answers << 2 | how)
    mem[w + L.W_AT] = frame_after(mem, at)


@kernel
def cache_line(mem, w):
    """Return where the worker's small cache would keep the digest in the mailbox it serves."""
    digest = w + int(mem[w + L.W_AT]) + L.W_MAILBOX + L.MAIL_DIGEST
    return w + L.W_CACHE + (int(mem[digest]) & (L.DIGEST_CACHE - 1)) * L.DIGEST_CACHE_WORDS


@kernel
def resolve(mem, w):
    """Say who runs the task in the mailbox: a local slot, COMPILED with W_LEAF set, or RESOLVE.

    What Python has to call comes with the number of its frame in the upper half.

    Rule     SCHED-MAIL-4
    """
    at = int(mem[w + L.W_AT])
    digest = w + at + L.W_MAILBOX + L.MAIL_DIGEST
    line = cache_line(mem, w)
    for k in range(L.DIGEST_WORDS):
        if mem[line + k] != mem[digest + k]:
            return L.RESOLVE
    leaf = int(mem[line + L.CACHE_LEAF])
    if leaf != 0:
        mem[w + L.W_LEAF] = leaf
        return L.COMPILED
    return (int(mem[line + L.CACHE_LOCAL]) - 1) | at // L.WORKER_WORDS << 32


@kernel
def remember(mem, worker, local_slot, leaf):
    """Put the digest in the mailbox into the worker's cache, and resolve it (worker side)."""
    w = worker_at(mem, worker)
    digest = w + int(mem[w + L.W_AT]) + L.W_MAILBOX + L.MAIL_DIGEST
    line = cache_line(mem, w)
    copy_words(mem, line, digest, L.DIGEST_WORDS)
    mem[line + L.CACHE_LOCAL] = local_slot + 1
    mem[line + L.CACHE_LEAF] = leaf
    return resolve(mem, w)


@kernel
def forget_digests(mem, worker):
    """Empty the worker's cache of local slots (worker side)."""
    start = worker_at(mem, worker) + L.W_CACHE
    for k in range(L.DIGEST_CACHE * L.DIGEST_CACHE_WORDS):
        mem[start + k] = 0


@kernel
def offer_core(mem, patience):
    """Let whoever waits for this core run first, and learn from that how long to spin next time.

    If somebody took the core, the next wait offers it at once: until then it kept others from their
    work. Each offer that nobody takes gives some of the patience back, up to YIELD_NS.

    Effects  the word `patience`, which the calling thread owns
    Rule     SPEED-WAIT-3
    """
    before = now_ns()
    yield_core()
    if now_ns() - before > L.CROWDED_NS:
        mem[patience] = 0
    elif mem[patience] < mem[L.YIELD_NS]:
        mem[patience] += mem[L.YIELD_NS] // L.PATIENCE_STEPS + 1


@kernel
def stay_apart(mem, worker):
    """Run on another core than those who want this one, if the system has not seen to that (worker side).

    Threads that are woken while a third one is at work may come to share a core, and the system leaves
    them there even beside a core that is idle. Who submits offers his core to nobody, so a worker
    leaves it if there is another one free. When he waits, each worker has a core of its own to go to.

    Effects  W_CORE, W_MOVED; ends what `wake_elsewhere` has begun
    Rule     SPEED-WAIT-13, -14
    """
    w = worker_at(mem, worker)
    if mem[w + L.W_THREAD] == 0:
        return
    kept_off = load(mem, w + L.W_KEPT_OFF)
    if kept_off != 0:
        store(mem, w + L.W_KEPT_OFF, 0)
        let_on_core(kept_off - 1)
    core = core_here()
    if mem[w + L.W_CORE] != core + 1:
        store(mem, w + L.W_CORE, core + 1)
    submits = load(mem, L.ORCH_CORE)
    if submits == core + 1:
        if has_free_core(mem, w) and may_move(mem, w) and keep_off_core(0, core):
            let_on_core(core)
    elif submits == 0 and mem[w + L.W_HOME] > 0 and mem[w + L.W_HOME] != core + 1:
        if shares_core(mem, worker, core) and may_move(mem, w):
            visit_core(int(mem[w + L.W_HOME]) - 1)


@kernel
def shares_core(mem, worker, core):
    """Say whether another worker is awake on a core."""
    for other in range(mem[L.WORKERS]):
        w = worker_at(mem, other)
        if (
            other != worker
            and load(mem, w + L.W_CORE) == core + 1
            and load(mem, w + L.W_PARKED) == 0
        ):
            return True
    return False


@kernel
def may_move(mem, w):
    """Say whether a worker has not moved for MOVE_NS, and note that it does now."""
    now = now_ns()
    if now - mem[w + L.W_MOVED] < L.MOVE_NS:
        return False
    mem[w + L.W_MOVED] = now
    return True


@kernel
def may_start(mem, frame):
    """Say whether what a task in a frame waits for has ended (worker side).

    Where another task has ended since in the same place, the Scheduler has taken the end of the one that
    is waited for, and if that was no good end it has left a word in W_SKIP before.

    Returns  OK; WOULD_BLOCK if not all have ended; or what to answer instead of starting, SKIPPED or
             GIVEN_BACK
    Rule     SPEED-AHEAD-1, -5, -6, -7
    """
    answer = L.OK
    at = frame + L.W_WAIT_FOR
    for _ in range(mem[frame + L.W_WAITS]):
        ended = load(mem, int(mem[at]))
        if ended >> 2 < mem[at + 1]:
            answer = L.WOULD_BLOCK
            break
        if ended >> 2 == mem[at + 1] and ended & 3 != L.ENDED_WELL:
            answer = L.SKIPPED if ended & 3 == L.ENDED_BADLY else L.GIVEN_BACK
            break
        at += 2
    skip = load(mem, frame + L.W_SKIP)
    return answer if skip == 0 else skip


@kernel
def receive(mem, worker):
    """Spin until a task or a request to stop is there, at most SPIN_NS (worker side).

    When its patience is over, YIELD_NS at most, it offers its core to others after each look: the
    one it waits for may be waiting for just this core.

    What need not start any more is answered here. A task that was given ahead, and still waits when the
    time is up, is given back.

    Returns  who runs the task (see `resolve`), CONTROL, STOP, or PARK when the time is up
    Rule     SCHED-MAIL-8, -10; SPEED-WAIT-2; SPEED-DEPTH-10
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
            state = load(mem, state_word) & STATE_MASK
            if state == L.TASK_READY or state == L.CONTROL_REQUEST:
                if load(mem, w + L.W_SHUTDOWN) != 0:
                    return L.STOP
                if state == L.CONTROL_REQUEST:
                    return L.CONTROL
                turn = may_start(mem, w + int(mem[w + L.W_AT]))
                if turn == L.OK:
                    fail_point(mem, w, FAIL_RECEIVED)
                    return resolve(mem, w)
                if turn != L.WOULD_BLOCK:
                    post_done(mem, w, turn)
                    announce_done(mem, w)
                    break
                waits = True
                fail_point(mem, w, FAIL_WAITING)
            pause()
        if load(mem, w + L.W_SHUTDOWN) != 0:
            return L.STOP
        now = now_ns()
        if start == 0:
            start = now
        elif waits and now - start > L.AHEAD_PATIENCE * mem[L.SPIN_NS]:
            post_done(mem, w, L.GIVEN_BACK)
            announce_done(mem, w)
            start = now
        elif not waits and now - start > mem[L.SPIN_NS]:
            return L.PARK
        if not told and now - start > L.UNSEEN_NS:
            told = True
            announce_uncollected(mem, w)
        waits = False
        if now - start < mem[w + L.W_PATIENCE]:
            looks = L.LOOKS
        else:
            looks = 1
            stay_apart(mem, worker)
            offer_core(mem, w + L.W_PATIENCE)


@kernel
def finish_and_receive(mem, worker, error):
    """Post TASK_DONE with an error code and wait for the next task (worker side); see `receive`."""
    w = worker_at(mem, worker)
    fail_point(mem, w, FAIL_BEFORE_DONE)
    post_done(mem, w, error)
    fail_point(mem, w, FAIL_DONE)
    announce_done(mem, w)
    return receive(mem, worker)


@kernel
def run_leaves(mem, worker):
    """Run the compiled leaf whose task was received, and those of the tasks that follow (worker side).

    An exception that a leaf raises leaves this kernel with W_LEAF set: its task is not answered yet.

    Returns  what `receive` says, once that is something else than COMPILED; or MISMATCH, with the task
             not answered
    Rule     SPEED-LEAF-6; WM-DONE-3
    """
    w = worker_at(mem, worker)
    local = L.COMPILED
    while local == L.COMPILED:
        fail_point(mem, w, FAIL_CALLING)
        args = w + int(mem[w + L.W_AT]) + L.W_MAILBOX + L.MAIL_COUNTS
        if call_leaf(int(mem[w + L.W_LEAF]), address_of(mem, args)) != L.OK:
            mem[w + L.W_LEAF] = 0
            return L.MISMATCH
        mem[w + L.W_LEAF] = 0
        fail_point(mem, w, FAIL_CALLED)
        local = finish_and_receive(mem, worker, L.SUCCESS)
    return local


@kernel
def finish_control_and_receive(mem, worker, error):
    """Post CONTROL_DONE with an error code and wait for the next task (worker side)."""
    w = worker_at(mem, worker)
    fail_point(mem, w, FAIL_BEFORE_CONTROL_DONE)
    post(mem, w, L.CONTROL_DONE, error)
    fail_point(mem, w, FAIL_CONTROL_DONE)
    futex_wake(mem, served(mem, w))
    return receive(mem, worker)


@kernel
def park_and_receive(mem, worker):
    """Sleep until a task or a request to stop is there (worker side); see `receive`.

    Rule     SCHED-MAIL-8; SCHED-WAKE-5
    """
    w = worker_at(mem, worker)
    answer = L.PARK
    while answer == L.PARK:
        state_word = served(mem, w)
        store(mem, w + L.W_PARKED, 1)
        fence()
        seen = load(mem, state_word)
        state = seen & STATE_MASK
        busy = state == L.TASK_READY or state == L.CONTROL_REQUEST
        if not busy and load(mem, w + L.W_SHUTDOWN) == 0:
            announce_uncollected(mem, w)
            fail_point(mem, w, FAIL_PARKED)
            futex_wait(mem, state_word, seen, -1)
        store(mem, w + L.W_PARKED, 0)
        if load(mem, w + L.W_SHUTDOWN) != 0:
            return L.STOP
        stay_apart(mem, worker)
        answer = receive(mem, worker)
    return answer


@kernel
def report_ready(mem, worker):
    """Say INIT_DONE (worker side).

    Rule     WM-LOOP-1
    """
    w = worker_at(mem, worker)
    fail_point(mem, w, FAIL_BEFORE_READY)
    post(mem, w, L.INIT_DONE, 0)
    fail_point(mem, w, FAIL_READY)
    futex_wake(mem, served(mem, w))


@kernel
def wait_ready(mem, worker, timeout_ns):
    """Wait until a worker has said INIT_DONE or is dead (parent side).

    Returns  OK, ILLEGAL when it died, or TIMED_OUT
    """
    w = worker_at(mem, worker)
    until = now_ns() + timeout_ns
    while True:
        seen = load(mem, awaited(mem, w))
        if load(mem, w + L.W_DEATH) != 0:
            return L.ILLEGAL
        if seen & STATE_MASK == L.INIT_DONE:
            return L.OK
        rest = until - now_ns()
        if rest <= 0:
            return L.TIMED_OUT
        futex_wait(mem, awaited(mem, w), seen, rest)


@kernel
def mark_dead(mem, worker, code):
    """Note how a worker ended (monitor thread).

    A mailbox that says IDLE or CONTROL_REQUEST is changed to SHUTDOWN, so that whoever is about to
    sleep in `wait_ready` or `request_control` does not; any other state still tells what the worker
    had done.

    Ordering the exchange and the two of the state pair with those in `publish` and `await_control`: the
             request finds SHUTDOWN, or who has made it sees W_DEATH
    Rule     SCHED-DEATH-1
    """
    w = worker_at(mem, worker)
    exchange(mem, w + L.W_DEATH, code + L.DEATH_BIAS)
    compare_exchange(mem, awaited(mem, w), L.IDLE, L.SHUTDOWN)
    compare_exchange(mem, awaited(mem, w), L.CONTROL_REQUEST, L.SHUTDOWN)
    futex_wake(mem, awaited(mem, w))
    store(mem, L.DEATHS, load(mem, L.DEATHS) + 1)
    fence()
    wake(mem, L.PARK_ORCH)
    wake(mem, L.PARK_SCHED)


@kernel
def request_stop(mem, worker):
    """Tell a worker to stop: a word that is set once, and a wake-up (parent side).

    A worker that has looked at that word and is about to sleep on its mailbox state must not: the
    state is changed to SHUTDOWN under it. One that has a task or a control request looks again when
    that is done.

    Rule     SCHED-MAIL-9; WM-STOP-2, -3
    """
    w = worker_at(mem, worker)
    state_word = awaited(mem, w)
    store(mem, w + L.W_SHUTDOWN, 1)
    fence()
    while True:
        seen = load(mem, state_word)
        state = seen & STATE_MASK
        if state == L.TASK_READY or state == L.CONTROL_REQUEST:
            return
        if compare_exchange(mem, state_word, seen, L.SHUTDOWN):
            break
    futex_wake(mem, state_word)


@kernel
def empty_mailbox(mem, worker):
    """Bring a worker's words to what a fresh process expects (no process serves them now)."""
    block = worker_at(mem, worker)
    for _ in range(mem[L.DEPTH]):
        for k in range(L.W_TRACE + 1):
            mem[block + k] = 0
        block += L.WORKER_WORDS


# ---------------------------------------------------------------- control requests (parent side)
@kernel
def make_idle(mem, w):
    """Bring a mailbox that neither a task nor a request uses to IDLE, unless its worker shall stop.

    One that is about to sleep must not find the IDLE that it saw before SHUTDOWN came.

    Rule     WM-STOP-3
    """
    word = load(mem, awaited(mem, w))
    if word & STATE_MASK != L.SHUTDOWN:
        compare_exchange(mem, awaited(mem, w), word, L.IDLE)


@kernel
def grant_claim(mem, w):
    """Give a claimed worker's mailbox, which no task uses, to the thread that asked for it.

    Effects  the mailbox is IDLE; that thread is woken (the caller holds the pass lock)
    Rule     WM-CLAIM-1
    """
    make_idle(mem, w)
    store(mem, w + L.W_CLAIM, L.CLAIM_GRANTED)
    futex_wake(mem, w + L.W_CLAIM)


@kernel
def request_control(mem, worker, timeout_ns):
    """Send the control request that stands in a claimed mailbox, and wait for the answer.

    Returns  the worker's error code; ILLEGAL when it died, TIMED_OUT, or INTERRUPTED by a signal
             (call `await_control` then)
    Rule     WM-MAIL-3
    """
    w = worker_at(mem, worker)
    publish(mem, w, awaited(mem, w), L.CONTROL_REQUEST)
    return await_control(mem, worker, timeout_ns)


@kernel
def await_control(mem, worker, timeout_ns):
    """Wait for the answer to a control request; see `request_control`."""
    w = worker_at(mem, worker)
    state_word = awaited(mem, w)
    start = now_ns()
    while True:
        seen = load(mem, state_word)
        if seen & STATE_MASK == L.CONTROL_DONE:
            return seen >> 32
        if load_sc(mem, w + L.W_DEATH) != 0:
            return L.ILLEGAL
        passed = now_ns() - start
        rest = timeout_ns - passed
        if rest <= 0:
            return L.TIMED_OUT
        if passed < mem[L.SPIN_NS]:
            yield_core()
        elif futex_wait(mem, state_word, seen, rest) == INTERRUPTED:
            return L.INTERRUPTED
