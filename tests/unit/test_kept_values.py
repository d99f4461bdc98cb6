"""What a link knows of the values that its session keeps."""

from unittest.mock import Mock

import numpy as np
import pytest

from simpler_ref.engine.view.blocks import set_value_key, value_key
from simpler_ref.jit.constants import LINE
from simpler_ref.remote.copies import ComingCopies, ComingCopy, Copies
from simpler_ref.remote.link_calls import KnownValues

SIZE = 100_000
MOST = 3 * SIZE


class Parent:
    """Memory with blocks of values, each under a key that is its place."""

    def __init__(self):
        self.mem = np.zeros(1 << 10, np.int64)
        self.known = KnownValues(self.mem, MOST)

    def make(self, key):
        self.mem[self.block(key)] = 1
        set_value_key(self.mem, self.block(key), key)
        return self.block(key)

    def free(self, key):
        self.mem[self.block(key)] = 0

    @staticmethod
    def block(key):
        return key * LINE

    def add(self, *keys):
        for key in keys:
            self.known.add(key, self.make(key), SIZE)

    def has(self, key):
        return self.known.has(key, self.block(key), SIZE)


@pytest.fixture
def parent():
    return Parent()


def test_values_of_some_lengths_have_a_key(parent):
    block = parent.make(5)
    found = [parent.known.key_for(block, nbytes) for nbytes in (1 << 16, SIZE, MOST, MOST + 1)]
    assert found == [0, 5, 5, 0]
    parent.free(5)
    assert value_key(parent.mem, block) == 0


def test_those_used_longest_ago_are_dropped(parent):
    parent.add(1, 2, 3)
    assert parent.has(1)
    parent.add(4)
    assert parent.known.take_dropped(10) == [2]
    assert [parent.has(key) for key in range(1, 6)] == [True, False, True, True, False]


def test_what_nobody_holds_is_dropped_whichever_it_is(parent):
    parent.add(1, 2, 3)
    parent.free(2)
    parent.make(3)
    set_value_key(parent.mem, parent.block(3), 9)  # another value is in the block
    assert (parent.known.take_all_dropped(), parent.known.take_all_dropped()) == ([2, 3], [])
    assert parent.has(1)


def test_no_more_are_dropped_at_a_time_than_a_frame_takes(parent):
    parent.add(*range(1, 9))
    assert (parent.known.take_dropped(2), parent.known.take_dropped(2)) == ([1, 2], [3, 4])


def test_what_the_session_has_not_been_told_to_forget_is_still_there(parent):
    parent.add(1, 2, 3, 4)
    assert parent.has(2)
    assert parent.has(1)  # which drops no other one that the same call may use
    assert parent.known.take_dropped(10) == []
    parent.add(5)
    assert parent.known.take_dropped(10) == [3, 4]
    assert [parent.has(key) for key in (1, 2, 3, 5)] == [True, True, False, True]


def test_a_session_keeps_values_until_it_is_told_to_forget_them():
    kept = Copies(None, None)
    kept.keep(7, b"abc", 3, was_stored=True)
    kept.begin(2)
    assert kept.find_value(7) == b"abc"
    assert kept.counts()["value_bytes"] == 3
    kept.drop([7, 8])
    assert kept.find_value(7) is None
    told = {name: count for name, count in kept.counts().items() if "value" in name}
    assert told == {
        "values": 0,
        "value_bytes": 0,
        "values_hits": 1,
        "values_stored": 1,
        "values_dropped": 1,
    }


def test_a_value_that_comes_anew_stays_when_the_session_is_told_to_forget_the_one_it_has():
    kept = Copies(Mock(), lambda nbytes: np.zeros(nbytes, np.uint8))
    kept.keep(7, b"abc", 3, was_stored=True)
    coming = ComingCopies(0, [ComingCopy(7, 1, 3)])  # for a call that is not sent yet
    assert kept.open(coming) == [7]
    kept.drop([7])
    assert (kept.find_value(7), kept.take_stored(7).tolist()) == (None, [0, 0, 0])
