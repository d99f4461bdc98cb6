"""ORCH-MAP: from address to producer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.orchestrator import INVALID, TensorMap
from tests.support import (
    COMPLETED,
    FREE,
    RUNNING,
    Arg,
    Driver,
    auto,
    ignores,
    overwrites,
    reads,
    updates,
    writes,
)

ADDRESSES = st.one_of(
    st.integers(1, 40).map(lambda i: i * 64),
    st.integers(1, 40).map(lambda i: (1 << 47) + (i << 30)),
    st.integers(1, (1 << 63) - 1),
)
KEYS = st.tuples(ADDRESSES, st.integers(-1, 2))


@pytest.mark.spec("ORCH-MAP-1", "ORCH-MAP-6")
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["insert", "insert", "erase", "lookup"]), KEYS, st.integers(0, 5)
        ),
        max_size=80,
    )
)
def test_a_look_up_yields_what_was_inserted_last_for_address_and_owner(steps):
    found, plain = TensorMap(), {}
    for step, (address, owner), slot in steps:
        if step == "insert":
            found.insert(address, slot, owner)
            plain[address, owner] = slot
        elif step == "erase":
            named = plain.get((address, owner)) == slot
            assert found.erase(address, slot, owner) == named
            if named:
                del plain[address, owner]
        assert found.lookup(address, owner) == plain.get((address, owner), INVALID)
    assert len(found) == len(plain)
    for (address, owner), slot in plain.items():
        assert found.lookup(address, owner) == slot


@pytest.mark.spec("ORCH-MAP-1")
@pytest.mark.parametrize("stride", [1, 1024, 1 << 20, 0x9E3779B1])
def test_nothing_is_lost_while_the_map_grows_and_shrinks(stride):
    keys, count = TensorMap(), 1500
    for i in range(1, count + 1):
        keys.insert(i * stride, i)
    assert len(keys) == count
    for i in range(1, count + 1, 2):
        assert keys.erase(i * stride, i)
    for i in range(1, count + 1):
        assert keys.lookup(i * stride) == (INVALID if i % 2 else i)


@pytest.mark.spec("ORCH-MAP-2")
def test_a_reader_waits_for_the_latest_writer_submitted_before_it(driver):
    first, second = driver.submit(writes(4096)), driver.submit(writes(4096))
    reader = driver.submit(reads(4096))
    later = driver.submit(writes(4096))
    assert driver.producers(reader) == [second]
    driver.finish(first)
    assert driver.state(reader) != RUNNING
    driver.finish(second)
    assert driver.worker_of(reader) >= 0
    assert driver.producers(later) == []


@pytest.mark.spec("ORCH-MAP-3")
def test_a_replaced_producer_stays_live_for_the_consumers_it_has(driver):
    driver.open_scope()
    old = driver.submit(writes(4096))
    early = driver.submit(reads(4096))
    new = driver.submit(writes(4096))
    late = driver.submit(reads(4096))
    driver.close_scope()
    assert driver.producers(early) == [old]
    assert driver.producers(late) == [new]
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
def test_keys_are_erased_when_the_task_is_reclaimed_and_not_before(driver):
    driver.open_scope()
    slot = driver.submit(writes(4096), updates(8192), overwrites(12288), auto(8), reads(16384))
    assert driver.map_count() == 4
    driver.close_scope()
    driver.finish(slot)  # consumed, on the list
    assert driver.consumed_list() == [slot]
    assert driver.map_count() == 4
    driver.reclaim()
    assert driver.map_count() == 0
    reused = driver.submit()
    assert reused == slot
    assert driver.lookup(4096) == L.NONE


@pytest.mark.spec("ORCH-MAP-5")
def test_a_reclaimed_task_leaves_the_keys_of_a_newer_producer_alone(driver):
    driver.open_scope()
    old = driver.submit(writes(4096), writes(8192))
    driver.close_scope()
    driver.settle()
    new = driver.submit(writes(4096))
    driver.post_done(driver.worker_of(old))
    driver.settle()
    assert driver.reclaim() == 1
    assert driver.lookup(4096) == new
    assert driver.lookup(8192) == L.NONE
    reader = driver.submit(reads(4096))
    assert driver.producers(reader) == [new]


@pytest.mark.spec("ORCH-MAP-5")
def test_the_key_of_a_buffer_goes_whatever_its_slot_was_used_for_before():
    driver = Driver(sub=0, next_level=1)
    driver.open_scope()
    before = driver.submit(ignores(4096, child_memory=True), kind=L.NEXT_LEVEL, owner=0)
    driver.close_scope()
    driver.finish(before)
    driver.reclaim()
    driver.open_scope()
    assert driver.alloc(8) == before
    assert driver.map_count() == 1
    driver.close_scope()
    assert driver.map_count() == 0
    driver.close()


@pytest.mark.spec("ORCH-MAP-5")
@given(
    tasks=st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=12),
    data=st.data(),
)
def test_the_map_never_leads_to_a_task_that_is_gone(tasks, data):
    driver, newest = Driver(), {}
    for buffers in tasks:
        driver.open_scope()
        slot = driver.submit(*[writes(4096 * b) for b in buffers])
        newest |= dict.fromkeys(buffers, slot)
        driver.close_scope()
        for _ in range(data.draw(st.integers(0, 2))):
            busy = [w for w in range(2) if driver.given(w)]
            driver.settle()
            if busy:
                done = driver.given(busy[0])
                driver.post_done(busy[0])
                driver.settle()
                driver.reclaim()
                newest = {b: s for b, s in newest.items() if s != done}
        for b in range(1, 6):
            assert driver.lookup(4096 * b) == newest.get(b, L.NONE)
        assert driver.map_count() == len(newest)


@pytest.mark.spec("ORCH-MAP-6")
def test_equal_addresses_of_different_owners_are_different_buffers(driver):
    host = driver.submit(writes(4096))
    first = driver.submit(writes(4096, child_memory=True), owner=0)
    second = driver.submit(writes(4096, child_memory=True), owner=1)
    assert [driver.lookup(4096, owner) for owner in (-1, 0, 1)] == [host, first, second]
    assert driver.producers(driver.submit(reads(4096), owner=1)) == [host]
    assert driver.producers(driver.submit(reads(4096, child_memory=True), owner=1)) == [second]
    assert driver.producers(driver.submit(reads(4096, child_memory=True), owner=2)) == []
    driver.finish_everything()
    driver.finish_run()
    driver.reclaim()
    assert driver.map_count() == 0


@pytest.mark.spec("ORCH-MAP-6")
def test_many_owners_of_many_addresses_do_not_meet():
    keys = TensorMap()
    pairs = [(address, owner) for address in range(64, 8000, 64) for owner in range(-1, 9)]
    for slot, (address, owner) in enumerate(pairs):
        keys.insert(address, slot, owner)
    assert len(keys) == len(pairs)
    assert [keys.lookup(*pair) for pair in pairs] == list(range(len(pairs)))


@pytest.mark.spec("ORCH-MAP-7")
@pytest.mark.parametrize("tag", [0, 2, 3, 4])
def test_address_zero_is_neither_found_nor_inserted(driver, tag):
    task = driver.submit(Arg(tag, 0))
    assert driver.map_count() == 0
    assert driver.lookup(0) == L.NONE
    assert driver.producers(driver.submit(reads(0), updates(0))) == []
    assert task != L.NONE
    keys = TensorMap()
    assert keys.lookup(0) == INVALID
    with pytest.raises(ValueError, match="address 0"):
        keys.insert(0, 1)
    assert not keys.erase(0, 1)


@pytest.mark.spec("ORCH-MAP-8")
def test_overlapping_tensors_with_different_base_addresses_do_not_depend(driver):
    whole = driver.submit(writes(4096, nbytes=4096))
    inner = driver.submit(reads(4100, nbytes=8), updates(4104, nbytes=8))
    assert driver.producers(inner) == []
    same_base = driver.submit(reads(4096, nbytes=1))
    assert driver.producers(same_base) == [whole]


@pytest.mark.spec("ORCH-MAP-9")
def test_the_owner_of_a_slab_is_its_producer_again_when_the_last_one_is_gone(driver):
    buffer = driver.alloc(4096)
    address = driver.address(buffer)
    driver.open_scope()
    driver.submit(updates(address))
    driver.finish_everything()
    driver.close_scope()
    assert driver.live() == 1
    reader = driver.submit(reads(address))
    assert driver.producers(reader) == [buffer]
