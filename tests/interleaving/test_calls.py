"""Calls from several threads: each ends once and in its turn, fails only for a reason, leaves nothing."""

import pytest

from ..support import sample
from .calls import CallScene
from .schedules import Drawn, InTurn, every_schedule
from .search import attempt, search_calls, with_depths

pytestmark = pytest.mark.kernels
SCENES = [
    ("a>x b<x c>x d<x?b", {}),
    ("a>x b<x>y c<x>x d<y?c", {"fails": "b"}),
    ("a>x b<x c<x d>x e<x", {"fails": "ad"}),
    ("a@0<x>y b@0<y>xz c<z", {"workers": 1, "fails": "a"}),
    ("a>x b<x !b c>x d<x .d !d e?c", {}),
    ("a>x ~a b<x ~b c<x>y | d>y e<y?d .e f<x>z", {}),
    ("a>x .a b>y .b c>z .c d<xyz e .d f<y>x", {"window": 4}),
]


@pytest.mark.parametrize(("scene", "depth"), with_depths(SCENES))
def test_each_call_ends_once_and_after_those_that_it_waits_for(scene, depth):
    program, how = scene
    scene = CallScene(program, depth=depth, runs=2, **how)
    attempt(scene, InTurn())
    for seed in range(40):
        attempt(scene, Drawn(seed), weak=seed % 4 == 3)


@pytest.mark.parametrize("program", sample(["a>x | b<x?a", "a>x b<x c>x | d<x?a"], 1))
def test_so_it_is_in_any_order_with_one_preemption(program):
    scene = CallScene(program, spin_ns=0)
    for schedule in every_schedule(1):
        attempt(scene, schedule)


def test_a_call_that_makes_room_does_not_wait_for_itself():
    """Its slot may be that of a call which had not ended when it looked for what it waits for."""
    scene = CallScene("a@0>x ~a b@1>y ~b c@1>z ~c d<x>x", window=3)
    for seed in (405, *range(100)):  # the first has found it
        attempt(scene, Drawn(seed))


@pytest.mark.parametrize("scene", sample(SCENES[:4], 2))
def test_so_it_is_when_a_worker_has_died_after_any_store(scene):
    program, how = scene
    scene, died = CallScene(program, depth=2, runs=2, **how), 0
    for stores in range(1, 60):
        play = attempt(scene, InTurn(), deaths={0: stores})
        attempt(scene, Drawn(stores), deaths={0: stores})
        died += any(actor.died for actor in play.world.actors)
    assert died > 20


@pytest.mark.parametrize("kind", ["liveness", "death"])
@pytest.mark.parametrize("seed", sample(range(6), 2))
def test_so_it_is_in_programs_drawn_at_random(seed, kind):
    search_calls(seed, kind, 12)
