"""FLAG-PMU: counters."""

import mmap
import time

import pytest

from simpler_ref import TensorArgType as T
from simpler_ref.extras import diagnostics as module
from simpler_ref.extras.diagnostics import probe as counters

from .conftest import flagging, increase, make

FIRST = ["thread_id", "core_id", "task_id", "func_id", "core_type", "pmu_total_cycles"]
PAGES = 64


def burn(args):
    """Use 2 ms of the processor, and touch fresh pages."""
    end = time.thread_time_ns() + 2_000_000
    while time.thread_time_ns() < end:
        pass
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as fresh:
        for i in range(PAGES):
            fresh[i * mmap.PAGESIZE] = 1


def program(orch, x, light, heavy):
    orch.submit_sub(light, make((x, T.INOUT)))
    orch.submit_sub(heavy, make((x, T.INOUT)))
    orch.submit_sub_group(light, [make((x[:2], T.INOUT)), make((x[2:], T.INOUT))])


@pytest.mark.spec("FLAG-PMU-1")
def test_each_task_and_member_has_a_row(tmp_path):
    with flagging(increase, burn, child_mode="process") as run:
        for event in (1, 2, 4, 5, 6, 7, 8):
            rows = run(program, tmp_path / str(event), enable_pmu=event, enable_l2_swimlane=1)
            ran = sorted((core, hex(task)) for core, task, *_ in rows.swimlane["aicore_tasks"])
            assert sorted((int(one["core_id"]), one["task_id"]) for one in rows.pmu) == ran
            assert len(ran) == 4
            for one in rows.pmu:
                assert list(one)[:6] == FIRST and list(one)[-1] == "event_type"
                assert (one["core_type"], one["event_type"]) == ("aiv", str(event))
                assert one["func_id"] == ("1" if one["task_id"] == "0x1" else "0")


@pytest.mark.spec("FLAG-PMU-2")
def test_without_the_processors_counters_there_are_the_systems(flagged, mode, monkeypatch):
    monkeypatch.setattr(module, "has_hardware", lambda event: False)
    rows = flagged(program, increase, burn, child_mode=mode, enable_pmu=1).pmu
    names = ["minor_faults", "major_faults", "voluntary_switches", "involuntary_switches"]
    assert list(rows[0])[6:-1] == [f"sw_{name}" for name in names]
    (heavy,) = (one for one in rows if one["task_id"] == "0x1")
    assert int(heavy["pmu_total_cycles"]) >= 2_000_000
    assert int(heavy["sw_minor_faults"]) >= PAGES // 32  # fewer where the system gives larger pages
    assert all(int(one[name]) >= 0 for one in rows for name in list(one)[5:-1])


@pytest.mark.spec("FLAG-PMU-2")
def test_the_processors_counters_are_read_where_there_are_some(flagged, monkeypatch):
    """The system's clock stands for a processor's counter: where there are none, it has this one."""
    monkeypatch.setattr(counters, "CYCLES", counters.PerfEvent("cycles", 1, 0))
    monkeypatch.setattr(counters, "HARDWARE", {1: (counters.PerfEvent("clock", 1, 1),)})
    if not counters.has_hardware(1):
        pytest.skip("this system lets nobody count")
    rows = flagged(program, increase, burn, enable_pmu=1).pmu
    assert list(rows[0]) == [*FIRST, "clock", "event_type"]
    (heavy,) = (one for one in rows if one["task_id"] == "0x1")
    assert int(heavy["pmu_total_cycles"]) > 1_000_000 and int(heavy["clock"]) > 1_000_000
