"""The page on ownership: its tables match the layout, and the kernels keep to them."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from simpler_ref.jit import entries, slots
from simpler_ref.jit import layout as L

from .accesses import JIT, Sources

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


# ---------------------------------------------------------------- the tables and the layout
class Row(NamedTuple):
    """A line of the tables: a field, where the page says it is, and under which headings."""

    area: str
    line: str | None
    at: int
    count: int
    written_by: str
    read_by: str
    ordering: str


RELATIVE = {"Rings", "Mailbox", "Body", "Scalars", "Members"}
"""Headings of tables whose offsets start anew."""

NOT_FIELDS = {
    *("ALIVE", "CLAIMED", "CLAIM_WAITS", "CLAIM_GRANTED", "MAX_CONFIGS", "MAX_WORKERS"),
    *("CALLABLE_MASK", "WORD_KIND", "WORD_WORKER", "WORKER_MASK", "WORD_CONFIG", "CONFIG_MASK"),
    "RAN_TASK",
    *("MEMBER_WORDS", "SCALAR_WORDS", "RAW", "SIGNED", "UNSIGNED", "FLOAT64", "FLOAT32"),
    *(
        "ENDED_WELL",
        "ENDED_BADLY",
        "ENDED_NOT",
        "MOST_WAITS",
        "AHEAD_CAPACITY",
        "FIRST_PENALTY",
        "MOST_PENALTY",
    ),
    *("S_FRAME", "S_UNPLACED"),
    *("DEATH_BIAS", "DIGEST_CACHE", "DIGEST_CACHE_WORDS", "TRACE_WORDS", "TRACE_CAPACITY"),
    *("CACHE_LOCAL", "CACHE_LEAF", "MAX_DEPTH", "KINDS_WORDS"),
    *("WORKER_WORDS", "RING_BLOCK", "ORCH", "SPILL_CLASSES", "SPILL_SMALLEST"),
    *(
        "SCOPE_STACK_WORDS",
        "SCHED",
        "HEADER_WORDS",
        "ON_DUTY",
        "OFF_DUTY",
        "TIMED",
        "AT_REST",
        "KEEP_TIME",
    ),
    *("SLOT_WORDS", "INLINE_WORDS", "FANOUT_RELEASE", "FANOUT_TOTAL_MASK", "MASK_TENSORS"),
    *(
        "EDGE_WORDS",
        "ENTRY_WORDS",
        "MAP_SMALLEST",
        "FIFO_WORDS",
        "SLAB_BIT",
        "WIRING_CAPACITY",
        "CIRCULAR_SMALLEST",
    ),
}
"""What stands in those sections of the layout and is a size, a mask, a base, a value or a second name."""


def fields_of_the_layout() -> set[str]:
    """Return the name of every word that a section of the layout puts somewhere."""
    source = (ROOT / "simpler_ref/jit/layout.py").read_text()
    sections = re.split(r"^# -{40,} (.*)$", source, flags=re.MULTILINE)
    found = set()
    for title, text in zip(sections[1::2], sections[2::2], strict=True):
        names = {
            node.id
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.isupper()
        }
        if title.startswith("the mailbox"):
            found |= {one for one in names if one.startswith("MAIL_")}
        elif title.startswith(("one worker", "header", "one task", "TensorMap entry")):
            found |= names
    return found


def rows_of_the_page() -> dict[str, Row]:
    """Return every field of the tables, and of the table of areas those without an offset."""
    rows: dict[str, Row] = {}
    area = heading = ""
    for text in (DOCS / "ownership.md").read_text().splitlines():
        if text.startswith("## "):
            area = heading = text[3:]
        elif text.startswith("### "):
            heading = text[4:]
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if text.startswith("| `") and len(cells) == 6:
            field, (at, *count) = cells[0].strip("`"), re.findall(r"`(.+?)`|(\d+) words", cells[1])
            first = heading.split(":")[0]
            line = re.match(r"Line `(.+?)`", heading)
            assert field not in rows, f"{field} has two rows"
            rows[field] = Row(
                area=first if first in RELATIVE else area,
                line=line and line[1],
                at=eval(at[0], vars(L).copy()),
                count=int(count[0][1]) if count else 1,
                written_by=cells[2],
                read_by=cells[3],
                ordering=cells[4],
            )
        elif heading == "Other areas" and len(cells) == 6:
            for field in re.findall(r"`([A-Z_]+)`", cells[1]):
                rows[field] = Row(cells[0], None, getattr(L, field), 1, *cells[2:5])
    return rows


def test_the_ownership_tables_name_every_word_of_the_layout_and_no_other():
    fields = fields_of_the_layout()
    assert fields >= NOT_FIELDS, "these are not in the layout any more"
    documented = set(rows_of_the_page())
    assert fields - NOT_FIELDS - documented == set(), "these have no row in docs/ownership.md"
    assert documented - (fields - NOT_FIELDS) == set(), "these rows name no word of the layout"


def test_the_ownership_tables_put_every_word_where_the_layout_does():
    wrong = {
        field: (row.at, getattr(L, field))
        for field, row in rows_of_the_page().items()
        if row.at != getattr(L, field)
    }
    assert wrong == {}, "\n".join(map(str, wrong.items()))


def test_words_under_one_line_heading_share_a_cache_line():
    wrong = [
        field
        for field, row in rows_of_the_page().items()
        if row.line is not None and row.at // L.LINE != eval(row.line, vars(L).copy()) // L.LINE
    ]
    assert wrong == []


def test_no_two_words_of_an_area_overlap():
    used: dict[tuple[str, int], str] = {}
    for field, row in rows_of_the_page().items():
        for word in range(row.at, row.at + row.count):
            other = used.setdefault((row.area, word), field)
            assert other == field, f"{row.area}: {other} and {field} share word {word}"


# ---------------------------------------------------------------- the tables and the kernels
PARTIES = ("Orch", "Scheduler", "Scheduler thread", "worker", "requester", "monitor", "closer")

CALLERS = {
    "Orch": (
        *(
            "submit_and_pass",
            "submit_group_and_pass",
            "submit_words",
            "alloc_words",
            "alloc_buffer",
        ),
        *("run_program", "open_scope", "close_scope", "help_scheduler"),
        *("begin_run", "finish_run", "end_run", "wait_ready", "set_usable", "forget_configs"),
        *("ring_alloc", "ring_release", "ring_reset", "map_lookup", "map_insert", "map_erase"),
    ),
    "Scheduler thread": ("scheduler_loop",),
    "worker": (
        *("finish_and_receive", "finish_and_receive_in_thread", "run_leaves"),
        *("finish_control_and_receive", "park_and_receive", "remember", "forget_digests"),
        "report_ready",
    ),
    "requester": (
        *("claim_mailbox", "request_control", "await_control", "release_mailbox"),
        "abandon_mailbox",
    ),
    "monitor": ("report_death",),
    "closer": ("stop_scheduler", "request_stop"),
}
"""Which party calls which entries."""

CALLER = {entry: party for party, names in CALLERS.items() for entry in names}

IN_PYTHON = {
    "W_DEVICE_NS": {"worker"},
    "W_HOME": {"worker"},
    "W_THREAD": {"worker"},
    "W_TRACE": {"worker"},
    "W_FAIL": {"worker"},
    "START_FAIL": {"worker"},
    "MAIL_ERROR_MSG": {"worker"},
    "MAIL_COMMAND": {"requester"},
    "MAIL_CONFIG": {"requester", "worker"},
}
"""Words that Python code writes."""

WHOLE = {"W_MAILBOX", "S_INLINE", "SCALAR_BITS", "SCALAR_KIND", "MEMBER_COUNTS", "MEMBER_WORKER"}
"""Areas, and words that kernels copy together with others, so that they are not named there."""


@pytest.fixture(scope="module")
def sources():
    return Sources()


def named(cell: str) -> set[str]:
    """Return the parties that a cell names."""
    if re.search(r"\b(all|anyone|any thread)\b", cell):
        return set(PARTIES)
    words = set(
        re.findall(r"Scheduler thread|Scheduler|Orch|worker|requester|monitor|closer", cell)
    )
    if "`has_work`" in cell:
        words |= {"Orch", "Scheduler thread"}
    if "`help_scheduler`" in cell:
        words |= {"Orch"}
    return words


def test_it_is_said_of_every_entry_who_calls_it():
    known = {name for name, one in vars(entries).items() if hasattr(one, "entry_signature")}
    assert set(CALLER) == known


def test_the_parties_that_write_a_word_are_those_of_its_row(sources):
    written = sources.parties(CALLER, sources.written)
    wrong = {
        field: f"written by {sorted(who)}, the page says {row.written_by!r}"
        for field, row in rows_of_the_page().items()
        if field not in WHOLE
        and (who := written.get(field, set()) | IN_PYTHON.get(field, set()))
        != named(row.written_by)
    }
    assert wrong == {}, "\n".join(map(str, wrong.items()))


def test_nobody_reads_a_word_that_changes_but_those_of_its_row_and_who_writes_it(sources):
    read = sources.parties(CALLER, sources.read)
    wrong = {
        field: f"read by {sorted(more)} too, the page says {row.read_by!r}"
        for field, row in rows_of_the_page().items()
        if field not in WHOLE and row.ordering != "fork"
        if (more := read.get(field, set()) - named(row.read_by) - named(row.written_by))
    }
    assert wrong == {}, "\n".join(map(str, wrong.items()))


@pytest.mark.parametrize("event", slots.EVENTS, ids=lambda event: event.name)
def test_who_makes_an_event_happen_is_who_gets_to_its_kernels(sources, event):
    reached = sources.reached(CALLER)
    assert {name: reached[name] for name in event.kernels} == {
        name: set(event.owner.split(" or ")) for name in event.kernels
    }


@pytest.mark.parametrize(
    ("line", "written", "read"),
    [
        ("mem[L.RETIRING] = 1", True, False),
        ("mem[L.RETIRING] += 1", True, True),
        ("store(mem, L.RETIRING, 0)", True, False),
        ("word = L.RETIRING; store(mem, word, 0)", True, False),
        ("mailbox.notify(mem, L.RETIRING)", True, True),
        ("mailbox.copy_words(mem, L.ORCH_PATIENCE, L.RETIRING, 1)", False, True),
        ("mem[mem[L.RETIRING]] = 0", False, True),
        ("mem[L.ORCH_PATIENCE] = 0", False, False),
    ],
)
def test_an_access_is_found_however_it_is_made(tmp_path, line, written, read):
    folder = shutil.copytree(JIT, tmp_path / "jit", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "entries.py").open("a") as file:
        file.write(f"\n\ndef intrude(mem):\n    {line}\n")
    changed, where = Sources(folder), "entries.intrude"
    for accesses, expected in ((changed.written, written), (changed.read, read)):
        fields = set().union(*(changed.fields(where, index) for _, index in accesses(where)))
        assert ("RETIRING" in fields) == expected


def test_the_pass_is_run_by_the_scheduler_and_nobody_else(sources):
    assert sources.reached(CALLER)["schedule.scheduler_pass"] == {"Scheduler"}
