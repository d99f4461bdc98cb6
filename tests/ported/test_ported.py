"""Programs as they are written for the original, under its names; their kernels are of this project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SOURCES = str(FOLDER / "sources")


@pytest.mark.parametrize(
    ("program", "printed"), [("compiled.py", ""), ("scene.py", "2 passed, 0 failed\n")]
)
def test_a_program_of_the_original_runs_with_no_line_changed(program, printed):
    assert "simpler_ref" not in (FOLDER / program).read_text()
    done = subprocess.run(
        [sys.executable, "-m", "simpler_ref.compat", FOLDER / program],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PTO_ISA_ROOT": SOURCES, "SIMPLER_GOLDENS": SOURCES},
    )
    assert done.returncode == 0 and done.stdout.endswith(printed), done.stderr
