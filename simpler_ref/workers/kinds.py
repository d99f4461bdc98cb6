"""The kinds of workers: how each runs a task.

A sub worker calls a Python function, a nested Worker runs an orchestration function over workers of its
own, a chip (`native_chip/domains.py`) runs kernels. The loop (`loop.py`) is the same for all.

Rule     HIER-ENGINE-2, HIER-ENGINE-3, ORCH-API-2, SEE-ON-4, FLOW-NEST-1, FLOW-NEST-2, FLOW-NEST-5,
         FLOW-FAIL-3, FLOW-ID-5, FLOW-WALK-1, FLOW-WALK-2, WM-MODE-3, WM-FORK-2, WM-KIND-1, WM-KIND-2,
         WM-MAIL-6, WM-CTRL-6
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..callables.identity import TargetNamespace
from ..callables.pickling import read_payload
from ..callables.runnable import CompiledCallable, takes_arguments
from ..engine.view.mailbox import MailboxView, ReceivedArgs
from ..errors import CallableError
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import CallConfig
from .guard import Guard


class WorkerKind:
    """How a worker runs its tasks: the extension point.

    Subclass it, or pass any object that has `run`, to `Worker.add_next_level` or `Worker.add_sub`. The
    worker's process or thread calls `start`, `install`, `run` and the rest, one at a time. Several
    workers may share one object only if it supports that.
    """

    label = "worker"
    """Its name in messages."""
    suffix = ""
    """What messages add to its index in its pool."""
    target_namespace = TargetNamespace.LOCAL_PYTHON
    """The namespace of its callables."""
    pool_namespace: TargetNamespace | None = None
    """That of the other callables of its pool, should it be another one."""
    comes_last = False
    """Whether it comes after all other workers of its pool."""
    has_two_phases = False
    """Whether it makes a callable usable only when all have prepared it, by a request LINK_COMMIT."""
    runs_foreign_code = True
    """Whether it runs Python of the program, which may use any library and its threads."""
    has_core = True
    """Whether it gets a core of its own."""
    is_vacant = False
    """Whether there is no such worker: a place for one that may join."""
    has_traces = False
    """Whether it has a Worker of its own, which can be traced."""
    has_workers_below = False
    """Whether it has workers on this machine, which see the same memory."""
    start_timeout_s = 0.0
    """How long it may take to start, should that be longer than others take."""
    successor = "the next run starts a new one"
    """What messages say of its successor, once it is lost."""

    def prepare(self) -> None:
        """Prepare before threads exist; called only in thread mode, by the starting thread."""

    def abandon(self) -> None:
        """Undo `prepare` if `start` was not called after it."""

    def start(self, mailbox: MailboxView) -> None:
        """Get ready, in the process or thread that will serve the mailbox."""

    def stop(self) -> None:
        """Release everything."""

    def read_target(self, name: str, size: int, command: int, digest: bytes) -> Any:
        """Return the callable that is staged under a name."""
        return read_payload(name, size, command, digest)

    def install(self, target: Any) -> Any:
        """Return what `run` gets for a registered callable."""
        return target

    def remove(self, installed: Any) -> None:
        """Forget a callable that was unregistered."""

    def run(self, callable: Any, view: ReceivedArgs, config: CallConfig) -> Any:
        """Run a task. An exception is the task's failure."""
        raise NotImplementedError(f"{type(self).__name__} has no run")

    def leaf(self, installed: Any) -> Callable[[ReceivedArgs], Any]:
        """Return a function with which the loop runs a callable's tasks."""
        run = self.run
        return lambda args: run(installed, args, args.config())

    def address(self, installed: Any) -> int:
        """Return the address of compiled code for a callable's tasks, 0 for a Python callable."""
        return 0

    def report(self, installed: Any, error: BaseException) -> None:
        """Note what a task has raised, beside its message in the mailbox."""

    def may_be_made(self) -> bool:
        """Say whether it is time to make a successor of it, which is lost; called by the parent."""
        return True

    def stays_lost(self, why: str, took_s: float) -> bool:
        """Note that no successor could be made, and why; return False if the Worker needs one."""
        return False

    def last_words(self) -> str:
        """Return what the worker has said of its end, empty if nothing; called by the parent."""
        return ""

    def control(self, command: int, arg0: int, arg1: int, arg2: int) -> int:
        """Carry out a control request about memory and return its result."""
        raise CallableError(
            "CALLABLE_KIND_UNSUPPORTED", f"a {self.label} has no memory of its own to manage"
        )

    def answer(self, command: int, request: bytes) -> bytes:
        """Carry out a control request about an endpoint, and return its result."""
        raise CallableError("CALLABLE_KIND_UNSUPPORTED", f"a {self.label} is no endpoint")

    def trace(self, request: bytes) -> bytes:
        """Begin a trace of the Worker that it has, or end it; see `ChildTraces`."""
        raise CallableError("CALLABLE_KIND_UNSUPPORTED", f"a {self.label} has no Worker of its own")


class SubWorker(WorkerKind):
    """Calls Python functions with the task's arguments."""

    label = "sub_worker"

    def __init__(self, initializer: Callable[[], None] | None = None, check: bool = False) -> None:
        self._mailbox: MailboxView
        self._initializer = initializer
        self._check = check
        self._guard: Guard | None = None
        """With `check`: what finds out whether tasks change their INPUTs."""
        self._inside: Any = None
        """What runs calls, which have a protocol of their own."""

    def start(self, mailbox: MailboxView) -> None:
        self._mailbox = mailbox
        self._guard = Guard(mailbox) if self._check else None
        if self._initializer is not None:
            self._initializer()

    def leaf(self, installed: Any) -> Callable[[ReceivedArgs], Any]:
        """Return the function itself; one with no parameters is called without any."""
        run: Callable[[ReceivedArgs], Any]
        is_compiled = isinstance(installed, CompiledCallable)
        if _takes_calls(installed):
            self._inside = installed.inside_for(self._mailbox, self._guard)
            run = self._inside.leaf()
            return run
        run = installed.run_task if is_compiled else as_leaf(installed)
        if self._guard is not None:
            return self._guard.around(run)
        if not is_compiled:
            return run
        engine, worker = self._mailbox.engine, self._mailbox.worker

        def leaf(args: ReceivedArgs) -> None:
            installed.run_task(args)
            if installed.address:  # it is compiled now: the next task finds that
                engine.kernels.forget_digests(engine.mem, worker)

        return leaf

    def address(self, installed: Any) -> int:
        if isinstance(installed, CompiledCallable):
            return 0 if self._check else installed.address
        return L.BY_KEY if _takes_calls(installed) else 0

    def report(self, installed: Any, error: BaseException) -> None:
        """Keep what a call has raised where its future finds it."""
        if _takes_calls(installed):
            self._inside.answer_failure(error)


class CustomWorker(WorkerKind):
    """A user's object with ``run(callable, view, config)``."""

    def __init__(self, target: Any, label: str) -> None:
        if not callable(getattr(target, "run", None)):
            raise TypeError(
                f"a worker needs a method run(callable, view, config); {type(target).__name__} has none"
            )
        self._target = target
        self.label = label
        self.run = target.run  # type: ignore[method-assign]

    def start(self, mailbox: MailboxView) -> None:
        getattr(self._target, "start", lambda: None)()

    def stop(self) -> None:
        getattr(self._target, "stop", lambda: None)()


class NestedWorker(WorkerKind):
    """Runs orchestration functions on a Worker of its own, one level down."""

    label = "child_worker"
    has_traces = has_workers_below = True

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._tracing: Any = None
        self.suffix = f" level={inner.level}"
        self._mailbox: MailboxView

    def prepare(self) -> None:
        self.inner._start_as_child()

    def abandon(self) -> None:
        self.stop()

    def start(self, mailbox: MailboxView) -> None:
        self._mailbox = mailbox
        self.prepare()  # unless it runs

    def stop(self) -> None:
        self.inner._life.close_as_child()

    def run(self, callable: Any, view: ReceivedArgs, config: CallConfig) -> Any:
        timing = self.inner.run(callable, view, config)
        self._mailbox.add_device_time(timing.device_wall_ns)

    def trace(self, request: bytes) -> bytes:
        asked = json.loads(request)
        if "file" in asked:
            tracing = self.inner.trace(asked["file"], detail=asked["detail"])
            tracing.__enter__()
            self._tracing = tracing
        elif self._tracing is not None:
            self._tracing.__exit__(None, None, None)
            self._tracing = None
        return b"{}"


def _takes_calls(installed: Any) -> bool:  # the one callable of a stream of calls
    return hasattr(installed, "inside_for")


def as_leaf(target: Callable[..., Any]) -> Callable[[TaskArgs], Any]:
    """Return `target` as a function of the arguments: one without parameters is called without any."""
    return target if takes_arguments(target) else lambda _args: target()
