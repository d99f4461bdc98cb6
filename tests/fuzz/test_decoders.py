"""Whatever the bytes: the decoders in Python make something of them that encodes to them, or refuse them."""

from __future__ import annotations

import random

import pytest

from . import decoders
from .decoders import TARGETS
from .runs import run

EXAMPLES = 50
FIXED = 1
"""A seed that gives the same inputs in every run; a second one is drawn and printed."""


@pytest.fixture(autouse=True)
def _engine():
    """Let no test leave the engine behind."""
    yield
    decoders.close_engine()


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_become_something_that_encodes_to_them_or_are_refused(name):
    drawn = random.SystemRandom().randrange(1 << 32)
    print(f"with other inputs each time; these again: python -m tests.fuzz 10 {drawn} {name!r}")
    for number in (FIXED, drawn):
        run(TARGETS[name], EXAMPLES, number)
