"""spec/vectors: the package does what the files say, and so does a checker that does not use it."""

import subprocess
import sys
from collections import Counter

import pytest

from .. import spec_rules
from ..support import DEADLINE_S
from . import package_bytes, package_remote, package_traces, reader

PACKAGE = {**vars(package_bytes), **vars(package_remote), **vars(package_traces)}
FILES = sorted(path.stem for path in reader.FOLDER.glob("*.json"))
CASES = [(name, case) for name in FILES for case in reader.read(name)]


@pytest.mark.kernels
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{name}: {case['name']}") for name, case in CASES]
)
def test_the_package_agrees_with_every_case(case):
    PACKAGE[f"check_{case['kind']}"](case)


def test_every_case_has_a_name_of_its_own_and_illustrates_rules_that_exist():
    names = Counter((name, case["name"]) for name, case in CASES)
    assert [name for name, count in names.items() if count > 1] == []
    wrong = {case["name"]: set(case["rules"]) - set(spec_rules.read_rules()) for _, case in CASES}
    assert {name: rules for name, rules in wrong.items() if rules} == {}
    assert all(case["rules"] and case["why"] for _, case in CASES)


def test_a_checker_without_the_package_agrees_with_the_files():
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(reader.FOLDER / "check.py")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    by_check = Counter(name for name, _ in CASES if name not in ("enums", "scheduler"))
    assert sorted(done.stdout.splitlines()) == sorted(
        f"{name}: {count} cases agree" for name, count in by_check.items()
    )
