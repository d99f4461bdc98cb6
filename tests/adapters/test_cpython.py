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
    worker_count = 2

    def get_context(self):
        return multiprocessing.get_context(self.ctx)


OWN = {name: one for name, one in vars(Ours).items() if not name.startswith("__")}


class OursThroughout(Ours):
    """With an executor of its own for each test, which `ExecutorMixin` has, too."""

    def setUp(self):
        self.executor = self.executor_type(self.worker_count, self.get_context())

    def tearDown(self):
        self.executor.shutdown()


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
    if why := EXCEPTIONS.get(test):
        pytest.skip(why)
    result = class_of[name](test).run()
    for _, trace in result.failures + result.errors:
        pytest.fail(trace)
