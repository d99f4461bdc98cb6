"""Graphs as lists of tasks: their parts, one after the other, do what the graph does."""

import random

import pytest

from simpler_ref.model.enums import DataType, TensorArgType
from simpler_ref.model.tensor import ContinuousTensor
from simpler_ref.remote import replays
from simpler_ref.remote.lists import LIST, READS, WRITES
from tests.support import sample

READ, CHANGE, MAKE = TensorArgType.INPUT, TensorArgType.INOUT, TensorArgType.OUTPUT_EXISTING
SIZES = 64, 256, 4096


def drawn(rng, length, places, arrays=4):
    """Return a random graph, and the bytes of its tensors; the first ones are the program's."""
    sizes = [rng.choice(SIZES) for _ in range(arrays)]
    tasks, made = [], []
    for number in range(length):
        uses = [(one, READ) for one in rng.sample(made, min(len(made), rng.randrange(3)))]
        mine = rng.sample(range(arrays), rng.randrange(4))
        uses += [(one, rng.choice([READ, CHANGE, CHANGE, MAKE])) for one in mine]
        for _ in range(rng.randrange(3)):
            sizes.append(rng.choice(SIZES))
            made.append(len(sizes) - 1)
            uses.append((made[-1], MAKE))
        rng.shuffle(uses)
        found = [
            replays.GraphUse(one, tag, ContinuousTensor.make(0, (sizes[one],), DataType.UINT8), "")
            for one, tag in uses
        ]
        allowed = rng.sample(range(places), rng.randint(1, places))
        tasks.append(replays.GraphTask(number.to_bytes(32, "little"), found, (), allowed))
    return tasks, sizes


def carry_out(tasks, values):
    """Carry tasks out one after the other: `values` has that of each tensor by then."""
    for task in tasks:
        value = hash((task.digest, *(values[u.tensor] for u in task.uses if u.tag in READS)))
        values.update((use.tensor, value) for use in task.uses if use.tag in WRITES)


@pytest.mark.parametrize("seed", sample(range(200), 40))
def test_parts_do_what_the_graph_does_one_task_after_the_other(seed):
    rng = random.Random(seed)
    tasks, sizes = drawn(rng, rng.randint(2, 30), rng.randint(1, 4))
    places = [rng.choice(task.allowed) for task in tasks]
    most = rng.choice([1, 3, 100])
    parts = replays.parts_of(tasks, places, most)
    programs, tokens = range(4), {place: len(sizes) + place for place in range(4)}
    replays.leave(parts, programs, tokens)
    right, home, there = dict(enumerate(sizes)), dict(enumerate(sizes)), {}
    carry_out(tasks, right)
    for part in parts:
        assert len(part.tasks) <= most and not part.left & {*programs}
        mine, last = there.setdefault(part.place, {}), tokens[part.place]
        named = [one for one in part.named if one != last]
        assert last in part.named or not any(one.left for one in parts if one.place == part.place)
        reads = {tensor for tensor in named if part.tags[tensor] in READS}
        mine |= {tensor: home[tensor] if tensor in reads else "garbage" for tensor in named}
        carry_out(part.tasks, mine)
        home.update((one, mine[one]) for one in named if part.tags[one] in WRITES)
        assert all(mine[one] == home[one] for one in named), "a tag says less than is done"
    assert all(home[one] == right[one] for one in programs)
    ends = {one: there[part.place][one] for part in parts for one in part.tags if one < len(sizes)}
    assert ends == {one: right[one] for one in ends}
    told = LIST.decode(LIST.encode(replays.list_of(parts, [*sizes, *[8] * 4])))
    for part, one in zip(parts, told.parts, strict=True):
        assert one.tensors == tuple(part.named) and {*one.left} == part.left
        assert [told.callables[task.callable] for task in one.tasks] == [
            task.digest for task in part.tasks
        ]
        names = [*one.tensors, *one.left]
        assert [[names[use.tensor] for use in task.uses] for task in one.tasks] == [
            [use.tensor for use in task.uses] for task in part.tasks
        ]


def test_a_part_has_no_more_tensors_than_a_task_may_have():
    tasks, _ = drawn(random.Random(1), 400, 1)
    parts = replays.parts_of(tasks, [0] * len(tasks), len(tasks))
    assert len(parts) > 1
    assert all(len(one.tags) <= replays.MOST_TENSORS for one in parts)
