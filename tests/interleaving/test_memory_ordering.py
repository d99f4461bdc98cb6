"""What each row of "Every release and its acquire" promises, in a program small enough to be broken.

A litmus is a scene, or a part of one: what has happened before, and then the actors whose order is in
question. It is played in two ways. One looks for races: two accesses without order between them count,
whatever they read. The other plays it in weak memory: loads may answer what is old, and then a task
reads what is wrong, or somebody sleeps for ever.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from simpler_ref.jit import entries, journal, mailbox, queues, slots
from simpler_ref.jit import layout as L

from .memory import Recorder, Weakening, WeakMemory
from .scene import PARK_NS, Play, Scene
from .schedules import Drawn

pytestmark = pytest.mark.kernels
PAGE = Path(__file__).resolve().parents[2] / "docs" / "ownership.md"


class Litmus(NamedTuple):
    scene: Callable[[], Scene]
    before: Callable[[Play], None] | None = None
    """What has happened, played to its end."""
    actors: Callable[[Play], None] | None = None
    """Adds the actors; None: all of the scene."""
    check: Callable[[Play], None] | None = None
    """What must hold at the end; None: all that must of a scene."""
    no_timers: tuple[str, ...] = ("orch",)
    deaths: bool = False

    def play(self, seed, memory):
        scene = scene_of(self.scene)
        play = Play(scene, memory(scene), Drawn(f"litmus {seed}", 500))
        play.world.no_timers = self.no_timers
        play.to_die = {0: 1 + seed % 20} if self.deaths else {}
        play.run(self.before, self.actors)
        (self.check or Play.check)(play)
        return play


scene_of = functools.cache(lambda made: made())


def races(litmus, seed, weakened=()):
    """Play it; return the words that were used without order, and by whom."""
    made = []

    def memory(scene):
        made.append(Recorder(scene.image, weakened))
        return made[0]

    with contextlib.suppress(AssertionError):
        litmus.play(seed, memory)
    return {made[0].name(i): who for i, who in made[0].races.items()}


def wrong(litmus, seed, weakened=()):
    """Play it in weak memory; return what is wrong, or None."""
    try:
        litmus.play(seed, lambda s: WeakMemory(s.image, s.cells, s.points, weakened))
    except AssertionError as error:
        return str(error)
    return None


# ---------------------------------------------------------------- parts of scenes
def through_the_queue(play):
    """Numbers go through the wiring queue, which holds two entries here, so that it is soon full."""
    mem, world = play.mem, play.world
    play.replace(L, "WIRING_CAPACITY", 2)
    play.replace(queues, "WIRING_MASK", 1)

    def produce():
        for number in range(1, 6):
            while queues.wiring_full(mem):
                world.give_way()
            queues.push_wiring(mem, number)

    def consume():
        expected = 1
        while expected < 6:
            got = queues.pop_wiring(mem)
            if got == L.NONE:
                world.give_way()
                continue
            assert got == expected, f"{got} comes out of the queue, not {expected}"
            expected += 1

    world.add("orch", produce)
    world.add("scheduler", consume)


NOTES = 30
"""How many notes are made: more than the journal, which has eight places, holds."""


class Noting(Scene):
    """An Orch thread makes notes, and the collector writes them."""

    def new_play(self, memory, schedule, traced=False):
        return NotingPlay(self, memory, schedule, traced)


class NotingPlay(Play):
    def run(self, before=None, actors=None):
        super().run(before, through_a_journal)


def through_a_journal(play):
    mem, world = play.mem, play.world
    at = journal.journal_at(mem, 0)
    play.written = []

    def write_all(mem, _fd, first, count):
        if first != L.COLLECTOR_CHUNK:
            play.written += [mem[first + k] for k in range(count)]
        return L.OK

    def make_notes():
        for number in range(NOTES):
            journal.note(mem, 0, number, number, number, number)
            while mem[at + L.J_PUSHED] == number:  # dropped: there seemed to be no room
                world.give_way()
                journal.note(mem, 0, number, number, number, number)

    def prepared():
        mem.store(at + L.J_MASK, 7)
        world.add("orch", make_notes)
        world.add("collector", lambda: journal.collector_loop(mem, 0))

    play.replace(journal, "write_all", write_all)
    world.add("start", prepared)


def notes_are_written(play):
    """All are, but for less than a quarter of the journal."""
    expected = [number for number in range(NOTES) for _ in range(L.NOTE_WORDS)]
    told = f"written are {play.written[:: L.NOTE_WORDS]}"
    assert play.written in (expected, expected[: -L.NOTE_WORDS]), told


def one_reference_left(play):
    """The last reference on a task that is done is dropped while a consumer wants one."""
    mem = play.mem
    play.pinned = play.consumed = None
    slot = mem.peek(L.A_SLOTS)

    def prepared():
        mem.store(slot + L.S_FANOUT, 1 | 1 << 32)
        mem.store(slot + L.S_STATE, L.COMPLETED)
        play.world.add("orch", lambda: setattr(play, "pinned", slots.acquire_ref(mem, slot)))
        play.world.add("scheduler", lambda: setattr(play, "consumed", slots.release_ref(mem, slot)))

    play.world.add("start", prepared)


def a_request_beside_a_death(play):
    """A worker has answered its last task and dies, while somebody makes a request to it."""
    mem, world = play.mem, play.world
    w = mailbox.worker_at(mem, 0)

    def request():
        mailbox.make_idle(mem, w)
        play.answer = mailbox.request_control(mem, 0, PARK_NS)

    def prepared():
        mem.store(w + L.W_MAILBOX + L.MAIL_STATE, L.TASK_DONE)
        world.add("monitor", lambda: mailbox.mark_dead(mem, 0, 9))
        world.add("requester", request)

    world.add("start", prepared)


def the_death_is_seen(play):
    assert play.answer == L.ILLEGAL, f"the request is answered {play.answer}"


def exactly_one_of_them(play):
    assert play.pinned != play.consumed, f"pinned {play.pinned}, consumed {play.consumed}"


def submits(count):
    """The Orch thread has submitted so many tasks, and nobody else has done anything."""

    def before(play):
        def orch():
            play.begin(0)
            entries.begin_run(play.mem)
            for number in range(count):
                play.submit(number)

        play.world.add("start", orch)

    return before


def submits_the_rest(play):
    def orch():
        for number in range(len(play.slots), len(play.program)):
            play.submit(number)

    play.world.add("orch", orch)
    play.add_others()


def submits_one(play):
    def orch():
        play.submit(0)

    play.world.add("orch", orch)
    play.world.add("scheduler", play.scheduler)
    play.hire(0)


def looks_out(play):
    """A second thread of a worker, which serves its mailbox later, looks out for a task."""

    def orch():
        play.submit(0)
        entries.help_scheduler(play.mem, -1, -1, -1, L.NONE, 0)

    play.world.add("orch", orch)
    play.world.add("lookout", lambda: entries.look_out(play.mem, 0, 0, 0))


def works_until_stopped(play):
    play.closing = True
    play.hire(0)
    play.world.add("closer", lambda: entries.request_stop(play.mem, 0))


def everybody_has_ended(play):
    assert not play.asleep, f"{play.asleep}: asleep for ever"


def drains(play):
    """The Orch thread waits for a task that never ends, and for one before it."""
    play.world.add("orch", lambda: entries.help_scheduler(play.mem, 0, -1, -1, L.NONE, 10**12))
    play.add_others()


def ends_are_seen(play):
    seen = {number for number, event, _ in play.world.history if event == "complete"}
    unseen = {number for number, _ in play.stood} - seen
    assert not unseen, f"the ends of {unseen} stand in mailboxes, and nobody looks"


def cached(text, **how):
    return lambda: Scene(text, **how)


CHAIN = Litmus(cached("a b<a c<b d", runs=2))
FRAMES = Litmus(cached("a@0 b@1<a c@0<b d", runs=1))
PAIR = Litmus(cached("a b<a", depth=1))
ALONE = Litmus(cached("a b<a", workers=1, depth=1))
DEATH = Litmus(cached("a b<a", depth=1, runs=2), deaths=True)
FAILURE = Litmus(cached("a b c<a d e f", depth=1, fails="a", bulk=True))
REQUEST = Litmus(cached("a b", depth=1, requests=2))
CLAIM = Litmus(cached("a@0 b@0", workers=1, depth=1, requests=1, fails="a"))
RELEASED = Litmus(cached("a@0 b@0", workers=1, depth=1, requests=1))
CANCEL = Litmus(cached("a b<a c d<c", depth=2, cancel=True))
STUCK = Litmus(cached("a b*2", depth=1, away=True, services="a"))
AWAY = Litmus(cached("a@0 b@1<a", depth=1, away=True))
QUEUE = Litmus(cached("a"), actors=through_the_queue, check=everybody_has_ended)
REFERENCE = Litmus(cached("a"), actors=one_reference_left, check=exactly_one_of_them)
REFUSED = Litmus(
    cached("a", workers=1, depth=1, spin_ns=0),
    actors=a_request_beside_a_death,
    check=the_death_is_seen,
)
STOPS = Litmus(
    cached("a", workers=1, depth=1, spin_ns=0),
    before=submits(1),
    actors=works_until_stopped,
    check=everybody_has_ended,
)
LOOKOUT = Litmus(
    cached("a", workers=1, depth=2), before=submits(0), actors=looks_out, check=everybody_has_ended
)
WAITS = Litmus(
    cached("a@0 b@0", workers=1, services="b"),
    before=submits(2),
    actors=drains,
    check=ends_are_seen,
    no_timers=("orch", "scheduler"),
)
IN_BULK = Litmus(
    cached("a b<a", workers=1, depth=1, away=True, bulk=True),
    before=submits(1),
    actors=submits_the_rest,
)
TAKEN = Litmus(cached("a", workers=1, depth=1, away=True), before=submits(0), actors=submits_one)
HELD = Litmus(cached("a@0 b", depth=1, away=True, services="a"))
NOTED = Litmus(
    lambda: Noting("a", workers=1, depth=1), actors=through_a_journal, check=notes_are_written
)


class Row(NamedTuple):
    """A row of the table: how it begins, and what is found when one of its accesses is weaker."""

    release: str
    where: str
    litmus: tuple[Litmus, ...]
    races: tuple[tuple[Weakening, ...], ...] = ()
    """Each makes a race."""
    wrongs: tuple[tuple[Weakening, ...], ...] = ()
    """Each makes something go wrong in weak memory."""
    harmless: tuple[tuple[Weakening, ...], ...] = ()
    """These do no harm: the value itself is all that the row promises."""


TABLE = """
store WIRING_PUSHED | push_wiring | CHAIN
    race: store in push_wiring; load in pop_wiring
store WIRING_TAKEN | pop_wiring | QUEUE
    race: store in pop_wiring; load in wiring_full
store PASS_LOCK = 0 | unlock | CHAIN
    race: store in unlock; load in try_lock and compare_exchange in try_lock
store S_STATE | step | CHAIN, IN_BULK
    harmless: store in step
compare-and-exchange S_FANOUT | acquire_ref | REFERENCE
    wrong: compare_exchange in acquire_ref; fetch_add in release_ref
fetch-and-add S_FANOUT | release_ref | CHAIN
    race: fetch_add in release_ref
    harmless: load in acquire_ref
store MAIL_STATE = TASK_READY | send | PAIR
    race: store in send; load MAIL_STATE in receive
exchange MAIL_STATE = TASK_DONE | post | PAIR
    race: exchange in post; load in is_done
exchange MAIL_STATE = INIT_DONE | post | DEATH
    race: exchange in post; load MAIL_STATE in wait_ready
store MAIL_STATE = IDLE | set_idle | PAIR
    harmless: store in set_idle
exchange MAIL_STATE = CONTROL_REQUEST | publish | REQUEST
    race: exchange in publish; load MAIL_STATE in receive
exchange MAIL_STATE = CONTROL_DONE | post | REQUEST
    race: exchange in post; load MAIL_STATE in await_control
store W_CLAIM = CLAIM_GRANTED | grant_claim, lose_tasks | CLAIM
    race: store in grant_claim; load W_CLAIM in claim_mailbox
store MAY_MOVE, unlock, fence, load of the park words | hand_over | RELEASED
    wrong: fence in hand_over; fence in prepare
store W_SKIP | skip_rest, skip_waiting, poison, call_consumers_back | FRAMES, CANCEL
    harmless: store in poison; store in skip_waiting; store in call_consumers_back
store W_ENDED | post_done | FRAMES
    race: store in post_done; load W_ENDED in how_it_ended
STUCK_SINCE, fence, load of WATCHING and PARK_SCHED | watch_groups | STUCK
    wrong: fence in watch_groups; fence in prepare
store MAIL_STATE, fence, load W_PARKED | send, wake_sleepers | ALONE
    wrong: fence in wake_sleepers; fence in prepare
store W_FILLED, fence, load W_LOOKOUT | send, wake_sleepers | LOOKOUT
    wrong: fence in wake_sleepers; fence in prepare
exchange, then load_sc of PARK_ORCH, PARK_SCHED | post, announce_done | WAITS
    wrong: exchange in post; load_sc in announce_done; fence in prepare
exchange of MAIL_STATE, later load_sc of PARK_ORCH, load of PARK_SCHED | post, \
announce_uncollected | AWAY
    wrong: exchange in post; fence in prepare
exchange W_DEATH | mark_dead | DEATH
    harmless: exchange W_DEATH in mark_dead
exchange W_DEATH, compare-and-exchange MAIL_STATE | mark_dead | REFUSED
    wrong: load_sc in await_control
store DEATHS, fence, store of the park words, wake | mark_dead | DEATH
    wrong: store DEATHS in mark_dead; fence in mark_dead
store RUN_ERROR | record_error | FAILURE
    race: store in record_error; load in submit_task
store CANCEL | cancel | CANCEL
    harmless: store in cancel
store W_SHUTDOWN, fence, then MAIL_STATE = SHUTDOWN | request_stop | STOPS
    wrong: fence in request_stop; fence in prepare
store STOPPING, fence, store PARK_SCHED, wake | stop_scheduler | ALONE
    wrong: fence in stop_scheduler; fence in prepare
store J_PUSHED | note | NOTED
    race: store in note; load J_PUSHED in collect_one
store J_TAKEN | collect_one | NOTED
    race: store in collect_one; load J_TAKEN in note
store J_PUSHED, fence, load PARK_COLLECTOR | wake_collector | NOTED
    wrong: fence in wake_collector; fence in prepare
the moves of a pass, fence, load PARK_ORCH | scheduler_loop | ALONE, PAIR
    wrong: fence in scheduler_loop; fence in prepare
store WIRING_PUSHED, fence, load W_GIVEN and the producers' S_STATE, when a pass may be left out \
| pass_in_bulk | IN_BULK
    wrong: fence in pass_in_bulk
store WIRING_PUSHED, fence, load PARK_SCHED, when the pass was taken | pass_after_submit | TAKEN
    wrong: fence in pass_after_submit
DEFERRED_SINCE or WIRING_PUSHED, fence, load PARK_SCHED, when a task is deferred or an end may \
stay unseen | have_time_kept, leave_pass_out | HELD
    wrong: fence in have_time_kept
"""
"""Of each row: how it begins, its place, its programs; then what some weakenings make.

Those with "and" between them are made together.
"""


def read_row(text: str) -> Row:
    head, *found = text.split("\n    ")
    release, where, programs = head.split(" | ")
    several = tuple(globals()[name] for name in programs.split(", "))
    kinds = dict(line.split(": ", 1) for line in found)
    weaker = [read_weakenings(kinds.get(kind, "")) for kind in ("race", "wrong", "harmless")]
    return Row(release, where, several, *weaker)


def read_weakenings(text: str) -> tuple[tuple[Weakening, ...], ...]:
    return tuple(
        tuple(map(read_weakening, together.split(" and "))) for together in text.split("; ") if text
    )


def read_weakening(text: str) -> Weakening:
    """Read ``load MAIL_STATE in receive``."""
    access, _, function = text.partition(" in ")
    operation, _, word = access.partition(" ")
    return Weakening(function, operation, word)


ROWS = [read_row(text) for text in re.split(r"\n(?! )", TABLE.strip())]


# ---------------------------------------------------------------- the tests
LITMUSES = {name: value for name, value in globals().items() if isinstance(value, Litmus)}
RACES, WRONGS = 40, 300
"""So many plays at most find what is weaker."""
FEW_AND_MORE = [range(10), pytest.param(range(10, 25), marks=pytest.mark.long)]


def cells(line):
    return [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]


def table():
    """Return release and place of each row of the page's table."""
    text = PAGE.read_text().split("## Every release and its acquire")[1]
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")]
    return [(row[0], row[1]) for row in rows[2:]]


HINTS = {
    field.name
    for record in L.RECORDS.values()
    for field in record.fields
    if "hint" in field.read_by + field.ordering
}
"""Words that somebody may read as a hint."""


def word_of(name):
    """Return a word's name on the page: ``worker 1 frame 1 W_AT + 1`` is of W_AT."""
    return re.findall(r"[A-Z][A-Z_]+|^[a-z]+", name)[-1]


def unordered(which, seed, weakened=()):
    found = races(which, seed, weakened)
    return {name: who for name, who in found.items() if word_of(name) not in HINTS}


def test_every_row_has_a_litmus():
    assert [(row.release, row.where) for row in ROWS] == table()


@pytest.mark.parametrize("seeds", FEW_AND_MORE, ids=["few", "more"])
@pytest.mark.parametrize("name", LITMUSES)
def test_what_must_be_visible_is(name, seeds):
    for seed in seeds:
        assert wrong(LITMUSES[name], seed) is None, seed


@pytest.mark.parametrize("seeds", FEW_AND_MORE, ids=["few", "more"])
@pytest.mark.parametrize("name", LITMUSES)
def test_only_hints_are_read_without_order(name, seeds):
    for seed in seeds:
        assert unordered(LITMUSES[name], seed) == {}, seed


def each(kind):
    return [
        pytest.param(row, weakened, id=f"{row.release}: {', '.join(map(str, weakened))}")
        for row in ROWS
        for weakened in getattr(row, kind)
    ]


@pytest.mark.parametrize(("row", "weakened"), each("races"))
def test_without_it_there_is_a_race(row, weakened):
    assert any(unordered(which, seed, weakened) for seed in range(RACES) for which in row.litmus)


@pytest.mark.parametrize(("row", "weakened"), each("wrongs"))
def test_without_it_somebody_is_missed(row, weakened):
    assert any(wrong(which, seed, weakened) for seed in range(WRONGS) for which in row.litmus)


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 40), marks=pytest.mark.long)])
@pytest.mark.parametrize("row", [row for row in ROWS if row.harmless], ids=lambda row: row.release)
def test_where_the_value_is_all_no_order_is_needed(row, seeds):
    for weakened, which, seed in itertools.product(row.harmless, row.litmus, seeds):
        assert unordered(which, seed, weakened) == {}, (weakened, seed)
        assert wrong(which, seed, weakened) is None, (weakened, seed)


def test_every_row_is_weakened():
    assert all(row.races or row.wrongs or row.harmless for row in ROWS)
