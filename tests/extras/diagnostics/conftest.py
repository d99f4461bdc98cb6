"""Runs with flags, and what their files say."""

import csv
import json
from contextlib import contextmanager

import numpy as np
import pytest

from simpler_ref import CallConfig, Worker
from tests.conformance.see.conftest import increase, make

__all__ = ["Files", "increase", "make"]


ALL = {"enable_l2_swimlane": True, "enable_dep_gen": 1, "enable_dump_tensor": 2}
ALL |= {"enable_scope_stats": 1, "enable_pmu": 1}


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

    def config(self, **flags):
        """Return a configuration with flags that write here."""
        return CallConfig(output_prefix=str(self.folder), **flags)

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


@contextmanager
def flagging(*functions, **options):
    """Yield a function that runs an orchestration function on one Worker, with flags into a folder."""
    given = {"level": 3, "num_sub_workers": 2, "heap_ring_size": 1 << 20, "child_mode": "thread"}
    with Worker(**given | options) as w:
        handles = [w.register(one) for one in functions or (increase,)]
        x = w.zeros((4, 6), np.int64)

        def run(build, folder, **flags):
            files = Files(folder)

            def main(orch, args, config):
                build(orch, x, *handles)

            w.run(main, None, files.config(**flags))
            return files

        yield run


@pytest.fixture
def flagged(files):
    """Return a function that runs an orchestration function with flags on a Worker of its own."""

    def run(build, *functions, child_mode="thread", **flags):
        with flagging(*functions, child_mode=child_mode) as run_in:
            return run_in(build, files.folder, **flags)

    return run
