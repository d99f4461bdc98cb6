"""ORCH-STATE: the state machine of a task."""

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit import slots as events
from simpler_ref.jit.slots import EVENTS
from simpler_ref.task_interface import TaskState
from tests.spec_rules import tables
from tests.support import COMPLETED, CONSUMED, FAILED, FREE, PENDING, READY, auto, reads, writes

pytestmark = pytest.mark.kernels


@pytest.mark.spec("ORCH-STATE-1")
def test_the_kernels_table_is_the_rules_table():
    rows = {
        event: ([TaskState[state] for state in before.split(", ")], TaskState[after], owner)
        for event, before, after, owner, _ in tables("ORCH-STATE")[0]
    }
    assert rows == {
        one.name: ([TaskState(state) for state in one.before], TaskState(one.after), one.owner)
        for one in EVENTS
    }


A, B, OTHER = 4096, 8192, 12288


def in_state(driver, state):
    """Return a task that has come to a state by the steps of the engine, with a consumer of its own.

    The consumer has a second producer, which runs on until the task is to be CONSUMED.
    """
    driver.open_scope()
    producer = driver.submit(writes(A))
    slot = driver.submit(auto(64), reads(A), writes(B))
    slow = driver.submit(writes(OTHER))
    consumer = driver.submit_and_settle(reads(B), reads(OTHER))
    if state != PENDING:
        driver.post_done(driver.worker_of(producer))
        driver.run_pass()
    if state not in (PENDING, READY):
        driver.settle()
    if state in (COMPLETED, CONSUMED, FREE):
        driver.finish(slot)
    if state == FAILED:
        driver.finish(slot, ValueError("no"))
    if state in (CONSUMED, FREE):
        driver.close_scope()
        driver.finish(slow)
        driver.finish(consumer)
    if state == FREE:
        driver.reclaim()
    assert driver.state(slot) == state
    return slot


def take_free_slots(claim):
    """Claim slots until there are no more, or none is given after a failure; return them."""
    found = []
    while (slot := claim()) >= 0:
        found.append(slot)
    return found


def drop_others(driver, slot):
    """Drop every reference on a task but its own."""
    total, released = driver.refs(slot)
    for _ in range(total + (driver.state(slot) in (COMPLETED, FAILED)) - released):
        driver.x.release_ref(driver.mem, slot)


HAPPEN = {
    events.SUBMIT: lambda driver, slot: take_free_slots(driver.try_submit),
    events.ALLOC: lambda driver, slot: take_free_slots(lambda: driver.try_alloc(0)),
    events.INPUTS_DONE: lambda driver, slot: driver.x.make_ready(driver.mem, slot),
    events.POISON: lambda driver, slot: driver.x.poison(driver.mem, slot),
    events.DISPATCH: lambda driver, slot: driver.x.dispatch(driver.mem, L.SUB),
    events.COMPLETE: lambda driver, slot: driver.x.complete(driver.mem, slot),
    events.FAIL: lambda driver, slot: driver.x.fail(driver.mem, slot),
    events.RELEASE: drop_others,
    events.RECLAIM: lambda driver, slot: driver.x.reclaim(driver.mem, slot),
    events.RUN_AGAIN: lambda driver, slot: driver.x.run_again(driver.mem, slot),
    events.FORGIVE: lambda driver, slot: driver.x.forgive(driver.mem, slot),
}
"""Each event as the engine makes it happen. Two kernels are given no slot: they find their own."""

ANSWERS = {
    *(events.INPUTS_DONE, events.COMPLETE, events.FAIL, events.RECLAIM, events.RUN_AGAIN),
    events.FORGIVE,
}
"""The events whose kernels say whether they happened."""


@pytest.mark.spec("ORCH-STATE-1")
@pytest.mark.parametrize("event", HAPPEN, ids=[event.name for event in EVENTS])
@pytest.mark.parametrize("state", list(TaskState), ids=lambda state: state.name)
def test_an_event_happens_where_the_table_has_it_and_nowhere_else(make_driver, state, event):
    driver = make_driver(window=8)
    slot = in_state(driver, state)
    task, words = slice(slot, slot + L.SLOT_WORDS), driver.words()
    answer = HAPPEN[event](driver, slot)
    if state in EVENTS[event].before:
        if event in ANSWERS:
            assert answer == L.OK
        if event in (events.SUBMIT, events.ALLOC):
            assert slot in answer
        assert driver.state(slot) == EVENTS[event].after
    elif event in (events.SUBMIT, events.ALLOC):  # every slot that can be had is another one
        assert slot not in answer
        assert driver.mem[task].tolist() == words[task].tolist()
    elif event == events.RELEASE:  # the count: the task's own reference is there, or all are gone
        assert set(driver.changed_since(words)) <= {slot + L.S_FANOUT}
    else:
        if event in ANSWERS:
            assert answer == L.ILLEGAL
        assert driver.changed_since(words) == []


@pytest.mark.spec("ORCH-STATE-2")
def test_a_submitted_task_is_pending_until_the_scheduler_makes_it_ready(driver):
    alone, producer = driver.submit(), driver.submit(writes(4096))
    consumer = driver.submit(reads(4096))
    assert {driver.state(slot) for slot in (alone, producer, consumer)} == {PENDING}
    slot = driver.x.pop_wiring(driver.mem)
    driver.x.wire(driver.mem, slot)
    assert (slot, driver.state(slot), driver.state(producer)) == (alone, READY, PENDING)


COUNTS = [(total, released) for total in range(5) for released in range(total + 1)]


@pytest.mark.spec("ORCH-STATE-3")
@pytest.mark.parametrize("by_scope", [False, True], ids=["scheduler", "scope_end"])
@pytest.mark.parametrize("state", [COMPLETED, FAILED], ids=["COMPLETED", "FAILED"])
@pytest.mark.parametrize(("total", "released"), COUNTS)
def test_a_task_is_consumed_once_just_at_the_threshold(driver, by_scope, state, total, released):
    """One more release of a task that has seen `released` of them, in either place.

    What two do that come at once, tests/interleaving tries in every order.
    """
    driver.open_scope()
    slot = driver.alloc(8)  # finished, in no other hands
    driver.mem[slot + L.S_FANOUT] = total | released << 32
    driver.mem[slot + L.S_STATE] = state
    if by_scope:
        driver.close_scope()
        gone = driver.state(slot) == FREE
    else:
        gone = bool(driver.x.release_ref(driver.mem, slot))
        assert gone == (driver.state(slot) == CONSUMED)
        assert driver.refs(slot) == (total, released + 1)
        if gone:  # a release after the last one does nothing
            assert (driver.x.release_ref(driver.mem, slot), driver.state(slot)) == (0, CONSUMED)
    assert gone == (released + 1 >= total + 1)
    if not gone:
        assert driver.state(slot) == state


@pytest.mark.spec("ORCH-STATE-4")
def test_fanout_counts_scope_consumers_and_who_has_let_go(make_driver):
    driver = make_driver(sub=3)
    driver.open_scope()
    slot = driver.submit(writes(4096))
    assert driver.refs(slot) == (1, 0)
    consumers = [driver.submit(reads(4096)) for _ in range(3)]
    assert driver.refs(slot) == (4, 0)
    driver.settle()
    assert driver.refs(slot) == (4, 0)
    ends = [slot, None, *consumers]  # the task's own, its scope's, and those that read
    for released, end in enumerate(ends, 1):
        assert driver.state(slot) not in (CONSUMED, FREE)
        driver.finish(end) if end else driver.close_scope()
        assert driver.refs(slot) == (4, released)
    assert driver.state(slot) == CONSUMED


@pytest.mark.spec("ORCH-STATE-6")
def test_a_finished_task_keeps_slab_and_keys_until_it_is_consumed(driver):
    driver.open_scope()
    slot = driver.submit(auto(3000), writes(4096), writes(8192))
    slab = driver.address(slot)
    driver.finish(slot)
    other = driver.submit(writes(8192))
    for _ in range(2):
        driver.settle()
        driver.reclaim()
        assert (driver.state(slot), driver.held(1)) == (COMPLETED, 3072)
        assert driver.lookup(slab) == driver.lookup(4096) == slot
        assert driver.lookup(8192) == other
    driver.close_scope()
    assert driver.held(1) == 0
    assert driver.lookup(slab) == driver.lookup(4096) == L.NONE
