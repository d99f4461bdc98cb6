"""The functions that a stream has sent: each in a block of memory, where workers find it.

Equal ones have one block. Those that workers may keep for good have theirs for good, and all others until
they were not sent for long; then their blocks are given back as soon as no call needs them.

Rule     CALL-LIMIT-1; CALL-SENT-1, -2; CALL-WORKER-4
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from contextlib import suppress
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..callables.runnable import require_runnable
from ..engine.view.blocks import set_retries
from .packing import Plan
from .sending import Guards, How, Payload
from .signatures import Signature
from .tasks import Task

if TYPE_CHECKING:
    from .leases import Lease
    from .stream import Stream

MOST_LASTING = 4096
MOST, MOST_PART, MOST_BYTES = 256, 4, 1 << 28
"""Other functions that are kept, and the part of the memory for values, or the bytes, that they take."""
_FUNCTIONS = {FunctionType, BuiltinFunctionType, type, np.ufunc, type(functools.cache(len))}
"""Types of functions that are the same only if they are identical."""
_MOST_GUARDED = 1024
"""Functions that are known to be what they were; a call of another one forgets the oldest."""


class SentFunctions:
    """The functions that a stream has sent; `tasks` are those of plain functions."""

    def __init__(self, stream: Stream, tasks: dict[Any, Task]) -> None:
        self._stream: Stream = weakref.proxy(stream)  # which has this one
        self._tasks = tasks
        self._plans: dict[Task, tuple[Plan, Guards]] = {}
        self._lasting: dict[Any, Plan] = {}
        self._others: OrderedDict[Any, Plan] = OrderedDict()
        """Those sent last at the end."""
        self._nbytes = 0

    # ------------------------------------------------------------ of a task
    def task_of(self, function: Any, workers: tuple[int, ...] = ()) -> Task:
        """Return the task of a plain function, the same one for as long as that stays what it is."""
        is_function = type(function) in _FUNCTIONS and not workers
        found = self._tasks.get(function) if is_function else None
        if found is None:
            found = Task(function, _signature_of(function), workers=workers)
            if is_function:
                self._tasks[function] = found
            else:
                found.is_passing = True
        return found

    def plan_of(self, task: Task) -> Plan:
        """Return what is known of a task's calls, with its function as it is now.

        Raises
        ------
        TypeError, ValueError
            This Worker cannot make them.
        """
        known = self._plans.get(task)
        if known is not None and known[1].hold():
            return known[0]
        stream = self._stream
        payload, guards = stream.sent(task)
        plan = self.plan(task, payload, lasts=guards is not None and not guards)
        with stream.turns.entrance, stream.turns.turn:
            if guards is None:
                self._forget_task(task)
            else:
                self._plans[task] = plan, guards
                if plan.lease is None and not guards:
                    stream._quick.know(task, plan)
                if len(self._plans) > _MOST_GUARDED:
                    oldest = next((one for one, (_, guards) in self._plans.items() if guards), None)
                    if oldest is not None:
                        self._forget_task(oldest)
        return plan

    def plan(self, task: Task, payload: Payload, *, lasts: bool) -> Plan:
        """Put a function into a block, once, where all workers find it by the block's offset.

        Parameters
        ----------
        lasts : bool
            The block is never given back, if there are not too many such ones.
        """
        stream = self._stream
        workers = stream._require_workers(task)
        if task.timeout is not None and stream._life.options.child_mode == "thread":
            raise ValueError(
                f"{task!r} has a time limit, and this Worker's workers are threads, which cannot be "
                'ended: leave out timeout=, or use child_mode="process"'
            )
        try:
            return self._find(task, payload, workers, lasts)
        except MemoryError:
            stream.finish()
            return self._find(task, payload, workers, lasts)

    # ------------------------------------------------------------ blocks
    def _find(self, task: Task, payload: Payload, workers: tuple[int, ...], lasts: bool) -> Plan:
        """Return the plan of a function, in a new block unless an equal one has been sent.

        Raises
        ------
        MemoryError
            There is no room, until calls have ended.
        """
        name = task.__qualname__
        body = payload.body if len(payload.body) < 64 else blake2b(payload.body).digest()
        serial = payload.serial if payload.how & How.INHERITED else 0
        about = name, task.timeout, task.retries, task.workers, task.signature.parameters
        key = payload.how, serial, body, about
        turns = self._stream.turns
        with turns.entrance, turns.turn:
            found = self._lasting.get(key) or self._others.get(key)
            if found is None:
                found = self._make(task, payload, workers, lasts)
                (self._others if found.lease else self._lasting)[key] = found
                most = min(self._stream._blocks.nbytes // MOST_PART, MOST_BYTES)
                while len(self._others) > 1 and (len(self._others) > MOST or self._nbytes > most):
                    if not self._may_forget():
                        break
                    self._drop(next(iter(self._others)))  # what was not sent for long
            elif found.lease:
                self._others.move_to_end(key)
        return found

    def _make(self, task: Task, payload: Payload, workers: tuple[int, ...], lasts: bool) -> Plan:
        lasts = lasts and len(self._lasting) < MOST_LASTING
        if lasts:
            payload = payload._replace(how=payload.how | How.LASTING)
        raw = payload.to_bytes()
        try:
            offset, lease = self._put(task, raw, lasts)
        except MemoryError:
            self.forget()
            offset, lease = self._put(task, raw, lasts)
        self._nbytes += 0 if lasts else len(raw)
        made = Plan(task, offset, workers, lease, len(raw))
        made.task = task if payload.how & How.INHERITED else None
        made.reads = payload.reads
        return made

    def _put(self, task: Task, raw: bytes, lasts: bool) -> tuple[int, Lease | None]:
        """Put a function into a block, with the turn; return that, and a hold on it unless it lasts.

        Raises
        ------
        MemoryError
            There is no room.
        """
        stream = self._stream
        names, limits = stream._session.call_names, stream.errors.limits
        block = stream._blocks.take(len(raw))
        block.data[:] = raw
        offset, name = block.offset, task.__qualname__
        set_retries(stream._mem, offset, task.retries)
        about = names.get(offset, name), limits.get(offset)
        if about != (name, task.timeout):  # errors of calls that have ended tell those
            stream._keep_values()
        names[offset] = name
        limits.pop(offset, None)
        if task.timeout is not None:
            limits[offset] = task.timeout
        if lasts:
            return offset, None
        lease = stream.hold(offset)
        stream._kernels.hold_block(stream._mem, offset, -1)
        return offset, lease

    # ------------------------------------------------------------ to forget
    def begin_anew(self) -> None:
        """Send all functions again: there are other workers."""
        self._plans.clear()
        self._tasks.clear()
        self._lasting.clear()
        self.forget()

    def _forget_task(self, task: Task) -> None:
        """Look at a function anew when it is called again."""
        self._plans.pop(task, None)
        if type(task.py_func) in _FUNCTIONS and self._tasks.get(task.py_func) is task:
            del self._tasks[task.py_func]

    def forget(self) -> None:
        """Forget all that is not for good."""
        while self._others and self._may_forget():
            self._drop(next(iter(self._others)))
        self._stream.release_unused()

    def _may_forget(self) -> bool:
        """Say whether blocks of functions may be given back.

        A trace needs their names, and threads the functions themselves until their calls have ended.
        """
        view, session = self._stream._engine.view, self._stream._session
        is_idle = view.ended == view.next_task_id
        return not view.is_traced and (is_idle or not session.in_threads)

    def _drop(self, key: Any) -> None:
        plan = self._others.pop(key)
        self._nbytes -= plan.nbytes
        for task in [task for task, (one, _) in self._plans.items() if one is plan]:
            self._forget_task(task)


def _signature_of(function: Any) -> Signature:
    """Return the signature of a plain function; its arguments are values where it has none to be read."""
    if not callable(function):
        raise TypeError(f"a call needs a function, got {type(function).__name__}: {function!r:.60}")
    require_runnable("submit", function)
    if isinstance(function, FunctionType):
        with suppress(TypeError):
            return Signature.of(function)
    return Signature.any()
