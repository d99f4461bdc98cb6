"""WM-GROUP: one task on several workers."""

import struct

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskArgs
from simpler_ref.jit import layout as L
from tests.support import (
    COMPLETED,
    PENDING,
    RUNNING,
    auto,
    make_args,
    member,
    overwrites,
    reads,
    updates,
    writes,
)

from .own import calling, orch_words

KEY = 0x7000_0000
A, B, C, D = (KEY + 0x100 * i for i in range(4))


def arguments(driver, worker):
    """Return the tensors' addresses and the scalars that stand in a mailbox."""
    box = driver.mailbox(worker).tobytes()
    tensors, scalars = struct.unpack_from("<ii", box, 1104)
    addresses = [struct.unpack_from("<Q", box, 1112 + 40 * i)[0] for i in range(tensors)]
    return addresses, list(struct.unpack_from(f"<{scalars}Q", box, 1112 + 40 * tensors))


@pytest.mark.spec("WM-GROUP-2")
def test_each_member_is_sent_its_own_arguments_with_the_groups_callable(make_driver):
    driver = make_driver(sub=3)
    members = [
        member(reads(A), updates(B), scalars=[1]),
        member(scalars=[2, 3, 4]),
        member(overwrites(C)),
    ]
    group = driver.submit_group(*members, callable=9)
    driver.run_pass()
    sent = {m: w for w, m in driver.members(group).items()}
    assert (sorted(sent), arguments(driver, sent[0])) == ([0, 1, 2], ([A, B], [1]))
    assert arguments(driver, sent[1]) == ([], [2, 3, 4])
    assert arguments(driver, sent[2]) == ([C], [])
    for worker in sent.values():
        assert driver.mailbox(worker)[1072:1104].tobytes() == driver.digest(9)
        assert driver.mailbox_state(worker) == (L.TASK_READY, 0)


@pytest.mark.spec("WM-GROUP-1", "WM-GROUP-2")
def test_all_members_get_the_groups_configuration_also_one_without_arguments():
    with calling(2) as w:
        seen = w.share(np.zeros(2, np.int64))
        note = w.register(lambda _, args, config: seen.__setitem__(len(args), config.block_dim))
        members, config = [None, make_args(scalars=[1])], CallConfig(block_dim=7)
        timing = w.run(lambda orch, *_: orch.submit_next_level_group(note, members, config))
        assert (timing.tasks, seen.tolist()) == (1, [7, 7])


@pytest.mark.spec("WM-GROUP-3")
def test_a_group_waits_for_the_producers_of_all_members_and_readers_for_all_of_it(driver):
    first, second = driver.submit(writes(A)), driver.submit(writes(B))
    group = driver.submit_group(member(reads(A), writes(C)), member(updates(B), overwrites(D)))
    readers = [driver.submit(reads(address)) for address in (C, D)]
    assert driver.producers(group) == [first, second]
    assert [driver.lookup(address) for address in (A, B, C, D)] == [first, group, group, group]
    driver.finish(first)
    assert driver.state(group) == PENDING
    driver.finish(second)
    assert driver.state(group) == RUNNING
    driver.answer_and_settle(0)
    assert driver.states(group, *readers) == [RUNNING, PENDING, PENDING]
    driver.answer_and_settle(1)
    assert driver.states(group, *readers) == [COMPLETED, RUNNING, RUNNING]


@pytest.mark.spec("WM-GROUP-1", "WM-GROUP-4")
def test_a_group_is_one_task_to_which_a_producer_of_several_members_counts_once(driver):
    producer = driver.submit(writes(A), writes(B))
    group = driver.submit_group(member(reads(A), reads(B)), member(reads(B), updates(A)))
    after = driver.submit()
    assert (driver.live(), driver.id(after)) == (3, driver.id(group) + 1)
    assert (driver.refs(group), driver.wiring_queue()) == ((1, 0), [producer, group, after])
    assert (driver.producers(group), driver.refs(producer)) == ([producer], (2, 0))
    driver.settle()
    assert (driver.fanin(group), driver.consumers(producer)) == (1, [group])
    driver.finish_everything()
    driver.finish_run()
    assert driver.refs(producer) == (2, 3)


@pytest.mark.spec("WM-GROUP-4")
@pytest.mark.parametrize("first", [reads, updates, writes, overwrites])
@pytest.mark.parametrize("second", [reads, updates, writes, overwrites])
def test_members_that_name_the_same_buffer_do_not_wait_for_each_other(driver, first, second):
    group = driver.submit_group(member(first(A)), member(second(A)))
    assert driver.producers(group) == []
    driver.run_pass()
    assert (driver.state(group), len(driver.members(group))) == (RUNNING, 2)


@pytest.mark.spec("WM-GROUP-5")
def test_the_outputs_of_all_members_come_from_one_claim(driver):
    top, base = driver.ring_word(0, L.R_TOP), driver.ring_word(0, L.R_BASE)
    group = driver.submit_group(member(auto(10), auto(1025)), member(auto(1)))
    assert driver.ring_word(0, L.R_TOP) - top == 1024 + 2048 + 1024
    assert [driver.address(group, i) - base for i in range(3)] == [0, 1024, 3072]
    driver.run_pass()
    sent = {m: w for w, m in driver.members(group).items()}
    assert arguments(driver, sent[0])[0] == [base, base + 1024]
    assert arguments(driver, sent[1])[0] == [base + 3072]
    for worker in sent.values():
        driver.post_done(worker)
    driver.settle()
    driver.finish_run()
    assert driver.held(0) == 0


@pytest.mark.spec("WM-GROUP-6")
def test_equal_addresses_of_two_members_are_two_buffers(make_driver):
    driver = make_driver(sub=0, next_level=2)

    def device(tag):
        return tag(A, child_memory=True)

    on_0 = driver.submit(device(writes), kind=L.NEXT_LEVEL, owner=0)
    on_1 = driver.submit(device(writes), kind=L.NEXT_LEVEL, owner=1)
    group = driver.submit_group(
        member(device(reads), worker=1),
        member(writes(B, child_memory=True), worker=0),
        kind=L.NEXT_LEVEL,
    )
    assert (driver.producers(group), driver.lookup(A, 0)) == ([on_1], on_0)
    assert (driver.lookup(A, 1), driver.lookup(B, 0)) == (on_1, group)
    assert driver.lookup(B, 1) == driver.lookup(B, -1) == L.NONE
    driver.finish_everything()
    driver.finish_run()
    driver.reclaim()
    assert driver.map_count() == 0, "the keys are found again by their owners"


@pytest.mark.spec("WM-GROUP-7")
def test_the_limit_on_arguments_is_that_of_each_member(make_driver):
    most, driver = tuple(range((15024 - 8) // 8)), make_driver(sub=4)
    group = driver.submit_group(*[member(scalars=most) for _ in range(4)])
    driver.run_pass()
    for worker in range(4):
        assert arguments(driver, worker) == ([], list(most))
        driver.post_done(worker)
    driver.settle()
    assert driver.state(group) == COMPLETED
    before = driver.words()
    assert driver.try_submit_group(member(), member(scalars=(*most, 0))) == L.TOO_MANY_ARGS
    assert driver.changed_since(before) == []


@pytest.mark.spec("WM-GROUP-8")
def test_groups_that_cannot_be_are_refused_and_change_nothing():
    with calling(2, num_sub_workers=2) as w:
        handle, one, pmu = w.register(lambda *_: None), TaskArgs(), CallConfig(enable_pmu=1)

        def orch_fn(orch, *_):
            sub, following = orch.submit_sub_group, orch.submit_next_level_group
            refused = [
                (lambda: sub(handle, []), ValueError, "args_list must not be empty"),
                (lambda: following(handle, []), ValueError, "args_list must not be empty"),
                (lambda: sub(handle, [one] * 3), ValueError, "3 .* 2"),
                (lambda: following(handle, [one] * 3), ValueError, "3 .* 2"),
                (lambda: following(handle, [one] * 2, workers=[0]), ValueError, "1 entries for 2"),
                (lambda: following(handle, [one], workers=[0, 1]), ValueError, "2 entries for 1"),
                (lambda: following(handle, [one] * 2, workers=[1, 1]), ValueError, "twice"),
                (lambda: following(handle, [one] * 2, workers=[0, 2]), ValueError, "worker 2"),
                (lambda: following(handle, [one] * 2, workers=[-2, 0]), ValueError, "worker -2"),
                (lambda: following(handle, [one] * 2, workers=["a", 0]), ValueError, "worker 'a'"),
                (lambda: sub(handle, [one, 5]), TypeError, "TaskArgs"),
                (lambda: sub(handle, 5), TypeError, "args_list must be a list of TaskArgs.* 5"),
                (lambda: sub(handle, one), TypeError, "args_list must be a list of TaskArgs"),
                (lambda: following(handle, [one], workers=5), TypeError, "workers=5 must be a li"),
                (lambda: following(handle, [one], workers="0"), TypeError, "workers='0' must be"),
                (lambda: following(handle, [one], 5), TypeError, "CallConfig"),
                (lambda: following(handle, [one], pmu), ValueError, "output_prefix"),
            ]
            for call, kind, words in refused:
                before = orch_words(w)
                with pytest.raises(kind, match=words):
                    call()
                assert (orch_words(w) == before).all()

        assert w.run(orch_fn).tasks == 0
