"""Compiled kernels are kept on disk and never outlive the sources they were made from."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import simpler_ref


@pytest.fixture
def package(tmp_path):
    """Give a copy of the package."""
    source = Path(simpler_ref.__file__).parent
    shutil.copytree(source, tmp_path / "simpler_ref", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "simpler_ref"


def python(program):
    """Run a program with compiled kernels in a process of its own; return what it prints."""
    compiled = {"NUMBA_DISABLE_JIT": "0", "SIMPLER_REF_FAIL_POINTS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | compiled,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# ---------------------------------------------------------------- starting up
START = """
import sys
import numba.core.compiler as c
def refuse(*_, **__):
    raise AssertionError("compiled")
c.CompilerBase.compile_extra = refuse
import simpler_ref
print([name for name in sys.modules if "scipy" in name and "linalg" in name])
from simpler_ref import Worker
def work(args):
    pass
with Worker(3, num_sub_workers=1) as w:
    handle = w.register(work)
    w.run(lambda orch, *_: orch.submit_sub(handle))
print([name for name in sys.modules if name.startswith("scipy.linalg")])
from multiprocessing import resource_tracker
print(resource_tracker._resource_tracker._pid)
"""


def test_a_second_process_compiles_nothing_and_does_without_scipy_and_a_tracker_of_names():
    python("from simpler_ref.jit.entries import entries; entries()")
    assert python(START) == "[]\n[]\nNone\n"
