"""``python -m tests.mutation.sweep``, which is `make sweep`: a machine changes kernels, tests notice.

A random sample of small changes (`sweep_changes`), spread evenly over files and kinds, is made one at a
time. The tests that run the changed line are run until one fails (`sweep_forks`). Results are kept, and a
later call goes on where this one ends.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from .. import spec_rules
from .sweep_changes import Key, Mutant, mutants, neighbours
from .sweep_coverage import Coverage, sources, step
from .sweep_forks import become, judge
from .sweep_known import EQUIVALENT, UNDECIDED

ROOT = spec_rules.ROOT
KEPT = ROOT / ".sweep"
KERNELS = ROOT / "simpler_ref" / "jit"
TESTS = ("tests/unit", "tests/conformance", "tests/interleaving")

SPECIAL = 4
"""So many tests that run the fewest lines are run for every mutant."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make sweep ARGS=…")
    parser.add_argument("--sample", type=int, default=200, help="mutants, with those of before")
    parser.add_argument("--seed", type=int, default=1, help="of the order in which they come")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after these")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests per mutant")
    parser.add_argument("--part", default="1/1", help="1/2 and 2/2: two processes share the work")
    parser.add_argument("--again", action="store_true", help="judge survivors with more tests")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="where to take tests from")
    parser.add_argument("files", nargs="*", help="of simpler_ref/jit; by default all")
    return parser.parse_args(arguments)


# ---------------------------------------------------------------- the sample
def all_mutants(files: Sequence[str]) -> list[Mutant]:
    """Return every mutant of these files of kernels, of all if none is named."""
    layout = importlib.import_module("simpler_ref.jit.layout")
    numbers = {k: v for k, v in vars(layout).items() if k.isupper() and type(v) is int}
    names = files or sorted(path.name for path in KERNELS.glob("*.py"))
    fields = neighbours(numbers)
    return [m for name in names for m in mutants(name, (KERNELS / name).read_text(), fields)]


def spread(found: Iterable[Mutant], seed: int) -> list[Mutant]:
    """Put mutants into a random order in which files and kinds are mixed as evenly as in the whole."""
    strata: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in found:
        strata[mutant.key.file, mutant.kind].append(mutant)
    chance = random.Random(seed)
    placed = []
    for stratum in strata.values():
        chance.shuffle(stratum)
        start = chance.random()
        placed += [((i + start) / len(stratum), m.key, m) for i, m in enumerate(stratum)]
    return [mutant for *_, mutant in sorted(placed, key=lambda place: place[:2])]


def wilson(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share."""
    if of == 0:
        return 0.0, 1.0
    share, square = hits / of, z * z / of
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / of + square / (4 * of))
    return max(0.0, middle - half), min(1.0, middle + half)


# ---------------------------------------------------------------- results
class Result(NamedTuple):
    """What became of a mutant."""

    key: Key
    kind: str
    line: int
    rules: list[str]
    caught_by: str
    hung: bool
    seconds: float
    tests: int
    """How many were chosen for it."""


class Results:
    """Those of the package as it is, in a file that every judged mutant adds a line to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"results-{sources()}.jsonl"
        self.all: dict[Key, Result] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                key, *rest = json.loads(line)
                self.all[Key(*key)] = Result(Key(*key), *rest)

    def add(self, result: Result) -> None:
        self.all[result.key] = result
        with self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")


# ---------------------------------------------------------------- the session
class Sweep:
    """The part of a pytest session that collects the tests, and runs them in forks."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self.chosen = chosen
        self.results = Results(folder)
        self.folder = folder
        self.deadline = time.monotonic() + chosen.seconds
        self.uncovered: Counter[str] = Counter()
        self.sampled: set[Key] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work in the place of running the tests."""
        coverage = Coverage(self.folder)
        if missing := coverage.measure(session.items, self.deadline):
            print(f"{missing} of {len(session.items)} tests are not measured; call again to go on")
            return True
        self.tests = {}
        for path in {item.path for item in session.items}:
            self.tests |= coverage.known(path)
        self.items = {item.nodeid: item for item in session.items}
        self.by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        for name, test in self.tests.items():
            for file, lines in test.lines.items():
                for line in lines if test.passed and name in self.items else ():
                    self.by_line[file, line].add(name)
        self.judge_sample()
        return True

    def judge_sample(self) -> None:
        """Judge the sample, as far as that was not done before."""
        groups = spec_rules.read_groups()
        covered = []
        for mutant in spread(all_mutants(self.chosen.files), self.chosen.seed):
            if self.covering(mutant):
                covered.append(mutant)
            else:
                self.uncovered[mutant.key.file] += 1
        equivalent = {known.key for known in EQUIVALENT}
        part, parts = map(int, self.chosen.part.split("/"))
        for number, mutant in enumerate(covered[: self.chosen.sample]):
            self.sampled.add(mutant.key)
            mine = number % parts == part - 1 and mutant.key not in equivalent
            if mine and time.monotonic() < self.deadline:
                self.judge(mutant, sorted(spec_rules.mentioned(mutant.text, groups)))

    def covering(self, mutant: Mutant) -> set[str]:
        return set().union(*(self.by_line[mutant.key.file, line] for line in mutant.lines))

    def choose(self, mutant: Mutant, rules: Sequence[str]) -> list[str]:
        """Return the tests for a mutant: the likely and quick ones first, within the budget.

        Those that run the fewest lines are among them, however long they take.
        """
        covering = self.covering(mutant)
        special = sorted(covering, key=self.size)[:SPECIAL]
        chosen, seconds = [], 0.0
        for name in self.by_cost(covering, mutant.key, rules):
            seconds += self.tests[name].seconds
            if name in special or seconds <= self.chosen.budget:
                chosen.append(name)
        return chosen

    def size(self, name: str) -> tuple[int, str]:
        """Return how many lines of kernels a test runs."""
        return sum(map(len, self.tests[name].lines.values())), name

    def by_cost(self, names: Iterable[str], key: Key, rules: Sequence[str]) -> list[str]:
        """Sort tests by their time, and by what makes it likely that they notice a mutant."""
        caught = {r.caught_by for r in self.results.all.values() if r.key[:2] == key[:2]}
        alike: Counter[str] = Counter()
        cost = {}
        for name in sorted(names, key=lambda name: self.tests[name].seconds):
            function = name.partition("[")[0]
            alike[function] += 1
            cited = any(
                set(rules) & set(mark.args) for mark in self.items[name].iter_markers("spec")
            )
            unlikely = (0.3 if cited else 1) * (0.1 if name in caught else 1) * alike[function]
            cost[name] = (self.tests[name].seconds + 0.01) * unlikely
        return sorted(cost, key=lambda name: cost[name])

    def judge(self, mutant: Mutant, rules: list[str]) -> None:
        """Run the tests of a mutant, and keep what became of it, unless that was done before."""
        before = self.results.all.get(mutant.key)
        if before and (before.caught_by or not self.chosen.again):
            return
        names = self.choose(mutant, rules)
        if before and len(names) <= before.tests:
            return
        module = importlib.import_module(f"simpler_ref.jit.{mutant.key.file[:-3]}")
        steps = [step(self.items[name], 4 + 6 * self.tests[name].seconds) for name in names]
        verdict = judge(steps, lambda: become(mutant, module))
        hung, seconds = verdict.hung, round(verdict.seconds, 2)
        result = Result(
            mutant.key,
            mutant.kind,
            mutant.lines[0],
            rules,
            verdict.caught_by,
            hung,
            seconds,
            len(names),
        )
        self.results.add(result)
        how = (
            ("hangs " if hung else "fails ") + verdict.caught_by
            if verdict.caught_by
            else "SURVIVES"
        )
        print(f"{described(result)}\n    {how}, {seconds} s, {len(names)} tests", flush=True)
        for name in verdict.unreliable:
            print(f"    fails without it as well: {name}", flush=True)


# ---------------------------------------------------------------- telling
def described(result: Result) -> str:
    key = result.key
    nth = f" (no. {key.nth + 1})" if key.nth else ""
    return f"{key.file}:{result.line} {key.function}: {key.before}  →  {key.after}{nth}"


def share(results: Sequence[Result]) -> str:
    """Return how many of some mutants were noticed, with the interval."""
    caught = sum(bool(result.caught_by) for result in results)
    low, high = wilson(caught, len(results))
    part = 100 * caught / len(results) if results else 0.0
    return f"{caught:4} of {len(results):4}  {part:5.1f} %  ({100 * low:.1f} – {100 * high:.1f})"


def report(sweep: Sweep, found: Sequence[Mutant]) -> list[str]:
    """Return the lines that a run ends with."""
    equivalent = {known.key: known for known in EQUIVALENT}
    results = [r for key, r in sweep.results.all.items() if key in sweep.sampled]
    judged = [result for result in results if result.key not in equivalent]
    lines = [""]
    for file in sorted({result.key.file for result in judged}):
        lines.append(f"{file:16} {share([r for r in judged if r.key.file == file])}")
    for kind in sorted({result.kind for result in judged}):
        lines.append(f"{kind:16} {share([r for r in judged if r.kind == kind])}")
    lines += [f"{'noticed':16} {share(judged)}"]
    lines.append(f"{len(sweep.sampled & equivalent.keys())} of the sample are equivalent")
    lines.append(
        f"{sum(sweep.uncovered.values())} mutants stand on lines that no test runs interpreted"
    )
    undecided = {known.key for known in UNDECIDED}
    by_rule: dict[str, list[Result]] = defaultdict(list)
    for result in judged:
        if not result.caught_by:
            by_rule[", ".join(result.rules) or "no rule"].append(result)
    for rules, survivors in sorted(by_rule.items()):
        lines.append(rules)
        for result in survivors:
            mark = " (known)" if result.key in undecided else ""
            lines.append(f"    {described(result)}{mark}")
    there = {mutant.key for mutant in found}
    for known in (*EQUIVALENT, *UNDECIDED):
        if known.key not in there:
            lines.append(f"stale, the source has no such text any more: {known.key}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Judge what time and sample allow, and print the report."""
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        print("the kernels have to run as Python: set NUMBA_DISABLE_JIT=1", file=sys.stderr)
        return 2
    chosen = options(arguments)
    KEPT.mkdir(exist_ok=True)
    sweep = Sweep(chosen, KEPT)
    status = pytest.main(["-qq", "-s", *chosen.tests], [sweep])
    print("\n".join(report(sweep, all_mutants([]))))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
