"""How the arguments of a call travel: a code for each, the tensors of arrays, the words of other values.

The scalars of a call are: the block of its function with the numbers of codes, and of arguments that
have names; the codes, four bits each, fifteen to a word: first those of what is enclosed in arguments,
then one for each argument; then a word for each number or future; at last the names and the other values,
which are pickled together: their bytes and how many, or, if these are many, the block that has them.

Rule     CALL-ARRAY-1
"""

from __future__ import annotations

import functools
import struct
import weakref
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from ..engine.memory import Engine
from ..engine.view.layouts import Layouts
from ..jit import layout as L
from ..model.tensor import ContinuousTensor, view_memory
from ..model.visibility import make_tensor, require_only_memory
from ..model.wire import (
    SHAPE_AT,
    TAG_AT,
    TENSOR,
    DescribedWire,
    Layout,
    described,
    has_layout,
    layout_number,
    span_of,
)
from ..system.types import Array, address_of

CALL_KEY = L.CALL_KEY
NONE, TRUE, FALSE, ITEM, ARRAY, READ_ARRAY, VALUE, INNER_ARRAY, INNER_VALUE = range(9)
"""A constant; pickled; an array that the task writes; one that it only reads; a word; an array, and the
value of a call, that pickled arguments have within them (see `packing`)."""
CODE_BITS, _IN_A_WORD = 4, 15
CODE_MASK = (1 << CODE_BITS) - 1
_COUNT, _NAMED = L.KEY_BITS, 52
_MOST_CODES = (1 << _NAMED - _COUNT) - 1
MOST_ARGUMENTS = (1 << 63 - _NAMED) - 1
INLINE_BYTES = 512
"""Longest pickle of values that travels with a call, as `src/quick.c` has it; others get a block."""
_double, _integer = struct.Struct("<d"), struct.Struct("<q")
CONSTANTS = {NONE: None, TRUE: True, FALSE: False}


class Form(NamedTuple):
    """The first words of a call, read."""

    key: int
    """The block of the function."""
    inner: list[int]
    """The codes of what is enclosed in arguments."""
    codes: list[int]
    """Those of the arguments."""
    named: int
    """How many arguments, the last ones, have names."""
    end: int
    """Index of the word after the codes."""
    has_items: bool
    """Whether names or values are pickled."""


def head_words(key: int, codes: Sequence[int], named: int) -> list[int]:
    words = [key | len(codes) << _COUNT | named << _NAMED]
    for first in range(0, len(codes), _IN_A_WORD):
        word = 0
        for code in reversed(codes[first : first + _IN_A_WORD]):
            word = word << CODE_BITS | code
        words.append(word)
    return words


def inline(data: bytes) -> bytes:
    """Return a short pickle as words, of which the last one says how many bytes it has."""
    return data + bytes(-len(data) % L.WORD) + _integer.pack(len(data))


def place_of(argument: int) -> tuple[int, int]:
    """Return in which of the words of codes that of an argument is, and from which bit on."""
    word, place = divmod(argument, _IN_A_WORD)
    return word, place * CODE_BITS


def key_of(word: int) -> int:
    return word & CALL_KEY


def form_of(words: Sequence[int]) -> Form:
    """Return what the first words of a call say; those of short calls are read once."""
    is_short = 0 < words[0] >> _COUNT & _MOST_CODES <= _IN_A_WORD
    return _short_form(words[0], words[1]) if is_short else _form_of(words)


def _form_of(words: Sequence[int]) -> Form:
    named = words[0] >> _NAMED
    count = words[0] >> _COUNT & _MOST_CODES
    codes = [
        words[1 + i // _IN_A_WORD] >> CODE_BITS * (i % _IN_A_WORD) & CODE_MASK for i in range(count)
    ]
    end = 1 + -(-count // _IN_A_WORD)
    inner = [code for code in codes if code >= INNER_ARRAY]
    codes = codes[len(inner) :]
    return Form(key_of(words[0]), inner, codes, named, end, named > 0 or ITEM in codes)


_short_form = functools.lru_cache(maxsize=4096)(lambda *words: _form_of(words))


def float_of(word: int) -> float:
    value: float = _double.unpack(_integer.pack(word))[0]
    return value


# ---------------------------------------------------------------- arrays, as tensors and back
_MOST_VIEWS = 4096
_address = Struct("<Q").pack


Sent = tuple[Any, tuple[int, ...], tuple[int, ...], "np.dtype[Any]", bytes]
"""An array that was an argument: a weak reference, shape, strides, element type, and its tensor."""


class Known(NamedTuple):
    """What is known of arrays that were arguments, for as long as their layouts have numbers."""

    epoch: int
    """How often everything was forgotten."""
    arrays: dict[int, Sent]
    """By their ids: an id may be another array's by now, or its shape new."""
    extents: dict[Layout, tuple[bytes, int, int]]
    """Of a layout: a tensor's bytes after the address; bytes before its first element, and all bytes."""


class SentArrays:
    """The arrays that a program passes, as tensors: each is looked at once, unless it changes."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._quick = stream, stream._quick
        self._layouts: Layouts = stream._engine.layouts
        self.memory: list[tuple[int, int]] = stream._session.own_memory
        self._layouts.tell(self._start_anew)
        self.now = Known(0, {}, {})
        """What is known of them. `forget` puts another one in its place: a thread that still adds to the
        old one finds, with the lock, that the epoch is over."""

    def wire(self, array: Any) -> bytes:
        """Return the tensor for an array that is not known, without a tag.

        TypeError, ValueError: it is no array, its elements are Python objects, or the workers cannot see
        its memory.
        """
        if not isinstance(array, np.ndarray):
            wire = make_tensor(array)._wire
            if isinstance(wire, DescribedWire):
                wire = wire.numbered(self._layouts.number(*wire.layout))
            return wire[:TAG_AT]
        require_only_memory(array)
        _, arrays, extents = self.now
        layout = array.dtype, array.shape, array.strides
        rest, below, extent = extents.get(layout) or self._extent(layout, extents)
        address = address_of(array)
        why = self._stream.why_invisible(array, address - below, extent) if extent else None
        if why is not None:
            raise ValueError(
                f"workers cannot see this array of shape {array.shape}: {why}; pass Worker.share(array)"
            )
        wire = _address(address) + rest
        key = id(array)
        forget = arrays.pop
        reference = weakref.ref(array, lambda _: forget(key, None))
        arrays[key] = reference, layout[1], layout[2], layout[0], wire
        return wire

    def _extent(self, layout: Layout, extents: dict[Layout, Any]) -> tuple[bytes, int, int]:
        if layout[0].hasobject:
            raise TypeError(f"workers cannot read elements of type {layout[0]}, Python objects")
        below, extent = span_of(layout)
        epoch = self._layouts.epoch  # another thread may end it at any moment from here on
        rest = described(0, self._layouts.number(*layout), extent)
        extents[layout] = found = rest[SHAPE_AT:TAG_AT], below, extent
        self._quick.learn(epoch, layout, *found)
        return found

    def forget(self) -> None:
        """No call that has arrays may still run."""
        self._layouts.reset()

    def _start_anew(self) -> None:
        self._quick.forget()
        self.now = Known(self.now.epoch + 1, {}, {})


class ReceivedArrays:
    """The arrays of the calls that a worker runs."""

    def __init__(self, engine: Engine) -> None:
        self._layouts = Layouts(engine.mem)
        self._views: dict[tuple[bytes, bool], Array] = {}
        self._epoch = -1

    def array(self, wire: bytes, writeable: bool) -> Array:
        """Return the array of a tensor, a new one each time: its shape is the task's own."""
        return self.maker(wire, writeable)()

    def maker(self, wire: bytes, writeable: bool) -> Callable[[], Array]:
        """Return what makes arrays of a tensor, as long as no layouts are forgotten."""
        if self._layouts.epoch != self._epoch:
            self._epoch = self._layouts.epoch
            self._views.clear()
        view = self._views.get((wire, writeable))
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            if has_layout(wire):
                dtype, shape, strides = self._layouts.read(layout_number(wire))
                view = view_memory(TENSOR.unpack(wire)[0], shape, dtype, strides=strides)
            else:
                view = ContinuousTensor._from_wire(wire).numpy()
            view.flags.writeable = writeable
            self._views[wire, writeable] = view
        return view.view

    def elements(self, wires: list[bytes]) -> tuple[tuple[int, ...], ...] | None:
        """Return the element types of tensors as their layouts have them, None if one has no layout."""
        if not all(map(has_layout, wires)):
            return None
        return tuple(self._layouts.element(layout_number(wire)) for wire in wires)
