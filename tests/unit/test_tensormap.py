"""The tensor map against a dictionary, above all where keys collide."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.jit import tensormap
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.orchestrator import INVALID, TensorMap

from ..kernels import Kernels
from ..support import small_engine, unmap

k = Kernels(tensormap)
MASK = L.MAP_SMALLEST - 1


def signed(data):
    return data - 2**64 if data >= 2**63 else data


def keys_that_collide():
    """Return keys whose preferred places are the last and the first few of the small table."""
    by_home = defaultdict(list)
    wanted = [MASK - 1, MASK, 0, 1]
    for i in range(1, 30_000):
        data, owner = i * 1024, i % 3 - 1
        by_home[k.home(data, owner, MASK)].append((data, owner))
    return [key for home in wanted for key in by_home[home][:5]]


COLLIDING = keys_that_collide()


class Table:
    """The map in an engine's memory, and the dictionaries it must equal."""

    def __init__(self, window=64):
        self.engine = small_engine(window=window)
        self.mem = self.engine.mem
        self.k = self.engine.kernels
        self.reference = {}  # key → producer
        self.slabs = {}  # key → owner of the slab that begins there

    def insert(self, key, slot):
        assert self.k.map_insert(self.mem, signed(key[0]), key[1], slot) == L.OK
        self.reference[key] = slot

    def insert_slab(self, key, slot):
        assert k.has_room(self.mem, 1)
        k.insert_slab(self.mem, signed(key[0]), key[1], slot)
        self.reference[key] = self.slabs[key] = slot

    def erase(self, key, slot):
        """Take `slot` out of a key's entry: a live owner of the slab takes a producer's place."""
        if self.slabs.get(key) == slot:
            del self.slabs[key]
        gone = False
        if self.reference.get(key) == slot:
            gone = key not in self.slabs
            if gone:
                del self.reference[key]
            else:
                self.reference[key] = self.slabs[key]
        assert self.k.map_erase(self.mem, signed(key[0]), key[1], slot) == gone

    def lookup(self, key):
        return self.k.map_lookup(self.mem, signed(key[0]), key[1])

    def places(self):
        base, mask = int(self.mem[L.MAP_BASE]), int(self.mem[L.MAP_MASK])
        return self.mem[base : base + (mask + 1) * L.ENTRY_WORDS].reshape(-1, L.ENTRY_WORDS)

    def check(self, *absent):
        """Every key is found, no other is, and the table holds nothing else."""
        for key, slot in self.reference.items():
            assert self.lookup(key) == slot
        for key in absent:
            if key not in self.reference:
                assert self.lookup(key) == L.NONE
        assert self.mem[L.MAP_COUNT] == len(self.reference)
        places = self.places()
        used = places[places[:, L.E_SLOT] != L.NONE].tolist()
        assert len(used) == len(self.reference)
        for data, owner, _, slab in used:
            assert slab == self.slabs.get((data % 2**64, owner), L.NONE)

    def close(self):
        unmap(self.engine)


steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "slab", "erase", "erase other"]),
        st.integers(0, len(COLLIDING) - 1),
        st.integers(1, 3),
    ),
    max_size=60,
)


@given(steps=steps)
def test_the_map_equals_a_dictionary_however_its_keys_collide(steps):
    table = Table()
    for what, which, slot in steps:
        key = COLLIDING[which]
        if what == "insert":
            table.insert(key, slot)
        elif what == "slab":
            table.insert_slab(key, slot)
        elif what == "erase":
            table.erase(key, table.reference.get(key, slot))
        else:
            table.erase(key, slot)
        table.check(*COLLIDING)
    table.close()


@settings(max_examples=4 if INTERPRETED else 30)
@given(
    seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8),
    count=st.integers(1, 40 if INTERPRETED else 700),
    stride=st.sampled_from([1, 8, 64, 1024, 4096, 1 << 20, 1 << 32]),
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
    table.close()


@pytest.mark.parametrize("order", [1, -1], ids=["first in first", "last in first"])
def test_an_erased_place_is_filled_by_those_that_were_pushed_past_it(order):
    table = Table()
    for slot, key in enumerate(COLLIDING, 1):
        table.insert(key, slot)
    for key in COLLIDING[::order]:
        table.erase(key, table.reference[key])
        table.check(*COLLIDING)
        homes = {k.home(data, owner, MASK) for data, owner in table.reference}
        used = set(table.places()[:, L.E_SLOT].nonzero()[0].tolist())
        for place in used:  # between a key and its preferred place there is no gap
            data, owner = (int(word) for word in table.places()[place, :2])
            home = k.home(data, owner, MASK)
            between = (place - home) % (MASK + 1)
            assert all((home + step) & MASK in used for step in range(between))
        assert homes <= used
    table.close()


def test_a_key_is_erased_only_by_the_task_it_leads_to():
    table = Table()
    key = (0x7000_0000, -1)
    table.insert(key, 1)
    table.insert(key, 2)
    table.erase(key, 1)
    assert table.lookup(key) == 2
    table.erase(key, 2)
    assert table.lookup(key) == L.NONE
    table.erase(key, 2)
    table.check()
    table.close()


def test_the_live_owner_of_a_slab_takes_the_place_of_a_producer_that_goes():
    table = Table()
    key = (0x7000_0000, -1)
    table.insert_slab(key, 1)
    table.insert(key, 2)
    table.insert(key, 3)
    table.check()
    table.erase(key, 2)
    assert table.lookup(key) == 3
    table.erase(key, 3)
    assert table.lookup(key) == 1
    table.insert(key, 4)
    table.erase(key, 1)
    table.check()
    assert table.lookup(key) == 4
    table.erase(key, 4)
    assert table.lookup(key) == L.NONE
    table.insert(key, 5)
    table.check()
    table.close()


def test_a_table_doubles_when_more_than_half_of_it_would_be_used():
    table = Table(window=1024)
    half = L.MAP_SMALLEST // 2
    for i in range(half):
        (table.insert if i % 5 else table.insert_slab)((1024 * (i + 1), -1), i + 1)
    assert table.mem[L.MAP_MASK] == L.MAP_SMALLEST - 1
    first = int(table.mem[L.MAP_BASE])
    table.insert((8, -1), 1)
    assert table.mem[L.MAP_MASK] == 2 * L.MAP_SMALLEST - 1
    second = int(table.mem[L.MAP_BASE])
    assert [first, second] == [int(table.mem[L.A_MAP]), int(table.mem[L.A_MAP + 1])]
    assert not table.mem[first : first + L.MAP_SMALLEST * L.ENTRY_WORDS][L.E_SLOT :: 4].any()
    table.check()
    for key, slot in list(table.reference.items()):
        table.erase(key, slot)
    k.reset(table.mem)
    assert (int(table.mem[L.MAP_BASE]), int(table.mem[L.MAP_MASK])) == (first, MASK)
    table.insert((8, -1), 1)
    table.check()
    table.close()


def test_a_table_with_entries_is_not_reset():
    table = Table(window=1024)
    for i in range(L.MAP_SMALLEST):
        table.insert((1024 * (i + 1), -1), i + 1)
    k.reset(table.mem)
    table.check()
    table.close()


def test_a_table_that_cannot_grow_says_so_and_keeps_what_it_has():
    table = Table(window=16)
    for i in range(L.MAP_SMALLEST // 2):
        table.insert((1024 * (i + 1), -1), i + 1)
    before = table.mem.copy()
    assert table.k.map_insert(table.mem, 8, -1, 1) == L.WOULD_BLOCK
    assert not k.has_room(table.mem, 1)
    assert (table.mem == before).all()
    assert k.has_room(table.mem, 0)
    table.close()


def test_the_facade_speaks_of_slots_from_zero():
    table = TensorMap()
    assert table.lookup(4096) == INVALID
    table.insert(4096, 0)
    assert (table.lookup(4096), len(table)) == (0, 1)
    assert table.lookup(4096, owner=0) == INVALID
    assert not table.erase(4096, 1)
    assert table.erase(4096, 0)
    assert len(table) == 0
    for slot, address in ((-1, 4096), (0, 0)):
        with pytest.raises(ValueError, match="must not be"):
            table.insert(address, slot)
