"""The tests of `ProcessPoolExecutor` that come with Python, with an executor of ours.

Some distributions leave them out; then they are skipped.
"""

from __future__ import annotations

import importlib
import multiprocessing
import unittest

import pytest

from simpler_ref.adapters.executor import Executor

from .own_tests import table

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
EXCEPTIONS = table("Python")


@pytest.mark.long
@pytest.mark.skipif(not CASES, reason="this Python has no tests of its own")
@pytest.mark.parametrize(("name", "test"), CASES)
def test_tests_of_python(name, test):
    """All pass but those that the page names, and none of these does."""
    result = class_of[name](test).run()
    wrong = [trace for _, trace in result.failures + result.errors]
    if test in EXCEPTIONS:
        assert wrong or result.skipped, "it passes, but the page says that it does not"
    else:
        assert not wrong, "\n".join(wrong)
