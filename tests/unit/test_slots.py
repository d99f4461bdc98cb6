"""The state machine and the references, every combination."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit import slots
from simpler_ref.task_interface import TaskState as S

from ..kernels import kernels as k
from ..support import reads, writes

LEGAL = {
    slots.SUBMIT: {S.FREE: S.PENDING},
    slots.ALLOC: {S.FREE: S.COMPLETED},
    slots.INPUTS_DONE: {S.PENDING: S.READY},
    slots.POISON: {S.PENDING: S.FAILED},
    slots.DISPATCH: {S.READY: S.RUNNING},
    slots.COMPLETE: {S.RUNNING: S.COMPLETED},
    slots.FAIL: {S.READY: S.FAILED, S.RUNNING: S.FAILED},
    slots.RELEASE: {S.COMPLETED: S.CONSUMED, S.FAILED: S.CONSUMED},
    slots.RECLAIM: {S.CONSUMED: S.FREE},
}


def set_state(driver, slot, state):
    driver.mem[slot + L.S_STATE] = int(state)


@pytest.mark.parametrize("event", LEGAL, ids=[event.name for event in slots.EVENTS])
def test_a_state_changes_only_along_the_table(driver, event):
    slot = driver.submit()
    for before in S:
        set_state(driver, slot, before)
        words = driver.words()
        answer = k.step(driver.mem, slot, event)
        if before in LEGAL[event]:
            assert answer == L.OK
            assert driver.state(slot) == LEGAL[event][before]
            assert driver.changed_since(words) == [slot + L.S_STATE]
        else:
            assert answer == L.ILLEGAL
            assert driver.changed_since(words) == []


def test_the_table_in_the_source_is_this_one():
    assert len(slots.EVENTS) == len(LEGAL)
    for number, steps in LEGAL.items():
        event = slots.EVENTS[number]
        assert {S(before): S(event.after) for before in event.before} == steps


def steps_in(function):
    """Return the events that a kernel passes to `step`."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = [call.args[2].id for call in calls if getattr(call.func, "id", "") == "step"]
    return [getattr(slots, name) for name in names]


def test_each_event_is_taken_by_the_kernels_that_the_table_names_and_by_no_other():
    taken = {}
    for path in Path(slots.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            for event in steps_in(function) if isinstance(function, ast.FunctionDef) else ():
                taken.setdefault(event, set()).add(f"{path.stem}.{function.name}")
    assert taken == {number: set(event.kernels) for number, event in enumerate(slots.EVENTS)}


def test_step_alone_writes_a_state():
    for path in Path(slots.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef) or function.name == "step":
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Assign | ast.AugAssign):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in WRITERS:
                    targets = node.args[1:2]
                else:
                    continue
                assert "S_STATE" not in "".join(map(ast.unparse, targets)), function.name


WRITERS = {"store", "exchange", "compare_exchange", "fetch_add"}


# ---------------------------------------------------------------- references
COUNTS = [(total, released) for total in range(5) for released in range(total + 2)]


@pytest.mark.parametrize(("total", "released"), COUNTS)
def test_a_producer_is_pinned_unless_its_last_reference_is_gone(driver, total, released):
    slot = driver.submit()
    driver.mem[slot + L.S_FANOUT] = total | released << 32
    pinned = k.acquire_ref(driver.mem, slot)
    if released >= total + 1:
        assert not pinned
        assert driver.refs(slot) == (total, released)
    else:
        assert pinned
        assert driver.refs(slot) == (total + 1, released)


@pytest.mark.parametrize("state", [S.COMPLETED, S.FAILED], ids=["COMPLETED", "FAILED"])
@pytest.mark.parametrize(("total", "released"), [c for c in COUNTS if c[1] <= c[0]])
def test_the_release_that_reaches_total_plus_one_consumes_and_no_other(
    driver, total, released, state
):
    slot = driver.submit()
    set_state(driver, slot, state)
    driver.mem[slot + L.S_FANOUT] = total | released << 32
    consumed = k.release_ref(driver.mem, slot)
    assert driver.refs(slot) == (total, released + 1)
    assert consumed == (released + 1 >= total + 1)
    assert driver.state(slot) == (S.CONSUMED if consumed else state)


def test_the_counts_hold_more_consumers_than_tasks_can_live(driver):
    slot = driver.submit()
    many = L.DEFAULT_TASK_WINDOW
    driver.mem[slot + L.S_FANOUT] = many | many << 32
    assert k.acquire_ref(driver.mem, slot)
    assert not k.release_ref(driver.mem, slot)
    assert driver.refs(slot) == (many + 1, many + 1)


def test_a_slot_comes_back_as_if_it_were_new(driver):
    driver.open_scope()
    first = driver.submit(writes(0x7000_0000), reads(0x7000_0400), scalars=[1, 2, 3])
    driver.close_scope()
    driver.finish(first)
    driver.reclaim()
    again = driver.submit()
    assert again == first
    assert driver.state(again) == S.PENDING
    assert driver.refs(again) == (1, 0)
    assert driver.counts(again) == (0, 0)
    assert driver.edges(again) == []
    assert driver.consumers(again) == []
    assert driver.worker_of(again) == -1
    assert driver.id(again) == 1
