"""The states of a version at a session, against the table, and the page that shows it."""

import itertools
import re

import numpy as np
import pytest

from simpler_ref.errors import RemoteError
from simpler_ref.remote.copies import EVENTS, ComingCopies, ComingCopy, CopiedTensor, CopyState
from simpler_ref.remote.copies import _Copy as Copy
from simpler_ref.remote.directory import Held, Use
from simpler_ref.remote.windows import bytes_at
from tests.endpoints import store
from tests.spec_rules import ROOT


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
    coming = ComingCopies(1, (ComingCopy(7, 1, 4),))
    assert copies.open(coming) == [7] and len(offered) == 1
    copies.put([CopiedTensor(7, 1, data=b"abcd")])
    assert copies.open(coming) == [] and not offered
    (address,) = copies.take([CopiedTensor(7, 1)], [4])
    assert bytes(bytes_at(address, 4)) == b"abcd" and len(offered) == 1
    copies.put([CopiedTensor(7, 1, data=b"abcd")])
    copies.validate()


def test_errors_tell_the_story_of_a_version():
    copies, _ = store()
    copies.open(ComingCopies(1, (ComingCopy(7, 1, 4),)))
    both = [CopiedTensor(7, 1, 2)]
    copies.take(both, [4])
    copies.settle(both, True)
    with pytest.raises(RemoteError, match=r"\(here: open 1, take 1, change, keep 2\)"):
        copies.take([CopiedTensor(7, 1)], [4])
    copies.validate()


def test_a_version_that_does_not_read_the_one_before_may_be_made():
    held = Held(Use(0, 1, 4, 3))
    without = []
    for task, reads in ((5, False), (6, True), (7, False)):
        held.make(0, None, task, reads)
        without.append(held.makers[-1].task)
    assert without == [5, 5, -1] and len(held.makers) == 2


def test_the_page_has_all_events():
    text = (ROOT / "docs/design/remote.md").read_text()
    rows = re.findall(r"^\| `([a-z ]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    told = [
        (name, ", ".join(one.name for one in event.before), event.after.name, event.when)
        for name, event in EVENTS.items()
    ]
    assert rows == told
