"""Runs the tests that another library brings along, and compares what fails with a table of the docs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.spec_rules import ROOT

PAGE = ROOT / "docs/howto/adapters.md"


class Ended(NamedTuple):
    """What a run of pytest says, by the names of tests without their files."""

    passed: set[str]
    failed: set[str]
    output: str


def run(plugin: str, paths: list[Path | str], folder: Path, *options: str) -> Ended:
    """Run tests in a process of its own, with a plugin of this folder and without our settings."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={folder}"]
    command += ["-p", f"tests.adapters.{plugin}", "-p", "no:cacheprovider", "-W", "ignore", "-n0"]
    command += ["--timeout=120", f"--junitxml={report}", *options, *map(str, paths)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    output = done.stdout[-20_000:] + done.stderr[-5_000:]
    assert done.returncode in (0, 1), output
    passed, failed = set(), set()
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {one.tag for one in case}
        if kinds & {"failure", "error"}:
            failed.add(case.get("name"))
        elif "skipped" not in kinds:
            passed.add(case.get("name"))
    return Ended(passed, failed, output)


def table(heading: str) -> dict[str, str]:
    """Return the tests that a table of the page names, and why each does not pass."""
    _, _, rest = PAGE.read_text().partition(f"| test of {heading} |")
    rows = re.match(r"[^\n]*\n\|[-| ]+\|\n((?:\|.*\|\n)*)", rest)
    assert rows, heading
    cells = [[one.strip() for one in row.strip("|").split("|")] for row in rows[1].splitlines()]
    return {name.strip("`"): why for names, why in cells for name in names.split(", ")}


def compare(ended: Ended, known: dict[str, str], *, whole: bool) -> None:
    """Find fault with what fails unexpectedly, and, of a whole run, with what the table says in vain."""

    def is_of(test: str, name: str) -> bool:
        return test == name or test.startswith(f"{name}[")

    unknown = {test for test in ended.failed if not any(is_of(test, one) for one in known)}
    assert not unknown, f"{sorted(unknown)}\n{ended.output}"
    if whole:
        in_vain = {one for one in known if not any(is_of(test, one) for test in ended.failed)}
        assert not in_vain, f"these pass, but the table names them: {sorted(in_vain)}"
