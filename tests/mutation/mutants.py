"""Runs tests against a copy of the package into which a fault has been put."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..spec_rules import ROOT
from .faults import Fault, Patch

COPIED = ("simpler_ref", "tests", "spec", "docs", "pyproject.toml", "Makefile")
NOT_COPIED = shutil.ignore_patterns("*.nbi", "*.nbc", "fail_points", "mutation", "_build")
HANG_S = 4
"""After this time a test of a fault that hangs is taken to hang."""
DEADLINE_S = 100
"""A guard against hangs that nobody has announced."""

BROKEN = re.compile(r"^E +((?:Name|Import|Syntax|Indentation|UnboundLocal)Error.*)", re.MULTILINE)
"""What says that the changed source is no program any more, and so no fault."""

VERDICT = re.compile(r"^(tests/\S+?::.+?) (PASSED|FAILED|ERROR)\b", re.MULTILINE)


def copy_sources(to: Path) -> Path:
    """Copy what the tests need, Python's own caches included, to a folder."""
    to.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=NOT_COPIED)
        else:
            shutil.copy2(source, to / name)
    return to


def patched(text: str, patch: Patch) -> str:
    """Return a file's text with the fault in it."""
    count = text.count(patch.old)
    if count != 1:
        raise ValueError(f"simpler_ref/{patch.file} has this {count} times, not once:\n{patch.old}")
    return text.replace(patch.old, patch.new)


def patched_files(fault: Fault, package: Path) -> dict[Path, str]:
    """Return what the files of a package hold with a fault in them."""
    texts: dict[Path, str] = {}
    for patch in fault.patches:
        path = package / patch.file
        texts[path] = patched(texts.get(path) or path.read_text(), patch)
    return texts


@contextmanager
def put_in(fault: Fault, copy: Path) -> Iterator[None]:
    """Put a fault into a copy, and take it out again."""
    changed = patched_files(fault, copy / "simpler_ref")
    before = {path: path.read_text() for path in changed}
    try:
        write_all(changed)
        yield
    finally:
        write_all(before)


def write_all(texts: dict[Path, str]) -> None:
    for path, text in texts.items():
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # Python tells versions apart by second and size only


class Outcome(NamedTuple):
    """What became of some tests."""

    passed: set[str]
    """Tests of which some passed, without their parameters."""
    failed: list[str]
    hung: str
    """The test that was running when the time was up, if one was."""
    output: str

    def missed_by(self, fault: Fault) -> list[str]:
        """Return those of the tests named for a fault that did not catch it.

        Of a test with parameters one that fails is enough.
        """
        caught = [*self.failed, self.hung] if fault.hangs else self.failed
        names = {test.split("[")[0] for test in caught}
        return [test for test in fault.caught_by if test not in names]


class Runner:
    """A copy of package and tests in which some of the tests run, interpreted."""

    def __init__(self, folder: Path) -> None:
        self.copy = copy_sources(folder)
        self._environment = os.environ | {
            "NUMBA_DISABLE_JIT": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # pytest would compile hypothesis each time
            "PYTHONPATH": str(self.copy),
            "PYTHONDONTWRITEBYTECODE": "",  # the copy keeps what does not change
        }

    def run_with(self, fault: Fault) -> Outcome:
        """Run the tests that are named for a fault, with the fault; if it is one test, until it fails."""
        first = ["-x"] if len(fault.caught_by) == 1 else []
        limit = HANG_S if fault.hangs else DEADLINE_S
        with put_in(fault, self.copy):
            outcome = self.run_tests(*first, *fault.caught_by, limit=limit)
        if broken := BROKEN.search(outcome.output):
            raise ValueError(f"the patches of {fault.name} leave no program: {broken[1]}")
        return outcome

    def run_tests(self, *tests: str, limit: float = DEADLINE_S) -> Outcome:
        """Run tests, each for so many seconds at most; afterwards no process of theirs is left."""
        plugins = ["-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin"]
        options = [*plugins, "-v", "--no-header", "--tb=short", f"--timeout={limit}"]
        log = self.copy / "output"
        with log.open("w") as output:
            program = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=self.copy,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        watched = os.pidfd_open(program.pid)
        select.select([watched], [], [], DEADLINE_S)
        os.close(watched)
        os.killpg(program.pid, signal.SIGKILL)  # not waited for yet, so the group is still its own
        program.wait()
        return read_outcome(log.read_text(errors="replace"))


def read_outcome(output: str) -> Outcome:
    """Find the verdicts in what pytest has printed."""
    verdicts = VERDICT.findall(output)
    passed = {test for test, verdict in verdicts if verdict == "PASSED"}
    failed = [
        test
        for test, verdict in verdicts
        if verdict == "FAILED" or (verdict == "ERROR" and test in passed)  # it leaked
    ]
    hung = ""
    if " Timeout " in output:
        begun = re.findall(r"^(tests/\S+?::\w+(?:\[.*?\])?)", output, re.MULTILINE)
        hung = begun[-1] if begun else ""
    return Outcome({test.split("[")[0] for test in passed}, failed, hung, output)
