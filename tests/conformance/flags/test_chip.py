"""FLAG-CHIP: runs of the simulated chip."""

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import (
    ChipCallable,
    ChipError,
    ChipStatus,
    ChipWorker,
    compile_kernel,
)
from tests import chip_kernels as K
from tests.chip_kernels import D, host_args

from .conftest import Files, make
from .test_swim import joined

BLOCKS = 24
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
"""


def config_of(files, level=4, **fields):
    return CallConfig(enable_l2_swimlane=level, output_prefix=str(files.folder), **fields)


@pytest.fixture
def chip():
    children = [(0, K.mark_core())]
    waves = ChipCallable.build([D.INOUT], "waves", compile_kernel(FUNCTION), children)
    with ChipWorker() as made:
        made.prepare(0, ChipCallable.from_kernel(K.mark_core()))
        made.prepare(1, waves)
        yield made


@pytest.fixture
def nested_files(tmp_path):
    return Files(tmp_path / "deep" / "er")


@pytest.mark.spec("FLAG-CHIP-1", "FLAG-CHIP-2")
@pytest.mark.parametrize("blocks", [1, 7, BLOCKS])
def test_each_block_has_a_record_in_both_lists(chip, nested_files, blocks):
    seen = np.zeros(BLOCKS, np.int32)
    chip.run_args(0, host_args(seen), config_of(nested_files, block_dim=blocks))
    assert seen.sum() == blocks
    records = nested_files.swimlane
    rows = joined(records)
    assert len(rows) == blocks and {row[0] for row in rows} == {0}
    for _, _, queued, begin, end, known in rows:
        assert 0 < queued <= begin <= end <= known
    cores = {row[1] for row in rows}
    metadata = records["metadata"]
    assert cores <= set(range(metadata["num_cores"])) and max(cores) + 1 == metadata["num_cores"]
    assert metadata["core_types"] == ["aiv"] * metadata["num_cores"]
    assert metadata["core_to_thread"] == [0] * metadata["num_cores"]
    assert metadata["clock_freq_hz"] == 10**9
    for core in cores:
        mine = [one for one in records["aicore_tasks"] if one[0] == core]
        assert [one[2] for one in mine] == list(range(len(mine)))
        times = [time for one in mine for time in one[3:]]
        assert times == sorted(times)


@pytest.mark.spec("FLAG-CHIP-1", "FLAG-CHIP-3")
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_levels_add_lists(chip, files, level):
    chip.run_args(0, host_args(np.zeros(BLOCKS, np.int32)), config_of(files, level))
    records = files.swimlane
    assert records["l2_swimlane_level"] == level
    lists = ["aicore_tasks", "aicpu_tasks", "aicpu_scheduler_phases", "aicpu_orchestrator_phases"]
    assert [name for name in records if name.startswith("aic")] == lists[:level]
    assert ("core_to_thread" in records["metadata"]) is (level >= 3)


@pytest.mark.spec("FLAG-CHIP-2", "FLAG-CHIP-3")
def test_launches_have_numbers_and_waves_have_phases(chip, files):
    seen = np.zeros(BLOCKS, np.int32)
    chip.run_args(1, host_args(seen), config_of(files))
    launches_made = sum(WAVES)
    assert seen.tolist() == [launches_made] * 3 + [0] * (BLOCKS - 3)
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


@pytest.mark.spec("FLAG-CHIP-1")
def test_a_run_that_fails_writes_its_file_and_the_next_one_another(chip, files):
    chip.prepare(2, ChipCallable.from_kernel(K.bad_core()))
    with pytest.raises(ChipError, match="returned error"):
        chip.run_args(2, host_args(scalars=(1, 5)), config_of(files, block_dim=1))
    assert len(files.swimlane["aicore_tasks"]) == 1
    seen = np.zeros(BLOCKS, np.int32)
    chip.run_args(0, host_args(seen), config_of(files, block_dim=3))
    assert len(files.swimlane["aicore_tasks"]) == 3
    chip.run_args(0, host_args(seen))
    assert len(files.swimlane["aicore_tasks"]) == 3


@pytest.mark.spec("FLAG-CHIP-1")
def test_a_folder_that_cannot_be_made_is_an_error(chip, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    config = config_of(Files(tmp_path / "file" / "below"))
    with pytest.raises(ChipError, match=r"l2_swimlane_records.json cannot be written: Not a dir"):
        chip.run_args(0, host_args(np.zeros(BLOCKS, np.int32)), config)


@pytest.mark.spec("FLAG-CHIP-4")
@pytest.mark.parametrize(
    "flag", ["enable_dump_tensor", "enable_pmu", "enable_dep_gen", "enable_scope_stats"]
)
def test_other_flags_are_refused_by_name(chip, files, flag):
    config = config_of(files, **{flag: 1})
    seen = np.zeros(BLOCKS, np.int32)
    with pytest.raises(ChipError, match=f"{flag} is 1, which the simulated chip cannot") as found:
        chip.run_args(0, host_args(seen), config)
    assert found.value.code == ChipStatus.CONFIG and not seen.any()
    assert not files.folder.exists()


@pytest.mark.spec("FLAG-CHIP-1")
def test_a_worker_of_level_2_and_a_task_of_level_3_record_their_chip(tmp_path):
    two, task, run = (Files(tmp_path / name) for name in ("two", "task", "run"))
    with Worker(level=2) as w:
        handle = w.register(ChipCallable.from_kernel(K.mark_core()))
        seen = np.zeros(BLOCKS, np.int32)
        w.run(handle, host_args(seen), config_of(two, block_dim=5))
        with pytest.raises(TaskError, match="enable_pmu is 1"):
            w.run(handle, host_args(seen), config_of(two, enable_pmu=1))
    assert len(two.swimlane["aicore_tasks"]) == 5
    with Worker(level=3, device_ids=[0]) as w:
        handle = w.register(ChipCallable.from_kernel(K.mark_core()))
        x = w.zeros(BLOCKS, np.int32)

        def main(orch, *_):
            orch.submit_next_level(handle, make((x, T.INOUT)), config_of(task, block_dim=6))

        w.run(main, None, config_of(run, enable_dump_tensor=2, enable_dep_gen=1))
    assert len(task.swimlane["aicore_tasks"]) == 6
    assert len(run.swimlane["aicore_tasks"]) == 1 and len(run.deps["tasks"]) == 1
    assert run.dump["args"] == []  # of the chip's task, which has flags of its own
