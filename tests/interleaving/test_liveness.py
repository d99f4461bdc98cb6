"""A ready task and an idle worker lead to a start, even if the Orch thread never comes back."""

import pytest

from ..support import sample
from .scene import Scene
from .schedules import Drawn, InTurn, every_schedule
from .search import attempt, search, with_depths

pytestmark = pytest.mark.kernels
UNSEEN_END = "a@0 b@0 c@1<a"
"""b never ends: nobody but its worker knows that a has."""

SCENES = [
    *((UNSEEN_END, {"services": "b"}), ("a b c<a d<b e<c", {"services": "b"})),
    *(("a b c<a d<c", {"services": "b"}), ("a b*2<a c", {"services": "c"})),
    *(("a@0 b@0<a c@1<b d", {"services": "d"}), ("a b<a c<b d<c", {"workers": 3, "spin_ns": 0})),
]


@pytest.mark.parametrize("bulk", [False, True], ids=["single", "bulk"])
@pytest.mark.parametrize(("scene", "depth"), with_depths(SCENES))
def test_no_ready_task_stays_off_an_idle_worker(scene, depth, bulk):
    program, how = scene
    scene = Scene(program, depth=depth, bulk=bulk, away=True, **how)
    attempt(scene, InTurn())
    for seed in range(25):
        attempt(scene, Drawn(seed))


@pytest.mark.parametrize("bulk", sample([False, True], 1), ids=["single", "bulk"])
def test_nor_in_any_order_with_one_preemption(bulk):
    scene = Scene(UNSEEN_END, services="b", away=True, bulk=bulk, spin_ns=0)
    for schedule in every_schedule(1):
        attempt(scene, schedule)


def test_a_worker_that_waited_for_long_answers_that_task_and_no_other():
    """It gives one back, or need not start it, and then waits for the next one, all between two looks."""
    scene = Scene("a@0 b@1<a c@0<b d@1<c e@0<d f@1<e", spin_ns=0, yield_ns=300)
    for seed in range(100):
        attempt(scene, Drawn(seed))


@pytest.mark.parametrize("seed", sample(range(6), 2))
def test_nor_in_programs_drawn_at_random(seed):
    search(seed, "liveness", 20)
