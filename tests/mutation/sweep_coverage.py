"""Which test runs which statement: measured file by file, and kept in a folder that git ignores.

What was measured of a file of tests holds until that file, the package, or what tests share changes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from ..spec_rules import ROOT
from .sweep_code import Notes
from .sweep_forks import Step, first_failure

TOGETHER = 10
"""Tests that are measured in one fork."""
LIMIT_S = 30.0
"""Of a test that is measured."""


def digest(paths: Iterable[Path]) -> str:
    """Return what changes with the name or the contents of any of these files."""
    sha = hashlib.sha256()
    for path in sorted(paths):
        sha.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return sha.hexdigest()[:16]


def sources() -> str:
    """Return a digest of the package."""
    return digest((ROOT / "simpler_ref").rglob("*.py"))


def step(item: pytest.Item, limit_s: float) -> Step:
    """Return a collected test as a step of a fork."""

    def run(after: Step | None) -> bool:
        reports = runtestprotocol(item, log=False, nextitem=after.item if after else None)
        return not any(report.failed for report in reports)

    return Step(item.nodeid, limit_s, run, item)


class Measured(NamedTuple):
    """What is known of a test."""

    seconds: float
    passed: bool
    lines: dict[str, list[int]]
    """File of the package → lines where a statement begins that the test runs."""


class Coverage:
    """What is known of all tests so far, in a folder that has a file for each file of tests."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        """Keep in `folder` which statements of `files` run."""
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.files = files
        self.shared = sources() + digest((ROOT / "tests").glob("*.py"))

    def known(self, file: Path) -> dict[str, Measured]:
        """Return what is known of the tests of a file as it is."""
        kept = self._kept(file)
        entry = json.loads(kept.read_text()) if kept.exists() else {"digest": ""}
        if entry["digest"] != self._digest(file):
            return {}
        return {name: Measured(*values) for name, values in entry["tests"].items()}

    def _kept(self, file: Path) -> Path:
        name = file.relative_to(ROOT).with_suffix(".json").as_posix()
        return self.folder / name.replace("/", ".")

    def _digest(self, file: Path) -> str:
        beside = [path for path in file.parent.glob("*.py") if not path.name.startswith("test_")]
        return self.shared + digest({file, *beside})

    def measure(
        self, items: Sequence[pytest.Item], deadline: float, part: int = 1, parts: int = 1
    ) -> int:
        """Measure what is not known of some tests; return how many are left when the time is up.

        Processes that share the work each begin with other files.
        """
        by_file: dict[Path, list[pytest.Item]] = {}
        for item in items:
            by_file.setdefault(item.path, []).append(item)
        files = sorted(by_file)
        mine, missing = files[part - 1 :: parts], 0
        for file in sorted(files, key=lambda file: file not in mine):
            which = slice(TOGETHER) if file in mine else slice(-TOGETHER, None)
            while left := [test for test in by_file[file] if test.nodeid not in self.known(file)]:
                if time.monotonic() > deadline:
                    missing += len(left)
                    break
                new = _measure(left[which], self._notes)
                self._keep(file, self.known(file) | new)
        return missing

    @functools.cached_property
    def _notes(self) -> Notes:
        return Notes(self.files)

    def _keep(self, file: Path, tests: dict[str, Measured]) -> None:
        kept = self._kept(file)
        with TemporaryDirectory(dir=self.folder) as name:
            new = Path(name) / kept.name
            new.write_text(json.dumps({"digest": self._digest(file), "tests": tests}))
            new.replace(kept)


def _measure(tests: Sequence[pytest.Item], notes: Notes) -> dict[str, Measured]:
    """Run tests in a fork that takes notes. One that hangs or dies there has failed."""
    with TemporaryDirectory() as name:
        told = Path(name) / "told"
        told.touch()
        steps = [_noted(step(test, LIMIT_S), notes, told) for test in tests]
        failure = first_failure(steps, notes.put_in)
        lines = map(json.loads, told.read_text().splitlines())
        measured = {test: Measured(*values) for test, *values in lines}
    if failure is not None:
        measured[tests[failure.index].nodeid] = Measured(LIMIT_S, False, {})
    return measured


def _noted(step: Step, notes: Notes, told: Path) -> Step:
    """Return a step that writes down what has run, and passes."""

    def run(after: Step | None) -> bool:
        notes.clear()
        start, passed = time.monotonic(), step.run(after)
        seconds = round(time.monotonic() - start, 3)
        with told.open("a") as file:
            file.write(json.dumps([step.name, seconds, passed, notes.read()]) + "\n")
        return True

    return step._replace(run=run)
