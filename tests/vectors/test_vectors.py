"""spec/vectors: the package does what the files say, and the files say what the reference model does."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from .. import spec_rules
from ..support import DEADLINE_S, sample
from . import author, package_bytes, package_remote, package_traces, reader

PACKAGE = {**vars(package_bytes), **vars(package_remote), **vars(package_traces)}
CASES = [(name, case) for name in reader.FILES for case in reader.read(name)["cases"]]


def check(case):
    """Ask the package what a case expects of it."""
    PACKAGE[f"check_{case['kind']}"](case)


NAMED = [pytest.param(case, id=f"{name}: {case['name']}") for name, case in CASES]


@pytest.mark.kernels
@pytest.mark.parametrize("case", NAMED)
def test_the_package_agrees_with_every_case(case):
    check(case)


# ---------------------------------------------------------------- the files
def test_every_case_illustrates_rules_that_exist_and_are_built():
    groups = spec_rules.read_groups().values()
    built = {rule.id for group in groups if not group.not_built for rule in group.rules}
    wrong = {case["name"]: set(case["rules"]) - built for _, case in CASES}
    assert {name: rules for name, rules in wrong.items() if rules} == {}
    assert all(case["rules"] for _, case in CASES)


def test_every_file_is_read_and_has_cases_of_every_kind():
    assert {path.stem for path in reader.FOLDER.glob("*.json")} == set(reader.FILES)
    for name, kinds in reader.FILES.items():
        assert {case["kind"] for file, case in CASES if file == name} == set(kinds)


@pytest.mark.parametrize("name", reader.FILES)
def test_the_files_are_what_the_author_writes(name):
    """After a change of steps or of an author: python -m tests.vectors."""
    assert (reader.FOLDER / f"{name}.json").read_text() == author.text(name)


def test_bytes_are_spelled_so_that_they_can_be_read_again():
    for raw in (b"", b"\0", b"\xff" * 7, bytes(40), bytes(range(200)), b"\0" * 9):
        spelled = reader.spell(raw)
        reader.require(spelled, reader.BYTES, "")
        assert reader.to_bytes(spelled) == raw


TINY = {
    "format": 1,
    "about": "",
    "cases": [
        {
            "kind": "envelope",
            "name": "n",
            "why": "",
            "rules": ["FLOW-PAYLOAD-1"],
            "payload": "00",
            "bytes": "00 ff*3",
        }
    ],
}


def test_a_file_as_described_is_read():
    assert reader.parse("layouts", json.dumps(TINY)) == TINY


@pytest.mark.parametrize(
    ("where", "key", "value", "words"),
    [
        *(("file", "format", 2, "format 2"), ("file", "more", 1, "unknown keys")),
        ("file", "about", None, "is no str"),
        ("file", "cases", TINY["cases"] * 2, "the same name"),
        *(("case", "more", 1, "unknown keys"), ("case", "kind", "no such", "none of")),
        *(("case", "payload", "0", "not bytes"), ("case", "payload", "00*0", "not bytes")),
        *(("case", "bytes", None, "not bytes"), ("case", "rules", ["FLOW"], "not a rule")),
        ("case", "rules", "FLOW-ID-1", "no list"),
    ],
)
def test_a_file_that_is_not_as_described_is_refused(where, key, value, words):
    whole = copy.deepcopy(TINY)
    (whole if where == "file" else whole["cases"][0])[key] = value
    with pytest.raises(reader.Malformed, match=words):
        reader.parse("layouts", json.dumps(whole))


def test_a_file_with_a_key_too_few_or_twice_is_refused():
    for text, words in (
        (json.dumps(TINY).replace('"payload": "00", ', ""), "missing keys"),
        (json.dumps(TINY).replace('"payload"', '"bytes"'), "twice"),
        ("[]", "no object"),
    ):
        with pytest.raises(reader.Malformed, match=words):
            reader.parse("layouts", text)


# ---------------------------------------------------------------- changed expectations
EXPECTED = {
    "layouts": {"size", "fields", "bits", "bytes", "image"},
    "enums": {"values", "type"},
    "descriptors": {"descriptor", "hashid", "digest"},
    "remote": {"bytes", "values", "type"},
    "tag-walks": {"then"},
    "rings": {"then"},
    "scheduler": {"then"},
}
"""Under which keys of a file expectations stand."""
REFUSAL = {"error", "names"}
"""The same for cases of something that is refused."""
NAMED = {"fields", "image", "values", "states", "refs", "running"}
"""Keys of objects whose own keys are names, not words of the format."""
OPEN = package_traces.OPEN


def paths(value, path=()):
    """Return the way to every number, string, null and empty thing below a value."""
    if isinstance(value, (dict, list)) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [way for key, one in items for way in paths(one, (*path, key))]
    return [path]


def at(case, path):
    for key in path:
        case = case[key]
    return case


def kind_of(case, path):
    """Return a way without names and numbers: where two have this in common, they mean the same."""
    words = [key for key in path if isinstance(key, str)]
    named = {i + 1 for i, key in enumerate(words) if key in NAMED}
    return case["kind"], *(key for i, key in enumerate(words) if i not in named)


def expectations(name):
    """Return where the cases of a file say what is expected, by kind: case and way."""
    found = {}
    for file, case in CASES:
        words = REFUSAL if case["kind"].endswith("_refused") else EXPECTED[name]
        for path in paths(case) if file == name else ():
            is_open = at(case, path) is None and path[-1] in OPEN
            if not words.isdisjoint(path) and not is_open:
                found.setdefault(kind_of(case, path), []).append((case, path))
    return found


def changed(case, path, others=()):
    """Return a case with another value in a place: one of others, if it can be."""
    made = copy.deepcopy(case)
    at(made, path[:-1])[path[-1]] = other_than(at(case, path), others)
    return made


def other_than(value, others):
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, (list, dict)):
        return {"more": 1} if isinstance(value, dict) else ["more"]
    return next((one for one in others if one not in (value, "", None)), value + "0")


@pytest.mark.parametrize("file", reader.FILES)
def test_a_changed_expectation_is_noticed(file):
    """Three of each kind are changed in turn; a scalar that is refused expects nothing else."""
    kinds = expectations(file)
    assert {kind for kind, *_ in kinds} >= set(reader.FILES[file]) - {"scalar_refused"}
    for found in kinds.values():
        others = [at(case, path) for case, path in found]
        for case, path in (found[0], found[len(found) // 2], found[-1]):
            print("changed:", case["name"], path)
            with pytest.raises((AssertionError, pytest.fail.Exception)):
                check(changed(case, path, others))


@pytest.mark.parametrize("what", ["state", "task", "row"])
def test_something_left_out_of_a_picture_is_noticed(what):
    case = next(case for _, case in CASES if case["name"] == "a group starts as a whole")
    case = copy.deepcopy(case)
    then = next(step["then"] for step in case["steps"] if "g" in step["then"]["running"])
    if what == "state":
        del then["states"]["later"]
    elif what == "task":
        del then["running"]["g"]
    else:
        del then["running"]["g"][0]
    with pytest.raises(AssertionError):
        check(case)


# ---------------------------------------------------------------- another reader
SCRIPT = "check.py"
BY_CHECK = ("layouts", "descriptors", "remote", "rings", "tag-walks")


def run_check(folder):
    """Run the small checker with nothing but the standard library."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(folder / SCRIPT)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_a_checker_without_the_package_agrees_with_the_files():
    done = run_check(reader.FOLDER)
    assert (done.returncode, done.stderr) == (0, "")
    counts = {name: sum(file == name for file, _ in CASES) for name in reader.FILES}
    assert sorted(done.stdout.splitlines()) == sorted(
        f"{name}: {count} cases agree" for name, count in counts.items() if name in BY_CHECK
    )


@pytest.mark.parametrize("name", sample(BY_CHECK, 2))
def test_that_checker_notices_a_changed_expectation(name, tmp_path):
    for path in reader.FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = reader.read(name)
    known = [one for found in expectations(name).values() for one in found]
    case, path = next((case, path) for case, path in known[::-1] if at(case, path) is not None)
    number = [one["name"] for one in whole["cases"]].index(case["name"])
    whole["cases"][number] = changed(case, path)
    (tmp_path / f"{name}.json").write_text(json.dumps(whole))
    assert run_check(tmp_path).returncode != 0
