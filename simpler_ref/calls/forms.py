"""How the arguments of a call travel: a code for each, then the words of their values.

The scalars of a call are: the block of its function with the numbers of arguments, and of those that have
names; codes, four bits for each argument, fifteen to a word; then a word for each number or future; at
last the names and the other values, which are pickled together: their bytes and how many, or, if these
are many, the block that has them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

NONE, TRUE, FALSE, ITEM, ARRAY, READ_ARRAY, VALUE = range(7)
"""A constant; pickled; an array that the task writes; one that it only reads; a word."""
_BITS, _IN_A_WORD = 4, 15
_MASK = (1 << _BITS) - 1
_COUNT, _NAMED = 40, 52
MOST_ARGUMENTS = (1 << 63 - _NAMED) - 1
_double, _integer = struct.Struct("<d"), struct.Struct("<q")
_CONSTANTS = {NONE: None, TRUE: True, FALSE: False}


class Form(NamedTuple):
    """The first words of a call, read."""

    codes: list[int]
    named: int
    """How many arguments, the last ones, have names."""
    end: int
    """Index of the word after the codes."""

    @property
    def has_items(self) -> bool:
        """Whether names or values are pickled."""
        return self.named > 0 or ITEM in self.codes


def head_words(key: int, codes: Sequence[int], named: int) -> list[int]:
    """Return the first words of a call."""
    words = [key | len(codes) << _COUNT | named << _NAMED]
    for first in range(0, len(codes), _IN_A_WORD):
        word = 0
        for code in reversed(codes[first : first + _IN_A_WORD]):
            word = word << _BITS | code
        words.append(word)
    return words


def key_of(word: int) -> int:
    """Return the block of the function from the first word of a call."""
    return word & (1 << _COUNT) - 1


def form_of(words: Sequence[int]) -> Form:
    """Return what the first words of a call say."""
    named = words[0] >> _NAMED
    count = words[0] >> _COUNT & (1 << _NAMED - _COUNT) - 1
    codes = [words[1 + i // _IN_A_WORD] >> _BITS * (i % _IN_A_WORD) & _MASK for i in range(count)]
    return Form(codes, named, 1 + -(-count // _IN_A_WORD))


def constant(code: int) -> Any:
    """Return the constant of a code."""
    return _CONSTANTS[code]


def float_of(word: int) -> float:
    """Return the float that has the bits of a word."""
    value: float = _double.unpack(_integer.pack(word))[0]
    return value
