"""Actors that run the interpreted kernels, one step at a time, in an order that a schedule chooses.

A step is an access to a word that several actors use. Each actor is a coroutine. Before each of its
steps the schedule may let another actor go first. So whatever threads and processes can do to each other
between two accesses can be played, and played again.

Sleep is as the system has it: `futex_wait` compares the word and sleeps in one step, until somebody wakes
that word. Time is a number that moves on with each look at it. A time limit is over only when nobody can
do anything else, and never if that is not allowed (`no_timers`).

An actor that is a process may die after each of its stores (`dies_after`).
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
from collections import defaultdict, deque
from typing import NamedTuple

import greenlet

import simpler_ref.jit as jit
from simpler_ref.jit import atomics, slots
from simpler_ref.jit import layout as L

from .memory import FENCE, Memory

TICK_NS = 100
"""What passes between two looks at the clock."""
MOST_STEPS = 60_000
"""An actor that comes to no end within so many steps spins for ever."""
MOST_IN_A_ROW = 1500
"""Nobody is kept from running for longer than another's so many steps: the system is fair."""
MOST_TIMEOUTS = 40
"""So many time limits in a row that lead to nothing are taken for quiet."""


class Endless(AssertionError):
    """Somebody spins for ever."""


class Died(BaseException):
    """Ends an actor that is a process."""


class Sleep(NamedTuple):
    word: int
    until: float
    """When its time limit is over; infinite for none."""


class Actor:
    def __init__(self, name, body, process=False):
        self.name, self.process = name, process
        self.greenlet = greenlet.greenlet(body)
        self.sleep = None
        """A `Sleep`, while it sleeps."""
        self.condition = None
        """What it waits for outside the kernels, while it does."""
        self.answer = L.OK
        self.stores = 0
        self.dies_after = None
        self.died = self.ended = False
        self.view = None
        """What it has seen, see `WeakMemory`."""

    def __repr__(self):
        return self.name

    def is_able(self):
        if self.ended or self.sleep is not None:
            return False
        return self.condition is None or self.condition()


class World:
    """Some actors over one memory.

    `no_timers` names actors whose sleeps may not end by their time limit.
    """

    def __init__(self, memory: Memory, schedule, *, no_timers=(), traced=False):
        self.memory, self.schedule = memory, schedule
        self.no_timers = no_timers
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.hub = greenlet.getcurrent()
        self.clock = 1_000_000
        self.steps = self.in_a_row = 0
        self.timeouts = 0
        self.news = False
        """Somebody has become able to go on."""
        self.trace = defaultdict(lambda: deque(maxlen=40)) if traced else None
        self.history: list[tuple[int, str, int]] = []
        """Steps of tasks in the state machine: task, event, its worker."""
        self.exchanged = lambda value: None
        """Is told of each value that an `exchange` has written."""
        memory.world = self

    # ------------------------------------------------------------ actors
    def add(self, name, body, *, process=False):
        def life():
            try:
                body()
            except Died:
                actor.died = True
                self.note("DIES")
            actor.ended = True
            self.news = True

        actor = Actor(name, life, process)
        actor.greenlet.parent = self.hub
        self.memory.join_actor(actor)
        self.actors.append(actor)
        self.news = True
        return actor

    def able(self):
        return [actor for actor in self.actors if actor.is_able()]

    def run(self):
        """Let the actors go on until none can; a time limit is over when there is nothing else to do."""
        while True:
            able = self.able()
            if able:
                self.go_on(self.schedule.pick(self, able))
            elif not self.pass_time():
                return

    def go_on(self, actor):
        self.current = actor
        actor.condition = None
        actor.greenlet.switch()

    def pass_time(self):
        sleepers = [
            actor
            for actor in self.actors
            if actor.sleep is not None
            and not actor.ended
            and actor.sleep.until != float("inf")
            and actor.name not in self.no_timers
        ]
        if not sleepers or self.timeouts > MOST_TIMEOUTS:
            return False
        first = min(sleepers, key=lambda actor: actor.sleep.until)
        self.clock = max(self.clock, int(first.sleep.until) + TICK_NS)
        first.sleep, first.answer = None, L.TIMED_OUT
        self.timeouts += 1
        return True

    def progress(self):
        """Something has been achieved: time limits may be over again."""
        self.timeouts = 0

    # ------------------------------------------------------------ steps
    def step(self):
        """Whoever is about to access a word may have to let another go first."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Endless(f"no end after {self.steps} steps; {self.current} is at it")
        self.in_a_row += 1
        if self.in_a_row > MOST_IN_A_ROW:
            self.give_way()
            return
        chosen = self.schedule.before_step(self)
        if chosen is not None and chosen is not self.current:
            self.switch(chosen)

    def switch(self, to):
        self.current, self.in_a_row = to, 0
        to.condition = None
        to.greenlet.switch()

    def give_way(self):
        """Let others run, if any can: this one only looks again and again."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Endless(f"no end after {self.steps} steps; {self.current} spins")
        me, self.in_a_row = self.current, 0
        others = [actor for actor in self.able() if actor is not me]
        if others:
            chosen = self.schedule.after_look(self, others)
            if chosen is not None:
                self.switch(chosen)

    def leave(self):
        """Go on with somebody else, since the present actor cannot."""
        able = self.able()
        if not able:
            self.hub.switch()
        else:
            chosen = self.schedule.pick(self, able)
            if chosen is not self.current:
                self.switch(chosen)

    def wait(self, condition):
        """Keep the present actor until something holds, outside the kernels."""
        me = self.current
        while not condition():
            me.condition = condition
            self.leave()
        me.condition = None
        self.memory.meet(me)

    def stored(self):
        me = self.current
        if me.process:
            me.stores += 1
            if me.stores == me.dies_after:
                raise Died

    # ------------------------------------------------------------ sleeping and waking
    def futex_wait(self, i, expected, timeout_ns):
        self.step()
        me, seen = self.current, self.memory.newest(i)
        if seen & 0xFFFFFFFF != expected & 0xFFFFFFFF:
            self.note("does not sleep on", i, seen)
            return L.OK
        self.note("sleeps on", i, seen)
        until = float("inf") if timeout_ns < 0 else self.clock + timeout_ns
        me.sleep, me.answer = Sleep(i, until), L.OK
        while me.sleep is not None:
            self.leave()
        self.note("wakes up" if me.answer == L.OK else "wakes up: time is over")
        return me.answer

    def futex_wake(self, i):
        self.step()
        woken = []
        for actor in self.actors:
            if actor.sleep is not None and actor.sleep.word == i and not actor.ended:
                actor.sleep = None
                woken.append(actor.name)
                self.news = True
        self.note(f"wakes {woken or 'nobody'}", i)

    def now_ns(self):
        self.clock += TICK_NS + self.schedule.idle_ns()
        return self.clock

    # ------------------------------------------------------------ what was done
    def note(self, what, i=None, value=None):
        if self.trace is not None:
            frame = sys._getframe(1)
            while frame is not None and "simpler_ref/jit" not in frame.f_code.co_filename:
                frame = frame.f_back
            where = frame.f_code.co_name if frame is not None else "-"
            word = "" if i is None else self.memory.name(i)
            shown = "" if value is None else f" {value}"
            actor = self.current.name if self.current is not None else "start"
            self.trace[actor].append(f"{self.steps:6} {where:22} {what} {word}{shown}")

    def tell(self, last=14):
        """Return the last steps of each actor, and where it is."""
        lines = [f"clock {self.clock}, {self.steps} steps"]
        for actor in self.actors:
            where = "died" if actor.died else "has ended" if actor.ended else "could go on"
            if actor.sleep is not None and not actor.ended:
                where = f"sleeps on {self.memory.name(actor.sleep.word)}"
                if actor.sleep.until != float("inf"):
                    where += " with a time limit"
            elif actor.condition is not None:
                where = "waits outside the kernels"
            lines.append(f"{actor.name}: {where}")
            lines += list(self.trace[actor.name])[-last:] if self.trace is not None else []
        return "\n".join(lines)


# ---------------------------------------------------------------- in place of the atomics
_world: World | None = None


def here() -> World:
    assert _world is not None, "no world is being played"
    return _world


def _fence():
    here().step()
    here().note(FENCE)
    here().memory.fence()


def _step(mem, slot, event):
    """Let an event happen to a slot, and note that it did."""
    answer = _real_step(mem, slot, event)
    if answer == L.OK:
        number, worker = mem.peek(slot + L.S_ID), mem.peek(slot + L.S_WORKER)
        here().history.append((number, slots.EVENTS[event].name, worker))
        here().progress()
    return answer


_real_step = slots.step


def _exchange(mem, i, value):
    try:
        return mem.exchange(i, value)
    finally:  # the store stands, also if its actor dies of it
        here().exchanged(value)


STAND_INS = {
    atomics.load: lambda mem, i: mem.load(i),
    atomics.load_sc: lambda mem, i: mem.load_sc(i),
    atomics.store: lambda mem, i, value: mem.store(i, value),
    atomics.exchange: _exchange,
    atomics.compare_exchange: lambda mem, i, old, new: mem.compare_exchange(i, old, new),
    atomics.fetch_add: lambda mem, i, value: mem.fetch_add(i, value),
    atomics.fence: _fence,
    atomics.futex_wait: lambda mem, i, expected, ns: here().futex_wait(i, expected, ns),
    atomics.futex_wake: lambda mem, i: here().futex_wake(i),
    atomics.now_ns: lambda: here().now_ns(),
    atomics.coarse_ns: lambda: here().clock,
    atomics.pause: lambda: here().give_way(),
    atomics.yield_core: lambda: here().give_way(),
    atomics.core_here: lambda: 0,
    atomics.visit_core: lambda core: False,
    atomics.allow_core: lambda thread, core, allowed: False,
    atomics.thread_id: lambda: 1,
    slots.step: _step,
}
"""What the kernels call instead while a world is played."""


def _modules():
    for found in pkgutil.iter_modules(jit.__path__):
        if found.name not in ("atomics", "_entry"):
            yield importlib.import_module(f"{jit.__name__}.{found.name}")


@contextlib.contextmanager
def played(world: World):
    """Have the kernels tell this world what they do."""
    global _world
    before = []
    for module in _modules():
        for name, value in list(vars(module).items()):
            try:
                stand_in = STAND_INS.get(value)
            except TypeError:  # a value that cannot be a key
                continue
            if stand_in is not None:
                before.append((module, name, value))
                setattr(module, name, stand_in)
    outer, _world = _world, world
    try:
        yield world
    finally:
        _world = outer
        for module, name, value in before:
            setattr(module, name, value)
        for actor in world.actors:  # those that have not ended: give their frames back
            if actor.greenlet:
                with contextlib.suppress(Died):
                    actor.greenlet.throw(greenlet.GreenletExit)
