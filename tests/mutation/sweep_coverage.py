"""Which test runs which line of the kernels: measured file by file, and kept in a folder git ignores.

What was measured of a file of tests holds until that file, the package, or what tests share changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import coverage
import pytest
from _pytest.runner import runtestprotocol

from ..spec_rules import ROOT
from .sweep_forks import Step, first_failure

KERNELS = ROOT / "simpler_ref" / "jit"
TOGETHER = 10
"""Tests that are measured in one fork."""
LIMIT_S = 30.0
"""Of a test that is measured, which makes it slower."""


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
        nextitem = after.item if after else None
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        return not any(report.failed for report in reports)

    return Step(item.nodeid, limit_s, run, item)


class Measured(NamedTuple):
    """What is known of a test."""

    seconds: float
    passed: bool
    lines: dict[str, list[int]]
    """File of the kernels → lines of it that the test runs."""


class Coverage:
    """What is known of all tests so far, in a folder that has a file for each file of tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "coverage"
        self.folder.mkdir(exist_ok=True)
        self.shared = sources() + digest((ROOT / "tests").glob("*.py"))

    def known(self, file: Path) -> dict[str, Measured]:
        """Return what is known of the tests of a file as it is."""
        kept = self._kept(file)
        if not kept.exists():
            return {}
        entry = json.loads(kept.read_text())
        if entry["digest"] != self._digest(file):
            return {}
        return {name: Measured(*values) for name, values in entry["tests"].items()}

    def _kept(self, file: Path) -> Path:
        return self.folder / file.relative_to(ROOT).with_suffix(".json").as_posix().replace(
            "/", "."
        )

    def _digest(self, file: Path) -> str:
        beside = [path for path in file.parent.glob("*.py") if not path.name.startswith("test_")]
        return self.shared + digest({file, *beside})

    def measure(self, items: Sequence[pytest.Item], deadline: float) -> int:
        """Measure what is not known of some tests; return how many are left when the time is up."""
        files: dict[Path, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.path, []).append(item)
        missing = 0
        for file, tests in files.items():
            known = self.known(file)
            left = [test for test in tests if test.nodeid not in known]
            while left and time.monotonic() < deadline:
                known |= _measure(left[:TOGETHER])
                self._keep(file, known)
                left = [test for test in left if test.nodeid not in known]
            missing += len(left)
        return missing

    def _keep(self, file: Path, tests: dict[str, Measured]) -> None:
        kept = self._kept(file)
        new = kept.with_suffix(".new")
        new.write_text(json.dumps({"digest": self._digest(file), "tests": tests}))
        new.replace(kept)


class _Tracer:
    """Coverage of a fork and of all that is forked from it, with the test that runs as context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.test = ""

    def start(self) -> None:
        settings = self.folder / "settings"
        settings.write_text(
            f"[run]\nsource = {KERNELS}\ndata_file = {self.folder}/data\nparallel = true\n"
            "concurrency = thread, greenlet\npatch =\n    fork\n    _exit\n"
            "disable_warnings =\n    no-data-collected\n    module-not-measured\n"
            "    already-imported\n    couldnt-parse\n"
        )
        coverage.Coverage(config_file=str(settings)).start()
        os.register_at_fork(after_in_child=self._switch)  # runs after the one of coverage itself

    def _switch(self) -> None:
        if (current := coverage.Coverage.current()) and self.test:
            current.switch_context(self.test)

    def traced(self, step: Step) -> Step:
        def run(after: Step | None) -> bool:
            self.test = step.name
            self._switch()
            start = time.monotonic()
            passed = step.run(after)
            seconds = time.monotonic() - start
            with (self.folder / "times").open("a") as times:
                times.write(json.dumps([step.name, seconds, passed]) + "\n")
            return True

        return step._replace(run=run)

    def read(self) -> dict[str, dict[str, list[int]]]:
        """Return test → file of the kernels → lines."""
        found: dict[str, dict[str, set[int]]] = {}
        for path in self.folder.glob("data.*"):
            data = coverage.CoverageData(str(path))
            try:
                data.read()
            except coverage.CoverageException:  # of a process that was killed while it wrote
                continue
            for file in data.measured_files():
                for line, tests in data.contexts_by_lineno(file).items():
                    for test in tests:
                        lines = found.setdefault(test, {}).setdefault(Path(file).name, set())
                        lines.add(line)
            data.close()
        return {
            test: {file: sorted(lines) for file, lines in files.items()}
            for test, files in found.items()
        }


def _measure(tests: Sequence[pytest.Item]) -> dict[str, Measured]:
    """Run tests in a fork under coverage.

    One that hangs or dies there counts as failed, and is all that is told then.
    """
    with TemporaryDirectory() as name:
        tracer = _Tracer(Path(name))
        steps = [tracer.traced(step(test, LIMIT_S)) for test in tests]
        failure = first_failure(steps, tracer.start)
        times = Path(name) / "times"
        times.touch()
        told = [json.loads(line) for line in times.read_text().splitlines()]
        lines = tracer.read()
    if failure is not None:  # nothing was written down of those before it
        return {tests[failure.index].nodeid: Measured(LIMIT_S, False, {})}
    return {
        test: Measured(round(seconds, 3), passed, lines.get(test, {}))
        for test, seconds, passed in told
    }
