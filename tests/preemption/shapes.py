"""What follows from a seed: a Worker, what its program does, and who is got in the way of."""

from __future__ import annotations

import random
from typing import NamedTuple

MAIN, SCHEDULER, MONITOR, SERVER, WORKER = "main", "scheduler", "monitor", "server", "worker"
SLOW, STOP, KILL = "slow", "stop", "kill"
RINGS = 4
LENGTH = 120
"""Most steps of a graph."""


class Victim(NamedTuple):
    """Who is got in the way of, and how: see tracer.c."""

    who: str
    how: str


class Shape(NamedTuple):
    """A Worker, and what its program does."""

    seed: int
    subs: int
    next_level: int
    depth: int
    window: int | None
    heap: int
    mode: str
    spin_us: float | None
    acts: tuple[str, ...]
    victims: tuple[Victim, ...]

    @property
    def kills(self) -> bool:
        return any(victim.how == KILL for victim in self.victims)

    @property
    def is_compiled(self) -> bool:
        """Whether its tasks do without Python, which a worker that is slow would need minutes for."""
        return Victim(WORKER, SLOW) in self.victims

    @property
    def is_tight(self) -> bool:
        """Whether slots and memory are used again after a few tasks."""
        return self.window is not None

    @property
    def room(self) -> int:
        """How many tasks open scopes may hold."""
        return self.window - 2 if self.window else 1 << 20

    @property
    def slabs(self) -> int:
        """How many slabs of HEAP_ALIGN bytes open scopes may hold."""
        return self.heap // 2048

    @property
    def bulk(self) -> int:
        """Most tasks that are submitted in one call."""
        return self.window - 2 if self.window else 1500


IN_THE_WAY = [
    *((6, [Victim(SCHEDULER, SLOW)]), (5, [Victim(SCHEDULER, STOP)]), (5, [Victim(MAIN, STOP)])),
    *((2, [Victim(MAIN, SLOW)]), (4, [Victim(WORKER, SLOW)]), (4, [Victim(WORKER, STOP)])),
    (2, [Victim(WORKER, STOP), Victim(MAIN, STOP)]),
    (2, [Victim(SCHEDULER, STOP), Victim(MAIN, STOP)]),
    *((2, [Victim(SCHEDULER, STOP), Victim(WORKER, STOP)]), (5, [Victim(WORKER, KILL)])),
    (3, [Victim(WORKER, KILL), Victim(SCHEDULER, STOP)]),
    (3, [Victim(WORKER, KILL), Victim(MAIN, STOP)]),
    (2, [Victim(WORKER, KILL), Victim(MONITOR, STOP)]),
    *((1, [Victim(WORKER, KILL), Victim(SERVER, STOP)]), (1, [Victim(SERVER, KILL)])),
]
"""Who may be got in the way of, and how often that is chosen."""


def shape_of(seed: int) -> Shape:
    """Return what follows from a seed."""
    rng = random.Random(seed)
    [victims] = rng.choices([v for _, v in IN_THE_WAY], [odds for odds, _ in IN_THE_WAY])
    kills = any(victim.how == KILL for victim in victims)
    window = rng.choice([8, 16, 64, None])
    acts = ["graph", "counting", "bulk", "replay", "recount", "failing", "register"]
    if Victim(MAIN, SLOW) in victims:  # its Python would take for ever
        acts = ["replay", "recount"]
    elif Victim(WORKER, SLOW) in victims:
        acts = ["bulk", "counting", "recount"]
    elif rng.random() < 0.7:
        acts = rng.sample(acts, rng.randint(1, 4))
    return Shape(
        seed=seed,
        subs=rng.choice([1, 2, 2, 3, 4, 12]),
        next_level=rng.choice([0, 0, 1, 2]),
        depth=rng.choice([1, 1, 2, 16]),
        window=window,
        heap=rng.choice([1 << 16, 1 << 18]) if window else 1 << 20,
        mode="thread" if not kills and rng.random() < 0.15 else "process",
        spin_us=rng.choice([None, None, 0.0, 20.0, 2000.0]),
        acts=tuple(acts),
        victims=tuple(victims),
    )
