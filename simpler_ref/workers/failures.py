"""The error that a failed run raises, from what the Scheduler has noted of its first failure."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import TaskError, WorkerLostError, describe_status
from ..jit import layout as L
from .reports import read_error, trace_size
from .session import Session


def read_failure(session: Session, level: int) -> TaskError:
    """Return what to raise for the first failure of a run.

    Rule     ORCH-FAIL-4, -5; FLOW-FAIL-1, -4; FAIL-OUTCOME-2
    """
    manager, mem = session.manager, session.engine.mem
    task, worker, member = (int(mem[at]) for at in (L.ERROR_TASK, L.ERROR_WORKER, L.ERROR_MEMBER))
    word = int(mem[L.ERROR_CALLABLE])
    name = session.registry.name(word & L.CALLABLE_MASK)
    details: dict[str, Any] = {"task": task, "callable_name": name}
    if worker < 0 or manager is None:
        first = int(mem[L.POOL_FIRST + (word >> L.WORD_KIND & 0xF)])
        return WorkerLostError(
            f"level {level} {session.kinds[first].label}: task {task} ({name}) cannot run: the workers "
            "it needs have died; the next run starts new ones",
            **details,
        )
    details |= {"worker": worker, "pid": manager.pids.get(worker)}
    what = f"task {task} ({name})" + (f", member {member}" if member >= 0 else "")
    where = f"level {level} {manager.name(worker)}, {what}"
    if mem[L.RUN_ERROR] == L.ENDPOINT_FAILURE:
        before = session.watch().ran_before(worker)
        return _lost(where, int(mem[L.ERROR_DETAIL]), before, details)
    message, trace = _report(mem)
    return TaskError(f"{where}: {message}", remote_traceback=trace, **details)


def _lost(where: str, detail: int, before: str, details: dict[str, Any]) -> WorkerLostError:
    """Return the error for a worker that has died, or 0 in `detail`, that does not answer."""
    if not detail:
        return WorkerLostError(f"{where}: the worker has not answered a control request", **details)
    code = detail - L.DEATH_BIAS
    ended = f"was {describe_status(code)}" if code < 0 else describe_status(code)
    return WorkerLostError(
        f"{where}: the worker {ended} before the task was done{before}; the next run starts a new one",
        status=code,
        **details,
    )


def _report(mem: Any) -> tuple[str, str]:
    """Return message and traceback as the worker has written them."""
    octets = mem.view(np.uint8)
    raw = octets[8 * L.ERROR_MSG : 8 * (L.ERROR_MSG + L.ERROR_MSG_WORDS)].tobytes()
    size = trace_size(int(mem[L.ERROR_TRACE]))
    return read_error(raw, octets[8 * (L.ERROR_TRACE + 1) :][:size].tobytes())
