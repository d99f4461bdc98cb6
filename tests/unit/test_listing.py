"""Graphs as task lists: carried out in any order that they allow, they do what the graph does."""

import random
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from simpler_ref import TaskError
from simpler_ref.model.enums import DataType, TensorArgType
from simpler_ref.model.tensor import ContinuousTensor
from simpler_ref.remote import list_runs, listing
from simpler_ref.remote.list_runs import Arrivals, LoadedList
from simpler_ref.remote.lists import LIST, PARENT, READS, WRITES, TaskList
from tests.support import sample

READ, CHANGE, MAKE = TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING
SIZES = 64, 256, 4096


def form(nbytes):
    return ContinuousTensor.make(0, (nbytes,), DataType.UINT8)


def drawn(rng, length, places, arrays=4):
    """Return a random graph: its tasks, the bytes of its tensors, and which of them are the program's.

    Tensors that tasks make are read by others; those of the program are read, too, and changed.
    """
    sizes = [rng.choice(SIZES) for _ in range(arrays)]
    tasks, made = [], []
    for number in range(length):
        uses = [(one, READ) for one in rng.sample(made, min(len(made), rng.randrange(3)))]
        mine = rng.sample(range(arrays), rng.randrange(4))
        uses += [(one, rng.choice([READ, CHANGE, CHANGE])) for one in mine]
        for _ in range(rng.randrange(3)):
            sizes.append(rng.choice(SIZES))
            made.append(len(sizes) - 1)
            uses.append((made[-1], MAKE))
        if made and rng.random() < 0.2:
            made.remove(rng.choice(made))  # nobody reads it any more
        rng.shuffle(uses)
        found = [listing.GraphUse(one, tag, form(sizes[one]), "") for one, tag in uses]
        allowed = rng.sample(range(places), rng.randint(1, places))
        tasks.append(listing.GraphTask(number.to_bytes(32, "little"), found, (), allowed))
    return tasks, sizes, frozenset(range(arrays))


def computed(number, reads):
    """Return what a task makes of what it reads."""
    return hash((number, *reads))


def sequential(tasks, count):
    """Return the last values of the first tensors, each beginning with its number."""
    values = dict(enumerate(range(count)))
    for task in tasks:
        number = int.from_bytes(task.digest, "little")
        value = computed(number, [values[u.tensor] for u in task.uses if u.tag in READS])
        values |= {use.tensor: value for use in task.uses if use.tag in WRITES}
    return [values[i] for i in range(count)]


class Player:
    """An endpoint that carries its list out, as slowly as may be.

    A task that was submitted ends at any time, once those before it have that use what it does.
    """

    def __init__(self, rng, place, mail):
        self.rng, self.list, self.mail = rng, place.made({}), mail
        self.memory = ["garbage"] * len(self.list.slots)
        self.steps = list(self.list.steps)
        self.tasks, self.ended = [], []
        self.to_show, self.shown = [], set()
        self.count = 0
        self.lent = set()
        """Slots that others read as they are."""

    def change(self, slot, value):
        assert slot not in self.lent
        self.memory[slot] = value

    def acts(self):
        """Return what may happen here next."""
        found = [self.show for _ in [0] if any(self.ended[it.task] for _, it in self.to_show)]
        found += [lambda i=i: self.end(i) for i in range(len(self.tasks)) if self.may_end(i)]
        if self.steps and self.may_begin(self.steps[0]):
            found.append(self.begin)
        return found

    def may_begin(self, step):
        return (
            self.shown.issuperset(step.shown)
            and all(one.number in self.mail for one in step.gets)
            and all(self.ended[task] for one in step.gets for task in one.users)
        )

    def begin(self):
        step = self.steps.pop(0)
        for one in step.gets:
            self.change(one.slot, self.mail[one.number])
        self.tasks += step.tasks
        self.ended += [False] * len(step.tasks)
        for one in step.shows:
            self.to_show.append((self.count, one))
            self.count += 1

    def may_end(self, i):
        if self.ended[i]:
            return False
        mine = {use.slot: use.tag for use in self.tasks[i].uses}
        return not any(
            not self.ended[k] and mine.keys() & {use.slot for use in self.tasks[k].uses}
            for k in range(i)
        )

    def end(self, i):
        task = self.tasks[i]
        number = int.from_bytes(self.list.callables[task.callable], "little")
        value = computed(number, [self.memory[u.slot] for u in task.uses if u.tag in READS])
        for use in task.uses:
            if use.tag in WRITES:
                self.change(use.slot, value)
        self.ended[i] = True

    def show(self):
        ready = [one for one in self.to_show if self.ended[one[1].task]]
        one = self.rng.choice(ready)
        self.to_show.remove(one)
        self.shown.add(one[0])
        self.mail[one[1].number] = self.memory[one[1].slot]
        if one[1].stays:
            self.lent.add(one[1].slot)

    @property
    def is_done(self):
        return not self.steps and all(self.ended) and not self.to_show


def played(rng, tasks, places, sizes, programs):
    """Carry a graph out by lists; return what the program's tensors have, and who gets what how often."""
    lists = listing._Lists(sizes, programs)
    for at, task in zip(places, tasks, strict=True):
        lists.add(at, task)
    lists.end()
    mail, values = {}, {tensor: tensor for tensor in programs}
    for place in lists.places.values():
        mail |= dict(place.comes)
    players = [Player(rng, place, mail) for place in lists.places.values()]
    while not all(one.is_done for one in players):
        acts = [act for one in players for act in one.acts()]
        assert acts, "the lists wait for each other in a circle"
        rng.choice(acts)()
    for place in lists.places.values():
        values |= {tensor: mail[number] for number, tensor in place.goes}
    return values, lists.places, players


@pytest.mark.parametrize("seed", sample(range(400), 120))
def test_lists_do_what_the_graph_does_one_task_after_the_other(seed):
    rng = random.Random(seed)
    tasks, sizes, programs = drawn(rng, rng.randint(1, 40), places=3)
    places = [rng.choice(one.allowed) for one in tasks]
    values, lists, players = played(rng, tasks, places, sizes, programs)
    assert [values[i] for i in sorted(programs)] == sequential(tasks, len(programs))
    gets = [one.number for it in players for step in it.list.steps for one in step.gets]
    shows = [one for it in players for step in it.list.steps for one in step.shows]
    ends = [number for place in lists.values() for number, _ in place.goes]
    for one in shows:
        assert one.readers == gets.count(one.number) + ends.count(one.number) > 0
    assert len({one.number for one in shows}) == len(shows)
    for place in lists.values():
        raw = LIST.encode(place.made({at: i for i, at in enumerate(lists)}))
        assert LIST.encode(LIST.decode(raw)) == raw


@pytest.mark.parametrize("seed", range(40))
def test_tasks_are_placed_where_they_may_run_and_each_version_moves_once_to_a_place(seed):
    rng = random.Random(seed)
    tasks, sizes, programs = drawn(rng, 30, places=3)
    seats = {0: 1, 1: 2, 2: 1}
    ways = listing.placements(tasks, sizes, seats)
    for places in ways:
        assert all(at in task.allowed for at, task in zip(places, tasks, strict=True))
        _, _, players = played(rng, tasks, places, sizes, programs)
        for one in players:
            gets = [get.number for step in one.list.steps for get in step.gets]
            assert len(set(gets)) == len(gets)
    everywhere = [task._replace(allowed=(0, 1, 2)) for task in tasks]
    assert listing.placements(everywhere, sizes, seats)[-1] == [1] * len(tasks)


def test_a_chain_stays_where_it_is_and_a_stencil_is_cut_into_as_many_pieces_as_places():
    step = listing.GraphUse(0, CHANGE, form(64), "")
    chain = [listing.GraphTask(bytes(32), [step], (), (0, 1))] * 9
    assert len(set(listing.placements(chain, [64], {0: 1, 1: 1})[0])) == 1
    width, tasks = 8, []
    for row in range(6):
        for i in range(width):
            old, new = (row % 2) * width, (1 - row % 2) * width
            reads = [old + k for k in (i - 1, i, i + 1) if 0 <= k < width]
            uses = [listing.GraphUse(one, READ, form(64), "") for one in reads]
            uses.append(listing.GraphUse(new + i, MAKE, form(64), ""))
            tasks.append(listing.GraphTask(bytes(32), uses, (), (0, 1)))
    side_by_side, together = listing.placements(tasks, [64] * 2 * width, {0: 1, 1: 1})
    for row in range(6):
        assert side_by_side[row * width : (row + 1) * width] == [0] * 4 + [1] * 4
    assert together == [0] * len(tasks)


def test_what_the_program_gives_comes_from_the_parent():
    tasks = [listing.GraphTask(bytes(32), [listing.GraphUse(0, CHANGE, form(64), "")], (), (0,))]
    _, lists, (player,) = played(random.Random(0), tasks, [0], [64], frozenset([0]))
    (get,) = player.list.steps[0].gets
    assert get.peer == PARENT and lists[0].comes == [(get.number, 0)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_replay_of_long_tasks_does_not_spin_and_what_follows_does(fails):
    told = []

    def wait_for_all(_between):
        if fails:
            raise TaskError("a task has failed")

    room = SimpleNamespace(tell_ends=lambda: None, ring=lambda: None, hush=lambda: None)
    orch = SimpleNamespace(
        _view=SimpleNamespace(park_at_once=told.append),
        _room=room,
        _until_idle=wait_for_all,
        drain=lambda: None,
    )
    one = LoadedList(TaskList((), (), ()))
    one.last_ns = 1
    session = SimpleNamespace(mover=None, is_stopped=lambda: False)
    memory = np.zeros(1, np.uint8)
    replay = list_runs._Replay(session, one, 1, memory, Arrivals(lambda: None))
    with pytest.raises(TaskError) if fails else nullcontext():
        replay._run(orch, None, None)
    assert (told, one.last_ns == 1) == ([True, False], fails)
