"""Graphs in parts: tasks that start late, in any order, do what the graph does one after the other."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from simpler_ref.model.enums import DataType, TensorArgType
from simpler_ref.model.tensor import ContinuousTensor
from simpler_ref.orch import split as splitting
from simpler_ref.orch.partition import duration_s, partitions
from simpler_ref.orch.split import READS, WRITES, SplitTask, SplitUse, split
from simpler_ref.remote.part_runs import _receives
from simpler_ref.remote.parts import PART, Action

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

    def __init__(self, rng, part, place, mail):
        self.rng, self.part, self.mail, self.place = rng, part.part, mail, place
        self.memory = dict.fromkeys(range(len(self.part.tensors)), "garbage")
        self.at = self.waits = self.drained = self.received = 0
        self.pending = []
        self.taken = set()
        self.receives = _receives(self.part.operations)

    @property
    def is_done(self):
        return self.at == len(self.part.operations)

    def start_one(self):
        """Run a task that waits for none: the engine orders tasks by who makes what they use."""
        able = [
            (i, one)
            for i, one in enumerate(self.pending)
            if not any(self._waits_for(one, earlier) for earlier in self.pending[:i])
        ]
        i, one = self.rng.choice(able)
        del self.pending[i]
        reads = [self.memory[use.tensor] for use in one.uses if use.tag in READS]
        number = int.from_bytes(self.part.callables[one.callable], "little")
        for use in one.uses:
            if use.tag in WRITES:
                self.memory[use.tensor] = computed(number, reads)

    @staticmethod
    def _waits_for(one, earlier):
        makes = {use.tensor for use in earlier.uses if use.tag in WRITES}
        return any(use.tensor in makes for use in one.uses if use.tag in READS)

    def drain(self):
        while self.pending:
            self.start_one()
        self.drained = self.waits + 1

    def step(self):
        """Carry out an operation, if that can be; return whether it was."""
        one = self.part.operations[self.at]
        if one.action == Action.RUN:
            self.pending.append(one)
            self.at += 1
            return True
        if one.action == Action.RECEIVE:
            if not self.receive(one):
                return False
        else:
            self.drain()
            if one.action == Action.SEND:
                assert one.number not in self.mail
                self.mail[one.number] = self.memory[one.tensor]
        self.at += 1
        self.waits += 1
        return True

    def receive(self, one):
        if one.number in self.taken:
            self.received += 1
            return True
        if self.receives[self.received][0] > self.drained:
            self.drain()
        if one.number not in self.mail:
            return False
        self.memory[one.tensor] = self.mail[one.number]
        self.received += 1
        for earliest, other in self.receives[self.received :]:
            early = earliest <= self.drained and other.number not in self.taken
            if early and other.number in self.mail and self.rng.random() < 0.5:
                self.memory[other.tensor] = self.mail[other.number]
                self.taken.add(other.number)
        return True


def played(rng, parts, count):
    """Carry out all parts, and return the last values of the program's tensors."""
    mail = {}
    players = {place: Player(rng, part, place, mail) for place, part in parts.items()}
    for player, part in zip(players.values(), parts.values(), strict=True):
        for i, use in enumerate(part.named):
            assert player.part.tensors[i].named == i + 1
            if use.reads:
                player.memory[i] = use.tensor
    while active := [one for one in players.values() if not one.is_done or one.pending]:
        able = [one for one in rng.sample(active, len(active)) if not one.is_done]
        if able and any(one.step() for one in able):
            continue
        busy = [one for one in active if one.pending]
        assert busy, "the parts wait for each other in a circle"
        rng.choice(busy).start_one()
    values = list(range(count))
    for place, part in parts.items():
        for i, use in enumerate(part.named):
            if use.makes:
                values[use.tensor] = players[place].memory[i]
    return values


@pytest.mark.parametrize("places", [1, 2, 3])
@pytest.mark.parametrize("seed", range(40))
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


@pytest.mark.parametrize("seed", range(20))
def test_each_version_is_pushed_once_to_each_endpoint_that_reads_it(seed):
    rng = random.Random(seed)
    tasks, sizes, of_parent = drawn(rng, 50, 3)
    parts = split(tasks, sizes, of_parent)
    version = defaultdict(int)
    maker = {}
    needed = set()
    for task in tasks:
        for use in task.uses:
            makes = maker.get(use.tensor, task.place)
            if use.tag in READS and makes != task.place:
                needed.add((use.tensor, version[use.tensor], task.place))
        for use in task.uses:
            if use.tag in WRITES:
                version[use.tensor] += 1
                maker[use.tensor] = task.place
    for action in Action.SEND, Action.RECEIVE:
        count = sum(o.action == action for p in parts.values() for o in p.part.operations)
        assert count == len(needed)


def test_memory_that_is_of_no_use_any_more_is_used_again(monkeypatch):
    monkeypatch.setattr(splitting, "MOST_DEAD_BYTES", 10 * 4096)
    tasks = []
    for i in range(1000):
        uses = [SplitUse(i, READ, form(4096), ""), SplitUse(i + 1, MAKE, form(4096), "")]
        tasks.append(SplitTask(0, bytes(32), uses, ()))
    (part,) = split(tasks, [4096] * 1001, {0}).values()
    assert part.nbytes < 20 * 4096
    assert any(one.action == Action.WAIT for one in part.part.operations)


def test_what_only_one_endpoint_changes_is_of_no_use_at_the_others():
    tasks = [
        SplitTask(0, bytes(32), [SplitUse(0, CHANGE, form(64), "")], ()),
        SplitTask(1, bytes(32), [SplitUse(0, CHANGE, form(64), "")], ()),
    ]
    parts = split(tasks, [64], {0})
    assert [use for one in parts.values() for use in one.named] == [
        (0, True, False),
        (0, False, True),
    ]
    assert [list(one.part.spoiled) for one in parts.values()] == [[0], []]


@pytest.mark.parametrize("seed", range(20))
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


def test_long_tasks_are_spread_and_short_ones_stay_together():
    sizes = [64] * 17
    tasks = [
        SplitTask(
            0, bytes(32), [SplitUse(0, READ, form(64), ""), SplitUse(i, MAKE, form(64), "")], ()
        )
        for i in range(1, 17)
    ]
    every = [[0, 1]] * 16
    spread, *_ = partitions(tasks, every, sizes, frozenset(range(17)), {0: 1, 1: 1}, 1e-2)
    assert [one.tasks for one in spread.values()] == [8, 8]
    chain = [SplitTask(0, bytes(32), [SplitUse(0, CHANGE, form(64), "")], ()) for _ in range(16)]
    together, *_ = partitions(chain, every, sizes, frozenset((0,)), {0: 1, 1: 1}, 1e-2)
    assert [one.tasks for one in together.values()] == [16]


def test_a_tensor_is_pushed_before_the_next_task_changes_it():
    changes = [SplitUse(0, CHANGE, form(64), "")]
    tasks = []
    for number, result in enumerate((1, 2)):
        reads = [SplitUse(0, READ, form(64), ""), SplitUse(result, MAKE, form(64), "")]
        tasks.append(SplitTask(0, bytes((2 * number, *bytes(31))), changes, ()))
        tasks.append(SplitTask(1, bytes((2 * number + 1, *bytes(31))), reads, ()))
    parts = split(tasks, [64] * 3, frozenset(range(3)))
    assert played(random.Random(1), parts, 3) == sequential(tasks, 3)
