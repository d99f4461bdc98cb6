"""What a task waits for through others, found as far as it is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from simpler_ref.jit import layout as L
from simpler_ref.trace.history import HOST, History, Lineage, Order, Tensor


def tensor(tag, start, end):
    return Tensor(tag, HOST, start, end)


@pytest.mark.parametrize("seed", range(20))
def test_a_lineage_has_what_can_be_reached_in_any_order_of_questions(seed):
    rng = np.random.default_rng(seed)
    count = 60
    order = Order()
    reached = np.eye(count, dtype=bool)
    for task in range(count):
        first = rng.choice(task, min(task, int(rng.integers(3))), replace=False).tolist()
        for producer in first:
            reached[task] |= reached[producer]
        order.add(Lineage(order, first))
    assert len(order) == count
    for task in rng.integers(count, size=10).tolist():
        lineage = Lineage(order, [task])
        for place in rng.permutation(count).tolist():
            assert (place in lineage) == reached[task, place]


def test_a_lineage_looks_at_no_task_before_the_one_asked_for():
    order = Order()
    order.add(Lineage(order, []))
    for task in range(1, 100):
        order.add(Lineage(order, [task - 1]))
    asked = []
    before = order.before
    order.before = lambda place: asked.append(place) or before(place)
    lineage = Lineage(order, [99])
    assert 95 in lineage and 97 in lineage and min(asked) == 96


def test_a_plan_changes_nothing_until_it_is_added():
    history = History()
    for _ in range(2):
        plan = history.plan("a", "here", [tensor(L.INOUT, 100, 200)])
        assert (plan.task.number, plan.task.turn) == (0, 0)
    history.add(plan, [])
    late = history.expect("b", "there", [tensor(L.OUTPUT_EXISTING, 150, 160)])
    assert [one.kind for one in history.hazards(late)] == ["write after write"]
    assert [one.kind for one in history.hazards(late)] == ["write after write"]


def test_all_hazards_of_a_task_are_told():
    history = History()
    for i in range(3):
        history.add(history.plan("a", "here", [tensor(L.INPUT, 100, 200)]), [])
        assert history._tasks == i + 1
    late = history.expect("b", "there", [tensor(L.INOUT, 100, 200)])
    assert [one.tasks for one in history.hazards(late)] == [(0, 3), (1, 3), (2, 3)]
