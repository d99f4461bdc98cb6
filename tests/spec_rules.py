"""Rules and tests: reads the ids out of spec/ and compares them with what the tests cite."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "spec"
CONFORMANCE = ROOT / "tests" / "conformance"

RULE = re.compile(r"^\*\*((?:ORCH|SCHED|WM|FLOW|SPEED)-[A-Z]+-\d+)\*\*", re.MULTILINE)


def read_rules(folder: Path = SPEC) -> dict[str, Path]:
    """Return the file of every rule: a paragraph that begins with its bold id."""
    found = [
        (rule, path)
        for path in sorted(folder.glob("*.md"))
        if path.name != "README.md"
        for rule in RULE.findall(path.read_text())
    ]
    twice = [rule for rule, count in Counter(rule for rule, _ in found).items() if count > 1]
    if twice:
        raise ValueError(f"these ids stand before more than one rule: {', '.join(sorted(twice))}")
    return dict(found)


def cited(item) -> list[str]:
    """Return the ids that a test cites."""
    return [rule for mark in item.iter_markers("spec") for rule in mark.args]


def unknown_rules(items, rules) -> list[str]:
    """Return a line for each test that cites a rule which does not exist."""
    return [
        f"{item.nodeid} cites {rule}, which is no rule of spec/"
        for item in items
        for rule in cited(item)
        if rule not in rules
    ]


def unproved_rules(items, rules) -> list[str]:
    """Return a line for each rule that no conformance test cites."""
    proved = {
        rule for item in items if item.path.is_relative_to(CONFORMANCE) for rule in cited(item)
    }
    return [
        f"{rule} (spec/{path.name}) has no test"
        for rule, path in rules.items()
        if rule not in proved
    ]


def whole_conformance(config) -> bool:
    """Say whether this session was asked for every conformance test there is."""
    option = config.option
    if option.keyword or option.markexpr or option.deselect or option.ignore or option.ignore_glob:
        return False
    folders = [(config.invocation_params.dir / arg).resolve() for arg in config.args]
    return any(CONFORMANCE.is_relative_to(folder) for folder in folders)
