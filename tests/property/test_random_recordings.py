"""Random programs, recorded and replayed: the graph is that of a fresh run.

The acts of tests/preemption replay random graphs on workers, and compare what they compute.
"""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref import ContinuousTensor, DataType, TaskArgs, TensorArgType
from simpler_ref.jit.kernel import INTERPRETED

from ..by_hand import ByHand

MEMORY = np.frombuffer(mmap.mmap(-1, 1 << 15), np.uint8).reshape(8, 4096)
"""The first four rows are given to a recording, the others to its replays."""


def tensor_of(array):
    return ContinuousTensor.make(array.ctypes.data, array.shape, DataType.UINT8)


def arguments(rows, scalars):
    args = TaskArgs()
    for row in rows:
        args.add_tensor(tensor_of(row))
    for scalar in scalars:
        args.add_scalar(scalar)
    return args


def tile(tensor, part):
    """Return a quarter of a tensor, or all of it."""
    quarter = tensor.nbytes() // 4
    if part == 4 or quarter == 0:
        return tensor
    return ContinuousTensor.make(tensor.data + part * quarter, (quarter,), DataType.UINT8)


# ---------------------------------------------------------------- programs as data
CHOICE = st.tuples(
    st.integers(0, 99), st.integers(0, 4), st.sampled_from(TensorArgType), st.booleans()
)
TASK = st.tuples(st.lists(CHOICE, max_size=5), st.lists(st.integers(-2, 1 << 40), max_size=3))
OPS = st.one_of(
    st.tuples(st.just("submit"), TASK),
    st.tuples(st.just("submit"), TASK),
    st.tuples(st.just("group"), st.lists(TASK, min_size=1, max_size=2)),
    st.tuples(st.just("many"), st.tuples(CHOICE, st.integers(0, 3))),
    st.tuples(st.just("alloc"), st.integers(0, 3000)),
    st.tuples(st.just("begin"), st.none()),
    st.tuples(st.just("end"), st.none()),
)


def play(ops, handle, constant):
    """Return the orchestration function that carries such a program out."""

    def orch_fn(orch, args, config):
        known = [args.tensor(i) for i in range(args.tensor_count())] + [tensor_of(constant)]
        buffers = []
        depth = 0

        def task(what):
            choices, scalars = what
            made = TaskArgs()
            for which, part, tag, provided in choices:
                if provided:
                    size = (256 * which,)
                    made.add_tensor(
                        ContinuousTensor.make(0, size, DataType.UINT8), TensorArgType.OUTPUT
                    )
                else:
                    made.add_tensor(tile(known[which % len(known)], part), tag)
            for scalar in scalars:
                if scalar < 0:
                    made.add_scalar(args.scalar(-1 - scalar))
                elif scalar % 5 == 0:
                    made.add_scalar(args.scalar(0) + scalar)
                elif scalar % 5 == 1 and buffers:
                    made.add_scalar(buffers[scalar % len(buffers)].data + 3)
                else:
                    made.add_scalar(scalar)
            return made

        def remember(made):
            for i in range(made.tensor_count()):
                if made.tensor(i).data:
                    known.append(made.tensor(i))

        for what, data in ops:
            if what == "submit":
                made = task(data)
                orch.submit_sub(handle, made)
                remember(made)
            elif what == "group":
                members = [task(one) for one in data]
                orch.submit_sub_group(handle, members)
                for made in members:
                    remember(made)
            elif what == "many":
                (which, part, tag, provided), count = data
                column = tile(known[which % len(known)], part)
                if provided:
                    column, tag = ContinuousTensor.make(0, (which,), DataType.UINT8), T_OUTPUT
                got = orch.submit_sub_many(
                    handle, [column], [tag], [args.scalar(1), np.arange(count)], count=count
                )
                for address in got[:, 0].tolist():
                    if address:
                        known.append(ContinuousTensor.make(address, column.shapes, DataType.UINT8))
            elif what == "alloc":
                buffer = orch.alloc(data, "uint8")
                if buffer.data:
                    known.append(buffer)
                if buffer.nbytes() > 3:
                    buffers.append(buffer)
            elif what == "begin" and depth < 6:
                depth += 1
                orch.scope_begin()
            elif what == "end" and depth:
                depth -= 1
                orch.scope_end()

    return orch_fn


T_OUTPUT = TensorArgType.OUTPUT


@pytest.mark.spec("SPEED-REPLAY-2", "SPEED-REPLAY-3", "SPEED-REPLAY-4", "SPEED-REPLAY-6")
@given(ops=st.lists(OPS, max_size=8 if INTERPRETED else 25), other=st.booleans())
def test_a_replay_leaves_the_graph_of_a_fresh_run(ops, other):
    size = {"heap_ring_size": 1 << 22}
    with ByHand(**size) as fresh, ByHand(**size) as again:
        recorded = arguments(MEMORY[:3], [5, 7])
        bound = arguments(MEMORY[4:7], [5, 1 << 63]) if other else recorded
        constant = MEMORY[3]
        play(ops, fresh.sub, constant)(fresh.orch, bound, None)
        graph = again.worker.record(play(ops, again.sub, constant), recorded)
        graph._replay(again.orch, bound, None)
        addresses = [tile(tensor_of(row), part).data for row in MEMORY for part in range(4)]
        made, expected = again.picture(addresses), fresh.picture(addresses)
        assert made == expected
        assert graph.tasks == made["counts"]["NEXT_TASK_ID"]
