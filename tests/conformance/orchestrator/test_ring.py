"""ORCH-RING: task ids and heap rings."""

import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import ContinuousTensor, DataType, RingFullError, Worker
from simpler_ref.jit import layout as L
from simpler_ref.orchestrator import Ring
from simpler_ref.task_interface import TensorArgType as T
from tests.support import DEADLINE_S, Driver, auto, inside, make_args

KIB = 1024


def small_ring(heap=8 * KIB, **more):
    """Return a ring that raises at once instead of waiting."""
    return Ring(heap_bytes=heap, timeout_ms=0, **more)


def held(ring, index=0):
    return ring.heap_held(index)


# ---------------------------------------------------------------- ids
@pytest.mark.spec("ORCH-RING-1")
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.booleans()), max_size=30))
def test_ids_count_submits_and_allocs_of_every_ring_and_never_start_over(steps):
    driver, wanted = Driver(), 0
    for is_alloc, depth, finish in steps:
        for _ in range(depth):
            driver.open_scope()
        slot = driver.alloc(10) if is_alloc else driver.submit()
        assert driver.id(slot) == wanted
        wanted += 1
        for _ in range(depth):
            driver.close_scope()
        if finish:
            driver.finish_everything()
            driver.reclaim()
    assert int(driver.mem[L.NEXT_TASK_ID]) == wanted


# ---------------------------------------------------------------- the rings
def resident_bytes(address):
    """Return how many bytes of the mapping at an address are in memory."""
    with open("/proc/self/smaps") as lines:
        here = False
        for line in lines:
            first, *rest = line.split()
            if "-" in first and not first.endswith(":"):
                start, end = (int(part, 16) for part in first.split("-"))
                here = start <= address < end
            elif here and first == "Rss:":
                return int(rest[0]) * KIB
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.spec("ORCH-RING-2")
def test_there_are_four_rings_of_the_given_size_and_one_gib_by_default():
    assert Worker(3).heap_ring_size == 1 << 30
    ring = Ring()
    assert ring.ring_count() == 4
    assert [ring.heap_size(i) for i in range(4)] == [1 << 30] * 4
    bases = sorted(ring.heap_base(i) for i in range(4))
    assert all(b - a >= 1 << 30 for a, b in pairwise(bases))
    assert [small_ring(heap=5 * KIB).heap_size(i) for i in range(4)] == [5 * KIB] * 4


@pytest.mark.spec("ORCH-RING-2")
def test_ring_memory_that_was_never_touched_costs_nothing():
    ring = Ring()
    base = ring.heap_base(0)
    ring.alloc(1 << 29)
    assert resident_bytes(base) == 0
    touched = ContinuousTensor.make(base, (1 << 20,), DataType.UINT8).numpy()
    touched[:] = 1
    assert 1 << 20 <= resident_bytes(base) < 8 << 20


@pytest.mark.spec("ORCH-RING-3")
@pytest.mark.parametrize("rings", [1, 2, 3, 4])
def test_the_ring_is_the_depth_but_at_most_the_last(rings):
    ring = small_ring(ring_depth=rings)
    for depth in range(8):
        claim = ring.alloc(1, scope_depth=depth)
        assert claim.ring_idx == min(depth, rings - 1)
        assert ring.slot_state(claim.slot).ring_idx == claim.ring_idx
        base = ring.heap_base(claim.ring_idx)
        assert inside(claim.heap_ptr, 1, base, ring.heap_size(claim.ring_idx))


@pytest.mark.spec("ORCH-RING-4")
@given(nbytes=st.integers(1, 1 << 20), before=st.integers(0, 1 << 18))
def test_allocations_are_rounded_up_to_the_heap_alignment(nbytes, before):
    ring = small_ring(heap=2 << 20)
    ring.alloc(before)
    top = ring.heap_top(0)
    claim = ring.alloc(nbytes)
    assert ring.heap_top(0) - top == L.round_up(nbytes, L.HEAP_ALIGN)
    assert claim.heap_ptr == ring.heap_base(0) + top
    assert claim.heap_ptr % L.HEAP_ALIGN == 0


@pytest.mark.spec("ORCH-RING-5")
def test_a_slab_that_does_not_fit_the_end_starts_at_zero_and_brings_the_end_back():
    ring = small_ring()
    first, second = ring.alloc(5 * KIB), ring.alloc(2 * KIB)
    ring.release(first.slot)
    third = ring.alloc(2 * KIB)  # 1 KiB is left before the end
    assert third.heap_ptr == ring.heap_base(0)
    assert held(ring) == 2 * KIB + 1 * KIB + 2 * KIB
    ring.release(second.slot)
    assert held(ring) == 1 * KIB + 2 * KIB
    fourth = ring.alloc(5 * KIB)
    assert fourth.heap_ptr == third.heap_ptr + 2 * KIB
    with pytest.raises(RingFullError):
        ring.alloc(1)
    ring.release(third.slot)
    assert held(ring) == 5 * KIB
    ring.release(fourth.slot)
    assert held(ring) == 0


@pytest.mark.spec("ORCH-RING-5")
def test_a_slab_never_straddles_the_end_nor_the_oldest_slab():
    ring = small_ring()
    first, _second = ring.alloc(3 * KIB), ring.alloc(4 * KIB)
    ring.release(first.slot)
    with pytest.raises(RingFullError):
        ring.alloc(4 * KIB)  # 1 KiB at the end and 3 KiB at the start are free
    assert ring.alloc(3 * KIB).heap_ptr == ring.heap_base(0)


ROOM = 8 * KIB
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.sampled_from([0, 1, KIB]) | st.integers(0, ROOM)),
        st.tuples(st.just("release"), st.integers(0, 30)),
    ),
    max_size=40,
)


def play(ring, steps, watch):
    """Alloc and release as told; `watch` sees ring, live claims and what happened to the last one."""
    live = {}
    for what, number in steps:
        claim = None
        if what == "release":
            if live:
                slot = sorted(live)[number % len(live)]
                del live[slot]
                ring.release(slot)
        else:
            try:
                claim = ring.alloc(number)
                live[claim.slot] = (claim, L.round_up(number, KIB))
            except RingFullError:
                claim = "full"
        watch(ring, live, claim, number)


@pytest.mark.spec("ORCH-RING-6", "ORCH-RING-7")
@given(steps=STEPS, size=st.integers(1, ROOM))
def test_a_ring_that_holds_no_bytes_serves_any_size_from_offset_zero(steps, size):
    def watch(ring, live, claim, number):
        if held(ring) == 0:
            probe = ring.alloc(size)
            assert probe.heap_ptr == ring.heap_base(0)
            ring.release(probe.slot)

    play(small_ring(), steps, watch)


@pytest.mark.spec("ORCH-RING-6", "ORCH-RING-7")
@pytest.mark.parametrize("size", [1, 5 * KIB, ROOM])
@pytest.mark.parametrize("following", [1, 4 * KIB, ROOM])
def test_a_live_task_without_bytes_does_not_park_the_ring(size, following):
    ring = small_ring()
    first = ring.alloc(size)
    ring.alloc(0)  # stays live and keeps the FIFO from being empty
    ring.release(first.slot)
    assert held(ring) == 0
    assert ring.alloc(following).heap_ptr == ring.heap_base(0)


@pytest.mark.spec("ORCH-RING-6")
def test_a_ring_emptied_with_its_cursor_at_the_very_end_serves_its_full_size():
    ring = small_ring()
    for _ in range(3):
        whole = ring.alloc(ROOM)
        assert whole.heap_ptr == ring.heap_base(0)
        assert held(ring) == ROOM
        ring.release(whole.slot)


@pytest.mark.spec("ORCH-RING-8")
@given(steps=STEPS)
def test_slabs_of_live_tasks_never_overlap_nor_leave_the_ring(steps):
    def watch(ring, live, claim, number):
        spans = sorted(
            (c.heap_ptr, c.heap_ptr + size) for c, size in live.values() if c.heap_ptr is not None
        )
        for (_, end), (start, _) in pairwise(spans):
            assert end <= start
        assert all(inside(a, b - a, ring.heap_base(0), ROOM) for a, b in spans)

    play(small_ring(), steps, watch)


@pytest.mark.spec("ORCH-RING-9")
def test_a_released_slab_behind_a_live_older_one_waits_for_it():
    ring = small_ring()
    claims = [ring.alloc(2 * KIB) for _ in range(4)]
    for claim in (claims[1], claims[3], claims[2]):
        ring.release(claim.slot)
        assert held(ring) == ROOM
        with pytest.raises(RingFullError):
            ring.alloc(1)
    ring.release(claims[0].slot)
    assert held(ring) == 0


@pytest.mark.spec("ORCH-RING-9")
@given(steps=STEPS)
def test_space_comes_back_in_the_order_it_was_claimed(steps):
    """Bytes held are those from the oldest live task to the newest claim, in claim order."""
    claimed = []

    def watch(ring, live, claim, number):
        if claim not in (None, "full"):
            claimed.append((claim.slot, L.round_up(number, KIB)))
        alive = [i for i, (slot, _) in enumerate(claimed) if slot in live]
        spanned = sum(size for _, size in claimed[alive[0] :]) if alive else 0
        assert spanned <= held(ring) <= (ROOM if spanned else 0)  # plus what was skipped at the end

    play(small_ring(), steps, watch)


@pytest.mark.spec("ORCH-RING-10")
def test_a_full_ring_and_a_task_that_runs_on_hold_nothing_up_in_other_rings():
    driver = Driver(heap=4 * KIB)
    driver.submit(auto(4 * KIB))  # ring 0 is full, and its only task goes on running
    assert driver.try_submit([auto(1)]) == L.WOULD_BLOCK
    driver.open_scope()
    for _ in range(10):
        driver.open_scope()
        inner = driver.submit(auto(3 * KIB))
        assert driver.held(2) == 3 * KIB
        driver.close_scope()
        driver.finish(inner)
        driver.reclaim()
        assert driver.held(2) == 0
    assert driver.held(0) == 4 * KIB


@pytest.mark.spec("ORCH-RING-11")
def test_a_request_above_the_rings_size_raises_without_waiting():
    handle = None

    def orch_fn(orch, args, config):
        too_large = ContinuousTensor.make(0, (KIB,), DataType.UINT8)
        for call in (
            lambda: orch.alloc((3 * KIB + 1,), "uint8"),
            lambda: orch.submit_sub(handle, make_args(*[(too_large, T.OUTPUT)] * 4)),
        ):
            with pytest.raises(RuntimeError, match=r"exceeds per-ring heap size.*3072") as info:
                call()
            assert not isinstance(info.value, RingFullError)
        orch.alloc((3 * KIB,), "uint8")

    with Worker(3, num_sub_workers=1, heap_ring_size=3 * KIB, alloc_timeout_s=1e6) as w:
        handle = w.register(lambda args: None)
        assert w.run(orch_fn).tasks == 1

    with pytest.raises(RuntimeError, match=r"exceeds per-ring heap size.*8192"):
        Ring(heap_bytes=ROOM, timeout_ms=10**9).alloc(ROOM + 1)


@pytest.mark.spec("ORCH-RING-11")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_outputs_whose_sum_does_not_fit_64_bits_are_too_large_as_well(driver, count):
    half = ContinuousTensor.make(0, (1 << 31, 1 << 30), DataType.UINT8)._wires[T.OUTPUT]
    before = driver.words()
    code = driver.x.submit_task(driver.mem, L.SUB << 32, count, 0, half * count)
    assert code == L.TOO_LARGE
    assert driver.changed_since(before) == []


@pytest.mark.spec("ORCH-RING-12")
def test_a_claim_reports_slot_address_end_offset_and_ring():
    ring = small_ring()
    first = ring.alloc(100)
    assert first == (0, ring.heap_base(0), KIB, 0)
    assert ring.alloc(2000, scope_depth=2) == (1, ring.heap_base(2), 2 * KIB, 2)
    assert ring.alloc(1) == (2, ring.heap_base(0) + KIB, 2 * KIB, 0)
    nothing = ring.alloc(0)
    assert nothing == (3, None, 2 * KIB, 0)
    assert ring.heap_top(0) == 2 * KIB


@pytest.mark.spec("ORCH-RING-13")
@given(moves=st.lists(st.integers(0, 9), min_size=5, max_size=60))
def test_slots_stay_with_their_task_and_are_reused_after_it(moves):
    driver, live, peak = Driver(), [], 0
    for move in moves:
        if move < 6:
            depth = move % 4 + 1
            for _ in range(depth):
                driver.open_scope()
            slot = driver.submit(auto(1))
            view = driver.view(slot)
            assert slot not in [other for other, _ in live]
            live.append((slot, (view.task_id, view.ring_idx, view.ring_slot_idx)))
            for _ in range(depth):
                driver.close_scope()
        elif live:
            driver.finish_everything()
            assert driver.reclaim() == len(live)
            live.clear()
        peak = max(peak, driver.live())
        for slot, place in live:
            view = driver.view(slot)
            assert (view.task_id, view.ring_idx, view.ring_slot_idx) == place
        assert driver.mem[L.SLOTS_USED] <= peak


@pytest.mark.spec("ORCH-RING-13")
def test_memory_follows_the_tasks_alive_also_for_large_arguments(driver):
    used = []
    for _ in range(20):
        driver.open_scope()
        slots = [driver.submit(*[auto(8)] * 12, scalars=range(40)) for _ in range(3)]
        driver.close_scope()
        for slot in slots:
            driver.finish(slot)
        assert driver.reclaim() == 3
        used.append((int(driver.mem[L.SLOTS_USED]), int(driver.mem[L.SPILL_USED])))
    assert used == used[:1] * 20


@pytest.mark.spec("ORCH-RING-14")
def test_reset_to_empty_puts_every_cursor_and_the_next_id_back_to_zero():
    ring = small_ring()
    for depth in range(4):
        slot = ring.alloc(3 * KIB, scope_depth=depth).slot
        ring.alloc(3 * KIB, scope_depth=depth)
        ring.release(slot)
        ring.alloc(2 * KIB, scope_depth=depth)
    assert ring.next_task_id() == 12
    ring.reset_to_empty()
    assert ring.next_task_id() == 0
    for i in range(4):
        assert ring.heap_top(i) == ring.heap_tail(i) == held(ring, i) == 0
        assert ring.alloc(ROOM, scope_depth=i) == (i, ring.heap_base(i), ROOM, i)
    with pytest.raises(KeyError):
        ring.release(7)


@pytest.mark.spec("ORCH-RING-15")
def test_after_shutdown_a_claim_raises_and_so_does_one_that_waits():
    ring = Ring(heap_bytes=KIB, timeout_ms=10**9)
    ring.alloc(KIB)
    errors = []

    def claim():
        try:
            ring.alloc(1)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=claim)
    thread.start()
    deadline = time.monotonic() + DEADLINE_S
    while not ring._changed._waiters and time.monotonic() < deadline:
        time.sleep(0.001)
    ring.shutdown()
    thread.join(DEADLINE_S)
    assert "shut down" in str(errors[0])
    with pytest.raises(RuntimeError, match="shut down"):
        ring.alloc(1)
