"""The files of the documents' diagnostics flags, made from the notes of a trace.

The package loads it, by its entry point, for a run whose configuration has a flag: `recorded` is around
the run, a `Probe` around each task in a worker, and `chip_recorded` around the run of a simulated chip.

Rule     FLAG-NEST-1, FLAG-RUN-1, FLAG-RUN-2, FLAG-RUN-5, FLAG-RUN-6
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ...errors import ControlError, WorkerLostError
from ...jit import layout as L
from ...model.config import CallConfig
from ...trace.tables import TraceFile
from ...workers.life import Life
from ...workers.manager import log
from ...workers.session import Session
from .chip import chip_recorded
from .files import FlaggedRun, write_files
from .probe import Probe, has_hardware, names_of


@contextmanager
def recorded(
    life: Life, session: Session, function: Callable[..., Any], config: CallConfig
) -> Iterator[None]:
    """Write the files of a configuration's flags about the run in this block, also if that fails.

    Raises
    ------
    OSError
        They cannot be written.
    NotImplementedError
        A worker of this Worker cannot record what a flag asks for.
    ValueError
        This Worker is being traced, and not all is noted.
    """
    _require_possible(session, config)
    folder = Path(config.output_prefix)
    folder.mkdir(parents=True, exist_ok=True)
    pmu, dumps = config.enable_pmu, config.enable_dump_tensor
    hardware = bool(pmu) and has_hardware(pmu)
    counters = names_of(pmu, hardware) if pmu else ()
    extras = L.EXTRA_SHAPES if config.enable_dep_gen or dumps else 0
    extras |= L.EXTRA_DUMP if dumps in (1, 2) else 0
    extras |= L.EXTRA_MARKED if dumps == 1 else 0
    failed = True
    with ExitStack() as stack:
        path = stack.enter_context(_traced(life, session, folder))
        dumped = stack.enter_context(_nameless(folder)) if dumps in (1, 2) else None
        view = session.engine.view
        view.note_extras(extras)
        stack.callback(view.note_extras, 0)
        stack.enter_context(_probed(session, config, dumped, hardware))
        try:
            yield
            failed = False
        finally:
            if not session.recorder.flush():
                log.warning("the files in %s lack what could not be noted in time", folder)
            try:
                run = FlaggedRun(TraceFile(path), session.engine.layouts.read, function, failed)
                write_files(run, config, counters, dumped)
            except OSError as error:  # the error of a run that has failed counts
                if not failed:
                    raise
                log.warning("the diagnostics in %s cannot be written: %s", folder, error)


def _require_possible(session: Session, config: CallConfig) -> None:
    """Refuse flags that those who run sub tasks cannot honour, and traces that lack what files need."""
    remote = session.endpoints is not None and session.endpoints.take_functions
    for name in ("enable_dump_tensor", "enable_pmu") if remote else ():
        if getattr(config, name):
            raise NotImplementedError(
                f"CallConfig.{name}={getattr(config, name)}: the endpoints that run this Worker's sub "
                "tasks cannot record that; leave it at 0, or use a Worker without fleet="
            )
    if session.recorder.is_on and not session.recorder.notes_all:
        raise ValueError(
            f"this Worker is being traced into {session.recorder.path} with detail='tasks', and the "
            "diagnostics of a CallConfig need all notes: trace it with detail='all', or not at all"
        )


@contextmanager
def _traced(life: Life, session: Session, folder: Path) -> Iterator[str]:
    """Yield the file of the trace that is being taken; if none is, of one that ends with the block."""
    recorder = session.recorder
    if recorder.path is not None:
        yield recorder.path
        return
    with _nameless(folder) as path:
        recorder.begin(path, "all", spans=True)
        session.orch._take_entries()
        try:
            recorder.start()
            yield path
        finally:
            life.end_trace(session)


@contextmanager
def _nameless(folder: Path) -> Iterator[str]:
    """Yield the path of a file without a name: nothing is left of it, however the process ends."""
    with tempfile.TemporaryFile(dir=folder) as file:
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


@contextmanager
def _probed(
    session: Session, config: CallConfig, dumped: str | None, hardware: bool
) -> Iterator[None]:
    """Have sub workers dump and count in this block, if that is asked for."""
    dumps = config.enable_dump_tensor
    if (not dumps and not config.enable_pmu) or session.manager is None:
        yield
        return
    asked = {"dump": dumped, "scalars": dumps > 1, "pmu": config.enable_pmu, "hardware": hardware}
    try:
        _ask(session, asked)
        yield
    finally:
        try:
            _ask(session, {})
        except (ControlError, WorkerLostError) as error:
            log.warning("a worker still records for diagnostics: %s", error)


def _ask(session: Session, asked: dict[str, Any]) -> None:
    """Set the probe of each live sub worker."""
    manager = session.manager
    assert manager is not None
    for worker in session.engine.view.pool(L.SUB):
        if worker not in manager.dead:
            manager.exchange(worker, L.PROBE_TASKS, json.dumps(asked).encode())


__all__ = ["Probe", "chip_recorded", "recorded"]
