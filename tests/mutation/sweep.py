"""``python -m tests.mutation.sweep``, which is `make sweep`: a machine changes the source, tests notice.

A random sample of small changes (`sweep_changes`), spread evenly over files and kinds, is made one at a
time. The tests that run the changed line are run until one fails (`sweep_forks`). Results are kept, and a
later call goes on where this one ends.
"""

from __future__ import annotations

import argparse
import gc
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

from simpler_ref.jit.kernel import INTERPRETED, _Entry

from .. import spec_rules
from .sweep_changes import Key, Mutant, fields_of, mutants
from .sweep_code import PACKAGE, Unfit, module_of, of_mutant, put_in
from .sweep_coverage import Coverage, Measured, sources, step
from .sweep_forks import Step, adopt_orphans, judge
from .sweep_known import EQUIVALENT

KEPT = spec_rules.ROOT / ".sweep"

KERNELS = "jit"
"""The part of the package that has to be interpreted to be changed; with others kernels are compiled."""
PYTHON = ("calls", "workers", "orch")
TESTS = {
    True: [
        "tests/unit",
        "tests/conformance",
        "tests/extras",
        "tests/interleaving",
        "tests/vectors",
    ],
    False: ["tests/unit", "tests/conformance", "tests/extras", "tests/calls", "tests/property"],
}
MARKS = {True: "kernels and not long", False: "not long"}
"""Which of the tests make test runs: with interpreted kernels, and with compiled ones."""

SPARE_S = 4 if INTERPRETED else 10  # alone in a fork a test may have to compile more than measured


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; what is not known here is for pytest."""
    parser = argparse.ArgumentParser(prog="make sweep ARGS=…", allow_abbrev=False)
    add = parser.add_argument
    add("--package", nargs="+", default=[KERNELS], help="jit, or some of calls, workers, orch")
    add("--sample", type=int, default=200, help="mutants, with those of before")
    add("--seed", type=int, default=1, help="of the order in which they come")
    add("--like", type=Path, help="the mutants of another run's file of results instead")
    add("--seconds", type=float, default=math.inf, help="begin nothing after these")
    add("--budget", type=float, default=20.0, help="seconds of tests per mutant")
    add("--part", default="1/1", help="1/2 and 2/2: two processes share the work")
    add("--again", action="store_true", help="judge survivors with more tests")
    add("--tests", nargs="+", default=TESTS[INTERPRETED], help="where to take tests from")
    add("-m", default=MARKS[INTERPRETED], help="which tests; by default those of make test")
    add("files", nargs="*", help="e.g. jit/ring.py; by default all of the package")
    chosen, chosen.more = parser.parse_known_args(arguments)
    chosen.files = chosen.files or files_of(chosen.package)
    chosen.part, chosen.parts = map(int, chosen.part.split("/"))
    return chosen


# ---------------------------------------------------------------- the sample
def files_of(packages: Iterable[str]) -> list[str]:
    """Return the files of some parts of the package."""
    paths = [path for name in packages for path in (PACKAGE / name).glob("*.py")]
    return sorted(path.relative_to(PACKAGE).as_posix() for path in paths)


def all_mutants(files: Iterable[str]) -> list[Mutant]:
    """Return every mutant of these files."""
    layout = importlib.import_module("simpler_ref.jit.layout")
    numbers = {k: v for k, v in vars(layout).items() if k.isupper() and type(v) is int}
    fields = fields_of(numbers)
    return [m for name in files for m in mutants(name, (PACKAGE / name).read_text(), fields)]


def spread(found: Iterable[Mutant], seed: int) -> list[Mutant]:
    """Put mutants into a random order in which files and kinds are mixed as evenly as in the whole."""
    strata: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in found:
        strata[mutant.key.file, mutant.kind].append(mutant)
    chance, placed = random.Random(seed), []
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


def read_results(path: Path) -> dict[Key, Result]:
    """Read a file of results, if there is one; what was judged twice has the later one."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {Key(*key): Result(Key(*key), *rest) for key, *rest in lines}


# ---------------------------------------------------------------- the session
class Sweep:
    """The part of a pytest session that collects the tests, and runs them in forks."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self.chosen = chosen
        self.folder = folder
        self.path = folder / f"results-{sources()}.jsonl"
        self.results = read_results(self.path)
        self.deadline = time.monotonic() + chosen.seconds
        self.groups = spec_rules.read_groups()
        self.sampled: set[Key] = set()
        self.uncovered = 0
        self.tests: dict[str, Measured] = {}
        self.by_line: dict[tuple[str, int], set[str]] = defaultdict(set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work in the place of running the tests."""
        adopt_orphans()
        for file in self.chosen.files:
            module_of(file)
        load_kernels()
        self.items = {item.nodeid: item for item in session.items}
        found = spread(all_mutants(self.chosen.files), self.chosen.seed)
        if self.chosen.like:
            self.judge_like(found, read_results(self.chosen.like))
        elif self.measure():
            covered = [mutant for mutant in found if self.by_line[mutant.key.file, mutant.line]]
            self.uncovered = len(found) - len(covered)
            self.judge_all(self.mine(covered[: self.chosen.sample]))
        return True

    def judge_like(self, found: Sequence[Mutant], before: dict[Key, Result]) -> None:
        """Judge mutants of another run, first by the tests that noticed them there."""
        mine = self.mine([mutant for mutant in found if mutant.key in before])
        for mutant in mine:
            test, seconds = before[mutant.key].caught_by, before[mutant.key].seconds
            if test in self.items and not self.is_done(mutant):
                self.judge(mutant, [step(self.items[test], 5 + seconds)], keep=False)
        left = [mutant for mutant in mine if not self.is_done(mutant)]
        if left and self.measure():
            self.judge_all(left)

    def mine(self, sample: Sequence[Mutant]) -> list[Mutant]:
        """Return the part of a sample that this process judges."""
        self.sampled = {mutant.key for mutant in sample}
        part = sample[self.chosen.part - 1 :: self.chosen.parts]
        return [mutant for mutant in part if mutant.key not in EQUIVALENT]

    def is_done(self, mutant: Mutant) -> bool:
        result = self.results.get(mutant.key)
        return result is not None and (bool(result.caught_by) or not self.chosen.again)

    def measure(self) -> bool:
        """Find out which test runs what; say whether all is known."""
        kernels = self.chosen.files[0].startswith(KERNELS)
        files = files_of([KERNELS] if kernels else PYTHON)
        coverage = Coverage(self.folder / ("interpreted" if kernels else "compiled"), files)
        items, chosen = list(self.items.values()), self.chosen
        if missing := coverage.measure(items, self.deadline, chosen.part, chosen.parts):
            print(f"{missing} of {len(items)} tests are not measured; call again to go on")
            return False
        for path in {item.path for item in items}:
            self.tests |= coverage.known(path)
        for name in self.items:
            for file, lines in self.tests[name].lines.items():
                for line in lines if self.tests[name].passed else ():
                    self.by_line[file, line].add(name)
        return True

    def choose(self, mutant: Mutant) -> list[Step]:
        """Return the tests for a mutant: the likely and quick ones first, within the budget."""
        chosen, seconds = [], 0.0
        rules = spec_rules.mentioned(mutant.text, self.groups)
        for name in self.by_cost(self.by_line[mutant.key.file, mutant.line], mutant.key, rules):
            seconds += self.tests[name].seconds
            if seconds <= self.chosen.budget or not chosen:
                chosen.append(step(self.items[name], SPARE_S + 6 * self.tests[name].seconds))
        return chosen

    def by_cost(self, names: Iterable[str], key: Key, rules: set[str]) -> list[str]:
        """Sort tests by their time, and by what makes it likely that they notice a mutant."""
        caught = {r.caught_by for r in self.results.values() if r.key[:2] == key[:2]}
        alike: Counter[str] = Counter()
        cost = {}
        for name in sorted(names, key=lambda name: self.tests[name].seconds):
            function = name.partition("[")[0]
            alike[function] += 1
            cited = any(rules & set(mark.args) for mark in self.items[name].iter_markers("spec"))
            unlikely = (0.3 if cited else 1) * (0.1 if name in caught else 1) * alike[function]
            cost[name] = (self.tests[name].seconds + 0.01) * unlikely
        return sorted(cost, key=lambda name: cost[name])

    def judge_all(self, mutants: Iterable[Mutant]) -> None:
        """Judge what was not judged before, or with fewer tests if survivors are to be judged again."""
        for mutant in mutants:
            steps, before = self.choose(mutant), self.results.get(mutant.key)
            if not self.is_done(mutant) and (before is None or len(steps) > before.tests):
                self.judge(mutant, steps)

    def judge(self, mutant: Mutant, steps: Sequence[Step], keep: bool = True) -> None:
        """Run tests of a mutant; keep what became of it. Without `keep` a survivor is forgotten."""
        if time.monotonic() > self.deadline:
            return
        try:
            changes = of_mutant(mutant)
        except Unfit as unfit:
            print(unfit, flush=True)
            return
        verdict = judge(steps, lambda: put_in(changes))
        rules = sorted(spec_rules.mentioned(mutant.text, self.groups))
        what = (mutant.key, mutant.kind, mutant.line, rules)
        result = Result(*what, *verdict[:2], round(verdict.seconds, 2), len(steps))
        print(f"{described(result)}\n    {outcome(result)}", flush=True)
        for name in verdict.unreliable:
            print(f"    fails without it as well: {name}", flush=True)
        if keep or result.caught_by:
            self.add(result)

    def add(self, result: Result) -> None:
        """Keep a result, in the file as well."""
        self.results[result.key] = result
        with self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")


def load_kernels() -> None:
    """Load compiled kernels once, so that forks need not."""
    for one in [one for one in gc.get_objects() if isinstance(one, _Entry)]:
        assert one.compiled


# ---------------------------------------------------------------- telling
def described(result: Result) -> str:
    key = result.key
    nth = f" (no. {key.nth + 1})" if key.nth else ""
    return f"{key.file}:{result.line} {key.function}: {key.before}  →  {key.after}{nth}"


def outcome(result: Result) -> str:
    how = "hangs " if result.hung else "fails " if result.caught_by else "SURVIVES"
    return f"{how}{result.caught_by}, {result.seconds} s, {result.tests} tests"


def share(results: Sequence[Result]) -> str:
    """Return how many of some mutants were noticed, with the interval."""
    caught = sum(bool(result.caught_by) for result in results)
    low, high = wilson(caught, len(results))
    return f"{caught:4} of {len(results):4}  {caught / len(results):5.1%}  ({low:.1%} – {high:.1%})"


def report(sweep: Sweep) -> list[str]:
    """Return the lines that a run ends with: survivors are listed by the rules of their functions."""
    judged = sweep.sampled - EQUIVALENT.keys()
    groups: dict[tuple[int, str], list[Result]] = defaultdict(list)
    survivors = []
    for result in [result for key, result in sweep.results.items() if key in judged]:
        package = result.key.file.partition("/")[0]
        for group in enumerate((result.key.file, result.kind, package, "noticed")):
            groups[group].append(result)
        if not result.caught_by:
            survivors.append(f"{', '.join(result.rules) or 'no rule'}\n    {described(result)}")
    return [
        *(f"{name:24} {share(some)}" for (_, name), some in sorted(groups.items())),
        f"{len(sweep.sampled) - len(judged)} of the sample are equivalent",
        f"{sweep.uncovered} mutants stand on lines that none of the tests runs",
        *sorted(survivors),
    ]


def stale() -> list[str]:
    """Name what is known of texts that are not in the source any more."""
    there = {mutant.key for mutant in all_mutants({key.file for key in EQUIVALENT})}
    return [f"stale, no such text in the source: {key}" for key in EQUIVALENT if key not in there]


def main(arguments: Sequence[str]) -> int:
    """Judge what time and sample allow, and print the report."""
    chosen = options(arguments)
    kernels = {file.startswith(f"{KERNELS}/") for file in chosen.files}
    if len(kernels) != 1:
        print("kernels have to be interpreted, the rest compiled: two calls", file=sys.stderr)
        return 2
    if kernels != {INTERPRETED}:
        environment = os.environ | {"NUMBA_DISABLE_JIT": str(int(not INTERPRETED))}
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *arguments], environment)
    KEPT.mkdir(exist_ok=True)
    sweep = Sweep(chosen, KEPT)
    status = pytest.main(["-qq", "-s", "-m", chosen.m, *chosen.more, *chosen.tests], [sweep])
    print("\n".join(report(sweep) + stale()))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
