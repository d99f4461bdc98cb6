"""Worker: what a user holds. It owns an engine, the processes behind it, and the callables they know."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from .callables.handles import CallableHandle
from .callables.leaves import Leaf
from .callables.registry import Registry, is_chip_callable, require_payload
from .callables.runnable import require_runnable
from .engine.memory import Engine
from .engine.shared_arrays import Arena
from .errors import CallableError, TaskError
from .jit import layout as L
from .model import visibility
from .model.arguments import TaskArgs
from .model.config import CallConfig
from .orch import runs
from .orch.configs import Configs
from .orch.orchestrator import Orchestrator
from .orch.recording import Graph, record
from .orch.runs import OrchFunction, RunTiming
from .system.cores import Placement, Seat
from .system.types import Array
from .workers import hygiene
from .workers.chip_memory import ChipMemory
from .workers.failures import read_failure
from .workers.manager import WorkerManager
from .workers.options import Options
from .workers.session import Session
from .workers.tree import Tree

DEFAULT_ARENA_SIZE = 1 << 32
DEFAULT_START_TIMEOUT_S = 30.0
DEFAULT_CONTROL_TIMEOUT_S = 30.0

T = TypeVar("T")


class Worker:
    """A task engine with a pool of workers below it.

    Parameters
    ----------
    level : int
        2: one chip. 3: chips and sub workers. 4 and more: Workers and sub workers.
    num_sub_workers : int
        Workers that call Python functions.
    heap_ring_size : int
        Bytes of each heap ring; pages take memory only when touched.
    alloc_timeout_s : float
        How long submit and alloc wait for room without progress.
    ring_depth : int
        Number of rings, 1 … 4. A task uses the ring of its scope depth, the last one if deeper.
    task_window : int | None
        How many tasks may be alive at once; None: 2 097 152. With ``ring_depth=1``, how far the ids of
        a run may be ahead of the oldest live task.
    arena_size : int
        Bytes for `empty` and `share`; pages take memory only when touched.
    start_timeout_s : float
        How long a worker may take to report that it is ready.
    child_mode : str
        ``"process"``: every worker is a process. ``"thread"``: every worker is a thread of this one.
    start_method : str | None
        How worker processes come into being. ``"fork"``: they inherit this process. ``"spawn"``: they
        are made by a fresh interpreter, which has the Worker's memory at the same addresses and what
        was registered, and inherits nothing else. None: spawn where a library in this process has
        threads that a fork would leave behind (OpenMP), fork otherwise. A child Worker has its own.
    device_id : int | None
        Level 2: the chip; 0 if it is not given.
    device_ids : Sequence[int]
        Level 3: the chips, a worker each.
    platform : str
        What chip callables are built for; part of their identity.
    runtime : str | os.PathLike[str] | None
        Path of the chips' ``runtime.so``; None: the simulated chip.
    py_control_timeout_s : float
        How long a worker may take to carry out a control request, its running task included.
    mailbox_depth : int
        How many tasks a worker may be given at once, 1 … 64. With 2 or more it finds its next task
        waiting when it has ended one; what is given is not taken back, should another become idle.
    pin : bool
        Whether each worker is pinned to a core of its own, as long as there are enough; those for
        which there is none may run on any. For the whole tree, nested Workers included.
    spin_us : float | None
        How long a thread with nothing to do looks for work before it sleeps, µs; None: chosen from
        the cores that are available. For the whole tree, nested Workers included.

    Raises
    ------
    ValueError, TypeError
        A value out of range or of the wrong type; the message names it.
    RuntimeError
        `device_ids` on a level that has none.

    Notes
    -----
    Rule     ORCH-RUN-2; ORCH-MISUSE-11; WM-MODE-1; FLOW-NEST-7; HIER-API-2; HIER-ENGINE-4;
             SPEED-WAIT-11; SPEED-DEPTH-12; WM-START-1
    """

    def __init__(
        self,
        level: int,
        *,
        num_sub_workers: int = 0,
        heap_ring_size: int = L.DEFAULT_HEAP_RING_SIZE,
        alloc_timeout_s: float = L.DEFAULT_ALLOC_TIMEOUT_S,
        ring_depth: int = L.MAX_RING_DEPTH,
        task_window: int | None = None,
        arena_size: int = DEFAULT_ARENA_SIZE,
        start_timeout_s: float = DEFAULT_START_TIMEOUT_S,
        child_mode: str = "process",
        start_method: str | None = None,
        device_id: int | None = None,
        device_ids: Sequence[int] = (),
        platform: str = "sim",
        runtime: str | os.PathLike[str] | None = None,
        py_control_timeout_s: float = DEFAULT_CONTROL_TIMEOUT_S,
        mailbox_depth: int = 1,
        pin: bool = False,
        spin_us: float | None = None,
    ) -> None:
        self._options = options = Options(
            level=level,
            num_sub_workers=num_sub_workers,
            heap_ring_size=heap_ring_size,
            alloc_timeout_s=alloc_timeout_s,
            ring_depth=ring_depth,
            task_window=task_window,
            arena_size=arena_size,
            start_timeout_s=start_timeout_s,
            py_control_timeout_s=py_control_timeout_s,
            mailbox_depth=mailbox_depth,
            pin=pin,
            spin_us=spin_us,
            child_mode=child_mode,
            start_method=start_method,
            platform=str(platform),
            runtime=None if runtime is None else os.fspath(runtime),
            device_id=device_id,
            device_ids=device_ids,
        )
        self.level = options.level
        self.num_sub_workers = options.num_sub_workers
        self.heap_ring_size = options.heap_ring_size
        self.alloc_timeout_s = options.alloc_timeout_s
        self.ring_depth = options.ring_depth
        self.task_window = options.task_window
        self.mailbox_depth = options.mailbox_depth
        self.child_mode = options.child_mode
        self.platform = options.platform
        self.runtime = options.runtime
        self._tree = Tree(options)
        self._parent_level = 0
        self._away_from = 0
        self._placement: Placement | None = None
        self._session: Session | None = None
        self._closed = False
        self._running = False
        self._lock = threading.RLock()
        self._registry = Registry()
        self._chips = ChipMemory(weakref.proxy(self))
        self._needs_start = True
        hygiene.fork_hygiene_once()
        hygiene.disown_after_fork(self)

    # ------------------------------------------------------------ what stands below
    def add_worker(self, worker: Worker) -> None:
        """Make a Worker a next-level child of this one; it starts and ends with it.

        It is started inside its own process (or thread), from what is registered with it by then.

        Raises
        ------
        TypeError
            Not a Worker.
        RuntimeError
            This Worker has a level below 4, or is initialised; `worker` is initialised, or another's
            child already.
        ValueError
            `worker` is not of a lower level.

        Notes
        -----
        Rule     FLOW-NEST-6; SPEED-WAIT-5
        """
        if not isinstance(worker, Worker):
            raise TypeError(f"add_worker expects a Worker, got {type(worker).__name__}")
        if self.level < 4:
            raise RuntimeError(f"add_worker needs level >= 4, this Worker has level {self.level}")
        if not 3 <= worker.level < self.level:
            raise ValueError(
                f"a level {self.level} Worker has children of the levels 3 … {self.level - 1}, not "
                f"{worker.level}"
            )
        with self._lock:
            self._require_before_init("add_worker")
            if worker._options.pin or worker._options.spin_us is not None:
                raise ValueError(
                    "pin and spin_us hold for a whole tree of Workers: give them to the outermost one"
                )
            if worker._session is not None or worker._closed:
                raise RuntimeError(
                    "the Worker given to add_worker must not be initialized or closed"
                )
            if worker._parent_level:
                raise RuntimeError("the Worker given to add_worker is a child already")
            self._tree.add_nested(worker)
            worker._parent_level = self.level

    def add_next_level(self, worker: Any) -> None:
        """Add a worker kind of your own to the next-level pool.

        `worker` has ``run(callable, view, config)``, where `view` is the task's `TaskArgs`, and may
        have ``start()`` and ``stop()``, all called in the process or thread that serves its tasks;
        or it is a `WorkerKind`.

        Raises
        ------
        TypeError
            It has no `run`.
        RuntimeError
            This Worker is initialised, or a level 2 Worker.
        ValueError
            The pool has workers that take another kind of callables.

        Notes
        -----
        Rule     WM-POOL-1; WM-KIND-3
        """
        with self._lock:
            self._require_before_init("adding a worker")
            self._tree.add_next_level(worker)

    def add_sub(self, worker: Any) -> None:
        """Add a worker kind of your own to the sub pool; see `add_next_level`."""
        with self._lock:
            self._require_before_init("adding a worker")
            self._tree.add_sub(worker)

    def _require_before_init(self, what: str) -> None:
        """Refuse what must come before `init`.

        Rule     WM-POOL-2
        """
        if self._closed:
            raise RuntimeError("this Worker is closed; make a new one")
        if self._session is not None:
            raise RuntimeError(f"{what} must come before init")

    def _start_as_child(self) -> None:
        """Start inside the parent's worker that runs this Worker; again after `close`, if need be.

        Rule     FLOW-NEST-2
        """
        if self._session is None:
            self._closed = False
            self._initialise()
        self.start()

    def _send_away(self) -> None:
        """Note that this Worker, and those below it, will run in another process than this one."""
        self._away_from = os.getpid()
        for inner in self._tree.nested():
            inner._send_away()

    def _require_here(self, what: str) -> None:
        """Refuse what would not reach the process that runs this Worker.

        Rule     FLOW-REG-7
        """
        if self._away_from == os.getpid():
            raise RuntimeError(
                f"{what}: this Worker runs as a child, in a process of its own; register with it "
                "before its parent is started"
            )

    def _stop_as_child(self) -> None:
        """Undo `_start_as_child`: the parent may start this Worker again."""
        with self._lock:
            self._release()
            self._needs_start = True

    # ------------------------------------------------------------ life
    def init(self) -> None:
        """Map the memory. No process is forked yet: what is registered until the first run, or
        until `start`, is known to the workers from their birth.

        Raises
        ------
        RuntimeError
            Already initialised, or closed.
        MemoryError
            The memory cannot be mapped.

        Notes
        -----
        Rule     ORCH-RUN-1; ORCH-MISUSE-9; FLOW-NEST-8
        """
        if self._parent_level:
            raise RuntimeError(
                f"this Worker is a child of a level {self._parent_level} Worker, which starts it"
            )
        self._initialise()

    def _initialise(self) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("this Worker is closed; make a new one")
            if self._session is not None:
                raise RuntimeError("this Worker is already initialized")
            engine = Engine(
                heap_ring_size=self.heap_ring_size,
                ring_depth=self.ring_depth,
                task_window=self.task_window,
                next_level=len(self._tree.next_level),
                sub=len(self._tree.subs),
                depth=self.mailbox_depth,
                placement=self._place(),
            )
            session = Session(
                engine,
                Arena(self._options.arena_size),
                self._tree.next_level,
                self._tree.subs,
                self._registry,
                self._options,
            )
            # a proxy: no cycle, so that a Worker nobody refers to is closed at once
            session.host = weakref.proxy(self)
            session.configs = Configs(engine)
            session.orch = Orchestrator(session.host, engine, session.configs)
            self._finalizer = weakref.finalize(self, session.take_down)
            self._session = session
            visibility.add_visibility(session.why_invisible)

    def _place(self) -> Placement:
        """Look at the cores, unless the parent has, and give out turns to all workers of the tree."""
        if self._placement is None:
            threads = 1 + self._tree.threads()
            self._placement = Placement.find(
                threads, pin=self._options.pin, spin_us=self._options.spin_us
            )
        return self._tree.place(self._placement)

    def start(self) -> None:
        """Fork the workers now instead of at the first run; a second call does nothing.

        Raises
        ------
        WorkerStartError
            A worker ended or did not report in time.
        RuntimeError
            Not initialised, or closed; during a run.

        Notes
        -----
        Rule     ORCH-RUN-1
        """
        with self._lock:
            if self._running:
                raise RuntimeError("start during a run: the run has started the workers itself")
            session = self._live()
            runs.recover(session)
            self._start(session)

    def close(self) -> None:
        """Stop the workers and give the memory back. Again and again is fine.

        Arrays from `empty` and `share` stay valid for as long as they are referred to.

        Raises
        ------
        RuntimeError
            During a run.

        Notes
        -----
        Rule     ORCH-RUN-9; WM-STOP-1
        """
        with self._lock:
            if self._running:
                raise RuntimeError("close during a run: let the run end first")
            self._closed = True
            self._release()

    def _release(self) -> None:
        if self._session is not None:
            self._session.take_down()  # should this be cut short, it can be done again
            self._finalizer.detach()
            self._session = None

    def __enter__(self) -> Worker:
        self.init()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _live(self) -> Session:
        session = self._session
        if session is None and self._parent_level:
            raise RuntimeError(
                f"this Worker is a child of a level {self._parent_level} Worker, which starts and "
                "closes it: use that one"
            )
        if session is None:
            raise RuntimeError(
                "this Worker is closed; make a new one"
                if self._closed
                else "this Worker is not initialized: call init() first, or use it in a with block"
            )
        if session.pid != os.getpid():
            session.require_own_process()
        return session

    def _start(self, session: Session) -> None:
        manager = session.manager
        anew = self._needs_start or (manager is not None and manager.lost)
        if manager is not None and manager.silent:
            manager.welcome_back()
        if not anew and (manager is None or not manager.dead):
            return
        try:
            with self._registry.lock:  # a registration finds all workers made, or none
                self._needs_start = True  # should this be cut short, the next run does it all again
                if anew:
                    if self.child_mode == "process":
                        for inner in self._tree.nested():
                            inner._send_away()
                    session.start_anew()
                else:
                    session.replace_dead()
                self._needs_start = False
        except BaseException:
            self._needs_start = True
            session.stop_workers()
            raise

    def _disown(self) -> None:
        """Leave the Worker to the process that this one was forked from."""
        self._lock = threading.RLock()
        self._registry.lock = threading.RLock()
        self._running = False
        if self._session is not None:
            self._session.orch._close()

    # ------------------------------------------------------------ memory
    def empty(
        self, shape: int | Sequence[int], dtype: Any = np.float32, *, populate: bool = False
    ) -> Array:
        """Return an uninitialised numpy array that all workers share, also after the start.

        Parameters
        ----------
        shape : int | Sequence[int]
            Elements, per dimension.
        dtype : Any
            What numpy takes for a dtype, but for Python objects.
        populate : bool
            Make the memory now, not page by page as it is touched; workers that are started later map
            it before their first task.

        Raises
        ------
        MemoryError
            The arena is full; or, with `populate`, the system has not so much memory.

        Notes
        -----
        Rule     SPEED-WAIT-9, -12
        """
        return self._live().arena.empty(shape, dtype, populate)

    def share(self, array: Any) -> Array:
        """Return a contiguous copy of an array in memory that all workers share.

        Rule     FLOW-NEST-4
        """
        source = np.asarray(array)
        shared = self.empty(source.shape, source.dtype)
        shared[...] = source
        return shared

    # ------------------------------------------------------------ callables
    def register(self, target: Any) -> CallableHandle:
        """Make a callable known to the workers and return its handle.

        A Python callable (function, lambda, closure, bound method, object with ``__call__``) goes to
        sub workers, which call it with the task's arguments, or without any if it takes none; and to
        nested Workers, for which it is an orchestration function. A `ChipCallable` goes to the chips.

        Before the start it costs nothing: the workers are made from what is registered. Afterwards,
        also during a run and from any thread, every live worker that takes such callables installs a
        copy before this returns, between two tasks; if one cannot, all forget it. Registering the same
        callable twice gives two handles over one installation.

        Raises
        ------
        TypeError
            `target` is not callable, or a call would not run it, such as of a generator or coroutine
            function; or it cannot be serialised and the workers run already.
        CallableError
            CALLABLE_KIND_UNSUPPORTED: no worker takes such callables; or see `Registry.add`.
        LocalSlotExhaustedError
            4096 callables are registered.
        RuntimeError
            Closed; or this Worker is running as another's child.

        Notes
        -----
        Rule     FLOW-REG-1 to -3
        """
        chip = is_chip_callable(target)
        if not chip and not callable(target):
            raise TypeError(
                f"register expects a callable, got {type(target).__name__}; pass the function itself, "
                "for a chip ChipCallable.from_kernel(kernel)"
            )
        if not chip:
            require_runnable("register", target)
        if self._closed:
            raise RuntimeError("this Worker is closed; make a new one")
        self._require_here("register")
        self._tree.require_taker(chip)
        if isinstance(target, Leaf):
            target.compile()  # before the workers are forked, if its types are known
        handle, target, payload = self._registry.describe(
            target, chip, self.platform, self.runtime or "reference"
        )
        if self._options.start_method == "spawn":
            require_payload(handle.name, target, payload)
        session = self._session
        if session is not None:
            self._live()
        with self._registry.lock:
            started = session is not None and not self._needs_start
            self._registry.add(
                handle,
                target,
                payload,
                session.engine if session is not None else None,
                session.installer if started and session is not None else None,
            )
        return handle

    def unregister(self, handle: CallableHandle) -> None:
        """Give a handle back; its callable goes with its last handle, after the run if one is on.

        Raises
        ------
        TypeError, KeyError
            No handle; a foreign one; one that is not live.
        CallableError, ControlTimeoutError
            See `Registry.discard`.
        RuntimeError
            Closed; or this Worker is running as another's child.

        Notes
        -----
        Rule     FLOW-UNREG-1
        """
        if self._closed:
            raise RuntimeError("this Worker is closed; make a new one")
        if not isinstance(handle, CallableHandle):
            raise TypeError("unregister expects a CallableHandle returned by Worker.register")
        self._require_here("unregister")
        session = self._session
        with self._registry.lock:
            started = session is not None and not self._needs_start
            installer = session.installer if started and session is not None else None
            self._registry.discard(handle, installer, self._running)

    def _words(self) -> tuple[dict[CallableHandle, int], dict[CallableHandle, int]]:
        """Return the tables of live handles that each pool takes: next level, sub."""
        return self._tree.words(self._registry)

    def _explain_handle(self, handle: CallableHandle, pool: int) -> Exception:
        """Say why a pool does not take a handle."""
        return self._tree.explain(self._registry, handle, pool)

    # ------------------------------------------------------------ memory of chips
    def malloc(self, size: int, worker_id: int = 0) -> int:
        """Allocate `size` bytes of a chip's memory and return their address there.

        Pass it to tasks as ``ContinuousTensor.make(address, shape, dtype, child_memory=True)``.

        Raises
        ------
        IndexError
            There is no such next-level worker.
        ControlError
            It has no memory of its own, or not enough.

        Notes
        -----
        Rule     WM-CHIP-3
        """
        return self._chips.malloc(worker_id, size)

    def free(self, ptr: int, worker_id: int = 0) -> None:
        """Give memory of a chip back; see `malloc`."""
        self._chips.free(worker_id, ptr)

    def copy_to(self, dst: int, src: int, size: int, worker_id: int = 0) -> None:
        """Copy `size` bytes from host address `src` to address `dst` of a chip.

        Raises
        ------
        ValueError
            The host memory is not shared with the chip's process.
        IndexError, ControlError
            See `malloc`.
        """
        self._chips.copy_to(worker_id, dst, src, size)

    def copy_from(self, dst: int, src: int, size: int, worker_id: int = 0) -> None:
        """Copy `size` bytes from address `src` of a chip to host address `dst`; see `copy_to`."""
        self._chips.copy_from(worker_id, dst, src, size)

    def _running_manager(self, session: Session) -> WorkerManager:
        """Return who manages the workers, which are started if they are not."""
        with self._lock:
            if not self._running:
                self.start()
        with self._registry.lock:  # a run that is just starting has made all workers, or none
            manager = session.manager
        if manager is None:
            raise RuntimeError("the workers are not running: their start has failed")
        return manager

    # ------------------------------------------------------------ run
    def run(
        self,
        orch_fn: OrchFunction | CallableHandle,
        args: Any = None,
        config: CallConfig | None = None,
    ) -> RunTiming:
        """Run an orchestration function, and return when every task it submitted is done.

        `orch_fn` is called as ``orch_fn(orch, args, config)`` on this thread. At level 2 it is the
        handle of a ChipCallable instead, and the chip runs it on `args`.

        Raises
        ------
        TaskError
            The first failure of a task of this run; its cause has the worker's traceback.
        Exception
            Whatever `orch_fn` raised: open scopes are ended, tasks that have not started are
            cancelled, running ones finish, then it is passed on.
        RuntimeError
            Not initialised, closed, or a run is in progress.
        TypeError, ValueError
            `orch_fn` is not callable, or a generator or coroutine function; `config` is not valid.

        Notes
        -----
        Rule     ORCH-API-1; ORCH-RUN-3; FAIL-LOUD-1
        """
        start = time.perf_counter_ns()
        function, knobs = self._require_function("run", orch_fn, config)
        return self._alone(lambda session: self._run(session, function, args, knobs, start))

    def record(
        self,
        orch_fn: OrchFunction | CallableHandle,
        args: Any = None,
        config: CallConfig | None = None,
    ) -> Graph:
        """Call an orchestration function without executing anything, and return its tasks as a graph.

        ``graph.run()`` then runs the recorded tasks, with their dependencies, buffers and scopes, as
        often as is wanted, and does not call `orch_fn` again. If `args` are `TaskArgs`,
        ``graph.run(new_args)`` gives the tasks other tensors and scalars in place of those. Everything
        else that `orch_fn` has read or computed is part of the recording.

        Raises
        ------
        RuntimeError
            Not initialised, closed, or a run is in progress; `orch_fn` asked for something that
            cannot be recorded, such as memory of a chip.
        TypeError, ValueError
            See `run`; or tensors of `args` share memory.
        Exception
            Whatever `orch_fn` raised.
        """
        function, knobs = self._require_function("record", orch_fn, config)

        def act(session: Session) -> Graph:
            graph = record(self, session.engine, session.why_invisible, function, args, knobs)
            self._live()  # refuses a process that orch_fn forked
            return graph

        return self._alone(act)

    def _require_function(
        self, what: str, orch_fn: OrchFunction | CallableHandle, config: CallConfig | None
    ) -> tuple[OrchFunction, CallConfig]:
        """Return what `run` or `record` was given, once it is found to be right."""
        if self._session is None:
            self._live()  # says why
        return runs.require_function(what, orch_fn, config, on_the_chip=self.level == 2)

    def _alone(self, act: Callable[[Session], T]) -> T:
        """Do something during which no run may begin.

        Rule     ORCH-MISUSE-8; SPEED-REPLAY-10
        """
        mine = False
        try:
            with self._lock:
                session = self._live()
                if self._running:
                    raise RuntimeError(
                        "a run is in progress on this Worker: runs cannot be nested, and one Worker "
                        "serves one run at a time"
                    )
                self._running = mine = True
            return act(session)
        finally:
            if mine:
                self._running = False

    def _run(
        self, session: Session, orch_fn: OrchFunction, args: Any, config: CallConfig, start: int
    ) -> RunTiming:
        """Run from start to reset, after what the last run may have left behind."""
        runs.recover(session)
        self._start(session)
        session.configs.forget_many()
        return runs.run(session, self._words(), orch_fn, args, config, start)

    def _read_error(self) -> TaskError:
        """Make an exception of the first failure that the Scheduler has noted."""
        return read_failure(self._live(), self.level)

    def _callable_name(self, word: int) -> str:
        """Return the name of the callable in a callable word."""
        return self._registry.name(word & L.CALLABLE_MASK)

    def _worker_name(self, worker: int) -> str:
        """Return what messages call a worker of this Worker."""
        manager = self._live().manager
        assert manager is not None, "a worker was given a task"
        return manager.name(worker)

    def _own_memory(self) -> tuple[Array, ...]:
        """Return the memory that the workers have shared from the start: arena and heap rings."""
        session = self._live()
        return session.arena.memory, session.engine.heap

    def _describe_stuck(self) -> str:
        """Say which group waits for which workers."""
        return self._live().watch().stuck_group()

    def _look(self) -> None:
        """Tell of tasks that keep a thread waiting; see `Watch.look`."""
        session = self._live()
        if session.manager is not None:
            session.watch().look()

    # ------------------------------------------------------------ looking in from outside
    def progress(self) -> tuple[int, int]:
        """Return (tasks done, tasks submitted) of the run in progress, buffers not counted as done.

        May be called from another thread, for a progress bar.
        """
        view = self._live().engine.view
        return view.ended, view.next_task_id

    def worker_pids(self) -> list[int]:
        """Return the process ids of the live workers."""
        manager = self._live().manager
        if manager is None:
            return []
        return [pid for worker, pid in sorted(manager.pids.items()) if worker not in manager.dead]

    def placement(self) -> Placement:
        """Return which cores there are, how threads wait on them, and where each worker stands.

        Print it, or look at its attributes. Workers stand in it from the start on.

        Raises
        ------
        RuntimeError
            Not initialised, or closed.

        Notes
        -----
        Rule     SPEED-WAIT-8
        """
        session = self._live()
        placed, manager = session.engine.placement, session.manager
        if manager is None:
            return placed
        seats = [
            Seat(manager.name(worker), placed.core_of(worker))
            for worker in range(len(session.kinds))
        ]
        return replace(placed, seats=tuple(seats))


__all__ = ["CallableError", "RunTiming", "TaskArgs", "Worker"]
