"""ORCH-RING: task ids and heap rings."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import ContinuousTensor, DataType, RingFullError, Worker
from simpler_ref.check import model as reference
from simpler_ref.jit import layout as L
from simpler_ref.orchestrator import Ring
from simpler_ref.task_interface import TensorArgType as T
from tests.support import DEADLINE_S, Driver, key, make_args, wait_until

pytestmark = pytest.mark.kernels

KIB = 1024
ROOM = 8 * KIB


def small_ring(heap=ROOM, **more):
    """Return rings that raise at once instead of waiting."""
    return Ring(heap_bytes=heap, timeout_ms=0, **more)


@pytest.mark.spec("ORCH-RING-1")
def test_ids_count_submits_and_allocs_of_every_ring_and_never_start_over(driver):
    for first in (0, 8, 16):
        slots = []
        for _ in range(4):
            slots += [driver.alloc(10), driver.submit()]
            driver.open_scope()
        assert [driver.id(slot) for slot in slots] == list(range(first, first + 8))
        for _ in range(4):
            driver.close_scope()
        driver.finish_everything()
        driver.reclaim()


@pytest.mark.spec("ORCH-RING-2")
def test_there_are_four_rings_of_one_gib_by_default_that_cost_nothing_until_they_are_touched():
    def resident_bytes():
        """Return how many bytes of the mapping of the first ring are in memory."""
        for mapping in psutil.Process().memory_maps(grouped=False):
            start, end = (int(part, 16) for part in mapping.addr.split("-"))
            if start <= base < end:
                return mapping.rss
        raise AssertionError(f"nothing is mapped at {base:#x}")

    assert Worker(3).heap_ring_size == Worker(3, heap_ring_size=None).heap_ring_size == 1 << 30
    ring = Ring()
    assert (ring.ring_count(), [ring.heap_size(i) for i in range(4)]) == (4, [1 << 30] * 4)
    bases = sorted(ring.heap_base(i) for i in range(4))
    assert all(b - a >= 1 << 30 for a, b in pairwise(bases))
    assert [small_ring(heap=5 * KIB).heap_size(i) for i in range(4)] == [5 * KIB] * 4
    base = ring.heap_base(0)
    ring.alloc(1 << 29)
    assert resident_bytes() == 0
    ContinuousTensor.make(base, (1 << 20,), DataType.UINT8).numpy()[:] = 1
    assert 1 << 20 <= resident_bytes() < 8 << 20


@pytest.mark.spec("ORCH-RING-6")
@pytest.mark.parametrize(("size", "following"), [(1, ROOM), (5 * KIB, 4 * KIB), (ROOM, 1)])
def test_a_live_task_without_bytes_does_not_park_the_ring(size, following):
    ring = small_ring()
    first = ring.alloc(size)
    ring.alloc(0)  # stays live and keeps the FIFO from being empty
    ring.release(first.slot)
    assert ring.heap_held(0) == 0
    assert ring.alloc(following).heap_ptr == ring.heap_base(0)


@pytest.mark.spec("ORCH-RING-11")
def test_a_request_above_the_rings_size_raises_without_waiting():
    too_large = make_args(*[(key(0, KIB), T.OUTPUT)] * 4)

    def orch_fn(orch, args, config):
        for call in (
            lambda: orch.alloc((3 * KIB + 1,), "uint8"),
            lambda: orch.submit_sub(handle, too_large),
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


@pytest.mark.spec("ORCH-RING-12")
def test_a_claim_reports_slot_address_end_offset_and_ring():
    ring = small_ring()
    first = ring.alloc(100)
    assert first == (0, ring.heap_base(0), KIB, 0)
    assert ring.alloc(2000, scope_depth=2) == (1, ring.heap_base(2), 2 * KIB, 2)
    assert ring.alloc(1) == (2, ring.heap_base(0) + KIB, 2 * KIB, 0)
    nothing = ring.alloc(0)
    assert (nothing, ring.heap_top(0)) == ((3, None, 2 * KIB, 0), 2 * KIB)


@pytest.mark.spec("ORCH-RING-14")
def test_reset_to_empty_puts_every_cursor_and_the_next_id_back_to_zero():
    ring = small_ring()
    for depth in range(4):
        slot = ring.alloc(3 * KIB, scope_depth=depth).slot
        ring.alloc(3 * KIB, scope_depth=depth)
        ring.release(slot)
        ring.alloc(2 * KIB, scope_depth=depth)
    ring.reset_to_empty()
    assert ring.next_task_id() == 0
    assert ring._engine.mem[[L.LIVE, L.SLOTS_USED, L.FREE_SLOT]].tolist() == [0, 0, 0]
    for i in range(4):
        assert ring.heap_top(i) == ring.heap_tail(i) == ring.heap_held(i) == 0
        assert ring.alloc(ROOM, scope_depth=i) == (i, ring.heap_base(i), ROOM, i)
    with pytest.raises(KeyError):
        ring.release(7)


@pytest.mark.spec("ORCH-RING-15", "ORCH-API-4")
@pytest.mark.parametrize("end", ["shutdown", "release"])
def test_a_claim_waits_for_a_release_or_the_shutdown_after_which_it_raises(end):
    ring = Ring(heap_bytes=KIB, timeout_ms=10**9)
    ring.alloc(KIB)
    with ThreadPoolExecutor(1) as thread:
        claim = thread.submit(ring.alloc, 1)
        wait_until(lambda: ring._changed._waiters)
        if end == "release":
            ring.release(0)
            assert claim.result(DEADLINE_S) == (1, ring.heap_base(0), KIB, 0)
        else:
            ring.shutdown()
            assert "shut down" in str(claim.exception(DEADLINE_S))
            with pytest.raises(RuntimeError, match="shut down"):
                ring.alloc(1)
    impatient = Ring(heap_bytes=KIB, timeout_ms=1)
    impatient.alloc(KIB)
    with pytest.raises(RingFullError, match=r"HeapRing exhausted.*1024 bytes.*\(not released\)"):
        impatient.alloc(1)


class Pair:
    """Rings in an engine's memory, and the reference ones they must equal."""

    def __init__(self, rings=2, window=16, fifo=L.CIRCULAR_SMALLEST):
        self.driver = Driver(heap=ROOM, rings=rings, window=window, run=False)
        self.mem, self.k, self.word = self.driver.mem, self.driver.k, self.driver.ring_word
        self.window = window
        self.fifo = fifo  # entries that the FIFO of an empty ring has room for
        self.most = [0] * rings  # alive at once since the ring was empty
        self.peak = 0  # alive at once in all rings
        self.reference = [reference.ModelRing(self.word(r, L.R_BASE), ROOM) for r in range(rings)]
        self.live = {}  # reference task → slot
        self.ids = 0

    def alloc(self, nbytes, depth=0):
        """Claim in both; return the address, or the engine's refusal, which has changed nothing."""
        index = min(depth, len(self.reference) - 1)
        ring, size = self.reference[index], reference.rounded(nbytes)
        if not ring.claims:
            self.mem[L.FIFO_MASK + index] = self.fifo - 1
        refusal = self.refusal(ring, size)
        before = self.own_words() if refusal else None
        slot = self.k.ring_alloc(self.mem, nbytes, depth)
        if refusal:
            assert slot == refusal
            assert (self.own_words() == before).all()
            return slot
        assert slot > 0
        return self.adopt(slot, index, size)

    def own_words(self):
        """Return a copy of the words of engine, rings and slots: all words would be many megabytes."""
        ends = (0, L.A_WORKERS), (L.A_FIFO, L.A_BLOCKS), (L.A_MAP, L.A_SPILL)
        places = [(int(self.mem[a]) if a else 0, int(self.mem[b])) for a, b in ends]
        return np.concatenate([self.mem[first:end] for first, end in places])

    def refusal(self, ring, size):
        """One ring has a window of ids; several limit the tasks alive, wherever these stand."""
        if size > ROOM:
            return L.TOO_LARGE
        counted = ring.claims if len(self.reference) == 1 else self.live
        full = len(counted) == self.window or ring.place(size) is None
        return L.WOULD_BLOCK if full else None

    def adopt(self, slot, index, size):
        task = reference.ModelTask(self.ids, index, "FREE")
        self.ids += 1
        ring = self.reference[index]
        address = ring.claim(task, ring.place(size), size)
        assert slot not in self.live.values()
        self.live[task] = slot
        self.peak = max(self.peak, len(self.live))
        assert self.word(index, L.R_BASE) + self.word(index, L.R_CURSOR) - size == address
        assert address % KIB == 0
        self.check()
        return address

    def release(self, which):
        """Release the claim that is `which`-th among the live ones."""
        task = list(self.live)[which]
        self.k.ring_release(self.mem, self.live.pop(task))
        self.reference[task.ring].release(task)
        self.check()

    def check(self):
        assert self.mem[L.LIVE] == len(self.live)
        assert self.mem[L.NEXT_TASK_ID] == self.ids
        assert self.mem[L.SLOTS_USED] <= self.peak
        assert all(self.mem[slot + L.S_ID] == task.id for task, slot in self.live.items())
        for index, ring in enumerate(self.reference):
            top, tail = self.word(index, L.R_TOP), self.word(index, L.R_TAIL)
            assert top - tail == ring.held()
            assert self.word(index, L.R_CURSOR) == ring.next
            assert self.word(index, L.R_PEAK) == ring.peak
            self.check_fifo(index, ring)
            if not ring.claims:
                assert top == tail == self.word(index, L.R_NEXT) == 0

    def check_fifo(self, index, ring):
        """The live claims in order, as many entries as were claimed since, or fewer."""
        alive = [claim.task for claim in ring.claims if not claim.released]
        first, end = self.word(index, L.R_ALIVE), self.word(index, L.R_NEXT)
        mask = int(self.mem[L.FIFO_MASK + index])
        entries = self.mem[int(self.mem[L.A_FIFO + index]) :][: 2 * (mask + 1)]
        rows = [entries[2 * (at & mask) :][:2].tolist() for at in range(first, end)]
        held = [(slot, at) for at, (word, slot) in enumerate(rows, first) if word & 1 == 0]
        assert [slot for slot, _ in held] == [self.live[task] for task in alive]
        places = [int(self.mem[slot + L.S_RING]) for slot, _ in held]
        assert places == [index | at << 3 for _, at in held]
        self.most[index] = max(self.most[index], len(alive)) if alive else 0
        assert len(alive) <= end - first <= min(mask + 1, len(ring.claims))
        assert mask + 1 <= max(self.fifo, 4 * self.most[index] - 1) or not alive


ALLOC = st.tuples(st.sampled_from([0, 1, 1024, 1025, 2048, 3000, 8192, 8193]), st.integers(0, 5))
RELEASE = st.tuples(st.integers(0, 15))


@pytest.mark.spec("ORCH-RING-3", "ORCH-RING-5", "ORCH-RING-6", "ORCH-RING-8", "ORCH-RING-9")
@pytest.mark.spec("ORCH-RING-4", "ORCH-RING-10", "ORCH-RING-13")
@given(
    rings=st.integers(1, 4),
    window=st.sampled_from([1, 3, 16]),
    fifo=st.sampled_from([1, 2, 4, L.CIRCULAR_SMALLEST]),
    steps=st.lists(ALLOC | RELEASE, min_size=20, max_size=80),
)
def test_rings_equal_those_of_the_reference_whatever_is_claimed(rings, window, fifo, steps):
    pair = Pair(rings, window, fifo)
    for step in steps:
        if len(step) == 2:
            pair.alloc(*step)
        elif pair.live:
            pair.release(step[0] % len(pair.live))
    pair.driver.close()


@pytest.mark.spec("ORCH-RING-9")
def test_bytes_released_behind_one_that_stays_come_back_with_it_when_the_fifo_was_cleared():
    pair = Pair(rings=1, window=64, fifo=2)
    pair.alloc(KIB)
    for _ in range(3):
        pair.alloc(KIB)
        pair.release(1)
    pair.alloc(KIB)
    assert pair.word(0, L.R_NEXT) < 5, "released entries were left out"
    assert pair.reference[0].held() == 5 * KIB
    pair.release(0)
    assert pair.reference[0].held() == KIB
