"""A plain, slow twin of the engine, written from the documents: lists, dictionaries, loops.

It shares no code with the package. Where the rules leave a choice (which idle worker, which of the
tasks that one completion makes ready comes first), the twin is told what the engine chose, and
refuses a choice that the rules forbid.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

INPUT, OUTPUT, INOUT, OUTPUT_EXISTING, NO_DEP = range(5)
NEXT_LEVEL, SUB = range(2)
ALIGN = 1024


class Refused(Exception):
    """A submit or alloc that is not accepted: BLOCK, LARGE, FAILED or ARGS."""


class Forbidden(AssertionError):
    """The engine chose something that the rules do not allow."""


def rounded(nbytes):
    while nbytes % ALIGN:
        nbytes += 1
    return nbytes


@dataclass(frozen=True)
class Tensor:
    """A tensor of bytes on its way into submit."""

    tag: int
    data: int
    nbytes: int
    child_memory: bool = False


@dataclass(eq=False)
class Task:
    """Everything that is known of a task."""

    id: int
    ring: int
    state: str
    kind: int = SUB
    callable: int = -1
    scalars: tuple = ()
    tensors: list = field(default_factory=list)  # (data, nbytes, child_memory)
    keys: list = field(default_factory=list)  # (address, owner), as they were inserted
    producers: list = field(default_factory=list)
    kept: list = field(default_factory=list)  # owners of slabs, for their memory alone
    consumers: list = field(default_factory=list)  # those that still wait for this task
    fanin: int = 0
    total: int = 0
    released: int = 0
    worker: int = -1
    reclaimed: bool = False

    def __repr__(self):
        return f"<task {self.id} {self.state}>"

    @staticmethod
    def depend_on(other, those):
        if other is not None and other.state != "CONSUMED" and other not in those:
            those.append(other)

    @property
    def finished(self):
        return self.state in ("COMPLETED", "FAILED")

    @property
    def holds_producers(self):
        return self.state in ("PENDING", "READY", "RUNNING") or self.fanin > 0


@dataclass(eq=False)
class Claim:
    """A place in a ring: whose it is, and bytes [start, start + size), `skipped` more before it."""

    task: Task
    start: int
    size: int
    skipped: int
    released: bool = False


class Ring:
    """A FIFO of claims; memory is a list of blocks, each with its owner or None."""

    def __init__(self, base, size):
        self.base = base
        self.size = size
        self.claims = []
        self.next = 0
        self.blocks = [None] * (size // ALIGN)
        self.peak = 0

    def held(self):
        return sum(claim.size + claim.skipped for claim in self.claims)

    def place(self, size):
        """Return (start, bytes skipped before it) of the next slab, or None if there is no room."""
        if size == 0:
            return self.next, 0
        if self.held() == 0:
            return 0, 0
        if self.next + size <= self.size:
            start, skipped = self.next, 0
        else:
            start, skipped = 0, self.size - self.next
        if self.held() + skipped + size > self.size:
            return None
        return start, skipped

    def claim(self, task, size):
        start, skipped = self.place(size)
        for block in range(start // ALIGN, (start + size) // ALIGN):
            if self.blocks[block] is not None:
                raise Forbidden(f"{task} overlaps {self.blocks[block]}")
            self.blocks[block] = task
        self.claims.append(Claim(task, start, size, skipped))
        self.next = start + size
        self.peak = max(self.peak, self.held())
        return self.base + start

    def release(self, task):
        for claim in self.claims:
            if claim.task is task:
                claim.released = True
        while self.claims and self.claims[0].released:
            old = self.claims.pop(0)
            for block in range(old.start // ALIGN, (old.start + old.size) // ALIGN):
                self.blocks[block] = None
        if not self.claims:
            self.next = 0


class Naive:
    """One engine: the Orch thread's half, the Scheduler's half, and the workers."""

    def __init__(self, *, bases, ring_bytes, window, next_level, sub):
        self.bases = bases
        self.ring_bytes = ring_bytes
        self.window = window
        self.kinds = [NEXT_LEVEL] * next_level + [SUB] * sub
        self.usable = [True] * len(self.kinds)
        self.parked = [False] * len(self.kinds)
        self.mail = ["IDLE"] * len(self.kinds)  # IDLE, TASK_READY, or an answer: OK, ERROR
        self.holds = [None] * len(self.kinds)  # the task a worker was given
        self.dead = set()  # those the Scheduler has not taken note of yet
        self.begin_run()

    # ------------------------------------------------------------ runs
    def begin_run(self):
        self.rings = [Ring(base, self.ring_bytes) for base in self.bases]
        self.ids = 0
        self.edges = 0
        self.completed = 0
        self.failed = 0
        self.error = None  # (what, task, worker)
        self.cancelled = False
        self.live = []
        self.map = {}
        self.slabs = {}  # key → the live task that owns the slab there
        self.scopes = [[]]
        self.wiring = []
        self.held = [False, False]  # per kind: its head waits a moment for a worker that is awake
        self.ready = [[], []]  # per kind: batches, each a list of tasks in no particular order
        self.consumed = []

    # ------------------------------------------------------------ Orch thread
    def ring_here(self):
        return min(len(self.scopes) - 1, len(self.rings) - 1)

    def refuse_or_claim(self, nbytes):
        """Return a new task with its slab's address; or refuse, with nothing changed."""
        index = self.ring_here()
        ring = self.rings[index]
        if nbytes > ring.size:
            raise Refused("LARGE")
        if len(self.live) >= self.window or len(ring.claims) >= self.window:
            raise Refused("BLOCK")
        if ring.place(nbytes) is None:
            raise Refused("BLOCK")
        task = Task(self.ids, index, "FREE")
        self.ids += 1
        self.live.append(task)
        return task, ring.claim(task, nbytes)

    def submit(self, tensors, scalars, callable_index, kind, owner):
        if self.error:
            raise Refused("FAILED")
        if 8 + 40 * len(tensors) + 8 * len(scalars) > 15024:
            raise Refused("ARGS")
        autos = [t for t in tensors if t.tag == OUTPUT and t.data == 0]
        task, address = self.refuse_or_claim(sum(rounded(t.nbytes) for t in autos))
        task.kind, task.callable, task.scalars = kind, callable_index, tuple(scalars)
        before, slabs = dict(self.map), dict(self.slabs)
        for t in tensors:
            data = t.data
            if t in autos and t.nbytes > 0:
                data = address
                address += rounded(t.nbytes)
            task.tensors.append((data, t.nbytes, t.child_memory))
            if data == 0:
                continue
            key = data, owner if t.child_memory else -1
            if t.tag in (INPUT, INOUT):
                task.depend_on(before.get(key), task.producers)
                task.depend_on(slabs.get(key), task.kept)
            if t.tag in (OUTPUT, INOUT, OUTPUT_EXISTING):
                self.map[key] = task
                task.keys.append(key)
                if t in autos:
                    self.slabs[key] = task
        task.kept = [one for one in task.kept if one not in task.producers]
        for one in [*task.producers, *task.kept]:
            one.total += 1
        self.edges += len(task.producers)
        task.state = "PENDING"
        self.register(task)
        self.wiring.append(task)
        return task

    def alloc(self, nbytes):
        if self.error:
            raise Refused("FAILED")
        task, address = self.refuse_or_claim(rounded(nbytes))
        data = address if nbytes else 0
        task.tensors.append((data, nbytes, False))
        if data:
            self.map[data, -1] = self.slabs[data, -1] = task
            task.keys.append((data, -1))
        task.state = "COMPLETED"
        task.released = 1
        self.register(task)
        return task

    def register(self, task):
        task.total += 1
        self.scopes[-1].append(task)

    def open_scope(self):
        if len(self.scopes) == 65:
            return False
        self.scopes.append([])
        return True

    def close_scope(self):
        for task in self.scopes.pop():
            self.drop(task, self.take_back)

    def drop(self, task, when_consumed):
        """Release one reference; act if it was the last one."""
        task.released += 1
        if task.finished and task.released >= task.total + 1:
            task.state = "CONSUMED"
            when_consumed(task)

    def take_back(self, task):
        """Reclaim a CONSUMED task."""
        for key in task.keys:
            if self.slabs.get(key) is task:
                del self.slabs[key]
            if self.map.get(key) is task:
                del self.map[key]
                if key in self.slabs:
                    self.map[key] = self.slabs[key]
        self.rings[task.ring].release(task)
        self.live.remove(task)
        task.state = "FREE"
        task.reclaimed = True

    def reclaim(self):
        for task in self.consumed:
            self.take_back(task)
        self.consumed = []

    def cancel(self):
        self.cancelled = True

    # ------------------------------------------------------------ Scheduler
    def wire_one(self):
        if not self.wiring:
            return
        task = self.wiring.pop(0)
        for producer in task.producers:
            if producer.state == "FAILED":
                self.poison(task)
            elif producer.state != "COMPLETED":
                producer.consumers.append(task)
                task.fanin += 1
        if task.fanin == 0:
            self.unblock(task)

    def poison(self, task):
        if task.state == "PENDING":
            task.state = "FAILED"
            self.failed += 1

    def unblock(self, task):
        """Nothing the task waits for is left."""
        if task.state == "FAILED":
            self.let_go(task)
        else:
            task.state = "READY"
            self.new_ready[task.kind].append(task)

    new_ready = ((), ())

    def batch(self, step):
        """Run a step; what it makes ready joins the queues together."""
        self.new_ready = [[], []]
        step()
        for kind in (NEXT_LEVEL, SUB):
            if self.new_ready[kind]:
                self.ready[kind].append(self.new_ready[kind])

    def finish(self, task, ok):
        task.state = "COMPLETED" if ok else "FAILED"
        if ok:
            self.completed += 1
        else:
            self.failed += 1
        self.let_go(task)

    def let_go(self, task):
        """Tell the consumers, then drop the references on the producers and the task's own."""
        consumers, task.consumers = task.consumers, []
        for consumer in consumers:
            if task.state == "FAILED":
                self.poison(consumer)
            consumer.fanin -= 1
            if consumer.fanin == 0:
                self.unblock(consumer)
        for one in [*task.producers, *task.kept, task]:
            self.drop(one, self.consumed.append)

    def note_error(self, what, task, worker):
        if self.error is None:
            self.error = what, task, worker

    def dispatch(self, kind, given, error_task):
        """Place ready tasks. `given` says which task the engine gave to which worker."""
        queue = self.ready[kind]
        pool = [w for w, k in enumerate(self.kinds) if k == kind]
        while queue:
            idle = [w for w in pool if self.usable[w] and self.holds[w] is None]
            usable = [w for w in pool if self.usable[w]]
            if not self.cancelled and usable and not idle:
                break
            if not self.cancelled and usable:
                awake = [w for w in idle if not self.parked[w]]
                if not awake and any(self.holds) and not self.held[kind]:
                    self.held[kind] = True  # the time to wait is 0 here: the next look ends it
                    return
                self.held[kind] = False
                chosen = [t for t in queue[0] if given.get(t) in (awake or idle)]
                if not chosen:
                    raise Forbidden(f"{idle} are idle while {queue[0]} wait; given: {given}")
                task, worker = chosen[0], given[chosen[0]]
                self.take(queue, task)
                task.state, task.worker = "RUNNING", worker
                self.holds[worker], self.mail[worker] = task, "TASK_READY"
            else:
                task = next((t for t in queue[0] if t is error_task), queue[0][0])
                self.take(queue, task)
                if not self.cancelled:
                    self.note_error("LOST", task, -1)
                self.batch(lambda task=task: self.finish(task, False))
        self.held[kind] = False

    @staticmethod
    def take(queue, task):
        queue[0].remove(task)
        if not queue[0]:
            queue.pop(0)

    def set_idle(self):
        for worker, mail in enumerate(self.mail):
            if mail in ("OK", "ERROR") and self.holds[worker] is None:
                self.mail[worker] = "IDLE"

    def collect(self):
        def step():
            for worker, task in enumerate(self.holds):
                if task is not None and self.mail[worker] in ("OK", "ERROR"):
                    self.holds[worker] = None
                    if self.mail[worker] == "ERROR":
                        self.note_error("RAISED", task, worker)
                    self.finish(task, self.mail[worker] == "OK")

        self.batch(step)

    def bury(self):
        if not self.dead:
            return

        def step():
            for worker in sorted(self.dead):
                self.usable[worker] = False
                task = self.holds[worker]
                if task is not None and self.mail[worker] == "TASK_READY":
                    self.holds[worker] = None
                    self.note_error("LOST", task, worker)
                    self.finish(task, False)

        self.batch(step)
        self.dead = set()

    def one_pass(self, given, error_task):
        self.bury()
        while self.wiring:
            self.batch(self.wire_one)
        self.dispatch(NEXT_LEVEL, given, error_task)
        self.dispatch(SUB, given, error_task)
        self.set_idle()
        self.collect()

    # ------------------------------------------------------------ workers
    def answer(self, worker, ok):
        self.mail[worker] = "OK" if ok else "ERROR"

    def die(self, worker):
        self.dead.add(worker)

    def revive(self, worker):
        self.usable[worker], self.mail[worker] = True, "IDLE"
        self.parked[worker] = False

    def frame(self, task, digest):
        """Return the bytes of a task's mailbox from the digest on."""
        raw = digest + struct.pack("<ii", len(task.tensors), len(task.scalars))
        for data, nbytes, child in task.tensors:
            raw += struct.pack("<Q5IIBB6x", data, nbytes, 0, 0, 0, 0, 1, 5, child)
        return raw + b"".join(struct.pack("<Q", scalar) for scalar in task.scalars)
