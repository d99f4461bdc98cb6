"""Calls from several threads: each ends once and in its turn, fails only for a reason, leaves nothing."""

from __future__ import annotations

import pytest

from simpler_ref.jit import calls as kernels
from simpler_ref.jit import dispatch, entries, graph, hazards
from simpler_ref.jit import layout as L

from .calls import CallScene
from .schedules import Drawn, InTurn, every_schedule
from .search import attempt, search_calls

SCENES = [
    ("a>x b<x c>x d<x?b", {}),
    ("a>x b<x>y c<x>x d<y?c", {"fails": "b"}),
    ("a>x b<x c<x d>x e<x", {"fails": "ad"}),
    ("a@0<x>y b@0<y>xz c<z", {"workers": 1, "fails": "a"}),
    ("a>x b<x !b c>x d<x .d !d e?c", {}),
    ("a>x ~a b<x ~b c<x>y | d>y e<y?d .e f<x>z", {}),
    ("a>x .a b>y .b c>z .c d<xyz e .d f<y>x", {"window": 4}),
]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("program", "how"), SCENES)
def test_each_call_ends_once_and_after_those_that_it_waits_for(program, how, depth):
    scene = CallScene(program, depth=depth, runs=2, **how)
    attempt(scene, InTurn())
    for seed in range(40):
        attempt(scene, Drawn(seed), weak=seed % 4 == 3)


def test_so_it_is_in_any_order_with_one_preemption():
    scene = CallScene("a>x b<x c>x | d<x?a", spin_ns=0)
    for schedule in every_schedule(1):
        attempt(scene, schedule)


def test_a_call_that_makes_room_does_not_wait_for_itself():
    """Its slot may be that of a call which had not ended when it looked for what it waits for."""
    scene = CallScene("a@0>x ~a b@1>y ~b c@1>z ~c d<x>x", window=3)
    for seed in range(250):
        attempt(scene, Drawn(seed))


@pytest.mark.parametrize(("program", "how"), SCENES[:4])
def test_so_it_is_when_a_worker_has_died_after_any_store(program, how):
    scene = CallScene(program, depth=2, runs=2, **how)
    died = 0
    for stores in range(1, 60):
        play = attempt(scene, InTurn(), deaths={0: stores})
        attempt(scene, Drawn(stores), deaths={0: stores})
        died += any(actor.died for actor in play.world.actors)
    assert died > 20


@pytest.mark.parametrize("kind", ["liveness", "death"])
@pytest.mark.parametrize("seed", range(6))
def test_so_it_is_in_programs_drawn_at_random(seed, kind):
    search_calls(seed, kind, 12)


# ---------------------------------------------------------------- these checks can fail
def found(text, *, match, plays=200, deaths=None, **how):
    """Play a scene until something is wrong, which has to match."""
    with pytest.raises(AssertionError, match=match):
        for seed in range(plays):
            attempt(CallScene(text, **how), Drawn(seed), deaths=deaths)


def test_a_call_that_overtakes_a_reader_is_found(monkeypatch):
    monkeypatch.setattr(
        hazards, "has_ended", lambda mem, access: mem[access + L.ACCESS_WRITES] == 0
    )
    found("a>x b<x c>x", match="c starts while b runs|b starts after c|reads")


def test_a_call_that_fails_with_one_that_it_only_waits_for_is_found(monkeypatch):
    real = hazards.add_conflict
    monkeypatch.setattr(
        hazards,
        "add_conflict",
        lambda mem, access, newest, kind, n: real(mem, access, newest, L.NEEDS, n),
    )
    found("a<x>y b>x", fails="a", match="b has failed without a reason")


def test_a_call_that_starts_although_what_it_needs_has_failed_is_found(monkeypatch):
    monkeypatch.setattr(dispatch, "has_failed", lambda mem, edge: False)
    found("a>x b<x>y c<y", workers=1, fails="a", match="c starts, and b was not done")


def test_a_reference_that_is_kept_is_found(monkeypatch):
    monkeypatch.setattr(kernels, "forget_all", lambda mem: L.NONE)
    found("a>x b<x", match="asleep for ever")


def test_a_cancelled_call_that_starts_is_found(monkeypatch):
    monkeypatch.setattr(graph, "remove_ready", lambda mem, kind, slot: None)
    signs = "c was cancelled, and starts|c was done, and has failed|left behind"
    found("a>x b c !c", workers=1, depth=1, match=signs)


def test_a_thread_that_wants_the_turn_and_is_not_heard_is_found(monkeypatch):
    monkeypatch.setattr(entries, "want_orch", lambda mem, wanted: mem.store(L.ORCH_WANTED, wanted))
    found("a .a | b", services="a", away=True, match="a thread waits for the turn")
