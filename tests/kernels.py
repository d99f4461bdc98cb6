"""What tests call: every kernel of the package by its name, and a few kernels of their own.

``kernels.scheduler_pass(mem)`` compiles the kernel for Python on first use and keeps it on disk. Its
signature says how to call it; two of its parameters are easier to give from Python: `w`, where a worker's
words begin, is the worker's number here, and `words` are bytes. With ``NUMBA_DISABLE_JIT=1`` all of them
are plain Python. The kernels of this file play another thread, many steps at a time.
"""

import functools
import hashlib
import inspect
from importlib import import_module

import numpy as np

from simpler_ref.jit import atomics, mailbox
from simpler_ref.jit import kernel as _kernel
from simpler_ref.jit import layout as L
from simpler_ref.jit import serve as _serve
from simpler_ref.jit import steps as _steps
from simpler_ref.jit import submit as _submit
from simpler_ref.jit.atomics import (
    compare_exchange,
    exchange,
    fence,
    fetch_add,
    load,
    load_sc,
    pause,
    store,
)
from simpler_ref.jit.kernel import BYTES, INT, INTERPRETED, WORDS

TYPES = {"mem": WORDS, "words": WORDS}
"""Of the parameters with these names; others are integers."""


def _stamp(func):
    """Return what an entry here is made from: its text, the numbers it may use, and the kernels."""
    numbers = {k: v for k, v in func.__globals__.items() if type(v) is int}
    text = inspect.getsource(func) + repr(sorted(numbers.items()))
    return _kernel.STAMP + hashlib.sha256(text.encode()).hexdigest()


_entries = {}


def entry(*signature):
    """Make a kernel that tests call: like `simpler_ref.jit.kernel.entry`, without the GIL."""

    def wrap(func):
        assert func.__name__ not in _entries, f"there are two entries {func.__name__!r}"
        made = _kernel.entry(*signature, nogil=True, stamp=_stamp(func))(func)
        _entries[func.__name__] = made
        return made

    return wrap


def _find(modules, name):
    """Return a kernel of the package and the names of its parameters."""
    found = {module: getattr(module, name, None) for module in modules}
    own = [one for m, one in found.items() if getattr(one, "__module__", "") == m.__name__]
    if len(own) != 1:
        raise AttributeError(f"{len(own)} kernels have the name {name!r}")
    return own[0], list(inspect.signature(own[0]).parameters)


def _bind(modules, name):
    """Return a kernel of the package as Python calls it, and the names of its parameters."""
    kernel, parameters = _find(modules, name)
    if INTERPRETED:
        return kernel, parameters
    if kernel.__module__ == atomics.__name__:  # an instruction, of which there is no code
        names, scope = ", ".join(parameters), {"kernel": kernel, "__name__": atomics.__name__}
        exec(f"def {name}({names}): return kernel({names})", scope)
        kernel = scope[name]
    signature = [TYPES.get(parameter, INT) for parameter in parameters]
    (made,) = _kernel.bind([_kernel.entry_of(kernel, *signature, nogil=True)])
    return made, parameters


class Kernels:
    """The kernels of some modules, and those of this file, each bound when it is first asked for."""

    def __init__(self, *modules):
        self._modules = modules

    def __getattr__(self, name):
        if name in _entries:
            (made,) = _kernel.bind([_entries[name]])
        else:
            made = _from_python(*_bind(self._modules, name))
        setattr(self, name, made)
        return made


def _from_python(bound, parameters):
    """Let a kernel take a worker's number for `w`, and bytes for `words`."""
    worker = parameters.index("w") if "w" in parameters else None
    words = parameters.index("words") if "words" in parameters else None
    if worker is None and words is None:
        return bound

    @functools.wraps(bound)
    def call(*args):
        args = list(args)
        if worker is not None:
            mem = args[0]
            args[worker] = int(mem[L.A_WORKERS] + args[worker] * mem[L.WORKER_STRIDE])
        if words is not None:
            args[words] = np.frombuffer(bytearray(args[words]), np.int64)
        return bound(*args)

    return call


MODULES = "atomics collect cores dispatch graph journal mailbox queues ring schedule"
MODULES += " serve slots submit tensormap waiting"
kernels = Kernels(*(import_module(f"simpler_ref.jit.{name}") for name in MODULES.split()))


@functools.cache
def compiled_steps():
    """Return what moves an engine by hand, compiled together: a Stepper calls it interpreted."""
    found = {name: one for name, one in vars(_steps).items() if inspect.isfunction(one)}
    found = {name: one for name, one in found.items() if one.__module__ != atomics.__name__}
    del found["encode"]  # it turns bytes into words, as does `submit_task` there
    found["submit_task"] = _submit.submit_task
    types = {"mem": WORDS, "words": BYTES}
    made = [
        _kernel.entry_of(
            one, *(types.get(name, INT) for name in inspect.signature(one).parameters), nogil=True
        )
        for one in found.values()
    ]
    return dict(zip(found, _kernel.bind(made), strict=True))


# ---------------------------------------------------------------- the mailbox, either side
@entry(WORDS, INT, INT)
def check_frames(mem, worker, rounds):
    """Play a worker that gets tasks 1, 2, …, each with its number in all its scalars.

    The test submits callable `number % 7`, whose digest is that number plus one in every byte, and
    `1 + number % 90` scalars. Returns how many frames were not complete when they were seen.
    """
    w, wrong = mailbox.worker_at(mem, worker), 0
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
    box, stale = mailbox.worker_at(mem, worker) + L.W_MAILBOX, 0
    error = 0
    while error < rounds:
        word = load(mem, box + L.MAIL_STATE)
        error = word >> 32
        stale += (word & mailbox.STATE_MASK == L.TASK_DONE) != (error > 0)
        stale += mem[box + L.MAIL_COUNTS] < error or mem[box + L.MAIL_ERROR_MSG] < error
    return stale


# ---------------------------------------------------------------- atomics, alone and against each other
@entry(BYTES)
def sum_of_words(words):
    total = 0
    for i in range(len(words)):
        total += words[i]
    return total


MEET, FLAG, TALLY = 0, 16, 64


def meet(mem, me, r):
    """Wait until the other thread has come to round `r` as well."""
    store(mem, MEET + 8 * me, r)
    while load(mem, MEET + 8 * (1 - me)) < r:
        pause()


FENCE, EXCHANGE = range(2)


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
