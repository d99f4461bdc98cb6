"""``python -m tests.spec_table``, which is `make spec`: the table rule × tests × result.

Results come from the last runs of the tests, if they belong to the sources as they are now; what is
missing is run first. The exit status is 1 if a rule has no test, no test that passed, or one that failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import NamedTuple

from . import spec_results, spec_rules


class Row(NamedTuple):
    """A rule, the conformance tests that cite it, and how many ended how, by mode."""

    rule: spec_rules.Rule
    not_built: str
    tests: list[str]
    outcomes: dict[str, Counter]

    @property
    def verdict(self) -> str:
        """Say what the results say of the rule."""
        if self.not_built:
            return "not built"
        compiled, interpreted = (self.outcomes[mode] for mode in spec_results.MODES)
        if compiled["failed"] or interpreted["failed"]:
            return "FAILED"
        if not self.tests:
            return "NO TEST"
        if compiled["unknown"] or interpreted["unknown"]:
            return "not run"
        return "proved" if compiled["passed"] else "ONLY SKIPPED"


def table(results: dict[str, dict[str, str]]) -> list[Row]:
    """Return a row for each rule; `results` is mode → test → outcome."""
    citing: dict[str, list[str]] = {}
    for test in spec_rules.all_tests():
        if test.path.is_relative_to(spec_rules.CONFORMANCE):
            for rule in dict.fromkeys(test.rules):
                citing.setdefault(rule, []).append(test.node())
    return [
        Row(
            rule,
            group.not_built,
            tests := citing.get(rule.id, []),
            {m: Counter(results[m].get(test, "unknown") for test in tests) for m in results},
        )
        for group in spec_rules.read_groups().values()
        for rule in group.rules
    ]


def in_words(outcomes: Counter) -> str:
    """Return ``3 passed, 1 skipped``."""
    return ", ".join(f"{n} {what}" for what, n in sorted(outcomes.items())) or "–"


def known_results() -> dict[str, dict[str, str]]:
    """Return what is known of the sources as they are."""
    sources = spec_results.digest()
    return {mode: spec_results.read(mode, sources) for mode in spec_results.MODES}


def run_missing() -> dict[str, dict[str, str]]:
    """Run the tests without a result, mode by mode, and return all results."""
    wanted = [
        test.node()
        for test in spec_rules.all_tests()
        if test.path.is_relative_to(spec_rules.CONFORMANCE)
    ]
    for mode, known in known_results().items():
        missing = [test for test in wanted if test not in known]
        if not missing:
            continue
        # whole files: a list of all tests would be too long for a command line
        files = sorted({test.partition("::")[0] for test in missing})
        print(f"{len(missing)} tests have no result, {mode}: running them", flush=True)
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1" if mode == "interpreted" else "0"}
        command = [sys.executable, "-m", "pytest", "-q", *files]
        subprocess.run(command, cwd=spec_rules.ROOT, env=environment)
    return known_results()


def report(rows: list[Row]) -> str:
    """Return the table, then the rules that are not built with their reasons, then the sums."""
    lines = [f"{'rule':<16} {'tests':>5}  {'compiled':<24} {'interpreted':<24} result"]
    for row in rows:
        if not row.not_built:
            cells = [in_words(row.outcomes[mode]) for mode in spec_results.MODES]
            lines.append(
                f"{row.rule.id:<16} {len(row.tests):>5}  {cells[0]:<24} {cells[1]:<24} {row.verdict}"
            )
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.not_built:
            reasons.setdefault(row.not_built, []).append(row.rule.id)
    for reason, rules in reasons.items():
        lines += ["", f"not built: {', '.join(rules)}", f"    {reason}"]
    verdicts = Counter(row.verdict for row in rows)
    lines += [
        "",
        f"{len(rows)} rules: " + ", ".join(f"{n} {v}" for v, n in sorted(verdicts.items())),
    ]
    return "\n".join(lines)


def main() -> int:
    """Print what does not fit, or the table; return the exit status."""
    if complaints := spec_rules.complaints():
        print("\n".join(complaints))
        return 1
    rows = table(run_missing())
    print(report(rows))
    return int(any(row.verdict not in ("proved", "not built") for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
