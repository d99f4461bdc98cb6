"""ORCH-MAP: from address to producer."""

import re
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simpler_ref as sr
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from simpler_ref.jit import tensormap
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.orchestrator import INVALID, TensorMap
from tests.kernels import Kernels
from tests.support import COMPLETED, FREE, Driver, make_args, overwrites, reads, updates, writes

pytestmark = pytest.mark.kernels

k = Kernels(tensormap)
MASK = L.MAP_SMALLEST - 1


def keys_that_collide():
    """Return keys whose preferred places are the last and the first few of the small table."""
    by_home = defaultdict(list)
    for i in range(1, 30_000):
        data, owner = i * 1024, i % 3 - 1
        by_home[k.home(data, owner, MASK)].append((data, owner))
    return [key for home in (MASK - 1, MASK, 0, 1) for key in by_home[home][:5]]


COLLIDING = keys_that_collide()


class Table:
    """The map in an engine's memory, and the dictionaries it must equal."""

    def __init__(self, window=64):
        self.driver = Driver(window=window, run=False)
        self.mem, self.k = self.driver.mem, self.driver.k
        self.reference = {}  # key → producer
        self.slabs = {}  # key → owner of the slab that begins there

    def insert(self, key, slot):
        assert self.k.map_insert(self.mem, *signed(key), slot) == L.OK
        self.reference[key] = slot

    def insert_slab(self, key, slot):
        assert k.has_room(self.mem, 1)
        k.insert_slab(self.mem, *signed(key), slot)
        self.reference[key] = self.slabs[key] = slot

    def erase(self, key, slot):
        """Take `slot` out of a key's entry: a live owner of the slab takes a producer's place."""
        if self.slabs.get(key) == slot:
            del self.slabs[key]
        gone = self.reference.get(key) == slot and key not in self.slabs
        if gone:
            del self.reference[key]
        elif self.reference.get(key) == slot:
            self.reference[key] = self.slabs[key]
        assert self.k.map_erase(self.mem, *signed(key), slot) == gone

    def places(self):
        base, mask = int(self.mem[L.MAP_BASE]), int(self.mem[L.MAP_MASK])
        return self.mem[base : base + (mask + 1) * L.ENTRY_WORDS].reshape(-1, L.ENTRY_WORDS)

    def check(self, *absent):
        """Every key is found, no other is, and the table holds nothing else."""
        for key in {*self.reference, *absent}:
            assert self.driver.lookup(*signed(key)) == self.reference.get(key, L.NONE)
        assert self.mem[L.MAP_COUNT] == len(self.reference)
        places = self.places()
        used = places[places[:, L.E_SLOT] != L.NONE].tolist()
        assert len(used) == len(self.reference)
        for data, owner, _, slab in used:
            assert slab == self.slabs.get((data % 2**64, owner), L.NONE)


def signed(key):
    """Return a key as the kernels take it."""
    data, owner = key
    return data - 2**64 if data >= 2**63 else data, owner


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "slab", "erase", "erase other"]),
        st.sampled_from(COLLIDING),
        st.integers(1, 3),
    ),
    max_size=60,
)


@pytest.mark.spec("ORCH-MAP-1", "ORCH-MAP-5", "ORCH-MAP-6", "ORCH-MAP-9")
@given(steps=STEPS)
def test_the_map_equals_a_dictionary_however_its_keys_collide(steps):
    table = Table()
    for what, key, slot in steps:
        if what == "insert":
            table.insert(key, slot)
        elif what == "slab":
            table.insert_slab(key, slot)
        else:
            table.erase(key, table.reference.get(key, slot) if what == "erase" else slot)
        table.check(*COLLIDING)
    table.driver.close()


@pytest.mark.spec("ORCH-MAP-1", "ORCH-MAP-6")
@settings(max_examples=4 if INTERPRETED else 30)
@given(
    seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8),
    count=st.integers(1, 40 if INTERPRETED else 700),
    stride=st.sampled_from([1, 8, 64, 1024, 4096, 1 << 20, 0x9E3779B1, 1 << 32]),
)
def test_the_map_equals_a_dictionary_while_it_grows_and_shrinks(seeds, count, stride):
    table = Table(window=512)
    for i in range(count):
        for owner, seed in enumerate(seeds, -1):
            key = (seed + i * stride) % 2**64 or 1, owner
            if len(table.reference) < 1024:
                (table.insert if i % 3 else table.insert_slab)(key, 1 + i)
    table.check()
    for key, slot in list(table.reference.items())[::2]:
        table.erase(key, slot)
    table.check()
    while table.reference:  # twice where the owner of a slab takes the place of its producer
        for key, slot in list(table.reference.items()):
            table.erase(key, slot)
    table.check()
    assert not table.places()[:, L.E_SLOT].any()
    table.driver.close()


@pytest.mark.spec("ORCH-MAP-2", "ORCH-MAP-3")
def test_a_replaced_producer_stays_live_for_the_consumers_it_has(driver):
    driver.open_scope()
    tasks = [driver.submit(use(4096)) for use in (writes, reads, writes, reads)]
    old, early, new, late = tasks
    driver.close_scope()
    assert [driver.producers(reader) for reader in (early, late)] == [[old], [new]]
    driver.finish(old)
    driver.reclaim()
    assert driver.state(old) == COMPLETED  # its consumer has not finished
    assert driver.lookup(4096) == new
    driver.finish(early)
    driver.reclaim()
    assert driver.state(old) == FREE


@pytest.mark.spec("ORCH-MAP-4")
@pytest.mark.parametrize("tag", [writes, updates, overwrites])
def test_a_writer_does_not_wait_for_readers(driver, tag):
    producer = driver.submit(writes(4096))
    readers = [driver.submit(reads(4096)) for _ in range(3)]
    writer = driver.submit(tag(4096))
    assert not set(driver.producers(writer)) & set(readers)
    assert driver.producers(writer) == ([producer] if tag is updates else [])


@pytest.mark.spec("ORCH-MAP-5")
def test_a_reclaimed_task_leaves_the_keys_of_a_newer_producer_alone(driver):
    driver.open_scope()
    old = driver.submit(writes(4096), writes(8192))
    driver.close_scope()
    driver.settle()
    new = driver.submit(writes(4096))
    driver.answer_and_settle(driver.worker_of(old))
    assert (driver.reclaim(), driver.lookup(4096), driver.lookup(8192)) == (1, new, L.NONE)
    reader = driver.submit(reads(4096))
    assert driver.producers(reader) == [new]


@pytest.mark.spec("ORCH-MAP-1", "ORCH-MAP-6", "ORCH-MAP-7")
def test_a_tensor_map_on_its_own_has_slots_from_zero_and_refuses_what_is_no_address_or_task():
    keys, high = TensorMap(), 0xFFFF_8000_0000_0040
    assert keys.lookup(4096) == keys.lookup(0) == INVALID
    keys.insert(4096, 0)
    assert (keys.lookup(4096), keys.lookup(4096, owner=0), len(keys)) == (0, INVALID, 1)
    assert not keys.erase(4096, 1) and not keys.erase(0, 1)
    assert keys.erase(4096, 0)
    assert len(keys) == 0
    assert not keys.erase(4096)
    keys.insert(high, 7)
    keys.insert(high, 8, owner=2)
    assert keys.erase(high) and not keys.erase(high), "whatever it named"
    with pytest.raises(ValueError, match="address 0"):
        keys.insert(0, 1)
    for call in (keys.lookup, keys.erase, lambda value: keys.insert(value, 3)):
        for value, error in (("x", TypeError), (1.5, TypeError), (1 << 64, ValueError)):
            with pytest.raises(error, match=re.escape(f"base_ptr={value!r}")):
                call(value)
    for value, error in (("x", TypeError), (-1, ValueError), (1 << 62, ValueError)):
        with pytest.raises(error, match=re.escape(f"slot={value!r}")):
            keys.insert(64, value)
    assert (len(keys), keys.lookup(high, owner=2)) == (1, 8), "refusals have changed nothing"
    assert keys.erase(high, owner=2) and len(keys) == 0


@pytest.mark.spec("ORCH-MAP-7", "ORCH-CHECK-1")
@pytest.mark.parametrize("check", [False, True])
def test_an_empty_tile_takes_no_other_ones_place(check):
    with sr.Worker(level=3, num_sub_workers=2, check=check) as w:
        nothing, x = w.register(lambda args: None), w.zeros(8, np.float32)

        def tiles(orch, args, config):
            for i in (0, 8):
                orch.submit_sub(nothing, make_args((x[i : i + 8], T.OUTPUT_EXISTING)))
            orch.submit_sub(nothing, make_args((x, T.INPUT)))

        def tiles_in_bulk(orch, args, config):
            for i in (0, 8):
                orch.submit_sub_many(nothing, [x[None, i : i + 8]], [T.OUTPUT_EXISTING])
            orch.submit_sub(nothing, make_args((x, T.INPUT)))

        for program in (tiles, tiles_in_bulk):
            assert w.run(program).edges == w.record(program).run().edges == 1


@pytest.mark.spec("ORCH-MAP-7", "ORCH-MAP-8")
def test_only_tensors_with_bytes_and_the_same_base_address_depend(driver):
    whole = driver.submit(writes(4096, nbytes=4096))
    driver.submit(writes(4096, nbytes=0), updates(4096, nbytes=0))
    inner = driver.submit(reads(4100, nbytes=8), updates(4104, nbytes=8), reads(4096, nbytes=0))
    assert driver.producers(inner) == []
    assert driver.producers(driver.submit(reads(4096, nbytes=1))) == [whole]
