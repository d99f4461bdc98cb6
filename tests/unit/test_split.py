"""Graphs in parts: tasks that start late, in any order, do what the graph does one after the other."""

from __future__ import annotations

import random

import pytest

from simpler_ref.model.enums import DataType, TensorArgType
from simpler_ref.model.tensor import ContinuousTensor
from simpler_ref.remote import split as splitting
from simpler_ref.remote.partition import duration_s, partitions
from simpler_ref.remote.parts import PARENT, PART, READS, WRITES, Action
from simpler_ref.remote.split import SplitTask, SplitUse, split
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


def read_by(one):
    """Return the tensors that a task reads, or that a push takes."""
    return {use.tensor for use in one.uses if use.tag in READS} if one.uses else {one.tensor}


def made_by(one):
    return {use.tensor for use in one.uses if use.tag in WRITES}


class Player:
    """An endpoint that carries tasks and pushes out in any order that who makes what they read allows."""

    def __init__(self, rng, part, mail, home):
        self.rng, self.part, self.mail, self.home = rng, part, mail, home
        self.coming = [i for i, use in enumerate(part.named) if use.reads]
        self.memory = dict.fromkeys(range(len(part.part.tensors)), "garbage")
        self.todo, self.pending, self.gone = list(part.part.operations), [], []

    def store(self):
        """Have the next tensor come from the parent; return whether there was one."""
        if not self.coming:
            return False
        i = self.coming.pop(0)
        self.memory[i] = self.home[self.part.named[i].tensor]
        return True

    def work(self):
        """Carry out one of those that have begun; return whether there was any."""
        able = [
            i
            for i, one in enumerate(self.pending)
            if not any(read_by(one) & made_by(earlier) for earlier in self.pending[:i])
        ]
        if not able:
            return False
        one = self.pending.pop(self.rng.choice(able))
        if one.action == Action.RUN:
            number = int.from_bytes(self.part.part.callables[one.callable], "little")
            reads = [self.memory[use.tensor] for use in one.uses if use.tag in READS]
            self.memory |= dict.fromkeys(made_by(one), computed(number, reads))
        elif one.peer == PARENT:
            self.gone.append(one.tensor)
            self.home[self.part.named[one.tensor].tensor] = self.memory[one.tensor]
        else:
            assert one.number not in self.mail
            self.mail[one.number] = self.memory[one.tensor]
        return True

    def step(self):
        """Begin the next operation, if that can be; return whether it was."""
        if not self.todo:
            return False
        one = self.todo[0]
        if one.action in (Action.RUN, Action.SEND):
            self.pending.append(one)
        elif any(one.tensor in read_by(other) | made_by(other) for other in self.pending):
            return False
        elif one.action == Action.RECEIVE and one.peer == PARENT:
            if one.tensor in self.coming:
                return False
        elif one.action == Action.RECEIVE:
            if one.number not in self.mail:
                return False
            self.memory[one.tensor] = self.mail[one.number]
        del self.todo[0]
        return True


def played(rng, parts, count):
    """Carry out all parts, and return the last values of the program's tensors."""
    mail, home = {}, list(range(count))
    players = [Player(rng, part, mail, home) for part in parts.values()]
    late = rng.random()
    while any(one.todo or one.pending for one in players):
        rng.shuffle(players)
        acts = [Player.work, Player.step] if rng.random() < late else [Player.step, Player.work]
        acts.insert(rng.randrange(3), Player.store)
        moved = any(act(one) for act in acts for one in players)
        assert moved, "the parts wait for each other in a circle"
    for one in players:
        named = one.part.named
        assert [one.part.part.tensors[i].named for i in range(len(named))] == [
            i + 1 for i in range(len(named))
        ]
        made = [i for i, use in enumerate(named) if use.makes]
        assert sorted(one.part.goes) == sorted(one.gone) == made
        assert not one.coming
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
