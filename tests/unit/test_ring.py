"""The rings against a plain FIFO allocator with one entry per block."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.errors import RingFullError
from simpler_ref.jit import layout as L
from simpler_ref.orchestrator import Ring

from ..property import reference
from ..support import DEADLINE_S, small_engine, unmap

KIB = 1024
RING = 8 * KIB


class Pair:
    """Rings in an engine's memory, and the reference ones they must equal."""

    def __init__(self, rings=2, window=16, fifo=L.CIRCULAR_SMALLEST):
        self.engine = small_engine(heap=RING, rings=rings, window=window)
        self.fifo = fifo  # entries that the FIFO of an empty ring has room for
        self.most = [0] * rings  # alive at once since the ring was empty
        self.mem, self.k = self.engine.mem, self.engine.kernels
        self.window = window
        self.reference = [reference.Ring(self.word(r, L.R_BASE), RING) for r in range(rings)]
        self.live = {}  # reference task → slot
        self.ids = 0

    def word(self, ring, field):
        return int(self.mem[L.RING_BLOCK + ring * L.LINE + field])

    def alloc(self, nbytes, depth=0):
        """Claim in both; return the address, or the engine's refusal."""
        index = min(depth, len(self.reference) - 1)
        ring, size = self.reference[index], reference.rounded(nbytes)
        if not ring.claims:
            self.mem[L.FIFO_MASK + index] = self.fifo - 1
        before = self.mem.copy()
        slot = self.k.ring_alloc(self.mem, nbytes, depth)
        if size > RING:
            assert slot == L.TOO_LARGE
        elif self.is_full() or ring.place(size) is None:
            assert slot == L.WOULD_BLOCK
        else:
            assert slot > 0
            return self.adopt(slot, index, size)
        assert (self.mem == before).all(), "a refused claim has changed something"
        return slot

    def is_full(self):
        """One ring has a window of ids; several limit the tasks alive, wherever these stand."""
        one_ring = len(self.reference) == 1
        return self.window == (len(self.reference[0].claims) if one_ring else len(self.live))

    def adopt(self, slot, index, size):
        task = reference.Task(self.ids, index, "FREE")
        self.ids += 1
        address = self.reference[index].claim(task, size)
        assert slot not in self.live.values()
        self.live[task] = slot
        assert self.mem[slot + L.S_ID] == task.id
        assert self.mem[slot + L.S_RING] & 7 == index
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
        entries = self.mem[int(self.mem[L.A_FIFO + index]) :].reshape(-1)[: 2 * (mask + 1)]
        rows = [entries[2 * (at & mask) :][:2].tolist() for at in range(first, end)]
        held = [(slot, at) for at, (word, slot) in enumerate(rows, first) if word & 1 == 0]
        assert [slot for slot, _ in held] == [self.live[task] for task in alive]
        assert [int(self.mem[slot + L.S_RING]) for slot, _ in held] == [
            index | at << 3 for _, at in held
        ]
        self.most[index] = max(self.most[index], len(alive)) if alive else 0
        assert len(alive) <= end - first <= min(mask + 1, len(ring.claims))
        assert mask + 1 <= max(self.fifo, 4 * self.most[index] - 1) or not alive

    def close(self):
        unmap(self.engine)
        self.mem = None


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


@given(
    rings=st.integers(1, 4),
    window=st.sampled_from([1, 3, 16]),
    fifo=st.sampled_from([1, 2, 4, L.CIRCULAR_SMALLEST]),
    steps=st.lists(
        st.one_of(
            st.tuples(
                st.just("alloc"),
                st.sampled_from([0, 1, 1024, 1025, 2048, 3000, 5000, 8192, 8193]),
                st.integers(0, 5),
            ),
            st.tuples(st.just("release"), st.integers(0, 15)),
        ),
        min_size=20,
        max_size=80,
    ),
)
def test_rings_equal_those_of_the_reference_whatever_is_claimed_and_released(
    rings, window, fifo, steps
):
    pair = Pair(rings, window, fifo)
    for what, *details in steps:
        if what == "alloc":
            pair.alloc(*details)
        elif pair.live:
            pair.release(details[0] % len(pair.live))
    pair.close()


# ---------------------------------------------------------------- a slab is contiguous (D15)
def test_a_request_larger_than_the_ring_is_refused_even_by_an_empty_ring(pair):
    assert pair.alloc(RING + 1) == L.TOO_LARGE
    assert pair.alloc(RING) > 0


def test_a_short_end_is_skipped_and_comes_back_with_the_slab_that_skipped_it(pair):
    base = pair.reference[0].base
    assert pair.alloc(3 * KIB) == base
    assert pair.alloc(3 * KIB) == base + 3 * KIB
    pair.release(0)
    assert pair.alloc(3 * KIB) == base, "2 KiB at the end are too short"
    assert pair.reference[0].held() == 8 * KIB, "the skipped end is held with the slab"
    assert pair.alloc(0) == base + 3 * KIB
    assert pair.alloc(1) == L.WOULD_BLOCK
    pair.release(0)
    assert pair.reference[0].held() == 5 * KIB
    assert pair.alloc(3 * KIB) == base + 3 * KIB


# ---------------------------------------------------------------- a parked ring (D17)
@pytest.mark.parametrize("parked_at", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("beside", [False, True], ids=["empty", "a task without bytes is live"])
def test_a_ring_that_holds_nothing_serves_its_full_size_wherever_it_stands(pair, parked_at, beside):
    pair.alloc(parked_at * KIB)
    if beside:
        pair.alloc(0)
    pair.release(0)
    assert pair.alloc(RING) == pair.reference[0].base
    assert pair.alloc(1) == L.WOULD_BLOCK


def test_a_ring_goes_on_after_a_lap_beside_a_task_without_bytes(pair):
    pair.alloc(0)
    for _ in range(50):
        pair.alloc(3 * KIB)
        pair.alloc(5 * KIB)
        assert pair.alloc(1) == L.WOULD_BLOCK
        pair.release(0)  # the task without bytes: it is the oldest
        pair.release(0)
        pair.alloc(0)
        pair.release(0)


# ---------------------------------------------------------------- order, ids, the window
def test_bytes_come_back_in_the_order_they_were_claimed(pair):
    for _ in range(3):
        pair.alloc(KIB)
    pair.release(1)
    pair.release(1)
    assert pair.reference[0].held() == 3 * KIB
    pair.release(0)
    assert pair.reference[0].held() == 0


def test_a_claim_without_bytes_keeps_its_place_in_the_order(pair):
    pair.alloc(0)
    pair.alloc(2 * KIB)
    pair.release(1)
    assert pair.reference[0].held() == 2 * KIB
    pair.release(0)
    assert pair.reference[0].held() == 0


def test_with_one_ring_the_window_counts_from_the_oldest_claim_that_is_alive():
    pair = Pair(rings=1)
    for _ in range(16):
        pair.alloc(0)
    assert pair.alloc(0) == L.WOULD_BLOCK
    pair.release(5)
    assert pair.alloc(0) == L.WOULD_BLOCK, "the oldest is still alive"
    pair.release(0)
    pair.alloc(0)
    pair.close()


def test_with_several_rings_the_window_counts_the_claims_alive_in_all_of_them(pair):
    for i in range(16):
        pair.alloc(0, depth=i % 2)
    assert pair.alloc(0) == L.WOULD_BLOCK
    for _ in range(50):
        pair.release(5)
        pair.alloc(0)
        assert pair.alloc(0) == L.WOULD_BLOCK


def test_one_ring_without_a_window_has_room_for_a_claim_whatever_its_id():
    pair = Pair(rings=1)
    pair.mem[L.ID_WINDOW] = 0  # as Engine does that was not given one
    pair.alloc(0)
    for _ in range(3 * 16):
        pair.k.ring_release(pair.mem, pair.k.ring_alloc(pair.mem, 0, 0))
    pair.close()


# ---------------------------------------------------------------- the FIFO and a claim that stays
def test_a_claim_that_stays_costs_one_entry_however_many_come_and_go(pair):
    pair.alloc(KIB)
    for _ in range(3 * L.CIRCULAR_SMALLEST):
        pair.k.ring_release(pair.mem, pair.k.ring_alloc(pair.mem, 0, 0))
    assert pair.mem[L.FIFO_MASK] == L.CIRCULAR_SMALLEST - 1
    assert pair.word(0, L.R_NEXT) <= L.CIRCULAR_SMALLEST


def test_a_full_fifo_of_claims_that_live_doubles_and_each_keeps_its_place():
    pair = Pair(window=64, fifo=4)
    for i in range(40):
        pair.alloc(0)
        pair.alloc(0)
        pair.release(i)
    assert pair.mem[L.FIFO_MASK] == 64 - 1
    for i in (39, 0, 20, 10, *[0] * 36):
        pair.release(i)
    pair.close()


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
    pair.close()


def test_reset_forgets_everything(pair):
    for depth in range(3):
        pair.alloc(KIB, depth)
    pair.k.ring_reset(pair.mem)
    assert pair.mem[[L.LIVE, L.NEXT_TASK_ID, L.SLOTS_USED, L.FREE_SLOT]].tolist() == [0] * 4
    for ring in range(2):
        fields = [L.R_TOP, L.R_TAIL, L.R_CURSOR, L.R_NEXT, L.R_ALIVE]
        assert [pair.word(ring, field) for field in fields] == [0] * 5


# ---------------------------------------------------------------- the facade
def test_the_facade_waits_until_another_thread_has_released_enough():
    ring = Ring(RING, timeout_ms=int(DEADLINE_S * 1000), ring_depth=1)
    first = ring.alloc(RING)
    got = []
    thread = threading.Thread(target=lambda: got.append(ring.alloc(KIB)))
    thread.start()
    ring.release(first.slot)
    thread.join(DEADLINE_S)
    assert [(one.slot, one.heap_ptr) for one in got] == [(1, ring.heap_base(0))]


def test_the_facade_gives_up_when_nothing_is_released_in_time():
    ring = Ring(RING, timeout_ms=1, ring_depth=1)
    ring.alloc(RING)
    with pytest.raises(RingFullError, match=r"HeapRing exhausted.*8192 bytes"):
        ring.alloc(1)


def test_the_facade_refuses_after_a_shutdown_also_those_that_wait():
    ring = Ring(RING, timeout_ms=int(DEADLINE_S * 1000), ring_depth=1)
    ring.alloc(RING)
    refusals = []

    def wait():
        try:
            ring.alloc(1)
        except RuntimeError as refusal:
            refusals.append(str(refusal))

    thread = threading.Thread(target=wait)
    thread.start()
    ring.shutdown()
    thread.join(DEADLINE_S)
    assert len(refusals) == 1
    assert "shut down" in refusals[0]
    with pytest.raises(RuntimeError, match="shut down"):
        ring.alloc(0)
