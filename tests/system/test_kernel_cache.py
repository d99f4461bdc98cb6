"""Compiled kernels are kept on disk and never outlive the sources they were made from."""

import ast
import shutil
from pathlib import Path

import pytest

import simpler_ref

from .programs import output_of


@pytest.fixture
def package(tmp_path):
    """Give a copy of the package."""
    source = Path(simpler_ref.__file__).parent
    shutil.copytree(source, tmp_path / "simpler_ref", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "simpler_ref"


def python(program):
    """Run a program with compiled kernels in a process of its own; return what it prints."""
    return output_of(program, NUMBA_DISABLE_JIT="0", SIMPLER_REF_FAIL_POINTS="0")


# ---------------------------------------------------------------- starting up
START = """
import sys
import numpy
before = set(sys.modules)
import simpler_ref
print(sorted(sys.modules.keys() - before))
with simpler_ref.Worker(num_sub_workers=1) as w:
    w.zeros(1)
    assert w.submit(divmod, 7, 2).result() == (3, 1)
print(sorted(sys.modules.keys() - before))
from multiprocessing import resource_tracker
print(resource_tracker._resource_tracker._pid)
"""
UNUSED = {
    "numba",
    "scipy",
    "sklearn",
    "zmq",
    "joblib",
    "dask",
    "ray",
    "email",
    "importlib.metadata",
}
UNUSED |= {f"simpler_ref.{name}" for name in ("native_chip", "callables.leaves", "jit.compiler")}
UNUSED |= {f"simpler_ref.{name}" for name in ("remote.session", "remote.link", "trace.reader")}


def test_a_start_that_finds_its_kernels_imports_and_does_only_what_it_uses():
    python("from simpler_ref.jit.entries import entries; entries()")
    imported, used, tracker = python(START).splitlines()
    assert len(ast.literal_eval(imported)) < 230
    assert len(ast.literal_eval(used)) < 270
    assert not UNUSED.intersection(ast.literal_eval(used))
    assert tracker == "None"


# ---------------------------------------------------------------- kernels that come with the package
@pytest.mark.spec("SPEED-KEEP-1")
@pytest.mark.parametrize("change", [None, "sources", "damage"])
def test_kernels_that_come_with_the_package_are_used_if_they_are_of_its_sources(
    change, package, tmp_path
):
    here = f"import sys; sys.path.insert(0, {str(package.parent)!r})\n"
    (path,) = python(f"{here}from simpler_ref.__main__ import main; main(['compile'])").split()
    if change == "sources":
        with open(package / "jit" / "layout.py", "a") as file:
            file.write("# another layout")
    elif change == "damage":
        Path(path).write_bytes(Path(path).read_bytes()[:-1])
    program = f"""{here}
import logging, os
sys.modules["numba"] = None
os.environ["XDG_CACHE_HOME"] = {str(tmp_path / "caches")!r}
from simpler_ref.jit import kernel
from simpler_ref.jit.entries import entries
kernel.compile_apart = lambda: None
logging.disable()
sys.stderr = None
try:
    entries()
    print("found")
except ImportError:
    print("compiles")
"""
    assert python(program) == ("compiles\n" if change else "found\n")
