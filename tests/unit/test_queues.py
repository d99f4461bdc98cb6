"""The queues between the actors, against lists."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.jit import layout as L

from ..kernels import kernels as k
from ..support import small_engine, unmap

pytestmark = pytest.mark.kernels


# ---------------------------------------------------------------- wiring
def test_the_wiring_queue_holds_its_capacity_and_says_when_it_is_full(engine):
    mem = engine.mem
    for _ in range(2):  # the second time round the array's end
        for slot in range(1, L.WIRING_CAPACITY + 1):
            assert not k.wiring_full(mem)
            k.push_wiring(mem, slot)
        assert k.wiring_full(mem)
        assert k.pop_wiring(mem) == 1
        assert not k.wiring_full(mem)
        k.push_wiring(mem, L.WIRING_CAPACITY + 1)
        assert k.wiring_full(mem)
        taken = [k.pop_wiring(mem) for _ in range(L.WIRING_CAPACITY)]
        assert taken == list(range(2, L.WIRING_CAPACITY + 2))


# ---------------------------------------------------------------- ready
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([L.NEXT_LEVEL, L.SUB]), st.integers(-6, 6)), max_size=60
    )
)
def test_ready_queues_are_first_in_first_out_and_do_not_mix(steps):
    engine = small_engine(window=8)
    mem, references = engine.mem, {L.NEXT_LEVEL: deque(), L.SUB: deque()}
    number = 0
    for kind, amount in steps:
        for _ in range(amount):
            if len(references[kind]) < 8:
                number += 1
                k.push_ready(mem, kind, number)
                references[kind].append(number)
        for _ in range(-amount):
            expected = references[kind].popleft() if references[kind] else L.NONE
            assert k.pop_ready(mem, kind) == expected
    for kind, reference in references.items():
        assert [k.pop_ready(mem, kind) for _ in range(len(reference) + 1)] == [*reference, L.NONE]
        assert mem[L.READY_HEAD + kind] == mem[L.READY_TAIL + kind] == 0, "an empty one starts over"
    unmap(engine)


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
