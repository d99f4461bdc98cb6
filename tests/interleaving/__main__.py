"""Play scenes drawn at random until the time is up.

    NUMBA_DISABLE_JIT=1 python -m tests.interleaving SECONDS [SEED]

Stops at the first thing that is wrong, with what repeats it and the last steps of each actor.
"""

from __future__ import annotations

import sys
import time

from simpler_ref.jit.kernel import INTERPRETED

from .search import play_for


def main(seconds, seed=0):
    if not INTERPRETED:
        raise SystemExit("the kernels must be interpreted: set NUMBA_DISABLE_JIT=1")
    start = time.monotonic()
    scenes, seed = play_for(seconds, seed)
    print(f"{scenes} scenes in {time.monotonic() - start:.0f} s; the next seed is {seed}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
