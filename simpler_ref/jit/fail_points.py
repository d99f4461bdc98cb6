"""Fail points: numbered points where a test can let a worker process die.

With ``SIMPLER_REF_FAIL_POINTS=1`` in the environment before the import, a kernel that passes a fail point
kills the process if the worker's W_FAIL word names it. Otherwise the call compiles to nothing. The
variable is part of the stamp of compiled kernels.
"""

from __future__ import annotations

from typing import Any

from . import layout as L
from .atomics import kill_self
from .kernel import FAIL_POINTS

(
    FAIL_BEFORE_READY,  # start-up: the process runs, INIT_DONE is not written
    FAIL_READY,  # INIT_DONE is written, no thread woken
    FAIL_PARKED,  # it has announced that it sleeps
    FAIL_RECEIVED,  # it has seen TASK_READY
    FAIL_CALLING,  # the callable is found and not called yet
    FAIL_CALLED,  # the callable has returned
    FAIL_BEFORE_DONE,  # error and results are written, TASK_DONE is not
    FAIL_DONE,  # TASK_DONE is written, no thread woken
    FAIL_CONTROL,  # it has seen CONTROL_REQUEST
    FAIL_BEFORE_CONTROL_DONE,  # the request is carried out, CONTROL_DONE is not written
    FAIL_CONTROL_DONE,  # CONTROL_DONE is written, no thread woken
    FAIL_STOPPING,  # it has seen the request to stop
    FAIL_WAITING,  # its pre-dispatched task still waits for others
    FAIL_WAKING,  # it has cleared a park word, and not woken the thread that sleeps there
    FAIL_TOOK_BLOCK,  # it has taken a block for a call's value, and not written it
    FAIL_WROTE_BLOCK,  # the block is written, and not named in the answer
) = range(1, 17)


def fail_point(mem: Any, w: int, number: int) -> None:
    """Kill this process if a test wants it to die here; also for Python code."""
    if FAIL_POINTS and mem[w + L.W_FAIL] == number:
        kill_self()


def arm(mem: Any, w: int, worker: int) -> None:
    """Let a worker die during its start at the fail point in START_FAIL, once."""
    if FAIL_POINTS and int(mem[L.START_FAIL]) >> 8 == worker + 1:
        mem[w + L.W_FAIL] = int(mem[L.START_FAIL]) & 0xFF
        mem[L.START_FAIL] = 0
