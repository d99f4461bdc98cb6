"""The long form: scenes drawn at random for some minutes."""

import itertools
import os
import time

import pytest

from .search import search, search_calls

SECONDS = float(os.environ.get("SIMPLER_REF_INTERLEAVING_S", "300"))
FIRST = int(os.environ.get("SIMPLER_REF_INTERLEAVING_SEED", time.time()))


@pytest.mark.kernels
@pytest.mark.long
def test_nothing_is_wrong_in_scenes_drawn_at_random():
    until = time.monotonic() + SECONDS
    for seed in itertools.count(FIRST):
        print("seed", seed)
        for kind in ("liveness", "death"):
            search(seed, kind, plays=40)
            search_calls(seed, kind, plays=40)
        if time.monotonic() > until:
            break
