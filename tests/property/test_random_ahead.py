"""Tasks that are given ahead of time: whatever the workers do, and in whatever order, none starts early.

Long programs, of which dice choose each step; `test_every_order.py` takes every step of short ones.
"""

import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from tests.ahead_model import AheadModel, Task
from tests.support import overwrites, reads, updates

pytestmark = pytest.mark.kernels

SELDOM = {"fails": 0.005, "dies": 0.005, "cancel": 0.005}
"""How often a mishap comes about that could."""


def draw_task(rng, pools):
    uses = [
        (rng.choice([reads, reads, updates, overwrites]), key)
        for key in rng.sample(range(6), rng.randint(1, 3))
    ]
    kind = rng.choice([kind for kind, pool in pools.items() if pool])
    if rng.random() < 0.1:
        return Task(uses, members=rng.randint(1, len(pools[kind])), kind=kind)
    return Task(uses, rng.choice(pools[kind]) if rng.random() < 0.2 else -1, kind=kind)


def play(seed, depth, steps, kind=AheadModel):
    """Take so many steps, then let everybody go on to the end; return the model."""
    rng = random.Random(seed)
    subs, next_level = rng.randint(1, 3), rng.randint(0, 1)
    pools = {L.NEXT_LEVEL: range(next_level), L.SUB: range(next_level, next_level + subs)}
    program = [draw_task(rng, pools) for _ in range(400)]
    mishaps = {"fail": steps, "back": steps, "die": rng.choice([0, 0, 0, 3])}
    mishaps["cancel"] = rng.choice([0, 0, 0, 1])
    how = {"depth": depth, "window": 512, "scoped": rng.random() < 0.5}
    model = kind(program, workers=subs, next_level=next_level, **how, **mishaps)
    odds = SELDOM | {"has waited": rng.choice([0.02, 0.1, 0.3])}

    def run_pass():
        if not model.losing:
            yield "pass", model.run_pass

    workers = [functools.partial(model.worker_steps, worker) for worker in model.all]
    speeds = [rng.choice([1, 1, 5, 20]) for _ in workers]
    actors = rng.choices(
        [model.orch_steps, model.scheduler_steps, run_pass, *workers],
        [6, 5, 3, *(12 * speed / sum(speeds) for speed in speeds)],
        k=steps,
    )
    for actor in actors:
        if possible := list(actor()):
            name, step = rng.choice(possible)
            if rng.random() < odds.get(name, 1):
                step()
        if actor not in workers:
            model.check_order()
        model.look(rng)
    model.finish()
    model.driver.close()
    return model


@pytest.mark.parametrize("plays", [45, pytest.param(3000, marks=pytest.mark.long)])
def test_no_task_that_is_given_ahead_starts_early_twice_or_never(plays):
    @settings(max_examples=3 if INTERPRETED else plays)
    @given(seed=st.integers(0, 10**9), depth=st.integers(2, 6 if plays < 100 else 16))
    def play_one(seed, depth):
        play(seed, depth, 1000)

    play_one()


def test_the_plays_are_about_tasks_given_ahead():
    assert sum(play(seed, 4, 400).ahead for seed in range(10)) > 50
