"""Entries for tests: kernels that Python never calls otherwise, one by one.

``kernels.scheduler_pass(mem)`` compiles the entry on first use and keeps it on disk. Each is a
trivial wrapper; the cache is stamped with its text and with the kernels of the package, so neither
can go stale. With ``NUMBA_DISABLE_JIT=1`` they are plain Python like all kernels.
"""

from __future__ import annotations

import hashlib
import inspect

from simpler_ref.jit import (
    claims,
    cores,
    graph,
    lock,
    mailbox,
    queues,
    ring,
    schedule,
    slots,
    submit,
    tensormap,
)
from simpler_ref.jit import collect as _collect
from simpler_ref.jit import dispatch as _dispatch
from simpler_ref.jit import kernel as _kernel
from simpler_ref.jit import layout as L
from simpler_ref.jit import serve as _serve
from simpler_ref.jit.atomics import (
    compare_exchange,
    core_here,
    exchange,
    fence,
    fetch_add,
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
    wire_words,
    yield_core,
)
from simpler_ref.jit.cache import KernelCache
from simpler_ref.jit.kernel import BYTES, INT, INTERPRETED, WORDS


def _stamp(func):
    """Return what an entry here is made from: its text, the numbers it may use, and the kernels."""
    numbers = {k: v for k, v in func.__globals__.items() if type(v) is int}
    text = inspect.getsource(func) + repr(sorted(numbers.items()))
    return _kernel.STAMP + hashlib.sha256(text.encode()).hexdigest()


_entries = {}
_bound = {}


def entry(*signature):
    """Make a kernel that tests call: like `simpler_ref.jit.kernel.entry`, without the GIL."""

    def wrap(func):
        assert func.__name__ not in _entries, f"there are two entries {func.__name__!r}"
        made = _kernel.entry(*signature, nogil=True)(func)
        if not INTERPRETED:
            made._cache = KernelCache(func, _stamp(func))
        _entries[func.__name__] = made
        return made

    return wrap


class Kernels:
    """The entries below, each bound when it is first asked for."""

    def __getattr__(self, name):
        if name not in _entries:
            raise AttributeError(f"tests/kernels.py has no entry {name!r}")
        if name not in _bound:
            _bound[name] = _kernel.bind(_entries[name])
        return _bound[name]


kernels = Kernels()


# ---------------------------------------------------------------- submit, without a pass
@entry(WORDS, INT, INT, INT, BYTES)
def submit_task(mem, callable_word, counts, members, wire):
    return submit.submit_task(mem, callable_word, counts, members, wire_words(wire))


@entry(WORDS, INT)
def register_task(mem, slot):
    submit.register_task(mem, slot)
    return L.OK


@entry(WORDS)
def request_cancel(mem):
    submit.request_cancel(mem)
    return L.OK


@entry(WORDS)
def cancel(mem):
    claims.cancel(mem)
    return L.OK


@entry(WORDS)
def reclaim_consumed(mem):
    """What the Orch thread does after a pass: take the consumed chain and reclaim it."""
    count = 0
    slot = queues.take_consumed(mem)
    while slot != L.NONE:
        after = int(mem[slot + L.S_LINK])
        submit.reclaim(mem, slot)
        slot = after
        count += 1
    return count


@entry(WORDS, INT)
def ring_of_depth(mem, depth):
    return ring.ring_of_depth(mem, depth)


@entry(WORDS, INT)
def map_has_room(mem, keys):
    return int(tensormap.has_room(mem, keys))


@entry(BYTES, INT, INT)
def fits_mailbox(wire, counts, members):
    return int(submit.fits_mailbox(wire_words(wire), counts, members))


# ---------------------------------------------------------------- the callable word
@entry(WORDS, INT)
def index_of(mem, slot):
    return slots.index_of(mem, slot)


@entry(WORDS, INT)
def kind_of(mem, slot):
    return slots.kind_of(mem, slot)


@entry(WORDS, INT)
def affinity_of(mem, slot):
    return slots.affinity_of(mem, slot)


@entry(WORDS, INT)
def config_of(mem, slot):
    return slots.config_of(mem, slot)


# ---------------------------------------------------------------- states and references
@entry(WORDS, INT, INT)
def step(mem, slot, event):
    return slots.step(mem, slot, event)


@entry(WORDS, INT)
def pin(mem, slot):
    return int(slots.pin(mem, slot))


@entry(WORDS, INT)
def release_ref(mem, slot):
    return int(slots.release_ref(mem, slot))


PIN, RELEASE = range(2)
DUEL_FIRST = 64
DUEL_SPAN = 16
DUEL_RESULT = 8


@entry(WORDS, INT, INT, INT)
def duel(mem, me, action, rounds):
    """Act on one slot per round, in step with another thread that does the same.

    Both wait for each other, then go at the slot at once. What the action answered is kept beside it.
    """
    for r in range(rounds):
        slot = DUEL_FIRST + r * DUEL_SPAN
        store(mem, L.LINE * (1 + me), r + 1)
        while load(mem, L.LINE * (2 - me)) < r + 1:
            pause()
        answer = int(slots.pin(mem, slot) if action == PIN else slots.release_ref(mem, slot))
        mem[slot + DUEL_RESULT + me] = answer
    return L.OK


# ---------------------------------------------------------------- the Scheduler, step by step
@entry(WORDS)
def scheduler_pass(mem):
    return schedule.scheduler_pass(mem)


@entry(WORDS)
def two_passes(mem):
    return schedule.two_passes(mem)


@entry(WORDS)
def orch_pass(mem):
    return schedule.orch_pass(mem)


@entry(WORDS)
def pass_after_submit(mem):
    schedule.pass_after_submit(mem)
    return L.OK


@entry(WORDS, INT)
def pass_in_bulk(mem, slot):
    schedule.pass_in_bulk(mem, slot)
    return L.OK


@entry(WORDS, INT)
def keeps_core(mem, waited):
    return int(schedule.keeps_core(mem, waited))


@entry(WORDS)
def try_lock(mem):
    return int(lock.try_lock(mem))


@entry(WORDS)
def unlock(mem):
    lock.unlock(mem)
    return L.OK


@entry(WORDS)
def has_work(mem):
    return int(schedule.has_work(mem))


@entry(WORDS)
def may_miss_an_end(mem):
    return int(schedule.may_miss_an_end(mem))


@entry(WORDS)
def held(mem):
    return int(schedule.held(mem))


@entry(WORDS, INT)
def pick_worker(mem, kind):
    return _dispatch.pick_worker(mem, kind)


@entry(WORDS, INT)
def wire(mem, slot):
    graph.wire(mem, slot)
    return L.OK


@entry(WORDS, INT)
def poison(mem, slot):
    graph.poison(mem, slot)
    return L.OK


@entry(WORDS, INT)
def make_ready(mem, slot):
    return graph.make_ready(mem, slot)


@entry(WORDS, INT)
def reclaim(mem, slot):
    return submit.reclaim(mem, slot)


@entry(WORDS, INT)
def release_fanin(mem, slot):
    graph.release_fanin(mem, slot)
    return L.OK


@entry(WORDS, INT)
def complete(mem, slot):
    return graph.complete(mem, slot)


@entry(WORDS, INT)
def fail(mem, slot):
    return graph.fail(mem, slot)


@entry(WORDS, INT)
def dispatch(mem, kind):
    return _dispatch.dispatch(mem, kind)


@entry(WORDS)
def collect(mem):
    return _collect.collect(mem)


@entry(WORDS)
def set_idle(mem):
    _collect.set_idle(mem)
    return L.OK


@entry(WORDS)
def handle_deaths(mem):
    return _collect.handle_deaths(mem)


@entry(WORDS)
def note_deaths(mem):
    _collect.note_deaths(mem)
    return L.OK


@entry(WORDS)
def lose_tasks(mem):
    _collect.lose_tasks(mem)
    return L.OK


# ---------------------------------------------------------------- queues
@entry(WORDS, INT)
def push_wiring(mem, slot):
    queues.push_wiring(mem, slot)
    return L.OK


@entry(WORDS)
def pop_wiring(mem):
    return queues.pop_wiring(mem)


@entry(WORDS)
def wiring_full(mem):
    return int(queues.wiring_full(mem))


# ---------------------------------------------------------------- the mailbox, either side
@entry(WORDS, INT, INT)
def encode(mem, worker, slot):
    counts = int(mem[slot + L.S_COUNTS])
    tensors, scalars = submit.tensors_at(mem, slot), submit.scalars_at(mem, slot)
    mailbox.encode(mem, mailbox.worker_at(mem, worker), slot, counts, tensors, scalars)
    return L.OK


@entry(WORDS, INT)
def send(mem, worker):
    w = mailbox.worker_at(mem, worker)
    mailbox.publish(mem, w, mailbox.awaited(mem, w), L.TASK_READY)
    return L.OK


@entry(WORDS, INT, INT, INT)
def post(mem, worker, state, error):
    _serve.post(mem, mailbox.worker_at(mem, worker), state, error)
    return L.OK


@entry(WORDS, INT, INT)
def post_done(mem, worker, outcome):
    _serve.post_done(mem, mailbox.worker_at(mem, worker), outcome)
    return L.OK


@entry(WORDS, INT)
def offer_core(mem, patience):
    cores.offer_core(mem, patience)
    return L.OK


@entry(WORDS, INT)
def stay_apart(mem, worker):
    cores.stay_apart(mem, worker)
    return L.OK


@entry(WORDS, INT)
def wake_elsewhere(mem, w):
    cores.wake_elsewhere(mem, w)
    return L.OK


@entry(WORDS, INT)
def receive(mem, worker):
    return _serve.receive(mem, worker)


@entry(WORDS, INT)
def may_start(mem, worker):
    """Ask about the task in the frame that a worker is at."""
    w = mailbox.worker_at(mem, worker)
    return _serve.may_start(mem, w + int(mem[w + L.W_AT]))


@entry(WORDS)
def announce_done(mem):
    """As the first worker, after a task that went well."""
    _serve.announce_done(mem, mailbox.worker_at(mem, 0))
    return L.OK


@entry(WORDS, INT)
def collect_from(mem, worker):
    return _collect.collect_from(mem, worker, mailbox.worker_at(mem, worker))


@entry(WORDS)
def announce_uncollected(mem):
    """As the first worker."""
    _serve.announce_uncollected(mem, mailbox.worker_at(mem, 0))
    return L.OK


@entry(WORDS, INT)
def notify(mem, park_word):
    mailbox.notify(mem, park_word)
    return L.OK


@entry(WORDS, INT)
def park_and_receive(mem, worker):
    return _serve.park_and_receive(mem, worker)


@entry(WORDS, INT)
def resolve(mem, worker):
    return _serve.resolve(mem, mailbox.worker_at(mem, worker))


@entry(WORDS, INT, INT)
def check_frames(mem, worker, rounds):
    """Play a worker that gets tasks 1, 2, …, each with its number in all its scalars.

    The test submits callable `number % 7`, whose digest is that number plus one in every byte, and
    `1 + number % 90` scalars. Returns how many frames were not complete when they were seen.
    """
    w = mailbox.worker_at(mem, worker)
    wrong = 0
    for number in range(1, rounds + 1):
        frame = w + int(mem[w + L.W_AT])
        box = frame + L.W_MAILBOX
        while load(mem, box + L.MAIL_STATE) != L.TASK_READY:
            pause()
        scalars = 1 + number % 90
        ok = mem[box + L.MAIL_COUNTS] == scalars << 32
        for i in range(scalars):
            ok = ok and mem[box + L.MAIL_TENSORS + i] == number
        digest = (number % 7 + 1) * 0x0101010101010101
        for i in range(L.DIGEST_WORDS):
            ok = ok and mem[box + L.MAIL_DIGEST + i] == digest
        ok = ok and mem[int(mem[frame + L.W_SLOT]) + L.S_STATE] == L.RUNNING
        wrong += not ok
        _serve.post_done(mem, w, 0)
    return wrong


@entry(WORDS, INT, INT)
def answer_again_and_again(mem, worker, rounds):
    """Post answers 1, 2, …: the number is the error, and stands in message and arguments as well."""
    box = mailbox.worker_at(mem, worker) + L.W_MAILBOX
    for number in range(1, rounds + 1):
        mem[box + L.MAIL_COUNTS] = number
        mem[box + L.MAIL_ERROR_MSG] = number
        _serve.post_done(mem, mailbox.worker_at(mem, worker), number)
    return L.OK


@entry(WORDS, INT, INT)
def watch_answers(mem, worker, rounds):
    """Look at a mailbox until the last answer; return how often something was older than the error."""
    box = mailbox.worker_at(mem, worker) + L.W_MAILBOX
    stale = 0
    error = 0
    while error < rounds:
        word = load(mem, box + L.MAIL_STATE)
        error = word >> 32
        stale += (word & mailbox.STATE_MASK == L.TASK_DONE) != (error > 0)
        stale += mem[box + L.MAIL_COUNTS] < error or mem[box + L.MAIL_ERROR_MSG] < error
    return stale


@entry(WORDS, INT, INT)
def answer_after_a_while(mem, worker, rounds):
    """Play a worker: answer that many tasks, each after another short while, and say so each time."""
    state_word = mailbox.worker_at(mem, worker) + L.W_MAILBOX + L.MAIL_STATE
    for number in range(rounds):
        while load(mem, state_word) & mailbox.STATE_MASK != L.TASK_READY:
            pause()
        for _ in range(number * number % 331):
            pause()
        _serve.post_done(mem, mailbox.worker_at(mem, worker), 0)
        _serve.announce_done(mem, mailbox.worker_at(mem, worker))
    return L.OK


@entry(WORDS, INT)
def serve(mem, worker):
    """Play a worker whose functions do nothing until it is asked to stop; return how many it did."""
    done = 0
    answer = _serve.park_and_receive(mem, worker)
    while answer != L.STOP:
        done += 1
        answer = _serve.finish_and_receive(mem, worker, 0)
        if answer == L.PARK:
            answer = _serve.park_and_receive(mem, worker)
    return done


@entry(WORDS, INT)
def pass_until_idle(mem, worker):
    """Run passes until a worker has finished what was submitted."""
    schedule.scheduler_pass(mem)
    while mem[mailbox.worker_at(mem, worker) + L.W_GIVEN] != 0:
        schedule.scheduler_pass(mem)
    return L.OK


# ---------------------------------------------------------------- ready queues, consumed chain, table
@entry(WORDS, INT, INT)
def push_ready(mem, kind, slot):
    queues.push_ready(mem, kind, slot)
    return L.OK


@entry(WORDS, INT)
def pop_ready(mem, kind):
    if queues.ready_empty(mem, kind):
        return L.NONE
    slot = queues.first_ready(mem, kind)
    queues.drop_first_ready(mem, kind)
    return slot


@entry(WORDS, INT, INT, INT)
def push_pinned(mem, worker, kind, slot):
    queues.push_pinned(mem, mailbox.worker_at(mem, worker), kind, slot)
    return L.OK


@entry(WORDS, INT, INT)
def pop_pinned(mem, worker, kind):
    return queues.pop_pinned(mem, mailbox.worker_at(mem, worker), kind)


@entry(WORDS, INT)
def push_consumed(mem, slot):
    queues.push_consumed(mem, slot)
    return L.OK


@entry(WORDS)
def take_consumed(mem):
    return queues.take_consumed(mem)


@entry(WORDS, INT)
def produce(mem, count):
    """Push 1 … count, each with a word that belongs to it, beside a thread in `consume`."""
    for i in range(1, count + 1):
        while queues.wiring_full(mem):
            pause()
        mem[int(mem[L.A_SLOTS]) + (i & 0xFFFF)] = -i
        queues.push_wiring(mem, i)
    return L.OK


@entry(WORDS, INT)
def consume(mem, count):
    """Pop that many; return how many came in order and with their word."""
    right = 0
    for i in range(1, count + 1):
        got = queues.pop_wiring(mem)
        while got == L.NONE:
            pause()
            got = queues.pop_wiring(mem)
        if got == i and mem[int(mem[L.A_SLOTS]) + (i & 0xFFFF)] == -i:
            right += 1
    return right


@entry(INT, INT, INT)
def map_home(data, owner, mask):
    return tensormap.home(data, owner, mask)


@entry(WORDS, INT, INT, INT)
def map_insert_slab(mem, data, owner, slot):
    if not tensormap.has_room(mem, 1):
        return L.WOULD_BLOCK
    tensormap.insert_slab(mem, data, owner, slot)
    return L.OK


@entry(WORDS)
def map_reset(mem):
    tensormap.reset(mem)
    return L.OK


# ---------------------------------------------------------------- atomics, alone and against each other
@entry(WORDS, INT, INT)
def atomic_store(mem, i, value):
    store(mem, i, value)
    return L.OK


@entry(WORDS, INT)
def atomic_load(mem, i):
    return load(mem, i)


@entry(WORDS, INT, INT)
def atomic_exchange(mem, i, value):
    return exchange(mem, i, value)


@entry(WORDS, INT, INT, INT)
def atomic_compare_exchange(mem, i, expected, value):
    return int(compare_exchange(mem, i, expected, value))


@entry(WORDS, INT, INT)
def atomic_fetch_add(mem, i, value):
    return fetch_add(mem, i, value)


@entry(WORDS, INT, INT, INT)
def wait_on(mem, i, expected, timeout_ns):
    return futex_wait(mem, i, expected, timeout_ns)


@entry(WORDS, INT)
def wake(mem, i):
    futex_wake(mem, i)
    return L.OK


@entry()
def clock():
    pause()
    yield_core()
    return now_ns()


@entry()
def where():
    return core_here()


@entry(INT)
def visit(core):
    return visit_core(core)


@entry(INT, INT)
def keep_off(thread, core):
    return keep_off_core(thread, core)


@entry(INT)
def let_on(core):
    let_on_core(core)
    return L.OK


@entry(BYTES)
def sum_of_words(wire):
    total = 0
    words = wire_words(wire)
    for i in range(len(words)):
        total += words[i]
    return total


MEET, FLAG, TALLY = 0, 16, 64


@_kernel.kernel
def meet(mem, me, r):
    """Wait until the other thread has come to round `r` as well."""
    store(mem, MEET + 8 * me, r)
    while load(mem, MEET + 8 * (1 - me)) < r:
        pause()


FENCE, EXCHANGE, NOTHING = range(3)


@entry(WORDS, INT, INT, INT)
def look_at_each_other(mem, me, pattern, rounds):
    """Store a word, then look at the other's; note for each round whether it was there."""
    for r in range(1, rounds + 1):
        meet(mem, me, r)
        if pattern == EXCHANGE:
            exchange(mem, FLAG + 8 * me, r)
            seen = load_sc(mem, FLAG + 8 * (1 - me))
        else:
            store(mem, FLAG + 8 * me, r)
            if pattern == FENCE:
                fence()
            seen = load(mem, FLAG + 8 * (1 - me))
        mem[TALLY + 2 * r + me] = int(seen >= r)
    return L.OK


@entry(WORDS, INT, INT)
def count_up(mem, me, rounds):
    """Add one again and again; note what each addition found."""
    meet(mem, me, 1)
    for r in range(rounds):
        mem[TALLY + 2 * r + me] = fetch_add(mem, FLAG, 1)
    return L.OK


@entry(WORDS, INT, INT)
def swap(mem, me, rounds):
    """Put a different number into one word each time; note which one was there."""
    meet(mem, me, 1)
    for r in range(rounds):
        mem[TALLY + 2 * r + me] = exchange(mem, FLAG, 1 + 2 * r + me)
    return L.OK


@entry(WORDS, INT, INT)
def take_turns(mem, me, rounds):
    """Take a lock, add one to two plain words, and give it back; return how often they differed."""
    torn = 0
    meet(mem, me, 1)
    for _ in range(rounds):
        while not compare_exchange(mem, FLAG, 0, 1):
            pause()
        if mem[TALLY] != mem[TALLY + 8]:
            torn += 1
        mem[TALLY] += 1
        mem[TALLY + 8] += 1
        store(mem, FLAG, 0)
    return torn


@entry(WORDS, INT)
def tell(mem, rounds):
    """Write a word, then say so; again and again."""
    for r in range(1, rounds + 1):
        mem[TALLY] = r
        store(mem, FLAG, r)
    return L.OK


@entry(WORDS, INT)
def believe(mem, rounds):
    """Look what was said, then at the word; return how often the word was older."""
    stale = 0
    said = 0
    while said < rounds:
        said = load(mem, FLAG)
        if mem[TALLY] < said:
            stale += 1
    return stale
