"""``python -m tests.mutation``, which is `make mutants`: which test catches which fault."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from . import mutants
from .faults import FAULTS


def main() -> int:
    """Put each fault in, print who caught it, and return 1 if one was missed."""
    missed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        mutants.Runner(Path(folder) / "copy") as runner,
    ):
        for fault in FAULTS:
            outcome = runner.run_with(fault)
            missing = outcome.missed_by(fault)
            missed += len(missing)
            print(f"{fault.name}: {fault.what}", flush=True)
            for test in fault.caught_by:
                how = "MISSED" if test in missing else "hangs" if outcome.hung else "fails"
                print(f"    {how:6} {test}", flush=True)
    print(f"{len(FAULTS)} faults, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
