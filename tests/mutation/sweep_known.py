"""Mutants that the sweep has found and no test notices: what is known of each."""

from __future__ import annotations

from typing import NamedTuple

from .sweep_changes import Key


class Known(NamedTuple):
    """A mutant that survives, and why."""

    key: Key
    why: str


EQUIVALENT: tuple[Known, ...] = (
    Known(
        Key(
            "submit.py",
            "are_there",
            "if shared < 0 or tensors < 0 or scalars < 0 or (worker < 0) or (worker > mem[L.WORKERS]):",
            "if shared < 0 or tensors < 0 or worker < 0 or (worker > mem[L.WORKERS]):",
        ),
        "A count that has become negative never grows again, and at the end it must be 0.",
    ),
    Known(
        Key("mailbox.py", "wait_ready", "if rest <= 0:", "if rest <= 1:"),
        "A nanosecond more or less of a time limit.",
    ),
    Known(
        Key("schedule.py", "leave_pass_out", "mem[L.ORCH_PASSES] += 1", "mem[L.ORCH_PASSES] += 2"),
        "The count is only looked at for whether it has changed.",
    ),
    Known(
        Key(
            "submit.py",
            "reclaim",
            "erase(mem, int(mem[t + L.TENSOR_DATA]), owner_of(mem, slot, t, i), slot)",
            "erase(mem, int(mem[t - L.TENSOR_DATA]), owner_of(mem, slot, t, i), slot)",
        ),
        "TENSOR_DATA is 0.",
    ),
    Known(
        Key("collect.py", "finish_member", "left += 1 << 32", "left += 2 << 32"),
        "That half of the word is compared with 0 and with nothing else.",
    ),
    Known(
        Key("schedule.py", "scheduler_pass", "if mem[L.BUSY] != 0:", "if mem[L.BUSY] != -1:"),
        "Without a worker at work `collect` finds nothing, and that is what it says.",
    ),
    Known(
        Key("schedule.py", "scheduler_pass", "if mem[L.BUSY] != 0:", "if mem[L.DEALT] != 0:"),
        "As long as no task has been dealt none is at work, and `collect` would find nothing.",
    ),
    Known(
        Key(
            "collect.py",
            "vacate",
            "mem[w + frame + L.W_SLOT] = L.NONE",
            "mem[w + frame + L.W_SLOT] = L.OUTPUT",
        ),
        "Who reads W_SLOT has seen W_GIVEN, or that the number is no slot's: 1 is none.",
    ),
    Known(
        Key("submit.py", "submit_task", "if slot < 0:", "if slot < 1:"), "0 is no slot's number."
    ),
    Known(
        Key(
            "fail_points.py",
            "die_here",
            "if FAIL_POINTS and mem[w + L.W_FAIL] == number:",
            "if FAIL_POINTS and mem[w - L.W_FAIL] == number:",
        ),
        "FAIL_POINTS is set only in processes that a test starts with a new interpreter.",
    ),
)
"""They behave as the source does, but for what nobody promises."""

UNDECIDED: tuple[Known, ...] = ()
"""A test might tell them from the source, and none does."""
