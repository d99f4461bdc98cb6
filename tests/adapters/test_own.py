"""The tests that Python, joblib and dask bring along, with ours in place of their own.

All pass but those that a table of the page of adapters names. Some distributions leave them out; then
they are skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from xml.etree import ElementTree

import pytest

from simpler_ref.adapters.executor import Executor
from tests.spec_rules import ROOT

PAGE = ROOT / "docs/howto/adapters.md"


def table(heading: str) -> dict[str, str]:
    """Return the tests that a table of the page names, and why each does not pass."""
    _, _, rest = PAGE.read_text().partition(f"| test of {heading} |")
    rows = re.match(r"[^\n]*\n\|[-| ]+\|\n((?:\|.*\|\n)*)", rest)
    assert rows, heading
    cells = [[one.strip() for one in row.strip("|").split("|")] for row in rows[1].splitlines()]
    return {name.strip("`"): why for names, why in cells for name in names.split(", ")}


# ---------------------------------------------------------------- joblib, dask
def files_of(library: str, *names: str) -> list[Path]:
    """Return files of a library's tests, none if it is not there or comes without them."""
    found = importlib.util.find_spec(library)
    paths = [Path(found.origin).parent / name for name in names] if found else []
    return paths if paths and paths[0].exists() else []


JOBLIB = files_of("joblib", "test/test_parallel.py")
OF_LOKY = "(loky or not (threading or multiprocessing))"
SAMPLE = "(test_simple_parallel or test_parallel_timeout_success or test_error_capture)"
DASK = files_of("dask", "tests/test_threaded.py", "tests/test_multiprocessing.py")
DASK += files_of("dask", *(f"array/tests/test_{n}.py" for n in ("array_core", "overlap", "linalg")))
WITHOUT_PLUGIN = "not test_binary_operator_delegation"
WHOLE = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.slow("a process with tests of another library")
@pytest.mark.parametrize(
    ("library", "plugin", "paths", "chosen", "least"),
    [
        ("joblib", "instead_of_loky", JOBLIB, f"{OF_LOKY} and {SAMPLE}", 10),
        ("dask", "instead_of_threads", DASK[:2], "", 20),
        pytest.param("joblib", "instead_of_loky", JOBLIB, OF_LOKY, 300, marks=WHOLE),
        pytest.param("dask", "instead_of_threads", DASK, WITHOUT_PLUGIN, 1000, marks=WHOLE),
    ],
)
def test_tests_of_a_library(tmp_path, library, plugin, paths, chosen, least):
    """They run in a process of its own, with a plugin of this folder and without our settings."""
    if not paths:
        pytest.skip(f"there are no tests of {library}")
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={tmp_path}"]
    command += ["-p", f"tests.adapters.{plugin}", "-p", "no:cacheprovider", "-W", "ignore", "-n0"]
    command += ["--timeout=120", f"--junitxml={report}", "-k", chosen, *map(str, paths)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    output = done.stdout[-20_000:] + done.stderr[-5_000:]
    assert done.returncode in (0, 1), output
    passed, failed = set(), set()
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {one.tag for one in case}
        if kinds & {"failure", "error"}:
            failed.add(case.get("name"))
        elif "skipped" not in kinds:
            passed.add(case.get("name"))
    assert len(passed) > least
    known = table(library)
    names = {test.partition("[")[0] for test in failed}
    assert not {test for test in failed if not {test, test.partition("[")[0]} & known.keys()}, (
        output
    )
    if least >= 300:  # all of them
        in_vain = known.keys() - names - failed
        assert not in_vain, f"these pass, but the table names them: {sorted(in_vain)}"


# ---------------------------------------------------------------- Python's, of `ProcessPoolExecutor`
NAMES = {
    "executor": ["ExecutorTest"],
    "test_process_pool": ["ProcessPoolExecutorTest"],
    "test_shutdown": ["ProcessPoolShutdownTest"],
    "test_wait": ["WaitTests"],
    "test_as_completed": ["AsCompletedTests"],
    "test_deadlock": ["ExecutorDeadlockTest"],
    "test_init": ["InitializerMixin"],
}
"""The classes, by the modules that have them since Python 3.12."""


def found():
    """Return the classes of tests; none if this Python has none."""
    for module, names in NAMES.items():
        try:
            try:
                there = importlib.import_module(f"test.test_concurrent_futures.{module}")
            except ModuleNotFoundError:
                there = importlib.import_module("test.test_concurrent_futures")
        except ModuleNotFoundError:
            return
        yield from (getattr(there, name) for name in names)


class Ours:
    executor_type = Executor
    ctx = "fork"
    worker_count = 5

    def get_context(self):
        return multiprocessing.get_context(self.ctx)


OWN = {name: one for name, one in vars(Ours).items() if not name.startswith("__")}


class OursThroughout(Ours):
    """With an executor of its own for each test, which `ExecutorMixin` has, too."""

    def setUp(self):
        self.executor = self.executor_type(self.worker_count, self.get_context())

    def tearDown(self):
        self.executor.terminate()  # a test that has failed may have left calls that never end


def with_ours(kind):
    ours = Ours if kind.__name__.endswith("Mixin") else OursThroughout
    return type(kind.__name__, (kind, ours, unittest.TestCase), dict(OWN))


class_of = {one.__name__: with_ours(one) for one in found()}
CASES = [
    (name, test)
    for name, kind in class_of.items()
    for test in unittest.TestLoader().getTestCaseNames(kind)
]


@pytest.mark.long
@pytest.mark.skipif(not CASES, reason="this Python has no tests of its own")
@pytest.mark.parametrize(("name", "test"), CASES)
def test_tests_of_python(name, test):
    """All pass but those that the page names, and none of these does."""
    result = class_of[name](test).run()
    wrong = [trace for _, trace in result.failures + result.errors]
    if test in table("Python"):
        assert wrong or result.skipped, "it passes, but the page says that it does not"
    else:
        assert not wrong, "\n".join(wrong)
