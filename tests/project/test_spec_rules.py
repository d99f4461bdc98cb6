"""The checks of rules, tests, code and quotes find each fault, made on purpose in a small project."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import spec_rules

README = (
    "| [engine.md](engine.md) | it |\n\n> **ENG-RING-1** A ring is round. *(§5)*\n\nMore text.\n"
)
ENGINE = """# Engine

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

## Words

**ring**: round.
"""
TESTS = """import pytest

@pytest.mark.spec("ENG-RING-1")
@pytest.mark.parametrize("x", [1])
def test_rings_are_round(x): ...

@pytest.mark.spec("ENG-RING-2", "ENG-RING-1")
def test_sizes(): ...

def help_us(): ...
"""
FAR = """@pytest.mark.spec("ENG-FAR-1")
def test_post(): ...
"""
FAR_CODE = '"""Far away.\n\nRule     ENG-FAR-1\n"""\n'
CODE = '''"""Rings.

**ENG-RING-2** A ring has
one size.
"""

class Ring:
    def size(self):
        """Return the size.

        Rule     ENG-RING-1, ENG-RING-2
        """
'''


@pytest.fixture
def project(tmp_path):
    """Return a function that writes a small project in which all fits, but for the texts it is given."""

    def write(**texts: str):
        files = {
            "spec/README.md": texts.get("readme", README),
            "spec/engine.md": texts.get("engine", ENGINE),
            "tests/conformance/__init__.py": "",
            "tests/conformance/engine/test_ring.py": texts.get("tests", TESTS),
            "tests/conformance/engine/test_far.py": texts.get("far", FAR),
            "simpler_ref/ring.py": texts.get("code", CODE),
            "simpler_ref/far.py": texts.get("far_code", FAR_CODE),
            "docs/page.md": texts.get("page", "Rings as in ENG-RING-1.\n"),
            "tests/unit/test_it.py": texts.get("unit", ""),
        }
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_a_project_in_which_all_fits_is_not_complained_of(project):
    assert spec_rules.complaints(project()) == []


def test_a_rule_leads_to_its_code_and_its_tests(project):
    assert spec_rules.places_of("ENG-RING-2", project()) == [
        "spec/engine.md:16 A ring has one size.",
        "simpler_ref/ring.py:1 ring.py",
        "simpler_ref/ring.py:8 Ring.size",
        "tests/conformance/engine/test_ring.py:8 test_sizes",
    ]
    assert spec_rules.places_of("ENG-FAR-1", project())[1:] == [
        "simpler_ref/far.py:1 far.py",
        "tests/conformance/engine/test_far.py:2 test_post",
    ]
    for unknown in ("ENG-RING-3", "ENG-ROPE-1", "ring"):
        assert spec_rules.places_of(unknown, project()) == [f"{unknown} is no rule"]


def found(root, *words: str) -> bool:
    """Say whether exactly one complaint is made, and has these words."""
    lines = spec_rules.complaints(root)
    assert len(lines) == 1, lines
    return all(word in lines[0] for word in words)


FORMS = [
    (" *(§5)*", "", "engine.md:12: ENG-RING-1 does not say where it comes from"),
    ("is round.", "is round. It rolls. It is red.", "ENG-RING-1 has 3 sentences"),
    ("has\none size.", "has" + " one size" * 40 + ".", "ENG-RING-2 has 1 sentences, 83 words"),
    ("Words.\n", "Words.\n" * 60, "ENG-RING has 70 lines, more than 60"),
    ("| [ENG-FAR](#eng-far--far-away) | far away |\n", "", "has not the groups: ENG-FAR"),
    ("[ENG-RING](#eng-ring--rings)", "ENG-RING", "has not the groups: ENG-RING"),
]


def test_a_rule_that_has_not_the_form_of_rules_is_found(project):
    readme = README.replace("> **ENG-RING-1** A ring is round. *(§5)*\n", "")
    code = CODE.replace("**ENG-RING-2** A ring has\none size.\n", "")
    for old, new, words in FORMS:
        assert ENGINE.count(old) == 1
        assert found(project(engine=ENGINE.replace(old, new), readme=readme, code=code), words)


ONE_FAULT = {
    "a rule under the heading of another group": (
        {
            "engine": ENGINE.replace("**ENG-FAR-1**", "**ENG-RING-3**"),
            "far": FAR.replace("ENG-FAR-1", "ENG-RING-3"),
            "far_code": FAR_CODE.replace("ENG-FAR-1", "ENG-RING-3"),
        },
        "engine.md:22: ENG-RING-3 stands under ENG-FAR",
    ),
    "groups of one file that begin with different words": (
        {
            "engine": ENGINE.replace("ENG-FAR", "OTHER-FAR").replace("eng-far", "other-far"),
            "far": FAR.replace("ENG-FAR", "OTHER-FAR"),
            "far_code": FAR_CODE.replace("ENG-FAR", "OTHER-FAR"),
        },
        "begin with one word",
    ),
    "an empty group": (
        {
            "engine": ENGINE.replace("**ENG-FAR-1** Rings are sent by post. *(own)*\n", ""),
            "far": "",
            "far_code": "",
        },
        "ENG-FAR has no rules",
    ),
    "a rule file that the table of files does not have": (
        {"readme": README.replace("[engine.md]", "[motor.md]")},
        "does not list engine.md",
    ),
    "a conformance test that cites no rule": (
        {"tests": TESTS + "\ndef test_more(): ...\n"},
        "engine/test_ring.py::test_more cites no rule",
    ),
    "a quote in the README that has drifted": (
        {"readme": README.replace("round", "flat")},
        "spec/README.md:3 quotes ENG-RING-1 with other",
    ),
    "a quote in code that has drifted": (
        {"code": CODE.replace("one size.", "two sizes.")},
        "simpler_ref/ring.py:3 quotes ENG-RING-2",
    ),
    "a quote on a page that has drifted": (
        {"page": "> **ENG-RING-1** A ring is\n> flat.\n"},
        "docs/page.md:1 quotes ENG-RING-1",
    ),
    "a quote of no rule": (
        {"page": "**ENG-RING-9** A ring.\n"},
        "docs/page.md:1 quotes ENG-RING-9, which is no rule",
    ),
}
ONE_FAULT["a reference from code"] = (
    {"code": CODE.replace("ENG-RING-1, ", "ENG-RING-1, ENG-RING-3, ")},
    "simpler_ref/ring.py:8 names ENG-RING-3, which is no rule",
)
UNIT = '@pytest.mark.spec("ENG-RING-7")\ndef test_it(): ...\n'
ONE_FAULT["a test that cites an unknown rule, wherever it is"] = (
    {"unit": UNIT},
    "tests/unit/test_it.py::test_it cites ENG-RING-7, which is no rule",
)
ONE_FAULT["a rule without a test in the file of its group"] = (
    {"tests": TESTS.replace('"ENG-RING-2", ', ""), "unit": UNIT.replace("RING-7", "RING-2")},
    "ENG-RING-2 (spec/engine.md:16) has no test in tests/conformance/engine/test_ring.py",
)
ONE_FAULT["a rule that no code names"] = (
    {"code": '"""ENG-RING-1."""\n'},
    "no docstring of simpler_ref/ names ENG-RING-2",
)
for short in ("ENG-RING-1, -2", "ENG-RING-1 to -2", "ENG-RING-1, ENG-RING"):
    ONE_FAULT[f"an id of code that is not whole: {short}"] = (
        {"code": CODE.replace("ENG-RING-1, ENG-RING-2", short)},
        "simpler_ref/ring.py:8 has ",
    )
for name in ("ENG-RING-1 to -3", "ENG-RING-1, -2, -3", "ENG-RING-1, -3", "ENG-RING-3"):
    ONE_FAULT[f"a reference from a rule: {name}"] = (
        {"engine": ENGINE.replace("Words.", f"See {name}.")},
        "spec/engine.md mentions ENG-RING-3, which is no rule",
    )


def test_one_fault_gives_one_complaint(project):
    for texts, words in ONE_FAULT.values():
        assert found(project(**texts), words)


def test_ids_and_groups_that_cannot_be_read_are_refused(project):
    for old, new, words in (
        ("-RING-2**", "-RING-1**", "before more than one rule: ENG-RING-1"),
        ("## ENG-FAR", "## ENG-RING", "ENG-RING is a group already"),
        ("## ENG-RING — rings", "## Rings", "ENG-RING-1 stands under no group"),
    ):
        root = project(engine=ENGINE.replace(old, new))
        with pytest.raises(ValueError, match=words):
            spec_rules.complaints(root)


def test_files_without_rules_and_groups_without_a_file_are_found(project):
    root = project()
    (root / "tests/conformance/engine/test_near.py").write_text("")
    (root / "tests/conformance/motor").mkdir()
    (root / "tests/conformance/motor/helpers.py").write_text("")
    (root / "tests/conformance/engine/test_far.py").unlink()
    assert spec_rules.unmirrored(root) == [
        "ENG-FAR has no file tests/conformance/engine/test_far.py",
        "tests/conformance/engine/test_near.py is the file of no group",
        "tests/conformance/motor is the folder of no file of rules",
    ]


def test_rules_are_named_in_comments_in_c(project):
    root = project(code="")
    text = "/* Round.\n * Rule ENG-RING-1, ENG-RING-2 */\n"
    text += "static int *turn(int by)\n{\n}\n/* See ENG-RING-1 */\n"
    (root / "simpler_ref/ring.c").write_text(text)
    assert spec_rules.complaints(root) == []
    assert [place[1:] for place in spec_rules.read_code(root) if place.path.suffix == ".c"] == [
        (2, "turn", {"ENG-RING-1", "ENG-RING-2"}, ()),
        (6, "ring.c", {"ENG-RING-1"}, ()),
    ]


ASKED = [({}, True), ({"args": ["tests"]}, True), ({"args": ["tests/conformance"]}, True)]
ASKED += [({"args": ["tests/unit"]}, False), ({"args": ["tests/conformance/speed"]}, False)]
ASKED += [({"keyword": "ring"}, False), ({"markexpr": "long"}, False)]


def test_all_tests_are_those_that_run_unless_one_asks_for_others(request):
    options = request.config.getini("addopts")
    default = options[options.index("-m") + 1]
    keys = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob")
    here = SimpleNamespace(dir=spec_rules.ROOT)
    for asked, whole in ASKED:
        option = SimpleNamespace(**dict.fromkeys(keys) | {"markexpr": default} | asked)
        args = asked.get("args", ["tests"])
        config = SimpleNamespace(option=option, args=args, invocation_params=here)
        assert spec_rules.whole_conformance(config) == whole, asked
