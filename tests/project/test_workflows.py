"""The workflows of a forge can be read, run what there is, and try both ends of what is supported."""

import re
import subprocess
import sys

import pytest
import yaml

from simpler_ref import __version__

from ..parts import PARTS
from ..spec_rules import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PYPROJECT = (ROOT / "pyproject.toml").read_text()
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def jobs(path):
    return yaml.safe_load(path.read_text())["jobs"]


def commands(path):
    """Return every line that a workflow gives to a shell."""
    for job in jobs(path).values():
        for step in job["steps"]:
            yield from step.get("run", "").splitlines()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_says_when_and_where_it_runs_and_has_a_time_limit(path):
    content = yaml.safe_load(path.read_text())
    assert content["name"] == path.stem
    assert content[True]  # `on` is a truth value in YAML
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["runs-on"] and job["timeout-minutes"] <= 360


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_there_is(path):
    for command in commands(path):
        for target in re.findall(r"^make ([\w-]+)", command):
            assert target in TARGETS
        for named in re.findall(r"(?:tests|examples)/[\w/]+\.py", command):
            assert (ROOT / named).exists(), named


def test_the_oldest_python_and_all_after_it_are_tried_on_both_machines():
    [test] = [path for path in WORKFLOWS if path.stem == "test"]
    matrix = jobs(test)["test"]["strategy"]["matrix"]
    oldest = re.search(r'requires-python = ">=3\.(\d+)"', PYPROJECT)[1]
    minors = [int(version.removeprefix("3.")) for version in matrix["python"]]
    assert minors == list(range(int(oldest), minors[-1] + 1))
    assert [machine.endswith("-arm") for machine in matrix["machine"]] == [False, True]
    assert {row["numba"] for row in matrix["include"]} == {"oldest"}


def test_the_constraints_are_the_oldest_versions_that_the_package_takes():
    [wanted] = re.findall(r"^dependencies = \[(.*)\]$", PYPROJECT, re.MULTILINE)
    oldest = re.findall(r'"(\w+)>=([\d.]+)"', wanted)
    lines = (ROOT / ".github/oldest.txt").read_text().splitlines()
    assert [line for line in lines if line[:1] != "#"] == [f"{n}=={v}.*" for n, v in oldest]


def test_the_version_has_a_section_in_the_changelog_and_is_the_one_to_cite():
    assert f"\n## {__version__} — " in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


# ---------------------------------------------------------------- parts of `make test-long`
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
