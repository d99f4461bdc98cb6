"""A reference model of the engine, written from the documents: lists, dictionaries, loops.

It shares no code with the rest of the package. Where the rules leave a choice (which idle worker for
which member, which of the tasks that one completion makes ready comes first), the model is told what was
chosen, and refuses a choice that the rules forbid. Each change of a state names the rule that demands it.

The tests compare the engine with it, step by step, and `checker.py` compares traces with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

INPUT, OUTPUT, INOUT, OUTPUT_EXISTING, NO_DEP = range(5)
NEXT_LEVEL, SUB = range(2)
ALIGN = 1024
ANSWERS = ("OK", "ERROR", "SKIPPED")
LAST_WORDS = {"OK": None, "SKIPPED": None, "ERROR": "RAISED", "TASK_READY": "LOST"}
"""How a task ended that its worker has left like this, or died over: what is noted as its error."""


class Refused(Exception):
    """A submit or alloc that is not accepted: BLOCK, LARGE, FAILED or ARGS."""


class Forbidden(Exception):
    """What was chosen is against a rule, whose id is `rule`."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{text} ({rule})")
        self.rule, self.text = rule, text


def rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def host_tensors(members: Iterable[Asked]) -> list[ModelTensor]:
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


Asked = tuple[Sequence[ModelTensor], Sequence[int], int]
"""What is submitted for one worker: tensors, scalars, and which worker, -1 for any."""
Key = tuple[int, int]
"""An address, and the worker whose memory it is in, -1 for the host's."""


@dataclass(eq=False)
class ModelMember:
    """What one worker gets of a task: all of it, or one member of a group."""

    tensors: list[tuple[int, int, bool]] = field(default_factory=list)  # data, nbytes, child_memory
    scalars: tuple[int, ...] = ()
    worker: int = -1  # the only one that may have it, -1 for any


@dataclass(eq=False)
class ModelTask:
    """Everything that is known of a task."""

    id: int
    ring: int
    name: str
    state: str = "FREE"
    kind: int = SUB
    group: bool = False
    members: list[ModelMember] = field(default_factory=list)  # one, unless it is a group
    left: int = 0  # members that have not answered
    wrong: bool = False  # a member has failed
    keys: list[Key] = field(default_factory=list)  # (address, owner), as they were inserted
    producers: list[ModelTask] = field(default_factory=list)
    kept: list[ModelTask] = field(default_factory=list)  # owners of slabs, for their memory alone
    after: list[ModelTask] = field(default_factory=list)  # who reads what it writes, for their end
    consumers: list[ModelTask] = field(default_factory=list)  # those that still wait for this task
    fanin: int = 0
    total: int = 0
    released: int = 0

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def depend_on(other: ModelTask | None, those: list[ModelTask]) -> None:
        """Add a task to some others, unless it is among them or gone."""
        if other is not None and other.state != "CONSUMED" and other not in those:
            those.append(other)

    @property
    def tensors(self) -> list[tuple[int, int, bool]]:
        return [tensor for member in self.members for tensor in member.tensors]

    @property
    def scalars(self) -> list[int]:
        return [scalar for member in self.members for scalar in member.scalars]

    @property
    def only(self) -> int:
        """The one worker that may run a task of its own, or -1."""
        return -1 if self.group or not self.members else self.members[0].worker

    @property
    def named(self) -> list[int]:
        """The workers that a group's members want, and no others."""
        return [member.worker for member in self.members if member.worker >= 0]

    @property
    def finished(self) -> bool:
        """Whether it has run, or failed without."""
        return self.state in ("COMPLETED", "FAILED")

    @property
    def ended(self) -> bool:
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


class Choices(Protocol):
    """What was chosen in a pass."""

    def starts(self, task: ModelTask) -> bool:
        """Say whether a task that is READY is not READY after the pass."""

    def worker(self, task: ModelTask, workers: Sequence[int]) -> int | None:
        """Return who got a task, maybe none of those that may have it, or nobody."""

    def places(self, group: ModelTask, idle: Sequence[int]) -> Mapping[int, int]:
        """Return which member each worker has got of a group."""


class ModelRing:
    """A FIFO of claims."""

    def __init__(self, base: int, size: int) -> None:
        self.base = base
        self.size = size
        self.claims: list[Claim] = []
        self.next = self.peak = 0

    def held(self) -> int:
        return sum(claim.size + claim.skipped for claim in self.claims)

    def place(self, size: int) -> tuple[int, int] | None:
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

    def claim(self, task: ModelTask, place: tuple[int, int], size: int) -> int:
        start, skipped = place
        ends = ((max(start, c.start), min(start + size, c.start + c.size)) for c in self.claims)
        assert all(first >= end for first, end in ends), f"{task} overlaps another task"
        self.claims.append(Claim(task, start, size, skipped))
        self.next = start + size
        self.peak = max(self.peak, self.held())
        return self.base + start

    def release(self, task: ModelTask) -> None:
        """Give back a task's claim, and the oldest ones that were released."""
        for claim in self.claims:
            if claim.task is task:
                claim.released = True
        while self.claims and self.claims[0].released:
            self.claims.pop(0)
        if not self.claims:
            self.next = 0


class Model:
    """One engine: the Orch thread's half, the Scheduler's half, and the workers.

    `bases` has the addresses of its rings; at most `window` tasks are live. `order` returns which of the
    tasks that one step made ready is the first; without it any may be, so the one that starts first was.
    With `track_reads`, a task that writes waits for those that have read the same bytes.
    """

    def __init__(
        self,
        *,
        bases: Sequence[int],
        ring_bytes: int,
        window: int,
        next_level: int,
        sub: int,
        order: Callable[[ModelTask], int] | None = None,
        track_reads: bool = False,
    ) -> None:
        self.bases, self.ring_bytes, self.window = bases, ring_bytes, window
        self.order, self.track_reads = order, track_reads
        self.kinds = [NEXT_LEVEL] * next_level + [SUB] * sub
        self.usable = [True] * len(self.kinds)
        self.assignments: list[list[Assignment]] = [[] for _ in self.kinds]
        """What each worker was given, oldest first."""
        self.pinned: list[list[ModelTask]] = [[] for _ in self.kinds]
        """Ready tasks for one worker and no other."""
        self.dead: set[int] = set()
        """Those the Scheduler has not taken note of yet."""
        self.begin_run()

    # ------------------------------------------------------------ runs
    def begin_run(self) -> None:
        self.rings = [ModelRing(base, self.ring_bytes) for base in self.bases]
        self.ids = 0
        self.errors: list[tuple[str, ModelTask, int, int]] = []
        """What, task, worker and member, oldest first."""
        self.cancelled = False
        self.live: list[ModelTask] = []
        self.map: dict[Key, ModelTask] = {}
        self.slabs: dict[Key, ModelTask] = {}
        """The live tasks that own slabs."""
        self.reads: list[tuple[ModelTask, int, int]] = []
        """If they are tracked: by whom, first address, size."""
        self.scopes: list[list[ModelTask]] = [[]]
        self.wiring: list[ModelTask] = []
        self.ready: list[list[ModelTask]] = [[], []]
        """Of each kind those that any worker may run, oldest first."""
        self.age: dict[ModelTask, int] = {}
        """How many were ready before a task."""
        self.heads: list[list[ModelTask]] = [[], []]
        """Of each kind some tasks of which one is older than all others; see `choose_head`."""
        self.new_ready: list[ModelTask] = []
        self.consumed: list[ModelTask] = []
        self.moves: dict[ModelTask, str] = {}
        """The rule by which a task last changed its state."""

    def become(self, task: ModelTask, state: str, rule: str) -> None:
        task.state = state
        self.moves[task] = rule

    def worker_name(self, worker: int) -> str:
        kind = self.kinds[worker]
        return f"{('next-level', 'sub')[kind]} worker {worker - self.kinds.index(kind)}"

    # ------------------------------------------------------------ Orch thread
    def refuse_or_claim(self, nbytes: int, name: str) -> tuple[ModelTask, int]:
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
        task = ModelTask(self.ids, index, name or f"task {self.ids}")
        self.ids += 1
        self.live.append(task)
        return task, ring.claim(task, place, nbytes)

    def submit(self, members: Sequence[Asked], group: bool, kind: int, name: str = "") -> ModelTask:
        """Add a task. `members` are (tensors, scalars, worker); there is one unless it is a group."""
        if self.error:
            raise Refused("FAILED")
        for tensors, scalars, _ in members:
            if 8 + 40 * len(tensors) + 8 * len(scalars) > 15024:
                raise Refused("ARGS")
        every = [t for tensors, _, _ in members for t in tensors]
        autos = [t for t in every if t.tag == OUTPUT and t.data == 0]
        task, address = self.refuse_or_claim(sum(rounded(t.nbytes) for t in autos), name)
        task.kind, task.group = kind, group
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
        self.become(task, "PENDING", "ORCH-STATE-2")
        self.register(task)
        self.wiring.append(task)
        return task

    def order_after_readers(self, task: ModelTask, tracked: list[ModelTensor]) -> None:
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

    def alloc(self, nbytes: int, name: str = "") -> ModelTask:
        if self.error:
            raise Refused("FAILED")
        task, address = self.refuse_or_claim(rounded(nbytes), name)
        data = address if nbytes else 0
        task.members.append(ModelMember([(data, nbytes, False)]))
        if data:
            self.map[data, -1] = self.slabs[data, -1] = task
            task.keys.append((data, -1))
        self.become(task, "COMPLETED", "ORCH-ALLOC-2")
        task.released = 1
        self.register(task)
        return task

    def register(self, task: ModelTask) -> None:
        """Let the open scope refer to a task."""
        task.total += 1
        self.scopes[-1].append(task)

    def open_scope(self) -> bool:
        if len(self.scopes) == 65:
            return False
        self.scopes.append([])
        return True

    def close_scope(self) -> None:
        """Drop the references of the innermost scope."""
        for task in self.scopes.pop():
            self.drop(task, lambda one: self.take_back(one, "ORCH-SCOPE-7"))

    def drop(self, task: ModelTask, when_consumed: Callable[[ModelTask], None]) -> None:
        """Release one reference; act if it was the last one."""
        task.released += 1
        if task.finished and task.released >= task.total + 1:
            self.become(task, "CONSUMED", "ORCH-STATE-3")
            when_consumed(task)

    def take_back(self, task: ModelTask, rule: str = "SCHED-CONSUME-2") -> None:
        for key in task.keys:
            if self.slabs.get(key) is task:
                del self.slabs[key]
            if self.map.get(key) is task:
                del self.map[key]
                if key in self.slabs:
                    self.map[key] = self.slabs[key]
        self.rings[task.ring].release(task)
        self.live.remove(task)
        self.become(task, "FREE", rule)

    def reclaim(self) -> None:
        """Reclaim what the passes have consumed."""
        for task in self.consumed:
            self.take_back(task)
        self.consumed = []

    def cancel(self) -> None:
        self.cancelled = True

    # ------------------------------------------------------------ Scheduler
    def wire_one(self) -> None:
        """Connect the oldest task that was submitted with those it waits for."""
        task = self.wiring.pop(0)
        for producer in [*task.producers, *task.after]:
            if producer.state == "FAILED" and producer in task.producers:
                self.poison(task, "SCHED-WIRE-4")
            # one that stands for others must have ended
            if not (producer.ended if self.track_reads else producer.finished):
                producer.consumers.append(task)
                task.fanin += 1
        if task.fanin == 0:
            self.unblock(task, "SCHED-WIRE-5")

    def poison(self, task: ModelTask, rule: str) -> None:
        """Have a task fail that has not started."""
        if task.state == "PENDING":
            self.become(task, "FAILED", rule)

    def unblock(self, task: ModelTask, rule: str) -> None:
        """Nothing the task waits for is left."""
        if task.state == "FAILED":
            self.let_go(task)
        else:
            self.become(task, "READY", rule)
            self.new_ready.append(task)

    def batch(self, step: Callable[[], None]) -> None:
        """Run a step; what it makes ready joins the queues, in the order that was chosen."""
        self.new_ready = []
        step()
        oldest = max(self.age.values(), default=-1)
        for task in sorted(self.new_ready, key=self.order) if self.order else self.new_ready:
            age = self.order(task) if self.order else oldest + 1
            if age <= oldest:
                raise Forbidden("SCHED-READY-3", f"{task} is put before what was ready earlier")
            self.age[task] = age
            queue = self.ready[task.kind] if task.only < 0 else self.pinned[task.only]
            queue.append(task)

    def finish(self, task: ModelTask, ok: bool, rule: str) -> None:
        self.become(task, "COMPLETED" if ok else "FAILED", rule)
        self.let_go(task)

    def let_go(self, task: ModelTask) -> None:
        """Tell the consumers, then drop the references on the producers and the task's own."""
        todo = [task]
        while todo:  # consumers of poisoned tasks have their turn, too, however many in a row
            one = todo.pop()
            consumers, one.consumers = one.consumers, []
            for consumer in consumers:
                if one.state == "FAILED" and one not in consumer.after:
                    self.poison(consumer, "SCHED-POISON-1")
                consumer.fanin -= 1
                if consumer.fanin == 0 and consumer.state == "FAILED":
                    todo.append(consumer)
                elif consumer.fanin == 0:
                    self.unblock(consumer, "SCHED-COMPLETE-2")
            for other in [*one.producers, *one.kept, *one.after, one]:
                self.drop(other, self.consumed.append)

    @property
    def error(self) -> tuple[str, ModelTask, int, int] | None:
        """The first thing that went wrong in the run."""
        return self.errors[0] if self.errors else None

    # what may start
    def pool(self, kind: int) -> list[int]:
        return [worker for worker, k in enumerate(self.kinds) if k == kind]

    def is_idle(self, worker: int) -> bool:
        return self.usable[worker] and not self.assignments[worker]

    def has_room(self, worker: int) -> bool:
        return self.is_idle(worker)

    def lost_for(self, task: ModelTask) -> int | None:
        """Return a dead worker that a ready task cannot do without, -1 if too few live, else None."""
        for worker in task.named if task.group else [task.only]:
            if worker >= 0 and not self.usable[worker]:
                return worker
        if sum(self.usable[w] for w in self.pool(task.kind)) < len(task.members):
            return -1
        return None

    def fits(self, group: ModelTask) -> bool:
        """Say whether each member of a group can have a worker of its own, all at once."""
        idle = [w for w in self.pool(group.kind) if self.is_idle(w)]
        return set(group.named) <= set(idle) and len(idle) >= len(group.members)

    def candidates(self, kind: int) -> list[int]:
        """Return the workers of which a task for any of them gets one."""
        return [w for w in self.pool(kind) if self.is_idle(w)]

    def may_leave(self, worker: int, choices: Choices | None = None) -> bool:
        """Say whether the oldest task for this worker alone has its turn."""
        chain = self.pinned[worker]
        if not chain:
            return False
        if self.cancelled or not self.usable[worker]:
            return True
        queue = self.ready[self.kinds[worker]]
        if queue and self.age[chain[0]] == self.age[queue[0]] and choices is not None:
            older = any(choices.starts(task) for task in self.together(chain))
        else:
            older = not queue or self.age[chain[0]] < self.age[queue[0]]
        return self.has_room(worker) and older

    def would_move(self) -> bool:
        answered = (held and held[0].mail in ANSWERS for held in self.assignments)
        leave = (
            any(map(self.head_can_start, self.ready[kind][:1]))
            or any(self.may_leave(w) for w in self.pool(kind))
            for kind in (NEXT_LEVEL, SUB)
        )
        return bool(self.dead or self.wiring) or any(answered) or any(leave)

    # what does start
    def dispatch(self, kind: int, choices: Choices) -> None:
        self.dispatch_affinity(kind, choices)
        self.dispatch_ready(kind, choices)
        self.dispatch_affinity(kind, choices)

    def together(self, queue: list[ModelTask]) -> list[ModelTask]:
        """Return the oldest tasks of a queue: several if they became ready together, in any order."""
        return [task for task in queue if self.age[task] == self.age[queue[0]]]

    def put_first(self, queue: list[ModelTask], task: ModelTask) -> None:
        queue.remove(task)
        queue.insert(0, task)

    def dispatch_affinity(self, kind: int, choices: Choices) -> None:
        """Start those for one worker that are older than all for any worker, or drop them."""
        for worker in self.pool(kind):
            while self.may_leave(worker, choices):
                chain = self.pinned[worker]
                started = [task for task in self.together(chain) if choices.starts(task)]
                self.put_first(chain, [*started, chain[0]][0])
                if self.cancelled or not self.usable[worker]:
                    self.drop_ready(chain.pop(0), worker)
                    continue
                if choices.worker(chain[0], [worker]) != worker:
                    name = self.worker_name(worker)
                    raise Forbidden("WM-AFF-1", f"{chain[0]} could start on {name}, and has not")
                self.start(chain.pop(0), {worker: None})

    def dispatch_ready(self, kind: int, choices: Choices) -> None:
        """Start those for any worker, oldest first, or drop them."""
        queue = self.ready[kind]
        while queue:
            self.choose_head(kind, choices)
            task = queue[0]
            lost = self.lost_for(task)
            if self.cancelled or lost is not None:
                self.drop_ready(queue.pop(0), lost)
            elif not self.head_can_start(task):
                break
            elif task.group:
                self.start(queue.pop(0), self.places(task, choices))
            else:
                chosen = self.choose(task, self.candidates(kind), choices)
                self.start(queue.pop(0), {chosen: None})

    def choose_head(self, kind: int, choices: Choices) -> None:
        """Of tasks that became ready together, let one be first with which the choices can be.

        One that starts can be, or one that cannot start: then it, or another such one, was before all
        that stay behind although they could start.
        """
        queue = self.ready[kind]
        some = self.together(queue)
        if len(some) == 1:
            return
        some = [task for task in some if task in self.heads[kind]] or some
        started = [task for task in some if choices.starts(task)]
        now = [task for task in started if self.has_places(task, choices)]
        waiting = [task for task in some if not self.head_can_start(task)]
        self.heads[kind] = [] if started else waiting
        self.put_first(queue, [*now, *started, *waiting, *some][0])

    def has_places(self, task: ModelTask, choices: Choices) -> bool:
        """Say whether those are idle that a task has got, in this pass or a later one."""
        if task.group:
            idle = [w for w in self.pool(task.kind) if self.is_idle(w)]
            return self.fits(task) and set(choices.places(task, idle)) <= set(idle)
        workers = self.candidates(task.kind)
        return choices.worker(task, workers) in workers

    def head_can_start(self, task: ModelTask) -> bool:
        """Say whether a task for any worker can leave its queue, were it the first."""
        if self.cancelled or self.lost_for(task) is not None:
            return True
        return self.fits(task) if task.group else bool(self.candidates(task.kind))

    def choose(self, task: ModelTask, workers: list[int], choices: Choices) -> int:
        """Return who has got a task, once that is found to be right."""
        chosen = choices.worker(task, workers)
        if chosen in workers:
            return chosen
        if chosen is None:
            names = ", ".join(map(self.worker_name, workers))
            raise Forbidden("SCHED-DISPATCH-3", f"{task} could start on {names}, and has not")
        name, text = self.worker_name(chosen), f"{task} has started on"
        if self.kinds[chosen] != task.kind:
            raise Forbidden("WM-POOL-3", f"{text} {name}, which is of the other pool")
        if not self.usable[chosen]:
            raise Forbidden("SCHED-DEATH-2", f"{text} {name}, which is dead")
        raise Forbidden("SCHED-DISPATCH-2", f"{text} {name}, which is not idle")

    def places(self, group: ModelTask, choices: Choices) -> Mapping[int, int | None]:
        """Return worker → member as it was chosen, once it is found to be right."""
        idle = [w for w in self.pool(group.kind) if self.is_idle(w)]
        chosen = choices.places(group, idle)
        if not chosen:
            raise Forbidden(
                "WM-PLACE-1", f"{group} could start, all its members at once, and has not"
            )
        if not set(chosen) <= set(idle) or sorted(chosen.values()) != [*range(len(group.members))]:
            at = ", ".join(f"{m} on {self.worker_name(w)}" for w, m in chosen.items())
            text = f"members of {group} have started like this, not each on an idle worker: {at}"
            raise Forbidden("WM-PLACE-2", text)
        for worker, m in chosen.items():
            if group.members[m].worker not in (-1, worker):
                name = self.worker_name(worker)
                text = f"member {m} of {group} is for another worker than {name}"
                raise Forbidden("WM-PLACE-2", text)
        return dict(chosen)

    def start(self, task: ModelTask, places: Mapping[int, int | None]) -> None:
        del self.age[task]
        self.become(task, "RUNNING", "SCHED-DISPATCH-1")
        task.left = len(task.members)
        for worker, member in places.items():
            self.assignments[worker].append(Assignment(task, member))

    def drop_ready(self, task: ModelTask, lost: int | None) -> None:
        """Have a task fail that will not start: the run is cancelled, or a worker is lost for it."""
        del self.age[task]
        rule = "SCHED-CANCEL-1"
        if not self.cancelled:
            self.errors.append(("LOST", task, -1 if lost is None else lost, -1))
            rule = "WM-PLACE-5" if task.group else "SCHED-DEATH-2" if task.only < 0 else "WM-AFF-5"
        self.batch(lambda: self.finish(task, False, rule))

    def why_waiting(self, task: ModelTask) -> str:
        """Return the rule by which a ready task has not started."""
        queue = self.ready[task.kind]
        if task.only >= 0 and not self.is_idle(task.only):
            return "WM-AFF-1"
        if task.only >= 0:
            return "WM-AFF-4"
        if task is not queue[0]:
            return "WM-PLACE-3" if queue[0].group else "SCHED-READY-3"
        return "WM-PLACE-1" if task.group else "SCHED-DISPATCH-2"

    # what ends
    def vacate(self, worker: int) -> None:
        self.assignments[worker].pop(0)

    def end_member(self, task: ModelTask, ok: bool, rule: str) -> None:
        """A worker is done with a task, or with one member of it."""
        task.left -= 1
        if not ok and not task.wrong:
            task.wrong = True
            for assignment in chain(*self.assignments):
                if task.group and assignment.task is task:
                    assignment.skip = True
        if task.left == 0:
            group = "WM-DONE-2" if task.wrong else "WM-DONE-1"
            self.finish(task, not task.wrong, group if task.group else rule)

    def collect(self) -> None:

        def step() -> None:
            for worker, given in enumerate(self.assignments):
                while given and given[0].mail in ANSWERS:
                    self.end_oldest(worker)

        self.batch(step)

    def end_oldest(self, worker: int) -> None:
        """A worker's oldest task has ended, or is lost."""
        assignment = self.assignments[worker][0]
        error = LAST_WORDS[assignment.mail]
        if error:
            part = -1 if assignment.part is None else assignment.part
            self.errors.append((error, assignment.task, worker, part))
        self.vacate(worker)
        rule = "SCHED-DEATH-1" if error == "LOST" else "SCHED-COMPLETE-1"
        self.end_member(assignment.task, assignment.mail == "OK", rule)

    def handle_deaths(self) -> None:
        """Take note of dead workers: what they had is lost, but for what they had answered."""
        if not self.dead:
            return
        for worker in self.dead:
            self.usable[worker] = False
        self.collect()

        def step() -> None:
            for worker in sorted(self.dead):
                while self.assignments[worker]:
                    self.end_oldest(worker)

        self.batch(step)
        self.dead = set()

    def one_pass(self, choices: Choices) -> None:
        self.handle_deaths()
        while self.wiring:
            self.batch(self.wire_one)
        self.dispatch(NEXT_LEVEL, choices)
        self.dispatch(SUB, choices)
        self.collect()

    # ------------------------------------------------------------ workers
    def at(self, worker: int) -> Assignment | None:
        """Return what a worker is at, None if it has answered everything."""
        return next((e for e in self.assignments[worker] if e.mail == "TASK_READY"), None)

    def answer(self, worker: int, what: str) -> None:
        """A worker answers what it is at: one of ANSWERS."""
        at = self.at(worker)
        assert at is not None
        at.mail = what

    def die(self, worker: int) -> None:
        self.dead.add(worker)
