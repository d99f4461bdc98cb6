"""Tasks that sub workers of endpoints run side by side, in every order, with failures and losses.

See `side_by_side_model`: the parts of links and sessions are the real ones.
"""

import random

import pytest

from tests.copy_model import HOME, Task, drawn, moves_needed, sequentially
from tests.side_by_side_model import SideBySidePlay
from tests.unit.test_orders_of_copies import TENSORS, Orders, chosen_by
from tests.unit.test_orders_of_tasks_ahead import PROGRAMS, depends_on

DEPTH = 4
SOME_PLAYS = 40


@pytest.mark.spec("REMOTE-AHEAD-9")
@pytest.mark.parametrize("name", PROGRAMS)
def test_tensors_are_right_in_every_order_and_move_no_more_than_needed(name):
    program, orders = PROGRAMS[name], Orders()
    expected = sequentially(program, TENSORS)[-1], moves_needed(program)
    for _ in range(SOME_PLAYS):
        play = SideBySidePlay(program, orders.choose, depth=DEPTH, twice=True)
        assert play.run() is None, orders.path
        assert (play.memory.tolist(), play.moved) == expected, (program, orders.path)
        if not orders.next():
            return
    for seed in range(SOME_PLAYS):
        play = SideBySidePlay(program, chosen_by(seed), depth=DEPTH)
        assert play.run() is None, seed
        assert (play.memory.tolist(), play.moved) == expected, (program, seed)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_leave_what_they_would_one_task_after_the_other(seed):
    choose = chosen_by(seed)
    program = drawn(random.Random(seed), 6)
    expected = sequentially(program, TENSORS)[-1]
    for depth in (2, DEPTH):
        play = SideBySidePlay(program, choose, depth=depth)
        assert play.run() is None
        assert play.memory.tolist() == expected, program


def test_tasks_that_share_nothing_run_at_the_same_time():
    program = PROGRAMS["two chains"]
    orders = set()
    for seed in range(30):
        play = SideBySidePlay(program, chosen_by(seed), depth=DEPTH)
        assert play.run() is None
        orders.add(tuple(play.has_run))
    assert len(orders) > 1
    assert all([one for one in order if one % 2 == 0] == [0, 2, 4] for order in orders)


@pytest.mark.spec("REMOTE-AHEAD-7")
@pytest.mark.parametrize("name", PROGRAMS)
def test_of_a_task_that_fails_those_that_wait_for_it_do_not_run_and_all_others_do(name):
    program = PROGRAMS[name]
    waits_for = depends_on(program)
    for fault, task in enumerate(program):
        if task.where == HOME:
            continue
        well = {one for one in range(len(program)) if fault not in {one, *waits_for[one]}}
        for seed in range(6):
            play = SideBySidePlay(program, chosen_by(seed), depth=DEPTH, faults={fault})
            assert play.run() is not None
            there = {one for one in well if program[one].where != HOME}
            assert sorted(play.has_run) == sorted(there), (program, fault, seed)
            for tensor in range(TENSORS):
                if not play.is_refused(tensor):
                    assert play.memory[tensor] == play.made[tensor][-1], (program, fault, seed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_after_a_loss_at_any_message_nothing_hangs_and_no_task_runs_twice(name):
    program = PROGRAMS[name]
    whole = SideBySidePlay(program, chosen_by(0), depth=DEPTH)
    whole.run()
    for point in range(0, whole.actors.points, 2):
        lost = (point // 2) % 2, point
        play = SideBySidePlay(program, chosen_by(str(point)), depth=DEPTH, lost=lost)
        play.run()
        assert len(play.has_run) == len(set(play.has_run)), (program, point)
        for tensor in range(TENSORS):
            assert play.is_refused(tensor) or play.memory[tensor] in {
                0,
                *play.made[tensor],
                *sequentially(program, TENSORS)[-1],
            }


def test_a_task_that_uses_no_tensor_waits_for_none():
    program = [Task(0, "x!"), Task(0), Task(0), Task(0, "x!")]
    orders = set()
    for seed in range(40):
        play = SideBySidePlay(program, chosen_by(seed), depth=DEPTH)
        assert play.run() is None
        orders.add(tuple(play.has_run))
    assert any(order[0] != 0 for order in orders)
    assert all(order.index(0) < order.index(3) for order in orders)


def test_a_task_overwrites_nothing_that_one_before_it_at_the_endpoint_still_reads():
    program = [Task(0, "x!"), Task(0, "x", "y!"), Task(0, "x=")]  # nothing orders the last two
    expected = sequentially(program, TENSORS)[-1]
    for seed in range(40):
        play = SideBySidePlay(program, chosen_by(seed), depth=DEPTH)
        assert play.run() is None
        assert play.memory.tolist() == expected, seed


@pytest.mark.spec("REMOTE-COPY-2")
def test_of_tasks_that_read_the_same_version_from_elsewhere_one_fetches_it():
    program = [Task(1, "x!"), Task(0, "x"), Task(0, "x"), Task(0, "x", "y!")]
    expected = sequentially(program, TENSORS)[-1], moves_needed(program)
    for seed in range(40):
        play = SideBySidePlay(program, chosen_by(seed), depth=DEPTH)
        assert play.run() is None, seed
        assert (play.memory.tolist(), play.moved) == expected, seed
