"""Replays of recorded graphs that have tasks of endpoints.

Of the copies at endpoints Python keeps track, not the kernels: so such a graph is carried out step by
step the first time, and in parts from then on, if that can be.

Rule     SPEED-PARTS-1, -5; SPEED-REPLAY-12
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..model.arguments import TaskArgs
from ..orch.listening import RecordedArgs
from ..orch.orchestrator import Orchestrator
from ..orch.recording import Graph, Recorder
from ..orch.runs import RunTiming
from ..orch.steps import Step
from .endpoints import Endpoints
from .parted import PartedGraph
from .placing import PlacingOrchestrator, is_remote


class StepRecorder(Recorder):
    """A Recorder that keeps the steps, too."""

    def __init__(self, args: RecordedArgs | None) -> None:
        super().__init__(args)
        self.steps: list[Step] = []

    def _note(self, step: Step) -> None:
        self.steps.append(step)


class PlacedGraph(Graph):
    """A graph of a Worker that has endpoints; it may have no task for them."""

    def __init__(
        self, add_callable: Callable[..., Any], life: Any, recorder: Any, *rest: Any
    ) -> None:
        super().__init__(life, recorder, *rest)
        self._add_callable = add_callable
        of_endpoints = any(is_remote(handle) for handle, _ in self._handles)
        self._steps: list[Step] = recorder.steps if of_endpoints else []
        self._parted: PartedGraph | None = None
        self._has_run = self._is_whole = self._went_in_parts = False
        """Whether it has run, cannot go in parts, and went in parts the last time."""

    def _run(self, bound: TaskArgs | None, start: int) -> RunTiming:
        self._prepare_parts()
        try:
            timing = super()._run(bound, start)
        except BaseException:
            if self._parted is not None:
                self._parted.forget_sent()
            raise
        self._has_run = True
        if self._parted is None or not self._went_in_parts:
            return timing
        self._parted.note_run(timing.host_wall_ns / 1e9)
        return replace(timing, tasks=self.tasks)

    def _play(self, orch: Orchestrator) -> None:
        if not self._steps:
            super()._play(orch)
            return
        assert isinstance(orch, PlacingOrchestrator)
        variables = self._variables.tolist()
        self._went_in_parts = self._parted is not None and self._parted.submit(orch, variables)
        if not self._went_in_parts:
            orch._play_steps(self._steps, self._words(), variables)

    def _prepare_parts(self) -> None:
        """Find the parts for the second replay: how long tasks last is known by then."""
        life = self._life
        options = life.options
        if options.check or options.retries or options.track_reads:
            return  # a part has only the order that follows from its data
        if not self._steps or not self._has_run:
            return
        if self._parted is not None and not self._parted.are_all_there():
            self._parted = None
        if self._parted is None and not self._is_whole:
            assert isinstance(life.endpoints, Endpoints)
            mine = self._args
            provided = (0, 0) if mine is None else (len(mine._tensors), len(mine._scalars))
            with suppress(KeyError):  # which the run will raise
                self._parted = PartedGraph.of(life.endpoints, self._steps, self._words(), provided)
                self._is_whole = self._parted is None
        if self._parted is not None:
            self._parted.require_registered(life.registry, self._add_callable)
