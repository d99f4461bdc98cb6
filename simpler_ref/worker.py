"""Worker: what a user holds. It owns an engine, the processes behind it, and the callables they know.

Rule     CALL-ARRAY-5, CALL-MAP-1, CALL-STREAM-5, CALL-CANCEL-5, ORCH-FAIL-1, HIER-ENGINE-4, HIER-API-2,
         ORCH-API-1, ORCH-READS-1, ORCH-RUN-1, ORCH-RUN-2, ORCH-RUN-3, ORCH-RUN-9, ORCH-MISUSE-9,
         ORCH-MISUSE-11, ORCH-CHECK-1, SEE-ON-1, SEE-TOP-8, SEE-GRAPH-1, SPEED-DEPTH-1, SPEED-WAIT-1,
         SPEED-WAIT-2, SPEED-WAIT-4, FLOW-REG-2, FLOW-REG-3, FLOW-UNREG-1, FLOW-NEST-2, FLOW-NEST-6,
         FLOW-NEST-8, WM-POOL-1, WM-MODE-1, WM-START-1, WM-KIND-3, WM-STOP-1, WM-CHIP-6, WM-DOMAIN-8
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, cast

import numpy as np

from .callables.identity import CallableHandle
from .callables.pickling import require_serialised
from .callables.registry import is_chip_callable
from .callables.runnable import CompiledCallable, require_runnable
from .calls import mapping
from .calls.inside import Initializer
from .calls.methods import CallMethods
from .calls.stream import Stream
from .calls.tasks import current, enter, here, leave
from .errors import CallableError
from .model.arguments import TaskArgs
from .model.config import CallConfig
from .model.visibility import as_array
from .orch import runs
from .orch.domains import CommDomainHandle, Domains, domains_of
from .orch.orchestrator import Orchestrator
from .orch.recording import Graph, record
from .orch.runs import OrchFunction, RunTiming
from .orch.words import Configs
from .remote.callables import RemoteCallable, by_name
from .remote.fleets import Fleet
from .remote.methods import RemoteMethods
from .remote.spec import RemoteWorkerSpec, calls_ahead, spec_of
from .system import lazy
from .system.cores import PlacedWorker, Placement
from .system.signals import signals_blocked
from .system.types import Array
from .system.values import flag
from .workers import processes
from .workers.kinds import NestedWorker
from .workers.life import Life, MemoryUsers, Tracing
from .workers.options import Option, Options, Settings, option
from .workers.reports import without_own_frames
from .workers.session import Session
from .workers.top import Top, complete

if TYPE_CHECKING:
    from .remote.memory import RemoteTaskArgs, RemoteTensorRef
    from .trace.graphs import TaskGraph

__getattr__ = lazy.names_from(
    globals(),
    {".remote.memory": "RemoteTaskArgs RemoteTensorRef", ".trace.graphs": "TaskGraph"},
)

P = ParamSpec("P")


@dataclass
class WorkerOptions(Options):
    """What a program says of a Worker, with what stays in the program."""

    _: KW_ONLY
    initializer: Callable[..., Any] | None = option(
        None, "Called in each sub worker as it starts, also in the successor of one that has died."
    )
    initargs: Iterable[Any] = option((), "Its arguments.")
    fleet: Fleet | RemoteWorkerSpec | None = option(
        None,
        "Starts `endpoints`, on whose sub workers the tasks of `Orchestrator.submit_sub` run, with the "
        "same tensors as on this machine. The Worker has level 4 then, and no workers of its own; "
        "`num_sub_workers` is that of each endpoint.",
    )
    endpoints: int | None = option(None, "How many, with `fleet`; None: one for each of its hosts.")


def _with_parameters_of(
    options: Callable[P, Options],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Worker, P], None]]:
    """Have `__init__` show the parameters of options, to programs that ask and to type checkers."""

    def show(method: Callable[..., None]) -> Callable[Concatenate[Worker, P], None]:
        made: Any = options.__init__
        made.__qualname__ = method.__qualname__  # in errors
        return wraps(made, assigned=("__annotations__",))(method)

    return show


def _require_function(target: Any) -> None:
    """Refuse to register what workers could not call, or would not run."""
    if not callable(target):
        raise TypeError(
            f"register expects a callable, got {type(target).__name__}; pass the function itself, "
            "for a chip ChipCallable.from_kernel(kernel)"
        )
    require_runnable("register", target)


class Worker(CallMethods, RemoteMethods):
    """A task engine with a pool of workers below it.

    Raises
    ------
    ValueError, TypeError
        A value out of range or of the wrong type; the message names it.
    RuntimeError
        `num_sub_workers` or `device_ids` at level 2.
    """

    @_with_parameters_of(WorkerOptions)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given, endpoints = WorkerOptions(*args, **kwargs), None
        if given.fleet is not None:
            endpoints = spec_of(given.fleet, given.num_sub_workers, given.endpoints)
            ahead, level = given.mailbox_depth, 4 if given.level is None else given.level
            if ahead is None:
                ahead = calls_ahead(endpoints[0])
            given = replace(given, level=level, num_sub_workers=0, mailbox_depth=ahead)
        elif given.endpoints is not None:
            raise ValueError(
                f"endpoints={given.endpoints!r}: say who starts them, fleet=ProcessFleet()"
            )
        options = Settings(given)
        first = Initializer(given.initializer, given.initargs)
        if first.is_given and not options.num_sub_workers:
            raise ValueError(
                "initializer= is for sub workers of this machine: give num_sub_workers; at endpoints, "
                "let tasks make what they need at first use, and keep it in local"
            )
        self._has_only_level = bool(args) and not kwargs
        chips = options.device_ids if options.level <= 3 else ()
        self._take_up(Life(options, first, _chips(chips, options.runtime)))
        if endpoints is not None:
            self._add_fleet(*endpoints)

    def _take_up(self, life: Life) -> None:
        self._life = life
        processes.fork_hygiene_once()
        processes.disown_after_fork(life)

    @classmethod
    def _travelled(cls, life: Life) -> Worker:
        """Return a child Worker that was made in another process and not started there."""
        worker = cls.__new__(cls)
        worker._take_up(life)
        return worker

    level = Option[int]()
    num_sub_workers = Option[int]()
    heap_ring_size = Option[int]()
    alloc_timeout_s = Option[float]()
    ring_depth = Option[int]()
    task_window = Option[int | None]()
    mailbox_depth = Option[int]()
    child_mode = Option[str]()
    check = Option[bool]()
    track_reads = Option[bool]()
    platform = Option[str]()
    runtime = Option[str | None]()

    @property
    def _session(self) -> Session | None:
        """What it owns while it is open; in a with block, that opens it."""
        life = self._life
        return life.live() if life.entered and not life.closed else life.session

    # ------------------------------------------------------------ workers below
    def add_worker(self, worker: Worker) -> int:
        """Make a Worker a next-level child of this one, and return its number there.

        It starts and ends with this one.

        It is started inside its own process (or thread), from what is registered with it by then.

        Raises
        ------
        TypeError
            Not a Worker.
        RuntimeError
            This Worker has a level below 4, or `device_ids`, or is initialised; `worker` is initialised,
            or another's child already, or has `device_ids` above level 3.
        ValueError
            `worker` is not of a lower level.
        """
        if not isinstance(worker, Worker):
            raise TypeError(f"add_worker expects a Worker, got {type(worker).__name__}")
        if self.level < 4:
            raise RuntimeError(f"add_worker needs level >= 4, this Worker has level {self.level}")
        if chips := self._life.options.device_ids:
            raise RuntimeError(
                f"add_worker cannot be combined with device_ids={list(chips)}: chips belong to level 3 "
                "Workers"
            )
        worker._life.options.require_chips_of_level()
        if not 3 <= worker.level < self.level:
            raise ValueError(
                f"a level {self.level} Worker has children of the levels 3 … {self.level - 1}, not "
                f"{worker.level}"
            )
        with self._life.lock:
            self._life.require_before_init("add_worker")
            if worker._life.options.pin or worker._life.options.spin_us is not None:
                raise ValueError(
                    "pin and spin_us hold for a whole tree of Workers: give them to the outermost one"
                )
            if worker._life.session is not None or worker._life.closed:
                raise RuntimeError(
                    "the Worker given to add_worker must not be initialized or closed"
                )
            if worker._life.parent_level:
                raise RuntimeError("the Worker given to add_worker is a child already")
            number = self._life.add(NestedWorker(worker), self._life.next_level)
            worker._life.parent_level = self.level
            return number

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
        """
        with self._life.lock:
            self._life.add_custom(worker)

    def add_sub(self, worker: Any) -> None:
        """Add a worker kind of your own to the sub pool; see `add_next_level`."""
        with self._life.lock:
            self._life.add_custom(worker, is_sub=True)

    # ------------------------------------------------------------ life
    def init(self) -> None:
        """Map the memory. No process is forked yet: what is registered until the first run, or
        until `start`, is known to the workers from their birth.

        In a with block, the first use that needs the memory calls it.

        Raises RuntimeError if it is initialised already, or closed, or has `device_ids` above level 3;
        MemoryError if the memory cannot be mapped.
        """
        parent_level = self._life.parent_level
        if parent_level:
            raise RuntimeError(
                f"this Worker is a child of a level {parent_level} Worker, which starts it"
            )
        self._open()

    def _open(self) -> None:
        life = self._life
        with life.lock:
            session = life.open()
            session.domains = Domains(life)
            session.arena.in_use.users = MemoryUsers(life, session.engine)
            life.endpoints.prepare(session.arena.zeros)
            configs = Configs(session.engine)
            session.orch = self._make_orchestrator(session, configs)
            life.stream = self._make_stream(session)
            if target := life.trace_target():
                life.begin_trace(session, *target)
            with signals_blocked():
                if life.stream is not None:
                    enter(self)
                life.begin(session, self)  # other threads may use it now

    def _make_orchestrator(self, session: Session, configs: Configs) -> Orchestrator:
        if not self._life.endpoints.are_there:
            return Orchestrator(session, configs)
        from .remote.placing import PlacingOrchestrator

        return PlacingOrchestrator(session, configs, cast(Any, self._life.endpoints))

    def _make_far_stream(self, session: Session) -> Stream:
        """Return the stream of calls that endpoints run."""
        from .remote.placing import RemoteStream

        return RemoteStream(self._life, session, self.register, self._add_callable)

    def _start_as_child(self) -> None:
        """Start inside the parent's worker that runs this Worker; again after `close_as_child`."""
        if self._life.session is None:
            self._life.closed = False
            self._open()
        self.start()

    def start(self) -> None:
        """Fork the workers now instead of at the first run; a second call does nothing.

        Raises WorkerStartError if a worker ended or did not report in time; RuntimeError during a run, or
        if it is not initialised, or closed.
        """
        try:
            self._life.start()
        except BaseException as error:
            raise without_own_frames(error)  # noqa: B904 (the same one)

    def close(self) -> None:
        """Wait for all calls, stop the workers, and give the memory back. Again and again is fine.

        Arrays from `empty` and `share` stay valid for as long as they are referred to. Ctrl-C while it
        waits cancels the calls that have not begun; a second one terminates the others.

        Raises RuntimeError during a run.
        """
        self._close(cancel=False)

    def _close(self, *, cancel: bool) -> None:
        try:
            self._life.close(cancel)
        finally:
            leave()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Close the Worker, as an executor of `concurrent.futures` is shut down.

        Parameters
        ----------
        wait : bool
            Must be True: the memory of the calls ends with the Worker.
        cancel_futures : bool
            Cancel the calls that no worker has been given, instead of waiting for them.

        Raises
        ------
        ValueError
            `wait` is False.
        TypeError
            An argument is neither True nor False.
        RuntimeError
            During a run.
        """
        if not flag("wait", wait):
            raise ValueError(
                "shutdown(wait=False): the memory of the calls ends with the Worker, so it waits for "
                "those that run; call shutdown in a thread of its own"
            )
        self._close(cancel=flag("cancel_futures", cancel_futures))

    def executor(self) -> concurrent.futures.Executor:
        """Return this Worker as an executor of `concurrent.futures`, whose `shutdown` leaves it open."""
        made: concurrent.futures.Executor = lazy.load("executor").Executor(worker=self)
        return made

    def pool(self) -> Any:
        """Return this Worker with the methods of `multiprocessing.Pool`; `close` leaves it open."""
        return lazy.load("executor").Pool(worker=self)

    def __enter__(self) -> Worker:
        """Begin a block that closes the Worker at its end; its first use initialises the Worker."""
        life = self._life
        life.require_not_closed()
        if life.parent_level:
            self.init()  # says who starts it
        if life.session is None:
            enter(self)
        life.enter(self)
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled."""
        raise TypeError(
            "a Worker cannot be pickled or copied, nor can a function that refers to one: a task gets "
            "what it needs as arguments, and a nested Worker is added with add_worker"
        )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the Worker; an exception cancels the calls that have not begun."""
        try:
            self._life.close(cancel=error is not None)
        finally:
            leave(self)

    def dask_get(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        """Compute keys of a graph of dask in the sub workers: ``dask.compute(x, scheduler=w.dask_get)``.

        Values stay in shared memory from task to task, and large arrays of the graph are shared. In a
        task it computes the keys itself.

        Raises
        ------
        Exception
            What a task has raised; see `Future.result`.
        ModuleNotFoundError
            dask is not installed.
        RuntimeError
            Not open; no sub workers; in an orchestration function.
        """
        return lazy.load("dask").get(self, dsk, keys, **kwargs)

    # ------------------------------------------------------------ callables
    def register(
        self, target: Any, *, workers: Iterable[int] | None = None, inner: bool = False
    ) -> CallableHandle:
        """Make a callable known to the workers and return its handle.

        A Python callable (function, lambda, closure, bound method, object with ``__call__``) goes to
        sub workers, which call it with the task's arguments, or without any if it takes none; and to
        nested Workers, for which it is an orchestration function. A `ChipCallable` goes to the chips.

        Before the start it costs nothing: the workers are made from what is registered. Afterwards,
        also during a run and from any thread, every live worker that takes such callables installs a
        copy before this returns, between two tasks; if one cannot, all forget it. Registering the same
        callable twice gives two handles over one installation.

        Parameters
        ----------
        target : Any
            The callable; or a `RemoteCallable`, which endpoints import.
        workers : Iterable[int], optional
            The endpoints that it is for. None: of a `RemoteCallable` all there are; others are for the
            workers of this machine then.
        inner : bool
            It is for the workers of the endpoints' own Workers, see `get_inner_handle`; a `ChipCallable`
            always is.

        Raises
        ------
        TypeError
            `target` is not callable, or a call would not run it, such as of a generator or coroutine
            function; or it cannot be serialised and the workers run already.
        CallableError
            CALLABLE_KIND_UNSUPPORTED: a Python callable at level 2, or after the start of a Worker
            whose workers take none; or see `Registry.add`.
        LocalSlotExhaustedError
            4096 callables are registered.
        RuntimeError
            Closed; or this Worker is running as another's child.
        """
        chip, is_remote = is_chip_callable(target), isinstance(target, RemoteCallable)
        if inner and workers is None and not is_remote:
            raise ValueError("inner=True is for endpoints: give workers=[…]")
        if not chip and not is_remote:
            _require_function(target)
        life = self._life
        life.require_not_closed()
        life.require_here("register")
        endpoints = life.endpoints
        is_function = workers is None and not (chip or is_remote)
        if is_function and endpoints.take_functions:
            target, is_remote, inner = by_name(target), True, True
        if workers is not None or is_remote:
            described = self._endpoints().describe(target, workers, inner)
        else:
            described = self._describe(target, chip)
        return self._add_callable(*described)

    def _describe(self, target: Any, chip: bool) -> tuple[CallableHandle, Any, bytes]:
        """Return what the registry has of a callable for workers of this machine."""
        life = self._life
        life.require_taker(chip)
        if isinstance(target, CompiledCallable):
            target.compile()  # before the workers are forked, if its types are known
        handle, target, payload = life.registry.describe(
            target, chip, self.platform, self.runtime or ""
        )
        if life.options.start_method == "spawn":
            require_serialised(handle.name, payload)
        life.endpoints.require_same(handle)
        return handle, target, payload

    def _add_callable(self, handle: CallableHandle, target: Any, payload: bytes) -> CallableHandle:
        """Install a callable in the workers that take it, or in none."""
        life = self._life
        if life.session is not None:
            life.live()
        with life.registry.lock:
            life.require_not_closed()
            engine = None if life.session is None else life.session.engine
            life.registry.add(handle, target, payload, engine, life.installer)
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
        """
        self._life.require_not_closed()
        if not isinstance(handle, CallableHandle):
            raise TypeError("unregister expects a CallableHandle returned by Worker.register")
        self._life.require_here("unregister")
        with self._life.registry.lock:
            self._life.require_not_closed()
            self._life.registry.discard(handle, self._life.installer, self._life.running)

    # ------------------------------------------------------------ arrays
    def empty(
        self, shape: int | Sequence[int], dtype: Any = np.float32, *, populate: bool = False
    ) -> Array:
        """Return an uninitialised numpy array that all workers share, also after the start.

        Raises MemoryError if the arena is full.

        Parameters
        ----------
        shape : int | Sequence[int]
            Elements, per dimension.
        dtype : Any
            What numpy takes for a dtype, but for Python objects.
        populate : bool
            Make the memory now, not page by page as it is touched; workers that are started later map
            it before their first task. Raises MemoryError if the system has not so much.
        """
        return self._fresh(self._life.live().arena.empty(shape, dtype, populate))

    def share(self, array: Any) -> Array:
        """Return a contiguous copy of an array in memory that all workers share.

        Its columns are contiguous if those of the array are, as numpy and LAPACK would have it.
        Anything is taken that numpy makes an array of, such as a list of numbers or a column of a table.

        Raises TypeError if its elements are Python objects, or it has a mask; MemoryError if the arena is
        full.
        """
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                "share would lose the mask: share array.filled(value) and the mask apart"
            )
        source = as_array(array)
        if source.dtype.hasobject:
            raise TypeError(
                f"the elements of this {type(array).__name__} are Python objects (dtype {source.dtype}), "
                "which processes cannot share: convert them, as with np.asarray(array, float) or "
                "astype('U'), or pass it to tasks as it is, to be copied"
            )
        return self._fresh(self._life.live().arena.copy(source))

    def zeros(self, shape: int | Sequence[int], dtype: Any = float) -> Array:
        """Return an array of zeros that all workers share; see `empty`.

        Its dtype is float64 unless it is given. Its pages take memory only when they are touched.
        """
        return self._fresh(self._life.live().arena.zeros(shape, dtype))

    def _fresh(self, array: Array) -> Array:
        """Return an array in memory that was given out anew: what was lost there no longer matters."""
        self._life.endpoints.forget_lost(array.ctypes.data, array.nbytes)
        return array

    def zeros_like(self, array: Any) -> Array:
        """Return zeros with the shape and the dtype of an array; see `zeros`."""
        source = np.asanyarray(array)
        return self.zeros(source.shape, source.dtype)

    def ones(self, shape: int | Sequence[int], dtype: Any = float) -> Array:
        """Return an array of ones that all workers share; see `zeros`."""
        return self.full(shape, 1, dtype)

    def full(self, shape: int | Sequence[int], value: Any, dtype: Any = None) -> Array:
        """Return an array that all workers share, with one value everywhere.

        Its dtype is that of the value, unless it is given; see `zeros`.
        """
        shared = self.empty(shape, as_array(value).dtype if dtype is None else dtype)
        shared[...] = value
        return shared

    # ------------------------------------------------------------ memory of chips
    def malloc(self, size: int, worker_id: int = 0) -> int:
        """Allocate `size` bytes of a chip's memory and return their address there.

        Pass it to tasks as ``ContinuousTensor.make(address, shape, dtype, child_memory=True)``.

        Raises
        ------
        IndexError
            There is no such next-level worker.
        NoMemoryError
            It has no memory of its own.
        ControlError
            It has not enough.
        """
        return self._life.live().chips.malloc(worker_id, size)

    def free(self, ptr: int, worker_id: int = 0) -> None:
        """Give memory of a chip back; see `malloc`."""
        self._life.live().chips.free(worker_id, ptr)

    def copy_to(self, dst: int, src: int, size: int, worker_id: int = 0) -> None:
        """Copy `size` bytes from host address `src` to address `dst` of a chip; see `malloc`.

        Raises ValueError if the host memory is not shared with the chip's process.
        """
        self._life.live().chips.copy_to(worker_id, dst, src, size)

    def copy_from(self, dst: int, src: int, size: int, worker_id: int = 0) -> None:
        """Copy `size` bytes from address `src` of a chip to host address `dst`; see `copy_to`."""
        self._life.live().chips.copy_from(worker_id, dst, src, size)

    # ------------------------------------------------------------ domains
    @property
    def live_domains(self) -> dict[str, CommDomainHandle]:
        """The communication domains whose memory is not freed yet, by name."""
        session = self._session
        return {} if session is None else domains_of(session).live()

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
        """
        start = time.perf_counter_ns()
        function, knobs = self._require_function("run", orch_fn, config)
        try:
            return runs.run(self._life, function, args, knobs, start)
        except BaseException as error:
            raise without_own_frames(error)  # noqa: B904 (the same one)

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
        how: dict[str, Any] = {}
        if self._life.endpoints.are_there:
            from .remote.replays import PlacedGraph, StepRecorder

            how = {"write": StepRecorder, "make": partial(PlacedGraph, self._add_callable)}
        function, knobs = self._require_function("record", orch_fn, config)
        return self._life.alone(
            lambda session: record(self._life, session, function, args, knobs, **how)
        )

    def graph(
        self,
        orch_fn: OrchFunction | CallableHandle,
        args: Any = None,
        config: CallConfig | None = None,
    ) -> TaskGraph:
        """Call an orchestration function without executing anything, and say what would wait for what.

        The graph has the tasks in order, the lines that submit them, and why each depends on others:
        the tensor, and both tags. ``str(graph)`` is the same each time, for tests; with ``check=True``,
        a hazard raises a `HazardError`.

        Raises what `record` does; MemoryError if there are more tasks than can be alive at once.
        """
        function, knobs = self._require_function("graph", orch_fn, config)
        from .orch.dry import graph_of

        return self._life.alone(lambda session: graph_of(session, function, args, knobs))

    def _require_function(
        self, what: str, orch_fn: OrchFunction | CallableHandle, config: CallConfig | None
    ) -> tuple[OrchFunction, CallConfig]:
        """Return what `run` or `record` was given, once it is found to be right."""
        if self._life.session is None:
            self._life.live()  # opens it, or says why not
        return runs.require_function(what, orch_fn, config, on_the_chip=self.level == 2)

    def trace(self, file: str | os.PathLike[str], *, detail: str = "all") -> Tracing:
        """Return a context manager: what happens in its with block is traced into a file.

        ``python -m simpler_ref trace FILE`` shows what ran when and why; `Trace.open` reads the file.
        The block begins and ends between runs, and when all calls have ended; it starts the workers.

        Parameters
        ----------
        file : str | os.PathLike[str]
            It is overwritten.
        detail : str
            ``"all"``, or ``"tasks"``: only what workers do, which costs less.

        Raises
        ------
        OSError
            The file cannot be written.
        RuntimeError
            A run is in progress; the Worker is being traced already, or is not open.
        TypeError, ValueError
            `file` is no path, or `detail` neither of the two.
        """
        return Tracing(self._life, file, detail)

    # ------------------------------------------------------------ looking in from outside
    def __repr__(self) -> str:
        life, session = self._life, self._life.session
        parts = [f"level {self.level}"]
        pools = (life.next_level, "next-level"), (life.subs, "sub")
        for pool, what in pools:
            if size := sum(not kind.is_vacant for kind in pool):
                parts.append(f"{size} {what} worker{'s' * (size > 1)}")
        parts.append("in threads" if self.child_mode == "thread" else "in processes")
        if session is None:
            parts.append("closed" if life.closed else "not open yet")
        else:
            parts.append("open")
            view = session.engine.view
            if life.running:
                parts.append("a run is in progress")
            elif life.streaming:
                parts.append(f"{view.next_task_id - view.ended} calls waiting or running")
        return f"<Worker: {', '.join(parts)}>"

    def progress(self) -> tuple[int, int]:
        """Return (tasks done, tasks submitted) of the run in progress, buffers not counted as done.

        May be called from another thread, for a progress bar.
        """
        view = self._life.live().engine.view
        return view.ended, view.next_task_id

    def top(self) -> Top:
        """Return what the Worker does now: tasks and queues of its workers, what waits, its rings.

        Print it, or look at its attributes. May be called from any thread, also during a run, which does
        not wait for it. Child Workers are below the workers that they run in.
        ``python -m simpler_ref top PID`` shows the same of another process.

        Raises RuntimeError if it is not initialised, or closed.
        """
        life, session = self._life, self._life.live()
        return complete(session.top(life.running, life.streaming))

    def worker_pids(self) -> list[int]:
        """Return the process ids of the live workers."""
        manager = self._life.live().manager
        if manager is None:
            return []
        return [pid for worker, pid in sorted(manager.pids.items()) if worker not in manager.dead]

    def placement(self) -> Placement:
        """Return which cores there are, how threads wait on them, and the core of each worker.

        Print it, or look at its attributes. It has workers once they are started.

        Raises RuntimeError if it is not initialised, or closed.
        """
        session = self._life.live()
        placed, manager = session.engine.placement, session.manager
        if manager is None:
            return placed
        workers = tuple(
            PlacedWorker(manager.name(worker), placed.core_of(worker))
            for worker in manager.present()
        )
        return replace(placed, workers=workers)


def _chips(numbers: Sequence[int], runtime: Any) -> list[Any]:
    if not numbers:
        return []
    from .native_chip.domains import ChipChild

    return [ChipChild(one, runtime) for one in numbers]


# ---------------------------------------------------------------- Workers beside those of with blocks
def worker_apart(**options: Any) -> Worker:
    """Return an open Worker that gets no calls of tasks.

    It is closed with the program, or once nothing refers to it.
    """
    if options.get("start_method") is None and processes.why_not_fork():
        options["start_method"] = "spawn"  # as a Worker chooses, who says so, too
    worker = Worker(**options)
    worker.init()
    if here.nested is None:  # a task uses the workers only of those that it has entered
        leave(worker)
    atexit.register(_close_if_there, weakref.ref(worker))
    return worker


def _close_if_there(reference: weakref.ref[Worker]) -> None:
    if (worker := reference()) is not None:
        worker.close()


class Kept:
    """A Worker that is made when it is first asked for, and kept for who asks for the same again."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Have none: in a forked process it is the parent's."""
        self._worker: Worker | None = None
        self._options: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, **options: Any) -> Worker:
        """Return the one with these options; it takes the place of one with others."""
        with self._lock:
            worker = self._worker
            if worker is None or worker._life.closed or self._options != options:
                worker = self._worker = worker_apart(**options)
                self._options = options
            return worker

    def close(self) -> None:
        """Close it, if there is one, as the end of the program does."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


_of_scripts = Kept()


def map(
    function: Any,
    /,
    *iterables: Iterable[Any],
    chunksize: int | None = None,
    timeout: float | None = None,
) -> mapping.Results | Iterator[Any]:
    """Call a function for each item, in the innermost open Worker; see `Worker.map`.

    Without one, as in a script, in a Worker with a sub worker for each core, which is made at the first
    such call and closed with the program.
    """
    stream = current() or _of_scripts.get()._stream()
    return mapping.results(stream, function, iterables, chunksize=chunksize, timeout=timeout)


if Worker.__doc__ is not None:  # python -OO
    _before, _from, _after = Worker.__doc__.partition("    Raises\n")
    _options = textwrap.indent(WorkerOptions.described(), "    ")
    Worker.__doc__ = f"{_before}{_options}\n\n{_from}{_after}"

__all__ = [
    "CallableError",
    "RemoteCallable",
    "RemoteTaskArgs",
    "RemoteTensorRef",
    "RemoteWorkerSpec",
    "RunTiming",
    "TaskArgs",
    "Worker",
]
