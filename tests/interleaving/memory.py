"""The engine's words as actors share them: in one order for all, or as weakly ordered machines have them.

`Memory` is a dict of words. Those that several actors use stand in `cells`, apart: who accesses one of
them takes a step. Reading any other word costs no more than a look into a dict.

`Recorder` finds out which words are shared, and which are used without order.

`WeakMemory` keeps of each shared word all values it ever had, and of each actor which of them it has seen
(its view). A load may give any value that is not older than the actor's view of that word. A store with
release carries the view of its actor along, and a load with acquire takes it over. Read-modify-writes act
on the newest value and do both. A fence exchanges views with all other fences; it makes acquires of the
plain loads before it and releases of the stores after it. `load_sc` sees what every fence and exchange
before it has written to that word. This is what C11 says of release, acquire and fences; plain accesses
are like its relaxed ones. Left out are stores that are seen before a load that comes earlier in their
thread: of those, `Recorder` sees the race.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from simpler_ref.jit import layout as L

PLAIN, ORDERED, SEQ_CST = "plain", "ordered", "seq_cst"
FENCE = "fence"


# ---------------------------------------------------------------- what words are called
NOTES = 8
"""A journal is no larger here."""
DATA = 1 << 40
"""First of the words that stand for the contents of tensors."""

_HEADER = {field.at: field.name for field in L.HEADER.fields if field.at >= L.ORCH}
_WORKER = {field.at: field.name for field in L.WORKER.fields}
_JOURNAL = {field.at: field.name for field in L.JOURNAL.fields}
_SLOT = {field.at: field.name for field in L.SLOT.fields}


def name_of(mem, i):
    """Return what a word is called: ``PARK_ORCH``, ``worker 1 W_AT``, ``slot 2 S_STATE``."""
    i = int(i)
    if i >= DATA:
        return f"data {i - DATA}"
    if i < L.HEADER_WORDS:
        return _nearest(_HEADER, i) if i >= L.ORCH else f"geometry {i}"
    peek = mem.peek
    first, stride = peek(L.A_WORKERS), peek(L.WORKER_STRIDE)
    if first <= i < first + peek(L.WORKERS) * stride:
        worker, place = divmod(i - first, stride)
        frame, place = divmod(place, L.WORKER_WORDS)
        name = _nearest(_WORKER, place)
        if place == L.W_MAILBOX + L.MAIL_STATE:
            name = "MAIL_STATE"
        return f"worker {worker} " + (f"frame {frame} " if frame else "") + name
    if peek(L.A_SLOTS) <= i < peek(L.A_SPILL):
        slot, place = divmod(i - peek(L.A_SLOTS), L.SLOT_WORDS)
        return f"slot {slot} {_nearest(_SLOT, place)}"
    for journal in range(L.JOURNALS_OF_WORKERS + peek(L.WORKERS)):
        place = i - L.journal_offset(peek(L.A_JOURNALS), journal)
        if 0 <= place < L.JOURNAL_HEAD_WORDS + L.NOTE_WORDS * NOTES:
            what = f"note {(place - L.JOURNAL_HEAD_WORDS) // L.NOTE_WORDS}"
            name = _nearest(_JOURNAL, place) if place < L.JOURNAL_HEAD_WORDS else what
            return f"journal {journal} {name}"
    areas = {"wiring": L.A_WIRING, "map": L.A_MAP, "fifo": L.A_FIFO}
    before = [(peek(where), name) for name, where in areas.items() if peek(where) <= i]
    start, name = max(before)
    return f"{name} {i - start}"


def _nearest(names, i):
    start = max((value for value in names if value <= i), default=0)
    return names.get(start, "word") + (f" + {i - start}" if i != start else "")


# ---------------------------------------------------------------- memory
class Weakening(NamedTuple):
    """A place in the kernels that is made weaker than it is: an access made plain, a fence left out.

    `function` and `operation` say where, `word` a part of the word's name if there are several there.
    """

    function: str
    operation: str
    word: str = ""

    def __str__(self):
        return f"{self.operation} {self.word}".strip() + f" in {self.function}"


class Memory(dict):
    def __init__(self, words, cells=(), points=None, weakened=()):
        super().__init__(words)
        self.weakened = weakened
        self.cells = {i: super(Memory, self).pop(i, 0) for i in cells}
        self.points = self.cells.keys() if points is None else points
        """Before these a schedule may switch; accesses to other cells follow from theirs."""
        self.world = None

    def name(self, i):
        return name_of(self, i)

    def peek(self, i):
        """Return the newest value of a word without taking a step."""
        return self.cells[i] if i in self.cells else self.get(i, 0)

    newest = peek

    def join_actor(self, actor):
        pass

    def meet(self, actor):
        pass

    # ------------------------------------------------------------ plain accesses
    def __missing__(self, i):
        if i in self.cells:
            return self.load(i)
        super().__setitem__(i, 0)  # so that it is found at once the next time
        return 0

    def __setitem__(self, i, value):
        if i in self.cells:
            self.store(i, value)
        else:
            super().__setitem__(i, int(value))

    # ------------------------------------------------------------ atomics
    def load(self, i):
        if i not in self.cells:
            return self.get(i, 0)
        self.at(i)
        if self.world.trace is not None:
            self.world.note("reads", i, self.cells[i])
        return self.cells[i]

    load_sc = load

    def store(self, i, value):
        if i not in self.cells:
            super().__setitem__(i, int(value))
            return
        self.at(i)
        self.cells[i] = int(value)
        self.changed("writes", i, value)

    def exchange(self, i, value):
        return self.change(i, lambda old: int(value))

    def fetch_add(self, i, value):
        return self.change(i, lambda old: old + value)

    def compare_exchange(self, i, expected, value):
        return self.change(i, lambda old: int(value) if old == expected else None) == expected

    def change(self, i, made):
        """Read and write in one step; return what stood there. `made` answers None to leave that."""
        if i not in self.cells:
            old = self.get(i, 0)
            if (new := made(old)) is not None:
                super().__setitem__(i, new)
            return old
        self.at(i)
        old = self.cells[i]
        new = made(old)
        if new is not None:
            self.cells[i] = new
            self.changed(f"changes {old} to", i, new)
        return old

    def fence(self):
        pass

    def order(self, operation, i, normal, depth=3):
        """Return how strong an access of the kernel is that stands so deep below this call."""
        if self.weakened:
            function = sys._getframe(depth).f_code.co_name
            for weakening in self.weakened:
                if weakening[:2] == (function, operation) and weakening.word in self.name(i):
                    return PLAIN
        return normal

    def leaves_out_fence(self):
        if not self.weakened:
            return False
        function = sys._getframe(3).f_code.co_name
        return any(one.operation == FENCE and one.function == function for one in self.weakened)

    # ------------------------------------------------------------ steps
    def at(self, i):
        if i in self.points:
            self.world.step()

    def changed(self, what, i, value):
        if self.world.trace is not None:
            self.world.note(what, i, value)
        self.world.stored()


class Ordered(Memory):
    """Memory whose accesses are as strong as the kernels say, or as `weakened` makes them."""

    def load(self, i):
        return self.read(i, self.order("load", i, ORDERED))

    def load_sc(self, i):
        return self.read(i, self.order("load_sc", i, SEQ_CST))

    def store(self, i, value):
        self.write(i, int(value), self.order("store", i, ORDERED))

    def change(self, i, made):
        order = self.order(sys._getframe(1).f_code.co_name, i, SEQ_CST, depth=4)
        if order != PLAIN:
            return self.change_at_once(i, made, order)
        old = self.read(i, PLAIN)  # it falls apart: a load and a store
        if (new := made(old)) is not None:
            self.write(i, new, PLAIN)
        return old


class Recorder(Ordered):
    """Finds out which words several actors use, and which of those at the same time.

    Each actor has a clock: how far it has come, and how far others had when it last took over what they
    released. Two accesses of which neither comes before the other by these clocks are a race, if one of
    them writes and one is plain. Words without races need no steps: nobody looks meanwhile.
    """

    def __init__(self, words, weakened=()):
        super().__init__(words, weakened=weakened)
        self.users, self.written = {}, set()
        self.atomic, self.races = set(), {}
        self.released, self.last_write, self.last_reads = {}, {}, {}
        self.fences = {}

    def join_actor(self, actor):
        creator = self.world.current
        actor.clock = dict(creator.clock) if creator is not None else {}
        actor.clock[actor] = 1
        actor.at_fence, actor.until_fence = {}, {}
        if creator is not None:
            creator.clock[creator] += 1

    def meet(self, actor):
        """An actor has waited for others outside the kernels: it knows what they have done."""
        for other in self.world.actors:
            join(actor.clock, other.clock)
            other.clock[other] += 1

    def used(self, i, writes, plain):
        actor = self.world.current
        clock = actor.clock
        self.users.setdefault(i, set()).add(actor.name.removesuffix(" again"))
        writer, when, was_plain = self.last_write.get(i, (actor, 0, False))
        others = [writer] if (plain or was_plain) and clock.get(writer, 0) < when else []
        reads = self.last_reads.setdefault(i, {})
        if writes:
            others += [
                reader
                for reader, (when, was_plain) in reads.items()
                if (plain or was_plain) and clock.get(reader, 0) < when
            ]
            self.last_write[i] = actor, clock[actor], plain
            self.last_reads[i] = {}
            self.written.add(i)
        else:
            reads[actor] = clock[actor], plain
        if others and i not in self.races:
            self.races[i] = f"{actor} and {others[0]}"
        if not plain:
            self.atomic.add(i)

    def __getitem__(self, i):
        if self.world.current is not None:
            self.used(i, False, True)
        return self.get(i, 0)

    def __setitem__(self, i, value):
        if self.world.current is not None:
            self.used(i, True, True)
        dict.__setitem__(self, i, int(value))

    def read(self, i, order):
        self.world.step()
        self.used(i, False, False)
        me = self.world.current
        join(me.clock if order != PLAIN else me.until_fence, self.released.get(i, NOTHING))
        return self.get(i, 0)

    def write(self, i, value, order):
        self.world.step()
        self.put(i, value, order, NOTHING)

    def put(self, i, value, order, before):
        self.used(i, True, False)
        me = self.world.current
        self.released[i] = dict(me.clock if order != PLAIN else me.at_fence)
        join(self.released[i], before)
        me.clock[me] += 1
        dict.__setitem__(self, i, int(value))
        self.world.stored()

    def change_at_once(self, i, made, order):
        old = self.read(i, order)
        if (new := made(old)) is not None:
            self.put(i, new, order, self.released.get(i, NOTHING))
        return old

    def fence(self):
        if self.leaves_out_fence():
            return
        me = self.world.current
        join(me.clock, me.until_fence)
        join(me.clock, self.fences)
        self.fences = dict(me.clock)
        me.at_fence = dict(me.clock)
        me.clock[me] += 1

    def shared(self):
        return {i for i, users in self.users.items() if len(users) > 1 and i in self.written}

    def racy(self):
        return self.shared() & (self.atomic | self.races.keys())


NOTHING: dict = {}


def join(clock, other):
    """Take over from another clock, or view, what is further there."""
    for i, n in other.items():
        if clock.get(i, 0) < n:
            clock[i] = n


# ---------------------------------------------------------------- weak
MOST_LOOKS = 40
"""After so many looks in a row a store is seen: none stays hidden for ever."""


class Seen:
    """What an actor has seen."""

    __slots__ = ("after_fence", "looks", "now", "released")

    def __init__(self):
        self.looks = {}
        """Word → how many loads in a row have answered what is old."""
        self.now = {}
        """Word → which of its values is the oldest it can still read."""
        self.after_fence = {}
        """What its plain loads add to that at the next fence."""
        self.released = {}
        """What it had seen at its last fence: its plain stores carry this along."""


class WeakMemory(Ordered):
    def __init__(self, words, cells=(), points=None, weakened=()):
        super().__init__(words, cells, points, weakened)
        self.values = {i: [(value, NOTHING)] for i, value in self.cells.items()}
        self.fenced: dict[int, int] = {}

    def history(self, i):
        """Return all values of a word; one that nobody has played at before is kept from now on."""
        if i not in self.cells:
            self.cells[i] = self.pop(i, 0)
            self.values[i] = [(self.cells[i], NOTHING)]
        return self.values[i]

    def newest(self, i):
        if i not in self.cells:
            return self.get(i, 0)
        self.world.current.view.now[i] = len(self.values[i]) - 1
        return self.cells[i]

    def join_actor(self, actor):
        """An actor begins: it has seen what whoever starts it has seen, here all there is."""
        actor.view = Seen()
        actor.view.now = {i: len(values) - 1 for i, values in self.values.items()}

    def __missing__(self, i):
        if i in self.cells:
            return self.read(i, PLAIN)
        return super().__missing__(i)

    def __setitem__(self, i, value):
        if i in self.cells:
            self.write(i, int(value), PLAIN)
        else:
            dict.__setitem__(self, i, int(value))

    def meet(self, actor):
        actor.view.now = {i: len(values) - 1 for i, values in self.values.items()}

    def read(self, i, order):
        self.at(i)
        seen, values = self.world.current.view, self.history(i)
        oldest = seen.now.get(i, 0)
        if order == SEQ_CST:
            oldest = max(oldest, self.fenced.get(i, 0))
        newest = len(values) - 1
        n = newest
        if oldest < newest and seen.looks.get(i, 0) < MOST_LOOKS:
            n -= self.world.schedule.how_old(newest - oldest + 1)
        if n < newest:
            seen.looks[i] = seen.looks.get(i, 0) + 1
        elif i in seen.looks:
            del seen.looks[i]
        value, view = values[n]
        seen.now[i] = n
        join(seen.now if order != PLAIN else seen.after_fence, view)
        if self.world.trace is not None:
            old = f", {newest - n} behind" if n != newest else ""
            self.world.note(f"reads ({order}{old})", i, value)
        return value

    def write(self, i, value, order):
        self.at(i)
        self.put(i, value, order)
        self.changed(f"writes ({order})", i, value)

    def put(self, i, value, order, before=NOTHING):
        seen, values = self.world.current.view, self.history(i)
        n = len(values)
        seen.now[i] = n
        view = dict(seen.now if order != PLAIN else seen.released)
        join(view, before)
        view[i] = n
        values.append((value, view))
        self.cells[i] = value
        if order == SEQ_CST:
            self.fenced[i] = n

    def change_at_once(self, i, made, order):
        self.at(i)
        seen, values = self.world.current.view, self.history(i)
        old, view = values[-1]
        seen.now[i] = len(values) - 1
        join(seen.now, view)
        new = made(old)
        if new is not None:
            self.put(i, new, order, view)  # it goes on carrying what the store that it read carried
            self.changed(f"changes ({order}) {old} to", i, new)
        return old

    def fence(self):
        if self.leaves_out_fence():
            return
        seen = self.world.current.view
        join(seen.now, seen.after_fence)
        join(seen.now, self.fenced)
        self.fenced = dict(seen.now)
        seen.released = dict(seen.now)
