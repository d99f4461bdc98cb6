"""Runs with flags, and what their files say."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from simpler_ref import CallConfig, Worker

from ..see.conftest import increase, make

__all__ = ["Files", "increase", "make"]


class Files:
    """A folder of files that flags have written."""

    def __init__(self, folder):
        self.folder = folder

    def __getattr__(self, flag):
        """Return the contents of a flag's file; the name is that of the flag without ``enable_``."""
        return {
            "swimlane": lambda: self.json("l2_swimlane_records.json"),
            "deps": lambda: self.json("deps.json"),
            "dump": lambda: self.json("args_dump/args_dump.json"),
            "scopes": lambda: [
                json.loads(line) for line in self.text("scope_stats/scope_stats.jsonl").splitlines()
            ],
            "pmu": lambda: list(csv.DictReader(self.text("pmu.csv").splitlines())),
        }[flag]()

    def text(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    def json(self, name):
        return json.loads(self.text(name))

    def names(self):
        return sorted(
            one.relative_to(self.folder).as_posix()
            for one in self.folder.rglob("*")
            if one.is_file()
        )

    def elements(self, entry):
        """Return the elements of an entry of the manifest."""
        raw = (self.folder / "args_dump/args.bin").read_bytes()
        part = raw[entry["bin_offset"] : entry["bin_offset"] + entry["bin_size"]]
        return np.frombuffer(part, entry["dtype"].lower()).reshape(entry["shape"])


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path / "out")


@pytest.fixture(params=["process", "thread"])
def mode(request):
    return request.param


@pytest.fixture
def flagged(files):
    """Return a function that runs an orchestration function with flags on a Worker of its own."""

    def run(build, *, options=None, functions=(increase,), **flags):
        given = {"level": 3, "num_sub_workers": 2, "heap_ring_size": 1 << 20} | (options or {})
        with Worker(**given) as w:
            handles = [w.register(one) for one in functions]
            x = w.zeros((4, 6), np.int64)

            def main(orch, args, config):
                build(orch, x, *handles)

            w.run(main, None, CallConfig(output_prefix=str(files.folder), **flags))
        return files

    return run
