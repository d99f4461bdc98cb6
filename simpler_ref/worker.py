"""Worker: what a user holds. It owns an engine, the processes behind it, and the callables they know."""

from __future__ import annotations

import numbers
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from . import task_interface
from .callable_identity import (
    CallableHandle,
    CallableKind,
    TargetNamespace,
    build_python_serialized_descriptor,
    compute_callable_hashid,
    serialize,
)
from .engine import PARK_NS, Engine
from .errors import (
    CallableError,
    LocalSlotExhaustedError,
    TaskError,
    WorkerLostError,
    describe_status,
)
from .jit import layout as L
from .mappings import covers, shared_mappings
from .orchestrator import Orchestrator
from .scheduler import Scheduler
from .shared_arrays import Arena
from .task_interface import Array, CallConfig, TaskArgs
from .worker_manager import WorkerManager, close_inherited, signals_blocked

DEFAULT_ARENA_SIZE = 1 << 32
DEFAULT_START_TIMEOUT_S = 30.0

OrchFunction = Callable[[Orchestrator, Any, CallConfig], Any]


class RunTiming(NamedTuple):
    """What `Worker.run` returns."""

    host_wall_ns: int
    """Time from the call to the end of the drain, ns."""
    device_wall_ns: int
    """Time on chips, ns; 0 where there are none."""
    tasks: int
    """Tasks submitted, buffers from `alloc` included."""
    edges: int
    """Dependencies found."""
    ring_peak_bytes: tuple[int, ...]
    """Most bytes held at once, per ring."""


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r} is not a whole number")
    if not low <= value <= high:
        raise ValueError(f"{name}={value} is out of range: {low} … {high}")
    return operator.index(value)


def _seconds(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} is not a number of seconds")
    seconds = float(value)
    if not 0 <= seconds <= 1 << 30:
        raise ValueError(f"{name}={value} is out of range: 0 … {1 << 30}")
    return seconds


class _Installed:
    """One callable the workers know, and the handles that keep it."""

    __slots__ = ("handles", "index", "target")

    def __init__(self, index: int, target: Callable[..., Any]) -> None:
        self.index = index
        self.target = target
        self.handles: set[CallableHandle] = set()


class _Runtime:
    """Everything of a Worker that must be taken down, apart from the Worker itself.

    A Worker that is forgotten, or alive when the interpreter ends, is closed through this.
    """

    def __init__(self, engine: Engine, arena: Arena, workers: int, start_timeout_s: float) -> None:
        self.engine = engine
        self.arena = arena
        self.workers = workers
        self.start_timeout_s = start_timeout_s
        self.manager: WorkerManager | None = None
        self.scheduler: Scheduler | None = None
        self.mappings: list[tuple[int, int, str]] = []
        self.orch: Orchestrator
        self.pid = os.getpid()

    def start(self, snapshot: dict[bytes, Callable[..., Any]]) -> None:
        self.mappings = shared_mappings()
        if self.workers:
            self.manager = WorkerManager(self.engine, self.workers, self.start_timeout_s)
            self.manager.start(snapshot)
        with signals_blocked():
            if self.scheduler is None:
                scheduler = Scheduler(self.engine)
                scheduler.start()
                self.scheduler = scheduler

    def stop_workers(self) -> None:
        if self.manager is not None:
            self.manager.stop()
            self.manager = None

    def close(self) -> None:
        if os.getpid() != self.pid:
            return  # a process somebody forked from ours: nothing here is its own
        if self.scheduler is not None:
            self.scheduler.stop()
            self.scheduler = None
        self.stop_workers()

    def why_invisible(self, address: int, nbytes: int) -> str | None:
        """Say why the workers cannot see some memory; None if they can."""
        for memory in (self.arena.memory, self.engine.heap):
            start = memory.ctypes.data
            if start <= address and address + nbytes <= start + memory.nbytes:
                return None
        now = covers(shared_mappings(), address, nbytes)
        if now is None:
            return "it is private to this process"
        if self.scheduler is not None and covers(self.mappings, address, nbytes) != now:
            return "it was allocated after the workers were started"
        return None


class Worker:
    """A task engine with a pool of worker processes.

    Parameters
    ----------
    level : int
        Place in the hierarchy, at least 3; a label for messages.
    num_sub_workers : int
        Processes that run Python callables.
    heap_ring_size : int
        Bytes of each heap ring; pages take memory only when touched.
    alloc_timeout_s : float
        How long submit and alloc wait for room without progress.
    ring_depth : int
        Number of rings, 1 … 4. A task uses the ring of its scope depth, the last one if deeper.
    task_window : int | None
        How many tasks may be alive at once; None: 2 097 152.
    arena_size : int
        Bytes for `empty` and `share`; pages take memory only when touched.
    start_timeout_s : float
        How long a worker process may take to report that it is ready.

    Raises
    ------
    ValueError
        A value out of range; the message names it.
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
    ) -> None:
        if not hasattr(level, "__index__") or operator.index(level) < 3:
            raise ValueError(f"level {level!r} not supported: a Worker has level 3 or more")
        window = L.DEFAULT_TASK_WINDOW if task_window is None else task_window
        self.level = operator.index(level)
        self.num_sub_workers = _whole("num_sub_workers", num_sub_workers, 0, 1024)
        self.heap_ring_size = _whole("heap_ring_size", heap_ring_size, 1, 1 << 44)
        self.alloc_timeout_s = _seconds("alloc_timeout_s", alloc_timeout_s)
        self.ring_depth = _whole("ring_depth", ring_depth, 1, L.MAX_RING_DEPTH)
        self.task_window = _whole("task_window", window, 1, 1 << 26)
        self._arena_size = _whole("arena_size", arena_size, 1, 1 << 44)
        self._start_timeout_s = _seconds("start_timeout_s", start_timeout_s)
        self._runtime: _Runtime | None = None
        self._closed = False
        self._running = False
        self._lock = threading.RLock()
        self._installed: dict[bytes, _Installed] = {}
        self._words: dict[CallableHandle, int] = {}
        self._names: list[str] = []
        self._needs_start = True
        fork_hygiene_once()
        _workers.add(self)

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
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("this Worker is closed; make a new one")
            if self._runtime is not None:
                raise RuntimeError("this Worker is already initialized")
            engine = Engine(
                heap_ring_size=self.heap_ring_size,
                ring_depth=self.ring_depth,
                task_window=self.task_window,
                sub=self.num_sub_workers,
            )
            runtime = _Runtime(
                engine, Arena(self._arena_size), self.num_sub_workers, self._start_timeout_s
            )
            # a proxy: no cycle, so that a Worker nobody refers to is closed at once
            runtime.orch = Orchestrator(weakref.proxy(self), engine)
            self._runtime = runtime
            self._finalizer = weakref.finalize(self, _take_down, runtime)
            task_interface.add_visibility(runtime.why_invisible)

    def start(self) -> None:
        """Fork the workers now instead of at the first run; a second call does nothing.

        Raises
        ------
        WorkerStartError
            A worker ended or did not report in time.
        RuntimeError
            Not initialised, or closed; during a run.
        """
        with self._lock:
            if self._running:
                raise RuntimeError("start during a run: the run has started the workers itself")
            runtime = self._live()
            self._recover(runtime)
            self._start(runtime)

    def close(self) -> None:
        """Stop the workers and give the memory back. Again and again is fine.

        Arrays from `empty` and `share` stay valid for as long as they are referred to.

        Raises
        ------
        RuntimeError
            During a run.
        """
        with self._lock:
            if self._running:
                raise RuntimeError("close during a run: let the run end first")
            self._closed = True
            if self._runtime is not None:
                _take_down(self._runtime)  # should this be cut short, it can be done again
                self._finalizer.detach()
                self._runtime = None

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

    def _live(self) -> _Runtime:
        runtime = self._runtime
        if runtime is None:
            raise RuntimeError(
                "this Worker is closed; make a new one"
                if self._closed
                else "this Worker is not initialized: call init() first, or use it in a with block"
            )
        if runtime.pid != os.getpid():
            raise RuntimeError(
                f"this Worker belongs to process {runtime.pid}; process {os.getpid()}, which was "
                "forked from it, needs a Worker of its own"
            )
        return runtime

    def _start(self, runtime: _Runtime) -> None:
        manager = runtime.manager
        anew = self._needs_start or (manager is not None and manager.lost)
        if not anew and (manager is None or not manager.dead):
            return
        self._needs_start = True  # should this be cut short, the next run does it all again
        try:
            if anew or manager is None:
                runtime.stop_workers()
                self._write_digests()
                runtime.start({digest: one.target for digest, one in self._installed.items()})
            else:
                manager.replace_dead()
        except BaseException:
            runtime.stop_workers()
            raise
        self._needs_start = False

    def _disown(self) -> None:
        """Leave the Worker to the process that this one was forked from."""
        self._lock = threading.RLock()
        self._running = False
        if self._runtime is not None:
            self._runtime.orch._close()

    # ------------------------------------------------------------ memory
    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
        """Return an uninitialised numpy array that all workers share, also after the start.

        Raises
        ------
        MemoryError
            The arena is full.
        """
        return self._live().arena.empty(shape, dtype)

    def share(self, array: Any) -> Array:
        """Return a contiguous copy of an array in memory that all workers share."""
        source = np.asarray(array)
        shared = self.empty(source.shape, source.dtype)
        shared[...] = source
        return shared

    # ------------------------------------------------------------ callables
    def register(self, target: Callable[..., Any]) -> CallableHandle:
        """Make a Python callable known to the workers and return its handle.

        Functions, lambdas, closures, bound methods and objects with ``__call__`` will do. It is
        called with the task's arguments; one without parameters is called without any. Workers are
        forked from the state at the start, so what is registered later makes the next run fork them
        anew. Registering the same callable twice gives two handles over one installation.

        Raises
        ------
        TypeError
            `target` is not callable.
        LocalSlotExhaustedError
            4096 callables are registered.
        RuntimeError
            Closed; during a run.
        """
        if not callable(target):
            raise TypeError(
                f"register expects a callable, got {type(target).__name__}; pass the function itself"
            )
        if self._closed:
            raise RuntimeError("this Worker is closed; make a new one")
        if self._running:
            raise RuntimeError("register during a run: register before Worker.run is called")
        name = getattr(target, "__qualname__", type(target).__qualname__)
        hashid = compute_callable_hashid(build_python_serialized_descriptor(serialize(target)))
        handle = CallableHandle(
            hashid, CallableKind.PYTHON_SERIALIZED, TargetNamespace.LOCAL_PYTHON, name
        )
        with self._lock:
            installed = self._installed.get(handle.digest)
            if installed is None:
                installed = self._install(handle.digest, target, name)
            installed.handles.add(handle)
            self._words[handle] = installed.index | L.SUB << 32
        return handle

    def _install(self, digest: bytes, target: Callable[..., Any], name: str) -> _Installed:
        used = {one.index for one in self._installed.values()}
        index = next((i for i in range(len(used) + 1) if i not in used), 0)
        if index >= L.MAX_REGISTERED_CALLABLE_IDS:
            raise LocalSlotExhaustedError(
                f"LOCAL_SLOT_EXHAUSTED: {L.MAX_REGISTERED_CALLABLE_IDS} callables are registered; "
                "unregister those no longer needed"
            )
        self._needs_start = True
        self._names[index : index + 1] = [name]
        installed = self._installed[digest] = _Installed(index, target)
        return installed

    def unregister(self, handle: CallableHandle) -> None:
        """Give a handle back; its callable goes with its last handle.

        Raises
        ------
        TypeError, KeyError
            No handle; a foreign one; one that is not live.
        RuntimeError
            During a run; closed.
        """
        if self._closed:
            raise RuntimeError("this Worker is closed; make a new one")
        if not isinstance(handle, CallableHandle):
            raise TypeError("unregister expects a CallableHandle returned by Worker.register")
        with self._lock:
            if self._running:
                raise RuntimeError("unregister during a run: let the run end first")
            if handle not in self._words:
                raise self._explain_handle(handle)
            del self._words[handle]
            installed = self._installed[handle.digest]
            installed.handles.discard(handle)
            if not installed.handles:
                del self._installed[handle.digest]
            _retired.add(handle)

    def _explain_handle(self, handle: CallableHandle) -> Exception:
        if handle in _retired and handle not in self._words:
            return KeyError(f"{handle!r} is not live on this Worker: it was unregistered")
        if self.num_sub_workers == 0 and handle in self._words:
            return RuntimeError(
                "this Worker has no sub workers; give Worker(num_sub_workers=…) at least 1"
            )
        return KeyError(f"{handle!r} does not belong to this Worker: register its callable here")

    # ------------------------------------------------------------ run
    def run(
        self, orch_fn: OrchFunction, args: Any = None, config: CallConfig | None = None
    ) -> RunTiming:
        """Run an orchestration function, and return when every task it submitted is done.

        `orch_fn` is called as ``orch_fn(orch, args, config)`` on this thread.

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
            `orch_fn` is not callable; `config` is not valid.
        """
        start = time.perf_counter_ns()
        runtime = self._live()
        if not callable(orch_fn):
            raise TypeError(f"run expects an orchestration function, got {type(orch_fn).__name__}")
        if config is None:
            config = CallConfig()
        else:
            config.validate()
        mine = False
        try:
            with self._lock:
                runtime = self._live()
                if self._running:
                    raise RuntimeError(
                        "a run is in progress on this Worker: runs cannot be nested, and one Worker "
                        "serves one run at a time"
                    )
                self._running = mine = True
            return self._run(runtime, orch_fn, args, config, start)
        finally:
            if mine:
                self._running = False

    def _run(
        self, runtime: _Runtime, orch_fn: OrchFunction, args: Any, config: CallConfig, start: int
    ) -> RunTiming:
        mem, kernels = runtime.engine.mem, runtime.engine.kernels
        self._recover(runtime)
        self._start(runtime)
        orch = runtime.orch = runtime.orch._for_next_run()
        called = False
        failure: BaseException | None = None
        while True:  # until drained: the first exception cancels, further ones kill who is busy
            try:
                if not called:
                    called = True
                    self._call(runtime, orch_fn, args, config)
                self._drain(runtime, cancel=failure is not None)
                break
            except BaseException as error:
                if runtime.pid != os.getpid():  # a process that orch_fn forked: not its run
                    raise
                if failure is not None:
                    error.__context__ = failure
                    if runtime.manager is not None:
                        runtime.manager.kill_busy()
                failure = error
        if failure is None and mem[L.RUN_ERROR]:
            failure = orch._task_error()
        tasks, edges = int(mem[L.NEXT_TASK_ID]), int(mem[L.EDGE_COUNT])
        kernels.end_run(mem)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure
        return RunTiming(time.perf_counter_ns() - start, 0, tasks, edges, self._peaks(mem))

    def _call(
        self, runtime: _Runtime, orch_fn: OrchFunction, args: Any, config: CallConfig
    ) -> None:
        """Let the orchestration function submit its tasks."""
        orch = runtime.orch
        outer = task_interface.set_current(runtime.why_invisible)
        try:
            runtime.engine.kernels.begin_run(runtime.engine.mem)
            orch._open(self._words if self.num_sub_workers else {})
            orch_fn(orch, args, config)
            self._live()  # refuses a process that orch_fn forked
        finally:
            orch._close()
            task_interface.set_current(outer)

    def _recover(self, runtime: _Runtime) -> None:
        """Finish the last run if a signal has cut its end short."""
        mem = runtime.engine.mem
        if mem[L.NEXT_TASK_ID] or mem[L.SCOPE_DEPTH]:
            self._drain(runtime, cancel=True)
            runtime.engine.kernels.end_run(mem)

    @staticmethod
    def _drain(runtime: _Runtime, cancel: bool) -> None:
        """End every scope and wait until every task is reclaimed."""
        mem, kernels = runtime.engine.mem, runtime.engine.kernels
        kernels.finish_run(mem, cancel)
        while kernels.help_scheduler(mem, 0, 0, PARK_NS) != L.OK:
            pass

    def _write_digests(self) -> None:
        """Put the digests where `encode` takes them from."""
        mem = self._live().engine.mem
        for digest, installed in self._installed.items():
            at = int(mem[L.A_CALLABLES]) + installed.index * L.DIGEST_WORDS
            mem[at : at + L.DIGEST_WORDS] = np.frombuffer(digest, np.int64)

    @staticmethod
    def _peaks(mem: Array) -> tuple[int, ...]:
        block = mem[L.RING_BLOCK : L.RING_BLOCK + L.MAX_RING_DEPTH * L.LINE].tolist()
        return tuple(block[L.R_PEAK :: L.LINE])

    def _read_error(self) -> TaskError:
        """Make an exception of the first failure that the Scheduler has noted."""
        runtime = self._live()
        mem = runtime.engine.mem
        octets = mem.view(np.uint8)
        outcome, task = int(mem[L.RUN_ERROR]), int(mem[L.ERROR_TASK])
        worker = int(mem[L.ERROR_WORKER])
        index = int(mem[L.ERROR_CALLABLE])
        name = self._names[index] if index < len(self._names) else "?"
        pids = runtime.manager.pids if runtime.manager is not None else {}
        details: dict[str, Any] = {"task": task, "callable_name": name}
        if worker < 0:
            return TaskError(
                f"level {self.level} sub_worker: task {task} ({name}) cannot run: every sub worker "
                "has died",
                **details,
            )
        details |= {"worker": worker, "pid": pids.get(worker)}
        pid = pids.get(worker)
        where = f"level {self.level} sub_worker {worker} (pid {pid}), task {task} ({name})"
        if outcome == L.ENDPOINT_FAILURE:
            code = int(mem[L.ERROR_DETAIL]) - L.DEATH_BIAS
            ended = f"was {describe_status(code)}" if code < 0 else describe_status(code)
            return WorkerLostError(
                f"{where}: the worker {ended} before the task was done; the next run starts a new "
                "one",
                status=code,
                **details,
            )
        raw = octets[8 * L.ERROR_MSG : 8 * (L.ERROR_MSG + L.ERROR_MSG_WORDS)].tobytes()
        message = raw.split(b"\0", 1)[0].decode(errors="replace")
        size = int(mem[L.ERROR_TRACE])
        trace = octets[8 * (L.ERROR_TRACE + 1) :][:size].tobytes().decode(errors="replace")
        return TaskError(f"{where}: {message}", remote_traceback=trace, **details)

    # ------------------------------------------------------------ looking in from outside
    def progress(self) -> tuple[int, int]:
        """Return (tasks done, tasks submitted) of the run in progress, buffers not counted as done.

        May be called from another thread, for a progress bar.
        """
        mem = self._live().engine.mem
        return int(mem[L.COMPLETED_COUNT] + mem[L.FAILED_COUNT]), int(mem[L.NEXT_TASK_ID])

    def worker_pids(self) -> list[int]:
        """Return the process ids of the live workers."""
        manager = self._live().manager
        if manager is None:
            return []
        return [pid for worker, pid in sorted(manager.pids.items()) if worker not in manager.dead]


def _take_down(runtime: _Runtime) -> None:
    task_interface.remove_visibility(runtime.why_invisible)
    runtime.close()


_retired: weakref.WeakSet[CallableHandle] = weakref.WeakSet()
"""Handles that were unregistered, for the message when they are used again."""


# ---------------------------------------------------------------- fork hygiene
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
_hygiene_done = False


def fork_hygiene_once() -> None:
    """Prepare the process for forking, once: thread-pool variables and an at-fork hook.

    Libraries loaded from now on start with one thread each; a value the user has set stays. The
    hook tells every forked child that the parent's Workers are not its own. No lock of ours is held
    across a fork where a child could wait for it. A thread that takes more than one goes from coarse
    to fine: the registry of callables (`Worker`), the manager, a worker, the scheduler's pass, an
    allocator (the arena), the tensor map.
    """
    global _hygiene_done
    if _hygiene_done:
        return
    _hygiene_done = True
    for name in _THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    if os.uname().sysname == "Darwin":
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
    os.register_at_fork(after_in_child=_leave_to_parent)


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _leave_to_parent() -> None:
    task_interface.forget_visibility()
    close_inherited()
    for worker in list(_workers):
        worker._disown()


__all__ = ["CallableError", "RunTiming", "TaskArgs", "Worker"]
