"""Copies at endpoints, with messages in every order, endpoints that are lost, and frames that come twice.

See `copy_model`: directory, links' and sessions' parts are the real ones.
"""

import random

import pytest

from tests.copy_model import HOME, Play, Task, drawn, moves_needed, sequentially

TENSORS = 2
MOST_PLAYS = 60
"""Of one program; small ones have fewer orders."""


PROGRAMS = {
    "a chain over both": [Task(0, "x!"), Task(1, "x!"), Task(0, "x!")],
    "two readers of one version": [Task(0, "x!"), Task(1, "x", "y!"), Task(0, "x", "y!")],
    "home and away": [Task(0, "x!"), Task(HOME, "x!"), Task(1, "x!"), Task(HOME, "x", "y!")],
    "both at once": [Task(0, "x!"), Task(1, "y!"), Task(0, "x", "y!"), Task(1, "x!", "y!")],
    "written blindly": [
        Task(0, "x!"),
        Task(HOME, "x", "y!"),
        Task(1, "y", "x="),
        Task(HOME, "y", "x!"),
    ],
    "blindly here": [
        Task(0, "x!", "y!"),
        Task(1, "x", "y!"),
        Task(HOME, "y", "x="),
        Task(0, "x", "y!"),
    ],
    "read again": [Task(0, "x", "y!"), Task(0, "x", "y!"), Task(1, "x", "y!"), Task(0, "x!", "y!")],
}
random_programs = {f"random {seed}": drawn(random.Random(seed), 4 + seed % 3) for seed in range(24)}
ALL = PROGRAMS | random_programs


class Orders:
    """Chooses one order after another, each once."""

    def __init__(self):
        self.path = []
        """What was chosen at each point, and out of how many."""
        self.at = 0

    def choose(self, able):
        if self.at == len(self.path):
            self.path.append([0, len(able)])
        choice, count = self.path[self.at]
        assert count == len(able), "the same choices lead to the same point"
        self.at += 1
        return able[choice]

    def next(self):
        """Go on to the next order; return whether there is one."""
        self.at = 0
        while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
            self.path.pop()
        if self.path:
            self.path[-1][0] += 1
        return bool(self.path)


def chosen_by(seed):
    """Return what chooses at random."""
    return random.Random(seed).choice


@pytest.mark.parametrize("name", ALL)
def test_tensors_are_right_in_every_order_and_move_no_more_than_needed(name):
    program, orders = ALL[name], Orders()
    history, needed = sequentially(program, TENSORS), moves_needed(program)
    for _ in range(MOST_PLAYS):
        play = Play(program, orders.choose, twice=True)
        assert play.run() is None, orders.path
        assert play.memory.tolist() == history[-1], (program, orders.path)
        assert play.moved == needed, (program, orders.path)
        if not orders.next():
            return
    for seed in range(MOST_PLAYS):  # there are more than can be tried: others among them
        play = Play(program, chosen_by(seed))
        assert play.run() is None, seed
        assert (play.memory.tolist(), play.moved) == (history[-1], needed), (program, seed)


@pytest.mark.parametrize("name", ALL)
def test_after_a_loss_at_any_message_each_tensor_is_the_newest_one_or_refused(name):
    program = ALL[name]
    length = 0
    for seed in range(12):
        whole = Play(program, chosen_by(seed))
        whole.run()
        length = max(length, whole.actors.points)
    kept = 0

    def is_unsure(task):
        """Say whether nobody may know what it has written."""
        return task.where == session or (task.where == HOME and tensor not in task.reads)

    for point in range(length):
        for seed in range(3):
            session = (point + seed) % 2
            play = Play(program, chosen_by(f"{point} {seed}"), lost=(session, point))
            play.run()
            for tensor in range(TENSORS):
                if play.is_refused(tensor):
                    writers = [task for task in program if tensor in task.writes]
                    assert any(map(is_unsure, writers)), (program, point, seed)
                else:
                    assert play.memory[tensor] == play.made[tensor][-1], (program, point, seed)
                    kept += 1
    assert kept


def test_where_few_tensors_have_room_they_are_right_in_every_order_and_move_no_more():
    spilled = 0
    for seed in range(24):
        program = drawn(random.Random(seed), 5 + seed % 3, tensors=3)
        history, needed = sequentially(program, 3), moves_needed(program)
        for order in range(MOST_PLAYS // 3):
            play = Play(program, chosen_by(order), tensors=3, room=2)
            assert play.run() is None, order
            assert (play.memory.tolist(), play.moved) == (history[-1], needed), (program, order)
            spilled += sum(one.copies.counts()["copies_spilled"] for one in play.of_link)
    assert spilled


RACES = {
    "of two endpoints": [Task(0, "x!"), Task(1, "x", "y!"), Task(0, "x!")],
    "of one endpoint": [Task(0, "x", "y!"), Task(0, "x!")],
}


@pytest.mark.parametrize("name", RACES)
def test_of_tasks_that_no_edge_orders_the_reader_has_its_version_or_an_error(name):
    program = RACES[name]
    right = sequentially(program, TENSORS)[-1]
    ends = set()
    orders = Orders()
    for _ in range(10 * MOST_PLAYS):
        ends.add(ends_right(Play(program, orders.choose, lost=(0, -1)), right))
        if not orders.next():
            break
    else:  # there are more than can be tried: others among them
        for seed in range(MOST_PLAYS):
            ends.add(ends_right(Play(program, chosen_by(seed), lost=(0, -1)), right))
    assert ends == {True, False}


def ends_right(play, right):
    """Run a play whose end is right or an error; say which."""
    failure = play.run()
    if failure is None:
        assert play.memory.tolist() == right
    return failure is None
