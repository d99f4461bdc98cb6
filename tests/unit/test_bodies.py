"""Where a task's arguments are kept: in its slot, or in a block of their own if they are many."""

import struct

import pytest

from simpler_ref.jit import layout as L

from ..support import Driver, ignores

pytestmark = pytest.mark.kernels
KEY = 0x7000_0000
TENSOR = ignores(KEY).wire()
MOST = (L.MAILBOX_ARGS_CAPACITY - 8) // 40
"""Tensors of the largest member."""


def try_big(driver, tensors, members=0):
    """Submit a task of so many tensors, or a group whose members have as many each, without a pass."""
    count = tensors * max(members, 1)
    table, word = struct.pack("<iiQ", tensors, 0, 0) * members, L.SUB << L.WORD_KIND
    return driver.x.submit_task(driver.mem, word, count, members, TENSOR * count + table)


def body(driver, slot):
    """Return where a task keeps its arguments."""
    return int(driver.mem[slot + L.S_BODY])


def fill_with_big_tasks(driver, tensors):
    """Submit until there is no place for another body; return how many tasks that took."""
    count = 0
    while try_big(driver, tensors) >= 0:
        count += 1
    return count


LARGEST = 2048
"""Words of the block of a body of 375 tensors."""


def driver_with_room(blocks, window):
    """Return a driver that has room for so many bodies of the largest size."""
    driver = Driver(window=window)
    driver.mem[L.A_SPILL_END] = driver.mem[L.A_SPILL] + blocks * LARGEST
    return driver


@pytest.mark.spec("ORCH-RUN-6")
def test_room_for_bodies_is_used_again_whatever_size_comes_next():
    driver = driver_with_room(12, window=512)
    for tensors, count in ((12, 384), (100, 48), (375, 12), (25, 192), (200, 24), (12, 384)):
        assert fill_with_big_tasks(driver, tensors) == count, "it is filled with blocks of its size"
        driver.finish_run()
        driver.finish_everything()
        driver.reclaim()
        assert driver.live() == 0
        driver.end_run()
        driver.begin_run()
    driver.close()


def test_a_body_that_does_not_fit_changes_nothing_and_goes_in_when_one_is_reclaimed():
    driver = driver_with_room(12, window=64)
    driver.open_scope()
    assert fill_with_big_tasks(driver, 375) == 12
    before = driver.words()
    assert (try_big(driver, 375), driver.changed_since(before)) == (L.WOULD_BLOCK, [])
    driver.close_scope()
    driver.finish_everything()
    driver.reclaim()
    assert try_big(driver, 375) >= 0
    driver.close()


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize("window", [64, 100_000])
def test_a_group_too_large_for_any_block_is_refused_and_changes_nothing(make_driver, window):
    """It is larger than the area; or it would fit, but not with its block's size rounded up."""
    driver = make_driver(window=window)
    room = int(driver.mem[L.A_SPILL_END] - driver.mem[L.A_SPILL])
    largest_block = 1 << room.bit_length() - 1
    assert window == 64 or largest_block == 1 << 21 < room
    before = driver.words()
    size = (room if window == 64 else largest_block) // (5 * MOST) + 1
    assert (try_big(driver, MOST, size), driver.changed_since(before)) == (L.TOO_MANY_ARGS, [])
    assert window > 64 or try_big(driver, MOST, size - 20) >= 0
