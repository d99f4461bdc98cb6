"""Runs a target on many inputs; a failure shows the smallest input that was found."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, seed, settings

from .decoders import Target


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
