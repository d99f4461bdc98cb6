"""A call in its worker: arguments from the mailbox, the call, its value into a block; and calls that
it makes.

A timer of the system ends the process of a call that runs longer than its limit. So a limit holds
whatever the task does, also in native code that keeps the interpreter's lock, and whatever the program
does meanwhile. The worker stops the timer itself, so no later call is hit. Meanwhile the process leads
a group of its own, in which is what the call starts: the fork server ends the rest of it before it
reaps the process (`fork_server.py`).

With ``check=True`` it is also seen whether an array changes that the call reads: while it runs, and
between its submit and its start (`checked`).

A call that a task makes runs at once, in the task's own worker, as a part of the task: `NestedStream` is
in the place of a Worker's stream. So nothing waits for a worker that waits itself, however deep they are,
and a function that makes calls and asks for their results works in a task as in the program. Time limits,
retries and workers are those of the outermost task.

Rule     CALL-COMPILED-1, CALL-FAIL-3, CALL-LIMIT-1, CALL-SENT-2, CALL-STREAM-1, CALL-STREAM-5,
         CALL-VALUE-1, CALL-VALUE-2, CALL-VALUE-4, SEE-INPUT-1, SEE-INPUT-6, WM-LEFT-1
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import os
import pickle
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from cloudpickle import cloudpickle

from ..callables.pickling import PICKLED, is_plain
from ..callables.runnable import refuse_unrun, require_runnable
from ..engine.view.blocks import Blocks, data_of
from ..engine.view.mailbox import MailboxView, ReceivedArgs, call_words
from ..errors import HazardError, TaskError
from ..jit import layout as L
from ..jit.fail_points import FAIL_TOOK_BLOCK, FAIL_WROTE_BLOCK, fail_point
from ..jit.kernel import FAIL_POINTS
from ..system.regions import is_private
from ..system.types import Array, address_of
from ..system.values import items
from ..workers import loop
from ..workers.containment import Origin
from ..workers.guard import Guard, Input, look
from ..workers.manager import Terminated
from ..workers.reports import describe_exception
from . import large_values, outcomes, quick
from .arguments import (
    ARRAY,
    CONSTANTS,
    INNER_ARRAY,
    INNER_VALUE,
    ITEM,
    READ_ARRAY,
    VALUE,
    Form,
    ReceivedArrays,
    float_of,
    form_of,
)
from .call_errors import LIMIT_SIGNAL
from .checked import KIND, NO_SUM, sum_of
from .futures import Future, ended
from .large_values import Borrowed
from .outcomes import ENDS_LOOPS
from .packing import load
from .sending import How, Payload, number_in, received, signature_of
from .signatures import Mode, Signature
from .tasks import Task, here, local, take_calls_of_tasks

if TYPE_CHECKING:
    from .compiled import Code

_Function: TypeAlias = tuple[int, Callable[..., Any], "Code | None"]
"""The number of a payload, what a worker calls for it, and what that is compiled to."""


class Initializer:
    """What each sub worker does first: forget what it has inherited, and call the user's function."""

    def __init__(self, function: Callable[..., Any] | None, args: Iterable[Any]) -> None:
        self._function = function
        self._args = tuple(items("initargs", args, "arguments"))
        if function is None:
            if self._args:
                raise TypeError("initargs are for an initializer, and there is none")
            return
        if not callable(function):
            raise TypeError(f"initializer={function!r} is not callable")
        require_runnable("initializer", function)

    @property
    def is_given(self) -> bool:
        return self._function is not None

    def __call__(self) -> None:
        """Run in a worker, before its first task."""
        vars(local).clear()
        take_calls_of_tasks(NESTED)
        if self._function is not None:
            self._function(*self._args)


class Caller:
    """The one callable of a stream: its workers find the function of each call by its first scalar."""

    __qualname__ = "call"

    def __call__(self) -> None:
        raise TypeError("calls are submitted by calling a task")

    def inside_for(self, mailbox: MailboxView, guard: Guard | None) -> Inside:
        """Return what a worker's loop runs calls with; a guard compares what they must not write."""
        return Inside(mailbox) if guard is None else GuardedInside(mailbox, guard)


class Inside:
    """What a worker keeps for its calls."""

    def __init__(self, mailbox: MailboxView) -> None:
        take_calls_of_tasks(NESTED)  # this thread runs nothing else
        here.actors = {}
        self._start = mailbox.start
        self._call = mailbox
        self._mem = mailbox.engine.mem
        self._blocks = Blocks(self._mem, mailbox.worker + 1)
        is_process = (
            loop.in_worker == os.getpid() and threading.current_thread() is threading.main_thread()
        )
        self._borrowed = Borrowed(self._mem, self._blocks) if is_process else None
        self._places = None
        if is_process and large_values.are_possible():
            self._places = large_values.Places(self._mem, mailbox.worker + 1, self._blocks)
        self._functions: dict[int, _Function] = {}
        self._plain: dict[int, Callable[..., Any]] = {}
        self._arrays = ReceivedArrays(mailbox.engine)
        self._addresses: dict[int, int] = {}
        self._origin = Origin()
        here.mailbox = mailbox
        self._make: Callable[..., None]

    def __reduce__(self) -> NoReturn:
        """Refuse: a task that refers to a Worker with threads refers to this, too, and to all memory."""
        raise TypeError("what a worker keeps for its calls cannot be pickled")

    def leaf(self) -> Callable[[ReceivedArgs], None]:
        """Return what the worker's loop calls: `run`, or what runs the usual calls quicker."""
        run, self._make = quick.run_inside(self)
        return run

    def run(self, args: ReceivedArgs) -> None:
        """Run a call, and leave its value where the future finds it; see `answer_failure`, too."""
        wires, words, kinds = call_words(args)
        form = form_of(words)
        data, known = data_of(self._mem, form.key), self._functions.get(form.key)
        if known is None or known[0] != number_in(data):  # its block has got another function
            known = self._load(form.key, data)
        _, function, code = known
        positional, named = self._arguments(form, wires, words, kinds)
        if code is not None and not form.inner:
            self._learn(code, form, wires, positional)
        self._make(function, tuple(positional), named)
        del positional, named
        self._settle()

    def _settle(self) -> None:
        """Let a call end, with what it has got and may keep."""
        if self._borrowed is not None:
            self._borrowed.settle()

    def _finish(self, result: Any) -> None:
        """Leave what a call has returned; a child of the task, which returns as well, ends."""
        self._origin.require()
        result = final(result)
        if type(result) in PICKLED and is_plain(result):  # as `encode` would, in half of the time
            self._answer_block(L.VALUE_BLOCK, *outcomes.block_of_plain(result))
        elif result is not None:
            refuse_unrun(result)
            self._answer(outcomes.encode(result))
            if self._places is not None and type(result) is np.ndarray:
                self._places.add(result.nbytes)

    def _finish_placed(self, result: Array, block: int) -> None:
        """Answer with an array in a place of its own, which is given away if most of it is in use."""
        self._origin.require()
        assert self._places is not None, "there was a place"
        data = self._blocks.data_of(block)
        at = address_of(result) - self._places.address_in(block)
        is_most = 3 * result.nbytes >= len(data)
        if is_most and result.flags.forc and (head := outcomes.array_head(result, at)):
            data[: len(head)] = head
            self._places.give(address_of(result))
            self._blocks.give(block, self._call.slot)
            self._call.answer(L.VALUE_BLOCK, block)
        else:
            self._answer(outcomes.encode(result))
        self._places.add(result.nbytes)

    def _load(self, key: int, data: memoryview) -> _Function:
        """Return the function of a task, which keeps its time limit."""
        payload = Payload.from_bytes(data)
        function, timeout, code = received(payload)
        if timeout is not None:
            function = within(timeout, function)
        made = number_in(data), function, code
        if payload.how & How.KEPT:
            self._functions[key] = made
        if payload.how & How.LASTING and code is None:
            self._plain[key] = function
        return made

    def _learn(self, code: Code, form: Form, wires: list[bytes], values: list[Any]) -> None:
        """Have the calls that follow run without Python, if they are like this one."""
        elements = self._arrays.elements(wires)
        if elements is None:
            return
        address = code.learn(form.codes, values, elements)
        if address != self._addresses.get(form.key, 0):
            self._call.note_code(form.key, address)
            self._addresses[form.key] = address

    def _answer(self, outcome: outcomes.Outcome) -> None:
        if outcome.kind >= L.VALUE_BLOCK:
            self._answer_block(outcome.kind, outcome.parts, outcome.nbytes)
        else:
            self._call.answer(outcome.kind, outcome.word)

    def _answer_block(self, kind: int, parts: Sequence[bytes | Array], nbytes: int) -> None:
        try:
            block = self._blocks.take(nbytes, self._call.slot)
        except MemoryError:
            if self._places is None or not self._places.leave():
                raise
            block = self._blocks.take(nbytes, self._call.slot)
        if FAIL_POINTS:
            fail_point(self._mem, self._start, FAIL_TOOK_BLOCK)
        outcomes.write(parts, block.data)
        if FAIL_POINTS:
            fail_point(self._mem, self._start, FAIL_WROTE_BLOCK)
        self._call.answer(kind, block.offset)

    def answer_failure(self, error: BaseException) -> None:
        self._settle()
        try:
            self._answer(outcomes.encode_error(error))
        except MemoryError:
            self._call.answer(L.VALUE_NO_ROOM, 0)

    # ------------------------------------------------------------ arguments
    def _arguments(
        self, form: Form, wires: list[bytes], words: list[int], kinds: memoryview
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the named arguments of a call; see `arguments`."""
        _, inner, codes, named, at, has_items = form
        arrays = iter(wires)
        names: tuple[str, ...] = ()
        items: list[Any] = []
        if has_items:
            read_only = (self._arrays.array(wire, False) for wire in arrays)
            fetched = map(self._value, words[at:], kinds[at:])
            names, items = load(self._data(words, kinds), inner, read_only, fetched)
            at += inner.count(INNER_VALUE)
        item = iter(items)
        values: list[Any] = []
        for code in codes:
            if code == VALUE:
                kind = kinds[at]
                values.append(words[at] if kind == L.SIGNED else self._value(words[at], kind))
                at += 1
            elif code in (ARRAY, READ_ARRAY):
                values.append(self._arrays.array(next(arrays), code == ARRAY))
            elif code == ITEM:
                values.append(next(item))
            else:
                values.append(CONSTANTS[code])
        if not named:
            return values, {}
        return values[:-named], dict(zip(names, values[-named:], strict=True))

    def _data(self, words: list[int], kinds: memoryview) -> memoryview | bytes:
        """Return the names and the values that are pickled."""
        if kinds[len(words) - 1] == L.PAYLOAD:
            return data_of(self._mem, words[-1])
        size = words[-1]
        first = len(words) - 1 - -(-size // L.WORD)
        return np.array(words[first:-1], np.int64).tobytes()[:size]

    def _read(self, block: int) -> Any:
        if self._borrowed is not None:
            return self._borrowed.value(block)
        return outcomes.decode_block(self._blocks.data_of(block))[0]

    def _value(self, word: int, kind: int) -> Any:
        """Return the value of a word, or that of a call."""
        if kind & L.FETCHED:
            kind ^= L.FETCHED
            if kind == L.VALUE_BLOCK:
                return self._read(word)
            return outcomes.decode_word(kind, word)
        return float_of(word) if kind == L.FLOAT64 else word


# ---------------------------------------------------------------- time limits
_EVENT, _TIMES = struct.Struct("@Pii48x"), struct.Struct("@4l")
"""The system's `sigevent`, with a signal, and `itimerspec`: seconds and nanoseconds from one end to the
next, and until the first."""
_SIGEV_SIGNAL = 0


@functools.cache
def _timer() -> tuple[Any, ctypes.c_void_p, int]:
    """Make the timer that ends this process, which a process forked from it does not have.

    Return what sets it, its id, and the group that the process is in.
    """
    signal.signal(LIMIT_SIGNAL, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [LIMIT_SIGNAL])
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "timer_create"):  # glibc before 2.34
        library = ctypes.CDLL("librt.so.1", use_errno=True)
    pointer = ctypes.c_void_p
    library.timer_settime.argtypes = pointer, ctypes.c_int, pointer, pointer
    timer, event = pointer(), _EVENT.pack(0, LIMIT_SIGNAL, _SIGEV_SIGNAL)
    if library.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "no timer for the time limit of a task")
    return library.timer_settime, timer, os.getpgrp()


def _join(group: int) -> None:
    with suppress(OSError):  # the task has made a session, or the group is gone
        os.setpgid(0, group)


def within(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ends this process, with what it starts until then, if it takes longer."""
    set_timer, timer, group = _timer()
    s, ns = divmod(max(1, int(seconds * 1e9)), 10**9)
    limit, never = _TIMES.pack(0, 0, s, ns), _TIMES.pack(0, 0, 0, 0)

    def limited(*args: Any, **kwargs: Any) -> Any:
        _join(0)
        set_timer(timer, 0, limit, None)
        try:
            return function(*args, **kwargs)
        finally:
            set_timer(timer, 0, never, None)
            _join(group)

    return limited


# ---------------------------------------------------------------- with check=True
def require_unchanged(arrays: Iterable[Array], names: Iterable[str], sums: Sequence[int]) -> None:
    """Refuse a call, which has not begun, if the bytes of its arrays have not the sums they had."""
    for array, name, before in zip(arrays, names, sums, strict=False):
        if before not in (NO_SUM, sum_of(array)):
            raise HazardError(
                f"{KIND}: {name} ({array.nbytes} bytes) was written after the submit of this call and "
                "before its start. If the program does so, let it wait for the call's future first, or "
                "give the call a copy; if another task does so, annotate its parameter with InOut",
                kind=KIND,
            )


class GuardedInside(Inside):
    """Runs calls, each by Python, and has a guard compare the arrays that these only read."""

    def __init__(self, mailbox: MailboxView, guard: Guard) -> None:
        super().__init__(mailbox)
        self._guard = guard
        self._given: list[tuple[int, str, Any]] = []
        """The arrays of the call that is about to begin: code, name, and array."""

    def leaf(self) -> Callable[[ReceivedArgs], None]:
        """Return what runs a call: native code would not look."""
        self._make = self._make_guarded
        return self.run

    def _learn(self, code: Code, form: Form, wires: list[bytes], values: list[Any]) -> None:
        """Leave all calls to Python."""

    def _arguments(
        self, form: Form, wires: list[bytes], words: list[int], kinds: memoryview
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, none of whose arrays was written since the submit; see `Sums`."""
        end = len(words) - (kinds[len(words) - 1] == L.PAYLOAD)
        first = end - len(wires)
        sums = words[first:end]
        kinds = memoryview(bytes(kinds[:first]) + bytes(kinds[end : len(words)]))
        del words[first:end]
        positional, named = super()._arguments(form, wires, words, kinds)
        names = [f"argument {i}" for i in range(len(positional))] + [*named]
        given = zip(form.codes, names, [*positional, *named.values()], strict=True)
        arrays = [one for one in given if one[0] in (ARRAY, READ_ARRAY)]
        names = ["an array within an argument"] * form.inner.count(INNER_ARRAY)
        names += [name for _, name, _ in arrays]
        require_unchanged((self._arrays.array(one, False) for one in wires), names, sums)
        self._given = arrays
        return positional, named

    def _make_guarded(
        self, function: Callable[..., Any], positional: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        arrays, self._given = self._given, []
        remedy = "Annotate it with InOut"
        inputs = [Input(name, one, remedy) for code, name, one in arrays if code == READ_ARRAY]
        seen = look(inputs, [one for code, _, one in arrays if code == ARRAY])
        made = function(*positional, **named)
        self._guard.require_unchanged(seen)
        self._finish(made)


# ---------------------------------------------------------------- calls that a task makes
_UNCHANGING = frozenset(
    (type(None), bool, int, float, complex, str, bytes, range, np.bool_, np.int64, np.float64)
)


class NestedStream:
    """The calls of tasks."""

    def submit(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future:
        """Run a call, and return its future, which has the value or the error."""
        given: Sequence[Any] = args
        if (
            kwargs
            or len(args) != task.signature.taken_as_given
            or not _UNCHANGING.issuperset(map(type, args))
        ):
            given, kwargs = _received(task.signature, args, kwargs)
        # No function of its own for this: with a frame less, a recursion can be deeper. The traceback of
        # an error has this frame, which must not have the future: it would not die, and nobody would log
        # an error that nobody asks for.
        try:
            value = final(task.run(*given, **kwargs))
        except Terminated:
            raise
        except (*ENDS_LOOPS, SystemExit) as ends:  # must end neither a loop nor the whole task
            text = f"a call in this task: {describe_exception(ends)}"
            return ended(None, TaskError(text), cause=ends)
        except Exception as error:
            return ended(None, error)
        return ended(value, None)

    def task_of(self, function: Any) -> Task:
        return Task(function, signature_of(function))

    def results(
        self, task: Task, rows: Iterable[Any], *, star: bool, timeout: float | None
    ) -> Iterator[Any]:
        """Call a task for each item once its result is asked for; see `Worker.map`."""
        start = time.monotonic()

        def call(row: Any) -> Any:
            if timeout is not None and time.monotonic() - start > timeout:
                raise concurrent.futures.TimeoutError(
                    f"a result of map in this task was asked for {timeout} s after the call of map"
                )
            return self.submit(task, tuple(row) if star else (row,), {}).result()

        return _Results(map(call, rows))


class _Results(Iterator[Any]):
    """The results of `map` in a task: each call is made when its result is asked for."""

    def __init__(self, results: Iterator[Any]) -> None:
        self._results = results

    def __next__(self) -> Any:
        return next(self._results)

    def close(self) -> None:
        """Call nothing more."""
        self._results = iter(())

    cancel = close


def _received(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that a task gets by position, and those that it gets by name."""
    bound, names = signature.flatten(signature.bind(args, kwargs))
    values = [_as_argument(parameter.name, parameter.mode, one) for parameter, one in bound]
    first_named = len(values) - len(names)
    return values[:first_named], dict(zip(names, values[first_named:], strict=True))


def final(value: Any) -> Any:
    """Return what a task has returned; of the future of a call that it has made, the value."""
    return value.result() if type(value) is Future else value


def _as_argument(name: str, mode: Mode, value: Any) -> Any:
    """Return what a task gets of an argument: what it must not write is a copy, or a read-only array."""
    value = final(value)
    if type(value) in _UNCHANGING:
        return value
    if not isinstance(value, np.ndarray):
        try:
            return pickle.loads(pickle.dumps(value, 5))
        except Exception:
            return pickle.loads(cloudpickle.dumps(value))
    if mode in (Mode.OUT, Mode.INOUT):
        if not value.flags.writeable:
            raise ValueError(
                f"{name}: the task writes this array, and it is read-only; pass a copy"
            )
        return value
    if mode is Mode.VALUE and is_private(value):
        return value.copy()
    view = value.view()
    view.flags.writeable = False
    return view


NESTED = NestedStream()
