"""Who owns which word: what the layout says of its words fits together, and the kernels keep to it."""

from __future__ import annotations

import ast
import re
import shutil

import pytest

from simpler_ref.jit import entries, slots
from simpler_ref.jit import layout as L
from simpler_ref.jit.structures import Field

from ..spec_rules import ROOT
from .accesses import JIT, Sources

DOCS = ROOT / "docs"


# ---------------------------------------------------------------- the tables and the layout
FIELDS: dict[str, Field] = {
    name: field
    for record in L.RECORDS.values()
    for field in record.fields
    for name in (field.name, *field.also)
    if name
}
"""Every word of the engine that has a name, a second one included."""


def test_a_word_is_where_its_name_says_behind_the_others_and_described_once():
    assert all(getattr(L, name) == field.at for name, field in FIELDS.items())
    assert all(type(getattr(L, name)) is int for name in FIELDS), "kernels freeze plain numbers"
    names = [one.name for record in L.RECORDS.values() for one in record.fields]
    assert len(names) == len(set(names)) > 150
    for record in L.RECORDS.values():
        fields = list(record.fields)
        ends = [one.at + one.words for one in fields]
        assert all(end <= one.at for end, one in zip(ends[:-1], fields[1:], strict=True))
        assert ends[-1] <= record.size, record.name
        for section in record.sections:
            assert not section.begins_a_line or section.fields[0].at % L.LINE == 0, section


@pytest.mark.parametrize("name", [name for name in L.RECORDS if name != "mailbox"])
def test_every_cache_line_has_a_party_that_alone_writes_it_often(name):
    """A mailbox is one party's at a time, all of it, so its lines go to and fro with it."""
    writers: dict[int, list[set[str]]] = {}
    for field in L.RECORDS[name].fields:
        often = named(field.written_by.split(";")[0])
        for line in () if field.rare or field.ordering == "fork" else field.lines:
            writers.setdefault(line, []).append(often)
    shared = {line: who for line, who in writers.items() if not set.intersection(*who)}
    assert shared == {}


def test_a_line_of_which_every_word_changes_rarely_is_no_part_of_another():
    sections = [section for record in L.RECORDS.values() for section in record.sections]
    rare = {field.name for section in sections for field in section.fields if field.rare}
    lines = {field.name for one in sections if one.rare for field in one.fields}
    assert rare - lines == {"STUCK_TOLD"}, "it changes when a group has waited for STUCK_NS"
    assert all(section.begins_a_line for section in sections if section.rare)


def test_the_page_shows_every_record_and_descriptions_name_words_that_there_are():
    shown = re.findall(r"^```{words} (.+)$", (DOCS / "ownership.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(L.RECORDS)
    told = {
        name
        for one in FIELDS.values()
        for name in re.findall(r"`([A-Z_]+)`", f"{one.meaning} {one.read_by} {one.ordering}")
    }
    assert told - vars(L).keys() == set()


# ---------------------------------------------------------------- the tables and the kernels
PARTIES = (
    *("Orch", "Scheduler", "Scheduler thread", "worker", "requester", "monitor", "closer"),
    "collector",
)

CALLERS = {
    "Orch": (
        *("submit_and_pass", "alloc_buffer", "begin_stream", "call_and_pass", "forget_memory"),
        *("end_stream", "reset_stream"),
        *("run_program", "open_scope", "close_scope", "help_scheduler"),
        *("begin_run", "finish_run", "end_run", "wait_ready", "set_usable", "forget_configs"),
        *("ring_alloc", "ring_release", "ring_reset", "map_lookup", "map_insert", "map_erase"),
        *("drop_call", "hold_block", "has_settled", "want_orch", "settle_deaths", "strand"),
        *("drop_forgotten", "cancel_call", "cancel_calls", "take_failed", "hand_on", "forgive_all"),
        *("begin_trace", "end_trace", "ask_collector", "call_from_c", "read_outcome_from_c"),
    ),
    "Scheduler thread": ("scheduler_loop",),
    "worker": (
        *("finish_and_receive", "finish_and_receive_in_thread", "run_leaves"),
        *("finish_control_and_receive", "park_and_receive", "remember", "note_code"),
        *("forget_digests", "note", "report_ready", "task_ahead"),
        *("look_out", "end_look_out"),
    ),
    "requester": (
        *("claim_mailbox", "request_control", "await_control", "release_mailbox"),
        "abandon_mailbox",
    ),
    "monitor": ("report_death",),
    "closer": ("stop_scheduler", "request_stop"),
    "collector": ("collector_loop",),
}
"""Which party calls which entries."""

ENTRIES = {entry: party for party, names in CALLERS.items() for entry in names}

OF_HAZARDS = (
    *("collect_conflicts", "has_access_room", "note_accesses"),
    *("drop_over", "forget_range", "forget_all"),
)
CALLER = ENTRIES | {f"hazards.{name}": "Orch" for name in OF_HAZARDS}
"""Which party calls which entries, and kernels that no entry calls."""

WRITES_IN_PYTHON = {
    "worker": (
        *("W_DEVICE_NS", "W_HOME", "W_THREAD", "W_TRACE", "W_VALUE", "W_KIND", "W_FAIL", "W_SENT"),
        *("START_FAIL", "MAIL_ERROR_MSG", "MAIL_CONFIG"),
    ),
    "requester": ("MAIL_COMMAND", "MAIL_CONFIG"),
    "Orch": (
        *("SUBMIT_LINE", "TRACE_EXTRAS", "UNORDERED_LOW", "UNORDERED_HIGH"),
        *("LAYOUTS_USED", "LAYOUTS_EPOCH", *(field.name for field in L.LAYOUT.fields)),
    ),
}
"""Words that Python code writes."""

WHOLE = {
    *("W_MAILBOX", "S_INLINE", "SCALAR_BITS", "SCALAR_KIND", "MEMBER_COUNTS", "MEMBER_WORKER"),
    "CACHE_DIGEST",
}
"""Areas, and words that kernels copy together with others, so that they are not named there."""


@pytest.fixture(scope="module")
def sources():
    return Sources()


def test_every_word_that_kernels_use_has_a_description(sources):
    parts = [record for name, record in L.RECORDS.items() if name != "header"]
    alone = {
        index.attr
        for where in sources.functions
        for accesses in (sources.written, sources.read)
        for _, index in accesses(where)
        if isinstance(index, ast.Attribute)
    }
    prefixes = tuple({one.name.split("_")[0] + "_" for part in parts for one in part.fields})
    alike = {name for name in vars(L) if name.startswith(prefixes) and name[-6:] != "_WORDS"}
    assert (alone | alike) - FIELDS.keys() == set()
    assert len(alone) > 40 and len(alike) > 60


def named(cell: str) -> set[str]:
    """Return the parties that a cell names."""
    if re.search(r"\b(all|anyone|any thread)\b", cell):
        return set(PARTIES)
    words = set(
        re.findall(r"Scheduler(?: thread)?|Orch|worker|requester|monitor|closer|collector", cell)
    )
    if "`has_work`" in cell:
        words |= {"Orch", "Scheduler thread"}
    if "`help_scheduler`" in cell:
        words |= {"Orch"}
    return words


def test_it_is_said_of_every_entry_who_calls_it():
    known = {name for name, one in vars(entries).items() if hasattr(one, "entry_signature")}
    assert set(ENTRIES) == known


def of_a_field(parties: dict[str, set[str]], field: Field) -> set[str]:
    """Return the parties found at a word, whichever of its names they use."""
    return set().union(*(parties.get(name, set()) for name in (field.name, *field.also)))


def in_python(word: str) -> set[str]:
    return {party for party, words in WRITES_IN_PYTHON.items() if word in words}


def test_the_parties_that_write_a_word_are_those_of_its_row(sources):
    written = sources.parties(CALLER, sources.written)
    wrong = {
        name: f"written by {sorted(who)}, the layout says {field.written_by!r}"
        for name, field in FIELDS.items()
        if name not in WHOLE
        and (who := of_a_field(written, field) | in_python(name)) != named(field.written_by)
    }
    assert wrong == {}, "\n".join(map(str, wrong.items()))


def test_nobody_reads_a_word_that_changes_but_those_of_its_row_and_who_writes_it(sources):
    read = sources.parties(CALLER, sources.read)
    wrong = {
        name: f"read by {sorted(more)} too, the layout says {field.read_by!r}"
        for name, field in FIELDS.items()
        if name not in WHOLE and field.ordering != "fork"
        if (more := of_a_field(read, field) - named(field.read_by) - named(field.written_by))
    }
    assert wrong == {}, "\n".join(map(str, wrong.items()))


def test_who_makes_an_event_happen_is_who_gets_to_its_kernels(sources):
    reached = sources.reached(CALLER)
    for event in slots.EVENTS:
        assert {name: reached[name] for name in event.kernels} == {
            name: set(event.owner.split(" or ")) for name in event.kernels
        }


INTRUDER = """

def intrude_{number}(mem):
    {line}
"""
WAYS = [
    ("mem[L.RETIRING] = 1", True, False),
    ("mem[L.RETIRING] += 1", True, True),
    ("store(mem, L.RETIRING, 0)", True, False),
    ("word = L.RETIRING; store(mem, word, 0)", True, False),
    ("waiting.notify(mem, L.RETIRING)", True, True),
    ("mailbox.copy_words(mem, L.ORCH_BACK_OFF, L.RETIRING, 1)", False, True),
    ("mem[mem[L.RETIRING]] = 0", False, True),
    ("mem[L.ORCH_BACK_OFF] = 0", False, False),
]


def test_an_access_is_found_however_it_is_made(tmp_path):
    folder = shutil.copytree(JIT, tmp_path / "jit", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "entries.py").open("a") as file:
        for number, (line, _, _) in enumerate(WAYS):
            file.write(INTRUDER.format(number=number, line=line))
    changed = Sources(folder)
    for number, (line, written, read) in enumerate(WAYS):
        where = f"entries.intrude_{number}"
        for accesses, expected in ((changed.written, written), (changed.read, read)):
            fields = set().union(*(changed.fields(where, index) for _, index in accesses(where)))
            assert ("RETIRING" in fields) == expected, line


def test_the_pass_is_run_by_the_scheduler_and_nobody_else(sources):
    assert sources.reached(CALLER)["schedule.scheduler_pass"] == {"Scheduler"}
