"""The resources of an open Worker: memory, workers and the Scheduler thread; what it says while a run
waits, how a run ends that fails, and the stories of tasks in errors.

What is told is read while others write. A task that ends meanwhile may be left out, or named although it
has just ended; only messages depend on that.

Each failure makes a run end sooner. What the engine knows of a task is always told: state, worker, what
it waited for and what waits for it. Its line is known with ``check=True``.

Rule     FAIL-OUTCOME-2, ORCH-RUN-3, ORCH-RUN-4, ORCH-RUN-7, ORCH-RUN-8, ORCH-TELL-1, ORCH-FAIL-4,
         ORCH-FAIL-5, SEE-HANG-1, SEE-STORY-1, SEE-STORY-3, SEE-TOP-1, FLOW-FAIL-1, FLOW-FAIL-4,
         FLOW-REG-4, WM-CHIP-9, WM-LEFT-2, WM-PLACE-4
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from typing import Any

from ..callables.identity import CallableHandle, TargetNamespace
from ..callables.pickling import inherited
from ..callables.registry import Registry, Snapshot
from ..engine.introspection import RingRow, listed, waiting_tasks
from ..engine.memory import PARK_NS, Engine, Scheduler
from ..engine.shared_arrays import Arena
from ..engine.view import FirstFailure, slots
from ..engine.view.mailbox import MailboxView
from ..engine.view.slots import Story, call_story
from ..errors import ControlError, TaskError, WorkerLostError, describe_status, origin_of, tell
from ..jit import layout as L
from ..system.signals import Failures, signals_blocked, until_done
from ..trace.recorder import TraceRecorder
from .kinds import NestedWorker, WorkerKind
from .manager import ChildTraces, ChipMemory, ThreadManager, WorkerManager, worker_name
from .options import Settings
from .processes import ProcessManager, StartMethod
from .reports import read_error
from .top import Row, Top

log = logging.getLogger("simpler_ref")

STALL_S = 30.0
"""Seconds without the end of a task after which it is told what runs and what waits."""
_NOBODY_WAITED_S = 2.0
"""Seconds without a look after which what was seen before says nothing: nobody has waited meanwhile."""
OF_RUN = "Ctrl-C cancels the run, a second one ends the task"
OF_CALLS = "@task(timeout=…) ends calls that take too long"


# ---------------------------------------------------------------- workers on other machines
class RemoteWorkers:
    """A Worker's workers on other machines: none; if there are some, see `remote.endpoints`."""

    sub_workers: int = 0  # of them, that run calls
    take_functions = False  # functions are registered for those unless said otherwise
    are_there = False  # or may be

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


@dataclass(eq=False, repr=False)
class Session:
    """Everything that must be closed with a Worker, apart from the Worker itself.

    It closes a Worker that is garbage-collected, or open when the interpreter ends.
    """

    engine: Engine
    arena: Arena
    next_level: Sequence[WorkerKind]
    subs: InitVar[Sequence[WorkerKind]]
    registry: Registry
    options: Settings
    method: StartMethod
    endpoints: RemoteWorkers

    def __post_init__(self, subs: Sequence[WorkerKind]) -> None:
        self.own_memory = self.method.own_memory = [
            (memory.ctypes.data, memory.ctypes.data + memory.nbytes)
            for memory in (self.arena.memory, self.engine.heap)
        ]
        self.kinds = [*self.next_level, *subs]
        self.in_threads = self.options.child_mode == "thread"
        self.manager: WorkerManager | None = None
        self.scheduler: Scheduler | None = None
        self.snapshot: Snapshot = {}
        self.inherited: dict[str, Any] | None = None
        """What workers have of `__main__`; None: all of it, since they are threads, or not started."""
        self.orch: Any  # that of the runs: `orchestrator_of` knows its type
        self.domains: Any  # see `domains_of`
        self.chips: ChipMemory
        self.pid = os.getpid()
        described = weakref.WeakMethod(self._described)  # a recorder does not keep its Worker
        self.recorder = TraceRecorder(self.engine, lambda: (described() or dict)())
        self.caller = L.NONE  # index of the callable that runs calls
        self.call_names: dict[int, str] = {}  # the functions that were called, by their keys
        self.child_traces = ChildTraces(self.kinds)
        self._watch: Watch | None = None
        self.pushed_before = 0  # tasks submitted before the run

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
            made: type[WorkerManager] = ThreadManager if self.in_threads else ProcessManager
            if self.method.spawn:
                from .fresh_interpreter import SpawnManager as made
            self.manager = made(self.engine, self.kinds, start_s, self.options.py_control_timeout_s)
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

    def replace_dead(self, dead: Sequence[int] | None = None, beside: bool = False) -> None:
        """Make successors for dead workers, by default all; see `WorkerManager.replace_dead`.

        They also install the callables registered since the start.
        """
        assert self.manager is not None
        for worker in self.manager.replace_dead(dead, beside):
            namespace = self.kinds[worker].target_namespace
            try:
                for one in self.registry.missing(namespace, self.snapshot.get(namespace, {})):
                    self.manager.install(one, worker)
            except (ControlError, WorkerLostError) as error:
                if not self.manager.do_without(worker, str(error)):
                    raise
            else:
                self.child_traces.begin(self.manager, [worker])
                self.manager.admit([worker])

    def watch(self) -> Watch:
        assert self.manager is not None
        if self._watch is None:
            self._watch = Watch(self, self.manager)
        return self._watch

    # ------------------------------------------------------------ callables
    @cached_property
    def words(self) -> tuple[dict[CallableHandle, int], dict[CallableHandle, int]]:
        """The registry's tables of live handles that each pool takes: next level, sub."""
        following, subs = (
            {} if (takes := self._takes(pool)) is None else self.registry.words(takes, pool)
            for pool in (L.NEXT_LEVEL, L.SUB)
        )
        return following, subs

    def _takes(self, pool: int) -> TargetNamespace | None:
        """Return the namespace of a pool's callables; None: it has no workers."""
        if pool == L.SUB:
            has_subs = len(self.kinds) > len(self.next_level)
            return TargetNamespace.LOCAL_PYTHON if has_subs else None
        for first in self.next_level[:1]:
            return first.pool_namespace or first.target_namespace
        return None

    def explain(self, handle: CallableHandle, pool: int) -> Exception:
        if not self.registry.is_live(handle):
            return self.registry.explain(handle)
        if (takes := self._takes(pool)) is not None:
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
        if self.manager is None:
            return worker_name(self.kinds, worker)
        return self.manager.name(worker)

    def look(self, failures: Failures = (), remedy: str = OF_RUN) -> None:
        """Log what is due while a thread waits, about ten times a second; see `Watch.look`."""
        if self.manager is not None:
            self.watch().look(failures, remedy)

    def tell_running_calls(self) -> None:
        if self.manager is not None:
            self.watch().tell_running("the Worker is being closed", "Ctrl-C")

    def top(self, running: bool, streaming: bool) -> Top:
        """Return what the Worker does, which has a run in progress, or is streaming calls.

        No lock is taken, and the kernels notice nothing. Memory that is given back meanwhile stays as
        long as it is looked at.
        """
        view = self.engine.view
        ended = view.ended  # first: it is not above the others then
        pending, ready, named, in_rings = slots.count_tasks(self.engine.mem)
        submitted = view.next_task_id if streaming else view.pushed - self.pushed_before
        rings = [view.ring(number) for number in range(view.ring_count)]
        return Top(
            pid=self.pid,
            level=self.options.level,
            program=self._program(running, streaming),
            ended=ended if running or streaming else 0,
            submitted=submitted if running or streaming else 0,
            for_inputs=pending,
            for_worker=ready,
            alive=view.live,
            window=view.window,
            workers=tuple(self._rows(named)),
            rings=tuple(
                RingRow(tasks, max(0, ring.top - ring.tail), ring.size)
                for tasks, ring in zip(in_rings, rings, strict=True)
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
                task, index, key, since_ns = found
                running_s = max(0, time_ns - since_ns) / 1e9
                function = self.callable_name(index, key)
                row = Row(name, pid, "running", task, function, running_s, queue)
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
        self._watch = None

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
        if self.pid != os.getpid():
            raise RuntimeError(
                f"this Worker belongs to process {self.pid}; process {os.getpid()}, which was forked "
                "from it, needs a Worker of its own"
            )


# ---------------------------------------------------------------- messages while a run waits
class Watch:
    """The running tasks of a session whose workers run, for messages."""

    def __init__(self, session: Session, manager: WorkerManager) -> None:
        stall_s = session.options.hang_report_s
        self._stall_s = STALL_S if stall_s is None else stall_s
        self._reported = False
        self._session, self._manager, self._engine = session, manager, session.engine
        self._told_interrupt = False
        self._done = -1
        self._since = self._looked = 0.0

    def look(self, failures: Failures = (), remedy: str = OF_RUN) -> None:
        """Log the messages that are due; a waiting thread calls this about ten times a second.

        `failures` have cancelled the run, if there are any; `remedy` is what ends a task.
        """
        why = failures[-1] if failures else None
        if why is not None and not isinstance(why, Exception) and not self._told_interrupt:
            self._told_interrupt = True
            again = "Ctrl-C again" if isinstance(why, KeyboardInterrupt) else "Ctrl-C"
            self.tell_running(type(why).__name__, again)
        now, before = time.monotonic(), self._looked
        done, self._looked = self._engine.view.ended, now
        if done != self._done or now - before > _NOBODY_WAITED_S:
            self._done, self._since, self._reported = done, now, False
        elif now - self._since >= self._stall_s and not self._reported:
            self._reported = True
            self._report(remedy)

    def tell_running(self, why: str, remedy: str) -> None:
        """Log what is waited for although all else is cancelled, and what to press so that it ends."""
        running = [f"{task} on {name}" for _, task, name in self.running()]
        if not running:
            return
        count = f"{len(running)} running task{'s' * (len(running) > 1)}"
        ends = "kills their workers"
        if self._manager.in_threads:
            ends = "ends them at their next line of Python"
        said = f"{why}: waiting for {count}: {listed(running)}; {remedy} {ends}"
        log.warning("%s", said)

    def _report(self, remedy: str) -> None:
        """Log what runs and what waits for what, once until a task ends."""
        running = list(self.running())
        lines = [f"{task} is RUNNING on {name}" for _, task, name in running]
        if waiting := waiting_tasks(self._engine, self._session):
            lines = [*dict.fromkeys([*lines, *waiting]), self.stuck_group()]
        if running:
            pid = self._manager.pids.get(running[0][0], os.getpid())
            lines.append(f"`py-spy dump --pid {pid}` shows what a worker does; {remedy}")
        if lines:
            text = "\n  ".join(filter(None, lines))
            log.warning("no task has ended for %g s:\n  %s", self._stall_s, text)

    # ------------------------------------------------------------ running tasks
    def running(self) -> Iterator[tuple[int, str, str]]:
        """Yield each worker that has tasks, and what messages call the oldest of these and the worker."""
        session = self._session
        for worker in range(len(self._manager.kinds)):
            oldest = MailboxView(self._engine, worker).oldest_task()
            if oldest and worker not in self._manager.dead:
                task, index, key = oldest
                called = f"task {task} ({session.callable_name(index, key)})"
                yield worker, called, session.worker_name(worker)

    # ------------------------------------------------------------ groups
    def stuck_group(self) -> str:
        group = self._engine.view.stuck_group()
        if group is None:
            return ""
        busy = [
            f"{name} with {task}" for worker, task, name in self.running() if worker in group.pool
        ]
        called = self._session.callable_name(group.callable, L.NONE)
        return (
            f"task {group.task} ({called}), a group of {group.size}, has "
            f"waited {group.limit_ns / 1e9:g} s for its workers; busy are "
            f"{', '.join(busy) or 'none'}. It starts when enough of them have ended; a larger "
            "pool lets it start earlier"
        )


# ---------------------------------------------------------------- the end of a run
def drain(session: Session, failures: Failures = ()) -> None:
    """End every scope and wait until every task is reclaimed; a failure cancels what can be."""
    mem, kernels = session.engine.mem, session.engine.kernels
    kernels.finish_run(mem, bool(failures))
    while kernels.help_scheduler(mem, 0, -1, -1, L.NONE, PARK_NS) != L.OK:
        session.look(failures)


def end_early(session: Session, failures: Failures) -> Failures:
    """End a run that has failed; return all of its failures.

    The first one cancels, each further one kills the busy workers.
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


# ---------------------------------------------------------------- errors
def read_failure(session: Session) -> TaskError:
    """Return the exception for the first failure of a run, with the story of its task."""
    failed = session.engine.view.first_failure()
    error = _describe_failure(session, failed)
    tell(error, _story_of_failure(session, failed))
    return error


def _describe_failure(session: Session, failed: FirstFailure) -> TaskError:
    manager, level = session.manager, session.options.level
    task, worker = failed.task, failed.worker
    name = session.registry.name(failed.callable)
    details: dict[str, Any] = {"task": task, "callable_name": name}
    if worker < 0 or (manager is None and failed.outcome == L.ENDPOINT_FAILURE):
        first = session.engine.view.pool(failed.pool).start
        return WorkerLostError(
            f"level {level} {session.kinds[first].label}: task {task} ({name}) cannot run: the workers "
            "it needs have died; the next run starts new ones",
            **details,
        )
    details |= {"worker": worker, "pid": manager.pids.get(worker) if manager else None}
    what = f"task {task} ({name})" + (f", member {failed.member}" if failed.member >= 0 else "")
    where = f"level {level} {session.worker_name(worker)}, {what}"
    if failed.outcome == L.ENDPOINT_FAILURE:
        before, kind = "", session.kinds[worker]
        if last := MailboxView(session.engine, worker).ran_last():  # which may be the cause
            name = session.callable_name(last[1])
            before = f"; before that it had run task {last[0]} ({name})"
        said = kind.last_words()
        return describe_lost(where, failed.exit_code, details, before, kind.successor, said)
    message, trace = read_error(failed.message, failed.trace)
    return TaskError(f"{where}: {message}", remote_traceback=trace, **details)


def describe_lost(
    where: str,
    code: int | None,
    details: dict[str, Any],
    before: str = "",
    after: str = "the next run starts a new one",
    said: str = "",
) -> WorkerLostError:
    """Return the error for a worker that has died or, without a code, does not answer."""
    if code is None:
        return WorkerLostError(f"{where}: the worker has not answered a control request", **details)
    ended = f"was {describe_status(code)}" if code < 0 else describe_status(code)
    what = f"the worker {ended} before the task was done"
    if said:
        what = f"lost before the task was done: {said}"
    return WorkerLostError(f"{where}: {what}{before}; {after}", status=code, **details)


# ---------------------------------------------------------------- stories
def _story_of_failure(session: Session, failed: FirstFailure) -> str:
    def called(task: int, index: int | None) -> str:
        return f"task {task} ({'buffer' if index is None else session.registry.name(index)})"

    state = f"{called(failed.task, failed.callable)} was {failed.story.state.name}"
    if failed.worker >= 0:
        state = f"{state} on {session.worker_name(failed.worker)}"
    place = session.orch._place_of(failed.task)
    return _story(session, state, failed.story, called, "task", place)


def story_of_call(
    session: Session, error: BaseException, slot: int | None = None, place: str = ""
) -> str:
    """Return the story of a call that has failed by itself; `place` is its line, if that is known.

    Without a slot it is the one in which an item of `map` has failed, and others have not.
    """
    origin = origin_of(error)
    ran = "never began"
    if origin.worker is not None:
        ran = f"was RUNNING on {session.worker_name(origin.worker)}"
    head = f"call {origin.task} ({origin.callable_name}) {ran}"
    found = None if slot is None else call_story(session.engine.mem, slot)
    return _story(session, head, found, lambda task, _index: f"call {task}", "call", place)


def _story(
    session: Session,
    head: str,
    found: Story | None,
    called: Callable[[int, int | None], str],
    noun: str,
    place: str,
) -> str:
    lines = [head]
    if found is not None:
        before, after = (
            listed([called(*one) for one in first], number)
            for number, first in (found.needed, found.needing)
        )
        lines += [
            f"it had waited for {before}" if before else f"it waited for no {noun}",
            f"waiting for it: {after}" if after else f"no {noun} waits for it",
        ]
    if place:
        lines.append(f"submitted at {place}")
    if (path := session.recorder.path) is not None:
        lines.append(f"the trace in {path} says when it did what")
    return "\n".join(f"  {line}" for line in lines)
