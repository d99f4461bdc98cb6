"""Runs a target on many inputs; a failure shows the smallest input that was found."""

from __future__ import annotations

import os
import random
import warnings

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisWarning

from .decoders import Target

TIMES = int(os.environ.get("SIMPLER_REF_FUZZ", "1"))
"""How many times as many inputs as usual."""
SEED = os.environ.get("SIMPLER_REF_FUZZ_SEED")
"""A number, as a failure prints it, that gives the same inputs again."""
FIXED = 1
"""A number that gives the same inputs in every run of the tests."""


def run(target: Target, examples: int, number: int) -> None:
    """Give a target so many inputs, the same ones for the same number."""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(data=target.inputs)
    def whatever_comes(data):
        target.check(data)

    with warnings.catch_warnings():
        # As an error, it would hide the failure whose input is long.
        warnings.filterwarnings("ignore", "Generating overly large repr", HypothesisWarning)
        whatever_comes()


def run_fixed_and_new(target: Target, examples: int) -> None:
    """Give a target inputs that are always the same, then as many that are new."""
    drawn = random.SystemRandom().randrange(1 << 32) if SEED is None else int(SEED)
    print(f"with other inputs each time; these again: SIMPLER_REF_FUZZ_SEED={drawn}")
    for number in (FIXED, drawn):
        run(target, examples * TIMES, number)
