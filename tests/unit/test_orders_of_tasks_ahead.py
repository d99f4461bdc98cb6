"""Tasks that are sent ahead, with frames in every order, failures, and endpoints that are lost.

See `far_ahead_model`: the parts of links and sessions are the real ones.
"""

import pytest

from tests.copy_model import HOME, Task, moves_needed, sequentially
from tests.far_ahead_model import AheadPlay
from tests.unit.test_orders_of_copies import ALL, MOST_PLAYS, TENSORS, Orders, chosen_by

DEPTHS = 2, 4
PROGRAMS = ALL | {
    "a chain": [Task(0, "x!")] * 5,
    "two chains": [Task(0, "x!"), Task(0, "y!")] * 3,
    "a diamond": [Task(0, "x!", "y!"), Task(0, "x!"), Task(0, "y!"), Task(0, "x", "y!")],
    "fed from here": [Task(HOME, "y!"), Task(0, "x!"), Task(0, "x!"), Task(0, "x!", "y!")] * 2,
    "home within": [Task(0, "x!"), Task(0, "x", "y!"), Task(HOME, "x!"), Task(0, "x!", "y!")],
}


def depends_on(program):
    """Return of each task all those that it waits for, directly or not."""
    found, last = [], {}
    for index, task in enumerate(program):
        direct = {last[tensor] for tensor in task.reads if tensor in last}
        found.append(direct.union(*(found[one] for one in direct)))
        last |= dict.fromkeys(task.writes, index)
    return found


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_tensors_are_right_in_every_order_and_move_no_more_than_needed(name, depth):
    program, orders = PROGRAMS[name], Orders()
    expected = sequentially(program, TENSORS)[-1], moves_needed(program)
    for _ in range(MOST_PLAYS):
        play = AheadPlay(program, orders.choose, depth=depth, twice=True)
        assert play.run() is None, orders.path
        assert (play.memory.tolist(), play.moved) == expected, (program, orders.path)
        if not orders.next():
            return
    for seed in range(MOST_PLAYS):  # there are more than can be tried: others among them
        play = AheadPlay(program, chosen_by(seed), depth=depth)
        assert play.run() is None, seed
        assert (play.memory.tolist(), play.moved) == expected, (program, seed)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_chain_is_at_the_endpoint_before_its_first_task_has_ended(depth):
    play = AheadPlay(PROGRAMS["a chain"], lambda able: able[0], depth=depth)
    assert play.run() is None
    assert play.links[0].most_ahead == depth


def test_what_a_task_needs_is_stored_before_its_turn_and_while_others_run():
    for seed in range(20):
        play = AheadPlay(PROGRAMS["fed from here"], chosen_by(seed), depth=4)
        assert play.run() is None
        if play.early > 1:
            return
    raise AssertionError("never")


@pytest.mark.parametrize("depth", (1, *DEPTHS))
@pytest.mark.parametrize("name", PROGRAMS)
def test_of_a_task_that_fails_those_that_wait_for_it_do_not_run_and_all_others_do(name, depth):
    program = PROGRAMS[name]
    waits_for = depends_on(program)
    for fault, task in enumerate(program):
        if task.where == HOME:
            continue
        well = {one for one in range(len(program)) if fault not in {one, *waits_for[one]}}
        for seed in range(6):
            play = AheadPlay(program, chosen_by(seed), depth=depth, faults={fault})
            assert play.run() is not None
            there = {one for one in well if program[one].where != HOME}
            assert sorted(play.has_run) == sorted(there), (program, fault, seed)
            for tensor in range(TENSORS):
                if not play.is_refused(tensor):
                    assert play.memory[tensor] == play.made[tensor][-1], (program, fault, seed)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_after_a_loss_at_any_message_each_tensor_is_the_newest_one_or_refused(name, depth):
    program = PROGRAMS[name]
    length = 0
    for seed in range(12):
        whole = AheadPlay(program, chosen_by(seed), depth=depth)
        whole.run()
        length = max(length, whole.actors.points)

    def is_unsure(task):
        """Say whether nobody may know what it has written."""
        return task.where == session or (task.where == HOME and tensor not in task.reads)

    for point in range(length):
        for seed in range(2):
            session = (point + seed) % 2
            play = AheadPlay(
                program, chosen_by(f"{point} {seed}"), depth=depth, lost=(session, point)
            )
            play.run()
            assert len(play.has_run) == len(set(play.has_run)), "no task runs twice"
            for tensor in range(TENSORS):
                if play.is_refused(tensor):
                    writers = [task for task in program if tensor in task.writes]
                    assert any(map(is_unsure, writers)), (program, point, seed)
                else:
                    assert play.memory[tensor] == play.made[tensor][-1], (program, point, seed)
