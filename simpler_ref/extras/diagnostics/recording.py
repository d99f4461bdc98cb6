"""Runs whose configuration has diagnostics flags: they are traced, and files are made from the trace.

Rule     FLAG-NEST-1, -2; FLAG-RUN-1, -2, -5, -6
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ...errors import ControlError, WorkerLostError
from ...jit import layout as L
from ...model.config import CallConfig
from ...trace.tables import TraceFile
from ...workers import tracing
from ...workers.life import Life
from ...workers.manager import log
from ...workers.session import Session
from .counters import has_hardware, names_of
from .files import WITHOUT_BYTES, Circumstances, write_files
from .run import FlaggedRun


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
    _require_targets(session, config)
    _require_detail(session)
    folder = Path(config.output_prefix)
    folder.mkdir(parents=True, exist_ok=True)
    hardware = bool(config.enable_pmu) and has_hardware(config.enable_pmu)
    about = Circumstances(
        getattr(function, "__name__", type(function).__name__),
        _site(function),
        True,
        names_of(config.enable_pmu, hardware) if config.enable_pmu else (),
    )
    with ExitStack() as stack:
        path = stack.enter_context(_traced(life, session, folder))
        dumped = stack.enter_context(_nameless(folder)) if _dumps_bytes(config) else None
        view = session.engine.view
        view.note_extras(_extras(config))
        stack.callback(view.note_extras, 0)
        stack.enter_context(_probed(session, config, dumped, hardware))
        try:
            yield
            about = about._replace(failed=False)
        finally:
            if not session.recorder.flush():
                log.warning("the files in %s lack what could not be noted in time", folder)
            _write(session, path, dumped, config, about)


def _require_targets(session: Session, config: CallConfig) -> None:
    """Refuse flags that those who run this Worker's sub tasks cannot honour."""
    if session.endpoints is None or not session.endpoints.take_functions:
        return
    for name in ("enable_dump_tensor", "enable_pmu"):
        if getattr(config, name):
            raise NotImplementedError(
                f"CallConfig.{name}={getattr(config, name)}: the endpoints that run this Worker's sub "
                "tasks cannot record that; leave it at 0, or use a Worker without fleet="
            )


def _require_detail(session: Session) -> None:
    """Refuse to make files from a trace that lacks what they need."""
    if session.recorder.is_on and not session.recorder.notes_all:
        raise ValueError(
            f"this Worker is being traced into {session.recorder.path} with detail='tasks', and the "
            "diagnostics of a CallConfig need all notes: trace it with detail='all', or not at all"
        )


def _extras(config: CallConfig) -> int:
    bits = L.EXTRA_SHAPES if config.enable_dep_gen or config.enable_dump_tensor else 0
    if config.enable_dump_tensor in (1, 2):
        bits |= L.EXTRA_DUMP
    if config.enable_dump_tensor == 1:
        bits |= L.EXTRA_MARKED
    return bits


def _site(function: Callable[..., Any]) -> str:
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


@contextmanager
def _traced(life: Life, session: Session, folder: Path) -> Iterator[str]:
    """Yield the file of the trace that is being taken; if none is, of one that ends with the block."""
    recorder = session.recorder
    if recorder.path is not None:
        yield recorder.path
        return
    with _nameless(folder) as path:
        recorder.begin(path, "all", spans=True)
        tracing.change_entries(life, session)
        try:
            recorder.start()
            yield path
        finally:
            tracing.end(life, session)


@contextmanager
def _nameless(folder: Path) -> Iterator[str]:
    """Yield the path of a file without a name: nothing is left of it, however the process ends."""
    with tempfile.TemporaryFile(dir=folder) as file:
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _dumps_bytes(config: CallConfig) -> bool:
    return bool(config.enable_dump_tensor) and config.enable_dump_tensor != WITHOUT_BYTES


@contextmanager
def _probed(
    session: Session, config: CallConfig, dumped: str | None, hardware: bool
) -> Iterator[None]:
    """Have sub workers dump and count in this block, if that is asked for."""
    dumps = config.enable_dump_tensor
    if (not dumps and not config.enable_pmu) or session.manager is None:
        yield
        return
    asked = {
        "dump": dumped,
        "scalars": dumps > 1,
        "pmu": config.enable_pmu,
        "hardware": hardware,
    }
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


def _write(
    session: Session, path: str, dumped: str | None, config: CallConfig, about: Circumstances
) -> None:
    """Make the files; if that fails after the run has failed, the run's error is the one that counts."""
    try:
        run = FlaggedRun(TraceFile(path), session.engine.layouts.read)
        write_files(run, config, about, dumped)
    except OSError as error:
        if sys.exc_info()[0] is None or not about.failed:
            raise
        log.warning("the diagnostics in %s cannot be written: %s", config.output_prefix, error)
