"""Take figures of the working tree now, or of it and an earlier commit in turns.

An earlier commit is checked out into a folder of its own, and each tree is installed into a folder,
without dependencies, which are those of the environment that runs this. Every round takes the figures of
both, each with the benchmarks of its own tree, in an order that changes: what else the machine does
meanwhile meets both alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Run = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3
MEDIANS = ("median", "spread", "floor_us", "floor_spread_us", "multiple", "multiple_spread")


class CannotMeasureError(Exception):
    """There is nothing to compare with, or a tree cannot be measured; the text says why."""


def figures_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return all figures of a run by name."""
    found: dict[str, Any] = {}
    for benchmark in run["benchmarks"]:
        found.update(benchmark["extra_info"].get("figures", {}))
    return found


def _called(*command: str | Path, **more: Any) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **more)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise CannotMeasureError(f"{' '.join(map(str, command))} failed:\n{said}")
    return done.stdout.strip()


def git(*words: str) -> str:
    """Return what git says of this project."""
    return _called("git", *words, cwd=ROOT)


def previous() -> str:
    """Return the release before the working tree; without one the commit before it."""
    before = "HEAD" if git("status", "--porcelain") else "HEAD~1"
    try:
        git("rev-parse", "--verify", "--quiet", before)
    except CannotMeasureError:
        raise CannotMeasureError(
            "there is no commit before this one here: fetch one, or name one with --before"
        ) from None
    try:
        return git("describe", "--tags", "--abbrev=0", before)
    except CannotMeasureError:
        return before


# ---------------------------------------------------------------- taking figures
def taken(tree: Path, installed: Path | None, rows: str | None) -> Run:
    """Take the figures of a tree with its benchmarks."""
    environment = dict(os.environ)
    if installed is not None:
        environment["PYTHONPATH"] = str(installed)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        pytest = Path(sys.executable).with_name("pytest")  # unlike -m, it leaves the folder out
        chosen = ["-k", rows] if rows else []
        command = (pytest, "benchmarks", "-q", f"--benchmark-json={file}", *chosen)
        try:
            _called(*command, cwd=tree, env=environment)
        except CannotMeasureError as error:
            if tree == ROOT or not file.exists():
                raise
            print(f"some rows are left out, since before {error}", file=sys.stderr)
        run: Run = json.loads(file.read_text())
    if not figures_of(run):
        raise CannotMeasureError(f"no figures were taken of {tree}")
    return run


@contextmanager
def _checked_out(commit: str, folder: Path) -> Iterator[Path]:
    git("worktree", "add", "--quiet", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        git("worktree", "remove", "--force", str(folder))


def _install(tree: Path, target: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _called(*pip, "--no-deps", "--target", target, tree)
    return target


def in_turns(commit: str, rows: str | None, rounds: int = ROUNDS) -> tuple[Run, Run]:
    """Take figures of a commit and of the working tree in turns; return both, each as one run."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with _checked_out(commit, folder / "source") as source:
            trees = [
                (source, _install(source, folder / "before")),
                (ROOT, _install(ROOT, folder / "after")),
            ]
            runs: list[list[Run]] = [[], []]
            for number in range(rounds):
                print(f"round {number + 1} of {rounds} …", file=sys.stderr, flush=True)
                for which in (0, 1) if number % 2 == 0 else (1, 0):
                    runs[which].append(taken(*trees[which], rows))
    return merged(runs[0]), merged(runs[1])


def merged(runs: Sequence[Run]) -> Run:
    """Return several runs of the same tree as one: of each figure the medians, and all rounds."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        for name, entry in figures_of(run).items():
            found.setdefault(name, []).append(entry)
    figures = {}
    for name, entries in found.items():
        medians = {
            key: statistics.median(entry[key] for entry in entries)
            for key in MEDIANS
            if all(key in entry for entry in entries)
        }
        figures[name] = {**entries[-1], **medians, "rounds": sum(e["rounds"] for e in entries)}
    others = statistics.median(run.get("others", 0.0) for run in runs)
    return {**runs[-1], "others": others, "benchmarks": [{"extra_info": {"figures": figures}}]}
