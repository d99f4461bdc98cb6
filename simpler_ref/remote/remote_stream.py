"""The stream of calls of a Worker whose calls go to endpoints.

Each call is given to the link of the endpoint that is likely to begin it first; the arrays follow. All
else, hazards and futures above all, is as with workers of this machine.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from ..callables.identity import CallableHandle, CallableKind, TargetNamespace
from ..calls import outcomes
from ..calls.call_errors import CallErrors
from ..calls.forms import key_of
from ..calls.futures import Future
from ..calls.sending import Guards, How, Payload, guards_of_task, payload_of
from ..calls.stream import Stream
from ..calls.tasks import Task
from ..engine.view.blocks import data_of
from ..errors import ControlError, TaskError, WorkerStartError, origin_of, tell
from ..jit import layout as L
from ..model.scalars import INTEGER
from ..model.wire import RIGHTS, SHAPE_AT, TAG_AT, TENSOR_BYTES, Layout, span_of
from .callables import Registration
from .directory import Directory, Held, Plan, Queues, Use, require_apart
from .layouts import copied_layout, is_whole, layout_of, layout_text
from .link_calls import Function

_MOST_TASKS = 1 << 12
_MOST_KNOWN = 1 << 14
_UNKNOWN = 1
"""Bytes of a value that no call of the task has returned yet: of places alike its own is the best."""
_integer = INTEGER.pack
_DIGEST = sha256(b"the calls of a stream").hexdigest()


class RemoteStream(Stream):
    """The calls of one open Worker, at its endpoints.

    Rule     CALL-FAR-1, CALL-FAR-2, CALL-FAR-3, CALL-FAR-4, CALL-FAR-8, CALL-FAR-10
    """

    def __init__(self, life: Any, session: Any, register: Any, add: Any) -> None:
        super().__init__(life, session, register)
        self._sums = None  # what arrives there are copies
        self.errors = _ErrorsThere(session)
        self._add_callable, self._endpoints = add, life.endpoints
        self._directory = Directory(session.engine.view.is_under_way)
        self._queues = Queues(self._endpoints.links, self._directory)
        self._spans: dict[bytes, tuple[int, int, Layout | None]] = {}
        """Of arrays: first byte, how many, and the layout of one with gaps; as long as layouts last."""
        self._epoch = -1
        self._sizes: dict[int, int] = {}
        """How long the last value was that was seen of each task."""
        handle = CallableHandle(
            f"sha256:{_DIGEST}",
            CallableKind.PYTHON_IMPORT,
            TargetNamespace.REMOTE_TASK_DISPATCHER,
            "call",
        )
        target = Registration((), b"")
        add(handle, target, pickle.dumps(target))
        self._handle = handle

    def wait_for_turn(self, future: Future, timeout_s: float | None) -> bool:
        """Wait until a call has ended: an endpoint may have it while it waits for others."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return self.wait(future, deadline)

    # ------------------------------------------------------------ what is known before
    def _word_of_calls(self) -> int:
        return self._session.words[0][self._handle]

    def _begin(self) -> None:
        super()._begin()
        self._endpoints.begin_run()
        self._directory.clear()
        self._queues.begin_run()

    def _start_quick(self) -> None:
        """Let no call be quick: each is placed."""

    def sent(self, task: Task) -> tuple[Payload, Guards | None]:
        """Return what links make a function from, and what must hold for that to stay right."""
        payload = Payload(How(0), task.serial, pickle.dumps(Function.of(task)))
        return payload, guards_of_task(task, {})

    def function_for_items(self, task: Task) -> tuple[Payload, Payload, bool]:
        """Return a task as it is now, as links get it, and as workers of endpoints do for many items."""
        alone, _, lasts = super().function_for_items(task)
        payload, _ = payload_of(task, {}, to_endpoints=True)
        return alone, payload, lasts

    def _require_workers(self, task: Task) -> tuple[int, ...]:
        """Return the sub workers that a task names, counted through all endpoints.

        Rule     CALL-WORKER-4
        """
        there = len(self._endpoints.seats())
        for one in task.workers:
            if one >= there:
                raise ValueError(
                    f"{task!r} is for sub worker {one}, and those of this Worker's endpoints are 0 to "
                    f"{there - 1}: name another in workers=, or give more endpoints"
                )
        return task.workers

    @property
    def takes_pickles(self) -> bool:
        """Whether all endpoints have agreed to what is pickled.

        Rule     CALL-FAR-7
        """
        return all(link.spec.serialized for link in self._endpoints.call_links())

    # ------------------------------------------------------------ submit
    def _submit(self, word: int, counts: int, wire: bytes, data: bytes) -> int:
        """Place a call, and submit it with what its link has to know.

        Rule     CALL-FAR-8
        """
        view = self._engine.view
        if view.ended == view.next_task_id:
            self._queues.begin_run()
        tensors = counts & L.LOW_HALF
        wires = [
            wire[at : at + TENSOR_BYTES] for at in range(0, tensors * TENSOR_BYTES, TENSOR_BYTES)
        ]
        uses, values = self._uses_of(wires), self._values_in(wire, counts)
        named = (word >> L.WORD_WORKER & L.WORKER_MASK) - 1
        only = self._endpoints.seats()[named] if named >= 0 else None
        where = only[0] if only else self._likely_first([*uses, *values])
        directory = self._directory
        require_apart([uses], "arrays {} and {} of the call")
        placed = directory.place(uses)
        plans = directory.plans(placed, tensors)
        run = self._endpoints.tensors.run_number
        words = Plan(run, plans, directory.dropped(where), only=only).words()
        task = key_of(int.from_bytes(wire[tensors * TENSOR_BYTES :][: L.WORD], "little"))
        wire += b"".join([_integer(one, L.SIGNED) for one in words])
        slot = super()._submit(
            self._word | (where + 1) << L.WORD_WORKER, counts + (len(words) << L.HALF), wire, data
        )
        if slot != L.WOULD_BLOCK:
            turn = self._queues.note_given(where, placed)
            directory.note_task(where, placed, call=(slot, view.next_task_id - 1))
            for use in values:
                directory.values[use.slot].holders.add(where)
            directory.values[slot] = Held(
                Use(-1, 0, _UNKNOWN, L.TENSOR_WRITE, slot=slot),
                maker=where,
                holders={where},
                handle=task,
                turn=turn,
            )
        return slot

    def _likely_first(self, uses: Sequence[Use]) -> int:
        """Return the endpoint that is likely to begin a call first."""
        present = [link.number for link in self._endpoints.call_links()]
        if not present:
            raise RuntimeError(
                "no endpoint with sub workers is left for calls: add one with add_remote_worker"
            )
        chosen: int = self._endpoints.likely_first(present, uses, self._queues)
        return chosen

    def _uses_of(self, wires: Sequence[bytes]) -> list[Use]:
        """Return what a call does with its arrays.

        Raises
        ------
        TypeError
            The type of its elements cannot be written into a message.
        """
        layouts = self._engine.layouts
        if layouts.epoch != self._epoch or len(self._spans) > _MOST_KNOWN:
            self._spans.clear()
            self._epoch = layouts.epoch
        uses = []
        for i, wire in enumerate(wires):
            found = self._spans.get(wire[:TAG_AT])
            if found is None:
                layout = layout_of(layouts, wire)
                layout_text(copied_layout(layout))
                below, nbytes = span_of(layout)
                start = int.from_bytes(wire[:SHAPE_AT], "little") - below
                found = start, nbytes, None if is_whole(layout) else layout
                self._spans[wire[:TAG_AT]] = found
            start, nbytes, gaps = found
            uses.append(Use(i, start, nbytes, RIGHTS[wire[TAG_AT]], wire, gaps))
        return uses

    # ------------------------------------------------------------ values of other calls
    def _values_in(self, wire: bytes, counts: int) -> list[Use]:
        """Return what a call does with values of other calls."""
        scalars = np.frombuffer(wire, np.int64, offset=(counts & L.LOW_HALF) * TENSOR_BYTES)
        words, kinds = scalars[::2].tolist(), scalars[1::2].tolist()
        slots = [word for word, kind in zip(words, kinds, strict=True) if kind == L.FUTURE]
        found = [(one, self._directory.values.get(one)) for one in slots]
        return [
            Use(-1, 0, self._size(held), L.TENSOR_READ, slot=slot)
            for slot, held in found
            if held is not None
        ]

    def _size(self, value: Held) -> int:
        """Return the bytes of a value; as long as it is not made, those of another one of its task."""
        slot = value.use.slot
        if value.use.nbytes == _UNKNOWN:
            if not self._kernels.has_settled(self._mem, slot):
                return self._sizes.get(value.handle, _UNKNOWN)
            has_failed, kind, word = self._engine.view.outcome(slot)
            is_block = kind == L.VALUE_BLOCK and not has_failed
            value.use.nbytes = outcomes.size_of(data_of(self._mem, word)) if is_block else 0
            if len(self._sizes) > _MOST_TASKS:
                self._sizes.clear()
            self._sizes[value.handle] = value.use.nbytes
        return value.use.nbytes

    # ------------------------------------------------------------ endpoints that have died
    def _lacks_workers(self) -> bool:
        if super()._lacks_workers():
            return True
        self._hand_on()
        return False

    def _replace_dead(self) -> None:
        """Start sessions for lost endpoints; the calls of those that stay lost go to others.

        Rule     CALL-FAR-10
        """
        super()._replace_dead()
        if self._alive():
            self._queues.begin_run()
            self._hand_on()
            return
        words = [link.last_words() for link in self._endpoints.call_links()]
        self.errors.why_stranded = WorkerStartError(f"all endpoints are lost: {'; '.join(words)}")
        self._strand()
        raise self.errors.why_stranded

    def _alive(self) -> list[int]:
        manager = self._session.manager
        dead = {} if manager is None else manager.dead
        return [link.number for link in self._endpoints.call_links() if link.number not in dead]

    def _hand_on(self) -> None:
        """Give the calls that wait for lost endpoints to others."""
        manager = self._session.manager
        if manager is None or not manager.dead:
            return
        alive = self._alive()
        for i, link in enumerate(self._endpoints.call_links()):
            if link.number not in alive and alive:
                other = alive[i % len(alive)]
                self._kernels.hand_on(self._mem, link.number, other)


class _ErrorsThere(CallErrors):
    """The errors of calls at endpoints."""

    def _raised(
        self, block: memoryview, worker: int, what: str, details: dict[str, Any]
    ) -> BaseException:
        """Return the error; one of this package says at which endpoint and in which call here."""
        error = super()._raised(block, worker, what, details)
        origin = origin_of(error)
        if origin is not error and isinstance(error, (TaskError, ControlError)):
            error.args = (f"{origin.where}: {error}",)
            vars(error).update(details)
        return error

    def of_item(
        self, block: bytes, worker: int, number: int, name: str, item: int, origin: str
    ) -> BaseException:
        """Return the error of one item of many that were one call, of a sub worker of some endpoint."""
        what = f"sub worker {worker} of an endpoint, call {number} ({name}), item {item}"
        details = {"task": number, "callable_name": name}
        error = outcomes.decode_error(memoryview(block), what, **details)
        tell(error, origin)
        return error
