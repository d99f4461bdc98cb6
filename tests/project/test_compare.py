"""``make bench-compare``: it names what got slower by more than the noise, and nothing else."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    compare = importlib.import_module("compare")
    figures = importlib.import_module("figures")
    in_turns = importlib.import_module("in_turns")
finally:
    sys.path.remove(str(BENCHMARKS))

FLOOR_US = 0.1


def entry(median, spread=0.01, *, floor=FLOOR_US, floor_spread=0.0, rounds=7, **more):
    """Return a figure of a saved run: a time in µs."""
    plain = {"unit": "µs", "rounds": rounds, "median": median, "spread": spread}
    ground = {"floor_us": floor, "floor_spread_us": floor_spread}
    multiple = {"multiple": median / floor, "multiple_spread": spread / floor}
    words = {"more_is_better": False, "informative": False}
    return {**plain, **ground, **multiple, **words, **more}


def share(value, **more):
    """Return a figure of a saved run that is no time."""
    plain = {"unit": "×", "rounds": 7, "median": value, "spread": 0.01}
    return {**plain, "more_is_better": True, "informative": False, **more}


def run(day=1, **entries):
    """Return a saved run."""
    floor = entries.get("chain_1", {}).get("floor_us", FLOOR_US)
    entries.setdefault("floor", entry(floor, 0.0, floor=floor, informative=True))
    return {
        "datetime": f"2025-01-{day:02}T00:00:00",
        "machine_info": {"cpu": {"brand_raw": "a machine", "count": 2}},
        "commit_info": {"id": "c" * 40, "dirty": False},
        "benchmarks": [{"extra_info": {"figures": entries}}, {"extra_info": {}}],
    }


def got_worse(old, new):
    return compare.compare(old, new)[1]


CHAIN = "run: chain of dependent tasks, 1 worker"
RESTLESS = {"floor_spread": 0.01}
TIMES = {
    "worse by more than the noise": (entry(1.0), entry(1.2), True),
    "within the noise of the first run": (entry(1.0, 0.1), entry(1.15, 0.0), False),
    "within the noise of the second run": (entry(1.0, 0.0), entry(1.15, 0.1), False),
    "a restless floor is noise": (entry(1.0, 0.0, **RESTLESS), entry(1.3, 0.0, **RESTLESS), False),
    "a calm floor is none": (entry(1.0, 0.0), entry(1.3, 0.0), True),
    "a slower machine": (entry(1.0), entry(3.0, 0.03, floor=3 * FLOOR_US), False),
    "more multiples but less time": (entry(1.0), entry(0.9, floor=FLOOR_US / 2), False),
    "less than a hundredth": (entry(1.0, 0.0), entry(1.009, 0.0), False),
    "more than a hundredth": (entry(1.0, 0.0), entry(1.011, 0.0), True),
}


@pytest.mark.parametrize(("before", "after", "worse"), TIMES.values(), ids=TIMES)
def test_what_got_slower_by_more_than_the_noise_is_named_and_nothing_else(before, after, worse):
    old = run(chain_1=before, stencil_1=entry(2.0, floor=before["floor_us"]))
    new = run(chain_1=after, stencil_1=entry(2.0, floor=after["floor_us"]))
    assert got_worse(old, new) == [CHAIN] * worse


def test_where_more_is_better_less_is_worse_and_information_is_no_regression():
    title = "workers: tasks of 1 ms, speed-up by a second worker"
    assert got_worse(run(speed_up=share(1.9)), run(speed_up=share(1.5))) == [title]
    assert got_worse(run(speed_up=share(1.5)), run(speed_up=share(1.9))) == []
    before = run(windowed_growth=share(1.0, informative=True))
    assert got_worse(before, run(windowed_growth=share(0.1, informative=True))) == []


# ---------------------------------------------------------------- the command
def compared(folder, *runs):
    for i, one in enumerate(runs):
        (folder / f"{i}.json").write_text(json.dumps(one))
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "compare.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_compares_the_two_latest_runs_and_says_what_got_worse(tmp_path):
    runs = [run(3, chain_1=entry(1.5)), run(1, chain_1=entry(9.0)), run(2, chain_1=entry(1.0))]
    done = compared(tmp_path, *runs)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"1 got worse by more than the noise: {CHAIN}." in done.stdout
    done = compared(tmp_path, run(2, chain_1=entry(1.0)), run(3, chain_1=entry(0.5)), runs[1])
    assert done.returncode == 0
    assert "better" in done.stdout
    assert "Nothing got worse by more than the noise of both runs." in done.stdout


def machines_run(brand, day):
    return {
        **run(day, chain_1=entry(1.0)),
        "machine_info": {"cpu": {"brand_raw": brand, "count": 2}},
    }


@pytest.fixture
def choose(tmp_path, monkeypatch):
    """Return a function that says what is compared where runs are saved, without measuring."""
    here = {"cpu": {"brand_raw": "here", "count": 2}}
    monkeypatch.setattr(compare, "pytest_benchmark_generate_machine_info", lambda: here)
    monkeypatch.setattr(compare, "taken", lambda tree, installed, rows: ("now", rows))
    monkeypatch.setattr(compare, "in_turns", lambda *asked: ("turns", asked))
    monkeypatch.setattr(compare, "previous", lambda: "v1")

    def choose(*runs, before=None, rows=None):
        for i, one in enumerate(runs):
            (tmp_path / f"{i}.json").write_text(json.dumps(one))
        return compare.two_runs(tmp_path, before, rows, 3)

    return choose


def test_the_latest_run_is_compared_with_one_before_it_or_what_is_there_is_measured(choose):
    """With that of its machine, the working tree, or the previous release, in turns."""
    assert choose() == ("turns", ("v1", None, 3))
    assert choose(machines_run("elsewhere", 1), rows="chain") == ("turns", ("v1", "chain", 3))
    old, new = choose(machines_run("here", 1))
    assert (old["datetime"][:10], new) == ("2025-01-01", ("now", None))
    assert choose(machines_run("here", 2), before="abc") == ("turns", ("abc", None, 3))
    old, new = choose(machines_run("x", 1), machines_run("y", 2), machines_run("x", 3))
    assert (old["datetime"][:10], new["datetime"][:10]) == ("2025-01-01", "2025-01-03")


def test_the_release_or_commit_before_is_found(tmp_path, monkeypatch):
    def git(*words):
        identity = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(in_turns, "ROOT", tmp_path)
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")
    with pytest.raises(in_turns.CannotMeasureError, match=r"no commit before.*--before"):
        in_turns.previous()
    (tmp_path / "file").write_text("2")
    assert in_turns.previous() == "HEAD"
    git("commit", "-qam", "two")
    assert in_turns.previous() == "HEAD~1"
    git("tag", "v1", "HEAD~1")
    git("tag", "v2")
    assert in_turns.previous() == "v1"


def test_runs_of_one_tree_are_merged_to_their_medians(tmp_path):
    runs = [run(day, chain_1=entry(median)) for day, median in enumerate((1.0, 9.0, 2.0), 1)]
    found = in_turns.figures_of(in_turns.merged(runs))["chain_1"]
    assert (found["median"], found["rounds"], found["unit"]) == (2.0, 21, "µs")


def test_the_command_says_why_it_cannot_compare(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise in_turns.CannotMeasureError("no commit")

    monkeypatch.setattr(compare, "two_runs", refuse)
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path)])
    assert (compare.main(), capsys.readouterr().out) == (2, "no commit\n")
