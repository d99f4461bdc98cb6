"""The tree below a Worker: its two pools, and the Workers among their workers.

Rule     FLOW-REG-5, -10; WM-POOL-5
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..callables.identity import CallableHandle, TargetNamespace
from ..callables.registry import Registry
from ..callables.runnable import require_runnable
from ..errors import CallableTypeError, NoPythonWorkerError
from ..jit import layout as L
from ..system.cores import NO_TURN, Placement
from .kinds import CustomWorker, NestedWorker, SubWorker, WorkerKind
from .options import MOST_WORKERS, Settings


class Tree:
    """The workers of one Worker, before they are made.

    Attributes
    ----------
    next_level, subs : list[WorkerKind]
        The pools.
    """

    def __init__(
        self,
        options: Settings,
        initializer: Callable[[], None] | None = None,
        chips: Iterable[WorkerKind] = (),
    ) -> None:
        self._level = options.level
        self.next_level = list(chips)
        self.subs: list[WorkerKind] = [
            SubWorker(initializer, options.check) for _ in range(options.num_sub_workers)
        ]

    # ------------------------------------------------------------ adding workers
    def add_nested(self, inner: Any) -> None:
        """Add a Worker to the next-level pool."""
        self._add(self.next_level, NestedWorker(inner))

    def add_next_level(self, worker: Any) -> None:
        """Add a user's own worker to the next-level pool."""
        self._add(self.next_level, self._custom(worker, "next_level_worker"))

    def add_sub(self, worker: Any) -> None:
        """Add a user's own worker to the sub pool."""
        kind = self._custom(worker, "sub_worker")
        if kind.target_namespace != TargetNamespace.LOCAL_PYTHON:
            raise ValueError("sub workers take Python callables")
        self._add(self.subs, kind)

    def add_endpoint(self, link: WorkerKind) -> None:
        """Add an endpoint to the next-level pool: after all others, see POOL_OPEN."""
        if len(self.next_level) >= MOST_WORKERS:
            raise ValueError(f"a pool has at most {MOST_WORKERS} workers")
        self.next_level.append(link)

    def endpoints(self) -> Sequence[WorkerKind]:
        """Return the endpoints, which are the last of the next-level pool."""
        remote = TargetNamespace.REMOTE_TASK_DISPATCHER
        return [kind for kind in self.next_level if kind.target_namespace == remote]

    def _custom(self, worker: Any, label: str) -> WorkerKind:
        if self._level == 2:
            raise RuntimeError("a level 2 Worker is one chip: nothing can be added to it")
        kind = worker if isinstance(worker, WorkerKind) else CustomWorker(worker, label)
        for method in ("start", "run", "stop"):
            require_runnable(f"{label}.{method}", getattr(worker, method, None))
        return kind

    @staticmethod
    def _add(pool: list[WorkerKind], kind: WorkerKind) -> None:
        """Add a worker to a pool whose workers are of its kind."""
        if pool and pool[-1].target_namespace == TargetNamespace.REMOTE_TASK_DISPATCHER:
            raise RuntimeError("add the workers of this machine before the endpoints")
        if pool and pool[0].target_namespace != kind.target_namespace:
            raise ValueError(
                f"all workers of a pool take the same kind of callables: {pool[0].label}s and "
                f"{kind.label}s cannot be mixed"
            )
        if len(pool) >= MOST_WORKERS:
            raise ValueError(f"a pool has at most {MOST_WORKERS} workers")
        pool.append(kind)

    # ------------------------------------------------------------ the Workers below
    @property
    def kinds(self) -> Sequence[WorkerKind]:
        """All workers: the next-level ones first, then the sub workers."""
        return (*self.next_level, *self.subs)

    def nested(self) -> Iterator[Any]:
        """Yield the Workers one level down."""
        for kind in self.next_level:
            if isinstance(kind, NestedWorker):
                yield kind.inner

    @property
    def has_endpoints(self) -> bool:
        """Whether there are endpoints at any level below, or places for them."""
        return bool(self.endpoints()) or any(one._life.tree.has_endpoints for one in self.nested())

    def threads(self) -> int:
        """Return the number of workers at all levels below."""
        below: int = sum(inner._life.tree.threads() for inner in self.nested())
        return sum(not kind.is_vacant for kind in self.kinds) + below

    def place(self, placement: Placement) -> Placement:
        """Assign turns at the cores to all workers; nested Workers assign the turns after their own."""
        first = placement.first
        turns = []
        for kind in self.kinds:
            turns.append(first if kind.has_core else NO_TURN)
            first += kind.has_core
            if isinstance(kind, NestedWorker):
                kind.inner._life.placement = replace(placement, first=first)
                first += kind.inner._life.tree.threads()
        return replace(placement, turns=tuple(turns))

    # ------------------------------------------------------------ callables
    def require_taker(self, chip: bool, is_open: bool) -> None:
        """Refuse Python callables that no worker takes, or will take."""
        if chip:
            return
        if self._level == 2:
            raise CallableTypeError(
                "CALLABLE_KIND_UNSUPPORTED",
                "level 2 only supports ChipCallable; register Python functions on level 3",
            )
        takes = {kind.target_namespace for kind in self.kinds}
        if is_open and TargetNamespace.LOCAL_PYTHON not in takes:
            raise NoPythonWorkerError(
                "CALLABLE_KIND_UNSUPPORTED",
                "this Worker has no Python-capable child to run a Python callable, and gets none: give "
                "Worker(num_sub_workers=…) at least 1",
            )

    def words(
        self, registry: Registry
    ) -> tuple[dict[CallableHandle, int], dict[CallableHandle, int]]:
        """Return the tables of live handles that each pool takes: next level, sub."""
        nothing: dict[CallableHandle, int] = {}
        following = nothing
        if self.next_level:
            takes = self.next_level[0].target_namespace
            if takes == TargetNamespace.REMOTE_TASK_DISPATCHER:
                takes = TargetNamespace.LOCAL_PYTHON
            following = registry.words(takes, L.NEXT_LEVEL)
        subs = nothing
        if self.subs:
            subs = registry.words(TargetNamespace.LOCAL_PYTHON, L.SUB)
        return following, subs

    def explain(self, registry: Registry, handle: CallableHandle, pool: int) -> Exception:
        """Say why a pool does not take a handle."""
        if not registry.is_live(handle):
            return registry.explain(handle)
        if pool == L.SUB and not self.subs:
            return RuntimeError(
                "this Worker has no sub workers; give Worker(num_sub_workers=…) at least 1"
            )
        if pool == L.NEXT_LEVEL and not self.next_level:
            return RuntimeError(
                "this Worker has no next-level workers; give a level 3 Worker device_ids=[…], and a "
                "higher one add_worker(…)"
            )
        takes = TargetNamespace.LOCAL_PYTHON
        if pool == L.NEXT_LEVEL:
            takes = self.next_level[0].target_namespace
        return TypeError(
            f"{handle!r} is a {handle.target_namespace} callable; these workers take "
            f"{takes.name} ones"
        )
