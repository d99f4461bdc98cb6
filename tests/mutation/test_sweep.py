"""The sweep: what a machine changes, how a mutant is judged, how a sample is drawn and counted."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections import Counter

import pytest

from simpler_ref.jit import layout, lock
from simpler_ref.jit.kernel import INTERPRETED

from . import sweep
from .sweep_changes import code_of, made, mutants, neighbours
from .sweep_forks import Step, become, judge
from .sweep_known import Known

SOURCE = '''
LIMIT = 8

class L:
    W_A, W_B, W_C = 1, 2, 4

def room(mem, w):
    """Say whether there is room.

    Rule     WM-POOL-3
    """
    if mem[w + L.W_B] < LIMIT and not mem[0]:
        mem[1] = 3
        return True
    return max(w, 2) == 5
'''
FIELDS = neighbours({"W_A": 1, "W_B": 2, "W_C": 4, "S_A": 3})


@pytest.fixture(scope="module")
def found():
    return list(mutants("sample.py", SOURCE, FIELDS))


@pytest.fixture
def module(tmp_path):
    """Give the sample as a module of its own."""
    path = tmp_path / "sample.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("sample", path)
    made_of = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made_of)
    return made_of


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("comparison", "LIMIT and", "if mem[w + L.W_B] <= LIMIT and (not mem[0]):"),
        ("comparison", "LIMIT and", "if mem[w + L.W_B] >= LIMIT and (not mem[0]):"),
        ("operator", "LIMIT and", "if mem[w - L.W_B] < LIMIT and (not mem[0]):"),
        ("operator", "LIMIT and", "if mem[w + L.W_B] < LIMIT or not mem[0]:"),
        ("operand", "LIMIT and", "if not mem[0]:"),
        ("operand", "LIMIT and", "if mem[w + L.W_B] < LIMIT:"),
        ("field", "LIMIT and", "if mem[w + L.W_A] < LIMIT and (not mem[0]):"),
        ("field", "LIMIT and", "if mem[w + L.W_C] < LIMIT and (not mem[0]):"),
        ("condition", "LIMIT and", "if not (mem[w + L.W_B] < LIMIT and (not mem[0])):"),
        ("condition", "LIMIT and", "if mem[w + L.W_B] < LIMIT and mem[0]:"),
        ("constant", "mem[1] = 3", "mem[1] = 4"),
        ("constant", "mem[1] = 3", "mem[1] = 2"),
        ("statement", "mem[1] = 3", "pass"),
        ("constant", "return True", "return False"),
        ("statement", "return True", "pass"),
        ("operator", "return max", "return min(w, 2) == 5"),
    ],
)
def test_each_kind_of_change_is_made(found, kind, before, after):
    of_kind = [m.key.after for m in found if m.kind == kind and before in m.key.before]
    assert of_kind.count(after) == 1


def test_branches_are_swapped_and_answers_dropped():
    source = "def f(x):\n    if x:\n        y = 1\n    else:\n        y = 2\n    return g(y)\n"
    changed = {(m.kind, m.key.after) for m in mutants("f.py", source, {})}
    assert {("branches", "if not x:"), ("return", "return 0")} <= changed


def test_texts_idle_calls_and_missing_names_are_no_mutants(found):
    assert not [m for m in found if "Say whether" in m.key.before]
    assert not list(mutants("f.py", "def f(mem):\n    fail_point(mem, 0, 3)\n", {}))
    assert not list(mutants("f.py", "def f():\n    'text'\n    x = y\n", {}))


def test_changes_of_the_same_words_are_told_apart():
    two = "def f(a):\n    a[0] = 1\n    a[0] = 1\n"
    keys = [m.key for m in mutants("f.py", two, {}) if m.kind == "statement"]
    assert [key.nth for key in keys] == [0, 1]


def test_a_change_is_taken_back(found, module):
    before = [m.key for m in found]
    for mutant in found:
        with made(mutant.change):
            pass
        assert code_of(mutant, module.__file__).co_name == "room"
    assert [m.key for m in mutants("sample.py", SOURCE, FIELDS)] == before


def test_of_every_kernel_file_each_mutant_has_a_key_of_its_own():
    found = Counter(m.key for m in sweep.all_mutants(["lock.py", "queues.py", "atomics.py"]))
    assert found and set(found.values()) == {1}


# ---------------------------------------------------------------- judging
def steps(module, limit_s=5.0):
    """Return a test that looks at one answer of the sample, and no more."""
    return [
        Step("there is room", limit_s, lambda _: module.room([0, 0, 0, 0, 0], 0) is True),
        Step("always", limit_s, lambda _: True),
    ]


def verdict_of(module, found, after, more=()):
    mutant = next(m for m in found if m.key.after == after)
    return judge([*more, *steps(module)], lambda: become(mutant, module))


def test_a_mutant_is_caught_by_the_first_test_that_fails(module, found):
    verdict = verdict_of(module, found, "return False")
    assert (verdict.caught_by, verdict.hung, verdict.unreliable) == ("there is room", False, ())
    assert module.room([0, 0, 0], 0) is True  # only a fork has become the mutant


def test_a_mutant_that_no_test_notices_survives(module, found):
    assert verdict_of(module, found, "mem[1] = 4").caught_by == ""


def test_a_test_that_fails_without_the_mutant_too_does_not_count(module, found):
    broken = Step("broken", 5.0, lambda _: False)
    verdict = verdict_of(module, found, "return False", [broken])
    assert (verdict.caught_by, verdict.unreliable) == ("there is room", ("broken",))


def test_a_fork_that_dies_or_hangs_has_noticed(module, found):
    changed = module.room

    def unless_changed(what):
        return lambda _: changed([0, 0, 0], 0) is True or what() is None

    mutant = next(m for m in found if m.key.after == "return False")
    for what, hung in ((lambda: os._exit(0), False), (lambda: time.sleep(60), True)):
        step = Step("told", 0.5, unless_changed(what))
        verdict = judge([step], lambda: become(mutant, module))
        assert (verdict.caught_by, verdict.hung) == ("told", hung)


@pytest.mark.skipif(not INTERPRETED, reason="only interpreted kernels can become mutants")
def test_a_kernel_becomes_a_mutant_wherever_it_was_imported():
    found = sweep.all_mutants(["lock.py"])
    mutant = next(m for m in found if m.key.after == "return load(mem, L.PASS_LOCK) == 0")
    mem = [0] * layout.HEADER_WORDS

    def locks_once(_):
        lock.try_lock(mem)
        return mem[layout.PASS_LOCK] == 1

    assert judge([Step("lock", 5.0, locks_once)], lambda: become(mutant, lock)).caught_by == "lock"


# ---------------------------------------------------------------- drawing and counting
def test_every_beginning_of_the_order_has_files_and_kinds_as_the_whole(found):
    many = [
        m._replace(key=m.key._replace(file=f"{i % 2}.py", nth=i)) for i in range(40) for m in found
    ]
    order = sweep.spread(many, 1)
    assert sorted(m.key for m in order) == sorted(m.key for m in many)
    assert order == sweep.spread(many, 1) != sweep.spread(many, 2)
    half = Counter((m.key.file, m.kind) for m in order[: len(order) // 2])
    whole = Counter((m.key.file, m.kind) for m in many)
    assert all(abs(half[stratum] - whole[stratum] / 2) <= 1 for stratum in whole)


def test_the_interval_is_that_of_wilson():
    assert sweep.wilson(0, 0) == (0.0, 1.0)
    low, high = sweep.wilson(80, 100)
    assert (round(low, 3), round(high, 3)) == (0.711, 0.867)
    assert sweep.wilson(10, 10)[1] == 1.0


def a_sweep(monkeypatch, tmp_path, found, equivalent=(), undecided=()):
    """Return a sweep of the sample: its first mutant was caught, its second survived."""
    monkeypatch.setattr(sweep, "EQUIVALENT", tuple(equivalent))
    monkeypatch.setattr(sweep, "UNDECIDED", tuple(undecided))
    made_of = sweep.Sweep(argparse.Namespace(seconds=1.0), tmp_path)
    for mutant, test in zip(found, ("a test", ""), strict=False):
        result = sweep.Result(mutant.key, mutant.kind, 1, ["WM-POOL-3"], test, False, 0.1, 1)
        made_of.results.add(result)
        made_of.sampled.add(mutant.key)
    return made_of


def test_survivors_are_listed_by_rule(monkeypatch, tmp_path, found):
    lines = sweep.report(a_sweep(monkeypatch, tmp_path, found), found)
    assert any(line.startswith("noticed") and " 1 of    2" in line for line in lines)
    rule = lines.index("WM-POOL-3")
    assert found[1].key.after in lines[rule + 1]
    assert sweep.Results(tmp_path).all.keys() == {found[0].key, found[1].key}


def test_what_is_known_to_be_equivalent_does_not_count(monkeypatch, tmp_path, found):
    known = Known(found[1].key, "nobody sees it")
    lines = sweep.report(a_sweep(monkeypatch, tmp_path, found, equivalent=[known]), found)
    assert any(line.startswith("noticed") and " 1 of    1" in line for line in lines)
    assert "1 of the sample are equivalent" in lines


def test_what_is_known_of_a_text_that_is_gone_is_stale(monkeypatch, tmp_path, found):
    gone = Known(found[0].key._replace(before="no such line"), "it was so")
    lines = sweep.report(a_sweep(monkeypatch, tmp_path, found, undecided=[gone]), found)
    assert [line for line in lines if line.startswith("stale")] == [
        f"stale, the source has no such text any more: {gone.key}"
    ]


def test_what_is_known_says_why_and_is_known_once():
    known = [*sweep.EQUIVALENT, *sweep.UNDECIDED]
    assert all(one.why for one in known)
    assert len({one.key for one in known}) == len(known)
