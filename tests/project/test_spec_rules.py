"""The checks of rules, tests and code find each fault, made on purpose in a small project."""

from __future__ import annotations

import pytest

from tests import spec_rules

README, ENGINE = "spec/README.md", "spec/engine.md"
TESTS, FAR = (f"tests/conformance/engine/test_{name}.py" for name in ("ring", "far"))
UNIT, VECTORS = "tests/unit/test_it.py", "spec/vectors/far.json"
CODE, FAR_CODE = "simpler_ref/ring.py", "simpler_ref/far.py"
FILES = {
    README: "| [engine.md](engine.md) | it |\n",
    ENGINE: """# Engine

| group | about |
| --- | --- |
| [ENG-RING](#eng-ring--rings) | rings |
| [ENG-FAR](#eng-far--far-away) | far away |

## ENG-RING — rings

Words.

**ENG-RING-1** A ring is round. *(§5)*

> Decision: not square.

**ENG-RING-2** A ring has
one size. *(§5; FACTS
1)*

## ENG-FAR — far away

**ENG-FAR-1** Rings are sent by post. *(own)*

**ENG-FAR-2** In a box. *(own)*

## Words

**ring**: round.
""",
    TESTS: """import pytest

@pytest.mark.spec("ENG-RING-1")
@pytest.mark.parametrize("x", [1])
def test_rings_are_round(x): ...

@pytest.mark.spec("ENG-RING-2", "ENG-RING-1")
def test_sizes(): ...

def help_us(): ...
""",
    FAR: 'pytestmark = pytest.mark.spec("ENG-FAR-1")\ndef test_post(): ...\n',
    UNIT: '@pytest.mark.spec("ENG-RING-1")\ndef test_it(): ...\n',
    VECTORS: '{"cases": [\n{"name": "a box", "rules": ["ENG-FAR-2"]}]}\n',
    CODE: '''"""Rings.

Rule     ENG-RING-2
"""

class Ring:
    def size(self):
        """Return the size.

        Rule     ENG-RING-1, ENG-RING-2
        """
''',
    FAR_CODE: '"""Far away.\n\nRule     ENG-FAR-1, ENG-FAR-2\n"""\n',
}


@pytest.fixture
def project(tmp_path):
    """Return a function that writes a small project in which all fits, but for changes of its files."""

    def write(*changes: tuple[str, str, str]):
        files = dict(FILES)
        for name, old, new in changes:
            assert old in files[name], old
            files[name] = files[name].replace(old, new)
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.slow("reads all rules, tests, pages and sources")
def test_all_fits_here_and_in_the_small_project(project):
    assert spec_rules.complaints() == spec_rules.complaints(project()) == []


def test_a_rule_leads_to_its_code_and_its_tests(project):
    assert spec_rules.places_of("ENG-RING-2", project()) == [
        "spec/engine.md:16 A ring has one size.",
        "simpler_ref/ring.py:1 ring.py",
        "simpler_ref/ring.py:7 Ring.size",
        "tests/conformance/engine/test_ring.py:8 test_sizes",
    ]
    assert spec_rules.places_of("ENG-FAR-2", project())[2:] == ["spec/vectors/far.json:2 a box"]
    for unknown in ("ENG-RING-3", "ENG-ROPE-1", "ring"):
        assert spec_rules.places_of(unknown, project()) == [f"{unknown} is no rule"]


ONE_FAULT = [
    # the form of rules and groups
    ("engine.md:12: ENG-RING-1 does not say where it comes", (ENGINE, " *(§5)*", "")),
    ("ENG-RING-1 has 3 sentences", (ENGINE, "is round.", "is round. It rolls. It is red.")),
    (
        "ENG-RING-2 has 1 sentences, 83 words",
        (ENGINE, "has\none size.", "has" + " one size" * 40 + "."),
    ),
    ("ENG-RING has 70 lines, more than 60", (ENGINE, "Words.\n", "Words.\n" * 60)),
    ("has not the groups: ENG-FAR", (ENGINE, "| [ENG-FAR](#eng-far--far-away) | far away |\n", "")),
    ("has not the groups: ENG-RING", (ENGINE, "[ENG-RING](#eng-ring--rings)", "ENG-RING")),
    (
        "engine.md:22: ENG-RING-3 stands under ENG-FAR",
        *((name, "ENG-FAR-1", "ENG-RING-3") for name in (ENGINE, FAR, FAR_CODE)),
    ),
    (
        "begin with one word",
        *((name, "ENG-FAR", "OTHER-FAR") for name in (ENGINE, FAR, FAR_CODE, VECTORS)),
        (ENGINE, "eng-far", "other-far"),
    ),
    (
        "ENG-FAR has no rules",
        (
            ENGINE,
            "**ENG-FAR-1** Rings are sent by post. *(own)*\n\n**ENG-FAR-2** In a box. *(own)*",
            "",
        ),
        *((FAR, FILES[FAR], ""), (FAR_CODE, FILES[FAR_CODE], ""), (VECTORS, '"ENG-FAR-2"', "")),
    ),
    ("does not list engine.md", (README, "[engine.md]", "[motor.md]")),
    # tests and code
    (
        "test_ring.py::test_more cites no rule",
        (TESTS, "def help_us", "def test_more(): ...\n\ndef help"),
    ),
    ("test_it cites ENG-RING-7, which is no rule", (UNIT, "RING-1", "RING-7")),
    ("far.json::a box cites ENG-RING-7, which is no rule", (VECTORS, "2", '2", "ENG-RING-7')),
    ("ENG-RING-2 (spec/engine.md:16) has no test", (TESTS, '"ENG-RING-2", ', "")),
    ("ring.py:7 names ENG-RING-3, which is no rule", (CODE, "G-1, ", "G-1, ENG-RING-3, ")),
    ("no docstring of simpler_ref/ names ENG-RING-2", (CODE, FILES[CODE], '"""ENG-RING-1."""\n')),
    *(
        ("simpler_ref/ring.py:7 has ", (CODE, "ENG-RING-1, ENG-RING-2", short))
        for short in ("ENG-RING-1, -2", "ENG-RING-1 to -2", "ENG-RING-1, ENG-RING")
    ),
    *(
        ("engine.md mentions ENG-RING-3, which is no rule", (ENGINE, "Words.", f"See {name}."))
        for name in ("ENG-RING-1 to -3", "ENG-RING-1, -2, -3", "ENG-RING-1, -3", "ENG-RING-3")
    ),
]


@pytest.mark.parametrize("fault", ONE_FAULT, ids=lambda fault: fault[0])
def test_one_fault_gives_one_complaint(project, fault):
    words, *changes = fault
    (line,) = spec_rules.complaints(project(*changes))
    assert words in line


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("-RING-2**", "-RING-1**", "before more than one rule: ENG-RING-1"),
        ("## ENG-FAR", "## ENG-RING", "ENG-RING is a group already"),
        ("## ENG-RING — rings", "## Rings", "ENG-RING-1 stands under no group"),
    ],
)
def test_ids_and_groups_that_cannot_be_read_are_refused(project, old, new, words):
    with pytest.raises(ValueError, match=words):
        spec_rules.complaints(project((ENGINE, old, new)))


def test_files_and_folders_of_tests_without_rules_are_found(project):
    root = project()
    (root / "tests/conformance/motor").mkdir()
    (root / "tests/conformance/motor/helpers.py").write_text("")
    (root / FAR).rename(root / FAR.replace("far", "near"))
    assert spec_rules.unmirrored(root) == [
        "tests/conformance/engine/test_near.py is the file of no group",
        "tests/conformance/motor is the folder of no file of rules",
    ]


def test_rules_are_named_in_comments_in_c(project):
    root = project((CODE, FILES[CODE], ""))
    text = "/* Round.\n * Rule ENG-RING-1, ENG-RING-2 */\n"
    text += "static int *turn(int by)\n{\n}\n/* See ENG-RING-1 */\n"
    (root / "simpler_ref/ring.c").write_text(text)
    assert spec_rules.complaints(root) == []
    assert [place[1:] for place in spec_rules.read_code(root) if place.path.suffix == ".c"] == [
        (2, "turn", {"ENG-RING-1", "ENG-RING-2"}, ()),
        (6, "ring.c", {"ENG-RING-1"}, ()),
    ]
