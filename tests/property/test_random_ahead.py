"""Tasks that are given ahead of time: whatever the workers do, and in whatever order, none starts early.

A test plays Orch thread, Scheduler and workers; what each does next is thrown with dice.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from tests.ahead_model import AheadModel
from tests.support import overwrites, reads, updates


class Play(AheadModel):
    """Actors that throw dice."""

    def __init__(self, seed: int, depth: int):
        self.rng = random.Random(seed)
        super().__init__(
            depth, sub=self.rng.randint(1, 3), next_level=self.rng.randint(0, 1), window=512
        )
        self.speeds = [self.rng.choice([1, 1, 5, 20]) for _ in self.all]
        self.patience = self.rng.choice([0.02, 0.1, 0.3])
        self.ahead = 0

    # ------------------------------------------------------------ one step of an actor
    def submit_any(self):
        if not self.may_submit() or len(self.works) == 400:
            return
        rng = self.rng
        keys = rng.sample(range(6), rng.randint(1, 3))
        uses = [(rng.choice([reads, reads, updates, overwrites]), key) for key in keys]
        kind = rng.choice([k for k, pool in self.pools.items() if pool])
        pool = self.pools[kind]
        if rng.random() < 0.1:
            self.submit(uses, kind=kind, members=rng.randint(1, len(pool)))
        else:
            self.submit(uses, kind=kind, owner=rng.choice(pool) if rng.random() < 0.2 else -1)

    def pass_(self):
        if self.rng.random() < 0.2:
            self.driver.mem[L.PREDISPATCH_AFTER] = 0  # it need not wait before it tries again
        self.driver.run_pass()
        self.ahead += self.given_ahead()
        if not self.cancelled:
            self.check_order()

    def work(self, worker):
        """Let a worker take its next step: start what it is at, answer it, or wait."""
        if self.task_at(worker) is None:
            return
        if worker in self.at_work:
            well = self.rng.random() > 0.02
            self.end_task(worker, None if well else ValueError(f"task {self.at_work[worker]}"))
            return
        turn = self.may_start(worker)
        if turn == L.OK:
            self.start(worker)
        elif turn != L.WOULD_BLOCK:
            self.decline(worker, turn)
        elif self.rng.random() < self.patience:
            self.decline(worker, L.RETURNED)

    # ------------------------------------------------------------ all of it
    def play(self, steps: int):
        odds = [("submit", 6), ("pass", 5), ("work", 12)]
        if self.rng.random() < 0.2:
            odds.append(("kill", 0.05))
        if self.rng.random() < 0.2:
            odds.append(("cancel", 0.1))
        names, weights = zip(*odds, strict=True)
        for step in self.rng.choices(names, weights, k=steps):
            if step == "submit":
                self.submit_any()
            elif step == "pass":
                self.pass_()
            elif step == "cancel":
                self.cancel()
            else:
                [worker] = self.rng.choices(self.all, self.speeds)
                self.work(worker) if step == "work" else self.kill(worker)
        self.finish()
        self.driver.close()


@pytest.mark.parametrize("depth", [2, 3, 6])
@given(seed=st.integers(0, 10**9))
def test_no_task_that_is_given_ahead_starts_early_twice_or_never(depth, seed):
    Play(seed, depth).play(1000)


def test_the_plays_are_about_tasks_given_ahead():
    plays = [Play(seed, 4) for seed in range(5)]
    for one in plays:
        one.play(400)
    assert sum(one.ahead for one in plays) > 50
