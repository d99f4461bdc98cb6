"""An engine moved by hand: its Scheduler, its Orch thread and its workers take a step when you say so.

`Stepper` is a Worker without processes and threads. You submit with its Orchestrator, take one step after
another, and look at what each has changed::

    Orch thread                    Scheduler                     workers
    stepper.orch.submit_sub(…)     stepper.wire()                stepper.workers[0].take()
    stepper.orch.scope_begin()     stepper.dispatch()            stepper.workers[0].answer()
    stepper.orch.scope_end()       stepper.collect()             stepper.workers[0].serve(): both
    stepper.reclaim()              stepper.run_pass(): all three

`stepper.show()` prints tasks, queues, workers, rings, scopes and keys; in a notebook a Stepper is drawn.
Each part can also be had alone, with the documents' methods, over a small memory of its own: `Ring`,
`TensorMap`, `Scope`, `TaskSlots`, `Mailbox`, `Scheduler`, `WorkerThread`, `WorkerManager`. All of them
call the kernels that every Worker runs.

Rule     HIER-API-1, HIER-STEP-1, HIER-STEP-2, HIER-STEP-3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from html import escape
from threading import get_ident
from typing import Any

from .calls.tasks import here, local
from .engine.introspection import RingView
from .engine.memory import Engine
from .engine.structures import (
    INVALID,
    AllocResult,
    Mailbox,
    Part,
    Ring,
    Scope,
    TaskSlots,
    TensorMap,
    small_engine,
)
from .engine.view.mailbox import MailboxView, ReceivedArgs
from .engine.view.slots import Names, TaskView
from .jit import layout as L
from .model import visibility
from .model.enums import MailboxState, TaskState, WorkerType
from .orch.orchestrator import Orchestrator, orchestrator_of
from .step_trace import StepTrace, trace_file
from .system.values import position
from .worker import Worker
from .workers.loop import LocalCallables
from .workers.reports import write_error


class Scheduler(Part):
    """The Scheduler: the three phases of its pass, one by one or together, and its queues."""

    def wire(self) -> int | None:
        """Wire the oldest submitted task; return it, None if there is none."""
        slot = self._steps.wire_next(self._mem)
        return None if slot == L.NONE else self._task(slot)

    def dispatch(self, worker_type: int = WorkerType.SUB) -> int:
        """Give ready tasks of a type to idle workers; return how many left their queue."""
        return int(self._steps.dispatch_ready(self._mem, WorkerType(worker_type)))

    def collect(self) -> int:
        """Collect the answers of workers; return how many there were."""
        return int(self._steps.collect(self._mem))

    def run_pass(self) -> int:
        """Run a whole pass: wire all, dispatch either type, collect; return how much moved."""
        return int(self._steps.scheduler_pass(self._mem))

    def settle(self) -> None:
        """Run passes until nothing moves."""
        while self.run_pass():
            pass

    def wiring_queue(self) -> list[int]:
        """Return the tasks that wait to be wired, oldest first."""
        return self._tasks(self._view.wiring_queue())

    def ready_queue(self, worker_type: int = WorkerType.SUB) -> list[int]:
        """Return the READY tasks of a type that name no worker, oldest first."""
        return self._tasks(self._view.ready_queue(WorkerType(worker_type)))

    def consumed_list(self) -> list[int]:
        """Return the CONSUMED tasks that wait for the Orch thread."""
        return self._tasks(self._view.consumed_list())


_SKIPS = (L.SKIPPED, L.RETURNED)
"""A task is answered with one of these, and does not start."""


class WorkerThread(Part):
    """One worker and its mailbox; each turn of either side is a call, there is no thread.

    Parameters
    ----------
    worker : Any
        What runs tasks: a function of their arguments, or an object with ``run(callable, view, config)``.
    engine : Part | Engine, optional
        The one that it is a worker of.
    index : int
        Its number there.
    """

    def __init__(
        self, worker: Any = None, engine: Engine | Part | None = None, index: int = 0
    ) -> None:
        super().__init__(engine, sub=1)
        self.index = index
        self.mailbox = Mailbox(self._engine, index)
        self.slots = TaskSlots(self._engine)
        self._worker = worker
        self._words = MailboxView(self._engine, index)
        self._on_done: Callable[[int], None] = lambda task: None
        self._is_stopped = False

    def start(self, on_done: Callable[[int], None] = lambda task: None) -> None:
        """Get ready: INIT_DONE. `on_done` is called with each task that `poll` finds done."""
        self._on_done = on_done
        self._kernels.report_ready(self._mem, self.index)
        self._kernels.set_usable(self._mem, self.index, 1)

    def stop(self) -> None:
        """Ask the worker to stop: SHUTDOWN, or once it has answered its task. It gets no more tasks."""
        self._is_stopped = True
        self._kernels.request_stop(self._mem, self.index)

    def is_idle(self) -> bool:
        """Say whether it is started and has no task."""
        return not self._is_stopped and bool(self._steps.is_idle(self._mem, self.index))

    def tasks(self) -> list[int]:
        """Return the tasks that it was sent and that are not collected, oldest first."""
        return self._tasks(self._words.given_slots())

    # ------------------------------------------------------------ parent side
    def dispatch(self, slot_id: int) -> None:
        """Encode a READY task into the mailbox: TASK_READY.

        Raises RuntimeError if the task is not READY, is a group, or not for this worker; or this has no
        room.
        """
        slot = self._slot(slot_id)
        if self._is_stopped or self._steps.dispatch_to(self._mem, slot, self.index) != L.OK:
            state = self.slots.state(slot_id).name
            raise RuntimeError(
                f"task {slot_id}, {state}, cannot be sent to worker {self.index}: it must be READY, no "
                "group and of its pool, and the worker idle"
            )

    def poll(self) -> list[int]:
        """Look for TASK_DONE and collect; return the tasks that are done."""
        before = self.tasks()
        self._steps.collect_from(self._mem, self.index)
        after = self.tasks()
        done = [task for task in before if task not in after]
        for task in done:
            self._on_done(task)
        return done

    # ------------------------------------------------------------ worker side
    def _turn(self) -> int:
        """Say whether the task in the mailbox may start: OK, or one of `_SKIPS`; WOULD_BLOCK: not now."""
        return int(self._steps.may_start(self._mem, self.index))

    def take(self) -> ReceivedArgs:
        """Receive the task in the mailbox; return its arguments, which have its configuration.

        Raises RuntimeError if there is none, or it may not start yet; or the bytes are no task's.
        """
        if self._turn() != L.OK:
            state, stops = self.mailbox.read_state().name, ", and it stops" * self._is_stopped
            raise RuntimeError(
                f"worker {self.index} has no task to take that may start: its mailbox is {state}{stops}"
            )
        self._steps.receive(self._mem, self.index)
        return self.mailbox.decode()[1]

    def answer(self, error: BaseException | None = None) -> None:
        """Answer the task: TASK_DONE, with an error if there is one."""
        state, frame = self.mailbox.read_state(), self._words.served
        if state != MailboxState.TASK_READY:
            raise RuntimeError(f"worker {self.index} has no task to answer: it is {state.name}")
        if error is not None:
            write_error(self._words.box(frame), self._words.trace(frame), error)
        outcome = L.SUCCESS if error is None else L.TASK_FAILURE
        self._steps.post_done(self._mem, self.index, outcome)

    def skip(self) -> None:
        """Answer a task that need not start, since another member of its group has failed: TASK_DONE."""
        if self._turn() not in _SKIPS:
            raise RuntimeError(f"worker {self.index} was not told to skip a task")
        self._steps.receive(self._mem, self.index)

    def serve(self) -> None:
        """Take the task, run it here and answer it: one round of the documents' child loop."""
        if self._turn() in _SKIPS:
            self.skip()
            return
        args = self.take()
        digest, error = self.mailbox.decode()[0], None
        try:
            self.run(digest, args)
        except Exception as exception:
            error = exception
        args._box = None
        self.answer(error)

    def run(self, digest: bytes, args: ReceivedArgs) -> None:
        """Run a task on what this was made with."""
        if hasattr(self._worker, "run"):
            self._worker.run(digest, args, args.config())
        elif self._worker is not None:
            self._worker(args)


class WorkerManager:
    """The pools of workers: added, started, picked, each a `WorkerThread`."""

    slots: TaskSlots
    """The tasks that workers can be given, from `start` on."""
    scheduler: Scheduler

    def __init__(self) -> None:
        self._workers: tuple[list[Any], list[Any]] = [], []
        self.threads: list[WorkerThread] = []

    def _add(self, worker_type: WorkerType, worker: Any) -> None:
        if self.threads:
            raise RuntimeError("the workers have started: add others to a new WorkerManager")
        self._workers[worker_type].append(worker)

    def add_next_level(self, worker: Any = None) -> None:
        """Add a next-level worker, before `start`; see `WorkerThread`."""
        self._add(WorkerType.NEXT_LEVEL, worker)

    def add_sub(self, worker: Any = None) -> None:
        """Add a sub worker, before `start`; see `WorkerThread`."""
        self._add(WorkerType.SUB, worker)

    def start(self, on_complete: Callable[[int], None] = lambda task: None) -> None:
        """Make the memory and start all workers; `on_complete` gets each task that is done."""
        next_level, sub = self._workers
        if self.threads or not (next_level or sub):
            raise RuntimeError("start comes once, after add_next_level and add_sub")
        engine = small_engine(next_level=len(next_level), sub=len(sub))
        self.slots, self.scheduler = TaskSlots(engine), Scheduler(engine)
        self.threads = [WorkerThread(w, engine, i) for i, w in enumerate(next_level + sub)]
        for thread in self.threads:
            thread.start(on_complete)

    def _require_started(self) -> None:
        if not self.threads:
            raise RuntimeError("the workers have not started: call start")

    def stop(self) -> None:
        """Stop all workers."""
        for thread in self.threads:
            thread.stop()

    def pick_idle(self, worker_type: int) -> WorkerThread | None:
        """Return an idle worker of a pool, None if there is none: nothing waits here."""
        self._require_started()
        found = self.slots._steps.pick_idle(self.slots._mem, WorkerType(worker_type))
        return self.threads[found] if found >= 0 and self.threads[found].is_idle() else None

    def pick_n_idle(self, worker_type: int, n: int) -> list[WorkerThread]:
        """Return `n` idle workers of a pool, none if there are fewer."""
        self._require_started()
        pool = self.slots._view.pool(WorkerType(worker_type))
        idle = [self.threads[worker] for worker in pool if self.threads[worker].is_idle()]
        return idle[:n] if len(idle) >= n else []

    def dispatch(self, wt: WorkerThread, slot_id: int) -> None:
        """Send a READY task to a worker."""
        wt.dispatch(slot_id)


# ---------------------------------------------------------------- all parts over one memory
class Steps(TaskSlots, Scheduler):
    """All parts over one engine.

    Attributes
    ----------
    ring : RingView
        Its rings and live tasks, to look at.
    tensormap : TensorMap
    scope : Scope
    workers : list[WorkerThread]
    """

    def __init__(
        self, engine: Engine | Part | None = None, names: Names | None = None, **size: Any
    ) -> None:
        super().__init__(engine, names, **size)
        self.ring = RingView(self._engine, self.names)
        self.tensormap, self.scope = TensorMap(self._engine), Scope(self._engine)
        self.workers = [WorkerThread(None, self._engine, i) for i in range(self._view.workers)]
        self._known: dict[int, TaskView] = {}
        """Each task of the run that a look has found, as it was last."""
        self._seen: dict[tuple[int, int], str] = {}
        """The names of tensors outside of the rings."""

    def kill(self, worker: int, code: int = -9) -> None:
        """Report a worker dead, as the thread that watches processes does."""
        self._kernels.report_death(self._mem, position("worker", worker, self._view.workers), code)

    def finish_run(self, *, cancel: bool = False) -> None:
        """End every open scope, as the end of the orchestration function does."""
        self._kernels.finish_run(self._mem, int(cancel))

    def finish_tasks(self) -> list[int]:
        """Run passes and have workers serve their tasks until nothing moves; return these, in order."""
        order: list[int] = []
        while True:
            self.settle()
            busy = [thread for thread in self.workers if thread._turn() != L.WOULD_BLOCK]
            if not busy:
                return order
            order += busy[0].tasks()[:1]
            busy[0].serve()

    def producers(self, task: int) -> list[int]:
        """Return the tasks to which a task has an edge, those kept only for their memory included."""
        return self._tasks(self._view.producers(self._slot(task)))

    def consumers(self, task: int) -> list[int]:
        """Return the tasks that are wired to a task and wait for it."""
        return self._tasks(self._view.consumers(self._slot(task)))

    # ------------------------------------------------------------ looking at it
    def _look(self) -> list[TaskView]:
        """Return a look at each live task."""
        found = [self.slot_state(task) for task in self.live_tasks()]
        for one in found:
            before = self._known.get(one.task_id)
            for args in one.task_args_list:
                for tensor in args.tensors:
                    self._place(tensor.data, -1)
            producers = one.fanin_producers or (before.fanin_producers if before else ())
            self._known[one.task_id] = one._replace(fanin_producers=producers)
        for gone in self._known.keys() - {one.task_id for one in found}:
            self._known[gone] = self._known[gone]._replace(state=TaskState.FREE)
        return found

    def _in_ring(self, address: int) -> tuple[int, int] | None:
        """Return the ring that an address is in, and its offset there; None if it is in none."""
        for number in range(self.ring.ring_count()):
            offset = address - self.ring.heap_base(number)
            if 0 <= offset < self.ring.heap_size(number):
                return number, offset
        return None

    def _place(self, address: int, owner: int) -> str:
        """Return where a tensor is: its offset in a ring, or a name in the order of their uses."""
        if (found := self._in_ring(address)) is not None:
            return f"ring {found[0]} + {found[1]}"
        return self._seen.setdefault((address, owner), f"t{len(self._seen)}")

    def __str__(self) -> str:
        rows = [_row(*_COLUMNS), *(_row(*_cells(one)) for one in self._look()), ""]
        others = self._others()
        width = max([12, *map(len, others)])
        rows += [f"{what:<{width}} {text}" for what, text in others.items()]
        return "\n".join(row.rstrip() for row in rows)

    def _others(self) -> dict[str, str]:
        """Return what there is beside tasks: queues, mailboxes, rings in use, scopes, the TensorMap."""
        queues = {"wiring": self.wiring_queue()}
        for kind in WorkerType:
            if self._view.pool(kind):
                queues[f"ready {kind.name}"] = self.ready_queue(kind)
        for worker in range(self._view.workers):
            if named := self._tasks(self._view.affinity_queue(worker)):
                queues[f"for {self.names.worker_name(worker)}"] = named
        queues["consumed"] = self.consumed_list()
        found = {what: _listed(tasks) for what, tasks in queues.items()}
        for one in self.workers:
            given = f", task {_listed(one.tasks())}" if one.tasks() else ""
            found[self.names.worker_name(one.index)] = one.mailbox.read_state().name + given
        for ring in range(self.ring.ring_count()):
            if held := self.ring.heap_held(ring):
                ends = f"tail {self.ring.heap_tail(ring)}, top {self.ring.heap_top(ring)}"
                found[f"ring {ring}"] = f"{ends}: {held} bytes held"
        for depth in range(self.scope.depth()):
            found[f"scope {depth}"] = _listed(self.scope.tasks(depth))
        entries = self._view.map_entries().items()
        keys = sorted((self._task(slot), self._place(*key)) for key, (slot, _) in entries)
        if keys:
            found["tensormap"] = ", ".join(f"{place} → {task}" for task, place in keys)
        return found

    def show(self) -> None:
        """Print tasks, queues, mailboxes, rings, scopes and keys."""
        print(self)

    def _repr_svg_(self) -> str:
        """Draw the tasks and their edges, with what there is beside them, for a notebook."""
        self._look()
        return _drawn(self._known, self._others())


def _listed(tasks: Any) -> str:
    return " ".join(map(str, tasks)) or "–"


_COLUMNS = {
    "task": 4,
    "state": 9,
    "callable": 10,
    "fanin": 5,
    "fanout": 6,
    "producers": 9,
    "consumers": 9,
    "worker": 12,
    "memory": 0,
}
"""With their widths."""


def _row(*cells: str) -> str:
    return "  ".join(map(str.ljust, cells, _COLUMNS.values()))


def _cells(one: TaskView) -> tuple[str, ...]:
    memory = f"ring {one.ring_idx}, {one.slab.nbytes} bytes" if one.slab else ""
    return (
        str(one.task_id),
        one.state.name,
        one.callable or "alloc",
        f"{one.fanin_released}/{one.fanin_count}",
        f"{one.fanout_released}/{one.fanout_total + 1}",
        _listed(one.fanin_producers),
        _listed(one.fanout_consumers),
        " ".join(one or "–" for one in one.workers) or one.worker or "–",
        memory,
    )


_COLOURS = {
    TaskState.FREE: "#eeeeee",
    TaskState.PENDING: "#dddddd",
    TaskState.READY: "#ffe08a",
    TaskState.RUNNING: "#9ecbff",
    TaskState.COMPLETED: "#a8e6a3",
    TaskState.CONSUMED: "#d8c8f0",
    TaskState.FAILED: "#ffaaaa",
}
_WIDE, _HIGH, _ACROSS, _DOWN = 132, 40, 148, 84
"""Of a task, and from one to the next."""


def _drawn(tasks: dict[int, TaskView], others: dict[str, str]) -> str:
    """Return a picture: a task stands below all those that it needs, an arrow leads from each of them."""
    rows: dict[int, int] = {}
    places: dict[int, tuple[int, int]] = {}
    used: Counter[int] = Counter()
    for task in sorted(tasks):
        row = max((rows[one] + 1 for one in tasks[task].fanin_producers if one in rows), default=0)
        places[task] = 8 + used[row] * _ACROSS, 8 + row * _DOWN
        rows[task] = row
        used[row] += 1
    arrows, boxes = [], []
    for task, (x, y) in places.items():
        look = tasks[task]
        for left, top in (places[one] for one in look.fanin_producers if one in places):
            arrows.append(
                f'<path d="M{left + _WIDE // 2},{top + _HIGH} L{x + _WIDE // 2},{y}" '
                'stroke="black" marker-end="url(#to)"/>'
            )
        counts = f"{look.fanout_released}/{look.fanout_total + 1}" if look.state else ""
        boxes.append(
            f'<rect x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="6" stroke="black" '
            f'fill="{_COLOURS[look.state]}"/>'
            f'<text x="{x + 8}" y="{y + 16}">{task} {escape((look.callable or "alloc")[:16])}</text>'
            f'<text x="{x + 8}" y="{y + 32}">{look.state.name}</text>'
            f'<text x="{x + _WIDE - 8}" y="{y + 32}" text-anchor="end">{counts}</text>'
        )
    below = 20 + _DOWN * (1 + max(rows.values(), default=-1))
    for i, (what, text) in enumerate(others.items()):
        boxes.append(f'<text x="8" y="{below + 18 * i}">{escape(what)}: {escape(text)}</text>')
    wide = max([300, *(x + _ACROSS for x, _ in places.values())])
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" '
            f'height="{below + 18 * len(others)}" font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>'
            '<marker id="to" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z"/></marker>',
            *arrows,
            *boxes,
            "</svg>",
        ]
    )


# ---------------------------------------------------------------- with a Worker and its Orchestrator
class _Orchestrator(Orchestrator):
    """An Orchestrator beside which nothing moves by itself."""

    def _until_idle(self) -> None:
        if self._view.ended < self._view.pushed - self._pushed_before:
            raise RuntimeError(
                "drain would wait for ever: in a Stepper tasks move only when you move them; call its "
                "finish_tasks, or wire, dispatch, serve and collect"
            )


class Stepper(Steps):
    """A Worker of level 3 whose threads and workers you play, with a run open.

    Tasks run in this process, by `serve`. Nothing waits: what would, raises.

    Parameters
    ----------
    worker : Worker, optional
        One that is not open yet; by default one made with the options, two sub workers and small rings.
    record : path, optional
        A file for a scheduler trace of all steps, written by `close`.

    Attributes
    ----------
    worker : Worker
        For `share`, `empty`, `zeros` and `register`.
    orch : Orchestrator
        That of the open run.
    """

    def __init__(self, worker: Worker | None = None, *, record: Any = None, **options: Any) -> None:
        defaults = {"num_sub_workers": 2, "heap_ring_size": 1 << 16, "alloc_timeout_s": 0}
        self.worker = Worker(3, **defaults | options) if worker is None else worker
        life = self.worker._life
        if life.session is not None or life.entered:
            raise RuntimeError("this Worker is open already: give a Stepper one that is not")
        path = None if record is None else trace_file(record, self.worker._life.options)
        self.worker.init()
        session = self.worker._session
        assert session is not None
        self._session = session
        super().__init__(session.engine, session)
        self._tables: dict[int, LocalCallables] = {}
        """Of the workers that have run a task, their callables."""
        self._spaces: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        """What this thread has while it is a worker."""
        for thread in self.workers:
            thread.run = partial(self._run, thread.index)  # type: ignore[method-assign]
            thread.start()
        self._outer = visibility.current.check, visibility.current.kept
        self._steps_taken = None if path is None else StepTrace(self, path)
        self._open_run()

    def register(self, target: Callable[..., Any]) -> Any:
        """Register a callable, also when the run is open; return its handle."""
        handle = self.worker.register(target)
        self._session.registry.write_digests(self._engine)
        self.orch._close()
        self.orch._open(*self._session.words)
        return handle

    def _run(self, worker: int, digest: bytes, args: ReceivedArgs) -> None:
        """Run a task as its worker's process would, which starts with the first one here."""
        target = self._session.registry.installed(digest)
        if target is None:
            raise KeyError(f"digest {digest.hex()} is not installed in this worker")
        with self._inside(worker):
            kind = self._session.kinds[worker]
            if worker not in self._tables:
                kind.start(MailboxView(self._engine, worker))
                self._tables[worker] = LocalCallables(kind, {})
            table = self._tables[worker]
            table.install(digest, target)
            table.leaves[table.slots[digest]](args)

    @contextmanager
    def _inside(self, worker: int) -> Iterator[None]:
        """Let this thread be that of a worker, with what its tasks have left there."""
        spaces = vars(here), vars(local)
        outside = [space.copy() for space in spaces]
        for space, inside in zip(spaces, self._spaces.get(worker, ({}, {})), strict=True):
            space.clear()
            space.update(inside)
        try:
            yield
        finally:
            self._spaces[worker] = spaces[0].copy(), spaces[1].copy()
            for space, before in zip(spaces, outside, strict=True):
                space.clear()
                space.update(before)

    def _open_run(self) -> None:
        visibility.set_current(self._session.method.why_invisible)
        self._kernels.begin_run(self._mem)
        self._session.registry.write_digests(self._engine)
        self.orch = orchestrator_of(self._session)._for_next_run()
        self.orch.__class__ = _Orchestrator
        self.orch._open(*self._session.words)
        self._session.orch = self.orch
        if self._steps_taken is not None:
            self._steps_taken.begin_run()
        life = self.worker._life  # this thread is that of the run: no other may begin
        life.running, life._runner = True, get_ident()
        self._steps.hold_pass(self._mem)  # a submit leaves its pass out then

    def finish_run(self, *, cancel: bool = False) -> None:
        """End every open scope, the run's own included, as the end of the orchestration function does."""
        self.orch._close()
        self._steps.give_pass(self._mem)
        super().finish_run(cancel=cancel)
        self._steps.hold_pass(self._mem)

    def begin_run(self) -> None:
        """Reset the engine after a run of which no task is live, else RuntimeError; open the next one."""
        if self.live_tasks():
            raise RuntimeError(
                f"tasks {_listed(self.live_tasks())} are live: finish and reclaim them first"
            )
        self._kernels.end_run(self._mem)
        self._steps.give_pass(self._mem)
        self._known.clear()
        self._open_run()

    def close(self) -> None:
        """Close the Worker."""
        if self._steps_taken is not None:
            self._steps_taken.save()
        self.orch._close()
        self._steps.give_pass(self._mem)
        for table in self._tables.values():
            table.kind.stop()
        self._tables.clear()
        self.worker._life.running = False
        visibility.set_current(*self._outer)
        self.worker.close()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = [
    "INVALID",
    "AllocResult",
    "Mailbox",
    "Ring",
    "Scheduler",
    "Scope",
    "Stepper",
    "Steps",
    "TaskSlots",
    "TensorMap",
    "WorkerManager",
    "WorkerThread",
]
