"""Replays of recorded graphs that have tasks of endpoints.

Of the copies at endpoints Python keeps track, not the kernels: so such a graph is carried out step by
step the first time, and by lists from then on, if that can be.

Rule     SPEED-LIST-1, SPEED-LIST-5, SPEED-REPLAY-12
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..errors import CallableError, ControlError
from ..model.arguments import TaskArgs
from ..model.tensor import ContinuousTensor
from ..orch.listening import RecordedArgs
from ..orch.orchestrator import Orchestrator
from ..orch.recording import Graph, OpRecorder
from ..orch.runs import RunTiming
from .endpoints import Endpoints
from .listing import ListedGraph
from .placing import PlacingOrchestrator, is_remote
from .recorded_steps import AllocStep, ScopeStep, Step, SubmitStep


class StepRecorder(OpRecorder):
    """An OpRecorder that keeps the steps, too."""

    def __init__(self, args: RecordedArgs | None) -> None:
        super().__init__(args)
        self.steps: list[Step] = []

    def _note_task(self, *parts: Any) -> None:
        self.steps.append(SubmitStep(*parts))

    def buffer(self, tensor: ContinuousTensor) -> int:
        """Write an alloc; return an address."""
        self.steps.append(AllocStep(tensor, self.variables))
        return super().buffer(tensor)

    def scope(self, begins: bool) -> None:
        """Write the beginning of a scope, or its end."""
        self.steps.append(ScopeStep(begins))
        super().scope(begins)


class PlacedGraph(Graph):
    """A graph of a Worker that has endpoints; it may have no task for them."""

    def __init__(
        self, add_callable: Callable[..., Any], life: Any, recorder: Any, *rest: Any
    ) -> None:
        super().__init__(life, recorder, *rest)
        self._add_callable = add_callable
        of_endpoints = any(is_remote(handle) for handle, _ in self._handles)
        self._steps: list[Step] = recorder.steps if of_endpoints else []
        self._listed: ListedGraph | None = None
        self._task_s = self._unlisted_s = math.inf
        """About how long its tasks last, and how long when they made no lists; infinite before that."""
        self._went_by_lists = False
        """Whether it did the last time."""

    def _run(self, bound: TaskArgs | None, start: int) -> RunTiming:
        self._prepare_lists()
        timing = super()._run(bound, start)
        seconds = timing.host_wall_ns / 1e9
        self._task_s = min(
            self._task_s, seconds / max(1, self.tasks)
        )  # the first may start sessions
        if self._listed is None or not self._went_by_lists:
            return timing
        self._listed.note_run(seconds)
        return replace(timing, tasks=self.tasks)

    def _play(self, orch: Orchestrator) -> None:
        if not self._steps:
            super()._play(orch)
            return
        assert isinstance(orch, PlacingOrchestrator)
        variables = self._variables.tolist()
        self._went_by_lists = self._listed is not None and self._listed.submit(orch, variables)
        if not self._went_by_lists:
            orch._play_steps(self._steps, self._words(), variables)

    def _prepare_lists(self) -> None:
        """Make the lists for the second replay: how long tasks last is known by then."""
        life = self._life
        options = life.options
        if options.check or options.track_reads:
            return  # a list has only the order that follows from its data
        if not self._steps or self._task_s == math.inf:
            return
        assert isinstance(life.endpoints, Endpoints)
        for dropped in life.endpoints.take_dropped_lists():
            with suppress(CallableError, ControlError):  # an endpoint is lost: it has none
                if life.registry.is_live(dropped):
                    life.registry.discard(dropped, life.installer, life.running)
        if self._listed is not None and not self._listed.is_possible:
            self._listed = None
        if self._listed is None and self._task_s < self._unlisted_s / 2:
            mine = self._args
            provided = (0, 0) if mine is None else (len(mine._tensors), len(mine._scalars))
            with suppress(KeyError):  # which the run will raise
                self._listed = ListedGraph.of(
                    life.endpoints, self._steps, self._words(), provided, self._task_s
                )
                self._unlisted_s = self._task_s if self._listed is None else math.inf
        if self._listed is not None:
            with suppress(CallableError, ControlError):  # so this replay goes task by task
                self._listed.register(life.registry.is_live, self._add_callable)
