"""Every order in which the actors of a model can take their steps."""

from collections import deque

import numpy as np

from simpler_ref.jit import layout as L


class Wrong(AssertionError):
    """Something that must not be; the text tells the steps that lead there."""


def walk(model, take=lambda name, step: step(), most=float("inf")):
    """Take every step in every situation a model can get into; return how many situations there are.

    The nearest come first, so what is wrong is found on a shortest way. It is given up when there are
    more than `most`. A model has `steps`, which yields what can happen, by name and function; `save` and
    `restore`; `key`, which tells situations apart; and `end`, which is called where no step leads on.
    """
    known, todo = {model.key()}, deque([(model.save(), None)])
    while todo and len(known) <= most:
        situation, way = todo.popleft()
        model.restore(situation)
        here, leads_on = model.key(), False
        for name, step in list(model.steps()):
            model.restore(situation)
            try:
                take(name, step)
            except AssertionError as error:
                raise told((way, name), error) from error
            key = model.key()
            leads_on |= key != here
            if key not in known:
                known.add(key)
                todo.append((model.save(), (way, name)))
        if not leads_on:
            model.restore(situation)
            try:
                model.end()
            except AssertionError as error:
                raise told((way, "the end"), error) from error
    return len(known)


def told(way, error):
    """Return an error that tells the way to it."""
    names = []
    while way is not None:
        way, name = way
        names.append(name)
    return Wrong("\n".join([*reversed(names), f"→ {error}"]))


def live_words(driver):
    """Return the offsets of the words that change while an engine serves a few small tasks.

    Left out are the places of buffers in the TensorMap; and what no kernel acts on: what stands in a
    mailbox behind its state, and when a task began.
    """
    mem, few = driver.mem, 32
    ahead = [L.CANDIDATES + kind * L.CANDIDATES_CAPACITY for kind in range(2)]
    parts = [
        (L.RING_BLOCK, L.SCOPE_STACK + few),
        (L.SCHED, L.CANDIDATES),
        (L.ERROR_STATE, L.ERROR_NEEDING + L.STORY_WORDS),
        (L.PASS_LOCK, L.HEADER_WORDS),
    ]
    parts += [(first, first + few) for first in ahead]
    for frame in range(int(mem[L.WORKERS] * mem[L.DEPTH])):
        first = int(mem[L.A_WORKERS]) + frame * L.WORKER_WORDS
        parts.append((first, first + L.W_SINCE))
        parts.append((first + L.W_SINCE + 1, first + L.W_CACHE))
        parts.append((first + L.W_SLOT, first + L.W_MAILBOX + L.MAIL_COMMAND + 1))
    fifos = range(L.A_FIFO, L.A_FIFO + int(mem[L.RINGS]))
    for queue in (L.A_WIRING, *fifos):
        parts.append((int(mem[queue]), int(mem[queue]) + few))
    sizes = {L.A_SLOTS: int(mem[L.WINDOW]) * L.SLOT_WORDS, L.A_SPILL: 4 * L.SPILL_SMALLEST}
    parts += [(int(mem[area]), int(mem[area]) + size) for area, size in sizes.items()]
    return np.concatenate([np.arange(*part) for part in parts])
