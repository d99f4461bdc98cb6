"""Links lead somewhere: between the pages, from the README and spec/, and from names to the code."""

import re

import pytest

from tests.spec_rules import ROOT

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
