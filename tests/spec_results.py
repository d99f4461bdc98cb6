"""The last results of tests of rules: pytest writes, `make spec` and the pages read them.

There are two, one compiled and one with ``NUMBA_DISABLE_JIT=1``. Each carries a digest of the sources it
belongs to: results of other sources count as none. Runs of some tests add to what is there.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from .spec_rules import ROOT

MODES = ("compiled", "interpreted")
FOLDER = ROOT / ".spec-results"
SOURCES = {
    "simpler_ref": ("*.py", "*.c", "*.h"),
    "spec": ("*.md", "*.json"),
    "tests/conformance": ("*.py",),
    "tests/extras": ("*.py",),
}


def digest(root: Path = ROOT) -> str:
    """Return what changes with every file that a conformance test depends on."""
    files = [
        path
        for folder, patterns in SOURCES.items()
        for pattern in patterns
        for path in (root / folder).rglob(pattern)
    ]
    files += [*(root / "tests").glob("*.py"), root / "setup.py"]
    sha = hashlib.sha256()
    for path in sorted(files):
        if path.is_file():
            name = path.relative_to(root).as_posix()
            sha.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return sha.hexdigest()


def read(mode: str, sources: str, folder: Path = FOLDER) -> dict[str, str]:
    """Return test → outcome, as far as it is known for these sources."""
    try:
        found = json.loads((folder / f"{mode}.json").read_text())
    except FileNotFoundError:
        return {}
    return found["tests"] if found["sources"] == sources else {}


class Recorder:
    """The part of a pytest session that keeps what became of each conformance test."""

    RANK = ("skipped", "passed", "failed")
    """A test with parameters, or with several phases, has the last of these that any of them has."""

    def __init__(self, mode: str, root: Path = ROOT, folder: Path = FOLDER) -> None:
        self.mode = mode
        self.folder = folder
        self.root = root
        self.sources = digest(root)  # those the tests are about to run with
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report) -> None:
        """Note how a phase of a test has ended."""
        name = report.nodeid.partition("[")[0]
        told = report.when == "call" or report.outcome != "passed"
        if told and name.startswith(("tests/conformance/", "tests/extras/")):
            ranks = (self.outcomes.get(name, "skipped"), report.outcome)
            self.outcomes[name] = max(ranks, key=self.RANK.index)

    def pytest_sessionfinish(self) -> None:
        """Write the outcomes down, beside those of other tests with the same sources."""
        if not self.outcomes or digest(self.root) != self.sources:
            return
        known = read(self.mode, self.sources, self.folder)
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{self.mode}.json"
        new = path.with_suffix(f".{os.getpid()}")
        both = dict(sorted((known | self.outcomes).items()))
        new.write_text(json.dumps({"sources": self.sources, "tests": both}, indent=1) + "\n")
        new.replace(path)
