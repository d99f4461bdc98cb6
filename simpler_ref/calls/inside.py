"""A call in its worker: arguments from the mailbox, the call, its value into a block."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from ..callables.runnable import refuse_unrun
from ..engine.view.blocks import Blocks, data_of
from ..engine.view.mailbox import CallWords, MailboxView, ReceivedArgs, call_words
from ..jit import layout as L
from ..jit.fail_points import FAIL_TOOK_BLOCK, FAIL_WROTE_BLOCK, die_here
from ..jit.kernel import FAIL_POINTS
from . import outcomes
from .arrays import ReceivedArrays
from .current import here
from .forms import ARRAY, CONSTANTS, ITEM, READ_ARRAY, VALUE, Form, Forms, float_of
from .limits import within
from .tasks import from_payload


class Caller:
    """The one callable of a stream: its workers find the function of each call by its first scalar."""

    __qualname__ = "call"

    def __call__(self) -> None:
        """Refuse: it is no function."""
        raise TypeError("calls are submitted by calling a task")

    def leaf_for(self, mailbox: MailboxView) -> Callable[[ReceivedArgs], None]:
        """Return what a worker's loop runs for each call."""
        return _Inside(mailbox).run


class _Inside:
    """What a worker keeps for its calls.

    Rule     CALL-VALUE-1 to -3; CALL-FAIL-3
    """

    def __init__(self, mailbox: MailboxView) -> None:
        here.in_task = True  # this thread runs nothing else
        self._start = mailbox.start
        self._call = CallWords(mailbox)
        self._mem = mailbox.engine.mem
        self._blocks = Blocks(self._mem, mailbox.worker + 1)
        self._forms = Forms()
        self._functions: dict[int, Callable[..., Any]] = {}
        self._arrays = ReceivedArrays(mailbox.engine)
        here.mailbox = mailbox

    def run(self, args: ReceivedArgs) -> None:
        """Run a call, and leave its value where the future finds it."""
        try:
            wires, words, kinds = call_words(args)
            form = self._forms.form_of(words)
            function = self._functions.get(form.key) or self._load(form.key)
            positional, named = self._arguments(form, wires, words, kinds)
            result = function(*positional, **named)
            if result is not None:
                refuse_unrun(result)
                self._answer(outcomes.encode(result))
        except BaseException as error:
            self._answer_failure(error)
            raise

    def _load(self, key: int) -> Callable[..., Any]:
        """Return the function of a task, which keeps its time limit."""
        task = from_payload(bytes(data_of(self._mem, key)))
        function = task.py_func if task.timeout is None else within(task.timeout, task.py_func)
        self._functions[key] = function
        return function

    def _answer(self, outcome: outcomes.Outcome) -> None:
        word = outcome.word
        if outcome.kind >= L.VALUE_BLOCK:
            block = self._blocks.take(outcome.nbytes, self._call.slot)
            if FAIL_POINTS:
                die_here(self._mem, self._start, FAIL_TOOK_BLOCK)
            outcomes.write(outcome.parts, block.data)
            if FAIL_POINTS:
                die_here(self._mem, self._start, FAIL_WROTE_BLOCK)
            word = block.offset
        self._call.answer(outcome.kind, word)

    def _answer_failure(self, error: BaseException) -> None:
        """Leave what a call has raised.

        Rule     CALL-VALUE-5
        """
        try:
            self._answer(outcomes.encode_error(error))
        except MemoryError:
            self._call.answer(L.VALUE_NO_ROOM, 0)

    # ------------------------------------------------------------ arguments
    def _arguments(
        self, form: Form, wires: list[bytes], words: list[int], kinds: memoryview
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the named arguments of a call; see `forms`."""
        _, codes, named, at, has_items = form
        names, items = self._items(words, kinds) if has_items else ((), [])
        item = iter(items)
        arrays = iter(wires)
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

    def _items(self, words: list[int], kinds: memoryview) -> tuple[tuple[str, ...], list[Any]]:
        """Return the names and the values that are pickled."""
        if kinds[len(words) - 1] == L.PAYLOAD:
            data: Any = data_of(self._mem, words[-1])
        else:
            size = words[-1]
            first = len(words) - 1 - -(-size // L.WORD)
            data = np.array(words[first:-1], np.int64).tobytes()[:size]
        names, items = pickle.loads(data)
        return names, items

    def _value(self, word: int, kind: int) -> Any:
        """Return the value of a word, or that of a call."""
        if kind & L.FETCHED:
            kind ^= L.FETCHED
            if kind == L.VALUE_BLOCK:
                return outcomes.decode_block(data_of(self._mem, word))[0]
            return outcomes.decode_word(kind, word)
        return float_of(word) if kind == L.FLOAT64 else word
