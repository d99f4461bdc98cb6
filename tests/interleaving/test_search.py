"""The long form: scenes drawn at random for some minutes."""

from __future__ import annotations

import time

import pytest

from .search import play_for

SECONDS = 300


@pytest.mark.long
def test_nothing_is_wrong_in_scenes_drawn_at_random():
    scenes, _ = play_for(SECONDS, seed=int(time.time()))
    assert scenes > 0
