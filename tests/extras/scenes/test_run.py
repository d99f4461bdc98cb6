"""SCENE-RUN: how scenes run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simpler_ref.extras.scenes import SceneTestCase, scene_test
from simpler_ref.extras.scenes.plugin import RunOptions, devices_of

from .programs import Adding


def do_nothing(orch, callables, args, config):
    pass


def write(orch, callables, args, config):
    args.c[:] = args.a + args.b


@scene_test(level=3)
class Writing(Adding):
    CALLABLE = {"orchestration": write}
    CASES = [
        {"name": "first", "params": {"size": 10}},
        {"name": "second", "params": {"size": 10}, "manual": True},
        {"name": "third", "params": {"size": 10}, "platforms": ["a5sim"]},
    ]


@scene_test(level=3)
class Lazy(Adding):
    CALLABLE = {"orchestration": do_nothing}


ROOT = Path(__file__).parents[3]


SCENES_OF_A_FILE = """
from tests.extras.scenes.test_run import Lazy, Writing

class TestWriting(Writing): pass
class TestLazy(Lazy): pass
"""
CONFTEST = """
from simpler_ref.extras.scenes import SceneTestCase

pytest_plugins = ["simpler_ref.extras.scenes.plugin"]
"""


@pytest.fixture
def run(capfd):
    """Run this module's scenes; return the exit code and what was printed."""

    def run_module(*arguments):
        code = SceneTestCase.run_module(__name__, list(arguments))
        said = capfd.readouterr()
        return code, said.out + said.err

    return run_module


@pytest.mark.spec("SCENE-RUN-1")
@pytest.mark.parametrize(
    "plugin",
    [
        ["--platform=a5sim", "-W", "error::pytest.PytestAssertRewriteWarning"],
        pytest.param([], marks=pytest.mark.long),
    ],
)
def test_pytest_collects_one_test_for_each_case_even_without_the_plugin(tmp_path, plugin):
    (tmp_path / "test_scenes.py").write_text(SCENES_OF_A_FILE)
    if plugin:
        (tmp_path / "conftest.py").write_text(CONFTEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *plugin, "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    for line in (
        "TestWriting::test_run[first] PASSED",
        "TestWriting::test_run[second] SKIPPED",
        f"TestWriting::test_run[third] {'PASSED' if plugin else 'SKIPPED'}",
        "TestLazy::test_run[small] FAILED",
        "c: 10 of 10 elements differ; the first is [0]: got 0.0, not 1.0",
    ):
        assert line in done.stdout


@pytest.mark.spec("SCENE-RUN-1")
def test_the_exit_code_says_whether_all_cases_have_passed(run, monkeypatch):
    code, said = run()
    assert code == 1
    assert "Writing::first … passed" in said
    assert "Lazy::small … FAILED in round 1\n  c: 10 of 10 elements differ" in said
    assert said.endswith("1 passed, 1 failed\n")
    code, said = run("--case", "Writing::first", "--rounds", "2")
    assert code == 0
    assert "passed, 2 rounds, the shortest" in said
    code, said = run("--case", "fourth")
    assert code == 1
    assert "no case runs" in said
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])
    monkeypatch.setattr(sys, "argv", ["program", "--case", "Writing::first"])
    with pytest.raises(SystemExit) as ended:
        SceneTestCase.run_module("__main__")
    assert ended.value.code == 0


@pytest.mark.spec("SCENE-RUN-1")
def test_an_exception_is_a_failure_with_its_traceback(run, monkeypatch):
    def broken(self, params):
        raise ValueError("no such size")

    monkeypatch.setattr(Lazy, "generate_args", broken)
    code, said = run()
    assert code == 1
    assert "Lazy::small … ERROR" in said and "ValueError: no such size" in said
    assert "Writing::first … passed" in said
    monkeypatch.setattr(Lazy, "generate_args", lambda self, params: [])
    _, said = run("--case", "Lazy::small")
    assert "TypeError: generate_args returns a TaskArgsBuilder, got []" in said


@pytest.mark.spec("SCENE-RUN-1")
def test_manual_cases_run_where_they_are_asked_for_and_others_on_their_platforms(run):
    assert "second" not in run()[1]
    said = run("--manual")[1]
    assert "Writing::second … passed" in said and "third" not in said
    assert "Writing::second … passed" in run("--case", "second")[1]
    assert "Writing::third … passed" in run("--platform", "a5sim")[1]
    code, said = run("--list")
    names = ["Writing::first", "Writing::second (manual)", "Writing::third", "Lazy::small"]
    assert (code, said.splitlines()[:4]) == (0, names)


@pytest.mark.spec("SCENE-RUN-1")
def test_devices_are_numbers_and_ranges_and_diagnostics_fields_of_the_configuration():
    assert (devices_of("0"), devices_of("0,2")) == ((0,), (0, 2))
    assert devices_of("1-3,7") == (1, 2, 3, 7)
    with pytest.raises(ValueError, match="3-1"):
        devices_of("3-1")
    (case, *_) = Writing.cases()
    options = RunOptions(diagnostics=(("enable_dep_gen", 1),), output_prefix="there")
    config = case.call_config(options, "Writing")
    assert (config.enable_dep_gen, config.output_prefix) == (1, "there/Writing_first")
    assert case.call_config(RunOptions(), "Writing").output_prefix == ""
