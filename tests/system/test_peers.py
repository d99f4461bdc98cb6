"""``make bench-peers`` with small sizes and only what is installed already."""

import json
import subprocess
import sys

import pytest

from ..spec_rules import ROOT

DEADLINE_S = 110
PEERS = ["own", "own_threads", "pool", "futures", "plain", "numpy"]
MEASURED = ["independent", "chain", "stencil", "tree", "random_1e6", "send", "cholesky"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("peers")


def bench(folder, *options):
    """Run the program; return the ended process."""
    program = [sys.executable, str(ROOT / "benchmarks" / "peers")]
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
