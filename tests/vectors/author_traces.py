"""Says what follows from the steps in tag-walks.json, rings.json and scheduler.json: its key is `then`.

The steps are played by a reference model, `tests/property/reference.py`, which was written from the rules
and shares no code with the package. Where the rules leave a choice (which idle worker, which of several
tasks that become ready together comes first) it throws dice here. Every program is played with many dice:
a worker that differs is null in the file, and nothing else may differ.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from ..property import reference

THROWS = 12
"""How often each program is played."""
RING_BYTES = 1 << 16
BASE = 1 << 44
TAGS = ("INPUT", "OUTPUT", "INOUT", "OUTPUT_EXISTING", "NO_DEP")
POOLS = ("NEXT_LEVEL", "SUB")
ANSWERS = {"SUCCESS": "OK", "TASK_FAILURE": "ERROR", "SKIPPED": "SKIPPED"}
OUTCOMES = {"RAISED": "TASK_FAILURE", "LOST": "ENDPOINT_FAILURE"}
WALKERS = {"next_level": 4, "sub": 16}
"""Workers of a tag walk: enough that no task waits for one."""


class Alone(reference.Reference):
    """The model without an engine that has chosen already."""

    def __init__(self, dice, **pools):
        self.dice = dice
        self.became_ready = {}
        super().__init__(
            bases=[BASE + ring * RING_BYTES for ring in range(4)],
            ring_bytes=RING_BYTES,
            window=1 << 16,
            depth=1,
            order=lambda task: self.became_ready.setdefault(task, len(self.became_ready)),
            **pools,
        )

    def batch(self, step):
        def then_shuffle():
            step()
            self.dice.shuffle(self.new_ready)

        super().batch(then_shuffle)

    def candidates(self, kind):
        workers, sleep = super().candidates(kind)
        return self.dice.sample(workers, len(workers)), sleep

    def places(self, group, given):
        idle = [w for w in self.pool(group.kind) if self.is_idle(w) and w not in group.named]
        free = iter(self.dice.sample(idle, len(idle)))
        return {
            next(free) if member.worker < 0 else member.worker: m
            for m, member in enumerate(group.members)
        }

    def one_pass(self, _=None):
        super().one_pass(Wishes())

    def settle(self):
        while self.would_move():
            self.one_pass()


class Wishes:
    """What an engine is asked for: the first worker that a task is offered to has it."""

    def __init__(self):
        self.taken = {}

    def __getitem__(self, worker):
        return Wish(self.taken, worker)


class Wish:
    def __init__(self, taken, worker):
        self.taken, self.worker = taken, worker

    def __contains__(self, what):
        task, member = what
        return self.taken.setdefault((task, member), self.worker) == self.worker


# ---------------------------------------------------------------- one program, one throw
class Player:
    """Takes the steps of a program and tells what is there after each."""

    def __init__(self, dice, next_level, sub):
        self.model = Alone(dice, next_level=next_level, sub=sub)
        self.tasks = {}

    def play(self, steps):
        return [step | {"then": self.take(**step)} for step in steps]

    def take(self, do, **words):
        return getattr(self, do)(**words) or {}

    # ------------------------------------------------------------ steps
    def submit(self, task, pool, members=None, **single):
        kind = POOLS.index(pool)
        plain = [self.member(kind, **one) for one in ([single] if members is None else members)]
        return self.claim(task, lambda: self.model.submit(plain, members is not None, 0, kind, 0))

    def member(self, kind, tensors=(), worker=None):
        number = -1 if worker is None else self.model.pool(kind)[worker]
        return [self.tensor(**one) for one in tensors], (), number

    @staticmethod
    def tensor(tag, data, nbytes, child_memory=False):
        return reference.Tensor(TAGS.index(tag), address(data), nbytes, child_memory)

    def alloc(self, task, nbytes):
        return self.claim(task, lambda: self.model.alloc(nbytes))

    def claim(self, name, call):
        try:
            self.tasks[name] = call()
        except reference.Refused as refusal:
            return {"refused": str(refusal)}
        return None

    def open_scope(self):
        assert self.model.open_scope()

    def close_scope(self):
        self.model.close_scope()

    def settle(self):
        self.model.settle()

    def cancel(self):
        self.model.cancel()

    def reclaim(self):
        self.model.reclaim()

    def end(self, task, outcome, member=None):
        worker, assignment = self.at_work(task, member)
        assert outcome != "SKIPPED" or assignment.skip, "nobody told it to skip"
        self.model.answer(worker, ANSWERS[outcome])

    def at_work(self, task, member):
        return next(
            (worker, assignment)
            for worker, assignments in enumerate(self.model.assignments)
            for assignment in assignments
            if assignment.task is self.tasks[task] and assignment.part == member
        )

    def die(self, pool, worker):
        self.model.die(self.model.pool(POOLS.index(pool))[worker])

    # ------------------------------------------------------------ looks
    def names(self, tasks):
        return [name for name, task in self.tasks.items() if task in tasks]

    def name(self, task):
        return self.names([task])[0]

    def refs(self):
        return {
            name: [task.total, task.released]
            for name, task in self.tasks.items()
            if not task.reclaimed
        }


class Walk(Player):
    """A tag walk: every submit is wired at once; `finish` runs a task to its end."""

    def __init__(self, dice):
        super().__init__(dice, **WALKERS)

    def take(self, do, **words):
        told = super().take(do, **words)
        assert not told, told
        found = {}
        if do in ("submit", "alloc"):
            self.model.batch(self.model.wire_one)
            task = self.tasks[words["task"]]
            found = {
                "producers": self.names(task.producers),
                "waits_for": self.names(one for one in task.producers if not one.finished),
                "keeps": self.names(task.kept),
                "addresses": [place(data) for data, _, _ in task.tensors],
            }
        return found | {"map": self.map(), "refs": self.refs()}

    def names(self, tasks):
        return super().names(list(tasks))

    def finish(self, task):
        self.model.settle()
        self.end(task, "SUCCESS")
        self.model.settle()
        self.model.reclaim()

    def map(self):
        rows = [[place(at), owner, self.name(task)] for (at, owner), task in self.model.map.items()]
        return sorted(rows)


class Trace(Player):
    """A scheduler trace: passes are steps of their own."""

    def take(self, do, **words):
        told = super().take("one_pass" if do == "pass" else do, **words)
        if do == "settle":
            self.require_idle_mailboxes()
        states = {name: task.state for name, task in self.tasks.items()}
        return told | {
            "states": states,
            "refs": self.refs(),
            "running": self.running(),
            "error": self.error(),
        }

    def one_pass(self):
        self.model.one_pass()

    def require_idle_mailboxes(self):
        """What docs/vectors.md says of live workers without a task, once nothing moves."""
        model = self.model
        idle = [w for w in range(len(model.kinds)) if model.usable[w] and not model.assignments[w]]
        assert {model.mail[worker] for worker in idle} <= {"IDLE"}

    def running(self):
        found: dict[str, list[Any]] = {}
        for worker, assignments in enumerate(self.model.assignments):
            for assignment in assignments:
                found.setdefault(self.name(assignment.task), []).append(
                    {
                        "member": assignment.part,
                        "worker": self.in_pool(worker),
                        "mailbox": "TASK_READY" if assignment.mail == "TASK_READY" else "TASK_DONE",
                        "skip": assignment.skip,
                    }
                )
        for rows in found.values():
            rows.sort(key=lambda row: -1 if row["member"] is None else row["member"])
        return {name: found[name] for name in self.tasks if name in found}

    def error(self):
        if self.model.error is None:
            return None
        what, task, worker, member = self.model.error
        return {
            "outcome": OUTCOMES[what],
            "task": self.name(task),
            "worker": -1 if worker < 0 else self.in_pool(worker),
            "member": None if member < 0 else member,
        }

    def in_pool(self, worker):
        return self.model.pool(self.model.kinds[worker]).index(worker)


# ---------------------------------------------------------------- addresses
def address(spelled):
    """Return the number of an address: `0x…`, or `ring1+0x…`."""
    ring, _, offset = spelled.rpartition("+")
    return (BASE + int(ring.removeprefix("ring")) * RING_BYTES if ring else 0) + int(offset, 16)


def place(number):
    """Spell an address."""
    ring, offset = divmod(number - BASE, RING_BYTES)
    return f"ring{ring}+0x{offset:x}" if 0 <= ring < 4 else f"0x{number:x}"


# ---------------------------------------------------------------- many throws
def agreed(one, other, key=""):
    """Return what two plays have in common: a worker that differs is nobody's business."""
    if one == other:
        return one
    if key == "worker":
        return None
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {name: agreed(one[name], other[name], name) for name in one}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [agreed(a, b) for a, b in zip(one, other, strict=True)]
    raise AssertionError(f"this depends on a choice that the rules leave open: {one} or {other}")


def play(program, make):
    """Play a program again and again; return what all plays agree on."""
    seen = None
    for throw in range(THROWS):
        steps = make(random.Random(throw), program).play(copy.deepcopy(program["steps"]))
        seen = steps if seen is None else agreed(seen, steps)
    return seen


def play_walk(program):
    return play(program, lambda dice, _: Walk(dice))


def play_trace(program):
    return play(program, lambda dice, p: Trace(dice, p["next_level"], p["sub"]))


# ---------------------------------------------------------------- rings
class Rings:
    """Claims and releases on the model's rings."""

    def __init__(self, count, size, window):
        self.window = window
        self.size = size
        self.rings = [reference.Ring(0, size) for _ in range(count)]
        self.tasks = {}
        self.live = []
        self.ids = 0

    def alloc(self, task, nbytes, depth):
        index = min(depth, len(self.rings) - 1)
        ring, size = self.rings[index], reference.rounded(nbytes)
        if size > self.size:
            return {"refused": "TOO_LARGE"}
        full = self.window == len(self.live if len(self.rings) > 1 else ring.claims)
        if full or ring.place(size) is None:
            return {"refused": "FULL"}
        made = reference.Task(self.ids, index, "FREE")
        self.ids += 1
        self.live.append(made)
        self.tasks[task] = made
        start = ring.claim(made, size)
        told = f"ring{index}+0x{start:x}" if nbytes else None
        end = ring.next if ring.held() else None
        return {"id": made.id, "ring": index, "address": told, "end": end}

    def release(self, task):
        made = self.tasks[task]
        self.live.remove(made)
        self.rings[made.ring].release(made)
        return {}

    def picture(self):
        return {
            "held": [ring.held() for ring in self.rings],
            "top": [ring.next if ring.held() else None for ring in self.rings],
            "tail": [tail_of(ring) for ring in self.rings],
        }


def tail_of(ring):
    """Return where the oldest byte that a ring holds is."""
    for claim in ring.claims:
        if claim.size + claim.skipped:
            return (claim.start - claim.skipped) % ring.size
    return None


def play_rings(program):
    played = Rings(program["rings"], program["ring_bytes"], program.get("window", 1 << 16))
    steps = []
    for step in program["steps"]:
        words = {key: value for key, value in step.items() if key != "do"}
        told = getattr(played, step["do"])(**words)
        steps.append(step | {"then": told | played.picture()})
    return steps
