"""Ready tasks leave their queues from anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.jit import layout as L

from ..kernels import kernels as k
from ..support import small_engine, unmap

pytestmark = pytest.mark.kernels


SIX = st.permutations(range(1, 7))


@given(before=st.integers(0, 5), tasks=SIX, gone=SIX)
def test_a_ready_task_is_removed_from_anywhere_and_the_others_keep_their_order(before, tasks, gone):
    engine = small_engine(window=8)
    mem = engine.mem
    for _ in range(before):  # the queue does not begin at its start
        k.push_ready(mem, L.SUB, 7)
    for task in tasks:
        k.push_ready(mem, L.SUB, task)
        k.push_affinity(mem, 0, L.SUB, 100 * task)
    for _ in range(before):
        k.pop_ready(mem, L.SUB)
    for task in gone[:3]:
        k.remove_ready(mem, L.SUB, task)
        k.remove_affinity(mem, 0, L.SUB, 100 * task)
    rest = [task for task in tasks if task in gone[3:]]
    assert [k.pop_ready(mem, L.SUB) for _ in range(4)] == [*rest, L.NONE]
    assert mem[L.AFFINITY + L.SUB] == 3
    assert [k.pop_affinity(mem, 0, L.SUB) for _ in range(3)] == [100 * task for task in rest]
    assert mem[L.AFFINITY + L.SUB] == 0
    unmap(engine)
