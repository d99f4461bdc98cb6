"""ORCH-BACK: waiting for room."""

import time
from contextlib import nullcontext

import numpy as np
import pytest

from simpler_ref import RingFullError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import Gate, auto, key, make_args, no_passes, wait_until
from tests.system.programs import Concurrently

KIB = 1024
FOREVER = 1e6
"""A time-out that never comes: a call that would need it hangs, and fails the test."""
SMALL = {"heap_ring_size": 4 * KIB, "alloc_timeout_s": FOREVER}


@pytest.mark.spec("ORCH-BACK-1")
def test_a_wait_for_room_lasts_until_there_is_something_to_reclaim(driver):
    def wait():
        """Wait as the Orch thread does, for a slice."""
        taken = int(driver.mem[L.WIRING_TAKEN])
        return driver.k.help_scheduler(driver.mem, -1, -1, taken, L.NONE, 50_000_000)

    driver.open_scope()
    task = driver.submit_and_settle(auto(1 << 16))
    driver.close_scope()
    driver.open_scope()
    assert driver.try_alloc(8) == driver.try_submit([auto(1)]) == L.WOULD_BLOCK
    assert (wait(), driver.try_alloc(8)) == (L.TIMED_OUT, L.WOULD_BLOCK)
    driver.finish(task)  # in passes of another thread; no pass will move anything any more
    assert (driver.consumed_list(), wait()) == ([task], L.OK)
    assert driver.try_alloc(8) >= 0


@pytest.mark.spec("ORCH-BACK-2", "ORCH-BACK-4")
def test_a_wait_that_times_out_has_changed_nothing_and_the_worker_stays_usable():
    with Worker(3, num_sub_workers=1, heap_ring_size=8 * KIB, alloc_timeout_s=0.02) as w:
        handle = w.register(lambda args: None)

        def orch_fn(orch, _args, _config):
            mem = orch._mem

            def engine_state():
                """Return what a refused call leaves alone: the Orch thread's words, map, slots."""
                own = mem[L.RING_BLOCK : L.SCHED].copy()
                # what waiting itself changes
                own[L.ORCH_PASSES - L.RING_BLOCK : L.SCOPE_STACK - L.RING_BLOCK] = 0
                entries = mem[int(mem[L.MAP_BASE]) :][: L.ENTRY_WORDS * int(mem[L.MAP_MASK] + 1)]
                slots = mem[int(mem[L.A_SLOTS]) :][: L.SLOT_WORDS * int(mem[L.SLOTS_USED])]
                return np.concatenate([own, entries, slots])

            orch.alloc(6 * KIB, "uint8")
            orch.submit_sub(handle, make_args((key(4096), T.OUTPUT)))
            wait_until(lambda: w.progress()[0] == 1)
            before = engine_state()
            args = make_args((key(4096), T.INOUT), (key(0, 3 * KIB), T.OUTPUT), scalars=[1])
            wires = list(args._tensors), list(args._scalars)
            for call in (
                lambda: orch.alloc(3 * KIB, "uint8"),
                lambda: orch.submit_sub(handle, args),
            ):
                with pytest.raises(RingFullError):
                    call()
                assert (list(args._tensors), list(args._scalars)) == wires
                assert np.flatnonzero(engine_state() != before).tolist() == []
            orch.alloc(2 * KIB, "uint8")
            orch.submit_sub(handle, make_args((key(4096), T.INOUT)))

        assert w.run(orch_fn).tasks == 4
        assert w.run(lambda orch, *_: orch.alloc(8 * KIB, "uint8")).tasks == 1


@pytest.mark.spec("ORCH-BACK-3")
def test_a_waiting_call_makes_progress_without_any_other_thread():
    with Worker(3, num_sub_workers=1, **SMALL) as w:
        total = w.share(np.zeros(1, np.int64))
        handle = w.register(lambda args: total.__setitem__(0, total[0] + 1))
        w.start()
        w._session.scheduler.stop()

        def orch_fn(orch, args, config):
            for _ in range(30):
                with orch.scope():
                    args = make_args((key(0, 2 * KIB), T.OUTPUT), (total, T.INOUT))
                    orch.submit_sub(handle, args)

        w.run(orch_fn)
        assert total[0] == 30


@pytest.mark.spec("ORCH-BACK-4")
def test_the_message_says_which_ring_is_full_of_what_and_what_to_do():
    def orch_fn(orch, args, config):
        with orch.scope():
            orch.alloc(3 * KIB, "uint8")
            orch.alloc(2 * KIB, "uint8")
            before = time.monotonic()
            with pytest.raises(RuntimeError) as info:
                orch.alloc(4 * KIB, "uint8")
            assert time.monotonic() - before >= 0.125  # it did wait
        text = str(info.value)
        for part in ("ring 1", "8192 bytes", "4096 bytes", "0.125 s", "5120 bytes", "2 tasks"):
            assert part in text, (part, text)
        assert "heap_ring_size" in text and "oldest is task 0 (COMPLETED)" in text

    assert Worker(3).alloc_timeout_s == 10.0
    with Worker(3, heap_ring_size=8 * KIB, alloc_timeout_s=0.125) as w:
        w.run(orch_fn)


@pytest.mark.spec("ORCH-BACK-4")
@pytest.mark.parametrize("kind", ["finished", "reclaimed"])
def test_every_task_that_finishes_or_is_reclaimed_starts_the_time_out_anew(kind):
    """In all the call waits for longer than the time-out, but never so long without progress."""
    steps, patience = 5, 1.0
    options = SMALL | {"alloc_timeout_s": patience}
    with Gate() as go, Worker(3, num_sub_workers=1, **options) as w:
        handle = w.register(lambda args: go.wait())

        def let_one_go_after_the_other():
            for _ in range(steps):
                time.sleep(patience / 4)
                go.open(1)

        def orch_fn(orch, args, config):
            with orch.scope() if kind == "reclaimed" else nullcontext():  # else the run keeps them
                for _ in range(steps - 1):
                    orch.submit_sub(handle, make_args())
            with orch.scope():
                orch.submit_sub(handle, make_args((key(0, 4 * KIB), T.OUTPUT)))
            with Concurrently(let_one_go_after_the_other):
                before = time.monotonic()
                orch.scope_begin()
                orch.alloc(4 * KIB, "uint8")
                assert time.monotonic() - before > patience
            assert orch.live_tasks() == (1 if kind == "reclaimed" else steps)

        w.run(orch_fn)


@pytest.mark.spec("ORCH-BACK-6")
def test_a_full_wiring_queue_makes_the_call_run_passes_instead_of_failing():
    with Worker(3, num_sub_workers=1, alloc_timeout_s=FOREVER) as w:
        handle = w.register(lambda: None)
        w.start()
        w._session.scheduler.stop()

        def orch_fn(orch, args, config):
            mem = orch._mem
            with no_passes(mem):
                orch.submit_sub_many(handle, [], [], count=L.WIRING_CAPACITY)
                assert mem[L.WIRING_PUSHED] - mem[L.WIRING_TAKEN] == L.WIRING_CAPACITY
            orch.submit_sub(handle)
            assert orch.live_tasks() == L.WIRING_CAPACITY + 1
            raise InterruptedError  # the tasks need not run

        with pytest.raises(InterruptedError):
            w.run(orch_fn)
