"""What tasks wait for through others, found as far as it is asked for; which bytes tensors share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import ContinuousTensor, TaskArgs, TensorArgType
from simpler_ref.jit import layout as L
from simpler_ref.orch.checked import _tensor_of
from simpler_ref.trace.history import HOST, CheckedTensor, History, Lineage, share


def tensor(tag, start, end):
    return CheckedTensor(tag, HOST, start, end)


@pytest.mark.parametrize("seed", range(20))
def test_a_lineage_has_what_can_be_reached_in_any_order_of_questions(seed):
    rng, count = np.random.default_rng(seed), 60
    order, reached = [], np.eye(count, dtype=bool)
    for task in range(count):
        first = rng.choice(task, min(task, int(rng.integers(3))), replace=False).tolist()
        for producer in first:
            reached[task] |= reached[producer]
        order.append(tuple(first))
    for task in rng.integers(count, size=10).tolist():
        lineage = Lineage(order, [task])
        for place in rng.permutation(count).tolist():
            assert (place in lineage) == reached[task, place]


def test_a_plan_changes_nothing_until_it_is_added_and_then_all_hazards_are_told():
    history = History()
    for _ in range(2):
        plan = history.plan("a", "here", [tensor(L.INOUT, 100, 200)])
        assert (plan.task.number, plan.task.turn) == (0, 0)
    history.add(plan, [])
    late = history.expect("b", "there", [tensor(L.OUTPUT_EXISTING, 150, 160)])
    assert [one.kind for one in history.hazards(late)] == ["write after write"]
    assert [one.kind for one in history.hazards(late)] == ["write after write"]
    history = History()
    for i in range(3):
        history.add(history.plan("a", "here", [tensor(L.INPUT, 100, 200)]), [])
        assert history._tasks == i + 1
    late = history.expect("b", "there", [tensor(L.INOUT, 100, 200)])
    assert [one.tasks for one in history.hazards(late)] == [(0, 3), (1, 3), (2, 3)]


# ---------------------------------------------------------------- bytes of views
STEPS = [step for step in range(-3, 4) if step]
SIZE = 9


def described(view):
    """Return a view as a checked submit gets it."""
    args = TaskArgs()
    made = ContinuousTensor.make(view.ctypes.data, view.shape, view.dtype, strides=view.strides)
    args.add_tensor(made, TensorArgType.INOUT)
    return _tensor_of(args._tensors[0], HOST)


def slices(size):
    ends = st.none() | st.integers(0, size - 1)
    made = st.builds(slice, ends, ends, st.sampled_from(STEPS))
    return made.filter(lambda one: len(range(*one.indices(size))) > 0)


def cuts(*sizes):
    """Give functions that take a view of an array, some of a row or column or turned."""
    parts = st.tuples(*map(slices, sizes))
    lines = st.tuples(st.integers(0, sizes[0] - 1), slices(sizes[1]))
    return st.one_of(
        st.builds(lambda part: lambda x: x[part], parts),
        st.builds(lambda part: lambda x: x[part].T, parts),
        st.builds(lambda line: lambda x: x[line], lines),
        st.builds(lambda part: lambda x: x.reshape(-1)[part], slices(sizes[0] * sizes[1])),
    )


@given(one=cuts(4, 6), other=cuts(4, 6))
def test_views_of_two_dimensions_share_what_their_elements_do(one, other):
    numbers = np.arange(24, dtype=np.int16).reshape(4, 6)
    array = np.zeros_like(numbers)
    mine, theirs = described(one(array)), described(other(array))
    wanted = not set(one(numbers).flat).isdisjoint(other(numbers).flat)
    assert share(mine, theirs) == share(theirs, mine) == wanted
