"""Random programs compute what they should, however slow a thread is, wherever it stops or dies.

A short form of what ``python -m tests.preemption SECONDS [SEED]`` does for as long as it is told to.
"""

import os

import pytest

from simpler_ref.jit.kernel import INTERPRETED

from ..support import sample
from . import rounds
from .__main__ import main
from .shapes import KILL, MAIN, SCHEDULER, SERVER, SLOW, STOP, WORKER, Victim

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
