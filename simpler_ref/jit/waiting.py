"""How threads wait: who sleeps in which state, who wakes it, and the three steps of going to sleep.

Why it matters. An answer crosses to another process in a tenth of a microsecond if somebody looks
for it, and in 16 to 43 if somebody has to be woken; waking costs the waker 7 to 11, and looking
costs a core. So everybody spins for about as long as a wake-up costs (SPIN_NS), offers its core
meanwhile to others that want it (`cores`), and then sleeps; and nobody makes a system call for a
thread that is awake. Nothing here polls, and no wake-up depends on a time limit, except where a
state says so.

Sleeping takes three steps, each of them below. *Prepare*: say in a word that this thread is about
to sleep, then a full barrier. *Look again*: has what it waits for come meanwhile? *Commit*: sleep
on a word, if that still says what it said; or cancel: take the announcement back. Whoever makes
something happen stores that first, then, after a full barrier, looks at the announcement
(`notify`). Each side stores, then loads what the other one stores: one of them sees the other. The
announcement and the word slept on are one word, except a worker's: it sleeps on the state of its
mailbox, which its parent writes anyway.

The states. `STATES` has all of them; the page on the Scheduler draws it, and a test looks for a
state that is used and not there. A thread that is woken finds 0 in its word: whoever wakes it has
written that, so that a second event does not wake it again. Whoever dies between these two, the
clearing and the wake-up, would leave the sleeper alone: after a death, and at the end, sleepers are
woken whatever the word says (`wake`).

The Orch thread is the user's. While it waits for tasks, for a call or for room, it runs the
Scheduler's passes; it sleeps (ACTIVE) when a pass has moved nothing for SPIN_NS, and each answer
wakes it.

The Scheduler thread runs passes while the Orch thread is away, in Python code that submits nothing;
it never spins. On STANDBY it sleeps because the Orch thread runs passes; nobody wakes it for an
answer. ACTIVE, it is woken by each. Something may be pending that no event will announce: a ready
task deferred for a worker that is awake, or the end of a task whose worker has gone on to its next
frame. Then it sleeps with a timer (TIMED); if the Orch thread, which has just run a pass, only
wants the timer, it asks for that (KEEP_TIME) and no pass follows.

A worker spins for its next task, and tells about its last answer if nobody has collected that
(`announce_uncollected`), since all others may be asleep; then it sleeps. Requesters, a second
thread of a worker and the collector of a trace wait in the simplest way: one state, one word, one
who wakes.

What must never happen. A wake-up that is lost: the order of the steps, and the litmus tests that
leave out each barrier. A thread that sleeps while only it could go on: each row of `STATES` names
who wakes it, and the interleaving tests let every one of them die. A spin without a bound, or one
that keeps the awaited thread from its core. A signal that is not seen: the Orch thread and
requesters return to Python when one comes.

Why not a condition variable, or an eventfd: both need a call of the system for each event, also
when nobody sleeps, and a lock, or a descriptor, that a killed process leaves in an unknown state.

Rule     SCHED-WAKE-4
"""

from __future__ import annotations

from typing import NamedTuple

from .atomics import fence, futex_wait, futex_wake, load, store
from .fail_points import FAIL_WAKING, fail_point


class State(NamedTuple):
    """A way of being asleep."""

    thread: str
    word: str
    """The word that announces it."""
    state: str
    """What the word says."""
    while_: str
    """When it sleeps so."""
    woken_by: str


STATES = (
    State(
        *("Orch thread", "PARK_ORCH", "ACTIVE", "it waits, and a pass has moved nothing"),
        "a worker's answer, a pass of the Scheduler thread, another thread that wants its place, "
        "the monitor after a death",
    ),
    State(
        *("Scheduler thread", "PARK_SCHED", "ACTIVE", "the Orch thread is away"),
        "a worker's answer, a submit whose pass was taken, the monitor after a death, the end",
    ),
    State(
        *("Scheduler thread", "PARK_SCHED", "STANDBY", "the Orch thread runs passes"),
        "a worker whose answer stays uncollected, the Orch thread for its timer, a death, the end",
    ),
    State(
        *("Scheduler thread", "PARK_SCHED", "TIMED"),
        "a task is deferred, or an end may stay unseen",
        "its timer, and as on STANDBY",
    ),
    State(
        *("Scheduler thread", "PARK_SCHED", "KEEP_TIME", "woken, to sleep on as TIMED"),
        "itself: it is awake",
    ),
    State("worker", "W_PARKED", "1", "it has no task", "its parent: a task, a request, the end"),
    State(
        *("second thread of a worker", "W_LOOKOUT", "1", "no further task was sent to the worker"),
        "the Scheduler that sends one; the worker, at its end",
    ),
    State(
        *("requester", "W_CLAIM", "CLAIM_WAITS", "the worker that it wants has tasks"),
        "the Scheduler that collects the last of them; a death",
    ),
    State(
        *("collector of a trace", "PARK_COLLECTOR", "1", "there are few notes"),
        "whoever has filled a quarter of a journal; the end of the trace",
    ),
)
"""All states in which a thread of an engine sleeps, and KEEP_TIME."""


# ---------------------------------------------------------------- going to sleep
def prepare(mem, word, state):
    """Announce that this thread is about to sleep; it looks again next.

    Ordering the fence pairs with the one, or the exchange, between what is waited for and the load of the
             announcement: one side sees the other
    """
    store(mem, word, state)
    fence()


def commit(mem, word, seen, timeout_ns):
    """Sleep until the word is written and its sleeper woken, if it still says what was seen.

    Returns  OK; TIMED_OUT after `timeout_ns`, unless that is negative; or INTERRUPTED by a signal
    """
    return futex_wait(mem, word, seen, timeout_ns)


def be_awake(mem, word):
    """Take the announcement back: the thread is awake, whether it has slept or not."""
    store(mem, word, 0)


# ---------------------------------------------------------------- waking
def notify(mem, park_word):
    """Wake the thread that sleeps on a park word, if one does."""
    if load(mem, park_word) != 0:
        store(mem, park_word, 0)
        futex_wake(mem, park_word)


def notify_as_worker(mem, w, park_word):
    """Do the same as `notify` (worker side).

    If the worker dies between the two steps, the sleeper's word says that it is awake: the death wakes
    it, see `wake`.
    """
    if load(mem, park_word) != 0:
        store(mem, park_word, 0)
        fail_point(mem, w, FAIL_WAKING)
        futex_wake(mem, park_word)


def wake(mem, park_word):
    """Wake the thread that sleeps on a park word, whatever the word says.

    The worker that cleared the word may have died before it woke the sleeper.
    """
    store(mem, park_word, 0)
    futex_wake(mem, park_word)
