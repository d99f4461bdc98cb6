"""How the two threads wait, alone with the interpreted kernels: tests say what comes in their sleep."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.jit import schedule

from .actors import TICK_NS, World, played
from .memory import Memory
from .scene import Scene
from .schedules import InTurn

pytestmark = pytest.mark.kernels


@functools.cache
def _image():
    return Scene("a").image


class Alone(World):
    """The words of an engine whose two workers are ready, and one thread.

    `asleep` is called for each sleep, with the park word and the time limit; it says how that ends.
    `offered` is called when the thread lets others run; `woken` are the words that it has woken.
    """

    def __init__(self, asleep: Callable[[int, int], int], offered=lambda: None):
        super().__init__(Memory(_image()), InTurn())
        self.mem = self.memory
        self.asleep, self.offered = asleep, offered
        self.woken: list[int] = []

    def call(self, kernel, *args):
        with played(self):
            return kernel(self.mem, *args)

    # ------------------------------------------------------------ what the kernels call
    def step(self):
        pass

    def futex_wait(self, i, expected, timeout_ns):
        assert self.mem[i] == expected, "it would not sleep"
        return self.asleep(i, timeout_ns)

    def futex_wake(self, i):
        self.woken.append(i)

    def now_ns(self):
        self.clock += TICK_NS
        return self.clock

    def give_way(self):
        self.offered()
        self.clock += TICK_NS


# ---------------------------------------------------------------- the Orch thread
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


class OrchThread:
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
        assert OrchThread(looks, patch).wait() == L.OK


@pytest.mark.spec("ORCH-BACK-3")
@settings(max_examples=30)
@given(looks=st.lists(LOOKS, max_size=20))
def test_a_wait_for_room_ends_at_the_first_move(looks):
    with pytest.MonkeyPatch.context() as patch:
        thread = OrchThread(looks, patch, room=True)
        assert thread.wait() == L.OK
    moves = [n for n, look in enumerate(looks) if look.moved > 0]
    assert len(looks) - len(thread.left) == (moves[0] + 1 if moves else len(looks))


@settings(max_examples=30)
@given(looks=st.lists(LOOKS, max_size=40), slice_ns=st.integers(1, 80_000))
@example([Look(lasts=17_000)] * 8, 80_000)
def test_a_wait_ends_when_its_time_is_up_and_not_before(looks, slice_ns):
    with pytest.MonkeyPatch.context() as patch:
        thread = OrchThread(looks, patch, slice_ns=slice_ns)
        assert thread.wait() == (L.TIMED_OUT if thread.is_late else L.OK)


@pytest.mark.spec("SCHED-WAKE-5")
def test_a_signal_ends_a_wait(monkeypatch):
    assert OrchThread([Look(), INTERRUPTING, Look()], monkeypatch).wait() == L.INTERRUPTED


@pytest.mark.spec("ORCH-DRAIN-1")
def test_whoever_has_ended_the_last_task_is_waited_for(monkeypatch):
    thread, looks = OrchThread([], monkeypatch), []

    def look(mem):
        looks.append(mem[L.PASS_LOCK])
        mem[L.COMPLETED_COUNT], mem[L.PASS_LOCK] = 100, int(len(looks) < 3)
        return -1

    monkeypatch.setattr(schedule, "orch_pass", look)
    monkeypatch.setattr(thread.world, "offered", lambda: None)
    assert (thread.wait(), len(looks), thread.mem[L.PASS_LOCK]) == (L.OK, 3, 0)


# ---------------------------------------------------------------- the Scheduler thread, on duty or off
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


IN_A_SLEEP = st.builds(
    Sleep,
    st.sampled_from([WOKEN, ASKED, TIME_IS_UP]),
    st.sampled_from([100_000, 300_000]),
    *[st.booleans()] * 3,
    st.sampled_from([0, 0, 0, 1_000_000]),
    st.booleans(),
    st.sampled_from([0, 0, 1]),
)


class SchedulerThread:
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
@given(sleeps=st.lists(IN_A_SLEEP, max_size=12))
def test_it_is_on_duty_when_the_orch_thread_stays_away_and_has_a_clock_when_it_needs_one(sleeps):
    thread = SchedulerThread(sleeps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "two_passes", thread.two_passes)
        thread.run()
