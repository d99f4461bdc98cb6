"""Every row of the table of releases and acquires: what it promises holds, and is missed without it."""

import itertools
import re
from pathlib import Path

import pytest

from simpler_ref.jit import layout as L

from . import litmus
from .litmus import ROWS, Litmus, races, wrong

pytestmark = pytest.mark.kernels
PAGE = Path(__file__).resolve().parents[2] / "docs" / "ownership.md"
LITMUSES = {name: value for name, value in vars(litmus).items() if isinstance(value, Litmus)}
RACES, WRONGS = 40, 300
"""So many plays at most find what is weaker."""
FEW_AND_MORE = [range(10), pytest.param(range(10, 25), marks=pytest.mark.long)]


def cells(line):
    return [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]


def table():
    """Return release and place of each row of the page's table."""
    text = PAGE.read_text().split("## Every release and its acquire")[1]
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")]
    return [(row[0], row[1]) for row in rows[2:]]


HINTS = {
    field.name
    for record in L.RECORDS.values()
    for field in record.fields
    if "hint" in field.read_by + field.ordering
}
"""Words that somebody may read as a hint."""


def word_of(name):
    """Return a word's name on the page: ``worker 1 frame 1 W_AT + 1`` is of W_AT."""
    return re.findall(r"[A-Z][A-Z_]+|^[a-z]+", name)[-1]


def unordered(which, seed, weakened=()):
    found = races(which, seed, weakened)
    return {name: who for name, who in found.items() if word_of(name) not in HINTS}


def test_every_row_has_a_litmus():
    assert [(row.release, row.where) for row in ROWS] == table()


@pytest.mark.parametrize("seeds", FEW_AND_MORE, ids=["few", "more"])
@pytest.mark.parametrize("name", LITMUSES)
def test_what_must_be_visible_is(name, seeds):
    for seed in seeds:
        assert wrong(LITMUSES[name], seed) is None, seed


@pytest.mark.parametrize("seeds", FEW_AND_MORE, ids=["few", "more"])
@pytest.mark.parametrize("name", LITMUSES)
def test_only_hints_are_read_without_order(name, seeds):
    for seed in seeds:
        assert unordered(LITMUSES[name], seed) == {}, seed


def each(kind):
    return [
        pytest.param(row, weakened, id=f"{row.release}: {', '.join(map(str, weakened))}")
        for row in ROWS
        for weakened in getattr(row, kind)
    ]


@pytest.mark.parametrize(("row", "weakened"), each("races"))
def test_without_it_there_is_a_race(row, weakened):
    assert any(unordered(which, seed, weakened) for seed in range(RACES) for which in row.litmus)


@pytest.mark.parametrize(("row", "weakened"), each("wrongs"))
def test_without_it_somebody_is_missed(row, weakened):
    assert any(wrong(which, seed, weakened) for seed in range(WRONGS) for which in row.litmus)


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 40), marks=pytest.mark.long)])
@pytest.mark.parametrize("row", [row for row in ROWS if row.harmless], ids=lambda row: row.release)
def test_where_the_value_is_all_no_order_is_needed(row, seeds):
    for weakened, which, seed in itertools.product(row.harmless, row.litmus, seeds):
        assert unordered(which, seed, weakened) == {}, (weakened, seed)
        assert wrong(which, seed, weakened) is None, (weakened, seed)


def test_every_row_is_weakened():
    assert all(row.races or row.wrongs or row.harmless for row in ROWS)
