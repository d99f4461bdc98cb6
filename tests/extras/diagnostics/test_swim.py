"""FLAG-SWIM: who ran what."""

import time
from itertools import pairwise

import numpy as np
import pytest

from simpler_ref import TensorArgType as T

from .conftest import flagging, increase, make


def program(orch, x, handle, *_):
    """Submit two tasks to ring 0, a buffer and two tasks to ring 1, a group of two to ring 0."""
    for _ in range(2):
        orch.submit_sub(handle, make((x, T.INOUT)))
    with orch.scope():
        buffer = orch.alloc((4,), np.int64)
        for _ in range(2):
            orch.submit_sub(handle, make((x, T.INPUT), (buffer, T.INOUT)))
    orch.submit_sub_group(handle, [make((x[:2], T.INOUT)), make((x[2:], T.INOUT))])


IDS = [0, 1, 1 << 32 | 1, 1 << 32 | 2, 2, 2]
"""Of what `program` has workers run; 1 << 32 is the buffer."""
BETWEEN = {"aicpu_tasks": 2, "aicpu_scheduler_phases": 3, "aicpu_orchestrator_phases": 4}


def joined(records):
    """Join the two lists of tasks by core and number on it."""
    scheduled = {(core, i): (sent, seen) for core, i, sent, seen in records["aicpu_tasks"]}
    assert len(scheduled) == len(records["aicpu_tasks"]) == len(records["aicore_tasks"])
    return [
        (task, core, scheduled[core, i][0], begin, end, scheduled[core, i][1])
        for core, task, i, begin, end in records["aicore_tasks"]
    ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return what runs of `program` have recorded, by their levels, between two times."""
    folder, before = tmp_path_factory.mktemp("levels"), time.monotonic_ns()
    with flagging(child_mode="process") as run:
        levels = range(1, 5)
        found = {
            level: run(program, folder / str(level), enable_l2_swimlane=level).swimlane
            for level in levels
        }
    return found, before, time.monotonic_ns()


@pytest.mark.spec("FLAG-SWIM-1")
def test_the_file_is_there_under_its_later_name_too(flagged):
    files = flagged(program, increase, enable_l2_swimlane=2)
    old, new = files.swimlane, files.json("chip_swimlane_records.json")
    assert new.pop("chip_swimlane_level") == old.pop("l2_swimlane_level") == 2
    assert new.pop("aicore_tasks") == [[*row, 0] for row in old.pop("aicore_tasks")] != []
    assert new == old


@pytest.mark.spec("FLAG-SWIM-1")
def test_each_core_has_what_it_ran_in_order(recorded):
    levels, before, after = recorded
    records = levels[1]
    assert records["l2_swimlane_level"] == 1
    assert records["metadata"] == {
        "clock_freq_hz": 10**9,
        "num_cores": 2,
        "core_types": ["aiv", "aiv"],
    }
    tasks = records["aicore_tasks"]
    assert sorted(one[1] for one in tasks) == sorted(IDS)
    assert {one[0] for one in tasks if one[1] == 2} == {0, 1}
    for core in (0, 1):
        mine = [one for one in tasks if one[0] == core]
        assert [one[2] for one in mine] == list(range(len(mine)))
        times = [time for one in mine for time in one[3:]]
        assert times == sorted(times) and before <= times[0] and times[-1] <= after
    spans = {task: (begin, end) for _, task, _, begin, end in tasks}
    assert spans[0][1] <= spans[1][0] and spans[1][1] <= spans[1 << 32 | 1][0]


@pytest.mark.spec("FLAG-SWIM-2", "FLAG-SWIM-3", "FLAG-SWIM-4")
def test_a_level_has_what_lower_ones_have_and_more_joined_by_core_and_number(recorded):
    for level, records in recorded[0].items():
        names = {name for name, first in BETWEEN.items() if level >= first}
        assert names == BETWEEN.keys() & records
        assert records["metadata"].get("core_to_thread", []) == ([0, 0] if level >= 3 else [])
        if level > 1:
            rows = joined(records)
            assert sorted(row[0] for row in rows) == sorted(IDS)
            assert all(sent <= begin <= end <= seen for _, _, sent, begin, end, seen in rows)


@pytest.mark.spec("FLAG-SWIM-3")
def test_the_scheduler_has_dispatched_and_completed_each_task(recorded):
    records = recorded[0][3]
    (phases,) = records["aicpu_scheduler_phases"]
    for kind in ("dispatch", "complete"):
        of_kind = [one for one in phases if one["kind"] == kind]
        assert sum(one["tasks_processed"] for one in of_kind) == 5
        names = {"kind", "start_cycles", "end_cycles", "loop_iter", "tasks_processed"}
        more = {"pop_hit", "pop_miss"} if kind == "dispatch" else set()
        assert all(set(one) == names | more for one in of_kind)
    assert all(one["kind"] != other["kind"] for one, other in pairwise(phases))
    times = [time for one in phases for time in (one["start_cycles"], one["end_cycles"])]
    assert times == sorted(times)
    turns = [one["loop_iter"] for one in phases]
    assert turns == sorted(turns)
    seen = {row[5] for row in joined(records)}
    assert max(seen) == phases[-1]["end_cycles"] and phases[-1]["kind"] == "complete"


@pytest.mark.spec("FLAG-SWIM-4")
def test_the_orch_thread_has_submitted_all_in_order(flagged):
    def build(orch, x, handle):
        program(orch, x, handle)
        orch.submit_sub_many(handle, [x[:3]], [T.INOUT], count=3)

    records = flagged(build, enable_l2_swimlane=4).swimlane
    (phases,) = records["aicpu_orchestrator_phases"]
    assert [one["submit_idx"] for one in phases] == list(range(9))
    ids = [0, 1, *(1 << 32 | i for i in range(3)), 2, 3, 4, 5]
    assert [one["task_id"] for one in phases] == ids
    times = [time for one in phases for time in (one["start_cycles"], one["end_cycles"])]
    assert times == sorted(times)
    assert all(one["start_cycles"] < one["end_cycles"] for one in phases)
    begun = {task: begin for _, task, _, begin, _ in records["aicore_tasks"]}
    assert all(one["start_cycles"] < begun.get(one["task_id"], 1 << 62) for one in phases)
