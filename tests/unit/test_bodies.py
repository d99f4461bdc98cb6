"""Where a task's arguments are kept: in its slot, or in a block of their own if they are many."""

from __future__ import annotations

import pytest

from simpler_ref.jit import layout as L

from ..support import Driver, ignores

KEY = 0x7000_0000


def big(tensors):
    return [ignores(KEY)] * tensors


@pytest.mark.parametrize("tensors", [0, 1, 5, 6, 7, 12, 32, 33, 64, 65, 100, 128, 375])
def test_arguments_of_any_number_are_kept_word_for_word(driver, tensors):
    slots = [driver.submit(*[ignores(KEY + 8 * (i + k)) for k in range(tensors)]) for i in range(3)]
    for i, slot in enumerate(slots):
        addresses = driver.argument_words(slot)[:: L.TENSOR_WORDS]
        assert addresses == [KEY + 8 * (i + k) for k in range(tensors)]


def fill_with_big_tasks(driver, tensors):
    """Submit until there is no place for another body; return how many tasks that took."""
    count = 0
    while driver.try_submit(big(tensors)) >= 0:
        count += 1
    return count


def test_room_for_bodies_is_used_again_whatever_size_comes_next():
    driver = Driver(window=1024)
    for tensors in (6, 100, 375, 13, 200, 25, 6):  # each fills the room with blocks of its size
        assert fill_with_big_tasks(driver, tensors) > 8
        driver.finish_run()
        driver.finish_everything()
        driver.reclaim()
        assert driver.live() == 0
        driver.end_run()
        driver.begin_run()
    driver.close()


def test_a_body_that_does_not_fit_changes_nothing_and_goes_in_when_one_is_reclaimed():
    driver = Driver(window=2048)
    driver.open_scope()
    assert fill_with_big_tasks(driver, 375) < 2048
    before = driver.words()
    assert driver.try_submit(big(375)) == L.WOULD_BLOCK
    assert driver.changed_since(before) == []
    driver.close_scope()
    driver.finish_everything()
    driver.reclaim()
    driver.submit(*big(375))
    driver.close()
