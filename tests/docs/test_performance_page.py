"""The performance page is made from saved figures: drawings, tables, and who is ahead."""

import importlib
import itertools
import json
import re

import pytest

from tests.spec_rules import ROOT

DOCS = ROOT / "docs"


@pytest.fixture
def page(extension):
    return extension("peers_page")


def peer(title, workers="processes", own=False, skipped=""):
    versions = {} if skipped else {"Python": "3.11"}
    described = {"title": title, "workers": workers, "order": "somehow", "own": own}
    return described | {"versions": versions, "skipped": skipped, "start_s": 0.5}


def entry(median, **more):
    return {"median": median, "spread": 0.1, "rounds": 5, "unit": "µs", "multiple": 10.0} | more


TITLES = {"chain": "chain", "tree": "tree reduction", "random_1e3": "10³", "random_1e4": "10⁴"}


@pytest.fixture
def figures(page):
    return page.Figures(
        {
            "machine": {"cpu": "a processor", "cores": 2, "system": "Linux 6.1"},
            "floor_us": {"median": 0.1, "spread": 0.01},
            "others": 0.01,
            "stolen": 0.01,
            "titles": TITLES,
            "units": dict.fromkeys(TITLES, "µs"),
            "peers": {
                "own": peer("ours", own=True),
                "quick": peer("quick <threads>", "threads"),
                "slow": peer("slow"),
                "loop": peer("a loop", "none"),
                "gone": peer("gone", skipped="no wheel for it"),
            },
            "results": {
                "chain": {
                    "slow": entry(900.0, size=64, meant=4096),
                    "own": entry(2.0),
                    "quick": entry(0.5),
                    "loop": entry(0.01),
                },
                "tree": {
                    "own": entry(3.0),
                    "slow": {"why_not": "too slow: no answer within 60 s"},
                    "loop": {"why_not": "n/a: one call, no tasks"},
                },
                "random_1e3": {"own": entry(2.0), "slow": entry(100.0)},
                "random_1e4": {"own": entry(2.1)},
            },
            "targets": [
                {"title": "first", "met": True, "reached": 1.0, "words": "1, wanted ≥ 1"},
                {"title": "second", "met": False, "reached": 2.0, "words": "2, wanted ≤ 1"},
                {"title": "third", "met": None, "reached": None, "words": "not measured"},
            ],
        }
    )


def test_a_drawing_has_a_bar_for_each_peer_the_cheapest_first(figures):
    drawing = figures.bars("chain")
    names = re.findall(r'class="name"[^>]*>([^<]*)<', drawing)
    assert names == ["a loop", "quick &lt;threads&gt;", "ours", "slow"]
    widths = [float(one) for one in re.findall(r'<rect [^>]*width="([\d.]+)"', drawing)]
    assert widths == sorted(widths)
    assert re.findall(r'<rect class="(\w+)"', drawing) == ["none", "threads", "own", "processes"]


def test_ten_times_as_much_is_one_line_further_and_stays_within_the_drawing(page, figures):
    figures.results["chain"] = {"own": entry(1.0), "quick": entry(10.0), "slow": entry(100.0)}
    drawing = figures.bars("chain")
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', drawing)]
    assert widths[1] - widths[0] == pytest.approx(widths[2] - widths[1], abs=0.2)
    ends = [float(one) for one in re.findall(r'class="value" x="([\d.]+)"', drawing)]
    assert max(ends) + 50 < page.WIDTH


def test_a_line_ends_where_a_peer_was_not_measured_and_names_do_not_overlap(page, figures):
    points = re.findall(r'<polyline class="(own|processes)" points="([^"]*)"', figures.lines())
    assert {kind: len(line.split()) for kind, line in points} == {"own": 2, "processes": 1}
    places = page.spread_out({"a": 10.0, "b": 11.0, "c": 12.0, "d": 95.0}, 10.0, 0.0, 100.0)
    assert list(places) == ["a", "b", "c", "d"]
    tops = list(places.values())
    assert all(lower - upper >= 10.0 for upper, lower in itertools.pairwise(tops))
    assert 0.0 <= tops[0] <= tops[-1] <= 100.0


def test_the_table_shows_spread_multiple_and_smaller_sizes(figures):
    rows = figures.table(["chain", "tree"]).splitlines()
    assert "| **ours** | 2.00 ± 0.10 (10.0 ×) | 3.00 ± 0.10 (10.0 ×) |" in rows
    assert "| slow | 900 ± 0.10 (10.0 ×) ° | – |" in rows
    assert not any("gone" in row for row in rows)
    with pytest.raises(Exception, match="no workload chains"):
        figures.table(["chains"])


def test_who_is_ahead_what_is_missing_and_which_targets_are_met_is_said(figures):
    rows = figures.ahead().splitlines()  # a plain loop is no rival
    assert "| chain | ours | quick <threads> 4.00 × |" in rows
    assert "| tree reduction | ours | nobody |" in rows
    assert figures.missing().splitlines() == [
        "- slow: tree reduction: too slow: no answer within 60 s",
        "- gone: everything. no wheel for it",
    ]
    assert figures.targets().splitlines()[2:] == [
        "| first | ✓ | 1, wanted ≥ 1 |",
        "| second | ✗ | 2, wanted ≤ 1 |",
        "| third | – | not measured |",
    ]


def test_the_page_says_so_if_others_had_the_cores(figures):
    assert "do not trust" not in figures.setting()
    figures.report["others"] = 0.4
    assert "Other programs used 40% of the cores" in figures.setting()
    figures.report["stolen"] = 0.4
    assert "The host kept 40% of the cores to itself: do not trust" in figures.setting()


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


# ---------------------------------------------------------------- the README
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
