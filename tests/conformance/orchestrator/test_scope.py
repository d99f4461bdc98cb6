"""ORCH-SCOPE: lifetimes that nest."""

from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.orchestrator import Scope
from tests.support import COMPLETED, FREE, PENDING, READY, RUNNING, Driver, auto, reads, writes

TABLE = [(None, 0, 0, 0), (0, 1, 0, 0), (1, 2, 1, 1), (2, 3, 2, 2), (3, 4, 3, 3), (4, 5, 4, 3)]
TABLE += [(7, 8, 7, 3), (64, 65, 64, 3)]
"""User scopes, depth(), current_depth(), ring."""


@pytest.mark.spec("ORCH-SCOPE-1")
@pytest.mark.kernels
@pytest.mark.parametrize(("scopes", "depth", "current", "ring"), TABLE)
def test_depth_and_ring_follow_the_table(scopes, depth, current, ring):
    scope, driver = Scope(), Driver(run=False)
    for _ in range(0 if scopes is None else scopes + 1):
        scope.scope_begin()
        assert driver.open_scope() == L.OK
    assert (scope.depth(), scope.current_depth()) == (depth, current)
    assert int(driver.mem[L.SCOPE_DEPTH]) == depth
    assert driver.view(driver.submit(auto(8))).ring_idx == ring
    assert driver.view(driver.alloc(8)).ring_idx == ring
    assert driver.x.ring_of_depth(driver.mem, current) == ring


@contextmanager
def by_hand(orch):
    orch.scope_begin()
    try:
        yield
    finally:
        orch.scope_end()


@pytest.mark.spec("ORCH-SCOPE-2")
@pytest.mark.parametrize("scope", [by_hand, lambda orch: orch.scope()], ids=["by hand", "with"])
def test_a_scope_ends_with_its_block_and_scope_begin_and_end_have_the_same_effect(w, scope):
    def look(orch):
        """Return the ring that memory comes from now, the live tasks, and what ring 1 holds."""
        orch.alloc(1, "uint8")
        last = orch.ring.slot_state(orch.ring.next_task_id() - 1)
        return last.ring_idx, orch.live_tasks(), orch.ring.heap_held(1)

    def orch_fn(orch, args, config):
        with pytest.raises(ZeroDivisionError), scope(orch):
            assert look(orch) == (1, 1, 1024)
            with scope(orch):
                assert look(orch) == (2, 2, 1024)
            assert look(orch) == (1, 2, 2048)
            raise ZeroDivisionError
        assert look(orch) == (0, 1, 0)  # the scopes have let go of their buffers

    w.run(orch_fn)


@pytest.mark.spec("ORCH-SCOPE-3")
def test_64_user_scopes_may_be_open_and_the_next_one_opens_nothing(w):
    def orch_fn(orch, args, config):
        for _ in range(64):
            orch.scope_begin()
        for opener in (orch.scope_begin, lambda: orch.scope().__enter__()):
            with pytest.raises(RuntimeError, match="maximum nesting depth exceeded"):
                opener()
        for _ in range(64):
            orch.scope_end()

    w.run(orch_fn)
    alone = Scope()
    for _ in range(65):  # the run's own, and 64
        alone.scope_begin()
    with pytest.raises(RuntimeError, match="maximum nesting depth exceeded"):
        alone.scope_begin()
    assert alone.depth() == 65


@pytest.mark.spec("ORCH-SCOPE-4")
def test_scope_end_without_scope_begin_raises_and_the_runs_own_scope_stays_open(w, driver):
    def orch_fn(orch, args, config):
        orch.scope_begin()
        orch.scope_end()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="scope_end without scope_begin"):
                orch.scope_end()
        with pytest.raises(RuntimeError, match="scope_end without scope_begin"), orch.scope():
            orch.scope_end()
        buffer = orch.alloc(8, "uint8")
        assert (orch.live_tasks(), orch.ring.heap_held(0)) == (1, 1024)
        assert buffer.data == orch.ring.heap_base(0)

    w.run(lambda orch, *_: orch.scope_begin())  # no later run can end it
    w.run(orch_fn)
    with pytest.raises(RuntimeError, match="scope_end without scope_begin"):
        Scope().scope_end(lambda slot: None)
    assert driver.close_scope() == L.OK  # the run's own
    before = driver.words()
    assert (driver.close_scope(), driver.changed_since(before)) == (L.NO_SCOPE, [])


@pytest.mark.spec("ORCH-SCOPE-5", "ORCH-SUBMIT-5")
@pytest.mark.kernels
@given(script=st.lists(st.sampled_from(["open", "close", "task", "alloc"]), max_size=40))
@example(script=["task", "open", "task", "open", "alloc", "close", "close"])
def test_scope_end_gives_back_one_reference_of_each_of_its_tasks_and_of_no_other(script):
    driver = Driver()
    scopes, tasks = [[]], []
    for step in script:
        if step == "open":
            assert driver.open_scope() == L.OK
            scopes.append([])
        elif step == "close" and len(scopes) > 1:
            before = {slot: driver.refs(slot) for slot in tasks}
            driver.close_scope()
            ended = scopes.pop()
            for slot, (total, released) in before.items():
                assert driver.refs(slot) == (total, released + (slot in ended))
        elif step in ("task", "alloc"):
            slot = driver.submit(writes(4096)) if step == "task" else driver.alloc(0)
            assert driver.refs(slot)[0] == 1
            driver.x.acquire_ref(driver.mem, slot)  # some consumer, so that it is not reclaimed
            scopes[-1].append(slot)
            tasks.append(slot)
    driver.close()


@pytest.mark.spec("ORCH-SCOPE-6", "ORCH-SCOPE-7")
@pytest.mark.kernels
def test_scope_end_frees_finished_tasks_and_leaves_all_others_in_their_state():
    driver = Driver(sub=1)
    driver.open_scope()
    buffer = driver.alloc(8)
    done, kept = driver.submit(auto(8)), driver.submit(writes(4096))
    driver.finish(done)
    driver.finish(kept)
    driver.open_scope()
    reader = driver.submit(reads(4096))
    driver.close_scope()
    runs, waits = driver.submit(writes(8192)), driver.submit()
    driver.settle()
    blocked = driver.submit(reads(8192))
    slots = buffer, done, kept, reader, runs, waits, blocked
    others = [COMPLETED, RUNNING, READY, READY, PENDING]
    assert list(map(driver.state, slots)) == [COMPLETED, COMPLETED, *others]
    driver.close_scope()
    assert list(map(driver.state, slots)) == [FREE, FREE, *others]  # reclaimed at once
    assert driver.finish_everything() == [driver.id(s) for s in (reader, runs, waits, blocked)]
    assert (driver.reclaim(), driver.live()) == (5, 0)


@pytest.mark.spec("ORCH-SCOPE-8")
@pytest.mark.kernels
def test_a_task_claimed_without_an_open_scope_has_no_scope_reference():
    driver = Driver(run=False)
    before, slot = driver.words(), driver.submit(auto(8))
    assert driver.refs(slot) == (0, 0)
    stack = range(L.SCOPE_STACK - L.LINE, L.SCOPE_STACK + L.SCOPE_STACK_WORDS)
    assert not {L.SCOPE_DEPTH, *stack} & set(driver.changed_since(before))
    driver.finish(slot)
    assert driver.reclaim() == 1  # its own reference was the last
    assert driver.live() == 0
