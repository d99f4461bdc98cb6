"""The life of a Worker: before init, open, closed; its workers, and the one thing it does at a time.

Who holds whom::

    Worker ── Life ─┬─ Settings, Registry     what it was made with; what is registered
                    ├─ kinds                  its workers before they are made; some have a Worker
                    ├─ stream                 its calls, once there is one
                    └─ Session ─┬─ engine, arena         the memory
                                ├─ manager, scheduler    the workers at work, and who schedules
                                ├─ recorder, below       traces
                                ├─ chips, domains        they may have to start workers
                                └─ orch ─ Session        what orchestration functions get

The Life is there as long as the Worker, and says what may be done at the moment. The Session is there
while the Worker is open, has what must be closed, and is closed without the Worker, which may be gone by
then.

Rule     CALL-ARRAY-5, CALL-STREAM-4, CALL-STREAM-5, CALL-STREAM-8, CALL-CANCEL-5, ORCH-RUN-2,
         ORCH-RUN-9, ORCH-MISUSE-8, SEE-FILE-4, SEE-ON-1, SEE-ON-4, SPEED-REPLAY-1, FLOW-REG-5,
         FLOW-REG-7, FLOW-REG-10, WM-POOL-2, WM-POOL-5
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ..callables.identity import TargetNamespace
from ..callables.registry import Registry
from ..callables.runnable import require_runnable
from ..engine.introspection import waiting_tasks
from ..engine.memory import PARK_NS, Engine
from ..engine.shared_arrays import ARENA_ALIGN, Arena
from ..errors import CallableTypeError, NoPythonWorkerError
from ..jit import layout as L
from ..model import visibility
from ..system.cores import NO_CORE, Placement
from ..system.regions import PAGE
from ..system.signals import MOST_SIGNALS, Failures, until_done
from ..system.values import file_path
from ..trace.recorder import file_of_variable
from . import top
from .kinds import CustomWorker, NestedWorker, SubWorker, WorkerKind
from .manager import ChipMemory, WorkerManager
from .options import MOST_WORKERS, Settings, trace_detail
from .processes import StartMethod
from .session import RemoteWorkers, Session, recover

T = TypeVar("T")
IN_TASK = (
    "a task cannot wait for the tasks of its Worker, nor run or close it: make calls, which run in the "
    "task's place, or return what is to be done next, and submit it in the program"
)
IS_CLOSED = "this Worker is closed; make a new one"
NO_WAIT = 3
"""How many signals it takes until `Life.close` waits for no more calls."""
_OF_THIS_PROCESS = frozenset(
    ("lock", "turnstile", "_in_run", "session", "stream", "entered", "_method", "_finalizer")
)


class Life:
    """What is true of a Worker at this moment, and what may be done with it then.

    A parent takes care of its child Workers: it starts them in the worker that runs each, which is
    another process unless its workers are threads. Who changes what it has takes its `lock`; runs, and
    the first of the calls after one, begin in the order in which they get its `turnstile`.
    """

    def __init__(
        self,
        options: Settings,
        initializer: Callable[[], None] | None = None,
        chips: Iterable[WorkerKind] = (),
    ) -> None:
        self.options = options
        self.registry = Registry()
        self.next_level = list(chips)
        self.subs: list[WorkerKind] = [
            SubWorker(initializer, options.check) for _ in range(options.num_sub_workers)
        ]
        self._begin()
        self.closed = False  # for good, unless a parent opens it again
        self.running = False  # a run or a recording
        self.endpoints = RemoteWorkers()
        self.traced_by: Any = None
        """A weak reference to the `Tracing` in whose block a trace is taken."""
        self.streaming = False  # the stream is open: calls may be alive
        self.needs_start = True  # the next run starts all workers
        self.parent_level = 0  # of the Worker it is a child of
        self.placement: Placement | None = None  # the cores that a parent has given to it
        self.workers_before: int | None = None
        """Of a session on its parent's machine: how many workers of other endpoints get a core before."""
        self._away_from = 0

    def _begin(self) -> None:
        """Make what only this process has."""
        self._make_locks()
        self.session: Session | None = None
        self.stream: Any = None  # until there is a call
        self.entered: weakref.ref[Any] | None = None
        """The Worker, in whose with block the program is."""
        self._new_method()
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def _make_locks(self) -> None:
        self.lock, self.turnstile = threading.RLock(), threading.RLock()
        self._in_run = threading.RLock()
        """The thread of a run has it."""
        self._runner = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a child makes again in a fresh interpreter."""
        return {name: it for name, it in vars(self).items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    # ------------------------------------------------------------ its workers, before they are made
    @property
    def kinds(self) -> Sequence[WorkerKind]:
        return (*self.next_level, *self.subs)

    def add_custom(self, worker: Any, *, is_sub: bool = False) -> None:
        self.require_before_init("adding a worker")
        if self.options.level == 2:
            raise RuntimeError("a level 2 Worker is one chip: nothing can be added to it")
        label = "sub_worker" if is_sub else "next_level_worker"
        kind = worker if isinstance(worker, WorkerKind) else CustomWorker(worker, label)
        for method in ("start", "run", "stop"):
            require_runnable(f"{label}.{method}", getattr(worker, method, None))
        if is_sub and kind.target_namespace != TargetNamespace.LOCAL_PYTHON:
            raise ValueError("sub workers take Python callables")
        self.add(kind, self.subs if is_sub else self.next_level)

    def add(self, kind: WorkerKind, pool: list[WorkerKind]) -> int:
        """Add a worker to a pool of its kind, and return its number there; endpoints come last."""
        if pool and not kind.comes_last:
            if pool[-1].comes_last:
                raise RuntimeError("add the workers of this machine before the endpoints")
            if pool[0].target_namespace != kind.target_namespace:
                raise ValueError(
                    f"all workers of a pool take the same kind of callables: {pool[0].label}s and "
                    f"{kind.label}s cannot be mixed"
                )
        if len(pool) >= MOST_WORKERS:
            raise ValueError(f"a pool has at most {MOST_WORKERS} workers")
        pool.append(kind)
        return len(pool) - 1

    def nested(self) -> Iterator[Life]:
        for kind in self.next_level:
            if isinstance(kind, NestedWorker):
                yield kind.inner._life

    def _all_kinds(self) -> list[WorkerKind]:
        """Return its workers, and those of all Workers below it."""
        return [*self.kinds, *(kind for inner in self.nested() for kind in inner._all_kinds())]

    def _threads(self) -> int:
        return sum(not kind.is_vacant for kind in self._all_kinds())

    def _place(self) -> Placement:
        """Look at the cores, unless the parent has, and give ranks to all workers of the tree.

        Nested Workers assign the ranks after their own.
        """
        if self.placement is None:
            self.placement = Placement.find(
                1 + self._threads(),
                pin=self.options.pin,
                spin_us=self.options.spin_us,
                before=self.workers_before,
                is_remote=any(kind.comes_last for kind in self._all_kinds()),
            )
        first, ranks = self.placement.first, []
        for kind in self.kinds:
            ranks.append(first if kind.has_core else NO_CORE)
            first += kind.has_core
            if isinstance(kind, NestedWorker):
                kind.inner._life.placement = replace(self.placement, first=first)
                first += kind.inner._life._threads()
        return replace(self.placement, ranks=tuple(ranks))

    def require_taker(self, chip: bool) -> None:
        """Refuse Python callables that no worker takes, once all workers are there."""
        if chip:
            return
        if self.options.level == 2:
            raise CallableTypeError(
                "CALLABLE_KIND_UNSUPPORTED",
                "level 2 only supports ChipCallable; register Python functions on level 3",
            )
        takes = {kind.target_namespace for kind in self.kinds}
        started = self.session is not None and self.session.scheduler is not None
        if started and TargetNamespace.LOCAL_PYTHON not in takes:
            raise NoPythonWorkerError(
                "CALLABLE_KIND_UNSUPPORTED",
                "this Worker has no Python-capable child to run a Python callable, and gets none: give "
                "Worker(num_sub_workers=…) at least 1",
            )

    # ------------------------------------------------------------ what it allows
    def live(self) -> Session:
        session = self.session
        if session is None or self.closed:
            session = self._open_on_demand()
        if session.pid != os.getpid():
            session.require_own_process()
        return session

    def _open_on_demand(self) -> Session:
        """Open a Worker that is used in a with block for the first time."""
        with self.lock:
            mine = not self.closed and not self.parent_level
            worker = None if self.entered is None else self.entered()
            if self.session is None and worker is not None and mine:
                worker._open()
            if self.session is None or self.closed:
                raise RuntimeError(self._why_not_open())
            return self.session

    def _why_not_open(self) -> str:
        if self.parent_level:
            return (
                f"this Worker is a child of a level {self.parent_level} Worker, which starts and "
                "closes it: use that one"
            )
        if self.closed:
            return IS_CLOSED
        return "this Worker is not initialized: call init() first, or use it in a with block"

    def require_not_closed(self) -> None:
        if self.closed:
            raise RuntimeError(IS_CLOSED)

    def require_before_init(self, what: str) -> None:
        self.require_not_closed()
        if self.session is not None:
            raise RuntimeError(f"{what} must come before init")

    def require_here(self, what: str) -> None:
        """Refuse what would not reach the process that runs this Worker."""
        if self._away_from == os.getpid():
            raise RuntimeError(
                f"{what}: this Worker runs as a child, in a process of its own; register with it "
                "before its parent is started"
            )

    def alone(self, act: Callable[[Session], T]) -> T:
        """Do something during which no run may begin."""
        mine = False
        self.refuse_in_task()
        try:
            while not mine:
                self._refuse_in_run()
                with self.turnstile:
                    self.finish_stream()
                    with self.lock:
                        session = self.live()
                        self._refuse_in_run()
                        if not self.streaming:  # no other thread has made a call meanwhile
                            self._runner = threading.get_ident()
                            session.pushed_before = session.engine.view.pushed
                            self.running = mine = True
            with self._in_run:
                try:
                    return act(session)
                finally:
                    self.running = False
        finally:
            if mine:
                self.running = False

    def _refuse_in_run(self) -> None:
        if self.running:
            raise RuntimeError(
                "a run is in progress on this Worker: runs cannot be nested, and one Worker serves one "
                "run at a time"
            )

    def refuse_in_task(self) -> None:
        """Refuse what would wait for the task that asks for it: its thread is one of the workers."""
        manager = None if self.session is None else self.session.manager
        if manager is not None and manager.is_my_thread():
            raise RuntimeError(IN_TASK)

    def is_in_own_run(self) -> bool:
        return self.running and self._runner == threading.get_ident()

    def refuse_in_own_run(self) -> None:
        self.refuse_in_task()
        if self.is_in_own_run():
            raise RuntimeError(
                "a run is in progress on this Worker: calls of tasks are for before and after it; in an "
                "orchestration function, submit with orch.submit_sub"
            )

    def let_run_end(self) -> None:
        """Wait for the end of another thread's run.

        A signal that comes just before a sleep begins does not end it, so none is long.
        """
        while self.running:
            try:
                self._in_run.acquire(timeout=PARK_NS / 1e9)
            finally:
                try:  # noqa: SIM105 (a signal could be handled on the way into a function of Python)
                    self._in_run.release()
                except RuntimeError:  # the run goes on
                    pass

    def finish_stream(self) -> None:
        if (stream := self.stream) is not None:
            stream.finish()

    # ------------------------------------------------------------ open and closed
    def open(self) -> Session:
        """Map the memory, and return it with all that the Worker will own."""
        self.require_not_closed()
        if self.session is not None:
            raise RuntimeError("this Worker is already initialized")
        options = self.options
        options.require_chips_of_level()
        self.endpoints.reserve()
        engine = Engine(
            heap_ring_size=options.heap_ring_size,
            ring_depth=options.ring_depth,
            task_window=options.task_window,
            next_level=len(self.next_level),
            sub=len(self.subs),
            endpoints=sum(kind.comes_last for kind in self.next_level),  # or places for them
            depth=options.mailbox_depth,
            blocks_size=options.values_size if self.takes_calls else 0,
            track_reads=options.track_reads,
            placement=self._place(),
        )
        arena = Arena(options.arena_size, PAGE if options.check else ARENA_ALIGN)
        arena.on_reuse = self._forget_memory
        own = self.registry, options, self._method, self.endpoints
        session = Session(engine, arena, self.next_level, self.subs, *own)
        check = None if session.in_threads else self._method.why_invisible
        session.chips = ChipMemory(self.next_level, self.running_manager, check)
        return session

    def _forget_memory(self, low: int, high: int) -> None:
        """Have calls know that what was in some memory is gone, before another array is there."""
        if self.stream is not None:
            self.stream.forget_memory(low, high)

    @property
    def takes_calls(self) -> bool:
        return bool(self.subs) or self.endpoints.sub_workers > 0

    def enter(self, worker: object) -> None:
        """Note that the program is in a with block, where it may refer to what workers will see."""
        self.entered = weakref.ref(worker)  # one that is forgotten is closed
        self._own(worker)

    def begin(self, session: Session, worker: object) -> None:
        self._own(worker)
        self.session = session

    def _own(self, worker: object) -> None:
        """Have what there is taken down with the Worker at the latest."""
        if self._finalizer is None:
            self._finalizer = weakref.finalize(worker, self.release)
            visibility.add_visibility(self._method.why_invisible)

    def _new_method(self) -> None:
        options = self.options
        given = "fork" if options.child_mode == "thread" else options.start_method
        # to one chip in the program's process all of that one's memory will do
        in_process = options.level == 2 and options.child_mode == "thread"
        self._method = StartMethod(given, in_process)

    def close(self, cancel: bool = False) -> None:
        """Stop everything for good when all calls have ended; `cancel` those that have not begun.

        Each signal makes it wait for less. What other threads have begun may finish; once the Worker is
        `closed` they begin nothing more: `live` refuses them.
        """
        self.refuse_in_task()
        failures = until_done(
            lambda so_far: self._close(cancel + len(so_far)), (), os.getpid(), MOST_SIGNALS
        )
        if not self.closed:
            raise RuntimeError("close during a run: let the run end first")
        if failures:
            raise failures[-1]

    def _close(self, urgency: int) -> None:
        if (stream := self.stream) is not None and not self.running:
            stream.end(urgency)
        with self.lock, self.registry.lock:
            self.closed = self.closed or not self.running
        if self.closed:
            if urgency < NO_WAIT:
                self.finish_stream()  # of calls that others have made since
            self.release()

    def close_as_child(self) -> None:
        """Stop everything; the parent may start this Worker again."""
        with self.lock:
            self.release()
            self.needs_start = True

    def release(self) -> None:
        """Take down what the Worker owns; should this be cut short, it can be done again."""
        top.leave(self)
        with self.lock:
            if self.stream is not None:
                self.stream.close()
                self.stream = None
            visibility.remove_visibility(self._method.why_invisible)
            if self.session is not None:
                self.session.close()
                self.session = None
            self._new_method()
            if self._finalizer is not None:
                self._finalizer.detach()
                self._finalizer = None

    # ------------------------------------------------------------ workers
    def start(self) -> None:
        """Start the workers outside of a run, after what the last one may have left behind."""
        with self.lock:
            if self.running:
                raise RuntimeError("start during a run: the run has started the workers itself")
            session = self.live()
            if not self.streaming:  # calls have theirs replaced
                self.prepare(session)

    def prepare(self, session: Session) -> None:
        """Finish what the last run may have left behind, and have all workers at work."""
        recover(session)
        if self.needs_start or (session.manager is not None and not session.manager.is_whole):
            self.start_workers(session)

    def start_workers(
        self, session: Session, dead: Sequence[int] | None = None, beside: bool = False
    ) -> None:
        """Start the workers that are missing: at first all, later those lost, or some of these.

        `beside`: it waits for none that may take long if another one lives.
        """
        with self.lock:  # they are not started beside `release`, or after it
            if session is not self.session:
                raise RuntimeError(self._why_not_open())
            manager = session.manager
            anew = self.needs_start or (manager is not None and manager.lost)
            if manager is not None and manager.silent:
                manager.welcome_back()
            if not anew and (
                manager is None or not (manager.starting or (manager.dead and manager.known_dead()))
            ):
                return
            try:
                with self.registry.lock:  # a registration finds all workers made, or none
                    # should this be cut short, the next run does it all again
                    self.needs_start = True
                    if anew:
                        in_processes = self.options.child_mode == "process"
                        for kind in self._all_kinds():
                            if in_processes and isinstance(kind, NestedWorker):
                                kind.inner._life._away_from = os.getpid()
                        session.start_anew()
                        top.listen(self)
                    else:
                        session.replace_dead(dead, beside)
                    self.needs_start = False
            except BaseException:
                self.end_workers(session)
                raise

    @property
    def installer(self) -> WorkerManager | None:
        return None if self.session is None or self.needs_start else self.session.manager

    def end_workers(self, session: Session) -> None:
        with self.lock:
            self.needs_start = True
            session.stop_workers()

    def running_manager(self) -> WorkerManager:
        """Return the manager of the workers, starting them if necessary."""
        session = self.live()
        with self.lock:
            if not self.running:
                self.start()
        with self.registry.lock:  # a run that is just starting has made all workers, or none
            manager = session.manager
        if manager is None:
            raise RuntimeError("the workers are not running: their start has failed")
        return manager

    def disown(self) -> None:
        """Leave everything to the process that this one was forked from."""
        self._make_locks()
        self.registry.lock = threading.RLock()
        self.running = self.streaming = False
        self.entered = None
        if self._finalizer is not None:  # the check that belongs to it is forgotten, see `_own`
            self._finalizer.detach()
            self._finalizer = None
        if self.stream is not None:
            self.stream.disown()
            self.stream = None
        orch = None if self.session is None else vars(self.session).get("orch")
        if orch is not None:  # the other process was not just closing it
            orch._close()

    # ------------------------------------------------------------ traces
    def trace_target(self) -> tuple[str, str] | None:
        """Return the file into which it is traced when it is opened, and how; None: it is not."""
        if self.parent_level:
            return None  # its parent has it traced, once it has started
        name = self.options.trace or file_of_variable()
        return None if name is None else (name, self.options.trace_detail)

    def begin_trace(self, session: Session, path: str, detail: str) -> None:
        """Begin a trace, while no run is in progress; the Workers below have files beside it."""
        whole = os.path.abspath(path)
        session.recorder.begin(whole, detail)
        session.child_traces.open(whole, detail)
        session.orch._take_entries()
        if session.manager is not None:
            session.child_traces.begin(session.manager)

    def end_trace(self, session: Session) -> None:
        if session.manager is not None:
            session.child_traces.end(session.manager)
        session.recorder.end()
        session.orch._take_entries()

    # ------------------------------------------------------------ what it does, for people
    def look(self) -> top.Top | None:
        session = self.session
        if session is None or session.pid != os.getpid():
            return None
        return session.top(self.running, self.streaming)

    def report(self) -> str:
        """Return a table of what it does, and what the oldest tasks wait for; "" if it is closed."""
        now, session = self.look(), self.session
        if now is None or session is None:
            return ""
        return "\n  ".join([str(now), *waiting_tasks(session.engine, session)])


# ---------------------------------------------------------------- tasks that use memory
OTHERS_S = 0.001
"""How long a thread sleeps that is not the one whose run it waits for."""


class MemoryUsers:
    """The tasks that may use memory which the program has dropped; see `engine.shared_arrays.InUse`."""

    def __init__(self, life: Life, engine: Engine) -> None:
        self._life, self._view = life, engine.view
        self._help, self._mem = engine.kernels.help_scheduler, engine.mem
        self.patience_s = life.options.alloc_timeout_s

    @property
    def submitted(self) -> int:
        return self._view.ever_submitted

    def unended(self) -> Sequence[int] | None:
        """Return the numbers of those that have not ended; None if all count until the end of the run.

        What other machines have made of the program's memory comes home at the end of a run.
        """
        if self._life.running and self._life.endpoints.are_there:
            return None
        return self._view.unended()

    def wait(self) -> bool:
        """Wait a while until a task has ended; return False if that is of no use."""
        life, unended = self._life, self.unended()
        if unended is None or not len(unended):
            return False
        ended = self._view.ended
        if not life.running:
            if life.stream is None:
                return False
            life.stream.wait_for_end(ended, PARK_NS)
        elif life.is_in_own_run():
            answer = self._help(self._mem, -1, ended + 1, -1, L.NONE, PARK_NS)
            if answer in (L.TIMED_OUT, L.INTERRUPTED):
                life.live().look()
        else:
            time.sleep(OTHERS_S)
        return True


class Tracing:
    """What ``Worker.trace`` returns: a trace is taken in its with block, into `path`."""

    def __init__(self, life: Life, path: Any, detail: str) -> None:
        self._life = life
        self.path = os.path.abspath(file_path("file", path))
        self._detail = trace_detail("detail", detail)

    def __enter__(self) -> Tracing:
        self._life.live()
        try:
            self._life.alone(self._begin)
            return self
        except BaseException:  # of a signal: what has begun ends
            self.__exit__(None, None, None)
            raise

    def __exit__(self, *_: object) -> None:
        failures = until_done(self._end, (), os.getpid(), most=MOST_SIGNALS)
        if failures:
            raise failures[-1]

    def _begin(self, session: Session) -> None:
        life, recorder = self._life, session.recorder
        if recorder.is_on and life.traced_by is not None and life.traced_by() is None:
            life.end_trace(session)  # of a block that a signal has kept from its end
        if recorder.is_on:
            raise RuntimeError(f"this Worker is being traced already, into {recorder.path}")
        life.prepare(session)
        life.traced_by = weakref.ref(self)
        life.begin_trace(session, self.path, self._detail)
        recorder.start()

    def _end(self, _failures: Failures) -> None:
        """End the trace, unless that was done, or the Worker is closed, which has ended it."""
        life = self._life
        is_mine = life.traced_by is not None and life.traced_by() is self
        if is_mine and life.session is not None and not life.closed:
            life.alone(life.end_trace)
            life.traced_by = None
