"""COMPAT-NAMES: modules under their own names."""

import importlib
import logging
import re
import sys
import types

import pytest

import simpler_ref
from simpler_ref import compat, env_manager, log_levels
from tests.spec_rules import tables

NAMES = [
    (original, "" if " " in here else here.strip("`"))
    for names, here in tables("COMPAT-NAMES")[0]
    for original in re.findall(r"[\w.]+", names)
]


@pytest.fixture
def installed():
    compat.install()
    yield
    compat.uninstall()
    assert not any(name.split(".")[0] in ("simpler", "_task_interface") for name in sys.modules)


@pytest.mark.spec("COMPAT-NAMES-1")
def test_a_name_of_the_table_is_the_module_beside_it(installed):
    for original, here in NAMES:
        found = importlib.import_module(original)
        assert not here or found is importlib.import_module(f"simpler_ref.{here}")
    assert {*compat.MODULES, *compat.EXTRAS, "simpler"} == {name for name, _ in NAMES}


@pytest.mark.spec("COMPAT-NAMES-1")
def test_programs_import_modules_and_names_in_every_way(installed):
    compat.install()
    scope = {}
    exec(
        "import simpler, simpler.worker, simpler.task_interface as ti\n"
        "from simpler import env_manager, TaskArgs\n"
        "from simpler.worker import Worker\n"
        "from simpler.task_interface import *\n"
        "from _task_interface import DataType as D\n",
        scope,
    )
    assert scope["Worker"] is scope["simpler"].worker.Worker is simpler_ref.Worker
    assert scope["TaskArgs"] is scope["ti"].TaskArgs is simpler_ref.TaskArgs
    assert scope["D"] is scope["DataType"] and scope["env_manager"] is env_manager
    with pytest.raises(ImportError):
        exec("from simpler import nothing_of_this_name", scope)
    with pytest.raises(ModuleNotFoundError):
        exec("import simpler.nothing_of_this_name", scope)


@pytest.mark.spec("COMPAT-NAMES-1")
@pytest.mark.parametrize("name", ["simpler", "_task_interface", "simpler.worker"])
def test_another_module_of_such_a_name_is_left_alone(monkeypatch, name):
    other = types.ModuleType(name)
    other.__file__ = "/its/place.py"
    monkeypatch.setitem(sys.modules, name, other)
    before = dict(sys.modules)
    with pytest.raises(RuntimeError, match=f"'{name}' is imported already, from /its/place.py"):
        compat.install()
    assert sys.modules == before and sys.modules[name] is other
    compat.uninstall()
    assert sys.modules[name] is other


@pytest.mark.spec("COMPAT-NAMES-2")
def test_log_levels_have_names_in_logging():
    levels = [getattr(log_levels, f"V{i}") for i in range(10)]
    assert levels == list(range(levels[0], levels[0] + 10))
    assert log_levels.V5 == logging.INFO and logging.getLevelName(logging.INFO) == "INFO"
    assert levels[0] > logging.DEBUG and levels[9] < logging.WARNING
    assert log_levels.NUL > logging.CRITICAL
    logger = logging.Logger("some")
    for name, level in log_levels.LEVELS.items():
        logger.setLevel(name)
        assert logger.level == level


@pytest.mark.spec("COMPAT-NAMES-2")
def test_a_variable_that_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("SIMPLER_TEST_HERE", "value")
    monkeypatch.setenv("SIMPLER_TEST_EMPTY", "")
    assert (
        env_manager.get("SIMPLER_TEST_HERE") == env_manager.ensure("SIMPLER_TEST_HERE") == "value"
    )
    for name in ("SIMPLER_TEST_EMPTY", "SIMPLER_TEST_MISSING"):
        assert env_manager.get(name) is None and env_manager.get(name, "other") == "other"
        with pytest.raises(OSError, match=name):
            env_manager.ensure(name)
