"""The functions that a stream has sent: each in a block of memory, where workers find it.

Equal ones have one block. Those that workers may keep for good have theirs for good, and all others until
they were not sent for long; then their blocks are given back as soon as no call needs them.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from .packing import Plan
from .sending import How, Payload

if TYPE_CHECKING:
    from .stream import Stream
    from .tasks import Task

MOST_LASTING = 4096
MOST, MOST_PART, MOST_BYTES = 256, 4, 1 << 28
"""Other functions that are kept, and the part of the memory for values, or the bytes, that they take."""


class SentFunctions:
    """The functions that a stream has sent.

    Rule     CALL-SENT-4
    """

    def __init__(self, stream: Stream) -> None:
        self._stream: Stream = weakref.proxy(stream)  # which has this one
        self._lasting: dict[Any, Plan] = {}
        self._others: OrderedDict[Any, Plan] = OrderedDict()
        """Those sent last at the end."""
        self._nbytes = 0

    def plan(self, task: Task, payload: Payload, workers: tuple[int, ...], lasts: bool) -> Plan:
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
                self._forget_oldest()
            elif found.lease:
                self._others.move_to_end(key)
        return found

    def _make(self, task: Task, payload: Payload, workers: tuple[int, ...], lasts: bool) -> Plan:
        lasts = lasts and len(self._lasting) < MOST_LASTING
        if lasts:
            payload = payload._replace(how=payload.how | How.LASTING)
        raw, stream = payload.to_bytes(), self._stream
        try:
            offset, lease = stream.put_function(task, raw, lasts=lasts)
        except MemoryError:
            self.forget()
            offset, lease = stream.put_function(task, raw, lasts=lasts)
        self._nbytes += 0 if lasts else len(raw)
        made = Plan(task, offset, workers, lease, len(raw))
        made.task = task if payload.how & How.INHERITED else None
        made.reads = payload.reads
        return made

    def begin_anew(self) -> None:
        """Send all functions again: there are other workers."""
        self._lasting.clear()
        self.forget()

    def _forget_oldest(self) -> None:
        """Forget what was not sent for long."""
        most = min(self._stream.bytes_for_values // MOST_PART, MOST_BYTES)
        while len(self._others) > 1 and (len(self._others) > MOST or self._nbytes > most):
            if not self._stream.may_forget_functions():
                return
            self._drop(next(iter(self._others)))

    def forget(self) -> None:
        """Forget all that is not for good."""
        while self._others and self._stream.may_forget_functions():
            self._drop(next(iter(self._others)))
        self._stream.release_unused()

    def _drop(self, key: Any) -> None:
        plan = self._others.pop(key)
        self._nbytes -= plan.nbytes
        self._stream.forget_plan(plan)
