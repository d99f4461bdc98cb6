"""Compare the two latest saved runs: ``python benchmarks/compare.py .benchmarks``.

Times are compared as multiples of the floor that was measured in the same run, so two runs need not
come from the same machine, nor find its cores in the same place. A figure has got worse if it takes
more of these multiples than before, and also more time, by more than the noise of both runs: the width
of the middle half of their rounds, that of the floor included. Changes below 1 %, or below
the smallest step a figure can take, do not count.

Exit code: 0 nothing got worse, 1 something did, 2 there are no two runs to compare.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from figures import DISTURBED, FIGURES, FLOOR, number

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


def figures_of(run: Run) -> dict[str, Entry]:
    """Return all figures of a run by name."""
    found: dict[str, Entry] = {}
    for benchmark in run["benchmarks"]:
        found.update(benchmark["extra_info"].get("figures", {}))
    return found


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
    cpus = [run["machine_info"].get("cpu", {}) for run in (old, new)]
    machines = [(cpu.get("brand_raw"), cpu.get("count")) for cpu in cpus]
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
    folder = parser.parse_args().folder
    runs = saved_runs(folder) if folder.is_dir() else []
    if len(runs) < 2:
        count = "no saved run" if not runs else "only one saved run"
        print(f"{folder} holds {count}: comparing takes two; `make bench` saves one each time")
        return 2
    old, new = runs[-2:]
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
