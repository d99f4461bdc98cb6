"""The rules of spec/, the tests that cite them, the code that names them: read, and compared.

Everything is read from the text of the files; nothing is imported and no test is collected. What does
not fit together is returned as lines that say where and what, of which a test wants none.
`python -m tests.spec_rules ORCH-RING-4` prints a rule, and where its code and its tests are.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "spec"

RULE_ID = r"[A-Z]+-[A-Z]+-\d+"
SCREEN = 60
"""Lines of a group, from its heading on."""
SENTENCES, WORDS = 2, 60
"""Of a rule, without its origin."""

_HEADING = re.compile(r"## ([A-Z]+-[A-Z]+) — (.+)")
_RULE = re.compile(rf"\*\*({RULE_ID})\*\* (.*?)(?:\s\*\(([^*]+)\)\*)?", re.DOTALL)
_LISTED = re.compile(r"\| \[([A-Z]+-[A-Z]+)\]\(#")
_MENTION = re.compile(r"(?<![\w-])([A-Z]+-[A-Z]+)(?:-(\d+)((?:,\s+-\d+|\s+to\s+-\d+)*))?(?![\w-])")
_RULE_LINES = re.compile(r"\bRule +([A-Z]+-[A-Z]+.*(?:\n {9}\S.*)*)")
_C_FUNCTION = re.compile(r"[a-z].*?(\w+)\(")


class Rule(NamedTuple):
    """One rule: a paragraph that begins with its bold id and ends with its origin."""

    id: str
    text: str
    origin: str
    line: int


class Group(NamedTuple):
    """The rules under one heading."""

    name: str
    title: str
    path: Path
    line: int
    lines: int
    rules: list[Rule]

    def test_file(self, root: Path) -> Path:
        """Return the file of tests that mirrors this group, if there is one."""
        folder = self.path.stem.replace("-", "_")
        above = "extras" if (root / "tests/extras" / folder).is_dir() else "conformance"
        return root / "tests" / above / folder / f"test_{self.name.split('-')[1].lower()}.py"


class Citation(NamedTuple):
    """A test, or a case of spec/vectors, and the ids that it cites."""

    path: Path
    line: int
    name: str
    rules: tuple[str, ...]

    def node(self, root: Path = ROOT) -> str:
        """Return pytest's name of the test, without parameters."""
        return f"{self.path.relative_to(root).as_posix()}::{self.name}"


class Place(NamedTuple):
    """A function, class or file whose text names rules: each by its whole id, so that grep finds it."""

    path: Path
    line: int
    name: str
    names: frozenset[str]
    short: tuple[str, ...]
    """What its `Rule` lines have instead of whole ids."""


# ---------------------------------------------------------------- reading
def rule_files(root: Path = ROOT) -> list[Path]:
    return [path for path in sorted((root / "spec").glob("*.md")) if path.name != "README.md"]


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph and the number of its first line."""
    line = 1
    for part in re.split(r"(\n{2,})", text):
        if part.strip():
            yield line + part[: len(part) - len(part.lstrip())].count("\n"), part.strip()
        line += part.count("\n")


def read_groups(root: Path = ROOT) -> dict[str, Group]:
    """Return every group of rules by its name, in the order of the files."""
    groups: dict[str, Group] = {}
    for path in rule_files(root):
        group, text = None, path.read_text()
        for line, paragraph in _paragraphs(text):
            if paragraph.startswith("## "):
                heading, group = _HEADING.fullmatch(paragraph.splitlines()[0]), None
                if heading:
                    end = text.find("\n## ", sum(map(len, text.splitlines(True)[:line])) - 1)
                    lines = text[: end if end >= 0 else None].count("\n") - line + 1
                    group = Group(*heading.groups(), path, line, lines, [])
                    if group.name in groups:
                        raise ValueError(f"{path.name}:{line}: {group.name} is a group already")
                    groups[group.name] = group
            elif (rule := _RULE.fullmatch(paragraph)) and group:
                text_of_rule, origin = (
                    " ".join((part or "").split()) for part in rule.groups()[1:]
                )
                group.rules.append(Rule(rule[1], text_of_rule, origin, line))
            elif rule:
                raise ValueError(f"{path.name}:{line}: {rule[1]} stands under no group")
    return groups


def read_rules(root: Path = ROOT) -> dict[str, Rule]:
    rules = [rule for group in read_groups(root).values() for rule in group.rules]
    twice = [rule for rule, count in Counter(rule.id for rule in rules).items() if count > 1]
    if twice:
        raise ValueError(f"these ids stand before more than one rule: {', '.join(sorted(twice))}")
    return {rule.id: rule for rule in rules}


def tables(name: str, root: Path = ROOT) -> list[list[list[str]]]:
    """Return the tables of a group: for each, its rows, for each the cells without backticks."""
    group = read_groups(root)[name]
    lines = group.path.read_text().splitlines()[group.line - 1 : group.line - 1 + group.lines]
    found: list[list[list[str]]] = []
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            found[-1].append([cell.strip(" `") for cell in line.strip("|").split("|")])
    return [rows[2:] for rows in found]  # without the heading and the line below it


def read_tests(path: Path) -> list[Citation]:
    """Return the tests of a file with what each, or else the file, cites by ``pytest.mark.spec``."""
    body = ast.parse(path.read_text()).body
    assigned = [one for one in body if isinstance(one, ast.Assign)]
    marks = [one.value for one in assigned if ast.unparse(one.targets[0]) == "pytestmark"]
    return [
        Citation(path, node.lineno, node.name, tuple(_cited(node.decorator_list) or _cited(marks)))
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def _cited(marks: list[ast.expr]) -> list[str]:
    found: list[str] = []
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.spec":
            found += (ast.literal_eval(rule) for rule in mark.args)
    return found


def read_vectors(path: Path) -> Iterator[Citation]:
    """Yield the cases of a file of spec/vectors; tests/vectors has the package agree with each."""
    text = path.read_text()
    for case in json.loads(text)["cases"]:
        start = text.index(f'"name": {json.dumps(case["name"], ensure_ascii=False)}')
        yield Citation(path, text.count("\n", 0, start) + 1, case["name"], tuple(case["rules"]))


def all_tests(root: Path = ROOT) -> list[Citation]:
    """Return every test there is, and every case of spec/vectors."""
    files = sorted((root / "tests").rglob("test_*.py"))
    tests = [test for path in files for test in read_tests(path)]
    vectors = sorted((root / "spec/vectors").glob("*.json"))
    return tests + [case for path in vectors for case in read_vectors(path)]


def mentioned(text: str, groups: Iterable[str]) -> set[str]:
    """Return the ids in a text, and the groups that stand there without a number.

    ``ORCH-RING-4, -6`` and ``ORCH-RING-4 to -6`` are two and three ids.
    """
    found = set()
    for name, number, more in _MENTION.findall(text):
        if not number:
            found |= {name} & set(groups)
            continue
        found.add(f"{name}-{number}")
        last = int(number)
        for to, following in re.findall(r"(to)?\s+-(\d+)", more):
            found |= {
                f"{name}-{n}" for n in range(last + 1 if to else int(following), int(following) + 1)
            }
            last = int(following)
    return found


def read_code(root: Path = ROOT) -> list[Place]:
    """Return the places of the package whose docstrings, or comments in C, name rules."""
    groups, folder = read_groups(root), root / "simpler_ref"
    places = []
    for path in sorted(folder.rglob("*.py")):
        for name, node in _documented(ast.parse(path.read_text())):
            places.append(
                Place(
                    path,
                    getattr(node, "lineno", 1),
                    name or path.relative_to(folder).as_posix(),
                    *_cited_in(ast.get_docstring(node) or "", groups),
                )
            )
    for path in sorted([*folder.rglob("*.c"), *folder.rglob("*.h")]):
        lines = path.read_text().splitlines()
        for line, text in enumerate(lines, 1):
            function = next(filter(None, map(_C_FUNCTION.match, lines[line : line + 2])), None)
            name = function[1] if function else path.relative_to(folder).as_posix()
            places.append(Place(path, line, name, *_cited_in(text, groups)))
    return [place for place in places if place.names or place.short]


def _cited_in(text: str, groups: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the whole ids in a text, and what else of rules its `Rule` lines have."""
    lines = "\n".join(_RULE_LINES.findall(text))
    short = [name for name, number, _ in _MENTION.findall(lines) if not number and name in groups]
    return frozenset(re.findall(rf"(?<![\w-]){RULE_ID}(?![\w-])", text)), (
        *short,
        *re.findall(r"(?<![\w-])(?:to )?-\d+", lines),
    )


def _documented(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield a module and all classes and functions in it, with their names."""
    yield name, node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield from _documented(child, f"{name}.{child.name}".lstrip("."))


def places_of(rule: str, root: Path = ROOT) -> list[str]:
    """Return lines with the text of a rule, and where its code and its tests are."""
    group = read_groups(root).get(rule.rpartition("-")[0])
    found = next((one for one in group.rules if one.id == rule), None) if group else None
    if group is None or found is None:
        return [f"{rule} is no rule"]
    places = [
        *(one for one in read_code(root) if rule in one.names),
        *(one for one in all_tests(root) if rule in one.rules),
    ]
    return [
        f"{_where(group.path, found.line, root)} {found.text}",
        *(f"{_where(one.path, one.line, root)} {one.name}" for one in places),
    ]


# ---------------------------------------------------------------- comparing
def _where(path: Path, line: int, root: Path) -> str:
    return f"{path.relative_to(root).as_posix()}:{line}"


def unknown_rules(tests: Iterable[Citation], root: Path = ROOT) -> list[str]:
    """Return a line for each test that cites a rule which does not exist."""
    rules = read_rules(root)
    return [
        f"{test.node(root)} cites {rule}, which is no rule of spec/"
        for test in tests
        for rule in test.rules
        if rule not in rules
    ]


def uneven_rules(root: Path = ROOT) -> list[str]:
    """Return a line for each rule or group whose form is not that of spec/README.md."""
    found = []
    for group in read_groups(root).values():
        here = _where(group.path, group.line, root)
        if group.lines > SCREEN:
            found.append(f"{here}: {group.name} has {group.lines} lines, more than {SCREEN}")
        if not group.rules:
            found.append(f"{here}: {group.name} has no rules")
        for rule in group.rules:
            here = f"{_where(group.path, rule.line, root)}: {rule.id}"
            if rule.id.rpartition("-")[0] != group.name:
                found.append(f"{here} stands under {group.name}")
            if not rule.origin:
                found.append(f"{here} does not say where it comes from")
            plain = re.sub(r"`[^`]*`|\"[^\"]*\"|\([^)]*\)", "x", rule.text)
            sentences = len(re.findall(r"[.!?](?=\s|$)", plain))
            if sentences > SENTENCES or len(rule.text.split()) > WORDS:
                words = f"{sentences} sentences, {len(rule.text.split())} words"
                found.append(f"{here} has {words}: say it in {SENTENCES} and {WORDS}")
    for path in rule_files(root):
        listed = _LISTED.findall(path.read_text())
        there = [group.name for group in read_groups(root).values() if group.path == path]
        if listed != there:
            wrong = ", ".join(sorted(set(listed) ^ set(there))) or "another order"
            found.append(
                f"{_where(path, 1, root)}: the table at the top has not the groups: {wrong}"
            )
        if len({group.split("-")[0] for group in there}) != 1:
            found.append(f"{_where(path, 1, root)}: the groups of a file begin with one word")
    readme = (root / "spec/README.md").read_text()
    found += [
        f"spec/README.md does not list {path.name}"
        for path in rule_files(root)
        if f"| [{path.name}]({path.name}) |" not in readme
    ]
    return found


def has_rules(root: Path, folder: Path) -> bool:
    """Say whether there is a file of rules for a folder of tests."""
    return any(path.stem.replace("-", "_") == folder.name for path in rule_files(root))


def proves_rules(test: Citation, root: Path) -> bool:
    """Say whether a test stands where all tests cite rules."""
    above = test.path.relative_to(root).parts[1]
    return above == "conformance" or (above == "extras" and has_rules(root, test.path.parent))


def unmirrored(root: Path = ROOT) -> list[str]:
    """Return a line for each file or folder of such tests that spec/ has not."""
    mirrored = {group.test_file(root) for group in read_groups(root).values()}
    files = {test.path for test in all_tests(root) if proves_rules(test, root)}
    found = [
        f"{path.relative_to(root).as_posix()} is the file of no group" for path in files - mirrored
    ]
    folders = {path for path in (root / "tests/conformance").glob("*/") if any(path.glob("*.py"))}
    for path in folders - {path.parent for path in mirrored}:
        found.append(f"{path.relative_to(root).as_posix()} is the folder of no file of rules")
    return sorted(found)


def uncovered(root: Path = ROOT) -> list[str]:
    """Return a line for each rule without a test or vector, and each test that should cite a rule."""
    tests = all_tests(root)
    cited = {name for test in tests for name in test.rules}
    found = [
        f"{test.node(root)} cites no rule"
        for test in tests
        if not test.rules and proves_rules(test, root)
    ]
    return found + [
        f"{rule.id} ({_where(group.path, rule.line, root)}) has no test"
        for group in read_groups(root).values()
        for rule in group.rules
        if rule.id not in cited
    ]


def untraced(root: Path = ROOT) -> list[str]:
    """Return a line for each rule that no code names by its whole id, and each name that is no rule."""
    groups, rules, places = read_groups(root), read_rules(root), read_code(root)
    named = {name for place in places for name in place.names}
    found = [
        f"{_where(place.path, place.line, root)} names {name}, which is no rule of spec/"
        for place in places
        for name in sorted(place.names)
        if name not in rules
    ]
    found += [
        f"{_where(place.path, place.line, root)} has {', '.join(place.short)} instead of whole ids"
        for place in places
        if place.short
    ]
    found += [
        f"no docstring of simpler_ref/ names {rule.id}"
        for group in groups.values()
        for rule in group.rules
        if rule.id not in named
    ]
    return found


def unknown_mentions(root: Path = ROOT) -> list[str]:
    """Return a line for each id in a file of spec/ that is no rule's."""
    groups, rules = read_groups(root), read_rules(root)
    words = {name.split("-")[0] for name in groups}
    return [
        f"{path.relative_to(root).as_posix()} mentions {name}, which is no rule of spec/"
        for path in sorted((root / "spec").glob("*.md"))
        for name in sorted(mentioned(path.read_text(), groups))
        if name not in rules and name not in groups and name.split("-")[0] in words
    ]


def complaints(root: Path = ROOT) -> list[str]:
    """Return everything that is wrong with rules, tests and code."""
    return [
        *unknown_rules(all_tests(root), root),
        *uneven_rules(root),
        *unmirrored(root),
        *uncovered(root),
        *untraced(root),
        *unknown_mentions(root),
    ]


if __name__ == "__main__":
    for rule in sys.argv[1:]:
        print(*places_of(rule), sep="\n")
