"""Random programs compute what they should, however slow a thread is, wherever it stops or dies.

A short form of what ``python -m tests.preemption SECONDS [SEED]`` does for as long as it is told to.
"""

from __future__ import annotations

import functools
import os
import random

import pytest

from simpler_ref.jit.kernel import INTERPRETED

from ..support import sample
from . import rounds
from .__main__ import main
from .acts import Stage, Wrong
from .program import make_worker
from .shapes import KILL, MAIN, SCHEDULER, SERVER, SLOW, STOP, WORKER, Victim, shape_of

SHORT_S = 1.0
LONG_S = float(os.environ.get("SIMPLER_REF_PREEMPTION_S", "900"))
SEEDS = [
    (399, [Victim(SCHEDULER, SLOW)]),  # in short scopes: what it reads is soon another task's
    (36, [Victim(MAIN, STOP)]),
    (87, [Victim(SCHEDULER, STOP)]),
    (125, [Victim(WORKER, KILL), Victim(MAIN, STOP)]),
    (98, [Victim(MAIN, SLOW)]),
    (101, [Victim(WORKER, STOP), Victim(MAIN, STOP)]),
    (520, [Victim(SERVER, KILL)]),
]
DEADLINE_S = rounds.START_S + rounds.HANG_S + 60.0
"""A guard against hangs of the harness itself: a round has guards of its own."""

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="only compiled kernels run at the same time"),
    pytest.mark.timeout(DEADLINE_S),
]


@pytest.fixture(scope="module")
def tracer(tmp_path_factory):
    try:
        return rounds.build(tmp_path_factory.mktemp("tracer"))
    except rounds.NoTracer as why:
        pytest.skip(str(why))


@pytest.mark.slow("starts a program, and the tracers of its threads")
@pytest.mark.parametrize("round", sample(SEEDS, 1))
def test_a_random_program_computes_what_it_should_whoever_is_slow_stops_or_dies(tracer, round):
    seed, victims = round
    outcome = rounds.Round(tracer, seed, SHORT_S).run()
    assert not outcome.failure, str(outcome)
    assert list(outcome.tracers) == victims


@pytest.mark.long
@pytest.mark.timeout(LONG_S + 2 * DEADLINE_S)
def test_so_do_many_random_programs(tracer):
    assert main(LONG_S, None) == 0


# ---------------------------------------------------------------- the harness itself
PRELUDE = """
import json, os, signal, time
def say(word, what):
    print(word, json.dumps(what), flush=True)
say("parties", {"main": [os.getpid()], "worker": []})
"""
DONE = "say('done', {'acts': 1, 'tasks': 2, 'lost': 0})"


class Script(rounds.Round):
    """A round with another program, in whose way somebody gets who single-steps its main thread."""

    def __init__(self, tracer, text):
        self.text = PRELUDE + text
        super().__init__(tracer, 98, 0.2)

    def command(self):
        return ["-c", self.text]


UNTIL_LET_GO = "import select\nwhile not select.select([0], [], [], 0)[0]: pass\n"


class Told(Script):
    """A script that reads a line when its thread was let go."""

    def let_go(self, victim):
        super().let_go(victim)
        self.program.stdin.write(b"go\n")
        self.program.stdin.flush()


@pytest.mark.long
def test_a_thread_is_stepped_and_runs_on_when_it_is_let_go(tracer):
    outcome = Told(tracer, UNTIL_LET_GO + "sum(range(1_000_000))\n" + DONE).run()
    assert (outcome.failure, outcome.acts, outcome.tasks) == ("", 1, 2), str(outcome)
    assert outcome.tracers[Victim(MAIN, SLOW)]["steps"] > 0


ENDS = [
    ("os.kill(os.getpid(), signal.SIGSEGV)", "it crashed: SIGSEGV"),
    ("say('wrong', 'array 1'); raise SystemExit(1)", "wrong: array 1"),
    ("raise SystemExit(3)", "it ended with status 3"),
    ("time.sleep(600)", "it hangs"),
]


@pytest.mark.long
def test_what_goes_wrong_is_a_failure_with_a_command_to_repeat_it(tracer, monkeypatch):
    monkeypatch.setattr(rounds, "HANG_S", 1.0)
    monkeypatch.setattr(rounds, "ANSWER_S", 0.1)
    for text, failure in ENDS:
        outcome = Script(tracer, text).run()
        assert outcome.failure.startswith(failure)
        assert "repeat it with: python -m tests.preemption 300 98" in str(outcome)


@pytest.fixture(scope="module")
def stage():
    shape = shape_of(101)
    with make_worker(shape) as worker:
        made = Stage(worker, shape)
        made.prepare()
        yield made


def spoiled(stage, compare, *args):
    """Change a word of what an act has computed before it is looked at."""
    for array in (stage.arrays[1], stage.rows[1], stage.cells):
        array[0] += 1
    compare(*args)


@pytest.mark.long
def test_one_wrong_word_fails_an_act(stage, monkeypatch):
    rng = random.Random(1)
    acts = ("graph", "replay", "bulk", "counting", "recount", "register")
    for act in acts:
        stage.play(act, rng)
    for name in ("compare_arrays", "compare_rows", "compare_cells"):
        compare = getattr(stage, name)
        monkeypatch.setattr(stage, name, functools.partial(spoiled, stage, compare))
    for act in acts:
        with pytest.raises(Wrong, match=act if act != "replay" else "recording"):
            stage.play(act, rng)


@pytest.mark.long
def test_another_failure_or_none_at_all_fails_an_act(stage, monkeypatch):
    stage.play("failing", random.Random(1))
    monkeypatch.setattr(stage, "fail", stage.wide)
    with pytest.raises(Wrong, match="was to be 'planned"):
        stage.play("failing", random.Random(1))
    monkeypatch.setattr(stage, "run", lambda orch_fn: None)
    with pytest.raises(Wrong, match="ended well"):
        stage.play("failing", random.Random(1))
