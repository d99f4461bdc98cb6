"""FLAG-RUN: runs with flags."""

import os

import numpy as np
import pytest
from numba import int64

import simpler_ref as sr
from simpler_ref import TaskError, Trace, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from tests.conformance.see.conftest import fail
from tests.kernels import kernels

from .conftest import ALL, flagging, increase, make

FILES = [
    *("args_dump/args.bin", "args_dump/args_dump.json", "chip_swimlane_records.json", "deps.json"),
    *("l2_swimlane_records.json", "name_map_main.json", "pmu.csv", "scope_stats/scope_stats.jsonl"),
]


@sr.leaf
def double(x: int64[:]):
    for i in range(len(x)):
        x[i] *= 2


def chain(orch, x, handle, *_):
    for _ in range(3):
        orch.submit_sub(handle, make((x, T.INOUT)))


@pytest.mark.spec("FLAG-RUN-1")
def test_each_flag_writes_its_file_and_no_other(tmp_path):
    begins = {"enable_dump_tensor": ("args_",), "enable_dep_gen": ("deps",), "enable_pmu": ("pmu",)}
    begins |= {"enable_l2_swimlane": ("l2_", "chip_"), "enable_scope_stats": ("scope_",)}
    with flagging() as run:
        for flag, value in ALL.items():
            files = run(chain, tmp_path / flag, **{flag: value})
            expected = [one for one in FILES if one.startswith(("name_map", *begins[flag]))]
            assert files.names() == expected and len(expected) > 1


@pytest.mark.spec("FLAG-RUN-2")
def test_a_run_without_flags_records_nothing_also_after_one_with_them(files):
    config = files.config(**ALL)
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        handle, x = w.register(increase), w.zeros(8, np.int64)
        mem, plain, opened = w._session.engine.mem, w._session.engine.kernels, []
        for given in (None, config, None):

            def main(orch, args, config, on=given is not None):
                assert (mem[L.TRACING] != 0, mem[L.TRACE_EXTRAS] != 0) == (on, on)
                assert (w._session.engine.kernels is plain) is not on
                orch.submit_sub(handle, make((x, T.INOUT)))

            w.run(main, None, given)
            opened.append(set(os.listdir("/proc/self/fd")))
            assert files.folder.exists() == (len(opened) > 1)
        assert opened[0] == opened[2]
        assert len(files.deps["tasks"]) == 1 and x.tolist() == [3] * 8
    assert files.names() == FILES


@pytest.mark.spec("FLAG-RUN-6")
def test_compiled_tasks_are_dumped_and_counted_and_compiled_again_afterwards(files, mode):
    config = files.config(enable_dump_tensor=2, enable_pmu=1)
    with Worker(level=3, num_sub_workers=1, child_mode=mode) as w:
        handle, x = w.register(double), w.zeros(4, np.int64)
        x[:] = [1, 2, 3, 4]

        for given in (None, config, None):
            w.run(lambda orch, *_: orch.submit_sub(handle, make((x, T.INOUT))), None, given)
        before, after = files.dump["args"]
        assert files.elements(before).tolist() == [2, 4, 6, 8]
        assert files.elements(after).tolist() == [4, 8, 12, 16]
        assert len(files.pmu) == 1 and x.tolist() == [8, 16, 24, 32]
    assert len(files.pmu) == 1


@pytest.mark.spec("FLAG-RUN-5")
def test_functions_have_names_by_the_numbers_of_the_other_files(flagged):
    def build(orch, x, first, second):
        orch.submit_sub(second, make((x[0], T.INOUT)))
        orch.submit_sub(first, make((x[0], T.INOUT)))

    files = flagged(build, increase, double, enable_dep_gen=1, enable_pmu=1)
    names = files.json("name_map_main.json")
    assert (names["level"], names["orchestrator_name"]) == (3, "main")
    known = names["callable_id_to_name"]
    called = [known[str(one["kernel_ids"][1])] for one in files.deps["tasks"]]
    assert called == ["double", "increase"]
    assert {known[one["func_id"]] for one in files.pmu} == {"double", "increase"}


@pytest.mark.spec("FLAG-RUN-1", "FLAG-RUN-2")
def test_files_are_about_the_last_run_of_that_folder_and_written_also_if_it_fails(files):
    config = files.config(**ALL)
    with Worker(level=3, num_sub_workers=1) as w:
        handle, failing = w.register(increase), w.register(fail)
        x = w.zeros(8, np.int64)

        def main(orch, count, config):
            for _ in range(count):
                orch.submit_sub(handle if count > 1 else failing, make((x, T.INOUT)))

        for count in (5, 2):
            w.run(main, count, config)
            assert len(files.deps["tasks"]) == len(files.swimlane["aicore_tasks"]) == count
            assert len(files.pmu) == count and len(files.dump["args"]) == 2 * count
            assert files.scopes[0]["fatal"] is False
        with pytest.raises(TaskError, match="on purpose"):
            w.run(main, 1, config)
    assert files.scopes[0]["fatal"] is True and len(files.swimlane["aicore_tasks"]) == 1
    assert [one["stage"] for one in files.dump["args"]] == ["before_dispatch"]
    assert files.names() == FILES


@pytest.mark.spec("FLAG-RUN-6")
def test_what_cannot_be_recorded_is_refused_by_name(tmp_path, files):
    def refused(flag, error, words, ask):
        config = files.config(**{flag: 1})
        with pytest.raises(error, match=words):
            ask(lambda *_: pytest.fail("it ran"), None, config)

    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        words = "enable_dep_gen=True: record runs no tasks"
        refused("enable_dep_gen", NotImplementedError, words, w.record)
        with w.trace(tmp_path / "a.trace", detail="tasks"):
            words = "with detail='tasks', and the diagnostics"
            refused("enable_dep_gen", ValueError, words, w.run)
    with Worker(fleet=sr.ProcessFleet(), endpoints=1, num_sub_workers=1) as w:
        for flag in ("enable_dump_tensor", "enable_pmu"):
            refused(flag, NotImplementedError, f"{flag}=1: the endpoints", w.run)
    assert not files.folder.exists()


@pytest.mark.spec("FLAG-RUN-2")
def test_a_trace_that_is_being_taken_serves_and_goes_on(tmp_path, files):
    path, config = str(tmp_path / "a.trace"), files.config(**ALL)
    with Worker(level=3, num_sub_workers=1, trace=path, child_mode="thread") as w:
        handle, x = w.register(increase), w.zeros((4, 6), np.int64)
        for given in (None, config, None):
            w.run(lambda orch, *_: chain(orch, x, handle), None, given)
        assert [one["task_id"] for one in files.deps["tasks"]] == ["0", "1", "2"]
        assert len(files.swimlane["aicore_tasks"]) == len(files.pmu) == 3
    trace = Trace.open(path)
    assert (len(trace.runs), len(trace.ran), trace.is_whole) == (3, 9, True)


@pytest.mark.spec("FLAG-RUN-2")
def test_files_have_what_is_left_if_notes_were_dropped(files):
    config = files.config(**ALL)
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        handle, x = w.register(increase), w.zeros((4, 6), np.int64)
        mem = w._session.engine.mem
        w.start()
        mask = kernels.journal_at(mem, L.JOURNAL_OF_ORCH) + L.J_MASK

        def main(orch, *_):
            for turn in range(3):
                size = mem[mask]
                mem[mask] = -1 if turn == 1 else size  # as if it had no room
                with orch.scope():
                    chain(orch, x, handle)
                mem[mask] = size
            orch.drain()

        w.run(main, None, config)
    assert x.sum() == 9 * 24 and len(files.swimlane["aicore_tasks"]) == 9
    assert files.scopes[0]["dropped"] > 0 and files.dump["dropped"] > 0
    known = [one["task_id"] for one in files.deps["tasks"]]
    assert len(known) == 6 and "-1" not in known
    assert all(one["succ"] in known and one["pred"] in known for one in files.deps["edges"])
