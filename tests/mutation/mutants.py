"""Runs tests against a copy of the package into which a fault has been put."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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


@contextmanager
def put_in(fault: Fault, copy: Path) -> Iterator[None]:
    """Put a fault into a copy, and take it out again."""
    before: dict[Path, str] = {}
    try:
        for patch in fault.patches:
            path = copy / "simpler_ref" / patch.file
            text = path.read_text()
            before.setdefault(path, text)
            path.write_text(patched(text, patch))
            forget_compiled(path)
        yield
    finally:
        for path, text in before.items():
            path.write_text(text)
            forget_compiled(path)


def forget_compiled(path: Path) -> None:
    """Remove what Python has kept of a module: it tells versions apart by second and size only."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


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


def run_with(fault: Fault, copy: Path) -> Outcome:
    """Run the tests that are named for a fault, with the fault."""
    with put_in(fault, copy):
        outcome = run_tests(copy, fault.caught_by, HANG_S if fault.hangs else DEADLINE_S)
    if broken := BROKEN.search(outcome.output):
        raise ValueError(f"the patches of {fault.name} leave no program: {broken[1]}")
    return outcome


def run_tests(copy: Path, tests: Sequence[str], timeout_s: float) -> Outcome:
    """Run tests in a copy, interpreted; afterwards no process of theirs is left."""
    options = ["-v", "--no-header", "--tb=short", f"--timeout={timeout_s}"]
    log = copy / "output"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy,
            env=os.environ
            | {
                "NUMBA_DISABLE_JIT": "1",
                "PYTHONPATH": str(copy),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUNBUFFERED": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.05)
        with suppress(ProcessLookupError):  # not waited for yet, so the group is still its own
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
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
