"""Every test runs somewhere: in `make test`, or in a named part of `make test-long`."""

import subprocess
import sys

import pytest

from ..parts import PARTS
from ..spec_rules import ROOT

FOLDERS = {
    path.parent.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/**/test_*.py")
}


def test_parts_name_every_folder_of_tests_and_nothing_else():
    long = [path for part in PARTS.values() if part.marks == "long" for path in part.paths]
    assert sorted(long) == sorted(FOLDERS)
    for part in PARTS.values():
        for path in part.paths:
            assert (ROOT / "tests" / path).exists()


@pytest.mark.parametrize("names", [["no-such-part"], ["kills", "no-such-part"]])
def test_a_part_that_does_not_exist_is_refused_before_anything_runs(names):
    command = [sys.executable, "-m", "tests.parts", *names]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "'no-such-part' is no part; the parts are cases, " in ran.stderr
    assert ran.stdout == ""


def test_the_page_for_contributors_lists_every_part_and_what_it_runs():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    for name, part in PARTS.items():
        assert f"| `{name}` | {part.what} |" in page
