"""ORCH-WINDOW: the transitional single ring."""

import pytest

from simpler_ref import RingFullError, Worker
from simpler_ref.engine.memory import Engine
from simpler_ref.jit import layout as L
from simpler_ref.orchestrator import Ring
from tests.support import Driver, auto, inside


@pytest.mark.spec("ORCH-WINDOW-1")
@pytest.mark.kernels
def test_by_default_there_is_room_for_two_million_live_tasks():
    driver = Driver(Engine(heap_ring_size=1024, ring_depth=4))
    driver.mem[L.LIVE] = 2_097_151
    assert driver.try_submit() >= 0
    assert driver.try_submit() == L.WOULD_BLOCK
    driver.close()


@pytest.mark.spec("ORCH-WINDOW-6")
@pytest.mark.parametrize(("rings", "nbytes"), [(2, 0), (4, 100)])
def test_a_buffer_that_stays_alive_holds_nothing_up_that_fits_beside_it(rings, nbytes):
    many = 1000

    def orch_fn(orch, args, config):
        for _ in range(rings - 1):
            orch.scope_begin()
        kept = orch.alloc(nbytes, "uint8")
        for _ in range(many):
            with orch.scope():  # so deep that it has the same ring
                orch.alloc(0, "uint8")
        assert orch.live_tasks() == 1
        look = orch.ring.slot_state(0)
        assert (look.ring_idx, look.slab) == (rings - 1, (kept.data, 1024) if nbytes else None)

    with Worker(3, ring_depth=rings, task_window=64, alloc_timeout_s=0) as w:
        for _ in range(2):
            assert w.run(orch_fn).tasks == many + 1


@pytest.mark.spec("ORCH-WINDOW-2", "ORCH-WINDOW-4")
def test_with_ring_depth_one_every_scope_uses_the_one_ring_and_a_full_window_raises():
    def orch_fn(orch, args, config):
        assert orch.ring.ring_count() == 1
        for depth in range(6):
            tensor = orch.alloc((100,), "uint8")
            assert inside(tensor.data, 100, orch.ring.heap_base(0), orch.ring.heap_size(0))
            assert orch.ring.heap_top(0) == 1024 * (depth + 1)
            orch.scope_begin()
        with pytest.raises(IndexError):
            orch.ring.heap_base(1)
        for _ in range(128 - 6):
            orch.alloc(0, "uint8")
        for claim in (lambda: orch.alloc(0, "uint8"), lambda: orch.submit_sub(handle)):
            with pytest.raises(RingFullError, match=r"task window full: 128 .*task_window"):
                claim()

    small = {"ring_depth": 1, "task_window": 128, "heap_ring_size": 1 << 16}
    with Worker(3, num_sub_workers=1, alloc_timeout_s=0.01, **small) as w:
        handle = w.register(lambda: None)
        assert w.run(orch_fn).tasks == 128


@pytest.mark.spec("ORCH-WINDOW-3")
@pytest.mark.kernels
@pytest.mark.parametrize(("window", "nbytes"), [(1, 8), (2, 0), (5, 8)])
def test_a_claim_waits_while_its_id_would_leave_the_window(window, nbytes):
    ring = Ring(heap_bytes=1 << 20, timeout_ms=0, ring_depth=1, task_window=window)
    for first in (0, window):
        for task in range(first, first + window):
            assert ring.alloc(nbytes, scope_depth=task % 3).slot == task
        for task in (*range(first + 1, first + window), first):  # the oldest last
            with pytest.raises(RingFullError, match="task window full"):
                ring.alloc(nbytes)
            ring.release(task)


@pytest.mark.spec("ORCH-WINDOW-5")
@pytest.mark.kernels
@pytest.mark.parametrize("is_alloc", [False, True])
def test_slot_and_bytes_are_won_together_or_not_at_all(is_alloc):
    driver = Driver(heap=4096, rings=1, window=3)
    claims = [  # bytes, whether they are there, tasks and bytes that live then
        *((1500, True, 1, 2048), (2049, False, 1, 2048), (2048, True, 2, 4096)),
        *((1, False, 2, 4096), (0, True, 3, 4096), (0, False, 3, 4096)),
    ]
    for size, is_there, live, held in claims:
        before = driver.words()
        code = driver.try_alloc(size) if is_alloc else driver.try_submit([auto(size)])
        assert code >= 0 if is_there else code == L.WOULD_BLOCK
        assert is_there or driver.changed_since(before) == []
        assert (driver.live(), driver.held(0)) == (live, held)
    driver.close()
