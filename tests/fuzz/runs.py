"""Runs a target on many inputs; a failure shows the smallest input that was found."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, seed, settings

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

    whatever_comes()
