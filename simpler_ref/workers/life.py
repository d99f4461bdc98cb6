"""The life of a Worker: before init, open, closed; its workers, and the one thing it does at a time.

Who holds whom::

    Worker ── Life ─┬─ Settings, Registry     what it was made with; what is registered
                    ├─ Tree ─ kinds           its workers before they are made; some have a Worker
                    ├─ stream                 its calls, once there is one
                    └─ Session ─┬─ engine, arena         the memory
                                ├─ manager, scheduler    the workers at work, and who schedules
                                ├─ recorder, below       traces
                                ├─ chips, domains ─ Life they may have to start workers
                                └─ orch ─ Session        what orchestration functions get

The Life is there as long as the Worker, and says what may be done at the moment. The Session is there
while the Worker is open, has what must be closed, and is closed without the Worker, which may be gone by
then.

Rule     CALL-STREAM-4, -5, -8; CALL-CANCEL-5; ORCH-RUN-2, -9; ORCH-MISUSE-8; SPEED-REPLAY-1;
         FLOW-REG-7; WM-POOL-2
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from ..callables.registry import Registry
from ..engine.memory import PARK_NS, Engine
from ..engine.shared_arrays import Arena
from ..model import visibility
from ..system.cores import Placement
from ..system.signals import MOST_SIGNALS, until_done
from . import top_server
from .failures import recover
from .installer import Installer
from .manager import WorkerManager
from .memory import MemoryUsers
from .options import Settings
from .processes import StartMethod
from .remote_workers import RemoteWorkers
from .session import Session
from .tree import Tree

T = TypeVar("T")
IN_TASK = (
    "a task cannot submit tasks of its own, nor run or close its Worker: call the function directly, or "
    "return what is to be done next, and submit it in the program"
)
NO_WAIT = 3
"""How many signals it takes until `Life.close` waits for no more calls."""
_OF_THIS_PROCESS = frozenset(
    (
        *("lock", "turnstile", "_in_run", "session", "stream", "entered"),
        *("_method", "_forget_check", "_finalizer"),
    )
)


def _nothing_is_invisible(_address: int, _nbytes: int) -> str | None:
    """Accept all memory of the process."""
    return None


class Life:
    """What is true of a Worker at this moment, and what may be done with it then.

    A parent takes care of its child Workers: it starts them in the worker that runs each, which is
    another process unless its workers are threads.

    Attributes
    ----------
    session : Session | None
        What the Worker owns while it is open.
    entered : Any
        In a with block, what opens the Worker when it is first used; None outside.
    closed : bool
        It was closed, and is not opened again unless by a parent.
    running : bool
        A run, or a recording, is in progress.
    endpoints : RemoteWorkers
        Its workers on other machines.
    stream : Any
        The stream of calls, None until there is a call.
    streaming : bool
        The stream is open: calls may be alive.
    needs_start : bool
        The next run starts all workers.
    parent_level : int
        Level of the Worker it is a child of; 0 if it is no child.
    placement : Placement | None
        The cores that a parent has given to it.
    workers_before : int | None
        Of a session on its parent's machine: how many workers of other endpoints get a core before.
    lock : threading.RLock
        Taken to change any of these.
    turnstile : threading.RLock
        Runs, and the first of the calls after one, begin in the order in which they get it.
    """

    def __init__(self, options: Settings, tree: Tree, registry: Registry) -> None:
        self.options = options
        self.tree = tree
        self.registry = registry
        self.session: Session | None = None
        self.entered: Any = None
        self._method: StartMethod | None = None
        """Before the Worker is open, of a with block: how its workers will be started."""
        self.closed = False
        self.running = False
        self.endpoints = RemoteWorkers()
        self.stream: Any = None
        self.dry: Any = None
        """What takes calls in place of the stream while the graph of a function is made."""
        self.traced_by: Any = None
        """A weak reference to the `Tracing` in whose block a trace is taken."""
        self.streaming = False
        self.needs_start = True
        self.parent_level = 0
        self.placement: Placement | None = None
        self.workers_before: int | None = None
        self._make_locks()
        self._away_from = 0

    def _make_locks(self) -> None:
        self.lock, self.turnstile = threading.RLock(), threading.RLock()
        self._in_run = threading.RLock()
        """The thread of a run has it."""
        self._runner = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a child makes again in a fresh interpreter."""
        return {name: it for name, it in vars(self).items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, session=None, stream=None, entered=None, _method=None)
        self._make_locks()

    # ------------------------------------------------------------ what it allows
    def live(self) -> Session:
        """Return the session; refuse a Worker that is not open, or another process's."""
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
            if self.session is None and self.entered is not None and mine:
                self.entered.open()
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
            return "this Worker is closed; make a new one"
        return "this Worker is not initialized: call init() first, or use it in a with block"

    def require_not_closed(self) -> None:
        """Refuse a Worker that is closed."""
        if self.closed:
            raise RuntimeError("this Worker is closed; make a new one")

    def require_before_init(self, what: str) -> None:
        """Refuse what must come before `init`."""
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
        """Say whether this thread is that of a run."""
        return self.running and self._runner == threading.get_ident()

    def refuse_in_own_run(self) -> None:
        """Refuse a call in an orchestration function, and in a task of a thread."""
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

    # ------------------------------------------------------------ the stream of calls
    def prepare_stream(self) -> None:
        """Have all workers at work, for calls."""
        session = self.live()
        recover(session)
        self.start_workers(session)

    def finish_stream(self) -> None:
        """Wait until all calls have ended."""
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
            next_level=len(self.tree.next_level),
            sub=len(self.tree.subs),
            endpoints=len(self.tree.endpoints()),
            depth=options.mailbox_depth,
            blocks_size=options.values_size if self.takes_calls else 0,
            track_reads=options.track_reads,
            placement=self._place(),
        )
        arena = Arena(options.arena_size)
        arena.on_reuse = self._forget_memory
        arena.in_use.users = MemoryUsers(self, engine)
        return Session(
            engine,
            arena,
            self.tree,
            self.registry,
            options,
            self._method or self._new_method(),
        )

    def _forget_memory(self, low: int, high: int) -> None:
        """Have calls know that what was in some memory is gone, before another array is there."""
        if self.stream is not None:
            self.stream.forget_memory(low, high)

    @property
    def takes_calls(self) -> bool:
        """Whether it has workers that take calls: sub workers, or endpoints with some."""
        return bool(self.tree.subs) or self.endpoints.sub_workers > 0

    def enter(self, entrance: Any, worker: object) -> None:
        """Note that the program is in a with block, where it may refer to what workers will see."""
        self.entered = entrance
        if self.session is None and self._method is None:
            self._method = self._new_method()
            check: visibility.Visible = partial(self._method.why_invisible, started=False)
            if self.options.in_process:
                check = _nothing_is_invisible
            visibility.add_visibility(check)
            self._forget_check = weakref.finalize(worker, visibility.remove_visibility, check)

    def _leave_entrance(self) -> None:
        """Forget what `enter` has noted for the time before the Worker is open."""
        if self._method is not None:
            self._method = None
            self._forget_check()

    def _new_method(self) -> StartMethod:
        options = self.options
        return StartMethod("fork" if options.child_mode == "thread" else options.start_method)

    def begin(self, session: Session, worker: object) -> None:
        """Own what `open` has returned; it is taken down with the Worker at the latest."""
        self._finalizer = weakref.finalize(worker, self.release)
        self.session = session
        self._leave_entrance()
        visibility.add_visibility(session.why_invisible)

    def _place(self) -> Placement:
        """Look at the cores, unless the parent has, and give out turns to all workers of the tree."""
        if self.placement is None:
            threads = 1 + self.tree.threads()
            self.placement = Placement.find(
                threads,
                pin=self.options.pin,
                spin_us=self.options.spin_us,
                before=self.workers_before,
                is_far=self.tree.has_endpoints,
            )
        return self.tree.place(self.placement)

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
        self._leave_entrance()
        top_server.leave(self)
        with self.lock:
            if self.stream is not None:
                self.stream.close()
                self.stream = None
            if self.session is not None:
                self.session.take_down()
                self._finalizer.detach()
                self.session = None

    # ------------------------------------------------------------ workers
    def start(self) -> None:
        """Start the workers outside of a run, after what the last one may have left behind."""
        with self.lock:
            if self.running:
                raise RuntimeError("start during a run: the run has started the workers itself")
            session = self.live()
            if not self.streaming:  # calls have theirs replaced
                recover(session)
                self.start_workers(session)

    def start_workers(self, session: Session, dead: Sequence[int] | None = None) -> None:
        """Start the workers that are missing: at first all, later those lost, or some of these."""
        with self.lock:  # they are not started beside `release`, or after it
            if session is not self.session:
                raise RuntimeError(self._why_not_open())
            self.start_missing(session, dead)

    def start_missing(self, session: Session, dead: Sequence[int] | None = None) -> None:
        """Do so in a run, beside which nobody closes, or with the lock."""
        manager = session.manager
        anew = self.needs_start or (manager is not None and manager.lost)
        if manager is not None and manager.silent:
            manager.welcome_back()
        if not anew and (manager is None or not manager.dead or not manager.known_dead()):
            return
        try:
            with self.registry.lock:  # a registration finds all workers made, or none
                self.needs_start = True  # should this be cut short, the next run does it all again
                if anew:
                    if self.options.child_mode == "process":
                        self._send_children_away()
                    session.start_anew()
                    top_server.listen(self)
                else:
                    session.replace_dead(dead)
                self.needs_start = False
        except BaseException:
            self.end_workers(session)
            raise

    @property
    def installer(self) -> Installer | None:
        """What installs callables in the workers; None while they are not running."""
        return None if self.session is None or self.needs_start else self.session.installer

    def end_workers(self, session: Session) -> None:
        """End all workers; the next start makes them anew."""
        with self.lock:
            self.needs_start = True
            session.stop_workers()

    def _send_children_away(self) -> None:
        """Note that the Workers below this one will run in another process than this one."""
        for inner in self.tree.nested():
            inner._life._away_from = os.getpid()
            inner._life._send_children_away()

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
        self.entered = self._method = None
        if self.stream is not None:
            self.stream.disown()
            self.stream = None
        orch = None if self.session is None else vars(self.session).get("orch")
        if orch is not None:  # the other process was not just closing it
            orch._close()
