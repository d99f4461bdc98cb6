"""``python -m tests.parts``, which is `make test-long`: named parts, each below half an hour.

Without a name it runs all of them, one after another, and says at the end which failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import NamedTuple

from .spec_rules import ROOT

SHARED = ("-n", "2", "--dist", "worksteal", "--max-worker-restart", "0")
PATIENT = ("--timeout", "3600", "-o", "faulthandler_timeout=3500")
INTERPRETED = {"NUMBA_DISABLE_JIT": "1"}


class Part(NamedTuple):
    """A run of pytest."""

    what: str
    minutes: int
    """About how long it takes on two cores, with compiled kernels in the cache."""
    paths: tuple[str, ...]
    marks: str = "long"
    options: tuple[str, ...] = SHARED
    environment: dict[str, str] = {}  # noqa: RUF012  (nobody changes it)

    def command(self) -> list[str]:
        paths = [f"tests/{path}" for path in self.paths]
        return [sys.executable, "-m", "pytest", *self.options, *PATIENT, "-m", self.marks, *paths]


PARTS = {
    "cases": Part(
        "all cases of rules and modules of which `make test` runs a sample",
        15,
        ("conformance", "extras", "unit", "calls", "property"),
    ),
    "interpreted": Part(
        "rules and modules with interpreted kernels, as far as `make test` runs them compiled only",
        15,
        ("conformance", "extras", "unit", "vectors"),
        marks="not kernels and not long",
        environment=INTERPRETED,
    ),
    "orders": Part(
        "orders of steps of the interpreted kernels, searched for minutes",
        15,
        ("interleaving",),
        environment=INTERPRETED,
    ),
    "processes": Part(
        "deaths, signals, forks and limits of processes, again and again", 20, ("system",)
    ),
    "kills": Part(
        "workers killed at every fail point",
        15,
        ("system/test_kill_matrix.py",),
        marks="",
        environment={"SIMPLER_REF_FAIL_POINTS": "1"},
    ),
    "preemption": Part(
        "threads stopped and killed at random instructions", 20, ("preemption",), options=()
    ),
    "programs": Part(
        "pages, examples, programs of the original, damaged bytes",
        15,
        ("docs", "examples", "ported", "project", "fuzz", "vectors"),
    ),
    "others": Part("tests of other libraries, on our workers", 15, ("adapters",), options=()),
    "faults": Part("known faults, each put in and found", 10, ("mutation",), options=()),
}


def run(name: str) -> bool:
    """Run a part; say whether all its tests passed."""
    part = PARTS[name]
    print(f"\n{name}: {part.what}, about {part.minutes} minutes", flush=True)
    start = time.monotonic()
    code = subprocess.run(part.command(), cwd=ROOT, env=os.environ | part.environment).returncode
    took = f"{(time.monotonic() - start) / 60:.1f} minutes"
    print(f"{name}: {'passed' if code == 0 else 'FAILED'} in {took}", flush=True)
    return code == 0


def main() -> int:
    listed = "\n".join(f"  {name:12} {part.what}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="make test-long ARGS=…",
        description=f"The parts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="by default all")
    names = parser.parse_args().parts or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"{unknown[0]!r} is no part; the parts are {', '.join(PARTS)}")
    failed = [name for name in names if not run(name)]
    if len(names) > 1:
        print(f"\nfailed: {', '.join(failed)}" if failed else "\nall parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
