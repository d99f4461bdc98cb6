"""What a step writes and nothing else: what belongs to one task, worker or run stays out of others'."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.jit import tensormap
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.orch.columns import Batch

from ..kernels import Kernels
from ..kernels import kernels as k
from ..support import Driver, ignores, member, overwrites, reads, updates, writes

pytestmark = pytest.mark.kernels
KEY = 0x7000_0000
table = Kernels(tensormap)
HEADER_OF_SUBMIT = (
    *(L.NEXT_TASK_ID, L.LIVE, L.FREE_SLOT, L.SLOTS_USED, L.EDGE_COUNT, L.WIRING_PUSHED),
    *(L.MAP_COUNT, L.MAP_BASE, L.MAP_MASK, L.SPILL_USED),
)


def span(start, words):
    return range(int(start), int(start) + words)


def may_change(driver, slot, producers):
    """Return the words that the submit of a task may have written, but for the TensorMap."""
    mem = driver.mem
    ring = int(mem[slot + L.S_RING]) & 7
    position = int(mem[slot + L.S_RING]) >> 3 & int(mem[L.FIFO_MASK + ring])
    yield from HEADER_OF_SUBMIT
    yield from span(L.SPILL_FREE, L.SPILL_CLASSES)
    yield L.SCOPE_STACK + int(mem[L.SCOPE_DEPTH]) - 1
    yield from span(L.RING_BLOCK + ring * L.LINE, L.LINE)
    yield from span(mem[L.A_FIFO + ring] + position * L.FIFO_WORDS, L.FIFO_WORDS)
    yield from span(mem[L.A_WIRING], L.WIRING_CAPACITY)
    yield from span(slot, L.SLOT_WORDS)
    tensors, scalars = driver.counts(slot)
    room, members = int(mem[slot + L.S_EDGES]) >> 32, int(mem[slot + L.S_MEMBERS])
    yield from span(mem[slot + L.S_BODY], k.body_words(tensors, scalars, members, room))
    for producer in producers:
        yield from (producer + L.S_FANOUT, producer + L.S_SEEN)


USES = st.lists(
    st.tuples(st.sampled_from([reads, updates, overwrites, writes, ignores]), st.integers(0, 5)),
    max_size=9,
)


@pytest.mark.spec("ORCH-SUBMIT-2", "ORCH-STATE-4")
@settings(max_examples=10 if INTERPRETED else 20)
@given(tasks=st.lists(st.tuples(USES, st.integers(0, 20), st.integers(0, 2)), max_size=12))
def test_a_submit_writes_its_own_words_and_the_references_of_its_producers(tasks):
    driver = Driver(window=16)
    mem = driver.mem
    data = [driver.address(driver.alloc(8)), *[KEY + 8 * i for i in range(5)]]
    for i in range(16):  # as tasks of before have left them
        body = int(mem[L.A_SLOTS]) + i * L.SLOT_WORDS + L.S_INLINE
        mem[body : body + L.INLINE_WORDS] = 7
    for uses, scalars, members in tasks:
        before, args = driver.words(), [how(data[which]) for how, which in uses]
        if members:
            rest = [member()] * (members - 1)
            slot = driver.submit_group(member(*args, scalars=range(scalars)), *rest)
        else:
            slot = driver.submit(*args, scalars=range(scalars))
        changed = np.array(driver.changed_since(before))
        entries = span(mem[L.A_MAP], int(mem[L.MAP_AREA]) * L.ENTRY_WORDS)
        changed = changed[(changed < entries.start) | (changed >= entries.stop)]
        assert set(changed) <= set(may_change(driver, slot, driver.producers(slot)))
        in_ring = sum(which == 0 for how, which in uses if how in (reads, updates))
        others = sum(which != 0 for how, which in uses if how in (reads, updates))
        assert mem[slot + L.S_EDGES] >> 32 == 2 * in_ring + others
        assert driver.consumers(slot) == []
    driver.close()


def test_fewer_members_than_none_are_refused(driver):
    before = driver.words()
    assert k.submit_task(driver.mem, L.SUB << L.WORD_KIND, 0, -1, b"") == L.ILLEGAL
    assert driver.changed_since(before) == []


# ---------------------------------------------------------------- runs
@pytest.mark.spec("ORCH-FAIL-1")
def test_a_failure_without_a_worker_names_no_member_of_the_one_before(make_driver):
    driver = make_driver(sub=2)
    driver.submit_group(member(), member())
    driver.settle()
    driver.answer_and_settle(1, outcome=L.TASK_FAILURE)
    assert driver.mem[L.ERROR_MEMBER] == 1
    driver.begin_run()
    driver.x.record_error(driver.mem, L.ENDPOINT_FAILURE, driver.mem[L.A_SLOTS], -1, 0)
    assert driver.mem[L.ERROR_MEMBER] == -1


def test_after_the_run_its_thread_may_submit_no_more(driver):
    driver.finish_run()
    assert driver.mem[L.ORCH_THREAD] == 0
    program = np.array([1], np.int64)
    assert driver.k.run_program(driver.mem, program, program) == L.WRONG_THREAD


def test_a_program_ends_where_its_words_do(make_driver):
    driver = make_driver(next_level=1)
    program, variables = Batch([], [], count=3).program(L.NEXT_LEVEL << L.WORD_KIND)
    assert driver.k.run_program(driver.mem, program, variables.reshape(-1)) == L.OK
    assert program[L.PROGRAM_AT] == len(program)
    assert driver.live() == 3


# ---------------------------------------------------------------- workers
@pytest.mark.spec("WM-LEFT-2")
def test_what_a_worker_ran_last_is_the_task_and_its_callable(driver):
    driver.submit()
    slot = driver.submit_and_settle(callable=3)
    driver.answer_and_settle(driver.worker_of(slot))
    ran = driver.word(driver.worker_of(slot), L.W_RAN)
    assert (ran >> L.RAN_TASK, ran & L.CALLABLE_MASK) == (driver.id(slot) + 1, 3)


@pytest.mark.spec("WM-CLAIM-2")
@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_claim_given_back_leaves_no_request_in_the_frame_that_is_filled_next(make_driver, ended):
    driver = make_driver(depth=3)
    for _ in range(ended):
        slot = driver.submit(owner=1)
        driver.finish(slot)
    assert driver.k.claim_mailbox(driver.mem, 1, 0) == L.OK
    frame = driver._worker(1) + ended * L.WORKER_WORDS
    driver.mem[frame + L.W_MAILBOX + L.MAIL_COMMAND] = L.CTRL_COPY_TO
    before = driver.words()
    driver.k.release_mailbox(driver.mem, 1)
    first, stride = driver._worker(1), int(driver.mem[L.WORKER_STRIDE])
    assert set(driver.changed_since(before)) <= {L.PASS_LOCK, *span(first, stride)}
    assert driver.mem[frame + L.W_MAILBOX + L.MAIL_COMMAND] == 0


@pytest.mark.spec("WM-CLAIM-2")
def test_a_claim_given_up_leaves_the_frame_of_the_task_that_runs_alone(make_driver):
    driver = make_driver(sub=1, depth=3)
    driver.submit_and_settle()
    driver.mem[driver._worker(0) + L.W_MAILBOX + L.MAIL_COMMAND] = 7
    before = driver.mailbox(0).copy()
    assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.TIMED_OUT
    assert (driver.mailbox(0) == before).all()


@pytest.mark.spec("WM-LOOP-1")
def test_a_worker_that_died_before_it_is_admitted_is_not_admitted(make_driver):
    driver = make_driver(usable=False)
    driver.kill(0)
    for worker in (0, 1):
        driver.k.set_usable(driver.mem, worker, 1)
    assert [driver.usable(worker) for worker in (0, 1)] == [False, True]


@pytest.mark.spec("SCHED-MAIL-4")
def test_digests_are_remembered_side_by_side_and_forgotten_all_at_once(make_driver):
    driver = make_driver(depth=2)
    mem, first = driver.mem, driver._worker(0)
    where = span(first + L.W_CACHE, L.DIGEST_CACHE * L.DIGEST_CACHE_WORDS)
    for number in range(L.DIGEST_CACHE):
        digest = first + L.W_MAILBOX + L.MAIL_DIGEST
        mem[digest : digest + L.DIGEST_WORDS] = number + 1
        assert k.resolve(mem, 0) == L.RESOLVE
        assert k.remember(mem, 0, number + 40, 0) == number + 40
    for number in range(L.DIGEST_CACHE):
        mem[digest : digest + L.DIGEST_WORDS] = number + 1
        assert k.resolve(mem, 0) == number + 40
    mem[where.start : where.stop] = 7
    before = driver.words()
    k.forget_digests(mem, 0)
    assert driver.changed_since(before) == list(where)
    assert not mem[where.start : where.stop].any()


# ---------------------------------------------------------------- the Scheduler's notes
@pytest.mark.spec("WM-PLACE-4")
def test_what_is_said_of_a_group_that_waits_is_about_that_group(driver):
    for _ in range(2):
        driver.submit(updates(KEY))
    driver.submit()
    waits = driver.submit_group(member(), member(), callable=5)
    driver.settle()
    mem, kind = driver.mem, L.SUB
    assert mem[L.STUCK_TASK + kind] == driver.id(waits) != mem[waits + L.S_ORDER]
    assert mem[L.STUCK_MEMBERS + kind] == 2
    assert mem[L.STUCK_CALLABLE + kind] & L.CALLABLE_MASK == 5


@pytest.mark.spec("WM-DONE-1")
def test_two_passes_leave_no_mailbox_uncollected_though_only_a_member_is_done(driver):
    driver.submit_group(member(), member())
    driver.settle()
    driver.post_done(0)
    driver.x.two_passes(driver.mem)
    assert (driver.mem[L.UNCOLLECTED], driver.mailbox_state(0)[0]) == (0, L.IDLE)


def test_a_ready_queue_keeps_its_order_as_it_grows_and_is_small_again_when_it_is_empty(make_driver):
    many = L.CIRCULAR_SMALLEST + 9
    driver = make_driver(window=2 * many)
    for slot in range(1, many + 1):
        driver.x.push_ready(driver.mem, L.SUB, slot)
        if slot in (5, 6, 7):  # so that it does not begin at the start of its array
            assert driver.x.pop_ready(driver.mem, L.SUB) == slot - 4
    assert driver.mem[L.READY_MASK + L.SUB] == 2 * L.CIRCULAR_SMALLEST - 1
    for slot in range(4, many + 1):
        assert driver.x.pop_ready(driver.mem, L.SUB) == slot
    assert driver.mem[L.READY_MASK + L.SUB] == L.CIRCULAR_SMALLEST - 1


# ---------------------------------------------------------------- hints at what can be given ahead
@pytest.fixture
def ahead():
    """Give an engine of two workers with two frames each, of which worker 0 has filled its own."""
    driver = Driver(sub=2, depth=2)
    driver.submit(writes(KEY), owner=1)
    for _ in range(2):
        driver.submit(owner=0)
    driver.settle()
    yield driver
    driver.close()


@pytest.mark.spec("SPEED-AHEAD-1")
def test_a_task_whose_worker_has_no_frame_holds_no_other_up_and_what_is_given_counts(ahead):
    ahead.submit(reads(KEY), owner=0)
    slot = ahead.submit(reads(KEY), owner=1)
    while ahead.wiring_queue():
        ahead.x.wire(ahead.mem, ahead.x.pop_wiring(ahead.mem))
    ahead.set_parked(1, True)
    ahead.mem[ahead._worker(1) + L.W_DEATH] = 1  # so that nobody keeps a thread off a core
    assert (ahead.x.dispatch(ahead.mem, L.SUB), ahead.all_given(1)[1:]) == (1, [slot])
    assert ahead.word(1, L.W_UNTOLD) == 0, "it was told"


@pytest.mark.spec("SPEED-AHEAD-1")
@pytest.mark.parametrize("failed", [False, True])
def test_after_a_failure_nothing_is_given_ahead(ahead, failed):
    ahead.mem[L.RUN_ERROR] = 0
    slot = ahead.submit(reads(KEY), owner=1)
    ahead.mem[L.RUN_ERROR] = L.TASK_FAILURE if failed else 0
    ahead.settle()
    assert (slot in ahead.all_given(1)) != failed


@pytest.mark.spec("SPEED-AHEAD-1")
def test_a_group_is_never_given_ahead(ahead):
    slot = ahead.submit_group(member(reads(KEY)), member())
    ahead.settle()
    assert not ahead.x.may_predispatch(ahead.mem, slot)
    assert slot not in ahead.all_given(0) + ahead.all_given(1)


@pytest.mark.spec("SPEED-AHEAD-1")
@pytest.mark.parametrize("last", [False, True], ids=["first of its edges", "last of its edges"])
def test_only_what_is_not_done_counts_among_what_a_task_waits_for(make_driver, last):
    count, driver = L.MOST_WAITS + 4, make_driver(sub=1, depth=2)
    driver.open_scope()
    done = [driver.submit(overwrites(KEY + 8 * i)) for i in range(count)]
    driver.finish_everything()
    runs = driver.submit_and_settle(overwrites(KEY + 8 * count))
    keys = [KEY + 8 * i for i in range(count)]
    keys.insert(count if last else 0, KEY + 8 * count)
    slot = driver.submit_and_settle(*map(reads, keys))
    assert len(driver.edges(slot)) == count + 1 == len(done) + 1
    assert driver.all_given(0) == [runs, slot]


# ---------------------------------------------------------------- tables
@given(shift=st.integers(3, 40), owner=st.sampled_from([-1, 0, 3]))
@settings(max_examples=40)
def test_keys_that_differ_in_any_bits_of_the_address_spread_over_the_table(shift, owner):
    assert len({k.home(i << shift, owner, 1023) for i in range(128)}) >= 64


def test_a_table_grows_to_the_whole_of_its_area(make_driver):
    driver = make_driver(window=64)
    mem = driver.mem
    mem[L.MAP_AREA] = 4 * L.MAP_SMALLEST
    assert table.has_room(mem, L.MAP_SMALLEST // 2)
    assert mem[L.MAP_MASK] == L.MAP_SMALLEST - 1
    mem[L.MAP_AREA] = 2 * L.MAP_SMALLEST
    mem[L.A_MAP + 1] = mem[L.A_SPILL]
    assert table.has_room(mem, L.MAP_SMALLEST)
    assert mem[L.MAP_MASK] == 2 * L.MAP_SMALLEST - 1
    before = driver.words()
    assert not table.has_room(mem, L.MAP_SMALLEST + 1)
    assert driver.changed_since(before) == []


@pytest.mark.parametrize("value", range(70))
def test_powers_of_two_are_rounded_up(value):
    assert L.round_up_pow2(value) == min(1 << n for n in range(8) if 1 << n >= value)


def test_every_queue_begins_small_and_a_fresh_engine_knows_what_it_was_told():
    end, words = L.plan(window=5000, rings=3, next_level=1, sub=2)
    small = [L.FIFO_MASK + ring for ring in range(3)] + [L.READY_MASK, L.READY_MASK + 1]
    assert {words[where] for where in small} == {L.CIRCULAR_SMALLEST - 1}
    mem = np.zeros(end, np.int64)  # journals have words beyond the header
    times = {
        "spin_ns": 11,
        "yield_ns": 12,
        "defer_ns": 13,
        "park_ns": 14,
        "stuck_ns": 15,
        "track_reads": True,
    }
    L.initialise(mem, words, heap_bases=[1024, 2048], heap_size=7, cores=16, beside=True, **times)
    for name, value in {**times, "cores": 16, "beside": 1}.items():
        assert mem[getattr(L, name.upper())] == value
    blocks = [L.RING_BLOCK + ring * L.LINE for ring in (0, 1)]
    assert [mem[b + L.R_BASE] for b in blocks] == [1024, 2048]
    assert [mem[b + L.R_SIZE] for b in blocks] == [7, 7]
