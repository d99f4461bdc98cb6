"""The sweep: what a machine changes, how a mutant is judged, how a sample is drawn and counted."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections import Counter

import pytest

from . import sweep, sweep_code
from .sweep_changes import fields_of, mutants
from .sweep_code import Notes, Unfit, of_mutant, put_in
from .sweep_forks import Step, judge

SOURCE = '''
LIMIT = 8

def room(mem, w):
    """Say whether there is room.

    Rule     WM-POOL-3
    """
    if mem[w + 2] < LIMIT and not mem[0]:
        mem[1] = 3
        return True
    return max(w, 2) == 5
'''


@pytest.fixture(scope="module")
def found():
    return list(mutants("sample.py", SOURCE))


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Give a way to make a module of a package of its own."""
    monkeypatch.setattr(sweep_code, "PACKAGE", tmp_path)

    def load(source):
        sweep_code.functions_of.cache_clear()
        path = tmp_path / "sample.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("sample", path)
        made_of = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made_of)
        monkeypatch.setattr(sweep_code, "module_of", lambda file: made_of)
        return made_of

    return load


@pytest.fixture
def module(load):
    return load(SOURCE)


CONDITION = "if mem[w + L.W_B] < LIMIT and (not mem[0]):"


@pytest.mark.parametrize(
    ("kind", "statement", "made"),
    [
        ("comparison", CONDITION, [CONDITION.replace("<", "<="), CONDITION.replace("<", ">=")]),
        ("operator", "x = w + y or z", ["x = w - y or z", "x = w + y and z"]),
        ("operand", CONDITION, ["if not mem[0]:", "if mem[w + L.W_B] < LIMIT:"]),
        ("field", CONDITION, [CONDITION.replace("W_B", "W_A"), CONDITION.replace("W_B", "W_C")]),
        (
            "condition",
            CONDITION,
            ["if mem[w + L.W_B] < LIMIT and mem[0]:", f"if not ({CONDITION[3:-1]}):"],
        ),
        ("constant", "mem[w] = 3", ["mem[w] = 2", "mem[w] = 4"]),
        *(("constant", "return True", ["return False"]), ("statement", "return True", ["pass"])),
        ("operator", "return max(w, 2) == 5", ["return min(w, 2) == 5"]),
        ("branches", "if x:\n  y = a\n else:\n  y = b", ["if not x:"]),
        *(("return", "return g(x)", ["return 0"]), ("operator", "x = w + L.W_ZERO", [])),
        *((None, "x: A | B = y", []), (None, "fail_point(mem, 0, 3)", []), (None, "'text'", [])),
    ],
)
def test_these_changes_of_a_kind_are_made(kind, statement, made):
    body = f"{statement}\n  pass" if statement.endswith(":") else statement
    fields = fields_of({"W_ZERO": 0, "W_A": 1, "W_B": 2, "W_C": 4, "S_A": 3})
    found = list(mutants("f.py", f"def f(x):\n {body}\n", fields))
    assert sorted(m.key.after for m in found if m.kind == (kind or m.kind)) == sorted(made)


def test_each_mutant_of_the_package_has_a_key_of_its_own():
    found = sweep.all_mutants(["jit/lock.py", "jit/queues.py", "calls/turns.py", "orch/steps.py"])
    assert found and set(Counter(m.key for m in found).values()) == {1}


# ---------------------------------------------------------------- other code for functions
NESTED = """
import contextlib
import functools

class Base:
    def __init__(self):
        self.based = True

class Counted(Base):
    def __init__(self):
        super().__init__()
        self.seen = [0]

    @functools.cached_property
    def first(self):
        return self.seen[0] == 0

    @classmethod
    def made(cls):
        return cls() is not None

def outer(free):
    def inner():
        free.append(1)
        return sum(free) == 1
    return inner

kept = outer([])

@contextlib.contextmanager
def given():
    yield 5
"""


@pytest.mark.parametrize(
    ("function", "after", "see"),
    [
        ("Counted.first", "return self.seen[0] != 0", lambda m: m.Counted().first is False),
        ("Counted.made", "return cls() is None", lambda m: m.Counted.made() is False),
        ("Counted.__init__", "self.seen = [1]", lambda m: m.Counted().seen == [1]),
        ("Counted.__init__", "pass", lambda m: not hasattr(m.Counted(), "based")),
        ("outer.inner", "free.append(2)", lambda m: m.outer([])() is m.kept() is False),
        ("outer.inner", "pass", lambda m: m.outer([])() is m.kept() is False),
        ("given", "pass", lambda m: list(m.given.__wrapped__()) == []),
        ("outer", "return 0", lambda m: m.outer([]) == 0 and m.kept() is True),
    ],
)
def test_functions_of_every_sort_become_mutants(load, function, after, see):
    module = load(NESTED)
    key = (function, after)
    mutant = next(m for m in mutants("sample.py", NESTED) if (m.key[1], m.key.after) == key)
    changes, seen = of_mutant(mutant), Step("seen", 5.0, lambda _: not see(module))
    assert judge([seen], lambda: put_in(changes)).caught_by == "seen"


def test_a_mutant_that_no_function_can_become_is_refused(load, found):
    load("def room(mem, w):\n    return 1\n")
    with pytest.raises(Unfit):
        of_mutant(found[0])


def test_what_runs_is_noted_by_this_process_and_its_forks(module):
    notes = Notes(["sample.py"])
    notes.put_in()
    notes.clear()
    if (pid := os.fork()) == 0:
        module.room([0] * 5, 0)
        os._exit(0)
    os.waitpid(pid, 0)
    in_fork = notes.read()
    notes.clear()
    module.room([9] * 5, 0)
    lines = {text.strip(): i for i, text in enumerate(SOURCE.splitlines(), 1)}
    entered = lines["if mem[w + 2] < LIMIT and not mem[0]:"]
    assert in_fork == {"sample.py": [entered, lines["mem[1] = 3"], lines["return True"]]}
    assert notes.read() == {"sample.py": [entered, lines["return max(w, 2) == 5"]]}


# ---------------------------------------------------------------- judging
@pytest.mark.parametrize(("after", "noticed"), [("return False", "room"), ("mem[1] = 4", "")])
def test_a_mutant_is_caught_by_the_first_test_that_fails(module, found, after, noticed):
    changes = of_mutant(next(m for m in found if m.key.after == after))
    steps = [
        Step("broken", 5.0, lambda _: False),  # without the mutant too, so it does not count
        Step("always", 5.0, lambda _: True),
        Step("room", 5.0, lambda _: module.room([0, 0, 0, 0, 0], 0) is True),
    ]
    verdict = judge(steps, lambda: put_in(changes))
    assert (verdict.caught_by, verdict.hung, verdict.unreliable) == (noticed, False, ("broken",))
    assert module.room([0, 0, 0], 0) is True  # only a fork has become the mutant


@pytest.mark.parametrize(
    ("what", "hung"),
    [
        (lambda: os._exit(0), False),
        (lambda: time.sleep(60), True),
        (lambda: os.kill(-1, 0), False),  # would be every process there is
    ],
    ids=["dies", "hangs", "kills"],
)
def test_a_fork_that_dies_or_hangs_has_noticed(module, found, what, hung):
    changes = of_mutant(next(m for m in found if m.key.after == "return False"))
    told = Step("told", 0.5, lambda _: module.room([0, 0, 0], 0) is True or what() is not None)
    verdict = judge([told], lambda: put_in(changes))
    assert (verdict.caught_by, verdict.hung) == ("told", hung)


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
    assert (round(low, 3), round(high, 3), sweep.wilson(10, 10)[1]) == (0.711, 0.867, 1.0)


@pytest.fixture
def a_sweep(monkeypatch, tmp_path, found):
    """Give a sweep of the sample: its first mutant was caught, its second survived."""
    monkeypatch.setattr(sweep, "EQUIVALENT", {})
    made_of = sweep.Sweep(argparse.Namespace(seconds=1.0, part=1, parts=1), tmp_path)
    for mutant, test in zip(found, ("a test", ""), strict=False):
        result = sweep.Result(mutant.key, mutant.kind, 1, ["WM-POOL-3"], test, False, 0.1, 1)
        made_of.add(result)
        made_of.sampled.add(mutant.key)
    return made_of


def test_survivors_are_listed_by_rule_and_what_is_equivalent_is_not(monkeypatch, a_sweep, found):
    def noticed(of):
        return any(line.startswith("noticed") and f" 1 of    {of}" in line for line in lines)

    lines = sweep.report(a_sweep)
    assert noticed(of=2)
    assert lines[-1].startswith("WM-POOL-3\n") and found[1].key.after in lines[-1]
    assert sweep.read_results(a_sweep.path).keys() == {found[0].key, found[1].key}
    monkeypatch.setattr(sweep, "EQUIVALENT", {found[1].key: "nobody sees it"})
    lines = sweep.report(a_sweep)
    assert noticed(of=1) and "1 of the sample are equivalent" in lines


def test_what_another_run_judged_is_judged_first_by_tests_that_noticed(monkeypatch, a_sweep, found):
    judged = []
    before = {m.key: a_sweep.results[found[0].key]._replace(key=m.key) for m in found[2:4]}
    before[found[3].key] = before[found[3].key]._replace(caught_by="gone")
    monkeypatch.setattr(a_sweep, "measure", lambda: True)
    monkeypatch.setattr(a_sweep, "judge", lambda of, steps, **_: judged.append((of, len(steps))))
    a_sweep.items = {"a test": argparse.Namespace(nodeid="a test")}
    a_sweep.judge_like(found, before)
    assert judged == [(found[2], 1), (found[2], 0), (found[3], 0)]


def test_what_is_known_fits_the_source_and_says_why():
    assert sweep.stale() == []
    assert all(sweep.EQUIVALENT.values())
