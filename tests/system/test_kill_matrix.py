"""Every kind of worker is killed at every fail point: the right error, no hang, nothing left behind.

The cells stand in kill_matrix.py, a program of its own, because fail points exist only where
``SIMPLER_REF_FAIL_POINTS=1`` was set before the import. ``SIMPLER_REF_KILL_REPEATS=100`` in the
environment runs each cell that many times, and more cells: see there.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from .kill_matrix import CELL_DEADLINE_S, KINDS, cells
from .programs import ROOT, _end_of_file

REPEATS = int(os.environ.get("SIMPLER_REF_KILL_REPEATS", "1"))
PROGRAM_DEADLINE_S = 300.0 + 60.0 * REPEATS
"""A guard against hangs; the kernels with fail points may have to be compiled first."""


@functools.cache
def output_of(kind: str) -> str:
    """Run all cells of a kind of worker, once; return what the program says."""
    lifeline, theirs = os.pipe()
    try:
        program = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.kill_matrix", kind, str(REPEATS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs],
            cwd=ROOT,
            env=os.environ | {"SIMPLER_REF_FAIL_POINTS": "1"},
        )
        os.close(theirs)
        try:
            out, _ = program.communicate(timeout=PROGRAM_DEADLINE_S)
        except subprocess.TimeoutExpired:
            program.kill()
            out, _ = program.communicate()
        outlived = "" if _end_of_file(lifeline) else "\nprocesses outlive the program"
        return out.decode(errors="replace") + f"\nexit code {program.returncode}{outlived}"
    finally:
        os.close(lifeline)


@pytest.mark.timeout(PROGRAM_DEADLINE_S + CELL_DEADLINE_S)
@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        pytest.param(kind, cell, id=f"{kind}-{cell}")
        for kind in KINDS
        for cell in cells(kind, REPEATS)
    ],
)
def test_a_worker_killed_there_is_no_more_than_an_error(kind, cell):
    out = output_of(kind)
    lines = [
        line for line in out.splitlines() if line.startswith((f"ok {cell}", f"FAILED {cell}:"))
    ]
    if f"ok {cell}" not in lines:
        what = lines[0].replace("\\n", "\n") if lines else f"it was cut short:\n{out[-8000:]}"
        pytest.fail(what, pytrace=False)


@pytest.mark.timeout(PROGRAM_DEADLINE_S + CELL_DEADLINE_S)
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_outlives_the_matrix(kind):
    assert output_of(kind).endswith("exit code 0"), output_of(kind)[-8000:]
