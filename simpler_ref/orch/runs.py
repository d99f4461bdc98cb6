"""A run: the orchestration function submits, everything drains, the first failure is raised.

Rule     FAIL-AGAIN-1, ORCH-FAIL-1, HIER-API-4, ORCH-API-1, ORCH-RUN-3, ORCH-RUN-5, ORCH-RUN-6,
         ORCH-RUN-7, ORCH-RUN-8, WM-CHIP-7
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..callables.identity import CallableHandle
from ..callables.runnable import require_runnable
from ..errors import ControlError
from ..model import visibility
from ..model.config import CallConfig
from ..system import lazy
from ..system.signals import Failures
from ..workers.life import Life
from ..workers.manager import log
from ..workers.session import Session, drain, end_early
from .domains import domains_of
from .orchestrator import Orchestrator, orchestrator_of
from .words import require_supported

OrchFunction = Callable[[Orchestrator, Any, CallConfig], Any]


@dataclass(frozen=True, slots=True)
class RunTiming:
    """What `Worker.run` returns; ``host, device = timing`` unpacks the two times in ns."""

    host_wall_ns: int = 0
    """Time from the call to the end of the drain, ns."""
    device_wall_ns: int = 0
    """Time on chips, ns; 0 where there are none."""
    tasks: int = 0
    """Tasks submitted, buffers from `alloc` included."""
    edges: int = 0
    """Dependencies found."""
    ring_peak_bytes: tuple[int, ...] = ()
    """Most bytes held at once, per ring."""

    @property
    def host_wall_us(self) -> float:
        """`host_wall_ns` in µs."""
        return self.host_wall_ns / 1000

    @property
    def device_wall_us(self) -> float:
        """`device_wall_ns` in µs."""
        return self.device_wall_ns / 1000

    def __iter__(self) -> Iterator[int]:
        return iter((self.host_wall_ns, self.device_wall_ns))


def require_function(
    what: str,
    orch_fn: OrchFunction | CallableHandle,
    config: CallConfig | None,
    *,
    on_the_chip: bool,
) -> tuple[OrchFunction, CallConfig]:
    """Return what `Worker.run` or `record` was given, once it is found to be right."""
    if config is None:
        config = CallConfig()
    else:
        require_supported(config)
    if what == "record" and (flags := config._flags_on):
        raise NotImplementedError(
            f"CallConfig.{flags[0]}={getattr(config, flags[0])}: record runs no tasks, and the runs of a "
            "graph have no configuration; run the function itself with it"
        )
    if on_the_chip:
        orch_fn = _run_on_the_chip(orch_fn, config)
    if not callable(orch_fn):
        raise TypeError(f"{what} expects an orchestration function, got {type(orch_fn).__name__}")
    require_runnable(what, orch_fn)
    return orch_fn, config


def _run_on_the_chip(handle: Any, config: CallConfig) -> OrchFunction:
    if not isinstance(handle, CallableHandle):
        raise TypeError(
            "a level 2 Worker expects a CallableHandle returned by Worker.register, got "
            f"{type(handle).__name__}"
        )

    def orch_fn(orch: Orchestrator, args: Any, _config: CallConfig) -> None:
        if hasattr(args, "task_args"):  # a ChipStorageTaskArgs
            args = args.task_args()
        orch.submit_next_level(handle, args, config)

    return orch_fn


def run(life: Life, orch_fn: OrchFunction, args: Any, config: CallConfig, start: int) -> RunTiming:
    """Run an orchestration function, after what the last run may have left behind."""

    def act(session: Session) -> RunTiming:
        life.prepare(session)
        domains_of(session).free_all(session)  # should the end of the last run have been cut short
        orchestrator_of(session)._configs.forget_many()
        if life.options.level == 2 or not config._flags_on:
            return _run(session, orch_fn, args, config, start)
        with lazy.load("diagnostics").recorded(life, session, orch_fn, config):
            return _run(session, orch_fn, args, config, start)

    return life.alone(act)


def _run(
    session: Session, orch_fn: OrchFunction, args: Any, config: CallConfig, start: int
) -> RunTiming:
    """Run from start to reset: the first exception cancels, and is raised at the end."""
    engine, view = session.engine, session.engine.view
    orch = session.orch = orchestrator_of(session)._for_next_run()
    device_before = view.device_ns() if session.next_level else None
    failures: Failures = ()
    try:
        try:
            _call(session, orch_fn, args, config)
            drain(session)
        except BaseException as error:
            failures = (error,)
            failures = end_early(session, failures)
    except BaseException as error:  # of a signal between the two
        failures = end_early(session, (*failures, error))
    failure: BaseException | None = None
    if failures:
        failure = failures[-1]
    elif view.has_failed:
        failure = orch._task_error()
    tasks, edges = view.next_task_id - orch._own_tasks, view.edges - orch._own_edges
    failed = None if failure is None else view.failed_tasks()
    engine.kernels.end_run(engine.mem)
    session.forget_watch()
    session.recorder.poke()
    domains_of(session).free_all(session)
    failure = orch._end_run(failure, failed or ())
    if session.manager is not None and session.manager.relay is not None:
        session.manager.relay.pass_on()
    device_ns = 0
    if device_before is not None:
        device_ns = max(0, int((view.device_ns() - device_before).max()))
    if session.registry.has_leaving:
        try:
            session.registry.remove_leaving(session.manager)
        except ControlError as error:
            log.warning("a callable that was unregistered during the run is still known: %s", error)
    if failure is not None:
        try:
            raise failure
        finally:
            del failure, failures
    wall = time.perf_counter_ns() - start
    return RunTiming(wall, device_ns, tasks, edges, view.peaks())


def _call(session: Session, orch_fn: OrchFunction, args: Any, config: CallConfig) -> None:
    orch = orchestrator_of(session)
    before = visibility.current
    outer = before.check, before.kept, before.spawned
    try:
        visibility.set_current(session.method.why_invisible, spawned=session.method.spawn)
        session.engine.kernels.begin_run(session.engine.mem)
        orch._open(*session.words)
        if session.recorder.is_on:
            session.recorder.note_function(orch_fn)
        orch_fn(orch, args, config)
        session.require_own_process()  # refuses a process that orch_fn forked
        orch._settle_run()
    finally:
        orch._close()
        visibility.set_current(*outer)
