"""The performance page is made from saved figures: drawings, tables, and who is ahead."""

import importlib
import json
import re

import pytest

from tests.spec_rules import ROOT

DOCS = ROOT / "docs"


@pytest.fixture
def page(extension):
    return extension("peers_page")


def test_every_part_of_the_page_can_be_made_from_the_saved_figures_which_were_taken_in_full(page):
    report = json.loads(page.DATA.read_text())
    assert report["quick"] is False
    figures = page.Figures(report)
    text = (DOCS / "performance.md").read_text()
    for words in re.findall(r"```\{peers\} (.*)", text):
        part, *names = words.split()
        assert part in page.PARTS
        for name in names:
            assert name in report["titles"]
        figures_of_part = page.DRAWN.get(part) or page.WRITTEN[part]
        assert figures_of_part(figures, names)


def test_figures_and_pages_write_numbers_alike(page, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS.parent / "benchmarks"))
    number = importlib.import_module("figures").number
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
    readme = (DOCS.parent / "README.md").read_text()
    shown = dict(re.findall(r"^\| (.+?) \| ([\d.]+) µs \|", readme, re.MULTILINE))
    measured = {title: saved["results"]["stencil"][name] for title, name in titles.items()}
    assert {title: float(f"{entry['median']:.2g}") for title, entry in measured.items()} == {
        title: float(words) for title, words in shown.items()
    }
