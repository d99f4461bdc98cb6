"""ORCH-ARRAY: arrays of the user."""

import threading

import numpy as np
import pytest

from simpler_ref import Worker
from simpler_ref.engine import shared_arrays
from simpler_ref.engine.shared_arrays import ARENA_ALIGN, Arena
from simpler_ref.task_interface import TensorArgType as T
from tests.support import DEADLINE_S, make_args, shared_pages


@pytest.fixture
def arena():
    made = Arena(1 << 16)
    yield made
    made.close()


@pytest.mark.spec("ORCH-ARRAY-2")
def test_memory_is_told_of_before_it_is_given_out_again_and_a_signal_loses_none(arena):
    """A full arena says how much is left."""
    told = []

    def interrupted(low, high):
        told.append((low, high))
        raise KeyboardInterrupt

    old = arena.empty((1 << 16) - 2 * ARENA_ALIGN, np.uint8)
    place = old.ctypes.data
    with pytest.raises(MemoryError, match=f"largest free span of {2 * ARENA_ALIGN}"):
        arena.empty(3 * ARENA_ALIGN, np.uint8)
    del old
    arena.on_reuse = interrupted
    with pytest.raises(KeyboardInterrupt):
        arena.empty(8, np.uint8)
    arena.on_reuse = lambda *span: told.append(span)
    new = arena.empty(1 << 16, np.uint8)
    assert (new.ctypes.data, told) == (place, [(place, place + (1 << 16) - 2 * ARENA_ALIGN)] * 2)


@pytest.mark.spec("ORCH-ARRAY-1")
@pytest.mark.parametrize(
    ("mode", "when"),
    [
        *[("process", when) for when in ("before the start", "after it", "in a run")],
        ("thread", "in a run"),
    ],
)
def test_workers_see_an_array_where_it_is_whenever_it_was_made(mode, when):
    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        made = []

        @w.register
        def add_address(args):
            x, where = args.tensor(0), args.tensor(1).numpy()
            x.numpy()[...] += 1
            where[0] = x.data

        def make():
            made[:] = w.empty((2, 3), np.int32), w.share(np.arange(6)[::2]), w.empty(1, np.uint64)
            made[0][...] = 7

        def orch_fn(orch, args, config):
            if when == "in a run":
                make()
            for x in made[:2]:
                orch.submit_sub(add_address, make_args((x, T.INOUT), (made[2], T.INOUT)))

        if when == "before the start":
            make()
        w.start()
        if when == "after it":
            make()
        w.run(orch_fn)
        assert (made[0] == 8).all()
        assert made[1].tolist() == [1, 3, 5]
        assert made[2][0] == made[1].ctypes.data


@pytest.mark.spec("ORCH-ARRAY-1")
def test_a_shared_copy_keeps_the_order_of_fortran():
    table = np.arange(6).reshape(2, 3)
    with Worker(3, num_sub_workers=1) as w:
        for source, is_fortran in ((table, False), (table.T, True), (table[:, ::2], False)):
            copy = w.share(source)
            assert copy.flags.fnc is is_fortran
            assert copy.flags.contiguous or is_fortran
            assert copy.tolist() == source.tolist()


@pytest.mark.spec("ORCH-ARRAY-2", "ORCH-ARRAY-4")
def test_who_finds_no_room_waits_for_tasks(arena):
    class Tasks:
        """Tasks that may use the arena's memory."""

        patience_s, submitted, running, waited = 5.0, 0, [], 0

        def unended(self):
            return self.running

        def wait(self):
            self.waited += 1
            del self.running[:1]
            return bool(self.running) or self.waited == 1

    tasks = arena.in_use.users = Tasks()
    used = arena.empty(1 << 16, np.uint8)
    tasks.submitted, tasks.running = 1, [0]
    del used
    kept = arena.empty(1 << 16, np.uint8)
    assert tasks.waited == 1
    with pytest.raises(MemoryError, match="arena_size"):
        arena.empty(1, np.uint8)
    tasks.submitted, tasks.running = 2, [1]
    tasks.wait = tasks.running.clear  # the last one ends before it is waited for: there is none
    del kept
    kept = arena.empty(1 << 16, np.uint8)
    tasks.submitted, tasks.running = 3, [2]
    del kept
    with pytest.raises(MemoryError, match="have not ended may use 65536 that were dropped"):
        tasks.unended = lambda: None
        arena.empty(1, np.uint8)


@pytest.mark.spec("ORCH-ARRAY-4")
@pytest.mark.parametrize(("mode", "depth"), [("process", 1), ("process", 8), ("thread", 8)])
def test_tasks_of_a_run_read_arrays_that_the_program_has_dropped(mode, depth):
    """There is room for a few of them only: the run waits for tasks to end."""
    options = {"child_mode": mode, "mailbox_depth": depth, "arena_size": 1 << 20}
    with Worker(level=3, num_sub_workers=2, **options) as w:
        results = w.zeros((60, 6))
        copy = w.register(lambda args: np.copyto(args.tensor(1).numpy(), args.tensor(0).numpy()))

        def orch_fn(orch, args, config):
            for number, result in enumerate(results):
                array = w.full(1 << 14, number)
                given = make_args((array[-6:], T.INPUT), (result, T.INOUT))
                del array
                orch.submit_sub(copy, given)

        w.run(orch_fn)
        assert results[:, 3].tolist() == list(range(60))


@pytest.mark.spec("ORCH-ARRAY-2")
def test_large_arrays_that_are_gone_give_their_memory_back_once_no_task_may_use_them(monkeypatch):
    monkeypatch.setattr(shared_arrays, "_MOST_FREE", 0)
    nbytes = 8 << 20
    with Worker(level=3, num_sub_workers=1, child_mode="thread") as w:
        gate, begun = threading.Event(), threading.Event()
        wait = w.register(lambda args: (begun.set(), gate.wait(DEADLINE_S)))
        before = shared_pages()
        x, y = w.ones(nbytes, np.int8), w.ones(nbytes, np.int8)
        assert shared_pages() > before + nbytes
        del x
        assert before + nbytes / 2 < shared_pages() < before + 3 * nbytes / 2
        assert (y == 1).all() and not w.zeros(2 * nbytes, np.int8).any()

        def orch(orch, args, config):
            nonlocal y
            orch.submit_sub(wait, make_args((y, T.INPUT)))
            assert begun.wait(DEADLINE_S)
            y = None
            assert shared_pages() > before + nbytes / 2, "the task may use it"
            gate.set()

        w.run(orch)
