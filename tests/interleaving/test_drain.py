"""The Orch thread waits in the middle of a run: for every task, and never after the last has ended."""

import pytest

from .scene import Scene
from .schedules import Drawn, InTurn, every_schedule
from .search import attempt, with_depths

pytestmark = pytest.mark.kernels
SCENES = [("a", {"workers": 1, "spin_ns": 0}), ("a b<a c<b", {"workers": 1, "spin_ns": 0})]
SCENES += [("a b c<a d<b", {}), ("a b*2<a c<b", {}), ("a b<a c d<c", {"fails": "a"})]


@pytest.mark.parametrize(("scene", "depth"), with_depths(SCENES))
def test_a_drain_ends_when_everything_has(scene, depth):
    program, how = scene
    scene = Scene(program, depth=depth, drains=True, **how)
    attempt(scene, InTurn())
    for seed in range(40):
        attempt(scene, Drawn(seed))


def test_nor_in_any_order_with_one_preemption():
    scene = Scene("a b<a", workers=1, drains=True, spin_ns=0)
    for schedule in every_schedule(1):
        attempt(scene, schedule)
