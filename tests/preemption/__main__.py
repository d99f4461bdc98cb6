"""``python -m tests.preemption SECONDS [SEED]``: rounds of random seeds, or all of one seed.

It prints what each round did, and ends with status 1 at once when one fails.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from . import rounds

ROUND_S = 10.0
"""How long a program is got in the way of; one of a certain seed for longer than one of many."""


def main(seconds: float, seed: int | None) -> int:
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        try:
            tracer = rounds.build(Path(folder))
        except rounds.NoTracer as why:
            print(why)
            return 2
        while True:
            chosen = random.randrange(1 << 32) if seed is None else seed
            rest = max(1.0, end - time.monotonic())
            length = min(rest, ROUND_S if seed is None else 6 * ROUND_S)
            outcome = rounds.Round(tracer, chosen, length).run()
            print(outcome, flush=True)
            if outcome.failure:
                return 1
            if time.monotonic() > end:
                return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
