"""When the Scheduler thread sleeps, on duty or off, and how long, whatever happens in its sleep."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.jit import schedule

from .alone import Alone

pytestmark = pytest.mark.kernels
TIMER_NS = 450_000
STUCK_NS = 3_000_000
WOKEN, ASKED, TIME_IS_UP = "woken", "asked for a clock", "the time is up"


class Sleep(NamedTuple):
    """What happens while the thread sleeps."""

    ends: str
    lasts: int = 100_000
    orch_came: bool = False
    is_held: bool = False
    may_miss: bool = False
    stuck_for: int = 0
    """How long a group waits when the sleep ends, 0 for none."""
    locked: bool = False
    """Somebody else runs a pass then."""
    moves: int = 0
    """What the passes after it move."""


SLEEPS = st.builds(
    Sleep,
    st.sampled_from([WOKEN, ASKED, TIME_IS_UP]),
    st.sampled_from([100_000, 300_000]),
    *[st.booleans()] * 3,
    st.sampled_from([0, 0, 0, 1_000_000]),
    st.booleans(),
    st.sampled_from([0, 0, 1]),
)


class Thread:
    """The Scheduler thread, and what is expected of it.

    On duty it is woken by each end; off duty the Orch thread runs the passes, unless it ran none while
    this thread slept for TIMER_NS in all. It has a clock while a task is held back, or while an end may
    stay unseen off duty. If it was only asked for a clock, or finds that the Orch thread still comes, it
    runs no pass.
    """

    def __init__(self, sleeps):
        self.left = list(sleeps)
        self.world = Alone(self.sleep, self.offered)
        self.mem = self.world.mem
        self.mem[L.STUCK_NS] = STUCK_NS
        self.slept = 0
        self.leaves_passes = False
        self.now = Sleep(WOKEN)
        self.passes = 0
        self.moved = 0

    def run(self):
        """Let it go through all sleeps, and stop; return how often it told of a group that waits."""
        told = 0
        while (answer := self.world.call(schedule.scheduler_loop, TIMER_NS)) == L.STUCK:
            told += 1
            since = self.mem[L.STUCK_SINCE]
            assert self.world.clock >= since + STUCK_NS
            assert self.mem[L.STUCK_TOLD] == since
            self.slept, self.leaves_passes, self.passes = 0, False, 0
        assert answer == L.OK
        assert self.mem[L.PARK_SCHED] == self.mem[L.WATCHING] == self.mem[L.PASS_LOCK] == 0
        return told

    def two_passes(self, mem):
        """Play the passes."""
        assert mem[L.PARK_SCHED] == mem[L.WATCHING] == 0, "awake"
        assert mem[L.PASS_LOCK] == 1
        self.passes += 1
        moved, self.moved = self.moved, 0
        mem[L.PARK_ORCH] = L.ACTIVE
        self.world.woken.clear()
        return moved

    def offered(self):
        raise AssertionError("there is nothing to wait for")

    def waits_since(self):
        """Return since when a group waits of which nobody was told, or 0."""
        since = self.mem[L.STUCK_SINCE]
        return since if since > self.mem[L.STUCK_TOLD] else 0

    def expected(self):
        """Return how it is expected to park, and the time limit."""
        on_duty = self.slept > TIMER_NS
        if self.leaves_passes or self.now.is_held or (not on_duty and self.now.may_miss):
            return L.TIMED, TIMER_NS
        since = self.waits_since()
        left = since + STUCK_NS - self.world.clock if since else -1
        return L.ACTIVE if on_duty else L.STANDBY, left

    def sleep(self, word, timeout_ns):
        mem, before = self.mem, self.now
        assert word == L.PARK_SCHED
        duty, limit = self.expected()
        assert mem[L.PARK_SCHED] == duty
        assert abs(timeout_ns - limit) <= (0 if limit in (-1, TIMER_NS) else 1000)
        assert mem[L.WATCHING] == (self.waits_since() != 0)
        expected = 0 if self.leaves_passes or before.locked else 1 + before.moves
        assert self.passes == expected
        if before.moves and expected:
            assert mem[L.PARK_ORCH] == 0 or self.passes == 2
        if not self.left:
            mem[L.STOPPING], mem[L.PASS_LOCK] = 1, 0
            return L.OK
        self.now = self.left.pop(0)
        return self.happen(duty)

    def happen(self, duty):
        mem, now = self.mem, self.now
        self.world.clock += now.lasts
        self.slept += now.lasts
        mem[L.ORCH_PASSES] += now.orch_came
        mem[L.DEFERRED_SINCE] = now.is_held
        mem[L.BUSY], mem[L.DEALT] = (1, -1) if now.may_miss else (0, 0)
        mem[L.STUCK_SINCE] = self.world.clock - now.stuck_for if now.stuck_for else 0
        mem[L.PASS_LOCK] = int(now.locked)
        still = now.orch_came and now.may_miss and not now.is_held
        self.leaves_passes = now.ends == ASKED or (now.ends == TIME_IS_UP and still)
        if now.orch_came:
            self.slept = 0
        self.passes, self.moved = 0, now.moves
        mem[L.PARK_SCHED] = {WOKEN: 0, ASKED: L.KEEP_TIME, TIME_IS_UP: duty}[now.ends]
        return L.TIMED_OUT if now.ends == TIME_IS_UP else L.OK


@settings(max_examples=60)
@given(sleeps=st.lists(SLEEPS, max_size=12))
def test_it_is_on_duty_when_the_orch_thread_stays_away_and_has_a_clock_when_it_needs_one(sleeps):
    thread = Thread(sleeps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "two_passes", thread.two_passes)
        thread.run()
