"""Compiled kernels are kept on disk and never outlive the sources they were made from."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import simpler_ref
from simpler_ref.jit import cache

PROGRAM = """
import json
import numpy as np
from simpler_ref.jit import entries, kernel
from simpler_ref.jit import layout as L

cached = kernel.is_cached(entries.open_scope)
open_scope = kernel.bind(entries.open_scope)
mem = np.zeros(L.HEADER_WORDS, np.int64)
scopes = 0
while open_scope(mem) == L.OK:
    scopes += 1
print(json.dumps({
    "stamp": kernel.source_digest(),
    "scopes": scopes,
    "compiled": not cached,
}))
"""


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Give the folder of compiled kernels, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return cache.folder()


@pytest.fixture
def package(tmp_path, kept):
    """Give a copy of the package without any compiled kernel."""
    source = Path(simpler_ref.__file__).parent
    shutil.copytree(source, tmp_path / "simpler_ref", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "simpler_ref"


def python(program, cwd=None, **environ):
    """Run a program with compiled kernels in a process of its own; return what it prints."""
    compiled = {"NUMBA_DISABLE_JIT": "0", "SIMPLER_REF_FAIL_POINTS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env=os.environ | compiled | environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run(package, fail_points="0"):
    """Open scopes until one is refused, in a process of its own."""
    said = python(
        PROGRAM,
        cwd=package.parent,
        SIMPLER_REF_FAIL_POINTS=fail_points,
        PYTHONPATH=str(package.parent),
        PYTHONDONTWRITEBYTECODE="1",  # Python's own cache goes by size and time stamp
    )
    return json.loads(said)


def edit(path, old, new):
    """Change a source file so that neither its size nor its time stamp tells."""
    before = path.stat()
    text = path.read_text()
    assert text.count(old) == 1
    assert len(old) == len(new)
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.long
def test_a_kernel_is_compiled_anew_when_any_byte_of_the_sources_changes(package, kept):
    files = set(package.rglob("*"))
    first = run(package)
    assert (first["scopes"], first["compiled"]) == (65, True)
    assert set(package.rglob("*")) == files, "nothing is kept in the package"
    plain = {path: path.stat().st_mtime_ns for path in kept.iterdir()}

    armed = run(package, "1")
    assert armed["compiled"], "a kernel that may die is another kernel"
    assert armed["stamp"] != first["stamp"]
    assert len(list(kept.iterdir())) == 2 * len(plain) == 2

    again = run(package)
    assert again == first | {"compiled": False}, "the second time it comes from the disk"
    assert {path: path.stat().st_mtime_ns for path in plain} == plain

    constants = package / "jit" / "constants.py"
    edit(constants, "MAX_SCOPE_DEPTH = 64\n", "MAX_SCOPE_DEPTH = 12\n")
    changed = run(package)
    assert (changed["scopes"], changed["compiled"]) == (13, True)
    assert changed["stamp"] != first["stamp"]


def test_a_word_in_a_comment_of_another_file_makes_another_stamp(package):
    path = package / "jit" / "kernel.py"

    def stamp():
        spec = importlib.util.spec_from_file_location("simpler_ref.jit.copy", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.source_digest()

    stamps = {stamp()}
    for file in sorted((package / "jit").glob("*.py")):
        file.write_text(file.read_text() + "\n# a word\n")
        stamps.add(stamp())
    assert len(stamps) == 1 + len(list((package / "jit").glob("*.py")))
    (package / "jit" / "new.py").write_text("")
    stamps.add(stamp())
    (package / "jit" / "new.py").rename(package / "jit" / "renamed.py")
    assert stamp() not in stamps


# ---------------------------------------------------------------- starting up
START = """
import sys
import llvmlite.binding, numba.core.dispatcher as d
def refuse(*_, **__):
    raise AssertionError("compiled")
d.Dispatcher.compile = refuse
import simpler_ref
from simpler_ref.jit import kernel
print([name for name in sys.modules if "scipy" in name and "linalg" in name])
bound = []
kernel.bind = lambda func, bind=kernel.bind: bound.append(kernel.is_cached(func)) or bind(func)
from simpler_ref.jit import entries
entries.bind = kernel.bind
from simpler_ref import Worker
def work(args):
    pass
with Worker(3, num_sub_workers=1) as w:
    handle = w.register(work)
    w.run(lambda orch, *_: orch.submit_sub(handle))
print(len(bound) > 20, all(bound))
print([name for name in sys.modules if name.startswith(("scipy.linalg", "multiprocessing.res"))])
"""


def test_a_second_process_compiles_nothing_and_does_without_scipy_and_multiprocessing():
    python("from simpler_ref.jit.entries import entries; entries()")
    assert python(START) == "[]\nTrue True\n[]\n"
