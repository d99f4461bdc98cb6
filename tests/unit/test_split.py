"""Graphs in parts: tasks that start late, in any order, do what the graph does one after the other."""

from __future__ import annotations

import random

import pytest

from simpler_ref.model.enums import DataType, TensorArgType
from simpler_ref.model.tensor import ContinuousTensor
from simpler_ref.orch import split as splitting
from simpler_ref.orch.partition import duration_s, partitions
from simpler_ref.orch.split import SplitTask, SplitUse, split
from simpler_ref.remote.parts import PARENT, PART, READS, WRITES, Action
from tests.support import sample

READ, CHANGE, MAKE = TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING
SIZES = 64, 256, 4096


def form(nbytes):
    return ContinuousTensor.make(0, (nbytes,), DataType.UINT8)


def drawn(rng, length, places, arrays=4):
    """Return a random graph: its tasks, the bytes of its tensors, and which of them are the program's.

    Tensors that tasks make are read by others; those of the program are changed, which orders the tasks.
    """
    sizes = [rng.choice(SIZES) for _ in range(arrays)]
    tasks, made = [], []
    for number in range(length):
        uses = [(one, READ) for one in rng.sample(made, min(len(made), rng.randrange(3)))]
        uses += [(one, CHANGE) for one in rng.sample(range(arrays), rng.randrange(3))]
        for _ in range(rng.randrange(3)):
            sizes.append(rng.choice(SIZES))
            made.append(len(sizes) - 1)
            uses.append((made[-1], MAKE))
        if made and rng.random() < 0.2:
            made.remove(rng.choice(made))  # nobody reads it any more
        rng.shuffle(uses)
        found = [SplitUse(one, tag, form(sizes[one]), "") for one, tag in uses]
        tasks.append(SplitTask(rng.randrange(places), number.to_bytes(32, "little"), found, ()))
    return tasks, sizes, frozenset(range(arrays))


def computed(number, reads):
    """Return what a task makes of what it reads."""
    return hash((number, *reads))


def sequential(tasks, count):
    """Return the last values of the first tensors, each beginning with its number."""
    values = dict(enumerate(range(count)))
    for task in tasks:
        number = int.from_bytes(task.digest, "little")
        value = computed(number, [values[u.tensor] for u in task.uses if u.tag in READS])
        values |= {use.tensor: value for use in task.uses if use.tag in WRITES}
    return [values[i] for i in range(count)]


class Player:
    """An endpoint that starts tasks as late as it may, in any order that those before them allow."""

    def __init__(self, rng, part, place, mail, home):
        self.rng, self.part, self.mail, self.place = rng, part.part, mail, place
        self.home, self.named = home, part.named
        self.coming = [i for i, use in enumerate(part.named) if use.reads]
        self.gone = []
        self.memory = dict.fromkeys(range(len(self.part.tensors)), "garbage")
        self.at = 0
        self.pending = []
        self.sending = []

    @property
    def is_done(self):
        return self.at == len(self.part.operations)

    def store(self):
        """Have the next tensor come from the parent; return whether there was one."""
        if self.coming:
            i = self.coming.pop(0)
            self.memory[i] = self.home[self.named[i].tensor]
            return True
        return False

    @property
    def is_over(self):
        return self.is_done and not self.pending and not self.sending

    def work(self):
        """Start a task that waits for none, or push what is made; return whether there was anything.

        The engine orders tasks by who makes what they use.
        """
        able = [
            ("task", i, one)
            for i, one in enumerate(self.pending)
            if not any(self._waits_for(one, earlier) for earlier in self.pending[:i])
        ]
        able += [
            ("push", i, one)
            for i, (one, maker) in enumerate(self.sending)
            if not any(task is maker for task in self.pending)
        ]
        if not able:
            return False
        kind, i, one = self.rng.choice(able)
        if kind == "push":
            del self.sending[i]
            if one.peer == PARENT:
                self.gone.append(one.tensor)
                self.home[self.named[one.tensor].tensor] = self.memory[one.tensor]
                return True
            assert one.number not in self.mail
            self.mail[one.number] = self.memory[one.tensor]
        else:
            self.run(self.pending.pop(i))
        return True

    def run(self, one):
        reads = [self.memory[use.tensor] for use in one.uses if use.tag in READS]
        number = int.from_bytes(self.part.callables[one.callable], "little")
        for use in one.uses:
            if use.tag in WRITES:
                self.memory[use.tensor] = computed(number, reads)

    @staticmethod
    def _waits_for(one, earlier):
        makes = {use.tensor for use in earlier.uses if use.tag in WRITES}
        return any(use.tensor in makes for use in one.uses if use.tag in READS)

    def is_used(self, tensor):
        tasks = any(use.tensor == tensor for one in self.pending for use in one.uses)
        return tasks or any(one.tensor == tensor for one, _ in self.sending)

    def step(self):
        """Carry out an operation, if that can be; return whether it was."""
        one = self.part.operations[self.at]
        if one.action == Action.RUN:
            self.pending.append(one)
        elif one.action == Action.SEND:
            makers = (
                p
                for p in self.pending
                for u in p.uses
                if u.tensor == one.tensor and u.tag in WRITES
            )
            self.sending.append((one, next(reversed([*makers]), None)))
        elif self.is_used(one.tensor):
            return False
        elif one.action == Action.RECEIVE and one.peer == PARENT:
            if one.tensor in self.coming:
                return False
        elif one.action == Action.RECEIVE:
            if one.number not in self.mail:
                return False
            self.memory[one.tensor] = self.mail[one.number]
        self.at += 1
        return True


def played(rng, parts, count):
    """Carry out all parts, and return the last values of the program's tensors."""
    mail, home = {}, list(range(count))
    players = {place: Player(rng, part, place, mail, home) for place, part in parts.items()}
    for player, part in zip(players.values(), parts.values(), strict=True):
        for i in range(len(part.named)):
            assert player.part.tensors[i].named == i + 1
    late = rng.random()
    while active := [one for one in players.values() if not one.is_over]:
        shuffled = rng.sample(active, len(active))
        able = [one for one in shuffled if not one.is_done]
        works = [one.work for one in shuffled]
        steps = [one.step for one in able]
        stores = [one.store for one in shuffled]
        kinds = [works, steps] if rng.random() < late else [steps, works]
        kinds.insert(rng.randrange(3), stores)
        moved = any(one() for kind in kinds for one in kind)
        assert moved, "the parts wait for each other in a circle"
    for place, part in parts.items():
        made = [i for i, use in enumerate(part.named) if use.makes]
        assert sorted(part.goes) == sorted(players[place].gone) == made
        assert not players[place].coming
    return home


@pytest.mark.parametrize("places", [1, 2, 3])
@pytest.mark.parametrize("seed", sample(range(40)))
def test_parts_do_what_the_graph_does(seed, places, monkeypatch):
    rng = random.Random(100 * seed + places)
    monkeypatch.setattr(splitting, "MOST_DEAD_BYTES", rng.choice([0, 5000, 1 << 30]))
    tasks, sizes, of_parent = drawn(rng, rng.randrange(1, 60), places)
    parts = split(tasks, sizes, of_parent)
    expected = sequential(tasks, len(of_parent))
    for _ in range(3):
        assert played(rng, parts, len(of_parent)) == expected
    for part in parts.values():
        raw = PART.encode(part.part)
        assert PART.encode(PART.decode(raw)) == raw
    duration_s(parts, dict.fromkeys(range(places), 1), 1e-4)


@pytest.mark.parametrize("seed", sample(range(20)))
def test_a_partition_keeps_to_what_is_allowed_and_is_no_worse_than_one_endpoint(seed):
    rng = random.Random(seed)
    tasks, sizes, of_parent = drawn(rng, 60, 1)
    tasks = [one._replace(digest=bytes(31) + bytes((i,))) for i, one in enumerate(tasks)]
    seats = {0: 1, 2: 2, 5: 1}
    allowed = [rng.choice([[0, 2, 5], [2, 5], [0, 2]]) for _ in tasks]
    task_s = rng.choice([1e-5, 1e-3])
    parts, *_ = partitions(tasks, allowed, sizes, of_parent, seats, task_s)
    for place, one in parts.items():
        for digest in one.part.callables:
            assert place in allowed[digest[-1]]
    assert sum(one.tasks for one in parts.values()) == len(tasks)
    alone = split([one._replace(place=2) for one in tasks], sizes, of_parent)
    assert duration_s(parts, seats, task_s) <= duration_s(alone, seats, task_s)
