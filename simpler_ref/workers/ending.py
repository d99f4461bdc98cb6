"""How a run ends: everything drains, and each failure makes it end sooner."""

from __future__ import annotations

from ..engine.memory import PARK_NS
from ..jit import layout as L
from ..system.signals import Failures, until_done
from .session import Session


def drain(session: Session, failures: Failures = ()) -> None:
    """End every scope and wait until every task is reclaimed; a failure cancels what can be.

    Rule     ORCH-RUN-3, -4; ORCH-TELL-1, -2
    """
    mem, kernels = session.engine.mem, session.engine.kernels
    kernels.finish_run(mem, bool(failures))
    while kernels.help_scheduler(mem, 0, -1, -1, PARK_NS) != L.OK:
        session.look(failures)


def end_early(session: Session, failures: Failures) -> Failures:
    """End a run that has failed; return all of its failures.

    The first one cancels, each further one kills the busy workers.

    Rule     ORCH-RUN-7, -8; FAIL-LOUD-2
    """
    manager = session.manager

    def end(failures: Failures) -> None:
        if len(failures) > 1 and manager is not None:
            manager.kill_busy()
        drain(session, failures)

    failures = until_done(end, failures, session.pid)
    if manager is not None:
        manager.rescind_idle()
    return failures


def recover(session: Session) -> None:
    """Finish the last run if signals cut its end short; the second asked to kill busy workers."""
    engine = session.engine
    if engine.view.next_task_id or engine.view.scope_depth:
        signals = InterruptedError("a signal"), InterruptedError("and one more")
        *_, failure = end_early(session, signals)
        engine.kernels.end_run(engine.mem)
        if failure not in signals:
            raise failure
