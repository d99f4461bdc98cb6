"""Random programs, compiled and as they were written: the same graph, the same memory, the same end."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simpler_ref import ContinuousTensor, TaskArgs, Worker, orchestration
from simpler_ref import TensorArgType as T
from simpler_ref.jit.kernel import INTERPRETED
from tests.support import Gate

WIDTH = 4
SUBMIT, GROUP, ALLOC, BEGIN, END, WITH, OUTPUT = range(7)

steps = st.tuples(
    st.sampled_from([SUBMIT] * 6 + [GROUP, GROUP, ALLOC, ALLOC, BEGIN, END, WITH, OUTPUT]),
    st.integers(0, 3),
    st.lists(
        st.tuples(st.integers(0, 1 << 16), st.sampled_from([T.INPUT, T.INOUT, T.NO_DEP, T.OUTPUT])),
        min_size=4,
        max_size=4,
    ),
)


def plan_of(program):
    """Return a program as rows: what, how many tensors, then buffer and tag of each."""
    rows = [
        (what, count, *(n for pair in tensors for n in pair)) for what, count, tensors in program
    ]
    return np.array(rows, np.int64).reshape(-1, 10)


@pytest.mark.spec("SPEED-ORCH-1")
def test_random_programs_give_the_same_run_compiled_and_as_written():
    with Gate() as go, Worker(3, num_sub_workers=2) as w:
        shared = w.share(np.zeros((6, WIDTH), np.int64))
        log = w.share(np.zeros(1000, np.int64))

        def hold():
            go.wait()

        def write_down(args):
            """Note what arrived: the addresses, and the other scalars."""
            seen = [args.tensor(i).data for i in range(args.tensor_count())]
            seen += [args.scalar(i) for i in range(1, args.scalar_count())]
            log[args.scalar(0)] = zlib.crc32(repr(seen).encode())

        folding, holding = w.register(write_down), w.register(hold)

        def program(orch, plan, config):
            buffers = [orch.alloc((WIDTH,), np.int64)]
            opened, serial = 0, 0
            for row in range(len(plan)):
                what, count = plan[row, 0], plan[row, 1]
                if what == ALLOC:
                    if opened == 0:
                        buffers.append(orch.alloc(WIDTH, np.int64))
                    continue
                if what == BEGIN and opened < 5:
                    orch.scope_begin()
                    opened += 1
                    continue
                if what == END and opened > 0:
                    orch.scope_end()
                    opened -= 1
                    continue
                members = []
                for _ in range(2):
                    a = TaskArgs()
                    written = 0
                    if what == OUTPUT:
                        a.add_tensor(ContinuousTensor.make(0, (WIDTH,), np.int64), T.OUTPUT)
                        written = 1
                    for i in range(count):
                        which, tag = plan[row, 2 + 2 * i], plan[row, 3 + 2 * i]
                        own = which % (len(shared) + len(buffers))
                        if own < len(shared):
                            a.add_tensor(shared[own], tag)
                        else:
                            if tag == T.OUTPUT:
                                tag = 2  # it would not hold the memory
                            a.add_tensor(buffers[own - len(shared)], tag)
                        if tag in (1, 2):
                            written |= 1 << (a.tensor_count() - 1)
                    a.add_scalar(serial)
                    a.add_scalar(written)
                    a.add_scalar(row * 0.5)
                    serial += 1
                    members.append(a)
                if what == GROUP:
                    orch.submit_sub_group(folding, members)
                elif what == WITH:
                    with orch.scope():
                        orch.submit_sub(folding, members[0])
                        if count == 2:
                            continue
                        orch.submit_sub(folding, members[1])
                else:
                    orch.submit_sub(folding, members[0])
                if what == OUTPUT:
                    b = TaskArgs()
                    b.add_tensor(members[0].tensor(0), T.INPUT)
                    b.add_tensor(shared[row % len(shared)], T.INOUT)
                    b.add_scalar(serial)
                    serial += 1
                    orch.submit_sub(folding, b)
            while opened > 0:
                orch.scope_end()
                opened -= 1

        made = orchestration(program)

        @settings(max_examples=5 if INTERPRETED else 60, phases=[Phase.generate, Phase.shrink])
        @given(st.lists(steps, max_size=25))
        def check(drawn):
            plan = plan_of(drawn)
            seen = []
            for way in (made, made.py_func):
                log[...] = 0

                def orch_fn(orch, args, config, way=way):
                    for _ in range(2):  # nothing ends before all is submitted
                        orch.submit_sub(holding)
                    try:
                        way(orch, plan, config)
                    finally:
                        go.open(2)

                timing = w.run(orch_fn)
                seen.append((timing.tasks, timing.edges, timing.ring_peak_bytes, log.tolist()))
            assert seen[0] == seen[1]

        check()
