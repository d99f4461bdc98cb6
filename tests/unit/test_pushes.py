"""What sessions push to each other: the inbox, and pushes between two movers."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest

from simpler_ref.errors import TransferError
from simpler_ref.remote import pushes
from simpler_ref.remote.chunks import CHUNK, Header, Kind
from simpler_ref.remote.connection import has_message
from simpler_ref.remote.keys import new_pair
from simpler_ref.remote.mover import Span, ZmqMover
from simpler_ref.remote.pushes import Inbox
from simpler_ref.remote.windows import Refusal, Window
from tests.support import wait_until

SILENCE_S = 2.0


@pytest.fixture
def bell():
    made = os.eventfd(0, os.EFD_NONBLOCK)
    yield made
    os.close(made)


@pytest.fixture
def two():
    """Two movers; the second one has an inbox."""
    group = new_pair()
    first, second = (ZmqMover("tcp://127.0.0.1:*", group, SILENCE_S) for _ in range(2))
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    inbox = Inbox(partial(os.eventfd_write, bell, 1))
    second.on_pushed = inbox.put
    yield first, second, inbox
    first.close()
    second.close()
    os.close(bell)


def put(inbox, token, number, data, at=0, nbytes=None):
    nbytes = len(data) if nbytes is None else nbytes
    inbox.put(Header(Kind.PUSH, 1, 1, token, number, nbytes, at), memoryview(data))


def joined(chunks):
    return b"".join(bytes(data) for _, data in sorted(chunks))


# ---------------------------------------------------------------- the inbox
def test_what_comes_early_waits_for_its_replay_and_is_taken_once(bell):
    inbox = Inbox(partial(os.eventfd_write, bell, 1))
    put(inbox, 7, 1, b"early")
    inbox.begin(7)
    put(inbox, 7, 2, b"later")
    assert (joined(inbox.take(1)), joined(inbox.take(2))) == (b"early", b"later")
    assert inbox.take(1) is None
    put(inbox, 7, 1, b"one")
    inbox.begin(8)
    assert inbox.take(1) is None, "it was for another replay"
    inbox.end()
    put(inbox, 8, 1, b"late")
    inbox.begin(8)
    assert inbox.take(1) is None


def test_wrong_sizes_and_too_much_are_refused(bell, monkeypatch):
    inbox = Inbox(partial(os.eventfd_write, bell, 1))
    with pytest.raises(Refusal, match="a chunk of 5 bytes is announced, 3 have come"):
        put(inbox, 7, 1, b"one", nbytes=5)
    monkeypatch.setattr(pushes, "MOST_EARLY_BYTES", 5)
    put(inbox, 7, 1, b"one")
    with pytest.raises(Refusal, match="5 bytes are here for replays that have not begun"):
        put(inbox, 7, 2, b"two")
    inbox.begin(7)
    put(inbox, 7, 2, b"two" * 9)


# ---------------------------------------------------------------- between two movers
def test_at_the_end_all_pushes_have_arrived(two):
    first, second, inbox = two
    large = np.random.default_rng(0).integers(0, 255, 3 * CHUNK + 5, np.uint8).tobytes()
    with first.pushing(9) as made:
        for number in range(50):
            made.push(second.address, number, bytes((number,)))
        made.push(second.address, 50, large)
    inbox.begin(9)
    assert [joined(inbox.take(number)) for number in range(50)] == [bytes((i,)) for i in range(50)]
    assert joined(inbox.take(50)) == large
    counts = first.counters()
    assert (counts["transfers"], counts["bytes_out"]) == (51, 50 + len(large))
    assert second.counters()["served_in"] == counts["bytes_out"]
    with first.pushing(10) as made:
        made.push(second.address, 1, b"again")
        made.finish(second.address)
        (line, _), *_ = made.lines.values()
        wait_until(lambda: has_message(line._socket))
        made.require_arriving()
    inbox.begin(10)
    assert joined(inbox.take(1)) == b"again"
    assert first.counters()["lines"] == 1, "an answer is left on the line"


def test_what_is_refused_fails_the_pushes(two, monkeypatch):
    first, second, _ = two
    monkeypatch.setattr(pushes, "MOST_EARLY_BYTES", 5)
    with pytest.raises(TransferError, match="refused") as caught, first.pushing(9) as made:
        made.push(second.address, 1, b"too long")
    assert f"cannot push to {second.address}" in str(caught.value)
    with pytest.raises(TransferError, match="refused"), first.pushing(9) as made:
        made.push(second.address, 1, b"too long")
        wait_until(lambda: made.require_arriving())  # which raises
    with first.pushing(9) as made:
        made.push(second.address, 1, b"short")
        made.require_arriving()


# ---------------------------------------------------------------- many windows
SIZES = 1, 100, CHUNK, CHUNK + 1, 3 * CHUNK, 7


def offered(mover, access):
    arrays = [np.arange(size).astype(np.uint8) for size in SIZES]
    for key, one in enumerate(arrays, 1):
        mover.offer(Window(key, one.ctypes.data, one.nbytes, access))
    return arrays


def test_many_windows_are_fetched_and_stored(two):
    first, second, _ = two
    there, here = offered(second, 3), [np.zeros(size, np.uint8) for size in SIZES]
    spans = [Span(key, one, one.nbytes) for key, one in enumerate(here, 1)]
    first.fetch_all(second.address, spans)
    for one, right in zip(here, there, strict=True):
        np.testing.assert_array_equal(one, right)
        one[:] = 3
    first.store_all(second.address, spans)
    assert all((one == 3).all() for one in there)
    counts = first.counters()
    assert (counts["transfers"], counts["bytes_in"]) == (12, sum(SIZES))
    assert counts["bytes_out"] == sum(SIZES)
    moved = []
    first.on_moved = lambda *told: moved.append(told[:3])
    first.fetch_all(second.address, spans)
    assert moved == [(second.address, False, size) for size in SIZES]


@pytest.mark.parametrize("way", ["fetch_all", "store_all"])
def test_one_window_that_is_refused_fails_them_all(two, way):
    first, second, _ = two
    there = offered(second, 3)
    second.withdraw(4)
    spans = [Span(key, np.zeros(size, np.uint8), size) for key, size in enumerate(SIZES, 1)]
    with pytest.raises(TransferError, match="refused"):
        getattr(first, way)(second.address, spans)
    getattr(first, way)(second.address, spans[:3])
    del there
