"""Copies at endpoints, with messages in many orders, failures and losses.

Tasks are sent one at a time, ahead, or run side by side. See `copy_model`: directory, links' and
sessions' parts are the real ones.
"""

import random
from functools import partial

import pytest

from tests.copy_model import (
    HOME,
    TENSORS,
    Play,
    SideBySidePlay,
    Task,
    drawn,
    moves_needed,
    sequentially,
)
from tests.support import sample

PLAYS_OF_ONE = 80

PLAYS = {"one at a time": Play, "two ahead": partial(Play, depth=2)}
PLAYS |= {"four ahead": partial(Play, depth=4), "side by side": partial(SideBySidePlay, depth=4)}
PLAYS |= {
    "in frames": partial(Play, depth=4, in_frames=True),
    "side by side, in frames": partial(SideBySidePlay, depth=4, in_frames=True),
}
PROGRAMS = {
    "a chain over both": [Task(0, "x!"), Task(1, "x!"), Task(0, "x!")],
    "two readers of one version": [Task(0, "x!"), Task(1, "x", "y!"), Task(0, "x", "y!")],
    "home and away": [Task(0, "x!"), Task(HOME, "x!"), Task(1, "x!"), Task(HOME, "x", "y!")],
    "both at once": [Task(0, "x!"), Task(1, "y!"), Task(0, "x", "y!"), Task(1, "x!", "y!")],
    "written blindly": [
        *(Task(0, "x!"), Task(HOME, "x", "y!"), Task(1, "y", "x="), Task(HOME, "y", "x!"))
    ],
    "blindly here": [
        *(Task(0, "x!", "y!"), Task(1, "x", "y!"), Task(HOME, "y", "x="), Task(0, "x", "y!"))
    ],
    "read again": [Task(0, "x", "y!"), Task(0, "x", "y!"), Task(1, "x", "y!"), Task(0, "x!", "y!")],
    "a chain": [Task(0, "x!")] * 5,
    "two chains": [Task(0, "x!"), Task(0, "y!")] * 3,
    "a diamond": [Task(0, "x!", "y!"), Task(0, "x!"), Task(0, "y!"), Task(0, "x", "y!")],
    "fed from here": [Task(HOME, "y!"), Task(0, "x!"), Task(0, "x!"), Task(0, "x!", "y!")] * 2,
    "home within": [Task(0, "x!"), Task(0, "x", "y!"), Task(HOME, "x!"), Task(0, "x!", "y!")],
    **{f"random {seed}": drawn(random.Random(seed), 4 + seed % 3) for seed in range(24)},
}


def chosen_by(seed):
    """Return what chooses at random."""
    return random.Random(seed).choice


def depends_on(program):
    """Return of each task all those that it waits for, directly or not."""
    found, last = [], {}
    for index, task in enumerate(program):
        direct = {last[tensor] for tensor in task.reads if tensor in last}
        found.append(direct.union(*(found[one] for one in direct)))
        last |= dict.fromkeys(task.writes, index)
    return found


@pytest.mark.spec("REMOTE-AHEAD-9")
@pytest.mark.parametrize("how", PLAYS)
@pytest.mark.parametrize("name", sample(PROGRAMS))
def test_tensors_are_right_in_any_order_and_move_no_more_than_needed(name, how):
    program = PROGRAMS[name]
    expected = sequentially(program)[-1], moves_needed(program)
    for seed in range(PLAYS_OF_ONE):
        play = PLAYS[how](program, chosen_by(seed))
        assert play.run() is None, seed
        assert (play.memory.tolist(), play.moved) == expected, (program, seed)


@pytest.mark.spec("REMOTE-AHEAD-7")
@pytest.mark.parametrize("how", PLAYS)
@pytest.mark.parametrize("name", sample(PROGRAMS))
def test_of_a_task_that_fails_those_that_wait_for_it_do_not_run_and_all_others_do(name, how):
    program = PROGRAMS[name]
    waits_for = depends_on(program)
    for fault, task in enumerate(program):
        if task.where == HOME:
            continue
        well = {one for one in range(len(program)) if fault not in {one, *waits_for[one]}}
        for seed in range(6):
            play = PLAYS[how](program, chosen_by(seed), faults={fault})
            assert play.run() is not None
            there = {one for one in well if program[one].where != HOME}
            assert sorted(play.has_run) == sorted(there), (program, fault, seed)
            for tensor in range(TENSORS):
                if not play.is_refused(tensor):
                    assert play.memory[tensor] == play.made[tensor][-1], (program, fault, seed)


@pytest.mark.parametrize("how", PLAYS)
@pytest.mark.parametrize("name", sample(PROGRAMS))
def test_after_a_loss_at_any_message_each_tensor_is_the_newest_one_or_refused(name, how):
    program, kept = PROGRAMS[name], 0
    wholes = [PLAYS[how](program, chosen_by(seed)) for seed in range(6)]
    assert not any(one.run() for one in wholes)

    def is_unsure(task):
        """Say whether nobody may know what it has written."""
        return task.where == session or (task.where == HOME and tensor not in task.reads)

    for point in range(max(one.actors.points for one in wholes)):
        session = point // 2 % 2
        play = PLAYS[how](program, chosen_by(str(point)), lost=(session, point))
        play.run()
        assert len(play.has_run) == len(set(play.has_run)), "no task runs twice"
        for tensor in range(TENSORS):
            right = play.newest(tensor)
            if how == "side by side":  # what was noted last need not be the newest
                right = 0, *play.made[tensor], *sequentially(program)[-1]
            if not play.is_refused(tensor):
                assert play.memory[tensor] in right, (program, point)
                kept += 1
            elif how != "side by side":
                writers = [task for task in program if tensor in task.writes]
                assert any(map(is_unsure, writers)), (program, point)
    assert kept


RACES = {
    "of two endpoints": [Task(0, "x!"), Task(1, "x", "y!"), Task(0, "x!")],
    "of one endpoint": [Task(0, "x", "y!"), Task(0, "x!")],
}


@pytest.mark.parametrize("name", RACES)
def test_of_tasks_that_no_edge_orders_the_reader_has_its_version_or_an_error(name):
    program = RACES[name]
    right, ends = sequentially(program)[-1], set()
    for seed in range(PLAYS_OF_ONE // 2):
        rng = random.Random(seed)
        play = Play(
            program,
            lambda able, rng=rng: rng.choice([able[-1], *able]),
            any_order=True,
            lost=(0, -1),
        )
        failure = play.run()
        assert failure or play.memory.tolist() == right
        ends.add(failure is None)
    assert ends == {True, False}


# ---------------------------------------------------------------- what happens at the same time
@pytest.mark.parametrize("depth", [2, 4])
def test_a_chain_is_at_the_endpoint_before_its_first_task_has_ended(depth):
    play = Play(PROGRAMS["a chain"], lambda able: able[0], depth=depth)
    assert play.run() is None
    assert play.links[0].most_ahead == depth


def side_by_side(program):
    """Run a program in many orders, and yield its plays."""
    for seed in range(30):
        play = SideBySidePlay(program, chosen_by(seed), depth=4)
        assert play.run() is None
        yield play


def test_tasks_that_share_nothing_run_at_the_same_time_and_wait_for_none():
    orders = {tuple(play.has_run) for play in side_by_side(PROGRAMS["two chains"])}
    assert len(orders) > 1
    assert all([one for one in order if one % 2 == 0] == [0, 2, 4] for order in orders)
    program = [Task(0, "x!"), Task(0), Task(0), Task(0, "x!")]
    orders = {tuple(play.has_run) for play in side_by_side(program)}
    assert any(order[0] != 0 for order in orders)
    assert all(order.index(0) < order.index(3) for order in orders)


@pytest.mark.spec("REMOTE-COPY-2")
@pytest.mark.parametrize(
    "program",
    [
        [Task(0, "x!"), Task(0, "x", "y!"), Task(0, "x=")],  # nothing orders the last two
        [Task(1, "x!"), Task(0, "x"), Task(0, "x"), Task(0, "x", "y!")],
    ],
    ids=["a task overwrites nothing that one before it still reads", "one reader fetches it"],
)
def test_side_by_side_each_task_reads_its_version_which_is_fetched_once(program):
    expected = sequentially(program)[-1], moves_needed(program)
    for play in side_by_side(program):
        assert (play.memory.tolist(), play.moved) == expected
