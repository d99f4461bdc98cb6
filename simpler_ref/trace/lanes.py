"""Rows of a timeline that are no workers, and what their threads wait for."""

from __future__ import annotations

from ..jit import layout as L

ORCH, SCHEDULER_THREAD = -1, -2
LANES = {ORCH: "Orch thread", SCHEDULER_THREAD: "Scheduler thread"}
"""Threads that are no workers, by their numbers as lanes."""
WAITED = 1000
"""Added to one of `GOALS`: what a wait of the Orch thread was for."""
GOALS = {
    L.WAITED_ROOM: "for room",
    L.WAITED_TASKS: "until tasks have ended",
    L.WAITED_END: "for the end of the run",
    L.WAITED_CALL: "for the result of a call",
}
SPANS = {
    L.NOTED_PARKED: "asleep",
    L.NOTED_PASSES: "runs passes",
    L.NOTED_REQUEST: "control request",
    **{WAITED + goal: f"waits {name}" for goal, name in GOALS.items()},
}
"""What a thread or a worker does, by `what` in the table of waits."""
