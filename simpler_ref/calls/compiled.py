"""Compiled tasks: functions that workers run without the interpreter.

A call of a compiled task travels like any other, and its worker finds the function by the same key. The
first call with arguments of some types goes through Python: it compiles the function for these types, and
beside it an *entry*, which takes the arguments from the mailbox, checks that they have these types, runs
the function, and leaves its value where the future finds it. The worker's loop calls the entry for the
calls that follow (see `serve.resolve`). An entry that finds other types asks the one made before it;
what no entry takes goes through Python again.

Rule     CALL-COMPILED-1, CALL-COMPILED-4, CALL-COMPILED-6
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Awaited
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError

from ..callables.leaves import EntryCode, reason_of
from ..jit import layout as L
from ..jit.kernel import INTERPRETED
from ..jit.leaves import address_of_leaf
from . import arguments as A
from .signatures import Mode, Signature

Type: TypeAlias = Any
"""A type of numba."""

_MOST_ENTRIES = 32
_NUMBERS = {float: float, int: int, bool: bool, "float": float, "int": int, "bool": bool}
"""Annotations that convert a number."""
_I64_FIRST, _I64_LAST = -(1 << 63), (1 << 63) - 1
_PLAIN = {np.float64: float, np.int64: int, np.bool_: bool}
"""Types of numpy's that are for numba what Python's are."""
_KINDS = {
    types.int64: (L.SIGNED, L.FETCHED | L.VALUE_INT, L.FETCHED | L.VALUE_NUMPY_INT64),
    types.float64: (L.FLOAT64, L.FETCHED | L.VALUE_FLOAT, L.FETCHED | L.VALUE_NUMPY_FLOAT64),
    types.boolean: (L.FETCHED | L.VALUE_BOOL, L.FETCHED | L.VALUE_NUMPY_BOOL),
    types.none: (L.FETCHED | L.VALUE_NONE,),
}
"""Kinds of words that are numbers of a type."""


class Pattern(NamedTuple):
    """Which calls one entry takes."""

    codes: tuple[int, ...]
    """See `arguments`; TRUE stands for FALSE as well."""
    types: tuple[Type, ...]
    """Of the arguments."""
    elements: tuple[tuple[int, ...], ...]
    """The element type of each array, as the words that layouts have."""


class Code:
    """The code of a compiled task in this process."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        if not inspect.isfunction(function):
            raise TypeError(
                f"a compiled task needs a plain function, not {type(function).__name__}: numba compiles "
                "its source"
            )
        self.name = function.__qualname__
        self.options = options
        self.address = 0
        """Of the newest entry."""
        self._numbers = _numbers(function)
        self._count = function.__code__.co_argcount
        self._defaults = function.__defaults__ or ()
        self._entries: dict[Pattern, Any] = {}
        self._lock = threading.RLock()
        self._compiled = numba.njit(nogil=True, **options)(function)

    # ------------------------------------------------------------ arguments
    def signature(self, plain: Signature) -> Signature:
        """Return the signature of the function, which converts numbers, too."""
        if not plain.is_plain:
            raise TypeError(
                f"compiled task {self.name}: its parameters must be plain ones, without *, ** and "
                "keyword-only ones; numba passes arguments by position"
            )
        wanted = {at: kind for at, _, kind in self._numbers if kind is not None}
        return plain.converting(self.convert, wanted)

    def convert(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with numbers converted as the annotations say; refuse what would be lost."""
        converted = list(values)
        for at, name, wanted in self._numbers:
            value, kind = values[at], type(values[at])
            if wanted is None:
                wanted = _PLAIN.get(kind)
            fits = kind is wanted and (kind is not int or _I64_FIRST <= value <= _I64_LAST)
            if wanted is not None and not fits and not isinstance(value, Awaited):
                converted[at] = self._number(name, wanted, value)
        return tuple(converted)

    def _number(self, name: str, wanted: Any, value: Any) -> Any:
        whole = isinstance(value, (int, np.integer, np.bool_))
        if not (whole or (wanted is float and isinstance(value, (float, np.floating)))):
            raise TypeError(
                f"task {self.name}: {name} takes a number of type {wanted.__name__}, not {value!r}"
            )
        number = wanted(value)
        if wanted is int and not _I64_FIRST <= number <= _I64_LAST:
            raise OverflowError(f"task {self.name}: {name} is {value}, which does not fit 64 bits")
        return number

    # ------------------------------------------------------------ running
    def run(self, *values: Any) -> Any:
        """Run the function, compiled for the types of these arguments."""
        missing = self._count - len(values)
        if missing > 0:
            values += self._defaults[-missing:]
        values = self.convert(values)
        if not INTERPRETED:
            self.compile(self.types_of(values))
        return self._compiled(*values)

    def run_here(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call in this process; what it only reads is read-only, as in a worker."""
        values = list(signature.bind(args, kwargs))
        for at, (one, value) in enumerate(zip(signature.parameters, values, strict=True)):
            if one.mode is Mode.IN and isinstance(value, np.ndarray):
                values[at] = value.view()
                values[at].flags.writeable = False
        return self.run(*values)

    def types_of(self, values: Sequence[Any]) -> tuple[Type, ...]:
        try:
            return tuple(map(numba.typeof, values))
        except (ValueError, NumbaError) as error:
            raise TypeError(
                f"task {self.name} cannot be compiled for these arguments: {error}; without "
                "compiled=True it takes them"
            ) from error

    def compile(self, kinds: tuple[Type, ...]) -> None:
        if kinds in self._compiled.overloads:
            return
        with self._lock:
            try:
                self._compiled.compile(kinds)
            except Exception as error:
                raise TypeError(
                    f"task {self.name} cannot be compiled for ({', '.join(map(str, kinds))}): "
                    f"{reason_of(error)}"
                ) from error

    # ------------------------------------------------------------ entries
    def learn(
        self, codes: Sequence[int], values: Sequence[Any], elements: tuple[tuple[int, ...], ...]
    ) -> int:
        """Return the address of an entry that takes calls such as one that came, if there can be one."""
        if INTERPRETED or A.ITEM in codes:
            return self.address
        codes = tuple(A.TRUE if code == A.FALSE else code for code in codes)
        pattern = Pattern(codes, self.types_of(self.convert(tuple(values))), elements)
        with self._lock:
            if pattern not in self._entries and len(self._entries) < _MOST_ENTRIES:
                self.compile(pattern.types)
                answer = _answer_for(self._compiled.overloads[pattern.types].signature.return_type)
                words = zip(pattern.codes, pattern.types, strict=True)
                entry = None  # if Python has to read an argument, or leave the value
                if answer is not None and all(one != A.VALUE or of in _KINDS for one, of in words):
                    entry = _entry(self._compiled, pattern, answer, self.address)
                    self.address = address_of_leaf(entry)
                self._entries[pattern] = entry
            return self.address


def _numbers(function: Callable[..., Any]) -> list[tuple[int, str, Any]]:
    """Return the parameters that are annotated as numbers, or not at all: index, name and type."""
    found: list[tuple[int, str, Any]] = []
    for at, one in enumerate(inspect.signature(function).parameters.values()):
        if one.annotation is inspect.Parameter.empty:
            found.append((at, one.name, None))
        elif isinstance(one.annotation, (type, str)) and one.annotation in _NUMBERS:
            found.append((at, one.name, _NUMBERS[one.annotation]))
    return found


# ---------------------------------------------------------------- the code that a worker calls
def _answer_for(kind: Type) -> list[str] | None:
    """Return the lines that leave a value for the future; None if only Python can."""
    if kind == types.none:
        return []
    if isinstance(kind, types.Boolean):
        return ["out[0] = value", f"out[1] = {L.VALUE_BOOL}"]
    if isinstance(kind, types.Float):
        return ["out[0] = bits_of(float64(value))", f"out[1] = {L.VALUE_FLOAT}"]
    if isinstance(kind, types.Integer):
        how = L.VALUE_UNSIGNED if str(kind).startswith("u") else L.VALUE_INT
        return ["out[0] = int64(value)", f"out[1] = {how}"]
    return None


def _entry(compiled: Any, pattern: Pattern, answer: list[str], otherwise: int) -> Any:
    """Return an entry for the calls of a pattern; see `EntryCode`."""
    arrays = len(pattern.elements)
    first, *packed = A.head_words(0, pattern.codes, 0)
    code = EntryCode(arrays, 1 + len(packed) + pattern.codes.count(A.VALUE))
    head, number = code.first_scalar, 1 + len(packed)
    code.alike.append(f"words[{head}] >> {L.KEY_BITS} == {first >> L.KEY_BITS}")
    masks = [-1] * len(packed)
    elements = iter(pattern.elements)
    for i, (form, kind) in enumerate(zip(pattern.codes, pattern.types, strict=True)):
        if form in (A.ARRAY, A.READ_ARRAY):
            code.add_described(kind, next(elements))
        elif form == A.VALUE:
            kinds = " or ".join(f"kinds[{number}] == {one}" for one in _KINDS[kind])
            code.alike.append(f"({kinds})")
            code.values.append(_READ_AS[kind].format(head + number))
            number += 1
        elif form == A.NONE:
            code.values.append("None")
        else:  # True or False: whichever it is
            word, shift = A.place_of(i)
            masks[word] &= ~(A.CODE_MASK << shift)
            found = f"words[{head + 1 + word}] >> {shift} & {A.CODE_MASK}"
            code.alike.append(f"({found} == {A.TRUE} or {found} == {A.FALSE})")
            code.values.append(f"{found} == {A.TRUE}")
    for i, (word, mask) in enumerate(zip(packed, masks, strict=True)):
        code.alike.append(f"words[{head + 1 + i}] & {mask} == {word & mask}")
    return code.compile(compiled, answer, otherwise)


_READ_AS = {
    types.int64: "words[{}]",
    types.float64: "double_of(words[{}])",
    types.boolean: "words[{}] != 0",
    types.none: "None",
}
