"""ORCH-BACK: waiting for room."""

import threading
import time

import numpy as np
import pytest

from simpler_ref import RingFullError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.task_interface import TensorArgType as T
from tests.support import DEADLINE_S, Gate, auto, key, make_args, no_passes, wait_until

KIB = 1024
FOREVER = 1e6
"""A time-out that never comes: a call that would need it hangs, and fails the test."""


@pytest.mark.spec("ORCH-BACK-1")
@pytest.mark.parametrize("what", ["alloc", "submit"])
def test_a_call_without_room_waits_and_goes_on_when_enough_was_reclaimed(what):
    with (
        Gate() as go,
        Worker(3, num_sub_workers=1, heap_ring_size=4 * KIB, alloc_timeout_s=FOREVER) as w,
    ):
        handle = w.register(lambda args: go.wait())
        passed = []

        def opener():
            for left in (3, 2, 1):
                wait_until(lambda: w._session.engine.mem[L.PARK_ORCH] != 0)
                passed.append((left, len(passed)))
                go.open(1)
                wait_until(lambda left=left: w._session.engine.mem[L.LIVE] < left + 1)

        thread = threading.Thread(target=opener)

        def orch_fn(orch, args, config):
            with orch.scope():
                for _ in range(3):  # the workers' tasks hold 3 of 4 KiB
                    orch.submit_sub(handle, make_args((key(0, KIB), T.OUTPUT)))
            thread.start()
            with orch.scope():
                if what == "alloc":
                    orch.alloc(4 * KIB, "uint8")
                else:
                    orch.submit_sub(handle, make_args((key(0, 4 * KIB), T.OUTPUT)))
                assert len(passed) == 3  # it did not go on before all three had been let go
                go.open()

        w.run(orch_fn)
        thread.join()


@pytest.mark.spec("ORCH-BACK-1")
def test_room_that_appeared_while_the_orch_function_computed_is_found_at_once():
    """The Scheduler thread has collected everything; nothing is left that could move."""
    with Worker(3, num_sub_workers=1, heap_ring_size=4 * KIB, alloc_timeout_s=FOREVER) as w:
        handle = w.register(lambda args: None)

        def orch_fn(orch, args, config):
            for _ in range(3):
                with orch.scope():
                    orch.submit_sub(handle, make_args((key(0, 4 * KIB), T.OUTPUT)))
                done = w.progress()[0]
                wait_until(lambda: w.progress()[0] > 0)
                wait_until(lambda: orch._mem[L.CONSUMED_HEAD] != L.NONE or orch.live_tasks() == 0)
                assert done <= w.progress()[0]

        assert w.run(orch_fn).tasks == 3


@pytest.mark.spec("ORCH-BACK-1")
def test_a_wait_for_room_ends_when_there_is_something_to_reclaim(driver):
    """Another thread's passes have left a consumed task; no pass will move anything any more."""
    driver.open_scope()
    task = driver.submit(auto(1 << 16))
    driver.close_scope()
    driver.finish(task)
    driver.open_scope()
    assert driver.try_alloc(8) == L.WOULD_BLOCK
    assert (
        driver.k.help_scheduler(
            driver.mem, -1, -1, int(driver.mem[L.WIRING_TAKEN]), int(DEADLINE_S * 1e9)
        )
        == L.OK
    )
    assert driver.try_alloc(8) >= 0


def engine_state(orch):
    """Return all that a refused call must leave alone."""
    mem = orch._mem
    words = {
        "rings": mem[L.RING_BLOCK : L.RING_BLOCK + L.MAX_RING_DEPTH * L.LINE].tolist(),
        "counters": [
            int(mem[at]) for at in (L.NEXT_TASK_ID, L.LIVE, L.EDGE_COUNT, L.WIRING_PUSHED)
        ],
        "free slot": int(mem[L.FREE_SLOT]),
        "used": int(mem[L.SLOTS_USED]),
        "map": mem[int(mem[L.MAP_BASE]) :][: 4 * int(mem[L.MAP_MASK] + 1)].tolist(),
        "scopes": [int(mem[L.SCOPE_DEPTH]), *mem[L.SCOPE_STACK :][: L.SCOPE_STACK_WORDS].tolist()],
        "spill": mem[L.SPILL_USED : L.SPILL_FREE + L.SPILL_CLASSES].tolist(),
    }
    slots = mem[int(mem[L.A_SLOTS]) :][: int(mem[L.SLOTS_USED]) * L.SLOT_WORDS].copy()
    return words, slots


@pytest.mark.spec("ORCH-BACK-2", "ORCH-BACK-4")
def test_a_wait_that_times_out_has_changed_nothing_and_the_worker_stays_usable():
    with Worker(3, num_sub_workers=1, heap_ring_size=8 * KIB, alloc_timeout_s=0.02) as w:
        handle = w.register(lambda args: None)

        def orch_fn(orch, _args, _config):
            orch.alloc(6 * KIB, "uint8")
            orch.submit_sub(handle, make_args((key(4096), T.OUTPUT)))
            wait_until(lambda: w.progress()[0] == 1)
            words, slots = engine_state(orch)
            args = make_args((key(4096), T.INOUT), (key(0, 3 * KIB), T.OUTPUT), scalars=[1])
            wires = list(args._tensors), list(args._scalars)
            for call in (
                lambda: orch.alloc(3 * KIB, "uint8"),
                lambda: orch.submit_sub(handle, args),
            ):
                with pytest.raises(RingFullError):
                    call()
                assert (list(args._tensors), list(args._scalars)) == wires
                words_now, slots_now = engine_state(orch)
                assert words_now == words
                assert (slots_now == slots).all()
            orch.alloc(2 * KIB, "uint8")
            orch.submit_sub(handle, make_args((key(4096), T.INOUT)))

        assert w.run(orch_fn).tasks == 4
        assert w.run(lambda orch, *_: orch.alloc(8 * KIB, "uint8")).tasks == 1


@pytest.mark.spec("ORCH-BACK-2")
def test_a_time_out_that_leaves_the_orch_function_ends_the_run_and_nothing_more():
    with Worker(3, heap_ring_size=KIB, alloc_timeout_s=0) as w:

        def too_much(orch, args, config):
            orch.alloc(1, "uint8")
            orch.alloc(1, "uint8")

        for _ in range(2):
            with pytest.raises(RingFullError):
                w.run(too_much)
        w.run(lambda orch, *_: orch.alloc(1, "uint8"))


@pytest.mark.spec("ORCH-BACK-3")
def test_a_waiting_call_makes_progress_without_any_other_thread():
    with Worker(3, num_sub_workers=1, heap_ring_size=2 * KIB, alloc_timeout_s=FOREVER) as w:
        total = w.share(np.zeros(1, np.int64))

        def leaf(args):
            total[0] += 1

        handle = w.register(leaf)
        w.start()
        w._session.scheduler.stop()

        def orch_fn(orch, args, config):
            for _ in range(30):
                with orch.scope():
                    pair = (key(0, KIB), T.OUTPUT), (total, T.INOUT)
                    orch.submit_sub(handle, make_args(*pair))

        w.run(orch_fn)
        assert total[0] == 30


@pytest.mark.spec("ORCH-BACK-4")
def test_the_time_out_is_ten_seconds_unless_told_otherwise():
    assert Worker(3).alloc_timeout_s == 10.0
    assert L.DEFAULT_ALLOC_TIMEOUT_S == 10.0


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
        assert "heap_ring_size" in text
        assert "oldest is task 0 (COMPLETED)" in text

    with Worker(3, heap_ring_size=8 * KIB, alloc_timeout_s=0.125) as w:
        w.run(orch_fn)


@pytest.mark.spec("ORCH-BACK-5")
@pytest.mark.parametrize("kind", ["finished", "reclaimed"])
def test_every_task_that_finishes_or_is_reclaimed_starts_the_time_out_anew(kind):
    """In all the call waits for much longer than the time-out, but never so long without progress."""
    with Gate() as go, Worker(3, num_sub_workers=1, heap_ring_size=4 * KIB, alloc_timeout_s=2) as w:
        handle = w.register(lambda args: go.wait())
        steps = 6

        def opener():
            for _ in range(steps):
                time.sleep(0.5)  # well within the time-out
                go.open(1)

        thread = threading.Thread(target=opener)

        def orch_fn(orch, args, config):
            first = [(key(0, 4 * KIB), T.OUTPUT)]
            if kind == "reclaimed":
                with orch.scope():
                    for _ in range(steps - 1):
                        orch.submit_sub(handle, make_args())
            else:  # the run's own scope keeps them
                for _ in range(steps - 1):
                    orch.submit_sub(handle, make_args())
            with orch.scope():
                orch.submit_sub(handle, make_args(*first))
            thread.start()
            before = time.monotonic()
            orch.scope_begin()
            orch.alloc(4 * KIB, "uint8")
            assert time.monotonic() - before > 2
            assert orch.live_tasks() == (1 if kind == "reclaimed" else steps)

        w.run(orch_fn)
        thread.join()


@pytest.mark.spec("ORCH-BACK-6")
@pytest.mark.parametrize("scheduler", [True, False])
def test_a_full_wiring_queue_makes_the_call_run_passes_instead_of_failing(scheduler):
    with Gate() as go, Worker(3, num_sub_workers=1, alloc_timeout_s=FOREVER) as w:
        handle = w.register(go.wait)
        w.start()
        mem = w._session.engine.mem
        if not scheduler:
            w._session.scheduler.stop()

        def orch_fn(orch, args, config):
            with no_passes(mem):
                orch.submit_sub(handle)
                # As if the Scheduler were a whole queue behind; the entries are all this one task.
                # Filling it by submits takes minutes when kernels are interpreted.
                while mem[L.WIRING_PUSHED] - mem[L.WIRING_TAKEN] < L.WIRING_CAPACITY:
                    orch.submit_sub(handle)
            orch.submit_sub(handle)
            go.open()

        assert w.run(orch_fn).tasks == L.WIRING_CAPACITY + 1
