"""Scenes in many orders of their steps: ready tasks start, drains end, deaths and calls leave nothing.

What must hold is in `Play.check_run`: a task whose answer stood is done, what has failed had a reason,
and nothing is left behind. After a death comes another run, with a successor, and the stop.
"""

import itertools
import os
import random
import time

import pytest

from ..support import sample
from .calls import CallScene, draw_scene
from .scene import NAMES, Scene, draw_program
from .schedules import Drawn, InTurn, every_schedule

pytestmark = pytest.mark.kernels
SECONDS = float(os.environ.get("SIMPLER_REF_INTERLEAVING_S", "300"))
FIRST = int(os.environ.get("SIMPLER_REF_INTERLEAVING_SEED", time.time()))
UNSEEN_END = "a@0 b@0 c@1<a"
"""b never ends: nobody but its worker knows that a has."""


def with_depths(scenes):
    """Return parameters, scenes with depths: `make test` takes each scene with one of them."""
    return [
        pytest.param(scene, depth, marks=[pytest.mark.long] * (depth != 1 + (number + 1) % 3))
        for number, scene in enumerate(scenes)
        for depth in (1, 2, 3)
    ]


class Found(AssertionError):
    """Something that must not be, with what repeats it and the last steps of each actor."""


def attempt(scene, schedule, **how):
    """Play a scene; should anything be wrong, play it again and tell the story."""
    try:
        return scene.play(schedule, **how)
    except AssertionError as error:
        wrong = error
    again = schedule.again()
    traced = scene.begin(again, traced=True, **how)
    try:
        traced.run()
        traced.check()
        told = "IT DOES NOT REPEAT"
    except AssertionError as error:
        told = traced.world.tell()
        assert str(error) == str(wrong), f"again, it is something else: {error}"
    raise Found(f"{wrong}\n{scene}.play({again!r}, **{how})\n{told}") from wrong


def draw(seed, kind):
    """Return a scene: `kind` is "liveness" or "death"."""
    rng = random.Random(f"{kind} {seed}")
    size, workers = rng.randint(2, 6), rng.choice([1, 2, 2, 2, 3])
    program = draw_program(rng, size, workers, groups=0.12, edges=0.4)
    how = {
        "workers": workers,
        "depth": rng.choice([1, 2, 2, 3, 5]),
        "bulk": rng.random() < 0.4,
        "spin_ns": rng.choice([0, 300, 300, 1500]),
        "yield_ns": rng.choice([0, 0, 300]),
    }
    if rng.random() < 0.3:
        how["fails"] = rng.choice(NAMES[:size])
    if kind == "liveness":
        how |= {"services": "".join(rng.sample(NAMES[:size], rng.randint(0, 2))), "away": True}
    else:
        how |= {"runs": 2, "requests": rng.choice([0, 0, 1])}
    return Scene(program, **how)


def search(seed, kind, plays):
    """Play one scene that is drawn at random so many times; every fourth time in weak memory.

    Of a "death" scene, workers die each time.
    """
    play_drawn(draw(seed, kind), seed, random.Random(f"deaths {seed}"), kind, plays)


def search_calls(seed, kind, plays):
    """Play one scene with calls that is drawn at random so many times, as `search` does."""
    rng = random.Random(f"calls {kind} {seed}")
    play_drawn(draw_scene(rng, kind), seed, rng, kind, plays)


def play_drawn(scene, seed, rng, kind, plays):
    for number in range(plays):
        deaths = {}
        if kind == "death":
            for worker in rng.sample(range(scene.workers), rng.randint(1, scene.workers)):
                deaths[worker] = rng.randint(1, 60)
        attempt(scene, Drawn(f"{seed} {number}"), deaths=deaths, weak=number % 4 == 3)


def play_often(scene, times):
    attempt(scene, InTurn())
    for seed in range(times):
        attempt(scene, Drawn(seed))


# ---------------------------------------------------------------- the Orch thread stays away, or drains
LEFT_ALONE = [
    *((UNSEEN_END, {"services": "b"}), ("a b c<a d<b e<c", {"services": "b"})),
    *(("a b c<a d<c", {"services": "b"}), ("a b*2<a c", {"services": "c"})),
    *(("a@0 b@0<a c@1<b d", {"services": "d"}), ("a b<a c<b d<c", {"workers": 3, "spin_ns": 0})),
]
DRAINED = [("a", {"workers": 1, "spin_ns": 0}), ("a b<a c<b", {"workers": 1, "spin_ns": 0})]
DRAINED += [("a b c<a d<b", {}), ("a b*2<a c<b", {}), ("a b<a c d<c", {"fails": "a"})]


@pytest.mark.parametrize("bulk", [False, True], ids=["single", "bulk"])
@pytest.mark.parametrize(("scene", "depth"), with_depths(LEFT_ALONE))
def test_no_ready_task_stays_off_an_idle_worker(scene, depth, bulk):
    program, how = scene
    play_often(Scene(program, depth=depth, bulk=bulk, away=True, **how), 25)


@pytest.mark.parametrize(("scene", "depth"), with_depths(DRAINED))
def test_a_drain_ends_when_everything_has(scene, depth):
    program, how = scene
    play_often(Scene(program, depth=depth, drains=True, **how), 40)


def test_a_worker_that_waited_for_long_answers_that_task_and_no_other():
    """It gives one back, or need not start it, and then waits for the next one, all between two looks."""
    scene = Scene("a@0 b@1<a c@0<b d@1<c e@0<d f@1<e", spin_ns=0, yield_ns=300)
    for seed in range(100):
        attempt(scene, Drawn(seed))


# ---------------------------------------------------------------- a worker dies after each of its stores
DEADLY = [("a b<a c<b", {"depth": 1}), ("a@0 b@0<a c@1<b", {"depth": 2})]
DEADLY += [("a@0 b@1<a c@0<b", {"depth": 3}), ("a b c*2<a d<c", {"depth": 1})]
DEADLY += [("a b c d e", {"depth": 2, "bulk": True}), ("a@0 b", {"depth": 1, "requests": 2})]
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


@pytest.mark.parametrize(("program", "how"), DEADLY)
def test_whoever_sleeps_is_woken_when_a_worker_has_died_after_any_store(program, how):
    assert dies_everywhere(Scene(program, runs=2, **how), InTurn) > 20


@pytest.mark.long
@pytest.mark.parametrize(("program", "how"), DEADLY)
def test_so_it_is_in_other_orders(program, how):
    scene = Scene(program, runs=2, **how)
    for seed in range(20):
        dies_everywhere(scene, lambda seed=seed: Drawn(seed))


# ---------------------------------------------------------------- calls from several threads
CALLS = [
    ("a>x b<x c>x d<x?b", {}),
    ("a>x b<x>y c<x>x d<y?c", {"fails": "b"}),
    ("a>x b<x c<x d>x e<x", {"fails": "ad"}),
    ("a@0<x>y b@0<y>xz c<z", {"workers": 1, "fails": "a"}),
    ("a>x b<x !b c>x d<x .d !d e?c", {}),
    ("a>x ~a b<x ~b c<x>y | d>y e<y?d .e f<x>z", {}),
    ("a>x .a b>y .b c>z .c d<xyz e .d f<y>x", {"window": 4}),
]


@pytest.mark.parametrize(("scene", "depth"), with_depths(CALLS))
def test_each_call_ends_once_and_after_those_that_it_waits_for(scene, depth):
    program, how = scene
    scene = CallScene(program, depth=depth, runs=2, **how)
    attempt(scene, InTurn())
    for seed in range(40):
        attempt(scene, Drawn(seed), weak=seed % 4 == 3)


def test_a_call_that_makes_room_does_not_wait_for_itself():
    """Its slot may be that of a call which had not ended when it looked for what it waits for."""
    scene = CallScene("a@0>x ~a b@1>y ~b c@1>z ~c d<x>x", window=3)
    for seed in (405, *range(100)):  # the first has found it
        attempt(scene, Drawn(seed))


@pytest.mark.parametrize("scene", sample(CALLS[:4], 2))
def test_calls_are_right_when_a_worker_has_died_after_any_store(scene):
    program, how = scene
    scene, died = CallScene(program, depth=2, runs=2, **how), 0
    for stores in range(1, 60):
        play = attempt(scene, InTurn(), deaths={0: stores})
        attempt(scene, Drawn(stores), deaths={0: stores})
        died += any(actor.died for actor in play.world.actors)
    assert died > 20


# ---------------------------------------------------------------- any order, and scenes drawn at random
SMALL = [
    ("left alone", Scene, UNSEEN_END, {"services": "b", "away": True}),
    ("left alone in bulk", Scene, UNSEEN_END, {"services": "b", "away": True, "bulk": True}),
    ("drained", Scene, "a b<a", {"workers": 1, "drains": True}),
    ("calls of two threads", CallScene, "a>x | b<x?a", {}),
    ("calls, some of which only read", CallScene, "a>x b<x c>x | d<x?a", {}),
]
LONG = {"left alone in bulk", "calls, some of which only read"}


@pytest.mark.parametrize(
    ("kind", "program", "how"),
    [
        pytest.param(*scene, id=name, marks=[pytest.mark.long] * (name in LONG))
        for name, *scene in SMALL
    ],
)
def test_nothing_is_wrong_in_any_order_with_one_preemption(kind, program, how):
    scene = kind(program, spin_ns=0, **how)
    for schedule in every_schedule(1):
        attempt(scene, schedule)


@pytest.mark.parametrize(
    ("find", "kind", "plays", "seed"),
    [
        pytest.param(find, kind, plays, seed, marks=[pytest.mark.long] * (seed % often > 0))
        for find, kind, plays, often in (
            *((search, "death", 12, 2), (search, "liveness", 20, 3)),
            *((search_calls, "death", 12, 3), (search_calls, "liveness", 12, 3)),
        )
        for seed in range(6)
    ],
)
def test_nothing_is_wrong_in_scenes_drawn_at_random(find, kind, plays, seed):
    find(seed, kind, plays)


@pytest.mark.long
def test_nothing_is_wrong_in_scenes_drawn_at_random_for_minutes():
    until = time.monotonic() + SECONDS
    for seed in itertools.count(FIRST):
        print("seed", seed)
        for kind in ("liveness", "death"):
            search(seed, kind, plays=40)
            search_calls(seed, kind, plays=40)
        if time.monotonic() > until:
            break
