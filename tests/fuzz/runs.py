"""Runs a target on many inputs; a failure shows the smallest input that was found."""

from __future__ import annotations

import random
import warnings

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisWarning

from . import chips, decoders
from .decoders import Target


def targets() -> dict[str, Target]:
    """Return every target by its name."""
    return decoders.TARGETS | chips.CHIP_TARGETS


def close_all() -> None:
    """Give back what targets share among their inputs."""
    decoders.close_engine()
    chips.close()


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


FIXED = 1
"""A number that gives the same inputs in every run of the tests."""


def run_fixed_and_new(name: str, examples: int) -> None:
    """Give a target inputs that are always the same, then as many that are new."""
    drawn = random.SystemRandom().randrange(1 << 32)
    print(f"with other inputs each time; these again: python -m tests.fuzz 0 {drawn} {name!r}")
    for number in (FIXED, drawn):
        run(targets()[name], examples, number)
