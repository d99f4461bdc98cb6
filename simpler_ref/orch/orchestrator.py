"""What the orchestration function holds.

`Orchestrator` turns `submit_*`, `alloc` and scopes into tasks of the graph; the work is done by the
kernels in `jit/submit.py`.

Rule     FLOW-HANDLE-2, FLOW-LAYOUT-3, ORCH-MISUSE-1, ORCH-MISUSE-3, ORCH-MISUSE-7, ORCH-MISUSE-10,
         FLOW-NEST-3, HIER-API-2, ORCH-API-2, ORCH-API-3, ORCH-API-5, ORCH-API-6, ORCH-ALLOC-1,
         ORCH-AUTO-4, ORCH-BACK-1, ORCH-BACK-2, ORCH-BACK-4, ORCH-RING-11, SEE-HANG-2, SEE-TOP-1,
         ORCH-DRAIN-1, ORCH-DRAIN-2, ORCH-FAIL-1, ORCH-FAIL-2, ORCH-FAIL-3, ORCH-SCOPE-2, ORCH-SCOPE-3,
         ORCH-SCOPE-4, REMOTE-ARGS-2, REMOTE-COPY-9, REMOTE-LINK-11, SPEED-MANY-1, SPEED-MANY-5,
         SPEED-MANY-7, SPEED-REPLAY-2, WM-AFF-1, WM-CHIP-3, WM-DOMAIN-3, WM-DOMAIN-6, WM-GROUP-1,
         WM-GROUP-5
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np

from ..callables.identity import CallableHandle, TargetNamespace
from ..engine.introspection import (
    RingView,
    describe_full,
    mib,
    requested_bytes,
    ring_cycle,
    waiting_tasks,
)
from ..engine.memory import PARK_NS
from ..engine.view.layouts import Layouts
from ..errors import RingFullError, TaskError, tell
from ..jit import layout as L
from ..jit.program import asked_by
from ..model import visibility
from ..model import wire as W
from ..model.arguments import TaskArgs, note_outputs, submit_words
from ..model.config import CallConfig
from ..model.tensor import ContinuousTensor, require_plain
from ..system.types import Array
from ..system.values import sizes
from ..workers.session import Session, read_failure
from .checked import Check
from .columns import Batch
from .domains import DEFAULT_TIMEOUT_S, CommBufferSpec, CommDomainHandle, domains_of
from .words import Configs, Pools, require_distinct

MOST_BEHIND = 8192
"""Tasks that have not ended, from which on submits of many let the workers catch up."""
SLICE_NS = 1_000_000
FEWEST_PER_SLICE = 256
Handles = dict[CallableHandle, int]
"""The live handles a pool takes, and each one's callable word without anything of a single task."""


def orchestrator_of(session: Session) -> Orchestrator:
    assert isinstance(session.orch, Orchestrator)
    return session.orch


class Orchestrator:
    """Builds the graph of one run; valid while the orchestration function runs, on its thread.

    `submit_*` and `alloc` wait only for room in a ring (or for a free task slot).
    """

    _handle: CallableHandle
    """The callable of the task that is submitted last."""
    _in_bulk = True
    """Whether kernels submit many tasks that are given in one call."""
    _own_tasks = _own_edges = 0
    """Tasks of this run, and their edges, that not the function has submitted but this."""

    def __init__(self, session: Session, configs: Configs, pools: Pools | None = None) -> None:
        engine = session.engine
        self._session = session
        self._engine = engine
        self._mem = engine.mem
        self._view = engine.view
        self._submit = engine.kernels.submit_and_pass
        self._next_level: Handles = {}
        self._subs: Handles = {}
        self._quick_subs: Handles = {}
        """Those of tasks that are submitted as they are: nothing is checked, and none is far away."""
        self._check: Check | None = None
        """With ``check=True`` each submit, buffer and scope goes through it first."""
        self._configs = configs
        self._pools = Pools(engine.view) if pools is None else pools
        self._thread = -1
        self._error: TaskError | None = None
        self._ring = RingView(engine, session)

    @property
    def ring(self) -> RingView:
        """The Worker's rings and live tasks, to look at; from any thread, also after the run."""
        return self._ring

    # ------------------------------------------------------------ submit
    def submit_sub(self, callable_handle: CallableHandle, args: TaskArgs | None = None) -> None:
        """Submit a task for a sub worker: ``callable_handle``'s callable on `args`.

        Its dependencies follow from the tags: it runs after the tasks that currently produce its
        INPUT and INOUT tensors, and becomes the producer of its OUTPUT, INOUT and OUTPUT_EXISTING
        ones. An OUTPUT without address gets memory from the ring of the open scope;
        ``args.tensor(i)`` then has it.

        Raises
        ------
        TypeError, KeyError
            `callable_handle` is no CallableHandle; belongs to another Worker; is no longer live.
        TaskError
            A task of this run has failed: nothing more is accepted.
        RingFullError
            No room within the Worker's `alloc_timeout_s`.
        RuntimeError
            The outputs exceed a ring; outside of a run; on another thread; no sub workers.
        ValueError
            The arguments do not fit a mailbox.
        """
        try:
            word = self._quick_subs[callable_handle]
            if args is None:
                counts, wire = 0, b""
            else:
                tensors, scalars = args._tensors, args._scalars
                if args._doubts is not None:
                    self._settle(callable_handle, [args])
                if scalars:
                    counts = len(tensors) | len(scalars) << 32
                    wire = b"".join([*tensors, *scalars])
                else:
                    counts = len(tensors)
                    wire = b"".join(tensors)
        except (KeyError, TypeError, AttributeError):
            pass  # it is refused, or goes the long way
        else:
            slot = self._submit(self._mem, word, counts, 0, wire)
            if slot < 0:
                attempt = partial(self._submit, self._mem, word, counts, 0, wire)
                slot = self._retry(slot, attempt, lambda: asked_for(wire, counts))
            if slot & L.AUTO_OUTPUT and args is not None:
                note_outputs([args], self._view.provided(slot ^ L.AUTO_OUTPUT, counts & L.LOW_HALF))
            return
        word = self._require_sub("submit_sub", callable_handle, [args])
        word |= self._pools.affinity(callable_handle, L.SUB, -1, args) << L.WORD_WORKER
        self._add(word, [] if args is None else [args])

    def submit_next_level(
        self,
        callable_handle: CallableHandle,
        args: TaskArgs | None = None,
        config: CallConfig | None = None,
        *,
        worker: int = -1,
    ) -> None:
        """Submit a task for a next-level worker: a chip, or a Worker one level down.

        On a chip, ``callable_handle`` is a ChipCallable's; on a Worker, an orchestration function's,
        which runs there as ``fn(orch, args, config)``. Dependencies are those of `submit_sub`. `worker`
        names the only worker that may run the task, −1 leaves the choice to the Scheduler. Tensors with
        `child_memory` are in the memory of that worker.

        Raises
        ------
        ValueError
            There is no such worker; a `child_memory` tensor without `worker`; see `CallConfig.validate`.
        TypeError, KeyError, TaskError, RingFullError, RuntimeError
            See `submit_sub`.
        """
        base = self._require_handle(
            "submit_next_level", callable_handle, [args], self._next_level, 0
        )
        affinity = self._pools.affinity(callable_handle, L.NEXT_LEVEL, worker, args)
        word = base | affinity << L.WORD_WORKER | self._config_word(config)
        self._add(word, [] if args is None else [args])

    def _require_sub(self, what: str, handle: CallableHandle, members: Sequence[Any]) -> int:
        """Return the callable word of a task for a sub worker, for which a next-level one may stand."""
        if self._pools.is_elsewhere(handle):
            return self._require_handle(what, handle, members, self._next_level, 0)
        return self._require_handle(what, handle, members, self._subs, L.SUB)

    def _add(self, word: int, members: list[TaskArgs], workers: list[int] | None = None) -> None:
        """Submit a task whose arguments are found to be right, or a group.

        `workers` has the worker of each member of a group, plus one, 0 for any.
        """
        if self._check is None:
            self._send(word, members, workers)
            return
        self._require_mine()
        self._check.submit(
            self._handle.name,
            members,
            workers or [word >> L.WORD_WORKER & L.WORKER_MASK],
            lambda sent: self._send(word, sent, workers),
            guards=self._guards(word),
        )

    def _guards(self, word: int) -> bool:
        """Say whether a task that is checked is told which of its tensors it must not write."""
        return word >> L.WORD_KIND & 0xF == L.SUB

    def _send(self, word: int, members: list[TaskArgs], workers: list[int] | None) -> None:
        counts, wire = submit_words(members, workers)
        size = 0 if workers is None else len(members)
        slot = self._submit(self._mem, word, counts, size, wire)
        if slot < 0:
            attempt = partial(self._submit, self._mem, word, counts, size, wire)
            slot = self._retry(slot, attempt, lambda: asked_for(wire, counts))
        if slot & L.AUTO_OUTPUT:
            note_outputs(members, self._view.provided(slot ^ L.AUTO_OUTPUT, counts & L.LOW_HALF))

    # ------------------------------------------------------------ groups
    def submit_next_level_group(
        self,
        callable_handle: CallableHandle,
        args_list: Sequence[TaskArgs],
        config: CallConfig | None = None,
        *,
        workers: Sequence[int] | None = None,
    ) -> None:
        """Submit one task that runs on several next-level workers at once, with arguments for each.

        All members start together, each on a worker of its own, and the task is done when the last one
        is. Its tensors are those of all members: it depends, and is depended on, as a whole. `workers`
        names the worker of each member, −1 for any.

        Raises
        ------
        ValueError
            `args_list` is empty, or longer than the pool; `workers` has another length, names a worker
            twice, or one that does not exist.
        TypeError, KeyError, TaskError, RingFullError, RuntimeError
            See `submit_next_level`.
        """
        members = self._pools.members(callable_handle, args_list, L.NEXT_LEVEL)
        if workers is None:
            workers = [-1] * len(members)
        require_distinct(workers, len(members))
        base = self._require_handle(
            "submit_next_level_group", callable_handle, members, self._next_level, L.NEXT_LEVEL
        )
        affinities = self._pools.affinities_of_members(
            callable_handle, L.NEXT_LEVEL, workers, members
        )
        self._add(base | self._config_word(config), members, affinities)

    def submit_sub_group(
        self, callable_handle: CallableHandle, args_list: Sequence[TaskArgs]
    ) -> None:
        """Submit one task that runs on several sub workers at once; see `submit_next_level_group`.

        At endpoints each member runs at another one.
        """
        members = self._pools.members(callable_handle, args_list, L.SUB)
        base = self._require_sub("submit_sub_group", callable_handle, members)
        anyone = [-1] * len(members)
        affinities = self._pools.affinities_of_members(callable_handle, L.SUB, anyone, members)
        self._add(base, members, affinities)

    # ------------------------------------------------------------ many at once
    def submit_sub_many(
        self,
        callable_handle: CallableHandle,
        tensors: Sequence[Any] = (),
        tags: Sequence[Any] = (),
        scalars: Any = None,
        *,
        count: int | None = None,
    ) -> Array:
        """Submit many tasks for sub workers in one call, as a loop over `submit_sub` would.

        Those of endpoints are submitted one by one.

        The tasks get the ids, dependencies, memory and errors that they would get one by one, in the
        order of their rows. What is wrong with the arguments is found before any is submitted.

        Parameters
        ----------
        callable_handle : CallableHandle
            The callable of all of them.
        tensors : list
            A column for each tensor that a task has. A column is a numpy array in shared memory whose
            row ``i`` (which must be contiguous) is the tensor of task ``i``; or `Rows`, which names the
            row of each task; or one `ContinuousTensor`, the same for all.
        tags : list
            For each column its tag, or a list with one for each task.
        scalars : numpy.ndarray or list, optional
            An array (tasks, scalars); or a list of columns, each an array with a number for each
            task, or one number for all. A task's scalars are what `TaskArgs.add_scalar` would make
            of each number.
        count : int, optional
            The number of tasks, where no column has it.

        Returns
        -------
        numpy.ndarray
            uint64, (tasks, tensors): the addresses of the tensors, those that the runtime has provided
            for OUTPUTs without one included.

        Raises
        ------
        TypeError, ValueError
            Columns that do not agree on the number of tasks, or that a task cannot be given; the
            message names the column. See also `submit_sub`.
        KeyError, TaskError, RingFullError, RuntimeError
            See `submit_sub`: the tasks before the one that was refused are submitted.
        """
        word = self._require_sub("submit_sub_many", callable_handle, ())
        self._require_mine()
        return self._submit_many(word, L.SUB, Batch(tensors, tags, scalars, count))

    def submit_next_level_many(
        self,
        callable_handle: CallableHandle,
        tensors: Sequence[Any] = (),
        tags: Sequence[Any] = (),
        scalars: Any = None,
        config: CallConfig | None = None,
        *,
        workers: int | Sequence[int] = -1,
        count: int | None = None,
    ) -> Array:
        """Submit many tasks for next-level workers in one call; see `submit_sub_many`.

        Those of endpoints are submitted one by one. `config` is that of all tasks. `workers` is the
        worker that all tasks want, or a list with one for each; −1 for any.

        Raises what `submit_sub_many` and `submit_next_level` raise.
        """
        base = self._require_handle(
            "submit_next_level_many", callable_handle, (), self._next_level, L.NEXT_LEVEL
        )
        self._require_mine()
        batch = Batch(tensors, tags, scalars, count, workers)
        return self._submit_many(base | self._config_word(config), L.NEXT_LEVEL, batch)

    def _submit_many(self, word: int, pool: int, batch: Batch) -> Array:
        handle, pools = self._handle, self._pools
        is_placed = pools.is_elsewhere(handle)
        for one in np.unique(batch.workers) if is_placed else ():
            pools.affinity(handle, pool, int(one), None)  # which may refuse it
        affinities = 0 if is_placed or pool == L.SUB else pools.affinities(batch)
        words = word | affinities << L.WORD_WORKER
        if self._in_bulk and self._check is None and not is_placed:
            program, variables = batch.program(words)
            self._play(program, variables.reshape(-1))
            provided: Array = variables.view(np.uint64)[:, : len(batch.tensors)]
            return provided
        addresses: Array = np.empty((batch.size, len(batch.tensors)), np.uint64)
        columns = np.broadcast_to(words, batch.size), np.broadcast_to(batch.workers, batch.size)
        tasks = zip(batch.rows(), *(one.tolist() for one in columns), strict=True)
        for i, ((wires, numbers), its, worker) in enumerate(tasks):
            args = TaskArgs()
            args._tensors, args._scalars = wires, numbers
            if is_placed:
                its |= pools.affinity(handle, pool, worker, args) << L.WORD_WORKER
            self._handle = handle
            self._add(its, [args])
            addresses[i] = [int.from_bytes(wire[: W.SHAPE_AT], "little") for wire in args._tensors]
        return addresses

    def _play(self, program: Array, variables: Array) -> None:
        """Carry out a program, wait where there is no room, and let Python see its signals."""
        attempt = partial(self._engine.kernels.run_program, self._mem, program, variables)
        code = L.MORE
        while code == L.MORE:
            code = attempt()
            if code < 0:
                code = self._retry(code, attempt, lambda: asked_for(*asked_by(program)))
            self._let_catch_up()

    # ------------------------------------------------------------ what they share
    def _require_handle(
        self, what: str, handle: Any, members: Sequence[Any], live: Handles, pool: int
    ) -> int:
        """Return a handle's callable word, once handle and arguments are found to be right."""
        word = live.get(handle) if isinstance(handle, CallableHandle) else None
        if word is None:
            raise self._refusal(what, handle, None, live, pool)
        self._handle = handle
        doubtful = []
        for args in members:
            if args is None:
                continue
            if isinstance(args, type) or not hasattr(args, "_tensors"):
                raise self._refusal(what, handle, args, live, pool)
            if args._doubts is not None:
                doubtful.append(args)
        if doubtful:
            self._settle(handle, doubtful)
        return word

    def _settle(self, handle: CallableHandle, members: Sequence[TaskArgs]) -> None:
        """Check arrays that were added outside of a run, and give layouts their numbers."""
        described = []
        for args in members:
            if args._doubts is not None:
                args._doubts.settle()
                if args._doubts.is_remote and not self._pools.is_elsewhere(handle):
                    i = [isinstance(wire, W.RemoteWire) for wire in args._tensors].index(True)
                    raise ValueError(
                        f"tensor {i} is in an endpoint's memory, which the workers of this machine do "
                        f"not see, and {handle!r} is for those: copy it with Worker.remote_copy_from"
                    )
                if args._doubts.has_layouts:
                    described.append(args._tensors)
        if described:
            if handle._namespace == TargetNamespace.LOCAL_CHIP:
                require_plain(described, f"chip callable {handle.name}")
            self._give_numbers(described)

    def _give_numbers(self, members: Sequence[list[bytes]]) -> None:
        """Write the numbers of layouts into tensors; make room for them if there is none."""
        layouts = self._engine.layouts
        try:
            for wires in members:
                number_layouts(wires, layouts)
        except MemoryError:
            self._require_mine()
            self._until_idle()
            self._engine.kernels.end_stream(self._mem)  # forgets who reads what by these numbers
            layouts.reset()
            for wires in members:
                number_layouts(wires, layouts)

    def _config_word(self, config: CallConfig | None) -> int:
        return self._configs.number_of(config) << L.WORD_CONFIG

    def _refusal(self, what: str, handle: Any, args: Any, live: Handles, pool: int) -> Exception:
        """Say why a submit was refused; nothing has changed."""
        if not isinstance(handle, CallableHandle):
            return TypeError(
                f"{what} expects a CallableHandle returned by Worker.register, got "
                f"{type(handle).__name__}; write handle = worker.register(function) first"
            )
        if args is not None and not isinstance(args, TaskArgs):
            return TypeError(f"args must be a TaskArgs or None, got {type(args).__name__}")
        if self._thread == -1:
            return self._wrong_thread()
        if handle in live:
            return TypeError("these TaskArgs are those of a running task; build new ones")
        return self._session.explain(handle, pool)

    # ------------------------------------------------------------ memory of next-level workers
    def malloc(self, worker_id: int, size: int) -> int:
        """Allocate memory of a next-level worker, between two of its tasks; see `Worker.malloc`."""
        self._require_mine()
        return self._session.chips.malloc(worker_id, size)

    def free(self, worker_id: int, ptr: int) -> None:
        """Give memory of a next-level worker back."""
        self._require_mine()
        self._session.chips.free(worker_id, ptr)

    def copy_to(self, worker_id: int, dst: int, src: int, size: int) -> None:
        """Copy host memory to a next-level worker, between two of its tasks; see `Worker.copy_to`.

        It waits for no dependency: tasks that were submitted before may not have run.
        """
        self._require_mine()
        self._session.chips.copy_to(worker_id, dst, src, size)

    def copy_from(self, worker_id: int, dst: int, src: int, size: int) -> None:
        """Copy memory of a next-level worker to the host; see `copy_to`."""
        self._require_mine()
        self._session.chips.copy_from(worker_id, dst, src, size)

    def allocate_domain(
        self,
        name: str,
        workers: Sequence[int],
        window_size: int,
        buffers: Sequence[CommBufferSpec] = (),
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> CommDomainHandle:
        """Let kernels of some chips read and write each other's memory: use it in a ``with`` statement.

        Every chip gets a window, zeroed, with the same buffers at the same places. ``handle[chip]`` says
        where they are, and has the `device_ctx` with which kernels reach the other windows. The end of
        the block releases the domain; its memory is freed when the run has drained.

        Parameters
        ----------
        name : str
            For messages and `Worker.live_domains`.
        workers : Sequence[int]
            The chip of each rank.
        window_size : int
            Bytes of each window, rounded up to whole pages.
        buffers : Sequence[CommBufferSpec]
            What each window has.
        timeout_s : float
            How long kernels wait for each other if they name no deadline, in seconds.

        Raises
        ------
        ValueError, TypeError
            The buffers do not fit the window; a chip that does not exist, is no chip or is named twice;
            the name of a live domain.
        MemoryError
            There is no room for the windows.
        ControlError, WorkerLostError
            A chip could not map them; see `Worker.malloc`.
        """
        self._require_mine()
        return domains_of(self._session).allocate(name, workers, window_size, buffers, timeout_s)

    def release_domain(self, handle: CommDomainHandle) -> None:
        """Release a domain before its block ends, or without one; see `CommDomainHandle.release`.

        Raises TypeError if it is none.
        """
        if not isinstance(handle, CommDomainHandle):
            raise TypeError(
                f"release_domain expects what allocate_domain has returned, got {type(handle).__name__}"
            )
        handle.release()

    def _require_mine(self) -> None:
        if get_ident() != self._thread:
            raise self._wrong_thread()

    def _wrong_thread(self) -> RuntimeError:
        if self._thread == -1:
            return RuntimeError(
                "this Orchestrator's run has ended: submit, alloc and scopes work only while the "
                "orchestration function given to Worker.run is running"
            )
        return RuntimeError(
            f"the Orchestrator belongs to the thread that called Worker.run ({self._thread}); it "
            f"was used on thread {get_ident()}"
        )

    # ------------------------------------------------------------ alloc
    def alloc(self, shape: int | Sequence[int], dtype: Any) -> ContinuousTensor:
        """Return a buffer from the ring of the open scope.

        It stays until the scope has ended and every task that was given it as INPUT or INOUT is
        done. A task that writes it must tag it INOUT: OUTPUT would be a mere overwrite, without a
        hold on the memory.

        Raises RuntimeError, RingFullError and TaskError as `submit_sub` does.
        """
        self._require_mine()
        dims = (shape,) if type(shape) is int else shape if type(shape) is tuple else sizes(shape)
        made = self._claim(ContinuousTensor.make(0, dims, dtype))
        return made if self._check is None else self._check.claim(made)

    def _claim(self, tensor: ContinuousTensor) -> ContinuousTensor:
        kernels, mem, wire = self._engine.kernels, self._mem, tensor._tagged(L.OUTPUT)
        slot = kernels.alloc_buffer(mem, wire)
        if slot < 0:
            slot = self._retry(slot, partial(kernels.alloc_buffer, mem, wire), lambda: wire)
        return tensor._at_address(self._view.buffer(slot), self._engine.heap)

    # ------------------------------------------------------------ scopes
    def scope(self) -> ScopeGuard:
        """Return a context manager: a scope one deeper, whose tasks use the next ring."""
        return ScopeGuard(self)

    def scope_begin(self) -> None:
        """Open a scope. Raises RuntimeError if 64 scopes are open already, or outside of a run."""
        self._require_mine()
        if self._open_scope() != L.OK:
            raise RuntimeError(
                f"maximum nesting depth exceeded: {L.MAX_SCOPE_DEPTH} scopes are open; end one first"
            )
        if self._check is not None:
            self._check.history.open_scope()

    def scope_end(self) -> None:
        """End the innermost scope. Does not wait: its tasks finish, and their memory returns, later.

        Raises RuntimeError if no scope is open, or outside of a run; with ``check=True``, HazardError if
        a task that may still run uses memory of the scope, and does not keep it.
        """
        self._require_mine()
        if self._depth() <= 1:
            raise RuntimeError("scope_end without scope_begin: no scope of yours is open")
        if self._check is not None:
            self._check.require_kept()
        self._close_scope()
        if self._check is not None:
            self._check.history.close_scope()

    def _depth(self) -> int:
        """Return how many scopes are open, the run's own included."""
        return self._view.scope_depth

    def _open_scope(self) -> int:
        return int(self._engine.kernels.open_scope(self._mem))

    def _close_scope(self) -> None:
        self._engine.kernels.close_scope(self._mem)

    def drain(self) -> None:
        """Wait until every task submitted so far in this run has finished, failed or been cancelled.

        Scopes stay open, and buffers stay as they are. Afterwards more can be submitted.

        Raises the TaskError of the first task of this run that has failed; RuntimeError outside of a
        run, or on another thread.
        """
        self._require_mine()
        self._drain()
        if self._check is not None:
            self._check.history.drain()

    def _drain(self) -> None:
        self._until_idle()
        if self._view.has_failed:
            raise self._task_error()

    def _until_idle(self) -> None:
        tasks, kernels = self._view.pushed - self._pushed_before, self._engine.kernels
        while kernels.help_scheduler(self._mem, -1, tasks, -1, L.NONE, PARK_NS) != L.OK:
            self._session.look()  # between slices Python sees signals

    def live_tasks(self) -> int:
        """Return the tasks that are not reclaimed yet, buffers from `alloc` included."""
        return self._view.live

    # ------------------------------------------------------------ waiting for room
    def _retry(self, code: int, attempt: Callable[[], int], wire: Callable[[], bytes]) -> int:
        """Turn a refusal into an exception, or help the Scheduler until there is room."""
        code = self._wait_for_room(code, attempt, wire)
        if code >= 0:
            return code
        if code == L.RUN_FAILED:
            raise self._task_error()
        if code == L.WRONG_THREAD:
            raise self._wrong_thread()
        raise never_fits(code, wire(), self._view.ring_bytes)

    def _wait_for_room(
        self, code: int, attempt: Callable[[], int], wire: Callable[[], bytes]
    ) -> int:
        """Call again what was refused, until it is not for want of room; return its last answer.

        `wire` returns the arguments of what was refused last.

        Raises RingFullError if there is none within `alloc_timeout_s` of the last progress.
        """
        mem, kernels, view = self._mem, self._engine.kernels, self._view
        timeout_s = self._session.options.alloc_timeout_s
        timeout_ns = int(timeout_s * 1e9)
        since = time.monotonic_ns()
        reclaimed = self._progress()
        self._engine.lacks = "room for another task"
        try:
            while code == L.WOULD_BLOCK:
                rest = timeout_ns - (time.monotonic_ns() - since)
                if rest <= 0:
                    asked, depth = requested_bytes(wire()), view.scope_depth - 1
                    error = RingFullError(describe_full(self._engine, timeout_s, asked, depth))
                    lines = ring_cycle(self._engine, self._session, depth)
                    lines += waiting_tasks(self._engine, self._session)
                    tell(error, "\n".join(f"  {line}" for line in lines))
                    raise error
                taken = view.taken
                code = attempt()
                waited = L.OK
                if code == L.WOULD_BLOCK:  # wait in slices, between which Python sees signals
                    waited = kernels.help_scheduler(mem, -1, -1, taken, L.NONE, min(rest, PARK_NS))
                if waited in (L.TIMED_OUT, L.INTERRUPTED):
                    self._session.look()
                if self._progress() != reclaimed:
                    reclaimed, since = self._progress(), time.monotonic_ns()
        finally:
            self._engine.lacks = ""
        return code

    def _progress(self) -> tuple[int, int]:
        view = self._view
        return view.next_task_id - view.live, view.ended

    def _let_catch_up(self) -> None:
        """Wait a little if many tasks have not ended, as long as they end quickly.

        A task that waits for its turn among a few thousand is in the processor's caches when that comes,
        and its memory is used again soon: a graph of a million short tasks takes a third of the time.
        Tasks that take long, or wait for what the program does next, are not waited for.
        """
        mem, kernels, view = self._mem, self._engine.kernels, self._view
        tasks, ended = view.pushed - self._pushed_before, view.ended
        if tasks - ended <= MOST_BEHIND:
            return
        goal = tasks - MOST_BEHIND // 2
        while kernels.help_scheduler(mem, -1, goal, -1, L.NONE, SLICE_NS) != L.OK:
            before, ended = ended, view.ended
            if ended - before < FEWEST_PER_SLICE:
                return

    # ------------------------------------------------------------ for Worker.run
    def _take_entries(self) -> None:
        """Submit by the engine's entries as they are now: a trace begins or ends."""
        submit = self._engine.kernels.submit_and_pass
        self._submit = partial(_submit_visible, submit) if visibility.current.spawned else submit

    def _open(self, next_level: Handles, subs: Handles) -> None:
        self._next_level = next_level
        self._subs = subs
        if self._session.options.check:
            self._check = Check(self._session, self._view.widen_unordered)
            self._view.forget_unordered()
        elif type(self) is Orchestrator:
            self._quick_subs = subs
        self._take_entries()
        self._error = None
        self._pushed_before = self._view.pushed
        self._thread = get_ident()

    def _settle_run(self) -> None:
        """Do what follows when the function has returned; here nothing does."""

    def _end_run(
        self, failure: BaseException | None, failed: Collection[int]
    ) -> BaseException | None:
        """Do what follows when all tasks have ended, or failed; return what the run raises."""
        return failure

    def _for_next_run(self) -> Orchestrator:
        """Return one that is not open yet. References to this one stay closed for ever."""
        self._engine.runs += 1
        fresh = object.__new__(type(self))
        fresh.__dict__.update(self.__dict__)
        return fresh

    def _close(self) -> None:
        self._thread = -1
        self._next_level = {}
        self._subs = {}
        self._quick_subs = {}
        if self._check is not None:
            self._check.forget()

    def _place_of(self, task: int) -> str:
        """Return the line that has submitted a task, if that is known: with ``check=True`` it is."""
        return "" if self._check is None else self._check.places.get(task, "")

    def _task_error(self) -> TaskError:
        """Return the run's first failure as an exception, the same one each time."""
        if self._error is None:
            self._error = read_failure(self._session)
        return self._error


def never_fits(code: int, wire: bytes, ring_bytes: int) -> Exception:
    """Return the exception for arguments that a kernel has refused with a code for good."""
    if code == L.TOO_MANY_ARGS:
        return ValueError(
            f"the arguments take {W.COUNTS_BYTES + len(wire)} bytes, a mailbox holds "
            f"{L.MAILBOX_ARGS_CAPACITY}: {W.COUNTS_BYTES} + {W.TENSOR_BYTES} per tensor + "
            f"{W.SCALAR_BYTES} per scalar; pass fewer, or put the numbers into a tensor"
        )
    if code == L.ILLEGAL:
        return ValueError(
            f"{len(wire)} bytes are not the tensors and scalars that were announced; build "
            "arguments with TaskArgs"
        )
    assert code == L.TOO_LARGE, code
    return RuntimeError(
        f"a request exceeds per-ring heap size: {mib(requested_bytes(wire))} were asked for, a "
        f"ring has {mib(ring_bytes)}; give Worker(heap_ring_size=…) a larger value"
    )


class ScopeGuard:
    """``with orch.scope():`` — opens a scope, and ends it and what was left open inside it."""

    __slots__ = ("_depth", "_orch")

    def __init__(self, orch: Orchestrator) -> None:
        self._orch = orch
        self._depth = 0

    def __enter__(self) -> None:
        if self._depth:
            raise RuntimeError("this scope is open already: call orch.scope() for each with")
        self._orch.scope_begin()
        self._depth = self._orch._depth()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        orch, depth = self._orch, self._depth
        self._depth = 0
        if orch._thread == -1:  # the run is over, or is another process's that this was forked from
            return
        if orch._depth() < depth:
            if error is None:
                raise RuntimeError(
                    "scope_end without scope_begin: this scope was ended inside its with block"
                )
            return
        while orch._depth() >= depth:
            orch.scope_end()


def _submit_visible(
    submit: Callable[..., int], mem: Array, word: int, counts: int, size: int, wire: bytes
) -> int:
    """Submit a task, or a group, if spawned workers have the memory of its tensors."""
    visibility.require_wires_visible(W.each_tensor(W.tensors_of(wire, counts)))
    return submit(mem, word, counts, size, wire)


def asked_for(wire: bytes, counts: int) -> bytes:
    """Return the tensors of some arguments, and as many bytes as the scalars have in a mailbox."""
    tensors = W.tensors_of(wire, counts)
    return tensors + bytes(W.blob_bytes(counts) - len(tensors))


def number_layouts(wires: list[bytes], layouts: Layouts) -> None:
    for i, wire in enumerate(wires):
        if isinstance(wire, W.DescribedWire):
            wires[i] = wire.numbered(layouts.number(*wire.layout))


__all__ = ["Orchestrator", "ScopeGuard"]
