"""How the Orch thread waits: it spins, offers its core, sleeps, and how that ends."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.jit import schedule
from simpler_ref.jit.atomics import CHANGED, INTERRUPTED

from .actors import TICK_NS
from .alone import Alone

pytestmark = pytest.mark.kernels
SPIN_NS, PATIENCE_NS, PARK_NS = 20_000, 9_000, 2_000_000
PAUSES, OFFERS, SLEEPS = "pauses", "offers its core", "sleeps"


class Look(NamedTuple):
    """What a pass moves (-1: another thread runs one), and what the Orch thread sees afterwards."""

    moved: int = 0
    lasts: int = 1_000
    ended: int = 0
    is_held: bool = False
    keeps: bool = False


LOOKS = st.builds(
    Look,
    st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
    st.sampled_from([1_000, 4_000, 17_000]),
    st.sampled_from([0, 0, 1]),
    *[st.booleans()] * 2,
)


class Thread:
    """The Orch thread, and what is expected of it at each look."""

    def __init__(self, looks, patch, *, goal="nothing alive", slice_ns=1 << 60, parks=False):
        self.left, self.goal, self.slice_ns = list(looks), goal, slice_ns
        self.world = Alone(self.asleep, lambda: self.waits(PAUSES))
        self.mem = self.world.mem
        self.mem |= {L.SPIN_NS: SPIN_NS, L.ORCH_BACK_OFF: PATIENCE_NS, L.PARK_NS: PARK_NS}
        self.mem |= {L.PARKS_AT_ONCE: int(parks)}
        self.spin_ns = 0 if parks else SPIN_NS
        self.mem |= {L.LIVE: 5, L.ORCH_CORE: 3, L.ORCH_KEEPS: -1}
        self.now, self.quiet_since, self.offered = Look(), None, False
        self.start, self.is_late = self.world.clock + TICK_NS, False
        self.expected_keeps = -1
        for name, part in [
            ("orch_pass", self.look),
            ("offer_core", lambda mem, word: self.waits(OFFERS, word)),
            ("keeps_core", lambda mem, waited: self.keeps(waited)),
        ]:
            patch.setattr(schedule, name, part)

    def wait(self):
        live, ended, taken = {
            "nothing alive": (0, -1, -1),
            "everything ended": (-1, 100, -1),
            "room": (-1, -1, 0),
        }[self.goal]
        answer = self.world.call(schedule.help_until, live, ended, taken, L.NONE, self.slice_ns)
        assert self.mem[L.PARK_ORCH] == self.mem[L.PASS_LOCK] == 0
        return answer

    def look(self, mem):
        assert (mem[L.PARK_ORCH], mem[L.ORCH_CORE], mem[L.ORCH_KEEPS]) == (
            0,
            0,
            self.expected_keeps,
        )
        if not self.left:
            goal = {"nothing alive": L.LIVE, "everything ended": L.COMPLETED_COUNT}
            mem[goal.get(self.goal, L.WIRING_TAKEN)] = 0 if self.goal == "nothing alive" else 100
            return 0
        self.now = self.left.pop(0)
        self.world.clock += self.now.lasts
        self.is_late = self.world.clock + TICK_NS - self.start > self.slice_ns
        mem[L.DEFERRED_SINCE] = self.now.is_held
        mem[L.COMPLETED_COUNT] += self.now.ended
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

    def expected(self):
        assert not self.is_late
        now, waited = self.now, self.waited()
        if now.is_held or waited < self.spin_ns:
            keeps = now.keeps and not self.offered
            return PAUSES if waited < PATIENCE_NS or keeps else OFFERS
        return SLEEPS

    def waits(self, how, word=L.ORCH_BACK_OFF):
        assert how == self.expected()
        assert word == L.ORCH_BACK_OFF
        self.offered |= how == OFFERS

    def asleep(self, word, limit_ns):
        now, mem = self.world.clock, self.mem
        assert word == L.PARK_ORCH
        assert mem[word] == L.ACTIVE
        assert self.expected() == SLEEPS
        assert limit_ns == min(PARK_NS, self.start + self.slice_ns - now + 1)
        if self.now == INTERRUPTING:
            return INTERRUPTED
        self.world.clock += 5_000
        return CHANGED


INTERRUPTING = Look(lasts=100_000)


@settings(max_examples=60)
@given(
    looks=st.lists(LOOKS, max_size=40),
    goal=st.sampled_from(["nothing alive", "everything ended"]),
    parks=st.booleans(),
)
def test_it_spins_offers_its_core_and_sleeps(looks, goal, parks):
    with pytest.MonkeyPatch.context() as patch:
        assert Thread(looks, patch, goal=goal, parks=parks).wait() == L.OK


@settings(max_examples=30)
@given(looks=st.lists(LOOKS, max_size=20))
@example([Look(moved=1)])
def test_a_wait_for_room_ends_at_the_first_move(looks):
    with pytest.MonkeyPatch.context() as patch:
        thread = Thread(looks, patch, goal="room")
        assert thread.wait() == L.OK
    moves = [n for n, look in enumerate(looks) if look.moved > 0]
    assert len(looks) - len(thread.left) == (moves[0] + 1 if moves else len(looks))


@settings(max_examples=30)
@given(looks=st.lists(LOOKS, max_size=40), slice_ns=st.integers(1, 80_000))
def test_a_wait_ends_when_its_time_is_up_and_not_before(looks, slice_ns):
    with pytest.MonkeyPatch.context() as patch:
        thread = Thread(looks, patch, slice_ns=slice_ns)
        assert thread.wait() == (L.TIMED_OUT if thread.is_late else L.OK)


def test_a_signal_ends_a_wait(monkeypatch):
    assert Thread([Look(), INTERRUPTING, Look()], monkeypatch).wait() == L.INTERRUPTED


def test_whoever_has_ended_the_last_task_is_waited_for(monkeypatch):
    thread = Thread([], monkeypatch, goal="everything ended")
    mem, looks = thread.mem, []

    def look(mem):
        looks.append(mem[L.PASS_LOCK])
        mem[L.COMPLETED_COUNT], mem[L.PASS_LOCK] = 100, int(len(looks) < 3)
        return -1

    monkeypatch.setattr(schedule, "orch_pass", look)
    monkeypatch.setattr(thread.world, "offered", lambda: None)
    assert (thread.wait(), len(looks), mem[L.PASS_LOCK]) == (L.OK, 3, 0)


def test_a_failure_ends_a_wait_for_room(monkeypatch):
    thread = Thread([], monkeypatch, goal="room")
    thread.left = [Look()] * 30
    thread.mem[L.RUN_ERROR] = L.TASK_FAILURE
    assert (thread.wait(), len(thread.left)) == (L.OK, 29)
