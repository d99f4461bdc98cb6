"""The resources of an open Worker: memory, workers and the Scheduler thread.

Rule     SEE-TOP-1, FLOW-REG-4, WM-CHIP-9
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from ..callables.identity import CallableHandle, TargetNamespace
from ..callables.pickling import inherited
from ..callables.registry import Registry, Snapshot
from ..engine.introspection import RingRow
from ..engine.memory import Engine, Scheduler
from ..engine.shared_arrays import Arena
from ..engine.view import slots
from ..engine.view.mailbox import MailboxView
from ..errors import ControlError, WorkerLostError
from ..jit import layout as L
from ..system.signals import Failures, signals_blocked
from ..trace.recorder import TraceRecorder
from .kinds import NestedWorker, WorkerKind
from .manager import ThreadManager, WorkerManager, worker_name
from .options import Settings
from .processes import ProcessManager, StartMethod
from .requests import ChildTraces, ChipMemory, Installer
from .top import Row, Top
from .watch import OF_CALLS, Watch


# ---------------------------------------------------------------- workers on other machines
class RemoteWorkers:
    """A Worker's workers on other machines: none. `remote.endpoints` has what there is if there are some.

    Attributes
    ----------
    sub_workers : int
        How many of them run calls.
    take_functions : bool
        Whether functions are registered for those unless said otherwise.
    are_there : bool
        Whether there are, or may be, any.
    """

    sub_workers: int = 0
    take_functions = False
    are_there = False

    def reserve(self) -> None:
        """Keep places for those that join later; before the engine is made."""

    def prepare(self, zeros: Any) -> None:
        """Take shared memory, before there are processes."""

    def close(self) -> None:
        """Give back what is held for them."""

    def forget_lost(self, address: int, nbytes: int) -> None:
        """Forget what was lost in memory that is given out anew, or is right as it is."""

    def movers(self) -> dict[str, int]:
        """Return which of them is meant by what traces name a mover by."""
        return {}

    def require_same(self, handle: Any) -> None:
        """Refuse a callable for workers of this machine that is one of theirs."""

    def why_no_calls(self, level: int) -> str:
        """Return why nobody runs calls, and the remedy."""
        return (
            f"this Worker of level {level} has no workers for Python tasks: give num_sub_workers, as in "
            f"Worker(num_sub_workers={level})"
        )


class _Orchestrator(Protocol):
    """What workers ask of the Orchestrator of a Worker's runs; see `orchestrator_of` for all of it."""

    def _place_of(self, task: int) -> str: ...

    def _take_entries(self) -> None: ...


class _Domains(Protocol):
    """What workers tell the communication domains of a Worker; see `domains_of` for all of it."""

    def forget_members(self) -> None: ...

    def note_death(self, worker: int, code: int) -> None: ...

    def close(self) -> None: ...


class Session:
    """Everything that must be closed with a Worker, apart from the Worker itself.

    It closes a Worker that is garbage-collected, or open when the interpreter ends.
    """

    def __init__(
        self,
        engine: Engine,
        arena: Arena,
        next_level: Sequence[WorkerKind],
        subs: Sequence[WorkerKind],
        registry: Registry,
        options: Settings,
        method: StartMethod,
    ) -> None:
        self.engine = engine
        self.arena = arena
        self.own_memory = method.own_memory = [
            (memory.ctypes.data, memory.ctypes.data + memory.nbytes)
            for memory in (arena.memory, engine.heap)
        ]
        self.next_level = next_level
        self.kinds = [*next_level, *subs]
        self.registry = registry
        self.options = options
        self.in_threads = options.child_mode == "thread"
        self.manager: WorkerManager | None = None
        self.scheduler: Scheduler | None = None
        self.method = method
        self.snapshot: Snapshot = {}
        self.inherited: dict[str, Any] | None = None
        """What workers have of `__main__`; None: all of it, since they are threads, or not started."""
        self.orch: _Orchestrator
        self.domains: _Domains
        self.chips: ChipMemory
        self.pid = os.getpid()
        self.endpoints = RemoteWorkers()
        described = weakref.WeakMethod(self._described)  # a recorder does not keep its Worker
        self.recorder = TraceRecorder(engine, lambda: (described() or dict)())
        self.caller = L.NONE
        """Index of the callable that runs calls."""
        self.call_names: dict[int, str] = {}
        """The functions that were called, by their keys."""
        self.child_traces = ChildTraces(self.kinds)
        """The traces of the Workers below this one."""
        self._watch: Watch | None = None
        self.pushed_before = 0
        """How many tasks were submitted before the run."""

    def start_anew(self) -> None:
        """Start all workers, with the registered callables, and the Scheduler thread."""
        self.stop_workers()
        self.registry.write_digests(self.engine)
        self.registry.forget_tombstones()
        self.method.decide(self.kinds)
        self.snapshot = self.registry.snapshot(as_bytes=self.method.spawn)
        if len(self.kinds) == len(self.next_level) or self.method.spawn:
            self.inherited = {}  # calls, if there are any, go to endpoints
        elif not self.in_threads:
            self.inherited = inherited()
        if self.kinds:
            start_s = max(
                self.options.start_timeout_s, *(kind.start_timeout_s for kind in self.kinds)
            )
            self.manager = self._mode()(
                self.engine, self.kinds, start_s, self.options.py_control_timeout_s
            )
            self.domains.forget_members()
            self.manager.on_death = self.domains.note_death
            self.manager.admit(self.manager.start(self.snapshot, self.method.has_started))
        self.recorder.start()
        with signals_blocked():
            if self.scheduler is None:
                scheduler = Scheduler(self.engine, lambda: self.watch().stuck_group())
                scheduler.start()
                self.scheduler = scheduler
                self.method.has_started = True
        if self.manager is not None:
            self.child_traces.begin(self.manager)

    @property
    def installer(self) -> Installer | None:
        """What installs callables in the workers; None while there are none."""
        return None if self.manager is None else Installer(self.manager)

    def replace_dead(self, dead: Sequence[int] | None = None, beside: bool = False) -> None:
        """Make successors for dead workers, by default all; see `WorkerManager.replace_dead`.

        They also install the callables registered since the start.
        """
        assert self.manager is not None
        installer = Installer(self.manager)
        for worker in self.manager.replace_dead(dead, beside):
            namespace = self.kinds[worker].target_namespace
            try:
                for one in self.registry.missing(namespace, self.snapshot.get(namespace, {})):
                    installer.install(one, worker)
            except (ControlError, WorkerLostError) as error:
                if not self.manager.do_without(worker, str(error)):
                    raise
            else:
                self.child_traces.begin(self.manager, [worker])
                self.manager.admit([worker])

    def watch(self) -> Watch:
        """Return the watch of running tasks, one for each run that has to wait."""
        assert self.manager is not None
        if self._watch is None:
            self._watch = Watch(self.engine, self.manager, self, self.options.hang_report_s)
        return self._watch

    # ------------------------------------------------------------ callables
    @cached_property
    def words(self) -> tuple[dict[CallableHandle, int], dict[CallableHandle, int]]:
        """The registry's tables of live handles that each pool takes: next level, sub."""
        following, subs = self._takes()
        nothing: dict[CallableHandle, int] = {}
        return (
            nothing if following is None else self.registry.words(following, L.NEXT_LEVEL),
            nothing if subs is None else self.registry.words(subs, L.SUB),
        )

    def _takes(self) -> tuple[TargetNamespace | None, TargetNamespace | None]:
        """Return the namespace of each pool's callables, None of one without workers."""
        python = TargetNamespace.LOCAL_PYTHON
        following = None
        if self.next_level:
            first = self.next_level[0]
            following = first.pool_namespace or first.target_namespace
        return following, python if len(self.kinds) > len(self.next_level) else None

    def explain(self, handle: CallableHandle, pool: int) -> Exception:
        """Say why a pool does not take a handle."""
        if not self.registry.is_live(handle):
            return self.registry.explain(handle)
        following, subs = self._takes()
        takes = subs if pool == L.SUB else following
        if takes is not None:
            return TypeError(
                f"{handle!r} is a {handle.target_namespace} callable; these workers take "
                f"{takes.name} ones"
            )
        if pool == L.SUB:
            return RuntimeError(
                "this Worker has no sub workers; give Worker(num_sub_workers=…) at least 1"
            )
        return RuntimeError(
            "this Worker has no next-level workers; give a level 3 Worker device_ids=[…], and a "
            "higher one add_worker(…)"
        )

    def callable_name(self, word: int, key: int = L.NONE) -> str:
        """Return the name of the callable in a callable word; of a call, that of its function."""
        index = word & L.CALLABLE_MASK
        name = self.call_names.get(key) if index == self.caller else None
        return self.registry.name(index) if name is None else name

    def worker_name(self, worker: int) -> str:
        """Return what messages call a worker."""
        if self.manager is None:
            return worker_name(self.kinds, worker)
        return self.manager.name(worker)

    def look(self, failures: Failures = ()) -> None:
        """Do what is due while a run waits, about ten times a second: messages."""
        if self.manager is not None:
            self.watch().look(failures[-1] if failures else None)

    def look_at_calls(self) -> None:
        """Do what is due while a thread waits for calls: messages."""
        if self.manager is not None:
            self.watch().look(None, OF_CALLS)

    def tell_running_calls(self) -> None:
        """Log which calls the end of the Worker waits for."""
        if self.manager is not None:
            self.watch().tell_running("the Worker is being closed", "Ctrl-C")

    def top(self, running: bool, streaming: bool) -> Top:
        """Return what the Worker does, which has a run in progress, or is streaming calls.

        No lock is taken, and the kernels notice nothing. Memory that is given back meanwhile stays as
        long as it is looked at.
        """
        view = self.engine.view
        ended = view.ended  # first: it is not above the others then
        counts = slots.count_tasks(self.engine.mem)
        submitted = view.next_task_id if streaming else view.pushed - self.pushed_before
        rings = [view.ring(number) for number in range(view.ring_count)]
        return Top(
            pid=self.pid,
            level=self.options.level,
            program=self._program(running, streaming),
            ended=ended if running or streaming else 0,
            submitted=submitted if running or streaming else 0,
            for_inputs=counts.pending,
            for_worker=counts.ready,
            alive=view.live,
            window=view.window,
            workers=tuple(self._rows(counts.named)),
            rings=tuple(
                RingRow(tasks, max(0, ring.top - ring.tail), ring.size)
                for tasks, ring in zip(counts.rings, rings, strict=True)
            ),
        )

    def _program(self, running: bool, streaming: bool) -> str:
        view, lacks = self.engine.view, self.engine.lacks
        if lacks:
            number = min(max(0, view.scope_depth - 1), view.ring_count - 1)
            return f"waits for {lacks}" + ("" if streaming else f" in ring {number}")
        if streaming:
            return "calls"
        if not running:
            return "no run"
        return "a run" if view.scope_depth or not view.live else "waits for its tasks"

    def _rows(self, named: list[int]) -> Iterator[Row]:
        """Yield what each worker does; so many ready tasks name each."""
        manager, time_ns = self.manager, time.monotonic_ns()
        if manager is None:
            return
        for worker in manager.present():
            kind, box = self.kinds[worker], MailboxView(self.engine, worker)
            name, pid = worker_name(self.kinds, worker), manager.pids.get(worker)
            if worker in manager.dead:
                yield Row(name, pid, "lost")
                continue
            found = slots.running(self.engine.mem, box.start)
            queue = max(0, box.given - (found is not None)) + named[worker]
            row = Row(name, pid, "idle", queue=queue)
            if found is not None:
                function = self.callable_name(found.callable, found.key)
                running_s = max(0, time_ns - found.since_ns) / 1e9
                row = Row(name, pid, "running", found.task, function, running_s, queue)
            if isinstance(kind, NestedWorker) and (child := kind.inner._life.look()) is not None:
                row = replace(row, children=(child,))  # it runs in a thread
            yield row

    def _described(self) -> dict[str, Any]:
        functions = {
            str(int.from_bytes(digest[:8], "little") & L.FUNCTION_MASK): name
            for digest, name in self.registry.names().items()
        }
        calls = list(self.call_names.items())
        functions |= {str(key | L.FUNCTION_IS_KEY): name for key, name in calls}
        pids = {} if self.manager is None else self.manager.pids
        view = self.engine.view
        return {
            "functions": functions,
            "level": self.options.level,
            "workers": [worker_name(self.kinds, worker) for worker in range(len(self.kinds))],
            "vacant": [worker for worker, kind in enumerate(self.kinds) if kind.is_vacant],
            "pids": {str(worker): pid for worker, pid in list(pids.items())},
            "rings": view.ring_count,
            "ring_bytes": view.ring_bytes,
            "layouts": self.engine.layouts.told(),
            "movers": self.endpoints.movers(),
            **self.child_traces.told(),
        }

    def forget_watch(self) -> None:
        """Drop the watch at the end of a run, or of a stream of calls."""
        self._watch = None

    def _mode(self) -> type[WorkerManager]:
        if self.in_threads:
            return ThreadManager
        if not self.method.spawn:
            return ProcessManager
        from .fresh_interpreter import SpawnManager

        return SpawnManager

    def stop_workers(self) -> None:
        """Stop the workers; the Scheduler thread stays."""
        if self.manager is not None:
            self.manager.stop()
            self.manager = self._watch = None

    def close(self) -> None:
        """Stop everything and release the memory."""
        if os.getpid() != self.pid:
            return  # a forked process: nothing here is its own
        if self.scheduler is not None:
            self.scheduler.stop()
            self.scheduler = None
        if self.manager is not None:
            self.child_traces.end(self.manager)
        self.stop_workers()
        self.recorder.end()
        self.domains.close()
        self.endpoints.close()
        self.engine.close()
        self.arena.close()
        vars(self).pop("orch", None)  # it refers to this, so the memory would wait for a collection

    def require_own_process(self) -> None:
        """Refuse a process that was forked from the one that made this."""
        if self.pid != os.getpid():
            raise RuntimeError(
                f"this Worker belongs to process {self.pid}; process {os.getpid()}, which was forked "
                "from it, needs a Worker of its own"
            )
