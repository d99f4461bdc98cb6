"""How the Orch thread waits: it spins, offers its core and sleeps, and how that ends."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.jit import schedule

from .actors import TICK_NS
from .alone import Alone

pytestmark = pytest.mark.kernels
SPIN_NS, PATIENCE_NS, PARK_NS = 20_000, 9_000, 2_000_000
PAUSES, OFFERS, SLEEPS = "pauses", "offers its core", "sleeps"


class Look(NamedTuple):
    """What a pass moves (-1: another thread runs one), and what the Orch thread sees afterwards."""

    moved: int = 0
    lasts: int = 1_000
    is_deferred: bool = False
    keeps: bool = False


INTERRUPTING = Look(lasts=100_000)
LOOKS = st.builds(
    Look,
    st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
    st.sampled_from([1_000, 4_000, 17_000]),
    st.booleans(),
    st.booleans(),
)


class Thread:
    """The Orch thread, and what is expected of it at each look; after all of them it has its goal."""

    def __init__(self, looks, patch, *, room=False, slice_ns=1 << 60):
        self.left, self.room, self.slice_ns = list(looks), room, slice_ns
        self.world = Alone(self.asleep, lambda: self.waits(PAUSES))
        self.mem = self.world.mem
        self.mem |= {L.SPIN_NS: SPIN_NS, L.ORCH_BACK_OFF: PATIENCE_NS, L.PARK_NS: PARK_NS}
        self.mem |= {L.ORCH_CORE: 3, L.ORCH_KEEPS: -1}
        self.now, self.quiet_since, self.offered = Look(), None, False
        self.start, self.is_late = self.world.clock + TICK_NS, False
        self.expected_keeps = -1
        patch.setattr(schedule, "orch_pass", self.look)
        patch.setattr(schedule, "offer_core", lambda mem, word: self.waits(OFFERS))
        patch.setattr(schedule, "keeps_core", lambda mem, waited: self.keeps(waited))

    def wait(self):
        goals = (-1, -1, 0) if self.room else (-1, 100, -1)
        answer = self.world.call(schedule.help_until, *goals, L.NONE, self.slice_ns)
        assert self.mem[L.PARK_ORCH] == self.mem[L.PASS_LOCK] == 0
        return answer

    def look(self, mem):
        assert mem[L.PARK_ORCH] == mem[L.ORCH_CORE] == 0
        assert mem[L.ORCH_KEEPS] == self.expected_keeps
        if not self.left:
            mem[L.WIRING_TAKEN if self.room else L.COMPLETED_COUNT] = 100
            return 0
        self.now = self.left.pop(0)
        self.world.clock += self.now.lasts
        self.is_late = self.world.clock + TICK_NS - self.start > self.slice_ns
        mem[L.DEFERRED_SINCE] = self.now.is_deferred
        if self.now.moved > 0:
            if self.quiet_since is not None and not self.offered:
                self.expected_keeps = L.KEEPS
            self.quiet_since, self.offered = None, False
        return self.now.moved

    def keeps(self, waited):
        assert not self.offered
        assert waited == self.waited()
        return self.now.keeps

    def waited(self):
        """Return how long nothing has moved."""
        if self.quiet_since is None:
            self.quiet_since = self.world.clock
        return self.world.clock - self.quiet_since

    def waits(self, how):
        assert not self.is_late
        waited = self.waited()
        expected = SLEEPS
        if self.now.is_deferred or waited < SPIN_NS:
            keeps = waited < PATIENCE_NS or (self.now.keeps and not self.offered)
            expected = PAUSES if keeps else OFFERS
        assert how == expected
        self.offered |= how == OFFERS

    def asleep(self, word, limit_ns):
        assert (word, self.mem[word]) == (L.PARK_ORCH, L.ACTIVE)
        self.waits(SLEEPS)
        assert limit_ns == min(PARK_NS, self.start + self.slice_ns - self.world.clock + 1)
        if self.now == INTERRUPTING:
            return L.INTERRUPTED
        self.world.clock += 5_000
        return L.OK


@pytest.mark.spec("SPEED-WAIT-2")
@settings(max_examples=60)
@given(looks=st.lists(LOOKS, max_size=40))
def test_it_spins_offers_its_core_and_sleeps(looks):
    with pytest.MonkeyPatch.context() as patch:
        assert Thread(looks, patch).wait() == L.OK


@pytest.mark.spec("ORCH-BACK-3")
@settings(max_examples=30)
@given(looks=st.lists(LOOKS, max_size=20))
def test_a_wait_for_room_ends_at_the_first_move(looks):
    with pytest.MonkeyPatch.context() as patch:
        thread = Thread(looks, patch, room=True)
        assert thread.wait() == L.OK
    moves = [n for n, look in enumerate(looks) if look.moved > 0]
    assert len(looks) - len(thread.left) == (moves[0] + 1 if moves else len(looks))


@settings(max_examples=30)
@given(looks=st.lists(LOOKS, max_size=40), slice_ns=st.integers(1, 80_000))
@example([Look(lasts=17_000)] * 8, 80_000)
def test_a_wait_ends_when_its_time_is_up_and_not_before(looks, slice_ns):
    with pytest.MonkeyPatch.context() as patch:
        thread = Thread(looks, patch, slice_ns=slice_ns)
        assert thread.wait() == (L.TIMED_OUT if thread.is_late else L.OK)


@pytest.mark.spec("SCHED-WAKE-5")
def test_a_signal_ends_a_wait(monkeypatch):
    assert Thread([Look(), INTERRUPTING, Look()], monkeypatch).wait() == L.INTERRUPTED


def test_a_failure_ends_a_wait_for_room(monkeypatch):
    thread = Thread([Look()] * 30, monkeypatch, room=True)
    thread.mem[L.RUN_ERROR] = L.TASK_FAILURE
    assert (thread.wait(), len(thread.left)) == (L.OK, 29)


@pytest.mark.spec("ORCH-DRAIN-1")
def test_whoever_has_ended_the_last_task_is_waited_for(monkeypatch):
    thread, looks = Thread([], monkeypatch), []

    def look(mem):
        looks.append(mem[L.PASS_LOCK])
        mem[L.COMPLETED_COUNT], mem[L.PASS_LOCK] = 100, int(len(looks) < 3)
        return -1

    monkeypatch.setattr(schedule, "orch_pass", look)
    monkeypatch.setattr(thread.world, "offered", lambda: None)
    assert (thread.wait(), len(looks), thread.mem[L.PASS_LOCK]) == (L.OK, 3, 0)
