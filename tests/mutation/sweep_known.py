"""Mutants that the sweep has found and no test notices: what is known of each."""

from __future__ import annotations

from typing import NamedTuple

from .sweep_changes import Key


class Known(NamedTuple):
    """A mutant that survives, and why."""

    key: Key
    why: str


EQUIVALENT: tuple[Known, ...] = ()
"""They behave as the source does, but for what nobody promises."""

UNDECIDED: tuple[Known, ...] = ()
"""A test might tell them from the source, and none does."""
