"""Writes programs, the tables of words that `program.py` carries out. Only these two know an op's words.

Plain Python and numpy, for recordings and for many submits in one call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import layout as L

Words = np.ndarray[Any, np.dtype[np.int64]]

_WORD = struct.Struct("<q")
_SUBMIT = struct.Struct("<6q")
_ALLOC = struct.Struct("<2q")
_PATCH = struct.Struct("<2q")
_SIZE_BIT = 8  # of OP_KIND
_VARIABLE_BIT = 32  # of PATCH_AT


class Patch(NamedTuple):
    """A word of a submit that is the sum of a variable and an offset."""

    at: int
    """The word, by `tensor_at` or `scalar_at`."""
    variable: int
    offset: int


def tensor_at(i: int) -> int:
    """Return which word of a submit is the address of its tensor `i`."""
    return L.OP_ARGS + i * L.TENSOR_WORDS + L.TENSOR_DATA


def scalar_at(tensors: int, j: int) -> int:
    """Return which word of a submit has the bits of scalar `j`, after `tensors` tensors; kind follows."""
    return L.OP_ARGS + tensors * L.TENSOR_WORDS + j * L.SCALAR_WORDS + L.SCALAR_BITS


def part_at(at: int, tensors: int) -> tuple[int, int]:
    """Return which argument of a submit a word is of, and the word's first byte in it.

    Arguments are numbered tensors first; there are so many of these.
    """
    which, word = divmod(at - L.OP_ARGS, L.TENSOR_WORDS)
    if which >= tensors:
        which, word = divmod(at - L.OP_ARGS - tensors * L.TENSOR_WORDS, L.SCALAR_WORDS)
        which += tensors
    return which, word * L.WORD


def _kind(op: int, size: int) -> int:
    return op | size << _SIZE_BIT


class ProgramWriter:
    """A program that is written op after op.

    Attributes
    ----------
    callables : list[int]
        Offsets of the callable words of its submits so far.
    """

    def __init__(self) -> None:
        self.callables: list[int] = []
        self._parts: list[bytes] = [_WORD.pack(L.PROGRAM_OPS)]
        self._size = L.PROGRAM_OPS

    def _write(self, *parts: bytes) -> None:
        self._parts += parts
        self._size += sum(map(len, parts)) // L.WORD

    def submit(
        self,
        word: int,
        counts: int,
        arguments: bytes,
        members: Sequence[bytes],
        patches: Iterable[Patch],
        outputs: int,
    ) -> None:
        """Write a submit; `outputs` is the variable of its first tensor, −1 if outputs are not used."""
        table = [_PATCH.pack(one.at | one.variable << _VARIABLE_BIT, one.offset) for one in patches]
        body = [arguments, *members, *table]
        kind = _kind(L.OP_SUBMIT, L.OP_ARGS + sum(map(len, body)) // L.WORD)
        self.callables.append(self._size + L.OP_CALLABLE)
        self._write(_SUBMIT.pack(kind, word, counts, len(members), len(table), outputs), *body)

    def alloc(self, variable: int, tensor: bytes) -> None:
        """Write an alloc, which stores the buffer's address in a variable."""
        self._write(_ALLOC.pack(_kind(L.OP_ALLOC, L.OP_ALLOC_WORDS), variable), tensor)

    def open_scope(self) -> None:
        """Write the beginning of a scope."""
        self._write(_WORD.pack(_kind(L.OP_OPEN_SCOPE, L.OP_SCOPE_WORDS)))

    def close_scope(self) -> None:
        """Write the end of a scope."""
        self._write(_WORD.pack(_kind(L.OP_CLOSE_SCOPE, L.OP_SCOPE_WORDS)))

    def words(self) -> Words:
        """Return the program."""
        return np.frombuffer(b"".join(self._parts), np.int64).copy()


def rewind(program: Words) -> None:
    """Make a program start over."""
    program[L.PROGRAM_AT] = L.PROGRAM_OPS


def repeated(
    times: int,
    word: Any,
    tensors: Sequence[tuple[Any, Words]],
    scalars: Sequence[tuple[Any, Any]],
) -> tuple[Words, Words]:
    """Return a program that makes one submit many times, and its variables, (times, words that differ).

    Whatever is an array instead of a number has an entry for each time. The first variables of a row are
    the addresses of its tensors.

    Parameters
    ----------
    times
        How often.
    word
        The callable word.
    tensors
        For each tensor its address, and its other four words in the last axis of an array.
    scalars
        For each scalar its bits and its kind.
    """
    addresses: list[tuple[int, Any]] = []
    others: list[tuple[int, Any]] = [(L.OP_CALLABLE, word)]
    for i, (data, rest) in enumerate(tensors):
        start = tensor_at(i)
        addresses.append((start, data))
        others += [(start + 1 + k, rest[..., k]) for k in range(L.TENSOR_WORDS - 1)]
    for j, (bits, kind) in enumerate(scalars):
        start = scalar_at(len(tensors), j) - L.SCALAR_BITS
        others += [(start + L.SCALAR_BITS, bits), (start + L.SCALAR_KIND, kind)]
    differ = addresses + [(where, value) for where, value in others if np.ndim(value)]
    at = scalar_at(len(tensors), len(scalars)) - L.SCALAR_BITS
    size = at + len(differ) * L.PATCH_WORDS
    program: Words = np.zeros(L.PROGRAM_OPS + L.OP_REPEAT_WORDS + size, np.int64)
    rewind(program)
    repeat, op = program[L.PROGRAM_OPS :], program[L.PROGRAM_OPS + L.OP_REPEAT_WORDS :]
    repeat[L.OP_KIND] = _kind(L.OP_REPEAT, L.OP_REPEAT_WORDS)
    repeat[L.OP_TIMES] = times
    repeat[L.OP_STEP] = len(differ)
    op[L.OP_KIND] = _kind(L.OP_SUBMIT, size)
    op[L.OP_COUNTS] = len(tensors) | len(scalars) << L.HALF
    op[L.OP_PATCHES] = len(differ)
    op[L.OP_OUTPUTS] = 0
    variables: Words = np.empty((times, len(differ)), np.int64)
    for where, value in others:
        if not np.ndim(value):
            op[where] = value
    for i, (where, value) in enumerate(differ):
        op[at + i * L.PATCH_WORDS + L.PATCH_AT] = where | i << _VARIABLE_BIT
        variables[:, i] = value
    return program, variables


def asked_by(program: Words) -> tuple[bytes, int]:
    """Return the tensors of a program's current op, and its counts; none at the end."""
    at = int(program[L.PROGRAM_AT])
    if at >= len(program):
        return b"", 0
    kind = int(program[at + L.OP_KIND]) & ((1 << _SIZE_BIT) - 1)
    if kind == L.OP_REPEAT:
        at += L.OP_REPEAT_WORDS
    counts, first = int(program[at + L.OP_COUNTS]), at + L.OP_ARGS
    if kind == L.OP_ALLOC:
        counts, first = 1, at + L.OP_TENSOR
    tensors = counts & L.LOW_HALF
    wire: bytes = program[first : first + tensors * L.TENSOR_WORDS].tobytes()
    return wire, counts
