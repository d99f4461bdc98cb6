"""The pages keep to the code and to each other: drawings, links, limits, and figures of performance."""

import importlib
import json
import re

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit.slots import EVENTS
from simpler_ref.jit.waiting import STATES
from tests import spec_rules
from tests.spec_rules import ROOT

DOCS = ROOT / "docs"


@pytest.fixture
def extension(monkeypatch):
    """Return a function that gives a Sphinx extension of the pages by its name."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    return importlib.import_module


# ---------------------------------------------------------------- the state machine
def test_the_drawing_has_an_arrow_and_words_for_every_step_of_the_state_machine(extension):
    drawing = extension("state_machine")
    picture = drawing.draw()
    steps = [(before, event) for event in EVENTS for before in event.before]
    assert picture.count("<polyline") == len(steps)
    assert picture.count('class="step"') == len(steps)
    for event in EVENTS:
        assert picture.count(f">{event.name}</text>") == len(event.before)
    assert len(drawing.table().splitlines()) == 2 + len(EVENTS)


def test_the_drawing_of_waiting_has_every_word_on_which_a_kernel_of_an_engine_sleeps(extension):
    source = "".join(path.read_text() for path in (ROOT / "simpler_ref/jit").glob("*.py"))
    prepared = set(re.findall(r"\bprepare\(mem, (?:w \+ )?L\.(\w+)", source))
    slept_on = set(re.findall(r"\bfutex_wait\(mem, (?:w \+ )?L\.(\w+)", source))
    assert {one.word for one in STATES} == prepared | slept_on
    named = {one.state for one in STATES if not one.state.isdigit()}
    assert all(hasattr(L, name) for name in named)
    assert all(re.search(rf"\bL\.{name}\b", source) for name in named)
    drawing = extension("waiting_states")
    for one in STATES:
        shown = one.word if one.state == "1" else one.state
        assert f">{shown}</text>" in drawing.draw() and one.woken_by in drawing.table()


# ---------------------------------------------------------------- records and rings
STORY = ["alloc a 2000", "alloc b 3000", "release b", "alloc c 2500", "release a", "alloc d 1500"]


@pytest.fixture
def layouts(extension):
    return extension("layouts")


SIZES = {
    "ContinuousTensor": L.TENSOR_WORDS * L.WORD,
    "CallConfig": L.CALL_CONFIG_SIZE,
    "ChipStorageTaskArgs": 6152,
    "mailbox": L.MAILBOX_SIZE,
    "frame": L.WORKER_WORDS * L.WORD,
    "slot": L.SLOT_WORDS * L.WORD,
    "ring": L.LINE * L.WORD,
}


def test_a_record_is_drawn_from_its_first_byte_to_its_last(layouts):
    for name, nbytes in SIZES.items():
        fields, _ = layouts.FIGURES[name]()
        assert [one.at for one in fields[1:]] == [one.at + one.size for one in fields[:-1]]
        assert (fields[0].at, fields[-1].at + fields[-1].size) == (0, nbytes)
        assert f"<th>{nbytes}</th></tr></table>" in layouts.draw(name)


def test_every_part_of_a_record_has_its_box(layouts):
    fields, _ = layouts.FIGURES["ContinuousTensor"]()
    boxes = re.findall(r'<td class="(field|gap)"', layouts.draw("ContinuousTensor"))
    assert [one.name for one in fields if one.name][:3] == ["data", "shapes", "ndims"]
    assert boxes.count("field") == 1 + 2 + 1 + 1 + 1  # shapes ends in the row of ndims
    assert boxes.count("gap") == 1
    drawing, names = layouts.draw("slot"), [field.name for field in L.SLOT.fields]
    assert len(names) > 10
    assert all(f">{name}" in drawing.replace("<wbr>", "") for name in names)


def test_what_does_not_fit_is_refused(layouts):
    with pytest.raises(Exception, match="overlaps"):
        layouts.fill([layouts.Field(0, 8, "one"), layouts.Field(4, 8, "other")], 16)
    with pytest.raises(Exception, match="cannot fill a 3"):
        layouts.draw_ring(8192, ["fill a 3"])


def test_areas_are_drawn_with_their_sizes_private_ones_apart(layouts):
    private, areas = layouts.areas(sub=2)
    total, geometry = L.plan(window=L.DEFAULT_TASK_WINDOW, rings=4, next_level=0, sub=2)
    assert private == geometry[L.PRIVATE]
    assert sum(count for _, count, _ in areas) == total
    assert layouts.draw_areas().count('<tr class="gap">') == sum(
        at >= private for at, _, _ in areas
    )
    assert {what for _, _, what in areas} == set(layouts.AREAS.values())


def test_a_ring_is_drawn_as_it_is_after_each_step(layouts):
    held = [[one.name for one in slabs] for _, slabs, _ in layouts.tell(8192, STORY)]
    assert held == [["a"], ["b", "a"], ["b", "a"], ["c", "b", "a"], ["c"], ["d", "c"]]
    *_, (_, slabs, released) = layouts.tell(8192, STORY)
    assert ([one.start for one in slabs], released) == ([0, 5120], {"a", "b"})
    assert layouts.draw_ring(8192, STORY).count('class="free"') == 2


# ---------------------------------------------------------------- links
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "spec").glob("**/*.md"))]
PAGES += sorted((ROOT / "benchmarks").glob("**/*.md"))
"""Links of docs/ are checked as it is built."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"#+ (.*)")
LABEL = re.compile(r"\((.+)\)=")


def prose(page):
    """Return the lines of a page that are not in a fenced block."""
    fenced = False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield line


def places_on(page):
    """Return the anchors that a page has when it is read as Markdown, and its labels."""
    for line in prose(page):
        if heading := HEADING.fullmatch(line):
            yield re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")
        elif label := LABEL.fullmatch(line):
            yield label[1]


def links_of(page):
    """Return the links of a page that do not leave the repository."""
    text = "\n".join(re.sub(r"`[^`]*`", "", line) for line in prose(page))
    return [link for link in LINK.findall(text) if not re.match("[a-z]+:", link)]


def test_links_between_files_lead_to_a_file_and_a_heading():
    for page in PAGES:
        for link in links_of(page):
            target, _, place = link.partition("#")
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), (page, link)
            if place and there.suffix == ".md":
                assert place in places_on(there), (page, link)


def test_links_of_built_pages_that_lead_nowhere_are_found(extension, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.html").write_text(
        '<a class="x" href="b/c.html#here">1</a> <a href="b/c.html#gone">2</a> <a href="d.html">3</a>'
        '<a href="#own">4</a> <i id="own"></i> <a href="#not">5</a> <a href="https://e.org/#x">6</a>'
    )
    (tmp_path / "b/c.html").write_text(
        '<p id="here"><a href="../a.html#top">7</a><a href="x#">8</a>'
    )
    assert extension("check_links").broken_links(tmp_path) == [
        ("a.html", "#not"),
        ("a.html", "b/c.html#gone"),
        ("a.html", "d.html"),
        ("b/c.html", "x"),
    ]


def test_names_of_files_and_functions_are_found_in_the_sources(extension):
    links = extension("code_links")
    assert links.place_of("jit/graph.py") == ("simpler_ref/jit/graph.py", None)
    assert links.place_of("simpler_kernel.h")[0].endswith("native_chip/include/simpler_kernel.h")
    path, line = links.place_of("graph.wire")
    assert (ROOT / path).read_text().splitlines()[line - 1].startswith("def wire(")
    path, line = links.place_of("Worker.run")
    assert (ROOT / path).read_text().splitlines()[line - 1].startswith("    def run(")


def test_what_names_nothing_of_ours_is_no_link_and_a_name_that_has_gone_is_refused(extension):
    place_of = extension("code_links").place_of
    for words in ("orch.alloc", "x.y", "scheduler.json", "graph.run()", "a.py", "Worker.x"):
        assert place_of(words) is None, words
    for words in ("graph.wired", "jit/graphs.py", "tests/conformance/gone.py"):
        with pytest.raises(LookupError, match="there is no"):
            place_of(words)


def test_documented_objects_lead_to_their_source(extension):
    info = {"module": "simpler_ref.worker", "fullname": "Worker.run"}
    uri = extension("code_links").resolve("py", info)
    path, line = uri.removeprefix("code/").split(".html#line-")
    assert (ROOT / path).read_text().splitlines()[int(line) - 1].startswith("    def run(")


# ---------------------------------------------------------------- limits
LIMITS = (DOCS / "limits.md").read_text()
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
    shown = spec_rules.mentioned(LIMITS, spec_rules.read_groups(ROOT))
    missing = {
        rule
        for rule in decided()
        if not {rule, rule.rpartition("-")[0]} & shown and not rule.startswith("SPEED-")
    }
    assert missing == set(UNNOTICED)
    known = {*spec_rules.read_rules(ROOT), *spec_rules.read_groups(ROOT)}
    assert spec_rules.mentioned(LIMITS, spec_rules.read_groups(ROOT)) <= known


# ---------------------------------------------------------------- performance
def test_every_part_of_the_page_can_be_made_from_the_saved_figures_which_were_taken_in_full(
    extension,
):
    page = extension("peers_page")
    report = json.loads(page.DATA.read_text())
    assert report["quick"] is False
    figures = page.Figures(report)
    text = (DOCS / "performance.md").read_text()
    for words in re.findall(r"```\{peers\} (.*)", text):
        part, *names = words.split()
        assert part in page.PARTS
        for name in names:
            assert name in report["titles"]
        assert getattr(figures, part)(*names)


def test_figures_and_pages_write_numbers_alike(extension, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    number, page = extension("figures").number, extension("peers_page")
    for value in (0.0123, 0.1, 0.5, 9.99, 9.996, 42.42, 99.96, 12345.6):
        assert page.number(value) == number(value)


def test_the_figures_of_the_readme_are_those_of_the_page():
    """Rounded to two digits; whoever saves new figures for the page writes them there, too."""
    saved = json.loads((DOCS / "_data/peers.json").read_text())
    titles = {
        "`simpler_ref`": "own",
        "`multiprocessing.Pool`": "pool",
        "Ray": "ray",
        "joblib": "joblib",
    }
    readme = (ROOT / "README.md").read_text()
    shown = dict(re.findall(r"^\| (.+?) \| ([\d.]+) µs \|", readme, re.MULTILINE))
    measured = {title: saved["results"]["stencil"][name] for title, name in titles.items()}
    assert {title: float(f"{entry['median']:.2g}") for title, entry in measured.items()} == {
        title: float(words) for title, words in shown.items()
    }
