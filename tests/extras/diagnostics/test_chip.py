"""FLAG-CHIP: runs of the simulated chip."""

import functools
import itertools
import resource
import sys

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import (
    ChipCallable,
    ChipError,
    ChipStatus,
    ChipWorker,
    CoreCallable,
    compile_kernel,
)
from tests import chip_kernels as K
from tests.chip_kernels import D, host_args
from tests.conformance.chip_abi.conftest import refused

from .conftest import ALL, Files, make
from .test_dump import NAMES
from .test_pmu import FIRST
from .test_swim import joined

BLOCKS = 48
WAVES = [64, 6, 1]
"""Launches of each wave of `waves`: one takes 64."""
FUNCTION = """
#include "simpler_kernel.h"

int32_t waves(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    for (int i = 0; i < 71; i++) {
        if (i == 70 && device->barrier(device))
            return 1;
        if (device->launch(device, 0, 3, args->tensors_, args->tensor_count_, 0, 0))
            return 1;
    }
    return 0;
}

/* Two launches side by side, then one of their sum, which goes through memory of the run. */
int32_t diamond(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    const SimplerContinuousTensor *t = args->tensors_;
    SimplerContinuousTensor a = t[2], b = t[2];
    a.data = device->alloc(device, 4 * simpler_elements(&a));
    b.data = device->alloc(device, 4 * simpler_elements(&b));
    a.padding[1] = b.padding[1] = 0;
    if (args->scalars_[0])
        simpler_dump(&b);
    const SimplerContinuousTensor left[] = {t[0], t[1], a}, right[] = {t[1], t[1], b};
    const SimplerContinuousTensor sum[] = {a, b, t[2]};
    device->launch(device, 0, 2, left, 3, 0, 0);
    device->launch(device, 0, 2, right, 3, 0, 0);
    device->barrier(device);
    return device->launch(device, 0, 2, sum, 3, 0, 0);
}

/* Marks, a barrier, then what returns an error in its last block. */
int32_t half(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    const uint64_t scalars[2] = {1, 5};
    device->launch(device, 0, 2, args->tensors_, 1, 0, 0);
    device->barrier(device);
    device->launch(device, 0, 3, args->tensors_, 1, 0, 0);
    return device->launch(device, 1, 1, 0, 0, scalars, 2);
}
"""
NOTHING = (
    '#include "simpler_kernel.h"\nint32_t simpler_kernel(const SimplerCoreArgs *a) { return !a; }'
)


@pytest.fixture(scope="module")
def chip():
    with ChipWorker() as made:
        made.prepare(0, ChipCallable.from_kernel(K.mark_core()))
        made.prepare(1, function("waves", [D.INOUT], K.mark_core()))
        yield made


@functools.cache
def functions():
    return compile_kernel(FUNCTION)


def function(name, signature, *cores):
    """Return one of these functions, with its kernels."""
    return ChipCallable.build(signature, name, functions(), list(enumerate(cores)))


def run_diamond(chip, files, scalar=0, **flags):
    """Run `diamond` with flags; return its inputs."""
    x, y = K.numbers(6)
    out = np.zeros(6, np.float32)
    args = host_args(x, y, out, scalars=(scalar,))
    if flags.get("enable_dump_tensor") == 1:
        args.dump(0, 2)
    slot = chip.prepare_free(function("diamond", [*K.ADD, D.SCALAR], K.add_core()))
    chip.run_args(slot, args, files.config(**flags))
    assert out.tolist() == (x + 3 * y).tolist()
    return x, y


@pytest.fixture(scope="module")
def diamond(chip, tmp_path_factory):
    """Return the inputs and the files of one run of `diamond`."""
    files = Files(tmp_path_factory.mktemp("diamond"))
    return *run_diamond(chip, files, **ALL), files


@pytest.fixture(scope="module")
def waves(chip, tmp_path_factory):
    """Return what one run of `waves` has written, and counted."""
    seen, files = np.zeros(BLOCKS, np.int32), Files(tmp_path_factory.mktemp("waves"))
    chip.run_args(1, host_args(seen), files.config(**ALL))
    return files, seen


@pytest.mark.spec("FLAG-CHIP-1", "FLAG-CHIP-2")
@pytest.mark.parametrize("blocks", [1, 7, BLOCKS])
def test_each_block_has_a_record_in_both_lists(chip, tmp_path, blocks):
    files, seen = Files(tmp_path / "deep" / "er"), np.zeros(BLOCKS, np.int32)
    chip.run_args(0, host_args(seen), files.config(enable_l2_swimlane=4, block_dim=blocks))
    assert seen.sum() == blocks
    records = files.swimlane
    rows = joined(records)
    assert len(rows) == blocks and {row[0] for row in rows} == {0}
    for _, _, queued, begin, end, known in rows:
        assert 0 < queued <= begin <= end <= known
    cores, metadata = {row[1] for row in rows}, records["metadata"]
    assert cores <= set(range(metadata["num_cores"])) and max(cores) + 1 == metadata["num_cores"]
    assert metadata["core_types"] == ["aiv"] * metadata["num_cores"]
    assert metadata["core_to_thread"] == [0] * metadata["num_cores"]
    assert metadata["clock_freq_hz"] == 10**9
    for core in cores:
        mine = [one for one in records["aicore_tasks"] if one[0] == core]
        assert [one[2] for one in mine] == list(range(len(mine)))
        times = [time for one in mine for time in one[3:]]
        assert times == sorted(times)


# ---------------------------------------------------------------- waves
@pytest.mark.spec("FLAG-CHIP-2", "FLAG-CHIP-8")
def test_launches_have_numbers_and_waves_have_phases(waves):
    files, seen = waves
    launches_made = sum(WAVES)
    # launches of one wave run side by side, and may lose an increment of another
    assert (seen[:3] >= len(WAVES)).all() and (seen[:3] <= launches_made).all()
    assert not seen[3:].any()
    records = files.swimlane
    tasks = [one[1] for one in records["aicore_tasks"]]
    assert sorted(tasks) == [launch for launch in range(launches_made) for _ in range(3)]
    (phases,) = records["aicpu_scheduler_phases"]
    assert [one["kind"] for one in phases] == ["dispatch", "complete"] * len(WAVES)
    assert [one["loop_iter"] for one in phases] == [0, 0, 1, 1, 2, 2]
    for name in ("tasks_processed", "pop_hit"):
        assert [one[name] for one in phases[::2]] == [3 * one for one in WAVES]
    assert [one["tasks_processed"] for one in phases[1::2]] == [3 * one for one in WAVES]
    for sent, done in zip(phases[::2], phases[1::2], strict=True):
        assert sent["start_cycles"] <= sent["end_cycles"] <= done["end_cycles"]
    (launches,) = records["aicpu_orchestrator_phases"]
    assert [one["submit_idx"] for one in launches] == [one["task_id"] for one in launches]
    assert [one["task_id"] for one in launches] == list(range(launches_made))
    times = [time for one in launches for time in (one["start_cycles"], one["end_cycles"])]
    assert times == sorted(times)
    summary, *lines = files.scopes
    assert summary["task_window_max"] == [64]
    ends = [one["task_window_end"] for one in lines if one["phase"] == "end"]
    assert ends == [64, 70, 71, 71]


# ---------------------------------------------------------------- files
@pytest.mark.spec("FLAG-CHIP-1")
def test_a_folder_that_cannot_be_made_is_an_error_before_the_run(chip, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    below, seen = Files(tmp_path / "file" / "below"), np.zeros(BLOCKS, np.int32)
    for flags in {"enable_dump_tensor": 2}, {"enable_l2_swimlane": 4}:
        with pytest.raises(ChipError, match=r"the files in .*/below cannot be written: Not a dir"):
            chip.run_args(0, host_args(seen), below.config(**flags))
    assert not seen.any()


@pytest.mark.spec("FLAG-CHIP-1")
@pytest.mark.parametrize("room", [280, 400, 3000])
def test_where_there_is_no_room_for_records_the_run_fails_and_says_so(chip, files, room):
    args, limits = host_args(np.zeros(BLOCKS, np.int32)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(ChipError, match="cannot be recorded: File too large"):
            chip.run_args(0, args, files.config(enable_l2_swimlane=4))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    chip.run_args(0, args, files.config(enable_l2_swimlane=4))
    assert len(files.swimlane["aicore_tasks"]) == BLOCKS


def signal_at(step):
    """Return a trace function: a signal comes at this line of what runs with flags."""
    left = itertools.count(step, -1)

    def trace(frame, event, _):
        if event == "line" and next(left) == 0:
            raise KeyboardInterrupt
        return trace if frame.f_code is ChipWorker._run_recorded.__code__ else None

    return trace


@pytest.mark.spec("FLAG-CHIP-1")
def test_after_a_signal_between_two_steps_of_a_run_the_next_one_writes_its_files(chip, tmp_path):
    args, before = host_args(np.zeros(BLOCKS, np.int32)), sys.gettrace()
    for step in itertools.count():
        ended, files = Files(tmp_path / "ended"), Files(tmp_path / str(step))
        try:
            sys.settrace(signal_at(step))
            chip.run_args(0, args, ended.config(enable_scope_stats=1))
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        chip.run_args(0, args, files.config(enable_scope_stats=1))
        assert files.names() == ["scope_stats/scope_stats.jsonl"]
    assert step > 4


@pytest.mark.spec("FLAG-CHIP-1", "FLAG-CHIP-2", "FLAG-CHIP-5", "FLAG-CHIP-6", "FLAG-CHIP-8")
def test_a_run_that_fails_has_what_was_done(chip, files):
    slot = chip.prepare_free(function("half", [D.INOUT], K.mark_core(), K.bad_core()))
    with pytest.raises(ChipError, match=r"func_id 1 .* returned error 5"):
        chip.run_args(slot, host_args(np.zeros(BLOCKS, np.int32)), files.config(**ALL))
    ran = [one[1] for one in files.swimlane["aicore_tasks"]]
    assert ran.count(0) == 2 and ran.count(1) <= 3 and ran.count(2) == 1
    assert sorted(int(one["task_id"], 16) for one in files.pmu) == sorted(ran)
    edges = [(one["pred"], one["succ"]) for one in files.deps["edges"]]
    assert edges == [("0", "1"), ("0", "2")]
    told = [(int(one["task_id"], 16), one["stage"], one["kind"]) for one in files.dump["args"]]
    first, last = "before_dispatch", "after_completion"
    tensors = [(0, first, "tensor"), (0, last, "tensor"), (1, first, "tensor")]
    assert told == [*tensors, *[(2, first, "scalar")] * 2]
    summary, *lines = files.scopes
    assert summary["fatal"] is True
    assert [one["phase"] for one in lines] == ["begin", "begin", "end", "begin", "end", "end"]
    for config in (files.config(enable_l2_swimlane=4, block_dim=3), CallConfig()):
        chip.run_args(0, host_args(np.zeros(BLOCKS, np.int32)), config)
        assert len(files.swimlane["aicore_tasks"]) == 3  # of the next run with flags


@pytest.mark.spec("FLAG-CHIP-1")
def test_values_that_mean_nothing_and_flags_without_a_folder_are_refused_by_name(chip, files):
    args = host_args(np.zeros(BLOCKS, np.int32))
    for flag, value, words in (
        ("enable_dump_tensor", 4, "it can be 0 to 3"),
        ("enable_pmu", 9, "it can be 0, 1 .arithmetic."),
        ("enable_dep_gen", 2, "it can be 0 to 1"),
    ):
        config = files.config(enable_l2_swimlane=4, **{flag: value})
        with refused(ChipStatus.CONFIG, f"{flag} is {value}; {words}"):
            chip.run_args(0, args, config)
    view = (1).to_bytes(8, "little") + args._tensors[0]
    for flag in ALL:
        wire = CallConfig(output_prefix="x", **{flag: 1}).to_bytes().replace(b"x", b"\0")
        with refused(ChipStatus.CONFIG, "without output_prefix"):
            chip.run(0, view, len(view), wire)
    assert not files.folder.exists()


# ---------------------------------------------------------------- the graph
@pytest.mark.spec("FLAG-CHIP-5")
def test_launches_are_tasks_and_barriers_are_edges(diamond):
    deps = diamond[-1].deps
    assert [one["task_id"] for one in deps["tasks"]] == ["0", "1", "2"]
    assert all(one["scope"] == "manual" for one in deps["tasks"])
    assert all(one["kernel_ids"] == [-1, 0, -1] for one in deps["tasks"])
    types = [one["type"] for one in deps["tasks"][0]["args"]]
    assert types == ["INPUT", "INPUT", "OUTPUT_EXISTING"]
    shape = {"dtype": "FLOAT32", "shape": [6], "start_offset": "0", "strides": [1]}
    for task in deps["tasks"]:
        for i, one in enumerate(task["args"]):
            assert one == {"idx": i, "type": one["type"], "tensor_id": one["tensor_id"]} | shape
    left, right, both = ([one["tensor_id"] for one in task["args"]] for task in deps["tasks"])
    assert right[:2] == [left[1]] * 2 and both[:2] == [left[2], right[2]]
    assert len({*left, *right, *both}) == len(deps["tensors"]) == 5
    assert [one["tensor_id"] for one in deps["tensors"]] == [str(i) for i in range(5)]
    assert all(one["buffer_numel"] == "6" and one["version"] == 0 for one in deps["tensors"])
    assert len({one["buffer_addr"] for one in deps["tensors"]}) == 5
    explicit = {"arg": -1, "source": "explicit"}
    assert deps["edges"] == [{"pred": pred, "succ": "2"} | explicit for pred in "01"]


# ---------------------------------------------------------------- arguments
def dumped(files):
    """Return each entry as task, stage, number and elements."""
    return [
        (one["task_id"], one["stage"], one["arg_index"], files.elements(one).tolist())
        for one in files.dump["args"]
    ]


def before(task, i, elements):
    return (f"{task:#x}", "before_dispatch", i, elements.tolist())


def after(task, i, elements):
    return (f"{task:#x}", "after_completion", i, elements.tolist())


@pytest.mark.spec("FLAG-CHIP-6")
def test_what_launches_read_is_dumped_before_their_wave_and_what_they_write_after_it(diamond):
    x, y, files = diamond
    assert dumped(files) == [
        *(before(0, 0, x), before(0, 1, y), before(1, 0, y), before(1, 1, y)),
        *(after(0, 2, x + y), after(1, 2, y + y)),
        *(before(2, 0, x + y), before(2, 1, y + y), after(2, 2, x + 3 * y)),
    ]
    manifest = files.dump
    assert all(set(one) == NAMES and one["func_id"] == 0 for one in manifest["args"])
    assert {one["role"] for one in manifest["args"] if "before" in one["stage"]} == {"input"}
    assert {one["role"] for one in manifest["args"] if "after" in one["stage"]} == {"output"}
    assert (manifest["bin_file"], manifest["dump_tensor_level"]) == ("args.bin", 2)
    assert manifest["total_args"] == manifest["total_tensors"] == 9


@pytest.mark.spec("FLAG-CHIP-6")
def test_inout_is_dumped_twice_and_scalars_once(chip, files):
    core = CoreCallable.build([D.INOUT, D.SCALAR], compile_kernel(NOTHING))
    slot, x = chip.prepare_free(ChipCallable.from_kernel(core)), np.arange(4, dtype=np.int32)
    chip.run_args(slot, host_args(x, scalars=(1 << 60,)), files.config(enable_dump_tensor=2))
    assert dumped(files) == [before(0, 0, x), before(0, 1, np.uint64(1 << 60)), after(0, 0, x)]
    scalar = files.dump["args"][1]
    assert (scalar["kind"], scalar["dtype"], scalar["role"]) == ("scalar", "UINT64", "input")
    assert [one["role"] for one in files.dump["args"]] == ["inout", "input", "inout"]
    assert [files.dump[f"total_{one}"] for one in ("args", "tensors", "scalars")] == [3, 2, 1]


MARKED = [before(2, 1, np.float32([1] * 6)), after(1, 2, np.float32([1] * 6))]


@pytest.mark.spec("FLAG-CHIP-6")
@pytest.mark.parametrize("by_function", [0, 1])
def test_level_1_dumps_marked_tensors_of_all_launches(chip, files, by_function):
    x, y = run_diamond(chip, files, by_function, enable_dump_tensor=1)
    found = dumped(files)
    assert before(0, 0, x) in found and after(2, 2, x + 3 * y) in found
    assert all(one in found for one in MARKED) is bool(by_function)
    assert len(found) == 2 + 2 * by_function


@pytest.mark.spec("FLAG-CHIP-6")
@pytest.mark.parametrize("level", [2, 3])
def test_marks_of_a_task_reach_its_chip(files, level):
    options = {"level": 2} if level == 2 else {"level": 3, "device_ids": [0]}
    config = files.config(enable_dump_tensor=1)
    with Worker(**options) as w:
        handle = w.register(ChipCallable.from_kernel(K.add_core()))
        x, y, out = (w.zeros(4, np.float32) for _ in range(3))
        x[:] = 3
        args = make((x, T.INPUT), (y, T.INPUT), (out, T.OUTPUT_EXISTING))
        args.dump(x, out)
        if level == 2:
            w.run(handle, args, config)
        else:
            w.run(lambda orch, *_: orch.submit_next_level(handle, args, config))
        assert dumped(files) == [before(0, 0, np.float32([3] * 4)), after(0, 2, x)]


# ---------------------------------------------------------------- scopes
@pytest.mark.spec("FLAG-CHIP-8")
def test_a_run_and_its_waves_are_scopes(diamond):
    summary, *lines = diamond[-1].scopes
    heap = 5 * 64  # three tensors of the run, two that the function has allocated
    assert summary == {
        "version": 6,
        "fatal": False,
        "dropped": 0,
        "total": 6,
        "task_window_max": [2],
        "heap_max": [heap],
        "dep_pool_max": [0],
        "tensormap_max": 0,
    }
    names = ("phase", "depth", "task_window_start", "task_window_end")
    assert [tuple(one[name] for name in names) for one in lines] == [
        ("begin", 0, 0, 0),
        *(("begin", 1, 0, 0), ("end", 1, 0, 2)),
        *(("begin", 1, 2, 2), ("end", 1, 2, 3)),
        ("end", 0, 3, 3),
    ]
    assert [one["heap_end"] for one in lines] == [0, *[heap] * 5]
    assert all(one["site"] == "diamond" and one["ring"] == 0 for one in lines)
    assert all(one["heap_start"] == one["dep_pool_end"] == one["tensormap"] == 0 for one in lines)


# ---------------------------------------------------------------- counters
@pytest.mark.spec("FLAG-PMU-2")
def test_each_block_has_a_row(chip, files):
    for event in (1, 2, 4, 5, 6, 7, 8):
        config = files.config(enable_l2_swimlane=1, enable_pmu=event, block_dim=7)
        chip.run_args(0, host_args(np.zeros(BLOCKS, np.int32)), config)
        assert files.swimlane["l2_swimlane_level"] == 1
        ran = [(core, hex(task)) for core, task, *_ in files.swimlane["aicore_tasks"]]
        assert [(int(one["core_id"]), one["task_id"]) for one in files.pmu] == ran
        assert len(ran) == 7
        for one in files.pmu:
            assert list(one)[:6] == FIRST and list(one)[-1] == "event_type"
            told = (one["core_type"], one["event_type"], one["func_id"], one["thread_id"])
            assert told == ("aiv", str(event), "0", "0")


@pytest.mark.spec("FLAG-CHIP-1")
def test_a_worker_of_level_2_and_a_task_of_level_3_record_their_chip(tmp_path):
    two, task, run = (Files(tmp_path / name) for name in ("two", "task", "run"))
    with Worker(level=2) as w:
        handle = w.register(ChipCallable.from_kernel(K.mark_core()))
        bad = w.register(ChipCallable.from_kernel(K.bad_core()))
        seen = np.zeros(BLOCKS, np.int32)
        w.run(handle, host_args(seen), two.config(enable_l2_swimlane=4, block_dim=5))
        with pytest.raises(TaskError, match="returned error"):
            w.run(bad, host_args(scalars=(1, 5)), two.config(block_dim=1, **ALL))
        assert len(two.pmu) == 1 and two.scopes[0]["fatal"]
        w.run(handle, host_args(seen), two.config(block_dim=5, **ALL))
    assert len(two.swimlane["aicore_tasks"]) == len(two.pmu) == 5
    assert len(two.deps["tasks"]) == 1 and len(two.dump["args"]) == 2 and len(two.scopes) == 5
    with Worker(level=3, device_ids=[0]) as w:
        handle = w.register(ChipCallable.from_kernel(K.mark_core()))
        x = w.zeros(BLOCKS, np.int32)

        def main(orch, *_):
            config = task.config(block_dim=6, **ALL)
            orch.submit_next_level(handle, make((x, T.INOUT)), config)

        w.run(main, None, run.config(enable_l2_swimlane=4, enable_dump_tensor=2, enable_dep_gen=1))
    assert len(task.swimlane["aicore_tasks"]) == len(task.pmu) == 6
    assert len(run.swimlane["aicore_tasks"]) == 1 and len(run.deps["tasks"]) == 1
    assert run.dump["args"] == []  # of the chip's task, which has flags of its own
