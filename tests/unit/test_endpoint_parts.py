"""Parts of links, sessions and their parent, each by itself."""

import dataclasses
import itertools
import os
import random
import re
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import zmq

from simpler_ref import RemoteWorkerSpec
from simpler_ref.calls.arguments import ARRAY, VALUE, head_words
from simpler_ref.engine.view.blocks import set_value_key
from simpler_ref.errors import RemoteError
from simpler_ref.jit import layout as L
from simpler_ref.jit.constants import LINE
from simpler_ref.remote import tasks
from simpler_ref.remote.controls import Stores
from simpler_ref.remote.copies import (
    EVENTS,
    CopiedTensor,
    Copies,
    CopyState,
)
from simpler_ref.remote.copies import _Copy as Copy
from simpler_ref.remote.directory import Held, Use
from simpler_ref.remote.link_frames import LinkFrames
from simpler_ref.remote.link_tasks import KnownValues
from simpler_ref.remote.mover import Mover, bytes_at
from simpler_ref.remote.parent_tensors import Recovery
from simpler_ref.remote.session_tasks import CallWork
from simpler_ref.remote.task_messages import ANY_SUB_WORKER, Call, Run
from tests.endpoints import store, validate
from tests.spec_rules import ROOT
from tests.support import sample


# ---------------------------------------------------------------- versions at a session
@pytest.mark.parametrize(("name", "state"), [*itertools.product(EVENTS, CopyState)])
def test_an_event_happens_in_its_states_only_and_leaves_its_window(name, state):
    copies, offered = store()
    copy, event = Copy(np.zeros(4, np.uint8)), EVENTS[name]
    copy.state = state
    if state not in event.before:
        with pytest.raises(RuntimeError, match=f"that is {state.name} cannot {name}"):
            copies._step(name, 7, copy, 3)
        assert (copy.state, copy.version, offered) == (state, 0, {})
        return
    copies._step(name, 7, copy, 3)
    assert (copy.state, copy.version) == (event.after, 3)
    assert [one.access for one in offered.values()] == [event.access] * bool(event.access)


def test_what_comes_in_a_frame_takes_the_place_of_a_transfer_and_needs_none():
    copies, offered = store()
    assert [copies.open(1, 7, 1, 4)] == [*offered]
    copies.put([CopiedTensor(7, 1, data=b"abcd")])
    assert copies.open(1, 7, 1, 4) == 0 and not offered
    (address,) = copies.take([CopiedTensor(7, 1)], [4])
    assert bytes(bytes_at(address, 4)) == b"abcd" and len(offered) == 1
    copies.put([CopiedTensor(7, 1, data=b"abcd")])
    validate(copies)


def test_errors_tell_the_story_of_a_version():
    copies, _ = store()
    copies.open(1, 7, 1, 4)
    both = [CopiedTensor(7, 1, 2)]
    copies.take(both, [4])
    copies.settle(both, True)
    with pytest.raises(RemoteError, match=r"\(here: open 1, take 1, change, keep 2\)"):
        copies.take([CopiedTensor(7, 1)], [4])
    validate(copies)


def test_a_version_that_does_not_read_the_one_before_may_be_made():
    held = Held(Use(0, 1, 4, 3))
    without = []
    for task, reads in ((5, False), (6, True), (7, False)):
        held.make(0, None, task, reads)
        without.append(held.makers[-1].task)
    assert without == [5, 5, -1] and len(held.makers) == 2


def test_the_page_has_all_events():
    text = (ROOT / "docs/design/remote.md").read_text()
    rows = re.findall(r"^\| `([a-z ]+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
    told = [
        (name, ", ".join(one.name for one in event.before), event.after.name)
        for name, event in EVENTS.items()
    ]
    assert rows == told


# ---------------------------------------------------------------- values at a session
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
        return self.known.has(key)


@pytest.fixture
def parent():
    return Parent()


def test_those_used_longest_ago_are_dropped(parent):
    parent.add(1, 2, 3)
    assert parent.has(1)
    parent.add(4)
    assert parent.known.take_dropped() == [2]
    assert [parent.has(key) for key in range(1, 6)] == [True, False, True, True, False]
    parent.add(5)
    assert (parent.known.take_dropped(), parent.known.take_dropped()) == ([1], [])


def test_what_nobody_holds_is_dropped_whichever_it_is(parent):
    parent.add(1, 2, 3)
    parent.free(2)
    parent.make(3)
    set_value_key(parent.mem, parent.block(3), 9)  # another value is in the block
    assert parent.known.take_dropped(looks=2) == []
    assert (parent.known.take_dropped(looks=2), parent.known.take_dropped()) == ([2, 3], [])
    assert parent.has(1)


def test_a_value_that_comes_anew_stays_when_the_session_is_told_to_forget_the_one_it_has():
    kept = Copies(Mock(), lambda nbytes: np.zeros(nbytes, np.uint8))
    kept.keep(7, b"abc", 3, was_stored=True)
    assert kept.open(0, 7, 1, 3)  # for a call that is not sent yet
    kept.drop([7])
    assert (kept.find_value(7), kept.take_stored(7).tolist()) == (None, [0, 0, 0])


# ---------------------------------------------------------------- what a session takes as a call
ARRAYS = (CopiedTensor(7, 1, 0, "", "[\"'<f8'\", [2], [8]]"),)
HEAD = [L.SIGNED] * 2
BLOCK = L.FETCHED | L.VALUE_BLOCK


def work(codes, kinds, *, tensors=(), values=()):
    words = [*head_words(5, codes, 0), *range(codes.count(VALUE))]
    call = Call(bytes(32), ANY_SUB_WORKER, np.array(words, np.int64).tobytes())
    return CallWork(1, Run(b"", kinds=bytes(kinds), tensors=tensors), call, b"", values, None)


def test_a_call_has_as_many_arrays_and_values_as_its_words_say():
    found = work([VALUE, ARRAY, VALUE], [*HEAD, L.FLOAT64, BLOCK], tensors=ARRAYS, values=[b"v"])
    assert (found.sizes, found.form.key, found.form.has_items) == ([16], 5, False)


@pytest.mark.parametrize(
    ("codes", "kinds", "more"),
    [
        ([VALUE], HEAD, {}),
        ([VALUE], [*HEAD, BLOCK], {}),
        ([VALUE], [*HEAD, L.SIGNED], {"values": [b"v"]}),
        ([VALUE], [*HEAD, L.SIGNED], {"tensors": ARRAYS}),
        ([ARRAY, ARRAY], HEAD, {"tensors": ARRAYS}),
        ([VALUE], [*HEAD, L.FUTURE], {}),
        ([VALUE], [*HEAD, L.PAYLOAD], {}),
        ([VALUE], [*HEAD, BLOCK + 1], {}),
    ],
)
def test_words_that_would_name_something_of_this_machine_are_refused(codes, kinds, more):
    with pytest.raises(ValueError, match="do not fit its arrays and values"):
        work(codes, kinds, **more)


# ---------------------------------------------------------------- the memory of a session
HERE, THERE = 3, 4


def test_bytes_that_are_not_all_in_a_buffer_are_refused():
    stores = Stores(HERE, Mock(), lambda n: np.zeros(n, np.uint8))
    made = stores.alloc(8)
    for offset, nbytes in ((4, 5), (9, 1)):
        part = tasks.CopyRequest(HERE, made.buffer_id, made.generation, offset, nbytes)
        words = f"{nbytes} bytes from offset {offset} are not all in a buffer of 8"
        with pytest.raises(ValueError, match=words):
            stores.read(part)


def test_only_its_importer_releases_an_import():
    mover = Mover("tcp://127.0.0.1:*")
    try:
        owner, importer = (
            Stores(one, mover, lambda n: np.zeros(n, np.uint8)) for one in (HERE, THERE)
        )
        made = owner.alloc(8)
        part = tasks.ExportBufferRequest(HERE, made.buffer_id, made.generation, 0, 8, 1)
        imported = importer.take(tasks.ImportBufferRequest(THERE, 1, owner.export(part)))
        names = [one.name for one in dataclasses.fields(tasks.ReleaseImportRequest)]
        release = tasks.ReleaseImportRequest(*(getattr(imported, one) for one in names))
        with pytest.raises(ValueError, match="importer 3 is not this endpoint, 4"):
            importer.release(dataclasses.replace(release, importer_endpoint_id=HERE))
        for wrong in ({"generation": release.generation + 1}, {"import_id": 7}):
            with pytest.raises(KeyError, match="is not a live import of endpoint 4"):
                importer.release(dataclasses.replace(release, **wrong))
        importer.release(release)
        assert importer.counts()["imports"] == 0
    finally:
        mover.close()


# ---------------------------------------------------------------- how a link waits
def test_rings_that_come_together_wake_a_link_once():
    frames = LinkFrames(RemoteWorkerSpec(), 0, None, None, None)
    armed = []
    frames._lookout = SimpleNamespace(arm=lambda *place: armed.append(place))
    frames._bell = os.eventfd(0, os.EFD_NONBLOCK)
    with zmq.Context() as context, context.socket(zmq.DEALER) as frames._frames:
        for _ in range(2):
            os.eventfd_write(frames._bell, 1)
        frames.wait_for_answer_or_task(2, 7)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(frames._bell)
    os.close(frames._bell)
    assert armed == [(2, 7)]


# ---------------------------------------------------------------- memory that a log of tasks keeps
@pytest.mark.parametrize("seed", sample(range(100), 20))
def test_memory_gets_back_what_it_had_before_the_first_write_of_each_byte(seed):
    rng, log = random.Random(seed), Recovery(None, 1)
    memory = np.arange(64, dtype=np.uint8)
    before = memory.copy()
    for number in range(rng.randrange(12)):
        start, end = sorted(rng.sample(range(65), 2))
        log.save_bytes(memory.ctypes.data + start, end - start)
        memory[start:end] = 100 + number
    log.restore()
    assert np.array_equal(memory, before)
    log.clear()
    memory[:] = 7
    log.restore()
    assert set(memory) == {7}, "what was kept before is none of the next tasks' business"
