"""The package is built without a warning, as sources and as a wheel of these, and leaves no trace."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from .programs import ROOT

BESIDE = ("MANIFEST.in", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
SOURCES = ("simpler_ref", "pyproject.toml", "setup.py", *BESIDE)
BUILT = shutil.ignore_patterns("__pycache__", "*.so", "*.nbi", "*.nbc")
NEEDED = ("numba", "numpy", "llvmlite", "cloudpickle")
DEADLINE_S = 300.0
"""A guard against hangs."""

PROGRAM = """
import sys, simpler_ref
from simpler_ref import Worker
with Worker(level=3, num_sub_workers=1) as w:
    h = w.register(lambda args: None)
    assert w.run(lambda orch, *_: orch.submit_sub(h)).tasks == 1
from simpler_ref.native_chip import compile_kernel
lines = '#include "simpler_kernel.h"', "int32_t simpler_kernel(const SimplerCoreArgs *a) { return 0; }"
compile_kernel("\\n".join(lines))
print(simpler_ref.__file__)
"""


def run(*command, cwd):
    """Run a command that must succeed; return what it says."""
    hidden = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")  # the first makes setuptools warn
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in hidden},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def elsewhere(tmp_path_factory):
    """Give a folder with the sources and an environment that has setuptools and what they need."""
    folder = tmp_path_factory.mktemp("install")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "sources" / name, ignore=BUILT)
        else:
            shutil.copy(ROOT / name, folder / "sources" / name)
    venv.create(folder / "venv", symlinks=True)
    try:
        pip(folder, "install", "setuptools>=77")
    except AssertionError as error:
        if "No matching distribution" in str(error) or "ConnectionError" in str(error):
            pytest.skip("setuptools cannot be fetched: there is no way to a package registry")
        raise
    found = {str(Path(importlib.import_module(name).__file__).parents[1]) for name in NEEDED}
    (site_packages(folder) / "needed.pth").write_text("\n".join(sorted(found)) + "\n")
    return folder


def python(folder):
    return folder / "venv" / "bin" / "python"


def site_packages(folder):
    (found,) = (folder / "venv" / "lib").glob("python*/site-packages")
    return found


def pip(folder, *arguments):
    return run(sys.executable, "-m", "pip", "--python", python(folder), *arguments, cwd=folder)


def warnings(said):
    """Return the lines with a warning, but for those in which pip speaks of indexes and of itself."""
    return [
        line
        for line in said.splitlines()
        if re.search("warning|deprecat", line, re.IGNORECASE) and not line.startswith("WARNING: ")
    ]


def files(folder):
    """Return all that is installed, without the traces of using setuptools."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not re.search("setuptools|_distutils_hack|pkg_resources", str(path.relative_to(folder)))
    }


@pytest.mark.long
@pytest.mark.timeout(2 * DEADLINE_S)
def test_it_is_built_installed_whole_used_and_uninstalled_without_a_warning_or_a_trace(
    elsewhere, tmp_path
):
    build = "import setuptools.build_meta as b; print(b.build_sdist('../dist'))"
    said = run(python(elsewhere), "-W", "default", "-c", build, cwd=elsewhere / "sources")
    assert not warnings(said), said
    (sdist,) = (elsewhere / "dist").glob("*.tar.gz")
    before = files(site_packages(elsewhere))
    said = pip(elsewhere, "install", "-v", "--no-deps", "--no-build-isolation", sdist)
    assert not warnings(said), said
    package = site_packages(elsewhere) / "simpler_ref"
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "simpler_ref").rglob("*")
        if path.suffix in (".py", ".typed", ".html", ".txt") or path.parent.name == "include"
    }
    built = {f"simpler_ref/native_chip/{name}.so" for name in ("_shim", "_runtime", "_launch_all")}
    built |= {"simpler_ref/calls/_quick.so", "simpler_ref/jit/_entry.so"}
    installed = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.relative_to(package.parent).as_posix() for path in installed} == sources | built
    used = run(python(elsewhere), "-c", PROGRAM, cwd=tmp_path)
    assert used.splitlines()[-1] == str(package / "__init__.py"), used
    assert files(site_packages(elsewhere)) > before
    pip(elsewhere, "uninstall", "--yes", "simpler_ref")
    assert files(site_packages(elsewhere)) == before
    assert not package.exists()
    assert not list(tmp_path.iterdir()), "nor in the folder of the program"
