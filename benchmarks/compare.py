"""Compare with how fast it was: ``python benchmarks/compare.py .benchmarks``.

If the folder has two runs or more, the latest is compared with the one before it on the same machine.
With one of this machine, the figures of the working tree are taken now. Without one, those of the
previous release, or commit, and of the working tree are taken in turns.

Times are compared as multiples of the floor that was measured in the same run, so two runs need not
come from the same machine, nor find its cores in the same place. A figure has got worse if it takes
more of these multiples than before, and also more time, by more than the noise of both runs: the width
of the middle half of their rounds, that of the floor included. Changes below 1 %, or below
the smallest step a figure can take, do not count.

Exit code: 0 nothing got worse, 1 something did, 2 there is nothing to compare with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from figures import DISTURBED, FIGURES, FLOOR, number
from in_turns import ROOT, ROUNDS, CannotMeasureError, figures_of, in_turns, previous, taken
from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info

Run = Mapping[str, Any]
Entry = Mapping[str, Any]
FLOOR_MOVED = 1.5
SMALLEST_CHANGE = 0.01


def saved_runs(folder: Path) -> list[Run]:
    """Return all saved runs that hold figures, the oldest first."""
    runs = []
    for path in folder.rglob("*.json"):
        run = json.loads(path.read_text())
        run["path"] = path
        if figures_of(run):
            runs.append(run)
    return sorted(runs, key=lambda run: run["datetime"])


def machine(info: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what tells machines apart: the processor, and how many cores there are."""
    cpu = info.get("cpu", {})
    return cpu.get("brand_raw"), cpu.get("count")


def two_runs(folder: Path, before: str | None, rows: str | None, rounds: int) -> tuple[Run, Run]:
    """Return the runs to compare, the earlier one first; take what is not saved."""
    runs = saved_runs(folder) if folder.is_dir() else []
    if before is None and rows is None and len(runs) >= 2:
        *earlier, new = runs
        same = [
            run for run in earlier if machine(run["machine_info"]) == machine(new["machine_info"])
        ]
        return (same or earlier)[-1], new
    here = machine(pytest_benchmark_generate_machine_info())
    same = [run for run in runs if machine(run["machine_info"]) == here]
    if before is None and same:
        print("taking the figures of the working tree …", file=sys.stderr, flush=True)
        return same[-1], taken(ROOT, None, rows)
    commit = before or previous()
    print(f"measuring {commit} and the working tree in turns", file=sys.stderr, flush=True)
    return in_turns(commit, rows, rounds)


def change(old: Entry, new: Entry, key: str, grain: float) -> tuple[float, float]:
    """Return by how much a quantity got worse (negative: better), and the noise of both runs."""
    noise = max(grain, SMALLEST_CHANGE * abs(old[key]))
    for entry in (old, new):
        if key == "multiple":
            floor_noise = entry["floor_spread_us"] / entry["floor_us"]
            noise += 2 * (entry["multiple_spread"] + entry["multiple"] * floor_noise)
        else:
            noise += 2 * entry["spread"]
    worse = new[key] - old[key]
    return (-worse if new["more_is_better"] else worse), noise


def verdict(old: Entry, new: Entry, grain: float) -> str:
    """Return "worse", "better", or nothing if the change is within the noise; "?" without noise."""
    if min(old["rounds"], new["rounds"]) < 2:
        return "?"
    changes = [change(old, new, "median", grain)]
    if "multiple" in old and "multiple" in new:
        changes.append(change(old, new, "multiple", 0.0))
    if all(worse > noise for worse, noise in changes):
        return "worse"
    if all(-worse > noise for worse, noise in changes):
        return "better"
    return ""


def shown(entry: Entry) -> tuple[str, str]:
    """Return a figure's value and its multiple of the floor as text."""
    multiple = f"{number(entry['multiple'])} ×" if "multiple" in entry else ""
    return f"{number(entry['median'])} {entry['unit']}", multiple


def compare(old: Run, new: Run) -> tuple[list[str], list[str]]:
    """Return the lines of a table, and the names of what got worse."""
    before, after = figures_of(old), figures_of(new)
    names = [name for name in FIGURES if name in before or name in after]
    lines, worse = [], []
    titles = {name: f"{FIGURES[name].section}: {FIGURES[name].title}" for name in names}
    width = max(map(len, titles.values()))
    for name in names:
        title = titles[name].ljust(width)
        if name not in before or name not in after:
            lines.append(f"{title}  only in the {'later' if name in after else 'earlier'} run")
            continue
        first, second = before[name], after[name]
        word = "" if second["informative"] else verdict(first, second, FIGURES[name].grain)
        if word == "worse":
            worse.append(titles[name])
        cells = (*shown(first), *shown(second))
        lines.append(
            f"{title}  {cells[0]:>12} {cells[1]:>13}  →  {cells[2]:>12} {cells[3]:>13}  {word}".rstrip()
        )
    return lines, worse


def remarks(old: Run, new: Run) -> Iterator[str]:
    """Yield what a reader should know about the two runs."""
    machines = [machine(run["machine_info"]) for run in (old, new)]
    if machines[0] != machines[1]:
        yield f"The machines differ: {machines[0]} and {machines[1]}."
    for word, run in (("earlier", old), ("later", new)):
        if run.get("others", 0.0) > DISTURBED:
            yield f"In the {word} run other programs used {run['others']:.0%} of the cores."
    floors = [figures_of(run).get(FLOOR, {}).get("median") for run in (old, new)]
    if all(floors) and max(floors) > FLOOR_MOVED * min(floors):
        yield (
            f"The floor itself moved, from {floors[0]:.3f} to {floors[1]:.3f} µs: multiples of what is "
            "mostly computing moved with it."
        )


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where pytest-benchmark saves its runs")
    parser.add_argument("--before", help="a commit to measure in turns with the working tree")
    parser.add_argument("-k", dest="rows", help="which benchmarks to take, as for pytest")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often, if in turns")
    asked = parser.parse_args()
    try:
        old, new = two_runs(asked.folder, asked.before, asked.rows, asked.rounds)
    except CannotMeasureError as error:
        print(error)
        return 2
    for word, run in (("earlier", old), ("later", new)):
        commit = run["commit_info"]
        changed = " with changes" if commit.get("dirty") else ""
        print(f"{word:8}{run['datetime'][:19]}  commit {str(commit.get('id'))[:10]}{changed}")
    print()
    lines, worse = compare(old, new)
    print("\n".join(lines))
    print()
    for remark in remarks(old, new):
        print(remark)
    if worse:
        print(f"{len(worse)} got worse by more than the noise: {'; '.join(worse)}.")
        return 1
    print("Nothing got worse by more than the noise of both runs.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
