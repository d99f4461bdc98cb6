"""The state machine and the references, every combination."""

from __future__ import annotations

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit import slots
from simpler_ref.task_interface import TaskState as S

from ..kernels import kernels as k
from ..support import reads, writes

LEGAL = {
    (S.FREE, S.PENDING),
    (S.FREE, S.COMPLETED),
    (S.PENDING, S.READY),
    (S.PENDING, S.FAILED),
    (S.READY, S.RUNNING),
    (S.READY, S.FAILED),
    (S.RUNNING, S.COMPLETED),
    (S.RUNNING, S.FAILED),
    (S.COMPLETED, S.CONSUMED),
    (S.FAILED, S.CONSUMED),
    (S.CONSUMED, S.FREE),
}
EVERY = [(before, after) for before in S for after in S]


def set_state(driver, slot, state):
    driver.mem[slot + L.S_STATE] = int(state)


@pytest.mark.parametrize(
    ("before", "after"), EVERY, ids=[f"{before.name}-{after.name}" for before, after in EVERY]
)
def test_a_state_changes_only_along_the_table(driver, before, after):
    slot = driver.submit()
    set_state(driver, slot, before)
    words = driver.words()
    answer = k.move(driver.mem, slot, int(after))
    if (before, after) in LEGAL:
        assert answer == L.OK
        assert driver.state(slot) == after
        assert driver.changed_since(words) == [slot + L.S_STATE]
    else:
        assert answer == L.ILLEGAL
        assert driver.changed_since(words) == []


def test_the_table_in_the_source_is_this_one():
    assert {(S(a), S(b)) for a, after in slots.TRANSITIONS.items() for b in after} == LEGAL


@pytest.mark.parametrize("state", list(S), ids=lambda state: state.name)
@pytest.mark.parametrize("step", ["complete", "fail", "poison"])
def test_a_step_asked_of_a_task_in_another_state_changes_nothing(driver, step, state):
    slot = driver.submit()
    driver.run_pass()  # wired and given to a worker
    set_state(driver, slot, state)
    words = driver.words()
    answer = getattr(k, step)(driver.mem, slot)
    allowed = {
        "complete": {S.RUNNING},
        "fail": {S.READY, S.RUNNING},
        "poison": {S.PENDING},
    }[step]
    if state in allowed:
        assert answer == L.OK
        assert driver.state(slot) == (S.COMPLETED if step == "complete" else S.FAILED)
    else:
        assert answer == L.OK if step == "poison" else answer == L.ILLEGAL
        assert driver.changed_since(words) == []


# ---------------------------------------------------------------- references
COUNTS = [(total, released) for total in range(5) for released in range(total + 2)]


@pytest.mark.parametrize(("total", "released"), COUNTS)
def test_a_producer_is_pinned_unless_its_last_reference_is_gone(driver, total, released):
    slot = driver.submit()
    driver.mem[slot + L.S_FANOUT] = total | released << 32
    pinned = k.pin(driver.mem, slot)
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
    assert k.pin(driver.mem, slot)
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
