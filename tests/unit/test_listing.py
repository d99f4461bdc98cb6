"""Graphs as lists of tasks: their parts, side by side in any order, do what the graph does."""

import random

import pytest

from simpler_ref.model.enums import DataType, TensorArgType
from simpler_ref.model.tensor import ContinuousTensor
from simpler_ref.remote import replays
from simpler_ref.remote.lists import LIST, READS, WRITES, ListUse
from tests.support import sample

READ, CHANGE, MAKE = TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING
SIZES = 64, 256, 4096
ARRAYS = 4


def drawn(rng, length, places):
    """Return a random graph whose order follows from its data, and the bytes of its tensors.

    The first ones are the program's. A task that writes one again also reads what the tasks before it
    have made that have read it: so it comes after them.
    """
    sizes = [rng.choice(SIZES) for _ in range(ARRAYS)]
    tasks, made, readers = [], [], [[] for _ in range(ARRAYS)]
    for number in range(length):
        uses = dict.fromkeys(rng.sample(made, min(len(made), rng.randrange(3))), READ)
        mine = rng.sample(range(ARRAYS), rng.randrange(ARRAYS))
        uses |= {one: rng.choice([READ, CHANGE, CHANGE, MAKE]) for one in mine}
        for one in [one for one in mine if uses[one] in WRITES]:
            uses |= dict.fromkeys(readers[one], READ)
        result = len(sizes)
        sizes.append(rng.choice(SIZES))
        made.append(result)
        uses[result] = MAKE
        for one in mine:
            readers[one] = [result] if uses[one] in WRITES else [*readers[one], result]
        found = [
            ListUse(one, tag, ContinuousTensor.make(0, (sizes[one],), DataType.UINT8), "")
            for one, tag in rng.sample([*uses.items()], len(uses))
        ]
        allowed = rng.sample(range(places), rng.randint(1, places))
        tasks.append(replays.GraphTask(number.to_bytes(32, "little"), found, (), allowed))
    return tasks, sizes


def carry_out(task, digest, values):
    """Carry a task out: `values` has that of each tensor by then."""
    value = hash((digest, *(values[one.tensor] for one in task.uses if one.tag in READS)))
    values.update((one.tensor, value) for one in task.uses if one.tag in WRITES)


class Endpoint:
    """One that carries a part out, task by task, and waits for what it gets."""

    def __init__(self, told, number, part, home):
        self.told, self.number, self.tasks = told, number, [*part.tasks]
        self.mine, self.shown = {}, {}
        self.named = dict(part.named)
        for tensor, tag in part.named.items():
            self.mine[tensor] = home[tensor] if tag in READS else "garbage"
        self.count = len(self.tasks)
        self.show()

    def show(self):
        """Show what others get of it now."""
        now = self.number, self.count - len(self.tasks)
        gets = [get for part in self.told.parts for task in part.tasks for get in task.gets]
        self.shown |= {get: self.mine[get.tensor] for get in gets if get[1:] == now}

    def step(self, others):
        """Carry out the next task; return whether that could be."""
        task = self.tasks[0]
        if not all(get in others[get.part].shown for get in task.gets):
            return False
        for get in task.gets:
            self.mine[get.tensor] = others[get.part].shown[get]
        carry_out(task, self.told.callables[task.callable], self.mine)
        del self.tasks[0]
        self.show()
        return True


@pytest.mark.parametrize("seed", sample(range(200), 40))
def test_parts_side_by_side_do_what_the_graph_does_one_task_after_the_other(seed):
    rng = random.Random(seed)
    tasks, sizes = drawn(rng, rng.randint(2, 30), rng.randint(1, 4))
    places = [rng.choice(task.allowed) for task in tasks]
    cut = replays.Cutter(tasks, places, range(ARRAYS))
    told = LIST.decode(LIST.encode(replays.list_of(cut, sizes)))
    right, home = dict(enumerate(sizes)), dict(enumerate(sizes))
    for task in tasks:
        carry_out(task, task.digest, right)
    several = [Endpoint(told, number, part, home) for number, part in enumerate(cut.parts)]
    while waiting := [one for one in several if one.tasks]:
        rng.shuffle(waiting)
        assert any(one.step(several) for one in waiting), "they wait for each other"
    written = [one for it in several for one, tag in it.named.items() if tag in WRITES]
    assert len(written) == len({*written}), "two endpoints leave the same tensor"
    for one in several:
        home |= {tensor: one.mine[tensor] for tensor, tag in one.named.items() if tag in WRITES}
        assert {*one.named} <= {*range(ARRAYS)}
    assert all(home[one] == right[one] for one in range(ARRAYS))
    for part in told.parts:
        gets = [get for task in part.tasks for get in task.gets]
        assert len(gets) == len({*gets}), "a version goes twice to an endpoint"
