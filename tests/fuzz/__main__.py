"""``python -m tests.fuzz SECONDS [SEED [TARGET …]]``: damaged bytes for every decoder.

Each round gives every target some hundred inputs of its own, and the first one that does something it
should not ends the program with status 1. The C parts are those that are installed; `--sanitized` builds
them so that they report every use of memory that is not theirs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from .runs import close_all, run, targets

EXAMPLES = 300


def main() -> int:
    """Fuzz until the time is up; return 1 if something was found."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument(
        "seed", type=int, nargs="?", default=random.SystemRandom().randrange(1 << 32)
    )
    parser.add_argument("target", nargs="*", help=f"of {', '.join(targets())}; all by default")
    parser.add_argument("--sanitized", action="store_true", help="build and use other C parts")
    given = parser.parse_args()
    unknown = set(given.target) - set(targets())
    if unknown:
        parser.error(f"no target is called {unknown.pop()!r}; there are {', '.join(targets())}")
    if given.sanitized:
        return run_sanitized()
    return fuzz(given.seconds, given.seed, given.target or list(targets()))


def fuzz(seconds: float, seed: int, names: list[str]) -> int:
    """Give the targets in turn inputs that follow from a seed."""
    end, rounds = time.monotonic() + seconds, 0
    try:
        while not rounds or time.monotonic() < end:
            for name in names:
                try:
                    run(targets()[name], EXAMPLES, seed + rounds)
                except Exception:
                    traceback.print_exc()
                    print(f"found by: python -m tests.fuzz 0 {seed + rounds} {name!r}")
                    return 1
            rounds += 1
    finally:
        close_all()
    print(
        f"{len(names)} targets, {rounds} rounds of {EXAMPLES} inputs from seed {seed}: nothing found"
    )
    return 0


def run_sanitized() -> int:
    """Do the same, with the same arguments, where the C parts have been built with the sanitizers."""
    from ..sanitizers import NoSanitizers, Sanitized

    arguments = [argument for argument in sys.argv[1:] if argument != "--sanitized"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            sanitized = Sanitized(Path(folder) / "copy")
        except NoSanitizers as why:
            print(why)
            return 2
        return sanitized.start("tests.fuzz", *arguments).wait()


if __name__ == "__main__":
    sys.exit(main())
