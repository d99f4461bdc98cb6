"""The pools of workers: starting, watching, replacing and stopping them; what running ones are asked for,
through their mailboxes: to install callables, for memory, and for traces of the Workers below.

`WorkerManager` is what both modes share: live and dead workers, control requests. In PROCESS mode
(`processes.ProcessManager`) a worker is a process that the fork server forks; in THREAD mode
(`ThreadManager`) it is a thread of this process that serves a mailbox in the same memory.

Rule     FLOW-REG-2, FLOW-REG-4, FLOW-UNDO-1, FLOW-UNDO-2, FLOW-UNREG-3, FLOW-UNREG-4, REMOTE-REG-4,
         ORCH-RUN-8, ORCH-FAIL-4, REMOTE-LINK-10, REMOTE-FAIL-6, SCHED-DEATH-3, SPEED-DEPTH-1,
         SPEED-WAIT-4, WM-FORK-1, WM-LOOP-4, WM-CTRL-1, WM-CTRL-2, WM-CTRL-3, WM-CTRL-4, WM-CTRL-5,
         WM-CTRL-6, SEE-ON-4, SEE-REMOTE-1, WM-STOP-1, WM-MODE-1, WM-MODE-2, WM-THREAD-1, WM-THREAD-2,
         WM-THREAD-3, WM-THREAD-4
"""

from __future__ import annotations

import json
import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from ..callables.identity import TargetNamespace
from ..callables.pickling import read_staged, require_serialised, staged, staged_object
from ..callables.registry import Registered, Snapshot
from ..engine.memory import PARK_NS, Engine
from ..engine.view.mailbox import MailboxView
from ..errors import (
    CallableError,
    ControlError,
    ControlTimeoutError,
    NoMemoryError,
    WorkerLostError,
    WorkerStartError,
    describe_status,
)
from ..jit import layout as L
from ..model.visibility import Visible, invisible
from ..system.signals import raise_in, signals_blocked, take_back
from ..system.values import whole
from .containment import Relay
from .fork_server import GRACE_S
from .kinds import WorkerKind
from .loop import serve_mailbox
from .options import within
from .reports import read_error

log = logging.getLogger("simpler_ref")


def worker_name(kinds: Sequence[WorkerKind], worker: int) -> str:
    kind = kinds[worker]
    mates = [i for i, other in enumerate(kinds) if other.label == kind.label]
    return f"{kind.label} {mates.index(worker)}{kind.suffix}"


class LostBeforeError(WorkerLostError):
    """A worker died before it had begun a control request."""


class WorkerManager:
    """The workers of one Worker, in either mode: the next-level ones come first, then the sub workers."""

    in_threads = False
    """Whether the workers are threads of this process."""

    def __init__(
        self, engine: Engine, kinds: Sequence[WorkerKind], start_s: float, control_s: float
    ) -> None:
        self._engine, self._mem, self._kernels = engine, engine.mem, engine.kernels
        self.kinds = kinds
        self._start_timeout_s, self._control_timeout_s = start_s, control_s
        self._refusing = False
        self._closing = False
        self._known = threading.RLock()  # guards pids, dead, silent, lost
        self._heard = threading.Condition(self._known)  # notified of their changes
        self._control = [threading.RLock() for _ in kinds]  # one control request at a time
        self.pids: dict[int, int] = {}
        """Processes of the workers, ended ones included."""
        self.dead: dict[int, int] = {}
        """How each worker that is not alive ended (see `os.waitstatus_to_exitcode`)."""
        self.silent: set[int] = set()
        """Threads that have not answered a control request in time; they get no task before they do."""
        self.starting: dict[int, float] = {}
        """When the start of each worker was begun that is not ready yet, nor given up."""
        self._ready: set[int] = set()
        """Those of them that are ready: a request may have changed the state of their mailbox since."""
        self.lost = False
        """The fork server has ended: workers cannot be replaced singly, all must be restarted."""
        self._threads: dict[int, threading.Thread] = {}
        """The workers that are threads of this process."""
        self._terminated: set[int] = set()
        """Those that were told to end their task, in vain if that has ended by itself."""
        self.on_death: Callable[[int, int], None] = lambda worker, code: None
        """Told which worker has died, and how, on the thread that noticed."""
        self.relay: Relay | None = None
        """Brings what workers print to the streams of this process, if these are no files."""

    @property
    def is_whole(self) -> bool:
        return not (self.lost or self.silent or self.dead or self.starting)

    def is_my_thread(self) -> bool:
        return threading.current_thread() in self._threads.values()

    def name(self, worker: int) -> str:
        pid = f" (pid {self.pids[worker]})" if worker in self.pids else ""
        return worker_name(self.kinds, worker) + pid

    # ------------------------------------------------------------ start
    def start(self, snapshot: Snapshot, again: bool = False) -> Sequence[int]:
        """Make all workers from the present state of this process; return those that are ready.

        After an exception, `stop` cleans up. `again`: there were some before, of which those may stay
        lost that a Worker can do without. WorkerStartError: one ended, or was silent for too long.
        """
        self._get_ready(snapshot)
        return self._bring_up(self.present(), again)

    def present(self) -> list[int]:
        return [worker for worker, kind in enumerate(self.kinds) if not kind.is_vacant]

    def join(self, worker: int) -> None:
        """Take note of a worker for a place that was vacant: it is made as those that were lost are."""
        with self._known:
            self.dead[worker] = 0

    def leave(self, worker: int) -> None:
        """Stop a worker whose place becomes vacant; one that does not stop in time is killed."""
        with self._control[worker]:
            if worker not in self.dead:
                self._kernels.request_stop(self._mem, worker)
                self._wait_for_news(lambda: worker in self.dead or self.lost, GRACE_S)
            if worker not in self.dead:
                self._terminate_and_wait(worker)
            self._kernels.settle_deaths(self._mem)
            with self._known:
                self.dead.pop(worker, None)
                self.starting.pop(worker, None)

    def known_dead(self) -> list[int]:
        """Return the workers of whose deaths the Scheduler was told, and that are to be replaced now."""
        with self._known:
            gone = self.dead.keys() - self.starting.keys()
        return sorted(worker for worker in gone if self.kinds[worker].may_be_made())

    def dead_after(self, limit_s: float) -> list[int]:
        self._wait_for_news(lambda: bool(self.dead) or self.lost, limit_s)
        with self._known:
            return sorted(self.dead)

    def replace_dead(
        self, dead: Sequence[int] | None = None, beside: bool = False
    ) -> Sequence[int]:
        """Make a successor for every dead worker, or for some of them; return those that are ready.

        They have the callables that were registered when this manager started, and get no task before
        `admit`. `beside`: those that may take long are only begun, if any other worker lives; once
        `has_started` says so, another call of this returns them.
        """
        dead = self.known_dead() if dead is None else dead
        slow = [worker for worker in dead if beside and self._can_wait(worker)]
        for worker in slow:
            with self._control[worker]:
                self._begin(worker)
        ready = self._bring_up([worker for worker in dead if worker not in slow], True)
        for worker in list(self.starting):
            if beside and self._can_wait(worker) and not self._has_settled(worker):
                continue
            with self._control[worker]:
                if self._end_start(worker, True):
                    ready.append(worker)
        return ready

    def _can_wait(self, worker: int) -> bool:
        """Say whether a worker may take long to start, and another one lives."""
        gone = self.dead.keys() | self.starting.keys()
        return bool(self.kinds[worker].start_timeout_s and set(self.present()) - gone)

    def has_started(self) -> bool:
        """Say whether a worker whose start was only begun is ready, or is not going to be."""
        return any(self._has_settled(worker) for worker in list(self.starting))

    def _has_settled(self, worker: int) -> bool:
        begun = self.starting.get(worker)
        if begun is None or worker in self._ready:  # another thread has seen to it
            return True
        late = time.monotonic() > begun + self._start_timeout_s
        answer = self._kernels.wait_ready(self._mem, worker, 0)
        return late or self.lost or bool(answer != L.TIMED_OUT)

    def admit(self, workers: Iterable[int]) -> None:
        """Let the Scheduler use workers that are ready, except those that owe an answer to a request."""
        for worker in workers:
            if worker not in self.silent:
                self._kernels.set_usable(self._mem, worker, 1)

    def _bring_up(self, workers: Sequence[int], again: bool) -> list[int]:
        with ExitStack() as requests:  # no claim on a mailbox before its worker is ready
            for worker in workers:
                requests.enter_context(self._control[worker])
            for worker in workers:
                self._begin(worker)
            return [worker for worker in workers if self._end_start(worker, again)]

    def _begin(self, worker: int) -> None:
        self._kernels.set_usable(self._mem, worker, 0)
        with self._known:
            self.dead.pop(worker, None)
            self.pids.pop(worker, None)
            self.silent.discard(worker)
            self._ready.discard(worker)
            self._terminated.discard(worker)
            self.starting[worker] = time.monotonic()
        self._launch(worker)

    def _end_start(self, worker: int, again: bool) -> bool:
        """Wait until a worker is ready; False: it stays lost, and the others go on without it."""
        begun = self.starting[worker]
        deadline = int((begun + self._start_timeout_s) * 1e9)
        ready = self._wait_ready(worker, deadline) == L.OK and self._wait_for_birth(worker)
        self.starting.pop(worker, None)
        if not ready:
            why = self._why(worker)
            if not (again and self.do_without(worker, why, time.monotonic() - begun)):
                raise WorkerStartError(f"{self.name(worker)} did not start: {why}")
        return ready

    def do_without(self, worker: int, why: str, took_s: float = 0.0) -> bool:
        """Leave a worker lost that could not be made anew, if the others can go on without it."""
        if self.lost or not self.kinds[worker].stays_lost(why, took_s):
            return False
        if worker not in self.dead:
            self._terminate_and_wait(worker)
        log.warning("%s is still lost: %s", self.name(worker), self.kinds[worker].last_words())
        return True

    def _why(self, worker: int) -> str:
        message, trace = read_error(*MailboxView(self._engine, worker).report())
        if self.lost:
            return "the process that forks the workers has ended; it says on stderr why"
        if message:
            return f"{message}\n{trace}" if trace else message
        if worker in self.dead:
            return describe_status(self.dead[worker])
        return f"silent for {self._start_timeout_s} s"

    def _wait_ready(self, worker: int, deadline_ns: int) -> int:
        """Wait in slices, between which Python handles signals."""
        while worker not in self._ready:
            rest = deadline_ns - time.monotonic_ns()
            slice_ns = max(0, min(rest, PARK_NS))
            answer: int = self._kernels.wait_ready(self._mem, worker, slice_ns)
            if answer == L.OK:
                self._ready.add(worker)
            elif answer != L.TIMED_OUT or rest <= 0:
                return answer
        return L.OK

    def _mark_dead(self, worker: int, code: int) -> None:
        with self._known:  # no successor may have the worker's words before this is done
            self.dead[worker] = code
            if not self._closing:
                self._kernels.report_death(self._mem, worker, code)
            self._heard.notify_all()
        self.on_death(worker, code)

    # ------------------------------------------------------------ control requests
    def targets(self, namespace: TargetNamespace) -> list[int]:
        """Return the live workers that take callables of a namespace; others get them when they start."""
        with self._known:
            dead = self.dead.keys() | self.starting.keys()
        return [
            worker
            for worker, kind in enumerate(self.kinds)
            if kind.target_namespace == namespace and worker not in dead and not kind.is_vacant
        ]

    def control(
        self,
        worker: int,
        command: int,
        args: tuple[int, ...] = (),
        *,
        name: str = "",
        digest: bytes = b"",
        timeout_s: float | None = None,
    ) -> int:
        """Have a worker carry out a control request between two tasks, and return its result.

        It may take `timeout_s`, None: as long as the Worker's options say, a running task included; one
        that does not answer in time is killed, and a ControlTimeoutError raised. ControlError: it has
        refused, or is being stopped. WorkerLostError: it is dead; LostBeforeError: it had not begun.
        """
        timeout_s = self._control_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic_ns() + int(timeout_s * 1e9)
        asked, mailbox = False, MailboxView(self._engine, worker)
        with self._control[worker]:
            if worker in self.dead:
                raise self._lost(worker)
            if worker in self.silent and not self._heard_again(worker):
                raise ControlTimeoutError(
                    f"{self.name(worker)} has not answered an earlier control request yet"
                )
            if self._refusing:
                raise ControlError(f"{self.name(worker)} is being stopped")
            if worker in self.starting and self._wait_ready(worker, deadline) != L.OK:
                raise self._lost(worker)
            try:
                while True:  # Python runs its signal handlers between the steps
                    rest = deadline - time.monotonic_ns()
                    slice_ns = max(0, min(rest, PARK_NS))
                    with signals_blocked():
                        if asked:
                            answer = self._kernels.await_control(self._mem, worker, slice_ns)
                        else:
                            answer = self._kernels.claim_mailbox(self._mem, worker, slice_ns)
                            if answer == L.OK:
                                mailbox.put_request(command, args, name, digest)
                                asked = True
                                answer = self._kernels.request_control(self._mem, worker, slice_ns)
                        if answer == L.ILLEGAL:
                            raise self._lost(worker, asked and mailbox.has_begun)
                        if answer not in (L.TIMED_OUT, L.INTERRUPTED):
                            result = self._read_answer(worker, answer)
                            self._settle(worker)
                            return result
                        if rest <= slice_ns and answer == L.TIMED_OUT:
                            raise self._late(worker, timeout_s, asked)
            except BaseException:
                self._wait_for_answer(worker, deadline)
                raise

    def exchange(
        self, worker: int, command: int, request: bytes, timeout_s: float | None = None
    ) -> bytes:
        with staged(request) as name:
            size = self.control(worker, command, (len(request),), name=name, timeout_s=timeout_s)
            return read_staged(name, size)

    # ------------------------------------------------------------ callables
    def install_everywhere(self, one: Registered) -> None:
        """Have every live worker that takes such callables install one.

        One that dies before it is asked needs none: its successor gets all that is registered. If one
        cannot, the others forget it; REGISTER_CLEANUP_UNCERTAIN: one may not have.
        """
        done: list[int] = []
        try:
            for worker in self.targets(one.namespace):
                try:
                    self._prepare_callable(one, worker)
                    done.append(worker)
                except LostBeforeError:
                    if self.kinds[worker].has_two_phases:
                        raise
            for worker in done:
                self._commit(one, worker)
        except BaseException as error:
            refused = self.remove(one, done)
            if refused is not None:
                raise CallableError(
                    "REGISTER_CLEANUP_UNCERTAIN",
                    f"{one.name} is not registered ({error}), and that could not be undone: {refused}",
                ) from error
            if isinstance(error, (ControlError, WorkerLostError)):
                raise CallableError(
                    "REGISTER_PARTIAL_FAILURE", f"{one.name} is not registered: {error}"
                ) from error
            raise

    def install(self, one: Registered, worker: int) -> None:
        self._prepare_callable(one, worker)
        self._commit(one, worker)

    def _commit(self, one: Registered, worker: int) -> None:
        if self.kinds[worker].has_two_phases:
            self.exchange(worker, L.LINK_COMMIT, one.payload)

    def _prepare_callable(self, one: Registered, worker: int) -> None:
        command, _ = one.commands
        if self.in_threads:
            staging, size = staged_object(one.target), 0
        else:
            require_serialised(one.name, one.payload, running=True)
            staging, size = staged(one.payload), len(one.payload)
        with staging as name:
            self.control(worker, command, (size,), name=name, digest=one.digest)

    def remove(self, one: Registered, workers: Iterable[int] | None = None) -> ControlError | None:
        """Have workers, None: every live one, forget a callable; return the first refusal."""
        _, command = one.commands
        first = None
        for worker in self.targets(one.namespace) if workers is None else workers:
            try:
                with suppress(WorkerLostError):  # its callables are gone with it
                    self.control(worker, command, digest=one.digest)
            except ControlError as error:
                first = first or error
        return first

    # ------------------------------------------------------------ how a request ends
    def _wait_for_answer(self, worker: int, deadline_ns: int) -> None:
        """Wait for the answer to an interrupted request; a second Ctrl-C ends that, too."""
        try:
            while self._unanswered(worker) and (rest := deadline_ns - time.monotonic_ns()) > 0:
                self._kernels.await_control(self._mem, worker, min(rest, PARK_NS))
        finally:
            with signals_blocked():
                self._settle(worker)

    def _unanswered(self, worker: int) -> bool:
        requested = MailboxView(self._engine, worker).state == L.CONTROL_REQUEST
        return requested and worker not in self.dead and worker not in self.silent

    def _settle(self, worker: int) -> None:
        if self._unanswered(worker):
            self._give_up(worker)
        if worker not in self.silent:
            self._kernels.release_mailbox(self._mem, worker)

    def _give_up(self, worker: int) -> bool:
        """End a worker that does not answer, and say whether that was possible; if not, abandon it."""
        if self._terminate_and_wait(worker):
            return True
        self._kernels.abandon_mailbox(self._mem, worker)
        self.silent.add(worker)
        return False

    def welcome_back(self) -> None:
        for worker in sorted(self.silent):
            with self._control[worker]:
                self._heard_again(worker)

    def _heard_again(self, worker: int) -> bool:
        if MailboxView(self._engine, worker).state != L.CONTROL_DONE:
            return False
        self._rescind(worker)
        self.silent.discard(worker)
        self._kernels.release_mailbox(self._mem, worker)
        self._kernels.set_usable(self._mem, worker, 1)
        return True

    def _read_answer(self, worker: int, error: int) -> int:
        mailbox = MailboxView(self._engine, worker)
        if error:
            message, trace = read_error(*mailbox.report())
            raise ControlError(f"{self.name(worker)}: {message}", remote_traceback=trace)
        return mailbox.result()

    def _lost(self, worker: int, had_begun: bool = False) -> WorkerLostError:
        status = self.dead.get(worker, 0)
        ended = f"was {describe_status(status)}" if status < 0 else describe_status(status)
        said = self.kinds[worker].last_words()
        ended = f"was lost ({said})" if said else ended
        kind = WorkerLostError if had_begun else LostBeforeError
        return kind(
            f"{self.name(worker)} {ended} before it answered a control request; "
            f"{self.kinds[worker].successor}",
            status=status,
            worker=worker,
            pid=self.pids.get(worker),
        )

    def _late(self, worker: int, timeout_s: float, asked: bool) -> ControlTimeoutError:
        if not asked:
            return ControlTimeoutError(
                f"{self.name(worker)} was busy with a task for {timeout_s} s: the request was not "
                "made; give Worker(py_control_timeout_s=…) a larger value"
            )
        killed = self._give_up(worker)
        after = (
            "it was killed, the next run starts a new one" if killed else "no task before it does"
        )
        return ControlTimeoutError(
            f"{self.name(worker)} did not answer a control request within {timeout_s} s: {after}"
        )

    def _terminate_and_wait(self, worker: int) -> bool:
        """Kill a worker and wait until its death is reported; say whether it could be killed."""
        if not self._terminate(worker):
            return False
        self._wait_for_news(lambda: worker in self.dead or self.lost, GRACE_S)
        return True

    def _wait_for_news(self, come: Callable[[], bool], timeout_s: float = float("inf")) -> None:
        """Wait until `come` is true, in slices, between which Python handles signals.

        A handler that raises while the condition is acquired or released would leave it locked for ever.
        """
        deadline = time.monotonic() + timeout_s
        while not come() and (rest := deadline - time.monotonic()) > 0:
            with signals_blocked(), self._known:
                self._heard.wait_for(come, min(rest, PARK_NS / 1e9))

    # ------------------------------------------------------------ the end
    def kill_busy(self, workers: Iterable[int] | None = None) -> None:
        """Kill every worker that has a task, or those of some; the Scheduler will fail those tasks."""
        for worker in range(len(self.kinds)) if workers is None else workers:
            if MailboxView(self._engine, worker).given:
                self._terminate(worker)

    def rescind_idle(self) -> None:
        """Rescind terminations by `kill_busy` that came too late: no task runs any more."""
        for worker in range(len(self.kinds)):
            if worker not in self.silent:
                self._rescind(worker)

    def stop(self) -> None:
        """Stop the workers; those that do not stop in time are killed, if they can be.

        Control requests under way are finished first; new ones are refused.
        """
        self._refusing = True
        try:
            for request in self._control:
                with request:
                    pass
            self._closing = True
            for worker in range(len(self.kinds)):
                self._kernels.request_stop(self._mem, worker)
            self._wait_for_end()
        finally:
            self._closing = True
            with signals_blocked():
                self._shut_down()

    # ------------------------------------------------------------ provided by each mode
    def _get_ready(self, snapshot: Snapshot) -> None:
        """Prepare for making workers with the callables of `snapshot`."""

    def _launch(self, worker: int) -> None:
        """Begin to make a worker."""

    def _wait_for_birth(self, worker: int) -> bool:
        """Wait for the pid of a worker that is ready; say whether it came."""
        return True

    def _terminate(self, worker: int) -> bool:
        """Terminate a busy worker; say whether that is possible."""
        raise NotImplementedError

    def _rescind(self, worker: int) -> None:
        """Undo a termination that came too late."""

    def _wait_for_end(self) -> None:
        """Wait for the workers, which have been told to stop."""

    def _shut_down(self) -> None:
        """Release everything."""


# ---------------------------------------------------------------- memory of chips
MOST_BYTES = 1 << 62
_address = within(0, (1 << 64) - 1)


@dataclass
class ChipMemory:
    """Control requests about memory; see `Worker.malloc` and the others.

    `running` returns the manager of the workers, started if necessary; `check` says what host memory they
    cannot see, None: they see all.
    """

    kinds: Sequence[WorkerKind]
    running: Callable[[], WorkerManager]
    check: Visible | None

    def malloc(self, worker_id: int, size: int) -> int:
        return self._ask(L.CTRL_MALLOC, worker_id, whole("size", size, 1, MOST_BYTES))

    def free(self, worker_id: int, ptr: int) -> None:
        self._ask(L.CTRL_FREE, worker_id, _address("ptr", ptr))

    def copy_to(self, worker_id: int, dst: int, src: int, size: int) -> None:
        self._require_visible("src", src, size, worker_id)
        self._ask(L.CTRL_COPY_TO, worker_id, _address("dst", dst), src, size)

    def copy_from(self, worker_id: int, dst: int, src: int, size: int) -> None:
        self._require_visible("dst", dst, size, worker_id)
        self._ask(L.CTRL_COPY_FROM, worker_id, dst, _address("src", src), size)

    def _require_visible(self, name: str, address: int, size: int, worker_id: int) -> None:
        _address(name, address)
        whole("size", size, 0, MOST_BYTES)
        self._worker(worker_id)
        if self.check is not None and (why := self.check(address, size)) is not None:
            raise invisible(address, size, why)

    def _ask(self, command: int, worker_id: int, *args: int) -> int:
        worker = self._worker(worker_id)  # before any are started
        return self.running().control(worker, command, args)

    def _worker(self, worker_id: int) -> int:
        """Return a next-level worker that has memory."""
        count = len(self.kinds)
        if not hasattr(worker_id, "__index__") or not 0 <= worker_id < count:
            raise IndexError(
                f"worker_id {worker_id!r} is out of range: there are {count} next-level workers"
            )
        worker = operator.index(worker_id)
        if not _manages_memory(self.kinds[worker]):
            with_memory = sum(map(_manages_memory, self.kinds))
            name = self.running().name(worker)
            raise NoMemoryError(
                f"{name}: CALLABLE_KIND_UNSUPPORTED: it has no memory of its own to "
                f"manage; worker_id {worker} is out of range of workers that have: there are "
                f"{with_memory}"
            )
        return worker


def _manages_memory(kind: WorkerKind) -> bool:
    """Say whether a kind of workers carries out requests about memory: all others inherit the refusal."""
    return type(kind).control is not WorkerKind.control


# ---------------------------------------------------------------- traces of the Workers below
WAIT_S = 0.5
"""How long an endpoint may take to answer how many bytes are still to come."""


class ChildTraces:
    """Has the Workers below one take traces: child Workers, and those of endpoints.

    Each has a file of its own beside that of the parent, which names it. The workers that run them are
    told when they have started or when a trace begins, and when it ends.
    """

    def __init__(self, kinds: Sequence[WorkerKind]) -> None:
        self._kinds = kinds
        self._path: str | None = None
        self._detail = ""
        self._turns: dict[int, int] = {}
        """How many traces each worker has begun."""
        self._files: list[tuple[str, int]] = []
        self._untraced: dict[str, str] = {}
        self._cut_off: dict[str, str] = {}
        """Why a file lacks what was noted last."""

    def told(self) -> dict[str, Any]:
        """Return what a trace is told: the files beside it, their workers, what is missing and why."""
        files = list(self._files)
        return {
            "children": [name for name, _ in files],
            "child_workers": [worker for _, worker in files],
            "untraced": dict(self._untraced),
            "cut_off": dict(self._cut_off),
        }

    def open(self, path: str, detail: str) -> None:
        self._path, self._detail = path, detail
        self._turns, self._files, self._untraced, self._cut_off = {}, [], {}, {}

    def begin(self, manager: WorkerManager, workers: Iterable[int] | None = None) -> None:
        """Begin the traces of all that run, or of some that have just started, if one is taken."""
        if self._path is None:
            return
        for worker in manager.present() if workers is None else workers:
            if not self._kinds[worker].has_traces:
                continue
            name = worker_name(self._kinds, worker)
            if worker in manager.dead:
                self._untraced[name] = self._kinds[worker].last_words() or "it is lost"
                continue
            number = sum(kind.has_traces for kind in self._kinds[:worker])
            turn = self._turns[worker] = self._turns.get(worker, 0) + 1
            file = f"{self._path}.{number}" + (f"-{turn}" if turn > 1 else "")
            if why := _ask(manager, worker, {"file": file, "detail": self._detail}).get("why"):
                self._untraced[name] = why
                log.warning("%s is not traced: %s", name, why)
            else:
                self._files.append((os.path.basename(file), worker))

    def end(self, manager: WorkerManager) -> None:
        """End the traces, once all that was noted has come."""
        if self._path is None:
            return
        self._path = None
        for worker in manager.present():
            if not self._kinds[worker].has_traces or worker in manager.dead:
                continue
            while (told := _ask(manager, worker, {"wait_s": WAIT_S})).get("left"):
                pass
            if why := told.get("why"):
                if files := [file for file, other in self._files if other == worker]:
                    self._cut_off[files[-1]] = why
                log.warning("the trace of %s is cut off: %s", worker_name(self._kinds, worker), why)


def _ask(manager: WorkerManager, worker: int, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        answer = manager.exchange(worker, L.TRACE_BELOW, json.dumps(asked).encode())
    except (ControlError, WorkerLostError) as error:
        return {"why": str(error)}
    told: dict[str, Any] = json.loads(answer)
    return told


# ---------------------------------------------------------------- workers as threads
class Terminated(SystemExit):
    """What a thread gets whose task is terminated."""


class ThreadManager(WorkerManager):
    """Workers as threads of this process, for leaves that release the GIL or take no time.

    A thread cannot be killed. To terminate a task, its thread gets a `Terminated` at its next line of
    Python.
    """

    in_threads = True
    _snapshot: Snapshot

    def _get_ready(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        for kind in self.kinds:
            kind.prepare()  # a nested Worker forks its processes before there are threads

    def _launch(self, worker: int) -> None:
        with signals_blocked():
            thread = threading.Thread(
                target=self._serve,
                args=(worker,),
                name=f"{self.kinds[worker].label}-{worker}",
                daemon=True,
            )
            thread.start()
            self._threads[worker] = thread

    def _serve(self, worker: int) -> None:
        kind = self.kinds[worker]
        snapshot = self._snapshot.get(kind.target_namespace, {})
        code = 0
        try:
            serve_mailbox(self._engine, worker, kind, snapshot, in_thread=True)
        except BaseException:  # described in the mailbox
            code = 1
        finally:
            if not self._closing:
                self._mark_dead(worker, code)

    def _terminate(self, worker: int) -> bool:
        thread = self._threads.get(worker)
        if thread is not None:
            self._terminated.add(worker)
            raise_in(thread, Terminated)
        return False

    def _rescind(self, worker: int) -> None:
        if worker in self._terminated:
            self._terminated.discard(worker)
            take_back(self._threads[worker])

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + GRACE_S
        for worker, thread in self._threads.items():
            if thread is threading.current_thread():
                continue
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._terminate(worker)
                thread.join(1.0)
            if thread.is_alive():
                log.warning(
                    "%s is still at a task %s s after it was told to stop; a thread cannot be killed",
                    self.name(worker),
                    GRACE_S,
                )

    def _shut_down(self) -> None:
        for worker, kind in enumerate(self.kinds):
            if worker not in self._threads:
                kind.abandon()
