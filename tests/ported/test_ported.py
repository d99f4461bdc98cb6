"""Programs as they are written for the original, under its names; their kernels are of this project."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PROGRAMS = sorted(
    path.name
    for path in FOLDER.glob("*.py")
    if path.stem not in ("__init__", "kernels", "test_ported", "units")
)
PRINTED = {"hello.py": "hello from a sub worker\n"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_original_runs_with_no_line_changed(program):
    text = (FOLDER / program).read_text()
    assert "simpler_ref" not in text
    done = subprocess.run(
        [sys.executable, "-m", "simpler_ref.compat", FOLDER / program],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, PRINTED.get(program, "")), done.stderr


def test_unit_tests_of_the_original_run_with_no_line_changed():
    units = FOLDER / "units.py"
    assert "simpler_ref." not in units.read_text().partition('"""\n\n')[2]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "simpler_ref.compat", "-m", "pytest", "-q", "-p"),
            *("no:cacheprovider", "--noconftest", units),
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout


def test_each_kind_of_program_is_there():
    assert PROGRAMS == [
        "all_reduce.py",
        "child_memory.py",
        "dependencies.py",
        "domain_ranks.py",
        "dynamic_registration.py",
        "expert_dispatch.py",
        "feed_forward.py",
        "groups.py",
        "hello.py",
        "multi_chip_dispatch.py",
        "runtime_env_l2.py",
        "runtime_env_l3.py",
        "vector_add.py",
        "worker_malloc.py",
    ]
