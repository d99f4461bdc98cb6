"""The comparison with other runtimes: its arithmetic, its verdicts, and what it says about gaps."""

import importlib
import io
import sys
import tarfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
sys.path.insert(0, str(BENCHMARKS / "peers" / "runners"))
try:
    catalogue = importlib.import_module("peers.catalogue")
    environments = importlib.import_module("peers.environments")
    measure = importlib.import_module("peers.measure")
    metg = importlib.import_module("peers.metg")
    report = importlib.import_module("peers.report")
    dags = importlib.import_module("dags")
    serve = importlib.import_module("serve")
finally:
    del sys.path[:2]


# ---------------------------------------------------------------- METG
def overhead(cost, cores=2, ramp=1.0):
    """Return the efficiency of a runtime whose tasks cost so much besides their work."""
    return lambda length: metg.efficiency(1, length, cores, (length + cost * ramp) / cores)


@pytest.mark.parametrize("cost", [3e-7, 5e-6, 2e-3])
@pytest.mark.parametrize("guess", [1e-7, 1e-2])
def test_metg_is_the_length_at_which_work_equals_overhead(cost, guess):
    found = metg.smallest_length(overhead(cost), guess, 1e-9, 1.0)
    assert found == pytest.approx(cost, rel=0.01)


def test_metg_is_sought_within_its_range_and_need_not_exist():
    def one_core_at_a_time(length):
        return metg.efficiency(100, length, 2, 100 * (length + 1e-6))

    asked = []

    def watched(length):
        asked.append(length)
        return overhead(1e-4)(length)

    assert metg.efficiency(100, 1e-3, 2, 0.1) == pytest.approx(0.5)
    assert metg.smallest_length(one_core_at_a_time, 1e-6, 1e-9, 1e-2) is None
    assert metg.smallest_length(lambda length: 0.9, 1e-5, 1e-8, 1.0) == 1e-8
    metg.smallest_length(watched, 1e-9, 1e-6, 1e-3)
    assert min(asked) >= 1e-6
    assert max(asked) <= 1e-3


# ---------------------------------------------------------------- graphs
GRAPHS = {"independent": {"n": 7}, "chain": {"n": 7}}
GRAPHS |= {"stencil": {"width": 4, "steps": 5, "spins": 1}, "tree": {"leaves": 8}}
GRAPHS |= {"cholesky": {"n": 96, "tile": 32}, "send": {"mib": 1}, "receive": {"mib": 1}}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_run_in_order_gives_what_it_should_and_a_wrong_value_is_noticed(name):
    dag = dags.GRAPHS[name](**GRAPHS[name])
    values = dag.evaluate()
    assert dag.agrees(values)
    values[-1] = values[-1] + 1
    assert not dag.agrees(values)


def test_a_level_holds_only_tasks_whose_producers_are_in_earlier_levels():
    dag = dags.GRAPHS["cholesky"](n=128, tile=32)
    level_of = {task: i for i, level in enumerate(dag.levels()) for task in level}
    assert sorted(level_of) == list(range(len(dag)))
    for task, producers in enumerate(dag.producers):
        assert level_of[task] == 1 + max((level_of[one] for one in producers), default=-1)


def test_a_random_graph_looks_back_a_thousand_tasks_and_names_nobody_twice(tmp_path):
    graph = dags.read_graph(measure.random_graph(5000, tmp_path / "graph"))
    task, used = np.arange(5000)[:, None], graph >= 0
    assert used.any() and (graph[used] < np.broadcast_to(task, graph.shape)[used]).all()
    assert (task - graph)[used].max() <= measure.LOOKS_BACK
    for row in graph.tolist():
        named = [one for one in row if one >= 0]
        assert len(set(named)) == len(named)
    assert set(np.unique(used.sum(axis=1))) == {0, 1, 2, 3}


def test_levels_and_futures_run_a_graph_to_the_same_end():
    dag = dags.GRAPHS["stencil"](width=4, steps=6, spins=0)
    by_levels = serve.by_levels(lambda calls: [function(*args) for function, args in calls])
    by_futures = serve.by_futures(lambda function, *args: function(*args), lambda values: values)
    assert by_levels(dag)() == by_futures(dag)() == dag.evaluate()
    assert dags.stencil_values(2, 1) == [1 + 0 + 1 + 1, 0 + 3 + 0 + 1], "by hand"


def test_the_first_run_warms_up_and_one_that_takes_the_whole_budget_is_not_repeated():
    runs = []
    job = serve.Job(lambda: runs.append(len(runs)), lambda: True, 1)
    assert (len(serve.seconds_of(job, repeats=4, budget_s=60.0)), len(runs)) == (4, 5)
    assert len(serve.seconds_of(job, repeats=4, budget_s=0.0)) == 1


def test_a_wrong_result_is_an_error_and_no_figure():
    class Wrong:
        def job(self, workload, parameters):
            return serve._Open(serve.Job(lambda: None, lambda: False, 1))

    said = serve.answer(Wrong(), "chain n=3 repeats=1 budget=1.0")
    assert said == {"error": "AssertionError: the result is wrong"}


# ---------------------------------------------------------------- rounds
def test_rounds_take_turns_among_the_peers_that_are_there_and_end_in_time(monkeypatch):
    visited, clock = [], [0.0]

    def run(visit, figures):  # by a clock that moves only while a peer is visited
        visited.append(visit._peer.title)
        clock[0] += measure.FULL.minutes * 60 / 6 * 0.99

    monkeypatch.setattr(measure.Visit, "run", run)
    monkeypatch.setattr(measure.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(measure, "others_share", lambda: 0.01)
    several = {name: measure.Taken() for name in ("own", "pool", "ray")}
    several["ray"].skipped = "no wheel"
    around = measure.take(several, [], measure.FULL, None, lambda: 1e-7)
    assert len(around.floors) == len(around.others) == len(visited) == 6
    pair = ("simpler_ref", "multiprocessing.Pool")
    assert {tuple(visited[i : i + 2]) for i in range(0, 6, 2)} <= {pair, pair[::-1]}


class Answers:
    """Stands for the session with a runner: a task takes so long, whatever it is."""

    seconds_per_spin = 1e-8

    def __init__(self, seconds_per_task):
        self.each = seconds_per_task
        self.asked = []

    def ask(self, request, timeout_s):
        self.asked.append(request)
        _, parameters = serve.parse(request)
        if "path" in parameters:
            return [self.each * 1000], 1000
        tasks = parameters.get("n") or parameters.get("steps", 1) * 8
        return [self.each * tasks], tasks

    def close(self, patience_s=None):
        pass


def visit(tmp_path, seconds_per_task, *names, peer="pool"):
    """Visit a peer whose tasks take so long; return what was taken and asked."""
    place = environments.Environments(tmp_path, install=False)
    one = measure.Visit(catalogue.PEERS[peer], measure.Taken(), measure.FULL, place)
    session = one._session = Answers(seconds_per_task)
    one.run(names)
    return one._taken, session.asked


def test_a_peer_is_asked_for_what_it_can_do_in_time_and_concerns_it(tmp_path):
    for each, size in ((1e-6, 16384), (2e-4, 4096), (1.0, 64)):
        assert visit(tmp_path, each, "independent")[0].sizes == {"independent": size}
    taken, asked = visit(tmp_path, 1e-5, "chain")
    assert taken.values["chain"] == [pytest.approx(1e-5)]
    assert asked[-1].startswith("chain n=4096 repeats=5 ")
    assert visit(tmp_path, 1e-6, "submit", "one_worker")[1] == []
    assert len(visit(tmp_path, 1e-6, "submit", peer="starpu")[1]) == 2
    assert visit(tmp_path, 1e-6, "metg_8", peer="plain")[0].words == {"metg_8": "n/a: no workers"}
    taken, asked = visit(tmp_path, 2e-3, "random_1e3", "random_1e4", "random_1e5")
    assert list(taken.values) == ["random_1e3"]
    assert len(asked) == 2, "a larger graph is not tried after a smaller one was too much"
    words = {"n/a: a run would take about 20 s"}
    assert {taken.words[name] for name in ("random_1e4", "random_1e5")} == words


def test_a_figure_is_taken_again_while_the_host_takes_the_cores_away(monkeypatch):
    times = namedtuple("times", ["steal", "user"])
    for shares, kept, stolen in (
        ([0.01], 1.0, 0.01),
        ([0.2, 0.02], 2.0, 0.02),
        ([0.5, 0.1, 0.2, 0.3], 2.0, 0.1),
    ):
        at, values = [0.0, 0.0], []

        def value(at=at, values=values, shares=shares):
            at[0] += shares[len(values)]
            at[1] += 1 - shares[len(values)]
            values.append(len(values) + 1.0)
            return values[-1]

        monkeypatch.setattr(measure.psutil, "cpu_times", lambda at=at: times(*at))
        one = measure.Taken()
        one.add_quietest("chain", 4, value)
        assert one.values == {"chain": [kept]}
        assert one.stolen == [pytest.approx(stolen)]


# ---------------------------------------------------------------- the report
def taken(**values):
    one = measure.Taken(versions={"Peer": "1.0"}, starts=[0.5])
    for name, several in values.items():
        one.values[name] = several
        if name in catalogue.WORKLOADS:
            one.sizes[name] = catalogue.WORKLOADS[name].sizes[-1]
    return one


def test_the_report_has_the_median_and_the_spread_of_the_rounds():
    made = report.make_report(
        {"own": taken(chain=[1e-6, 2e-6, 3e-6, 4e-6, 50e-6])},
        measure.Around([1e-7, 1e-7]),
        measure.FULL,
    )
    entry = made["results"]["chain"]["own"]
    assert entry["median"] == pytest.approx(3.0)
    assert entry["spread"] == pytest.approx(1.0)
    assert entry["multiple"] == pytest.approx(30.0)
    assert "3.00 µs" in "\n".join(report.lines_of(made))


def test_a_restless_machine_and_a_host_that_keeps_the_cores_are_mentioned():
    calm, loud = measure.Around([1e-7], [0.01, 0.2, 0.0]), measure.Around([1e-7], [0.3, 0.5, 0.4])
    for around, stolen in ((calm, 0.01), (loud, 0.2)):
        one = measure.Taken(stolen=[stolen])
        said = "\n".join(report.lines_of(report.make_report({"own": one}, around, measure.FULL)))
        others = "Other programs used 40% of the cores: do not trust these figures."
        assert (others in said) == (around is loud)
        assert ("The host kept 20% of the cores to itself" in said) == (around is loud)


def test_what_is_smaller_missing_or_skipped_is_explained_in_the_table():
    slow = taken(chain=[1e-3])
    slow.sizes["chain"] = 64
    slow.words["tree"] = "too slow: no answer within 60 s"
    several = {"dask": slow, "ray": measure.Taken(skipped="no wheel for it")}
    made = report.make_report(several, measure.Around(), measure.FULL)
    assert made["peers"]["ray"]["skipped"] == "no wheel for it"
    lines = report.lines_of(made)
    assert "  Ray: skipped: no wheel for it" in lines
    text = "\n".join(lines)
    assert "(size 64 instead of 4096)" in text and "too slow: no answer within 60 s" in text


def results(**figures):
    return {name: {p: {"median": v} for p, v in peers.items()} for name, peers in figures.items()}


def test_the_worst_workload_and_the_best_peer_decide_who_is_ahead():
    target = catalogue.Ahead("", "own", ("pool", "mpire"), ("independent", "chain"), 10.0)
    first, second = {"own": 2.0, "pool": 19.0, "mpire": 43.0}, {"own": 1.0, "pool": 90.0}
    figures = results(independent=first, chain=second)
    verdict = report.judge(target, figures)
    assert verdict["met"] is False
    assert verdict["reached"] == pytest.approx(9.5)
    assert "independent tasks: 9.50 × cheaper than multiprocessing.Pool" in verdict["words"]


def test_bounds_growth_and_touching_compare_figures():
    bound = catalogue.Bound("", "own", "chain", 5.0)
    growth = catalogue.Growth("", "own", "random_1e6", "random_1e3", 1.2)
    touching = catalogue.Touching("", "own", ("send",), 1.1)
    for target, figures, met in (
        (bound, {"chain": {"own": 5.0}}, True),
        (bound, {"chain": {"own": 5.1}}, False),
        (growth, {"random_1e6": {"own": 3.0}, "random_1e3": {"own": 2.0}}, False),
        (touching, {"send": {"own": 10.5, "plain": 10.0}}, True),
    ):
        assert report.judge(target, results(**figures))["met"] is met


def test_targets_name_peers_and_workloads_that_exist_and_need_figures():
    for target in catalogue.TARGETS:
        found = {"peers": set(), "workloads": set()}
        for name, value in target._asdict().items():
            several = {value} if isinstance(value, str) else value
            if name in ("peer", "others"):
                found["peers"] |= set(several)
            elif name in ("workload", "workloads", "over", "under"):
                found["workloads"] |= set(several)
        assert all(found.values())
        assert found["peers"] <= set(catalogue.PEERS)
        assert found["workloads"] <= set(catalogue.TITLES)
        verdict = report.judge(target, {})
        assert (verdict["met"], verdict["words"]) == (None, "not measured")


# ---------------------------------------------------------------- environments
def test_without_a_package_the_reason_to_skip_is_what_pip_says(tmp_path):
    place = environments.Environments(tmp_path, install=False)
    with pytest.raises(environments.SkippedError, match="joblib is not installed in joblib/"):
        place.command(catalogue.PEERS["joblib"])
    place = environments.Environments(tmp_path, install=True)
    fails = [sys.executable, "-c", "print('fine so far'); exit('ERROR: no such thing')"]
    with pytest.raises(environments.SkippedError, match="cannot: ERROR: no such thing"):
        place._run(fails, tmp_path / "log", "cannot")
    assert "fine so far" in (tmp_path / "log").read_text()


def test_only_headers_come_out_of_an_archive(tmp_path):
    folder = "x-1/extern/taskflow/taskflow"
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as archive:
        for name in ("taskflow.hpp", "core/graph.hpp", "../../../../escaped.hpp", "setup.py"):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = 3
            archive.addfile(member, io.BytesIO(b"// "))
    place = tmp_path / "out"
    environments.unpack_headers(tmp_path / "source.tar.gz", place)
    files = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    assert files == ["taskflow/core/graph.hpp", "taskflow/taskflow.hpp"]
    assert not list(tmp_path.rglob("escaped.hpp"))
