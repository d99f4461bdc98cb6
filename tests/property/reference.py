"""A reference model of the engine, written from the documents: lists, dictionaries, loops.

It shares no code with the package. Where the rules leave a choice (which idle worker for which member,
which of the tasks that one completion makes ready comes first), the reference is told what the engine
chose, and refuses a choice that the rules forbid.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

INPUT, OUTPUT, INOUT, OUTPUT_EXISTING, NO_DEP = range(5)
NEXT_LEVEL, SUB = range(2)
ALIGN = 1024
ANSWERS = ("OK", "ERROR", "SKIPPED")
LAST_WORDS = {"OK": None, "SKIPPED": None, "ERROR": "RAISED", "TASK_READY": "LOST"}
"""How a task ended that its worker has left like this, or died over: what is noted as its error."""


class Refused(Exception):
    """A submit or alloc that is not accepted: BLOCK, LARGE, FAILED or ARGS."""


class Forbidden(AssertionError):
    """The engine chose something that the rules do not allow."""


def rounded(nbytes):
    while nbytes % ALIGN:
        nbytes += 1
    return nbytes


def host_tensors(members):
    """Return the tensors in the host's memory, as which that of no worker in particular counts."""
    return [
        t
        for tensors, _, worker in members
        for t in tensors
        if t.data and t.nbytes and not (t.child_memory and worker >= 0)
    ]


@dataclass(frozen=True)
class Tensor:
    """A tensor of bytes on its way into submit."""

    tag: int
    data: int
    nbytes: int
    child_memory: bool = False


@dataclass(eq=False)
class Member:
    """What one worker gets of a task: all of it, or one member of a group."""

    tensors: list = field(default_factory=list)  # (data, nbytes, child_memory)
    scalars: tuple = ()
    worker: int = -1  # the only one that may have it, -1 for any


@dataclass(eq=False)
class Task:
    """Everything that is known of a task."""

    id: int
    ring: int
    state: str
    kind: int = SUB
    callable: int = -1
    config: int = 0
    group: bool = False
    members: list = field(default_factory=list)  # one, unless it is a group
    left: int = 0  # members that have not answered
    wrong: bool = False  # a member has failed
    keys: list = field(default_factory=list)  # (address, owner), as they were inserted
    producers: list = field(default_factory=list)
    kept: list = field(default_factory=list)  # owners of slabs, for their memory alone
    after: list = field(default_factory=list)  # those that read what it writes, for their end alone
    consumers: list = field(default_factory=list)  # those that still wait for this task
    fanin: int = 0
    total: int = 0
    released: int = 0
    reclaimed: bool = False

    def __repr__(self):
        return f"<task {self.id} {self.state}>"

    @staticmethod
    def depend_on(other, those):
        if other is not None and other.state != "CONSUMED" and other not in those:
            those.append(other)

    @property
    def tensors(self):
        return [tensor for member in self.members for tensor in member.tensors]

    @property
    def scalars(self):
        return [scalar for member in self.members for scalar in member.scalars]

    @property
    def only(self):
        """The one worker that may run a task of its own, or -1."""
        return -1 if self.group or not self.members else self.members[0].worker

    @property
    def named(self):
        """The workers that a group's members want, and no others."""
        return [member.worker for member in self.members if member.worker >= 0]

    @property
    def finished(self):
        return self.state in ("COMPLETED", "FAILED")

    @property
    def ended(self):
        """Whether it has come to an end, and so has all that it waits for."""
        return self.state in ("COMPLETED", "CONSUMED", "FREE") or (
            self.state == "FAILED" and self.fanin == 0
        )

    @property
    def holds_producers(self):
        return self.state in ("PENDING", "READY", "RUNNING") or self.fanin > 0


@dataclass(eq=False)
class Assignment:
    """What stands in a frame: a task, or one member of it, and what its worker has answered."""

    task: Task
    part: int | None  # which member, None for a task of its own
    mail: str = "TASK_READY"  # or one of ANSWERS
    skip: bool = False  # told that it need not start


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


class Reference:
    """One engine: the Orch thread's half, the Scheduler's half, and the workers."""

    def __init__(
        self, *, bases, ring_bytes, window, next_level, sub, depth, order, track_reads=False
    ):
        self.track_reads = track_reads
        self.order = order  # which of the tasks that one step made ready the engine puts first
        self.bases = bases
        self.ring_bytes = ring_bytes
        self.window = window
        self.kinds = [NEXT_LEVEL] * next_level + [SUB] * sub
        self.usable = [True] * len(self.kinds)
        self.parked = [False] * len(self.kinds)
        self.depth = depth
        self.assignments = [[] for _ in self.kinds]  # what a worker was given, oldest first
        self.mail = ["IDLE"] * len(self.kinds)  # what a mailbox that no task uses says, or CONTROL
        self.claims = [None] * len(self.kinds)  # WAITS or GRANTED: a thread wants the mailbox
        self.uncollected = set()  # idle, and the mailbox has still to say so
        self.pinned = [[] for _ in self.kinds]  # ready tasks for this worker and no other
        self.dead = set()  # those the Scheduler has not taken note of yet
        self.begin_run()

    # ------------------------------------------------------------ runs
    def begin_run(self):
        self.rings = [Ring(base, self.ring_bytes) for base in self.bases]
        self.ids = 0
        self.edges = 0
        self.completed = 0
        self.failed = 0
        self.error = None  # (what, task, worker, member)
        self.cancelled = False
        self.live = []
        self.map = {}
        self.slabs = {}  # key → the live task that owns the slab there
        self.reads = []  # (task, first address, size) if they are tracked
        self.scopes = [[]]
        self.wiring = []
        self.held = [False, False]  # per kind: its head waits a moment for a worker that is awake
        self.stuck = [False, False]  # per kind: its head is a group that waits for its workers
        self.ready = [[], []]  # per kind: those that any worker may run, oldest first
        self.age = {}  # ready task → how many were ready before it
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
        one_ring = len(self.rings) == 1
        if len(self.live) >= self.window or (one_ring and len(ring.claims) >= self.window):
            raise Refused("BLOCK")
        if ring.place(nbytes) is None:
            raise Refused("BLOCK")
        task = Task(self.ids, index, "FREE")
        self.ids += 1
        self.live.append(task)
        return task, ring.claim(task, nbytes)

    def submit(self, members, group, callable_index, kind, config):
        """Add a task. `members` are (tensors, scalars, worker); there is one unless it is a group."""
        if self.error:
            raise Refused("FAILED")
        for tensors, scalars, _ in members:
            if 8 + 40 * len(tensors) + 8 * len(scalars) > 15024:
                raise Refused("ARGS")
        every = [t for tensors, _, _ in members for t in tensors]
        autos = [t for t in every if t.tag == OUTPUT and t.data == 0]
        task, address = self.refuse_or_claim(sum(rounded(t.nbytes) for t in autos))
        task.kind, task.callable, task.config, task.group = kind, callable_index, config, group
        before, slabs = dict(self.map), dict(self.slabs)
        if self.track_reads:
            self.order_after_readers(task, host_tensors(members))
        for tensors, scalars, worker in members:
            member = Member([], tuple(scalars), worker)
            task.members.append(member)
            for t in tensors:
                data = t.data
                if t in autos and t.nbytes > 0:
                    data = address
                    address += rounded(t.nbytes)
                member.tensors.append((data, t.nbytes, t.child_memory))
                if data == 0 or t.nbytes == 0:
                    continue
                key = data, worker if t.child_memory else -1
                if t.tag in (INPUT, INOUT):
                    task.depend_on(before.get(key), task.producers)
                    task.depend_on(slabs.get(key), task.kept)
                if t.tag in (OUTPUT, INOUT, OUTPUT_EXISTING):
                    self.map[key] = task
                    task.keys.append(key)
                    if t in autos:
                        self.slabs[key] = task
        task.after = [one for one in task.after if one not in task.producers]
        task.kept = [one for one in task.kept if one not in [*task.producers, *task.after]]
        for one in [*task.producers, *task.kept, *task.after]:
            one.total += 1
        self.edges += len(task.producers) + len(task.after)
        task.state = "PENDING"
        self.register(task)
        self.wiring.append(task)
        return task

    def order_after_readers(self, task, tracked):
        """Have a task wait for all that read what it writes; then note what it reads.

        A new read takes the place of those that its task waits for.
        """
        for t in tracked:
            for reader, data, nbytes in self.reads:
                together = data < t.data + t.nbytes and t.data < data + nbytes
                if t.tag in (OUTPUT, INOUT, OUTPUT_EXISTING) and together and not reader.ended:
                    task.depend_on(reader, task.after)
        tracked.reverse()
        for t in sorted(tracked, key=lambda t: t.tag != INOUT):
            key, span = (t.data, -1), (t.data, t.nbytes)
            if t.tag == INOUT:
                end = t.data + t.nbytes
                self.reads = [r for r in self.reads if r[1] < t.data or r[1] + r[2] > end]
            elif t.tag == INPUT and key in self.map and self.slabs.get(key) is not self.map[key]:
                last = self.map[key].id
                self.reads = [r for r in self.reads if r[1:] != span or r[0].id > last]
            if t.tag in (INPUT, INOUT):
                self.reads.append((task, *span))

    def alloc(self, nbytes):
        if self.error:
            raise Refused("FAILED")
        task, address = self.refuse_or_claim(rounded(nbytes))
        data = address if nbytes else 0
        task.members.append(Member([(data, nbytes, False)]))
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
        for assignments in self.assignments:
            for assignment in assignments[1:]:
                assignment.skip = True

    # ------------------------------------------------------------ Scheduler
    def wire_one(self):
        if not self.wiring:
            return
        task = self.wiring.pop(0)
        for producer in [*task.producers, *task.after]:
            if producer.state == "FAILED" and producer in task.producers:
                self.poison(task)
            if not self.is_terminal(producer):
                producer.consumers.append(task)
                task.fanin += 1
        if task.fanin == 0:
            self.unblock(task)

    def is_terminal(self, producer):
        """Say whether nobody has to wait for a task; one that stands for others must have ended."""
        return producer.ended if self.track_reads else producer.finished

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
            self.new_ready.append(task)

    new_ready = ()

    def batch(self, step):
        """Run a step; what it makes ready joins the queues, in the order that the engine chose."""
        self.new_ready = []
        step()
        for task in sorted(self.new_ready, key=self.order):
            age = self.order(task)
            if any(age <= other for other in self.age.values()):
                raise Forbidden(f"{task} is put before what was ready earlier")
            self.age[task] = age
            queue = self.ready[task.kind] if task.only < 0 else self.pinned[task.only]
            queue.append(task)

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
            if task.state == "FAILED" and task not in consumer.after:
                self.poison(consumer)
            consumer.fanin -= 1
            if consumer.fanin == 0:
                self.unblock(consumer)
        for one in [*task.producers, *task.kept, *task.after, task]:
            self.drop(one, self.consumed.append)

    def note_error(self, what, task, worker, member=-1):
        if self.error is None:
            self.error = what, task, worker, member

    # what may start
    def pool(self, kind):
        return [worker for worker, k in enumerate(self.kinds) if k == kind]

    def is_idle(self, worker):
        return self.has_room(worker) and not self.assignments[worker]

    def has_room(self, worker):
        free = len(self.assignments[worker]) < self.depth and self.claims[worker] is None
        return self.usable[worker] and free

    def lost_for(self, task):
        """Return a dead worker that a ready task cannot do without, -1 if too few live, else None."""
        for worker in task.named if task.group else [task.only]:
            if worker >= 0 and not self.usable[worker]:
                return worker
        if sum(self.usable[w] for w in self.pool(task.kind)) < len(task.members):
            return -1
        return None

    def fits(self, group):
        """Say whether each member of a group can have a worker of its own, all at once."""
        idle = [w for w in self.pool(group.kind) if self.is_idle(w)]
        return set(group.named) <= set(idle) and len(idle) >= len(group.members)

    def candidates(self, kind):
        """Return the workers of which a task for any of them gets one, and whether it must wait."""
        idle = [w for w in self.pool(kind) if self.is_idle(w)]
        awake = [w for w in idle if not self.parked[w]]
        if awake:
            return awake, False
        busy = [w for w in self.pool(kind) if self.has_room(w) and self.assignments[w]]
        fewest = min((len(self.assignments[w]) for w in busy), default=0)
        busy = [w for w in busy if len(self.assignments[w]) == fewest]
        if not idle:
            return busy, False
        return idle, any(self.assignments)

    def may_leave(self, worker):
        """Say whether the oldest task for this worker alone has its turn."""
        chain = self.pinned[worker]
        if not chain:
            return False
        if self.cancelled or not self.usable[worker]:
            return True
        queue = self.ready[self.kinds[worker]]
        older = not queue or self.age[chain[0]] < self.age[queue[0]]
        return self.has_room(worker) and older

    def head_may_leave(self, kind):
        """Say whether the oldest task for any worker has its turn; one that is held back has not."""
        if not self.ready[kind]:
            return False
        task = self.ready[kind][0]
        if self.cancelled or self.lost_for(task) is not None:
            return True
        if task.group:
            return self.fits(task)
        workers, sleep = self.candidates(kind)
        return bool(workers) and (not sleep or self.held[kind])

    def would_move(self):
        """Say whether a pass would change anything, but for the clock of a task that is held back."""
        answered = (held and held[0].mail in ANSWERS for held in self.assignments)
        leave = (
            self.head_may_leave(kind) or any(self.may_leave(w) for w in self.pool(kind))
            for kind in (NEXT_LEVEL, SUB)
        )
        return bool(self.dead or self.wiring or self.uncollected) or any(answered) or any(leave)

    # what does start
    def dispatch(self, kind, given):
        """Place ready tasks. `given` says what each worker has in the engine: tasks, and which member."""
        self.dispatch_affinity(kind, given)
        self.dispatch_ready(kind, given)
        self.dispatch_affinity(kind, given)

    def dispatch_affinity(self, kind, given):
        for worker in self.pool(kind):
            while self.may_leave(worker):
                task = self.pinned[worker].pop(0)
                if self.cancelled or not self.usable[worker]:
                    self.drop_ready(task, worker)
                else:
                    self.start(task, {worker: None}, given)

    def dispatch_ready(self, kind, given):
        queue = self.ready[kind]
        self.stuck[kind] = False
        while queue:
            task = queue[0]
            lost = self.lost_for(task)
            if self.cancelled or lost is not None:
                self.drop_ready(queue.pop(0), lost)
            elif task.group:
                if not self.fits(task):
                    self.stuck[kind] = True
                    break
                self.start(queue.pop(0), self.places(task, given), given)
            else:
                workers, sleep = self.candidates(kind)
                if sleep and not self.held[kind]:
                    self.held[kind] = True  # the time to wait is 0 here: the next look ends it
                    return
                if not workers:
                    break
                chosen = [w for w in workers if (task, None) in given[w]]
                if len(chosen) != 1:
                    raise Forbidden(f"{workers} could have {task}; given: {given}")
                self.held[kind] = False
                self.start(queue.pop(0), {chosen[0]: None}, given)
        self.held[kind] = False

    def places(self, group, given):
        """Return worker → member as the engine chose it, once it is found to be right."""
        idle = [w for w in self.pool(group.kind) if self.is_idle(w)]
        chosen = {w: m for w in idle for task, m in given[w] if task is group}
        if sorted(chosen.values()) != list(range(len(group.members))):
            raise Forbidden(f"{group}: the members are at {chosen}, not one on each worker")
        for worker, m in chosen.items():
            if group.members[m].worker not in (-1, worker):
                raise Forbidden(f"{group}: member {m} is at worker {worker}")
        free = [w for w in chosen if group.members[chosen[w]].worker == -1]
        awake = [w for w in idle if w not in chosen and not self.parked[w]]
        if awake and any(self.parked[w] for w in free):
            raise Forbidden(f"{group}: {free} were chosen although {awake} are awake")
        return chosen

    def start(self, task, places, given):
        del self.age[task]
        task.state, task.left = "RUNNING", len(task.members)
        for worker, member in places.items():
            if not self.has_room(worker) or (task, member) not in given[worker]:
                raise Forbidden(f"worker {worker} has {given[worker]}, without {task}")
            self.assignments[worker].append(Assignment(task, member))
            self.uncollected.discard(worker)

    def drop_ready(self, task, lost):
        del self.age[task]
        if not self.cancelled:
            self.note_error("LOST", task, lost)
        self.batch(lambda: self.finish(task, False))

    # what ends
    def set_idle(self):
        for worker in self.uncollected:
            self.mail[worker] = "IDLE"
        self.uncollected = set()

    def vacate(self, worker):
        """Take the oldest task off a worker; without any, its mailbox goes to whoever wants it."""
        assignment = self.assignments[worker].pop(0)
        if self.assignments[worker]:
            return
        self.mail[worker] = assignment.mail
        if self.usable[worker] and self.claims[worker] == "WAITS":
            self.grant(worker)
        elif self.usable[worker]:
            self.uncollected.add(worker)

    def end_member(self, task, ok):
        """A worker is done with a task, or with one member of it."""
        task.left -= 1
        if not ok and not task.wrong:
            task.wrong = True
            for assignment in self.all_assignments():
                if task.group and assignment.task is task:
                    assignment.skip = True
        if task.left == 0:
            self.finish(task, not task.wrong)

    def all_assignments(self):
        return [assignment for assignments in self.assignments for assignment in assignments]

    def collect(self):
        def step():
            for worker in range(len(self.kinds)):
                self.collect_from(worker)

        self.batch(step)

    def collect_from(self, worker):
        while self.assignments[worker] and self.assignments[worker][0].mail in ANSWERS:
            self.end_oldest(worker)

    def end_oldest(self, worker):
        """A worker's oldest task has ended, or is lost."""
        assignment = self.assignments[worker][0]
        if LAST_WORDS[assignment.mail]:
            part = -1 if assignment.part is None else assignment.part
            self.note_error(LAST_WORDS[assignment.mail], assignment.task, worker, part)
        self.vacate(worker)
        self.end_member(assignment.task, assignment.mail == "OK")

    def handle_deaths(self):
        if not self.dead:
            return
        for worker in self.dead:
            self.usable[worker] = False
        self.collect()

        def step():
            for worker in sorted(self.dead):
                while self.assignments[worker]:
                    self.end_oldest(worker)
                if self.claims[worker] == "WAITS":
                    self.claims[worker] = "REFUSED"

        self.batch(step)
        self.dead = set()

    def one_pass(self, given):
        self.handle_deaths()
        while self.wiring:
            self.batch(self.wire_one)
        self.dispatch(NEXT_LEVEL, given)
        self.dispatch(SUB, given)
        self.set_idle()
        self.collect()

    # ------------------------------------------------------------ workers
    def at(self, worker):
        """Return what a worker is at, None if it has answered everything."""
        return next((e for e in self.assignments[worker] if e.mail == "TASK_READY"), None)

    def answer(self, worker, what):
        self.at(worker).mail = what

    def die(self, worker):
        self.dead.add(worker)

    def revive(self, worker):
        self.usable[worker], self.mail[worker] = True, "IDLE"
        self.parked[worker] = False

    @staticmethod
    def frame(assignment, digest):
        """Return the bytes of a frame from the digest on."""
        member = assignment.task.members[assignment.part or 0]
        raw = digest + struct.pack("<ii", len(member.tensors), len(member.scalars))
        for data, nbytes, child in member.tensors:
            raw += struct.pack("<Q5IIBB6x", data, nbytes, 0, 0, 0, 0, 1, 5, child)
        return raw + b"".join(struct.pack("<Q", scalar) for scalar in member.scalars)

    # ------------------------------------------------------------ threads that want a mailbox
    def claim(self, worker):
        """Ask for a worker's mailbox; it is given now, or when the worker's task is collected."""
        self.claims[worker] = "WAITS"
        self.uncollected.discard(worker)
        if not self.assignments[worker]:
            self.grant(worker)

    def grant(self, worker):
        self.claims[worker] = "GRANTED"
        self.mail[worker] = "IDLE"

    def give_back(self, worker):
        self.claims[worker] = None
