"""Copies at endpoints, with messages in any order, failures, losses, and frames that come twice.

Tasks are sent one at a time, or ahead. See `copy_model`: directory, links' and sessions' parts are
the real ones.
"""

import random

import pytest

from tests.copy_model import HOME, TENSORS, Play, Task, drawn, moves_needed, sequentially
from tests.support import sample

DEPTHS = 1, 4
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
    "read again": [Task(0, "x", "y!"), Task(0, "x", "y!"), Task(1, "x", "y!"), Task(0, "x!", "y!")],
    "a chain": [Task(0, "x!")] * 5,
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


@pytest.mark.spec("REMOTE-COPY-2")
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", sample(PROGRAMS))
def test_tensors_are_right_in_any_order_and_move_no_more_than_needed(name, depth):
    program = PROGRAMS[name]
    expected = sequentially(program), moves_needed(program)
    for seed in range(80):
        play = Play(program, chosen_by(seed), depth=depth, twice=seed % 2 == 0)
        assert play.run() is None, seed
        assert (play.memory.tolist(), play.moved) == expected, (program, seed)


@pytest.mark.spec("REMOTE-AHEAD-7")
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", sample(PROGRAMS))
def test_of_a_task_that_fails_those_that_wait_for_it_do_not_run_and_all_others_do(name, depth):
    program = PROGRAMS[name]
    waits_for = depends_on(program)
    for fault, task in enumerate(program):
        if task.where == HOME:
            continue
        well = {one for one in range(len(program)) if fault not in {one, *waits_for[one]}}
        for seed in range(6):
            play = Play(program, chosen_by(seed), depth=depth, faults={fault})
            assert play.run() is not None
            there = {one for one in well if program[one].where != HOME}
            assert sorted(play.has_run) == sorted(there), (program, fault, seed)
            for tensor in range(TENSORS):
                if not play.is_refused(tensor):
                    assert play.memory[tensor] == play.made[tensor][-1], (program, fault, seed)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", sample(PROGRAMS))
def test_after_a_loss_at_any_message_each_tensor_is_the_newest_one_or_refused(name, depth):
    program, kept = PROGRAMS[name], 0
    wholes = [Play(program, chosen_by(seed), depth=depth) for seed in range(6)]
    assert not any(one.run() for one in wholes)

    def is_unsure(task):
        """Say whether nobody may know what it has written."""
        return task.where == session or (task.where == HOME and tensor not in task.reads)

    for point in range(max(one.actors.points for one in wholes)):
        session = point // 2 % 2
        play = Play(program, chosen_by(str(point)), depth=depth, lost=(session, point))
        play.run()
        assert len(play.has_run) == len(set(play.has_run)), "no task runs twice"
        for tensor in range(TENSORS):
            if not play.is_refused(tensor):
                assert play.memory[tensor] == play.made[tensor][-1], (program, point)
                kept += 1
            else:
                writers = [task for task in program if tensor in task.writes]
                assert any(map(is_unsure, writers)), (program, point)
    assert kept


# ---------------------------------------------------------------- what happens at the same time
@pytest.mark.parametrize("depth", [2, 4])
def test_a_chain_is_at_the_endpoint_before_its_first_task_has_ended(depth):
    play = Play(PROGRAMS["a chain"], lambda able: able[0], depth=depth)
    assert play.run() is None
    assert play.links[0].most_ahead == depth
