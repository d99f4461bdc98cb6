"""Who goes next: every order with few preemptions, or orders drawn at random."""

import random


class InTurn:
    """Nobody is preempted; who cannot go on is followed by the next one in turn."""

    def before_step(self, world):
        return None

    def after_look(self, world, others):
        return after(world, others)

    def pick(self, world, able):
        return after(world, able)

    def idle_ns(self):
        return 0

    def how_old(self, values):
        return 0

    def again(self):
        return InTurn()

    def __repr__(self):
        return "InTurn()"


def after(world, able):
    """Return the first of some actors that comes after the present one in the circle of all."""
    actors = world.actors
    first = actors.index(world.current) + 1 if world.current is not None else 0
    for actor in actors[first:] + actors[:first]:
        if actor in able:
            return actor
    raise AssertionError("nobody is able to go on")


class Preempted(InTurn):
    """One of the schedules with at most so many preemptions, and of the ways to read old values.

    `prefix` are its first choices; all others are the first that there is. `trail` has each choice that
    was made, and among how many.
    """

    def __init__(self, prefix, preemptions):
        self.prefix, self.preemptions = prefix, preemptions
        self.left = preemptions
        self.trail = []

    def choose(self, count):
        at = len(self.trail)
        choice = self.prefix[at] if at < len(self.prefix) else 0
        self.trail.append((choice, count))
        return choice

    def before_step(self, world):
        if self.left == 0:
            return None
        others = [actor for actor in world.able() if actor is not world.current]
        choice = self.choose(1 + len(others)) if others else 0
        if choice == 0:
            return None
        self.left -= 1
        return others[choice - 1]

    def how_old(self, values):
        return self.choose(values)

    def again(self):
        return Preempted([choice for choice, _ in self.trail], self.preemptions)

    def following(self):
        """Return the prefix of the next schedule, or None after the last one."""
        trail = list(self.trail)
        while trail and trail[-1][0] + 1 == trail[-1][1]:
            trail.pop()
        if not trail:
            return None
        prefix = [choice for choice, _ in trail]
        prefix[-1] += 1
        return prefix

    def __repr__(self):
        last = max((n for n, choice in enumerate(self.prefix) if choice), default=-1)
        return f"Preempted({self.prefix[: last + 1]}, {self.preemptions})"


def every_schedule(preemptions):
    """Go through all schedules with so many preemptions at most."""
    prefix = []
    while prefix is not None:
        schedule = Preempted(prefix, preemptions)
        yield schedule
        prefix = schedule.following()


class Drawn(InTurn):
    """A schedule drawn at random; the seed repeats it.

    Half of them switch now and then. The others give each actor a rank and let the highest go on, but for
    a few changes of rank: that finds what takes few preemptions, at any distance from each other.
    """

    def __init__(self, seed, length=2000):
        self.seed, self.length = seed, length
        self.rng = rng = random.Random(seed)
        self.often = rng.choice([0.01, 0.05, 0.2, 0.5])
        self.changes = None
        if rng.random() < 0.5:
            self.changes = {rng.randrange(length) for _ in range(rng.randint(1, 6))}
        self.ranks = {}
        self.lowest = 0.0
        self.late = rng.choice([0, 0, 0.02, 0.1])
        self.old = rng.choice([0.1, 0.5, 0.9, 1])

    def rank(self, actor):
        if actor not in self.ranks:
            self.ranks[actor] = self.rng.random()
        return self.ranks[actor]

    def lower(self, actor):
        self.lowest -= 1
        self.ranks[actor] = self.lowest

    def before_step(self, world):
        if self.changes is None:
            if self.rng.random() >= self.often:
                return None
            return self.rng.choice(world.able())
        if world.steps in self.changes:
            self.lower(world.current)
        elif not world.news:
            return None
        world.news = False
        return max(world.able(), key=self.rank)

    def after_look(self, world, others):
        if self.changes is None:
            return self.rng.choice(others) if self.rng.random() < 0.7 else None
        self.lower(world.current)
        return max(others, key=self.rank)

    def pick(self, world, able):
        if self.changes is None:
            return self.rng.choice(able)
        world.news = False
        return max(able, key=self.rank)

    def idle_ns(self):
        if self.late and self.rng.random() < self.late:
            return self.rng.choice([300, 2_000, 20_000, 700_000])
        return 0

    def how_old(self, values):
        if self.rng.random() >= self.old:
            return 0
        return values - 1 if self.old == 1 else self.rng.randrange(values)

    def again(self):
        return Drawn(self.seed, self.length)

    def __repr__(self):
        return f"Drawn({self.seed!r}, {self.length})"
