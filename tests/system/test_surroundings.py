"""Programs that find damaged compiled kernels, or none: each is a start with all that belongs to it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys

import pytest

from simpler_ref.jit import cache, entries
from simpler_ref.jit.kernel import INTERPRETED

from .programs import Program

compiled = pytest.mark.skipif(INTERPRETED, reason="interpreted code is not compiled")

TASKS = """
def add(args):
    args.tensor(0).numpy()[:] += 1

with Worker(level=3, num_sub_workers=2) as w:
    x = w.share(np.zeros(1000, np.float32))
    h = w.register(add)
    def graph(orch, *_):
        for _ in range(20):
            a = TaskArgs()
            a.add_tensor(x, T.INOUT)
            orch.submit_sub(h, a)
    w.run(graph)
    later = w.register(lambda args: add(args))
    a = TaskArgs()
    a.add_tensor(x, T.INOUT)
    w.run(lambda orch, *_: orch.submit_sub(later, a))
    assert set(x) == {21}, x
"""


def file_of(name):
    """Return the name of the file that a kernel is kept in."""
    return getattr(entries, name).cache.file()[0]


@pytest.fixture(scope="module")
def all_kernels(tmp_path_factory):
    """Give a cache that has all kernels and nothing else."""
    root = tmp_path_factory.mktemp("caches")
    folder = root / "simpler_ref" / "kernels"
    folder.mkdir(parents=True, mode=0o700)
    names = [name for name in vars(entries) if hasattr(getattr(entries, name), "entry_signature")]
    files = {file_of(name) for name in names}
    for name in files:
        try:
            shutil.copy(cache.folder() / name, folder)
        except OSError:  # this user has no cache: the program below fills this one
            continue
    program = "from simpler_ref.jit.entries import entries; entries()"
    environment = os.environ | {"XDG_CACHE_HOME": str(root), "SIMPLER_REF_FAIL_POINTS": "0"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)
    assert set(os.listdir(folder)) == files
    return root


@pytest.fixture
def kernels(all_kernels, tmp_path):
    """Give a cache that has all kernels, to be damaged."""
    shutil.copytree(all_kernels, tmp_path / "caches")
    return tmp_path / "caches"


def folder_in(root):
    return root / "simpler_ref" / "kernels"


def run(source, **environ):
    """Run a program to its end; return its exit code, what it prints, and the lines it logs."""
    with Program(source, **environ) as program:
        code, out, err = program.finish()
        assert program.everybody_ends(), f"processes outlive the program: {out}{err}"
    return code, out, err.splitlines()


# ---------------------------------------------------------------- all kernels, for minutes
START = "from simpler_ref.jit.entries import entries; entries(); print('started', end='')"
LONG_S = 1500.0
"""A guard against hangs: a start compiles everything."""


def starts(root, count=1):
    """Start programs together, which compile what they do not find; return the lines that each logs.

    The lines that say how far it is (ORCH-TELL-3) are left out.
    """
    environment = os.environ | {"XDG_CACHE_HOME": str(root)}
    command = [sys.executable, "-c", START]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen(command, env=environment, **pipes) for _ in range(count)]
    try:
        ends = [program.communicate(timeout=LONG_S) for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    assert [program.returncode for program in programs] == [0] * count, ends
    assert [out for out, _ in ends] == ["started"] * count
    logs = [err.splitlines() for _, err in ends]
    return [[line for line in log if not line.startswith("simpler_ref: ")] for log in logs]


def damaged(data, rng):
    """Return the bytes of a file as nobody has written them."""
    flipped = bytearray(data)
    flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    half = data[: rng.randrange(len(data))]
    return rng.choice([b"", half, rng.randbytes(rng.randrange(1, 2 * len(data))), bytes(flipped)])


@compiled
@pytest.mark.long
@pytest.mark.timeout(2 * LONG_S)
def test_when_every_kernel_is_damaged_a_start_compiles_all_and_the_next_one_none(kernels):
    rng = random.Random(1)
    for path in folder_in(kernels).iterdir():
        path.write_bytes(damaged(path.read_bytes(), rng))
    ((line,),) = starts(kernels)
    assert line.endswith("is damaged; what is damaged is compiled again")
    assert starts(kernels) == [[]]
    assert run(TASKS, XDG_CACHE_HOME=str(kernels)) == (0, "", [])


@compiled
@pytest.mark.long
@pytest.mark.timeout(2 * LONG_S)
def test_programs_that_start_together_without_a_cache_all_start(tmp_path, all_kernels):
    assert starts(tmp_path, count=3) == [[]] * 3
    assert set(os.listdir(folder_in(tmp_path))) == set(os.listdir(folder_in(all_kernels)))
    assert starts(tmp_path) == [[]]
