"""What a task costs in one thread, which plays submitter, Scheduler and worker by turns.

No other core takes part, so what these figures leave of a task's cost is memory on its way from core to
core, waiting, and, with leaves or an orchestration function in Python, the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from simpler_ref.engine.memory import Engine
from simpler_ref.jit import layout as L
from simpler_ref.jit import mailbox, schedule, serve, submit
from simpler_ref.jit.atomics import now_ns
from simpler_ref.jit.kernel import INT, STAMP, WORDS, bind, entry

N = 8192
AT_ONCE = 64
DEPTH = 16
SUBMIT, PASS = 0, 1


@entry(WORDS, INT, INT, WORDS, WORDS, nogil=True, stamp=STAMP + Path(__file__).read_text())
def take_turns(mem, word, tensors, wire, spent):
    """Submit N tasks, AT_ONCE at a time, and see them through; add up the time in ns."""
    w = mailbox.worker_at(mem, 0)
    for _ in range(N // AT_ONCE):
        start = now_ns()
        for _ in range(AT_ONCE):
            submit.submit_task(mem, word, tensors, 0, wire)
        spent[SUBMIT] += now_ns() - start
        while mem[L.LIVE] != 0:
            start = now_ns()
            schedule.orch_pass(mem)
            spent[PASS] += now_ns() - start
            while mailbox.load(mem, mailbox.served(mem, w)) & mailbox.STATE_MASK == L.TASK_READY:
                serve.post_done(mem, w, L.SUCCESS)
    return L.OK


def alone(tensors: int, part: int) -> tuple[Callable[[], float], int]:
    """Return a round: time in submit, or in passes; the last tensor is INOUT, so tasks are a chain."""
    engine = Engine(heap_ring_size=1 << 20, sub=1, depth=DEPTH)
    mem = engine.mem
    mem[int(mem[L.A_WORKERS]) + L.W_USABLE] = L.ALIVE
    (turns,) = bind([take_turns])
    wire = np.zeros((tensors, L.TENSOR_WORDS), np.int64)
    wire[:, L.TENSOR_DATA] = 0x1000 * np.arange(1, tensors + 1)
    wire[:, L.TENSOR_SHAPE] = 4
    wire[:, L.TENSOR_DIMS] = 1 << 32
    wire[-1, L.TENSOR_KIND] = L.INOUT << L.TENSOR_TAG_SHIFT
    words = wire.reshape(-1)
    engine.kernels.begin_run(mem)
    engine.kernels.close_scope(mem)

    def one_round() -> float:
        spent = np.zeros(2, np.int64)
        turns(mem, L.SUB << L.WORD_KIND, tensors, words, spent)
        return float(spent[part]) / 1e9

    one_round()
    return one_round, N


def test_what_a_task_costs_in_one_thread(record):
    record(
        {
            f"alone_{name}_{tensors}": alone(tensors, part)
            for tensors in (1, 3)
            for name, part in (("submit", SUBMIT), ("pass", PASS))
        },
        rounds=40,
    )
