"""Scenes drawn at random, each played many times."""

import random

import pytest

from .calls import draw_scene
from .scene import NAMES, Scene, draw_program
from .schedules import Drawn


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
    play_often(draw(seed, kind), seed, random.Random(f"deaths {seed}"), kind, plays)


def search_calls(seed, kind, plays):
    """Play one scene with calls that is drawn at random so many times, as `search` does."""
    rng = random.Random(f"calls {kind} {seed}")
    play_often(draw_scene(rng, kind), seed, rng, kind, plays)


def play_often(scene, seed, rng, kind, plays):
    for number in range(plays):
        deaths = {}
        if kind == "death":
            for worker in rng.sample(range(scene.workers), rng.randint(1, scene.workers)):
                deaths[worker] = rng.randint(1, 60)
        attempt(scene, Drawn(f"{seed} {number}"), deaths=deaths, weak=number % 4 == 3)
