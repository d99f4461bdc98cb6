"""What has to run again after a loss: random programs, of which any endpoint may be lost at any time."""

import random

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.remote.directory import HOME, CopyPlan, Use
from simpler_ref.remote.lineage import Gone, Lineage, Logged
from tests.support import sample

TENSORS, SIZE, ENDPOINTS = 4, 8, 3
READ, WRITE = L.TENSOR_READ, L.TENSOR_WRITE


def use(index, tensor, rights):
    return Use(index, 100 + SIZE * tensor, SIZE, rights, b"")


class World:
    """Tensors as numbers: what each place has, and what they have to be at the end.

    Endpoints have one version of a tensor at most, as sessions do; keys are the numbers of tensors.
    """

    def __init__(self, rng, retries=9):
        self.rng, self.lineage = rng, Lineage(retries)
        self.home = list(range(TENSORS))
        self.expected = list(self.home)
        self.there = [{} for _ in range(ENDPOINTS)]
        """By tensor: the version and the value."""
        self.version, self.maker = [1] * TENSORS, [HOME] * TENSORS
        self.values = {(tensor, 1): tensor for tensor in range(TENSORS)}
        self.outcomes, self.at_home = {}, [True] * TENSORS
        self.number, self.lost = 0, set()

    def submit(self, place=None, reads=None, writes=None, again=0):
        """Submit a task; it runs at once unless what it reads was lost, or its place is."""
        rng = self.rng
        if place is None:
            place = rng.choice([HOME, *range(ENDPOINTS)])
            chosen = rng.sample(range(TENSORS), rng.randint(1, 3))
            reads = [one for one in chosen if rng.random() < 0.7]
            writes = [one for one in chosen if rng.random() < 0.6 or one not in reads]
        if place == HOME:
            for tensor in reads:
                self.bring(tensor)
        both = dict.fromkeys([*reads, *writes])
        uses = [
            use(i, one, READ * (one in reads) | WRITE * (one in writes))
            for i, one in enumerate(both)
        ]
        plans = [
            CopyPlan(
                one + 1,
                self.version[one] * (one in reads),
                (self.version[one] + 1) * (one in writes),
            )
            for one in both
        ]
        task = Logged(self.number, (place,), again, (place, reads, writes))
        self.lineage.note_task(task, [uses], [plans if place != HOME else ()])
        values = [self.values.get((one, self.version[one])) for one in reads]
        succeeded = place not in self.lost and all(
            self.fetch(place, one) if place != HOME else self.is_home(one) for one in reads
        )
        written = hash((tuple(reads), *values, len(writes))) if None not in values else None
        for tensor in writes:
            self.version[tensor] += 1
            self.maker[tensor], self.at_home[tensor] = place, place == HOME
            if succeeded:
                self.values[tensor, self.version[tensor]] = written
                if place == HOME:
                    self.home[tensor] = written
                else:
                    self.there[place][tensor] = self.version[tensor]
        if not succeeded:
            self.outcomes[task.number] = True
        self.number += 1
        return reads, writes

    def is_home(self, tensor):
        known = (tensor, self.version[tensor]) in self.values
        return known and self.home[tensor] == self.values[tensor, self.version[tensor]]

    def fetch(self, place, tensor):
        version, maker = self.version[tensor], self.maker[tensor]
        there = self.there[place]
        if there.get(tensor) != version:
            if maker == HOME:
                if not self.is_home(tensor):
                    return False
            elif maker in self.lost or self.there[maker].get(tensor) != version:
                return False
            there[tensor] = version
        return True

    def bring(self, tensor):
        """Have a task bring a tensor home, if an endpoint has made it and that was not done."""
        if self.at_home[tensor]:
            return
        version, maker = self.version[tensor], self.maker[tensor]
        self.lineage.note_bringing(self.number, maker, tensor + 1, version)
        self.at_home[tensor] = True
        if maker in self.lost or self.there[maker].get(tensor) != version:
            self.outcomes[self.number] = False
        else:
            self.home[tensor] = self.values[tensor, version]
        self.number += 1

    def lose(self, place):
        self.lost.add(place)
        self.there[place].clear()

    def recover(self):
        """Do what a replay says, and begin a new log."""
        held = {
            one: {tensor + 1: version for tensor, version in there.items()}
            for one, there in enumerate(self.there)
            if one not in self.lost
        }
        replay = self.lineage.replay(self.outcomes, held)
        for one in replay.rescues:
            tensor = (one.track.start - 100) // SIZE
            assert self.there[one.endpoint][tensor] == one.theirs
            self.home[tensor] = self.values[tensor, one.theirs]
        self.lineage.clear()
        self.outcomes.clear()
        self.lost.clear()
        for there in self.there:
            there.clear()
        self.version, self.maker = [1] * TENSORS, [HOME] * TENSORS
        self.at_home = [True] * TENSORS
        self.values = {(tensor, 1): value for tensor, value in enumerate(self.home)}
        for task in replay.tasks:
            self.submit(*task.submit, again=task.again + 1)
        return replay


@pytest.mark.parametrize("seed", sample(range(300)))
def test_what_is_lost_is_computed_again_or_nothing_is_done(seed):
    rng = random.Random(seed)
    world = World(rng)
    expected = list(world.home)
    for _ in range(rng.randint(5, 40)):
        reads, writes = world.submit()
        written = hash((tuple(reads), *(expected[one] for one in reads), len(writes)))
        for tensor in writes:
            expected[tensor] = written
        if rng.random() < 0.15:
            world.lose(rng.randrange(ENDPOINTS))
        if world.lost and rng.random() < 0.4:
            try:
                world.recover()
            except Gone:
                return
    try:
        world.recover()
    except Gone:
        return
    for tensor in range(TENSORS):
        world.bring(tensor)
    assert not world.outcomes
    assert world.home == expected


def test_most_losses_are_made_good():
    made_good = 0
    for seed in range(200):
        world = World(random.Random(seed))
        for _ in range(10):
            world.submit()
        world.lose(0)
        for _ in range(3):
            world.submit()
        try:
            world.recover()
        except Gone:
            continue
        made_good += 1
    assert made_good > 60, made_good
