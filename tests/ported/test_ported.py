"""Programs as they are written for the original, under its names; their kernels are of this project."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PROGRAMS = ["chips.py", "sub_workers.py", pytest.param("domains.py", marks=pytest.mark.long)]
PRINTED = {"sub_workers.py": "hello from a sub worker\n"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_original_runs_with_no_line_changed(program):
    assert "simpler_ref" not in (FOLDER / program).read_text()
    done = subprocess.run(
        [sys.executable, "-m", "simpler_ref.compat", FOLDER / program],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, PRINTED.get(program, "")), done.stderr
