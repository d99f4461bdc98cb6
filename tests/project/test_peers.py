"""The comparison with other runtimes: its arithmetic, its verdicts, and what it says about gaps."""

import contextlib
import importlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from simpler_ref.jit.kernel import INTERPRETED

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
sys.path.insert(0, str(BENCHMARKS / "peers" / "runners"))
try:
    catalogue = importlib.import_module("peers.catalogue")
    environments = importlib.import_module("peers.environments")
    floor = importlib.import_module("floor")
    gauge = importlib.import_module("peers.gauge")
    measure = importlib.import_module("peers.measure")
    metg = importlib.import_module("peers.metg")
    report = importlib.import_module("peers.report")
    dags = importlib.import_module("dags")
    serve = importlib.import_module("serve")
finally:
    del sys.path[:2]


def overhead(cost, cores=2, ramp=1.0):
    """Return the efficiency of a runtime whose tasks cost so much besides their work."""
    return lambda length: metg.efficiency(1, length, cores, (length + cost * ramp) / cores)


@pytest.mark.parametrize("cost", [3e-7, 5e-6, 2e-3])
@pytest.mark.parametrize("guess", [1e-7, 1e-2])
def test_metg_is_the_length_at_which_work_equals_overhead(cost, guess):
    found = metg.smallest_length(overhead(cost), guess, 1e-9, 1.0)
    assert found == pytest.approx(cost, rel=0.01)


def test_processes_side_by_side_have_one_core_at_least_and_two_at_most():
    taken = gauge.Gauge()
    try:
        assert all(1 <= taken.cores() <= catalogue.WORKERS for _ in range(3))
    finally:
        taken.close()


# ---------------------------------------------------------------- the floor
@pytest.mark.skipif(INTERPRETED, reason="it is that of compiled code")
def test_the_floor_can_be_taken():
    taken = floor.Floor()
    try:
        assert taken.sample() > 0
    finally:
        taken.close()


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


def test_a_wrong_result_is_an_error_and_no_figure():
    class Wrong:
        def job(self, workload, parameters):
            return contextlib.nullcontext(serve.Job(lambda: None, lambda: False, 1))

    said = serve.answer(Wrong(), "chain n=3 repeats=1 budget=1.0")
    assert said == {"error": "AssertionError: the result is wrong"}


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


def test_targets_name_peers_and_workloads_that_exist_and_need_figures():
    for target in catalogue.TARGETS:
        assert {target.peer, *target.others} <= set(catalogue.PEERS)
        assert {*target.workloads, target.beside or "chain"} <= set(catalogue.TITLES)
        verdict = report.judge(target, {})
        assert (verdict["met"], verdict["words"]) == (None, "not measured")


def test_of_several_workloads_the_worst_beside_the_best_of_the_others_decides():
    found = {"own": 2.0, "pool": 9.0, "ray": 8.0}, {"own": 3.0, "ray": 4.0}
    results = {
        workload: {peer: {"median": value} for peer, value in values.items()}
        for workload, values in zip(("chain", "tree"), found, strict=True)
    }
    target = catalogue.Target("ours", "own", ("chain", "tree", "stencil"), 0.7, ("pool", "ray"))
    verdict = report.judge(target, results)
    assert (verdict["reached"], verdict["met"]) == (0.75, False)
    assert verdict["words"] == "tree reduction: 0.75 × Ray, wanted ≤ 0.7"
    alone = report.judge(target._replace(others=()), results)
    assert (alone["reached"], alone["met"]) == (3.0, False)
    beside = report.judge(
        target._replace(workloads=("tree",), others=("own",), beside="chain"), results
    )
    assert beside["reached"] == 1.5


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


# ---------------------------------------------------------------- the program
DEADLINE_S = 110
PEERS = ["own", "own_threads", "pool", "futures", "plain", "numpy"]
MEASURED = ["independent", "chain", "stencil", "tree", "random_1e6", "send", "cholesky"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("peers")


def bench(folder, *options):
    """Run the program; return the ended process."""
    program = [sys.executable, str(BENCHMARKS / "peers")]
    places = ["--folder", str(folder), "--save", str(folder / "peers.json")]
    return subprocess.run(
        [*program, "--quick", "--no-install", *places, *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=folder,
    )


def figures_of(folder):
    return json.loads((folder / "peers.json").read_text())


@pytest.mark.long
def test_every_workload_is_measured_or_says_why_not(folder):
    done = bench(folder, "--only", ",".join(PEERS))
    assert done.returncode == 0, done.stderr
    report = figures_of(folder)
    for name in report["titles"]:
        assert report["titles"][name] in done.stdout
    gaps = [
        (name, peer, entry["why_not"])
        for name, entries in report["results"].items()
        for peer, entry in entries.items()
        if "median" not in entry and not entry["why_not"].startswith("n/a")
    ]
    assert gaps == []
    for name in MEASURED:
        for peer in set(PEERS) - {"numpy"}:
            assert report["results"][name][peer]["median"] > 0
    assert report["floor_us"]["median"] > 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--only", "ray,celery"], "celery: unknown; there are own, "),
        pytest.param(["--workloads", "fft"], "fft: unknown; there are i", marks=pytest.mark.long),
        pytest.param(["--repeats", "0"], "0 is not a positive whole", marks=pytest.mark.long),
    ],
)
def test_wrong_options_are_explained(folder, options, complaint):
    done = bench(folder, *options)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
