"""The page on limits has what rules decide and programs can notice."""

import re

from tests import spec_rules
from tests.spec_rules import ROOT

PAGE = (ROOT / "docs/limits.md").read_text()
RULE = re.compile(r"\*\*([A-Z]+-[A-Z]+-\d+)\*\*")

UNNOTICED = {
    "ORCH-INV-3": "where in memory the engine is",
    "SCHED-CONSUME-2": "who erases keys",
    "SCHED-WAKE-7": "how an end is seen in time",
    "SCHED-MAIL-1": "the documents disagree, and the later one rules",
    "WM-MAIL-2": "what is written into a mailbox anew",
}
"""What a program sees nothing of, by the rule above the decision; rules on speed are all our own."""


def decided():
    """Yield each rule with a decision under it that has no row in the table of decisions."""
    for path in spec_rules.rule_files(ROOT):
        rule = None
        for line in path.read_text().splitlines():
            if found := RULE.match(line):
                rule = found[1]
            elif line.startswith("> Decision:"):
                yield rule


def test_the_page_names_rules_that_exist_and_every_decision_that_can_be_noticed():
    shown = spec_rules.mentioned(PAGE, spec_rules.read_groups(ROOT))
    missing = {
        rule
        for rule in decided()
        if not {rule, rule.rpartition("-")[0]} & shown and not rule.startswith("SPEED-")
    }
    assert missing == set(UNNOTICED)
    known = {*spec_rules.read_rules(ROOT), *spec_rules.read_groups(ROOT)}
    assert spec_rules.mentioned(PAGE, spec_rules.read_groups(ROOT)) <= known
