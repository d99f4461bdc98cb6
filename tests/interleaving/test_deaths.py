"""A worker may die after each of its stores: whoever sleeps is woken, and the runs end as they should.

What that means is in `Play.check_run`: a task whose answer stood is done, what has failed had a reason,
and nothing is left behind. Then comes another run, with a successor, and the stop.
"""

import pytest

from ..support import sample
from .scene import Scene
from .schedules import Drawn, InTurn
from .search import attempt, search

pytestmark = pytest.mark.kernels
SCENES = [("a b<a c<b", {"depth": 1}), ("a@0 b@0<a c@1<b", {"depth": 2})]
SCENES += [("a@0 b@1<a c@0<b", {"depth": 3}), ("a b c*2<a d<c", {"depth": 1})]
SCENES += [("a b c d e", {"depth": 2, "bulk": True}), ("a@0 b", {"depth": 1, "requests": 2})]
STORES = 150
"""More than a worker makes in any of these."""


def dies_everywhere(scene, schedule):
    """Let each worker die after each of its stores; return how often one did."""
    died = 0
    for worker in range(scene.workers):
        for stores in range(1, STORES):
            play = attempt(scene, schedule(), deaths={worker: stores})
            if not any(actor.died for actor in play.world.actors):
                break
            died += 1
    return died


@pytest.mark.parametrize(("program", "how"), SCENES)
def test_whoever_sleeps_is_woken_when_a_worker_has_died_after_any_store(program, how):
    assert dies_everywhere(Scene(program, runs=2, **how), InTurn) > 20


@pytest.mark.long
@pytest.mark.parametrize(("program", "how"), SCENES)
def test_so_it_is_in_other_orders(program, how):
    scene = Scene(program, runs=2, **how)
    for seed in range(20):
        dies_everywhere(scene, lambda seed=seed: Drawn(seed))


@pytest.mark.parametrize("seed", sample(range(6), 3))
def test_so_it_is_in_programs_drawn_at_random(seed):
    search(seed, "death", 12)
