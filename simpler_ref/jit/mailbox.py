"""The mailbox of one worker: encode, decode, and the handshake.

    IDLE ──► TASK_READY ──────► TASK_DONE ─────► IDLE        state and error code are one word
    IDLE ──► CONTROL_REQUEST ─► CONTROL_DONE ──► IDLE
           parent             worker         parent

What it is for. A task has to get from the Scheduler, which knows its slot, to a worker, which may
be another process, started before the task existed, and its outcome has to come back. The worker
sees nothing of the parent's tables: a task that writes outside its arrays cannot damage them, and a
level below may be anything that reads these bytes: a process, a thread, a chip, a proxy of another
machine. All that crosses is one block of memory for each task, of a size that is fixed in the
documents, and one word that says whose turn it is.

Turns. Each state has one writer, named in the drawing: what the other side does next is the only
way on. The parent writes the frame (configuration, digest, counts, tensors, scalars), then, with
release, the state; the worker reads the state with acquire, then the frame. On the way back the
worker writes its error, if there is one, and its value, then the state, and the Scheduler collects.
Neither side ever waits for a lock of the other, so a process that is killed at any instruction
leaves the word at one side's turn, which tells what was lost. Before its first task a worker posts
INIT_DONE, which counts as idle. A request to stop has a word of its own, so that no state written
late can erase it (D20).

Several tasks. With DEPTH above 1 a worker has several such blocks, its *frames*; both sides go
through them in order, round and round. So tasks run, and are collected, in the order in which they
were sent, and a worker that ends one finds the next waiting. A worker without a task waits for its
next free frame. `W_TAIL` is the parent's place, `W_HEAD` that of the oldest task not collected, and
`W_AT` the worker's own; each has one writer.

Requests. Any thread can make a control request (register a callable, allocate device memory, …).
Only the Scheduler assigns mailboxes: the thread claims the worker under the pass lock, and has the
mailbox from the moment the worker's tasks, if any, are collected until it releases the claim.

Sleeping. A worker spins for SPIN_NS, then announces that it sleeps (W_PARKED), looks once more, and
sleeps on the state word; the parent writes the state, then looks for the announcement. Each side
stores, then loads what the other stores, with a full barrier between, so one of them sees the
other: no wake-up is lost, and a parent that sends to a worker which is awake makes no system call.

What must never happen. A word read twice: the worker copies what it decides by. A frame written
while the worker may read it: the parent's turn comes after TASK_DONE only. An outcome that is
collected twice, or for another task: `W_SLOT` of the frame is the parent's own, and the frame is
given to no task before that.

Why not a queue of bytes, or a pipe: with a word for each turn, an idle worker costs nothing, a sent
task costs six or seven cache lines and no system call, and what a dead process has half written is
never mistaken for something whole. The documents' rules are SCHED-MAIL and WM-MAIL.

Rule     CALL-WORKER-4, FLOW-ARGS-1, FLOW-ARGS-2, FLOW-ARGS-4, FLOW-ID-5, FLOW-SCALAR-1, ORCH-INV-2,
         SCHED-DEATH-1, SCHED-DISPATCH-1, SCHED-MAIL-1, SCHED-MAIL-2, SCHED-MAIL-3, SCHED-MAIL-9,
         SCHED-MAIL-10, SCHED-PASS-4, WM-CLAIM-1, WM-MAIL-1, WM-MAIL-2, WM-MAIL-3, WM-STOP-3
"""

from __future__ import annotations

from . import layout as L
from .atomics import (
    compare_exchange,
    exchange,
    fence,
    futex_wait,
    futex_wake,
    load,
    load_sc,
    now_ns,
    store,
    yield_core,
)
from .slots import config_of, index_of
from .waiting import wake

STATE_MASK = 0xFFFFFFFF


def copy_words(mem, to, start, count):
    for k in range(count):
        mem[to + k] = mem[start + k]


def worker_at(mem, worker):
    return int(mem[L.A_WORKERS]) + worker * int(mem[L.WORKER_STRIDE])


def frame_after(mem, at):
    """Return the frame that follows another one, both as offsets from a worker's first block."""
    at += L.WORKER_WORDS
    return 0 if at == mem[L.WORKER_STRIDE] else at


def frame_before(mem, at):
    return (int(mem[L.WORKER_STRIDE]) if at == 0 else at) - L.WORKER_WORDS


def served(mem, w):
    """Return the state word of the frame that a worker serves or waits for (worker side)."""
    return w + int(mem[w + L.W_AT]) + L.W_MAILBOX + L.MAIL_STATE


def awaited(mem, w):
    """Return the state word of the frame that a worker without a task waits for (parent side)."""
    return w + int(mem[w + L.W_TAIL]) + L.W_MAILBOX + L.MAIL_STATE


def is_done(mem, w):
    """Say whether the oldest of a worker's tasks is done (parent side)."""
    word = load(mem, w + int(mem[w + L.W_HEAD]) + L.W_MAILBOX + L.MAIL_STATE)
    return word & STATE_MASK == L.TASK_DONE


def encode(mem, frame, slot, counts, tensors, scalars):
    """Write a frame: configuration, digest, counts, tensors, scalars. Tags do not travel.

    Configuration and digest are written only if they differ from those of the frame's last task. Beside
    the mailbox are the kinds of the scalars, and the sizes that go with the configuration.
    """
    box = frame + L.W_MAILBOX
    config = config_of(mem, slot)
    if mem[frame + L.W_LAST_CONFIG] != config + 1:
        source = int(mem[L.A_CONFIGS]) + config * L.CONFIG_ENTRY_WORDS
        copy_words(mem, box + L.MAIL_CONFIG, source, L.CONFIG_WORDS)
        copy_words(mem, frame + L.W_ENV, source + L.CONFIG_WORDS, L.ENV_WORDS)
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
    if mem[L.STREAM] != 0:
        mem[frame + L.W_VALUE] = 0
        mem[frame + L.W_KIND] = L.VALUE_NONE
    words = (counts & L.LOW_HALF) * L.TENSOR_WORDS
    copy_words(mem, box + L.MAIL_TENSORS, tensors, words)
    if counts >> L.HALF != 0:
        encode_scalars(mem, frame, box + L.MAIL_TENSORS + words, scalars, counts >> L.HALF)


def encode_scalars(mem, frame, to, scalars, count):
    """Write the scalars of a frame, and their kinds beside the mailbox.

    The line of the kinds stays in the worker's cache if they have not changed.
    """
    kinds = 0
    for k in range(count):
        bits, kind = int(mem[scalars + L.SCALAR_BITS]), int(mem[scalars + L.SCALAR_KIND])
        if kind == L.FUTURE:
            bits, kind = int(mem[bits + L.S_VALUE]), L.FETCHED | int(mem[bits + L.S_KIND])
        mem[to + k] = bits
        kinds |= kind << 8 * (k & 7)
        scalars += L.SCALAR_WORDS
        if k & 7 == 7 or k == count - 1:
            at = frame + L.W_KINDS + (k >> 3)
            if mem[at] != kinds:
                mem[at] = kinds
            kinds = 0


def decode(mem, frame):
    """Check the counts in a frame, and note them and where its scalars begin (worker side).

    The counts are read here, once, and nowhere else: whatever the mailbox says, nothing that goes by
    what is noted leaves the mailbox. What a tensor says of itself is checked where it is used.

    Returns  OK; or MALFORMED if a count is negative, or both together exceed the mailbox
    """
    counts = int(mem[frame + L.W_MAILBOX + L.MAIL_COUNTS])
    tensors, scalars = counts & L.LOW_HALF, counts >> L.HALF
    mem[frame + L.W_COUNTS] = counts
    mem[frame + L.W_SCALARS_AT] = L.MALFORMED
    words = tensors * L.TENSOR_WORDS + scalars  # a negative count of tensors is a huge one here
    if scalars < 0 or words > L.ARGS_WORDS:
        return L.MALFORMED
    mem[frame + L.W_SCALARS_AT] = L.WORD * (L.MAIL_TENSORS + tensors * L.TENSOR_WORDS)
    return L.OK


def publish(mem, w, state_word, state):
    """Publish a mailbox to its worker, and wake the worker if it sleeps.

    Ordering the exchange pairs with the load of the state in `receive`; it also separates this store from
             the load of W_PARKED, see the module's docstring
    """
    exchange(mem, state_word, state)
    if load_sc(mem, w + L.W_PARKED) != 0:
        futex_wake(mem, state_word)


def wait_ready(mem, worker, timeout_ns):
    """Wait until a worker has posted INIT_DONE or is dead (parent side).

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


def mark_dead(mem, worker, code):
    """Note how a worker ended (monitor thread).

    IDLE or CONTROL_REQUEST in its mailbox becomes SHUTDOWN, so that no thread goes to sleep in
    `wait_ready` or `request_control`; any other state still shows what the worker had done.

    Ordering the exchange and the two of the state pair with those in `publish` and `await_control`: the
             request finds SHUTDOWN, or the requester sees W_DEATH
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


def request_stop(mem, worker):
    """Tell a worker to stop: a word that is set once, and a wake-up (parent side).

    A worker that has read that word before, and is about to sleep on its mailbox state, must not: the
    state becomes SHUTDOWN. One that has a task or a control request looks again when that is done.
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


def empty_mailbox(mem, worker):
    """Clear a worker's words for a fresh process (no process serves them now).

    The calls that wait for this worker go to its successor.
    """
    w = block = worker_at(mem, worker)
    first, last = mem[w + L.W_AFFINITY], mem[w + L.W_AFFINITY + 1]
    for _ in range(mem[L.DEPTH]):
        for k in range(L.W_TRACE + 1):
            mem[block + k] = 0
        block += L.WORKER_WORDS
    mem[w + L.W_AFFINITY], mem[w + L.W_AFFINITY + 1] = first, last


# ---------------------------------------------------------------- control requests (parent side)
def make_idle(mem, w):
    """Set a mailbox that neither a task nor a request uses to IDLE, unless its worker must stop.

    A worker about to sleep must not find the IDLE that it saw before SHUTDOWN.
    """
    word = load(mem, awaited(mem, w))
    if word & STATE_MASK != L.SHUTDOWN:
        compare_exchange(mem, awaited(mem, w), word, L.IDLE)


def grant_claim(mem, w):
    """Grant a claimed worker's mailbox, which no task uses, to the requester (under the pass lock)."""
    make_idle(mem, w)
    store(mem, w + L.W_CLAIM, L.CLAIM_GRANTED)
    futex_wake(mem, w + L.W_CLAIM)


def request_control(mem, worker, timeout_ns):
    """Send the control request in a claimed mailbox, and wait for the answer.

    Returns  the worker's error code; ILLEGAL when it died, TIMED_OUT, or INTERRUPTED by a signal
             (call `await_control` then)
    """
    w = worker_at(mem, worker)
    publish(mem, w, awaited(mem, w), L.CONTROL_REQUEST)
    return await_control(mem, worker, timeout_ns)


def await_control(mem, worker, timeout_ns):
    w = worker_at(mem, worker)
    state_word = awaited(mem, w)
    start = now_ns()
    while True:
        seen = load(mem, state_word)
        if seen & STATE_MASK == L.CONTROL_DONE:
            return seen >> L.HALF
        if load_sc(mem, w + L.W_DEATH) != 0:
            return L.ILLEGAL
        passed = now_ns() - start
        rest = timeout_ns - passed
        if rest <= 0:
            return L.TIMED_OUT
        if passed < mem[L.SPIN_NS]:
            yield_core()
        elif futex_wait(mem, state_word, seen, rest) == L.INTERRUPTED:
            return L.INTERRUPTED
