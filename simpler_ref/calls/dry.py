"""A dry run of calls: what they would wait for, without making any.

`DryStream` is in the place of a Worker's stream while a function makes its calls. It packs them as that
does, and submits them to a `DryEngine`.

Rule     SEE-GRAPH-8
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..jit import layout as L
from ..model.scalars import INTEGER
from ..model.wire import TENSOR_BYTES
from ..orch.dry import DryEngine, shown_number
from ..trace.graphs import TaskGraph
from . import current
from .arrays import SentArrays
from .forms import ARRAY, READ_ARRAY, form_of
from .futures import Future
from .packing import CallPlan, Packer
from .quick import Slow

if TYPE_CHECKING:
    from ..workers.life import Life
    from ..workers.session import Session
    from .stream import Stream
    from .tasks import Task

_LONGEST = 40
"""Characters of a text that is shown as it is."""


class DryStream:
    """The calls of a function, none of which is made."""

    def __init__(self, life: Life, real: Stream, session: Session) -> None:
        self._life, self._real = life, real
        self._thread = get_ident()
        self._first_sub = session.engine.view.pool(L.SUB).start
        self._dry = DryEngine(session)
        self._engine = engine = self._dry.engine
        engine.kernels.begin_stream(engine.mem)
        self._arrays = SentArrays(engine.layouts, session.why_array_is_invisible, Slow(engine))
        self._packer = Packer(self._arrays, session, lambda: None)  # nothing runs to be waited for
        self._plans: dict[Task, CallPlan] = {}
        self._numbers: dict[int, int] = {}
        """The calls of slots."""
        self._kept: list[Any] = []
        """The arguments: memory that was given back would be another array's."""

    def close(self) -> None:
        """Let go of the engine; futures stay."""
        self._kept.clear()
        self._engine.close()

    @property
    def graph(self) -> TaskGraph:
        """The graph of the calls so far."""
        made = self._dry.made
        return TaskGraph(made, [(0, i) for i in range(len(made))])

    @property
    def is_gone(self) -> bool:
        """Whether the function has returned."""
        return self._life.dry is not self

    @property
    def is_mine(self) -> bool:
        """Whether this thread calls the function."""
        return get_ident() == self._thread

    # ------------------------------------------------------------ calls
    def submit(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future:
        """Add a call to the graph; return its future, which has no value. Other threads' calls are made.

        Raises
        ------
        TypeError, ValueError
            As by a call.
        MemoryError
            There are more calls than can be alive at once.
        """
        if not self.is_mine:
            return self._real.submit(task, args, kwargs)
        bound = task.signature.bind(args, kwargs)
        plan = self._plans.get(task) or self._plan(task)
        try:
            counts, wire, data, _, _ = self._packer.pack(plan, bound)
        except TypeError as error:
            if any(isinstance(one, NoValue) for one in (*args, *kwargs.values())):
                raise error.__cause__ or error from None  # which says why it has no value
            raise
        if data:  # the block that it would have
            wire += INTEGER.pack(0, L.SIGNED)
            counts += 1 << L.HALF
        word = L.SUB << L.WORD_KIND
        if plan.workers is not None:
            word |= next(plan.workers)
        slot = self._engine.kernels.call_and_pass(self._engine.mem, word, counts, wire)
        self._dry.require_slot(slot, wire, counts)
        self._kept.append(bound)
        self._numbers[slot] = len(self._dry.made)
        self._add(task, bound, counts & L.LOW_HALF, wire, (word >> L.WORD_WORKER) - 1)
        future = Future.__new__(Future)
        future._stream, future._slot = self, slot  # type: ignore[assignment]
        return future

    def _plan(self, task: Task) -> CallPlan:
        """Return what is known of a task; its workers, if it names some, begin with the first."""
        known = self._real.functions.plan_of(task)
        workers = tuple(self._first_sub + one for one in task.workers)
        made = self._plans[task] = CallPlan(task, known.key, workers)
        return made

    def task_of(self, function: Any, workers: tuple[int, ...] = ()) -> Task:
        """Return the task of a plain function; see `Stream.task_of`."""
        return self._real.task_of(function, workers)

    def results(
        self, task: Task, rows: Iterable[Any], *, star: bool
    ) -> Generator[NoValue, None, None]:
        """Call a task for each item, at once, each on its own; see `Worker.map`."""
        calls = [self.submit(task, tuple(row) if star else (row,), {}) for row in rows]
        return (NoValue(self.describe(one._slot)) for one in calls)

    # ------------------------------------------------------------ the graph
    def _add(
        self, task: Task, bound: tuple[Any, ...], tensors: int, wire: bytes, worker: int
    ) -> None:
        wires = [wire[i * TENSOR_BYTES : (i + 1) * TENSOR_BYTES] for i in range(tensors)]
        words = [one for one, _ in struct.iter_unpack("<qq", wire[tensors * TENSOR_BYTES :])]
        values, _ = task.signature.flatten(bound)
        texts = [
            self._shown(value)
            for code, (_, value) in zip(form_of(words).codes, values, strict=True)
            if code not in (ARRAY, READ_ARRAY)
        ]
        self._dry.add(task.__qualname__, 0, [(wires, texts, worker)], by_producer=True)

    def _shown(self, value: Any) -> str:
        """Return a value as text, without addresses."""
        if type(value) is Future:
            if value._stream is self:  # type: ignore[comparison-overlap]
                return f"value of task {self._numbers[value._slot]}"
            value = value.result()
        if value is None or isinstance(value, (bool, int, float)):
            return shown_number(value)
        if isinstance(value, (str, bytes)):
            return repr(value) if len(value) <= _LONGEST else f"{repr(value[:_LONGEST])[:-1]}…"
        if isinstance(value, np.ndarray):
            return f"copy of {value.dtype.name}{list(value.shape)}"
        return f"<{type(value).__qualname__}>"

    # ------------------------------------------------------------ what a dry run does not have
    def describe(self, slot: int) -> str:
        """Return a call's number and the name of its task."""
        one = self._dry.made[self._numbers[slot]]
        return f"task {one.id} ({one.name}) of a dry run"

    def _refuse_value(self, future: Future, *_: Any) -> NoReturn:
        raise RuntimeError(_no_value(self.describe(future._slot)))

    def _refuse_state(self, slot: int) -> NoReturn:
        raise RuntimeError(_no_value(self.describe(slot)))

    take = wait = fetch = cancel = watch = _refuse_value
    has_settled = is_running = _refuse_state

    def drop_later(self, future: Future) -> None:
        """Do nothing: a call that is not made is not dropped."""


def _no_value(what: str) -> str:
    return (
        f"{what} is not made, and has no value: a dry run only says what would wait for what. Ask for "
        "results after the function whose graph this is, in a program that runs it"
    )


class NoValue:
    """What an item of `map` gives in a dry run: all that asks for its value is refused."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __repr__(self) -> str:
        return f"<no value: {self._what}>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise RuntimeError(_no_value(self._what))

    __getattr__ = __hash__ = __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __call__ = _refuse
    __int__ = __float__ = __complex__ = __index__ = __array__ = __reduce_ex__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = __round__ = __str__ = __format__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refuse


def graph_of_calls(life: Life, session: Session, function: Callable[[], Any]) -> TaskGraph:
    """Return the graph of a function that makes calls; see `Worker.graph`."""
    if life.stream is None:
        raise RuntimeError("this Worker has no workers for Python tasks: give num_sub_workers")
    stream = DryStream(life, life.stream, session)
    try:
        life.dry = stream
        current.enter(stream)
        function()
    finally:
        life.dry = None
        current.leave(stream)
        stream.close()
    return stream.graph
