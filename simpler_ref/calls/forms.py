"""How the arguments of a call travel: a code for each, then the words of their values.

The scalars of a call are: the block of its function with the numbers of codes, and of arguments that
have names; the codes, four bits each, fifteen to a word: first those of what is enclosed in arguments,
then one for each argument; then a word for each number or future; at last the names and the other values,
which are pickled together: their bytes and how many, or, if these are many, the block that has them.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from ..jit import layout as L

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
"""Longest pickle of values that travels with a call, for which `src/quick.c` has room; others get a block."""
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
    """Return the first words of a call."""
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
    """Return the block of the function from the first word of a call."""
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


@functools.lru_cache(maxsize=4096)
def _short_form(first: int, second: int) -> Form:
    return _form_of((first, second))


def float_of(word: int) -> float:
    """Return the float that has the bits of a word."""
    value: float = _double.unpack(_integer.pack(word))[0]
    return value
