"""Ready tasks leave their chains from anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.jit import layout as L

from ..kernels import kernels as k
from ..support import small_engine, unmap

pytestmark = pytest.mark.kernels


SIX = st.permutations(range(6))


@given(tasks=SIX, gone=SIX, fresh=st.booleans())
def test_a_ready_task_is_removed_from_anywhere_and_the_others_keep_their_order(tasks, gone, fresh):
    engine = small_engine(window=16)
    mem = engine.mem
    first, worker = int(mem[L.A_SLOTS]), int(mem[L.POOL_FIRST + L.SUB])
    for_any = [first + i * L.SLOT_WORDS for i in range(6)]
    for_one = [first + i * L.SLOT_WORDS for i in range(6, 12)]
    for slot in for_any + for_one:
        named = worker + 1 if slot in for_one else 0
        mem[slot + L.S_CALLABLE] = L.SUB << L.WORD_KIND | named << L.WORD_WORKER
    if not fresh:  # the chains were used before
        k.push_ready(mem, for_any[0])
        k.pop_ready(mem, L.SUB)
    for task in tasks:
        k.push_ready(mem, for_any[task])
        k.push_ready(mem, for_one[task])
    for task in gone[:3]:
        k.remove_ready(mem, for_any[task])
        k.remove_ready(mem, for_one[task])
    rest = [task for task in tasks if task in gone[3:]]
    assert mem[L.AFFINITY + L.SUB] == 3
    k.push_ready(mem, for_any[gone[0]])
    assert [k.pop_ready(mem, L.SUB) for _ in range(4)] == [for_any[i] for i in (*rest, gone[0])]
    assert k.first_ready(mem, L.SUB) == L.NONE
    assert [k.pop_affinity(mem, worker, L.SUB) for _ in range(3)] == [for_one[i] for i in rest]
    assert mem[L.AFFINITY + L.SUB] == 0
    unmap(engine)
