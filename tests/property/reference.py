"""A reference model of the engine, written from the documents: lists, dictionaries, loops.

It shares no code with the package. Where the rules leave a choice (which idle worker for which member,
which of the tasks that one completion makes ready comes first), the model is told what the engine chose,
and asserts that the rules allow it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import chain

INPUT, OUTPUT, INOUT, OUTPUT_EXISTING, NO_DEP = range(5)
NEXT_LEVEL, SUB = range(2)
ALIGN = 1024
ANSWERS = ("OK", "ERROR", "SKIPPED")
LAST_WORDS = {"OK": None, "SKIPPED": None, "ERROR": "RAISED", "TASK_READY": "LOST"}
"""How a task ended that its worker has left like this, or died over: what is noted as its error."""


class Refused(Exception):
    """A submit or alloc that is not accepted: BLOCK, LARGE, FAILED or ARGS."""


def rounded(nbytes):
    """Return a size as a ring has it."""
    return -(-nbytes // ALIGN) * ALIGN


def host_tensors(members):
    """Return the tensors in the host's memory, as which that of no worker in particular counts."""
    return [
        t
        for tensors, _, worker in members
        for t in tensors
        if t.data and t.nbytes and not (t.child_memory and worker >= 0)
    ]


@dataclass(frozen=True)
class ModelTensor:
    """A tensor of bytes on its way into submit."""

    tag: int
    data: int
    nbytes: int
    child_memory: bool = False


@dataclass(eq=False)
class ModelMember:
    """What one worker gets of a task: all of it, or one member of a group."""

    tensors: list  # data, nbytes, child_memory
    scalars: tuple
    worker: int = -1  # the only one that may have it, -1 for any


@dataclass(eq=False)
class ModelTask:
    """Everything that is known of a task."""

    id: int
    ring: int
    state: str = "FREE"
    callable: int = -1  # of a buffer
    config: int = -1
    kind: int = SUB
    group: bool = False
    members: list[ModelMember] = field(default_factory=list)  # one, unless it is a group
    left: int = 0  # members that have not answered
    wrong: bool = False  # a member has failed
    keys: list = field(default_factory=list)  # (address, owner), as they were inserted
    producers: list[ModelTask] = field(default_factory=list)
    kept: list[ModelTask] = field(default_factory=list)  # owners of slabs, for their memory alone
    after: list[ModelTask] = field(default_factory=list)  # who reads what it writes, for their end
    consumers: list[ModelTask] = field(default_factory=list)  # those that still wait for this task
    fanin: int = 0
    total: int = 0
    released: int = 0

    def __str__(self):
        return f"task {self.id}"

    @staticmethod
    def depend_on(other, those):
        """Add a task to some others, unless it is among them or gone."""
        if other is not None and other.state != "CONSUMED" and other not in those:
            those.append(other)

    @property
    def tensors(self):
        """Those of all members."""
        return [tensor for member in self.members for tensor in member.tensors]

    @property
    def scalars(self):
        """Those of all members."""
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
        """Whether it has run, or failed without."""
        return self.state in ("COMPLETED", "FAILED")

    @property
    def ended(self):
        """Whether it has come to an end, and so has all that it waits for."""
        return self.state in ("COMPLETED", "CONSUMED", "FREE") or (
            self.state == "FAILED" and self.fanin == 0
        )


@dataclass(eq=False)
class Assignment:
    """What stands in a frame: a task, or one member of it, and what its worker has answered."""

    task: ModelTask
    part: int | None  # which member, None for a task of its own
    mail: str = "TASK_READY"  # or one of ANSWERS
    skip: bool = False  # told that it need not start


@dataclass(eq=False)
class Claim:
    """A place in a ring: whose it is, and bytes [start, start + size), `skipped` more before it."""

    task: ModelTask
    start: int
    size: int
    skipped: int
    released: bool = False


class ModelRing:
    """A FIFO of claims."""

    def __init__(self, base, size):
        self.base = base
        self.size = size
        self.claims = []
        self.next = self.peak = 0

    def held(self):
        """Return how many bytes are taken."""
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

    def claim(self, task, place, size):
        """Take a place; return its address."""
        start, skipped = place
        ends = ((max(start, c.start), min(start + size, c.start + c.size)) for c in self.claims)
        assert all(first >= end for first, end in ends), f"{task} overlaps another task"
        self.claims.append(Claim(task, start, size, skipped))
        self.next = start + size
        self.peak = max(self.peak, self.held())
        return self.base + start

    def release(self, task):
        """Give back a task's claim, and the oldest ones that were released."""
        for claim in self.claims:
            if claim.task is task:
                claim.released = True
        while self.claims and self.claims[0].released:
            self.claims.pop(0)
        if not self.claims:
            self.next = 0


class Reference:
    """One engine: the Orch thread's half, the Scheduler's half, and the workers.

    `bases` has the addresses of its rings; at most `window` tasks are live. `order` returns which of the
    tasks that one step made ready is the first. With `track_reads`, a task that writes waits for those
    that have read the same bytes. Workers have `depth` frames each, and may sleep or be claimed.

    What a task is submitted with is kept, so that the frames in which it is sent can be compared.
    """

    def __init__(
        self, *, bases, ring_bytes, window, next_level, sub, depth, order=None, track_reads=False
    ):
        self.bases, self.ring_bytes, self.window = bases, ring_bytes, window
        self.depth, self.order, self.track_reads = depth, order, track_reads
        self.kinds = [NEXT_LEVEL] * next_level + [SUB] * sub
        self.usable = [True] * len(self.kinds)
        self.assignments = [[] for _ in self.kinds]  # what each worker was given, oldest first
        self.pinned = [[] for _ in self.kinds]  # ready tasks for one worker and no other
        self.dead = set()  # those the Scheduler has not taken note of yet
        self.parked = [False] * len(self.kinds)
        self.mail = ["IDLE"] * len(self.kinds)  # what a mailbox that no task uses says, or CONTROL
        self.claims = [None] * len(self.kinds)  # WAITS or GRANTED: a thread wants the mailbox
        self.uncollected = set()  # idle, and the mailbox has still to say so
        self.begin_run()

    # ------------------------------------------------------------ runs
    def begin_run(self):
        """Forget all tasks."""
        self.rings = [ModelRing(base, self.ring_bytes) for base in self.bases]
        self.ids = self.edges = self.completed = self.failed = 0
        self.errors = []  # what, task, worker and member, oldest first
        self.cancelled = False
        self.live = []
        self.map = {}
        self.slabs = {}  # the live tasks that own slabs
        self.reads = []  # if they are tracked: by whom, first address, size
        self.scopes = [[]]
        self.wiring = []
        self.ready = [[], []]  # of each kind those that any worker may run, oldest first
        self.age = {}  # how many were ready before a task
        self.held = [False, False]  # per kind: its head waits a moment for a worker that is awake
        self.stuck = [False, False]  # per kind: its head is a group that waits for its workers
        self.deferred = False
        self.new_ready = []
        self.consumed = []

    def become(self, task, state):
        task.state = state
        self.completed += state == "COMPLETED" and task.callable >= 0
        self.failed += state == "FAILED"

    # ------------------------------------------------------------ Orch thread
    def refuse_or_claim(self, nbytes):
        """Return a new task with its slab's address; or refuse, with nothing changed."""
        index = min(len(self.scopes) - 1, len(self.rings) - 1)
        ring = self.rings[index]
        if nbytes > ring.size:
            raise Refused("LARGE")
        one_ring = len(self.rings) == 1
        if len(self.live) >= self.window or (one_ring and len(ring.claims) >= self.window):
            raise Refused("BLOCK")
        place = ring.place(nbytes)
        if place is None:
            raise Refused("BLOCK")
        task = ModelTask(self.ids, index)
        self.ids += 1
        self.live.append(task)
        return task, ring.claim(task, place, nbytes)

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
        task.kind, task.group = kind, group
        task.callable, task.config = callable_index, config
        before, slabs = dict(self.map), dict(self.slabs)
        if self.track_reads:
            self.order_after_readers(task, host_tensors(members))
        for tensors, scalars, worker in members:
            member = ModelMember([], tuple(scalars), worker)
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
        self.become(task, "PENDING")
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
        """Add a buffer."""
        if self.error:
            raise Refused("FAILED")
        task, address = self.refuse_or_claim(rounded(nbytes))
        data = address if nbytes else 0
        task.members.append(ModelMember([(data, nbytes, False)], ()))
        if data:
            self.map[data, -1] = self.slabs[data, -1] = task
            task.keys.append((data, -1))
        self.become(task, "COMPLETED")
        task.released = 1
        self.register(task)
        return task

    def register(self, task):
        """Let the open scope refer to a task."""
        task.total += 1
        self.scopes[-1].append(task)

    def open_scope(self):
        """Open a scope; say whether there was room for it."""
        if len(self.scopes) == 65:
            return False
        self.scopes.append([])
        return True

    def close_scope(self):
        """Drop the references of the innermost scope."""
        for task in self.scopes.pop():
            self.drop(task, self.take_back)

    def drop(self, task, when_consumed):
        """Release one reference; act if it was the last one."""
        task.released += 1
        if task.finished and task.released >= task.total + 1:
            self.become(task, "CONSUMED")
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
        self.become(task, "FREE")

    def reclaim(self):
        """Reclaim what the passes have consumed."""
        for task in self.consumed:
            self.take_back(task)
        self.consumed = []

    def cancel(self):
        """Let nothing start any more."""
        self.cancelled = True
        for assignments in self.assignments:
            for assignment in assignments[1:]:
                assignment.skip = True

    # ------------------------------------------------------------ Scheduler
    def wire_one(self):
        """Connect the oldest task that was submitted with those it waits for."""
        task = self.wiring.pop(0)
        for producer in [*task.producers, *task.after]:
            if producer.state == "FAILED" and producer in task.producers:
                self.poison(task)
            # one that stands for others must have ended
            if not (producer.ended if self.track_reads else producer.finished):
                producer.consumers.append(task)
                task.fanin += 1
        if task.fanin == 0:
            self.unblock(task)

    def poison(self, task):
        """Have a task fail that has not started."""
        if task.state == "PENDING":
            self.become(task, "FAILED")

    def unblock(self, task):
        """Nothing the task waits for is left."""
        if task.state == "FAILED":
            self.let_go(task)
        else:
            self.become(task, "READY")
            self.new_ready.append(task)

    def batch(self, step):
        """Run a step; what it makes ready joins the queues, in the order that was chosen."""
        self.new_ready = []
        step()
        oldest = max(self.age.values(), default=-1)
        for task in sorted(self.new_ready, key=self.order):
            self.age[task] = self.order(task)
            assert self.age[task] > oldest, f"{task} is put before what was ready earlier"
            queue = self.ready[task.kind] if task.only < 0 else self.pinned[task.only]
            queue.append(task)

    def finish(self, task, ok):
        """A task has run, or does not need to."""
        self.become(task, "COMPLETED" if ok else "FAILED")
        self.let_go(task)

    def let_go(self, task):
        """Tell the consumers, then drop the references on the producers and the task's own."""
        todo = [task]
        while todo:  # consumers of poisoned tasks have their turn, too, however many in a row
            one = todo.pop()
            consumers, one.consumers = one.consumers, []
            for consumer in consumers:
                if one.state == "FAILED" and one not in consumer.after:
                    self.poison(consumer)
                consumer.fanin -= 1
                if consumer.fanin == 0 and consumer.state == "FAILED":
                    todo.append(consumer)
                elif consumer.fanin == 0:
                    self.unblock(consumer)
            for other in [*one.producers, *one.kept, *one.after, one]:
                self.drop(other, self.consumed.append)

    @property
    def error(self):
        """The first thing that went wrong in the run."""
        return self.errors[0] if self.errors else None

    # what may start
    def pool(self, kind):
        """Return the workers of a kind."""
        return [worker for worker, k in enumerate(self.kinds) if k == kind]

    def is_idle(self, worker):
        """Say whether a worker has nothing to do."""
        return self.has_room(worker) and not self.assignments[worker]

    def has_room(self, worker):
        """Say whether a worker can be given a task."""
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
        """Return the workers of which a task for any of them gets one."""
        idle = [w for w in self.pool(kind) if self.is_idle(w)]
        awake = [w for w in idle if not self.parked[w]]
        if awake:
            return awake
        if idle and any(self.assignments) and not self.held[kind]:
            self.deferred = True  # the time to wait is 0 here: the next look ends it
            return []
        busy = [w for w in self.pool(kind) if self.has_room(w) and self.assignments[w]]
        fewest = min((len(self.assignments[w]) for w in busy), default=0)
        return idle or [w for w in busy if len(self.assignments[w]) == fewest]

    def may_leave(self, worker):
        """Say whether the oldest task for this worker alone has its turn."""
        waiting = self.pinned[worker]
        if not waiting:
            return False
        if self.cancelled or not self.usable[worker]:
            return True
        queue = self.ready[self.kinds[worker]]
        older = not queue or self.age[waiting[0]] < self.age[queue[0]]
        return self.has_room(worker) and older

    def would_move(self):
        """Say whether a pass would change anything, but for the clock of a task that is held back."""
        answered = (held and held[0].mail in ANSWERS for held in self.assignments)
        leave = (
            any(map(self.head_can_start, self.ready[kind][:1]))
            or any(self.may_leave(w) for w in self.pool(kind))
            for kind in (NEXT_LEVEL, SUB)
        )
        return bool(self.uncollected or self.dead or self.wiring) or any(answered) or any(leave)

    # what does start
    def dispatch(self, kind, choices):
        """Place ready tasks; `choices` says `worker(task)` and `places(group)`."""
        self.dispatch_affinity(kind, choices)
        self.dispatch_ready(kind, choices)
        self.dispatch_affinity(kind, choices)

    def dispatch_affinity(self, kind, choices):
        """Start those for one worker that are older than all for any worker, or drop them."""
        for worker in self.pool(kind):
            while self.may_leave(worker):
                task = self.pinned[worker].pop(0)
                if self.cancelled or not self.usable[worker]:
                    self.drop_ready(task, worker)
                else:
                    assert choices.worker(task) == worker, f"{task} is not on worker {worker}"
                    self.start(task, {worker: None})

    def dispatch_ready(self, kind, choices):
        """Start those for any worker, oldest first, or drop them."""
        queue = self.ready[kind]
        self.deferred = False
        while queue:
            task = queue[0]
            lost = self.lost_for(task)
            if self.cancelled or lost is not None:
                self.drop_ready(queue.pop(0), lost)
            elif not self.head_can_start(task):
                break
            elif task.group:
                self.start(queue.pop(0), self.places(task, choices))
            else:
                workers, chosen = self.candidates(task.kind), choices.worker(task)
                assert chosen in workers, f"{task} is on {chosen}, not on one of {workers}"
                self.start(queue.pop(0), {chosen: None})
        self.held[kind] = self.deferred
        self.stuck[kind] = bool(queue) and queue[0].group

    def head_can_start(self, task):
        """Say whether a task for any worker can leave its queue, were it the first."""
        if self.cancelled or self.lost_for(task) is not None:
            return True
        return self.fits(task) if task.group else bool(self.candidates(task.kind))

    def places(self, group, choices):
        """Return worker → member as it was chosen, once it is found to be right."""
        chosen = choices.places(group)
        idle = [w for w in self.pool(group.kind) if self.is_idle(w)]
        assert set(chosen) <= set(idle), f"{group} is on {chosen}, and idle are {idle}"
        assert sorted(chosen.values()) == [*range(len(group.members))]
        assert all(group.members[m].worker in (-1, worker) for worker, m in chosen.items())
        free = [w for w, m in chosen.items() if group.members[m].worker == -1]
        awake = [w for w in idle if w not in chosen and not self.parked[w]]
        assert not (awake and any(self.parked[w] for w in free)), f"{awake} are awake, not {free}"
        return chosen

    def start(self, task, places):
        """Give a task to its workers."""
        del self.age[task]
        self.become(task, "RUNNING")
        task.left = len(task.members)
        for worker, member in places.items():
            self.assignments[worker].append(Assignment(task, member))
        self.uncollected.difference_update(places)
        if not task.group and task.only < 0:
            self.held[task.kind] = False

    def drop_ready(self, task, lost):
        """Have a task fail that will not start: the run is cancelled, or a worker is lost for it."""
        del self.age[task]
        if not self.cancelled:
            self.errors.append(("LOST", task, lost, -1))
        self.batch(lambda: self.finish(task, False))

    # what ends
    def set_idle(self):
        for worker in self.uncollected:
            self.mail[worker] = "IDLE"
        self.uncollected = set()

    def vacate(self, worker):
        """Take the oldest task off a worker; without any, its mailbox goes to whoever wants it."""
        mail = self.assignments[worker].pop(0).mail
        if self.assignments[worker]:
            return
        self.mail[worker] = mail
        if self.usable[worker] and self.claims[worker] == "WAITS":
            self.grant(worker)
        elif self.usable[worker]:
            self.uncollected.add(worker)

    def end_member(self, task, ok):
        """A worker is done with a task, or with one member of it."""
        task.left -= 1
        if not ok and not task.wrong:
            task.wrong = True
            for assignment in chain(*self.assignments):
                if task.group and assignment.task is task:
                    assignment.skip = True
        if task.left == 0:
            self.finish(task, not task.wrong)

    def collect(self):
        """Take the answers of all workers."""

        def step():
            for worker, given in enumerate(self.assignments):
                while given and given[0].mail in ANSWERS:
                    self.end_oldest(worker)

        self.batch(step)

    def end_oldest(self, worker):
        """A worker's oldest task has ended, or is lost."""
        assignment = self.assignments[worker][0]
        error = LAST_WORDS[assignment.mail]
        if error:
            part = -1 if assignment.part is None else assignment.part
            self.errors.append((error, assignment.task, worker, part))
        self.vacate(worker)
        self.end_member(assignment.task, assignment.mail == "OK")

    def handle_deaths(self):
        """Take note of dead workers: what they had is lost, but for what they had answered."""
        if not self.dead:
            return
        for worker in self.dead:
            self.usable[worker] = False
        self.collect()

        def step():
            for worker in sorted(self.dead):
                while self.assignments[worker]:
                    self.end_oldest(worker)

        self.batch(step)
        for worker in self.dead:
            if self.claims[worker] == "WAITS":
                self.claims[worker] = "REFUSED"
        self.dead = set()

    def one_pass(self, choices):
        """Take one pass of the Scheduler."""
        self.handle_deaths()
        while self.wiring:
            self.batch(self.wire_one)
        self.dispatch(NEXT_LEVEL, choices)
        self.dispatch(SUB, choices)
        self.set_idle()
        self.collect()

    # ------------------------------------------------------------ workers
    def at(self, worker):
        """Return what a worker is at, None if it has answered everything."""
        return next((e for e in self.assignments[worker] if e.mail == "TASK_READY"), None)

    def answer(self, worker, what):
        """A worker answers what it is at: one of ANSWERS."""
        self.at(worker).mail = what

    def die(self, worker):
        """A worker is reported dead."""
        self.dead.add(worker)

    def revive(self, worker):
        """A dead worker has a successor."""
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
