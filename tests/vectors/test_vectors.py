"""spec/vectors: the package does what the files say, and so does a checker that does not use it."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from ..spec_rules import SPEC
from ..support import DEADLINE_S
from . import package_bytes, package_remote, package_traces

PACKAGE = {**vars(package_bytes), **vars(package_remote), **vars(package_traces)}
WHOLE = {
    path.stem: json.loads(path.read_text()) for path in sorted((SPEC / "vectors").glob("*.json"))
}
CASES = [(name, case) for name, whole in WHOLE.items() for case in whole["cases"]]


@pytest.mark.kernels
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{name}: {case['name']}") for name, case in CASES]
)
def test_the_package_agrees_with_every_case(case):
    PACKAGE[f"check_{case['kind']}"](case)


def test_every_case_has_a_name_of_its_own_and_cites_rules():
    assert all(whole["format"] == 1 and whole["about"] for whole in WHOLE.values())
    assert len({(name, case["name"]) for name, case in CASES}) == len(CASES)
    assert all(case["rules"] and case["why"] for _, case in CASES)


def test_a_checker_without_the_package_agrees_with_the_files():
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SPEC / "vectors/check.py")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    by_check = Counter(name for name, _ in CASES if name not in ("enums", "scheduler"))
    assert sorted(done.stdout.splitlines()) == sorted(
        f"{name}: {count} cases agree" for name, count in by_check.items()
    )
