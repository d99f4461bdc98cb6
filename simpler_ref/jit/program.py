"""Programs: a table of words that says what to submit, its writer, and the loop that submits it.

    op            words, after one with its kind and how many words it has
    SUBMIT        callable word; counts; members of a group, or 0; how many patches; outputs: the variable
                  of its first tensor, which the others follow, or −1; arguments, members, patches
    REPEAT        times; times done; step: variables from one time to the next; for the SUBMIT after it
    ALLOC         the variable that gets the address; the tensor to be
    OPEN_SCOPE    none
    CLOSE_SCOPE   none

An array of *variables* goes with a program: what is known only when the program runs, or differs from
one repetition to the next. A patch writes the sum of a variable and an offset into a word of its op, just
before the op is carried out; alloc, and outputs that the runtime provides, store their addresses in
variables.

Each op makes the call that an orchestration function would make. `ProgramWriter` and `repeated` are plain
Python and numpy, for recordings and for many submits in one call. Only this module knows an op's words.

Rule     SPEED-MANY-1, SPEED-MANY-5, SPEED-REPLAY-2
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import layout as L
from .schedule import pass_after_submit, pass_in_bulk
from .submit import (
    alloc_buffer,
    close_scope,
    open_scope,
    submit_task,
    tensors_at,
)
from .tensors import is_auto_output

TENSOR_WORDS = L.TENSOR_WORDS
PROGRAM_AT, PROGRAM_OPS = range(2)  # where the next op is; where the first one begins
OP_SUBMIT, OP_REPEAT, OP_ALLOC, OP_OPEN_SCOPE, OP_CLOSE_SCOPE = range(5)
# words of the ops above
OP_KIND = 0
OP_CALLABLE, OP_COUNTS, OP_MEMBERS, OP_PATCHES, OP_OUTPUTS, OP_ARGS = range(1, 7)
OP_TIMES, OP_DONE, OP_STEP, OP_REPEAT_WORDS = range(1, 5)
OP_BUFFER, OP_TENSOR = range(1, 3)
OP_ALLOC_WORDS = OP_TENSOR + TENSOR_WORDS
PATCH_AT, PATCH_OFFSET, PATCH_WORDS = range(3)  # PATCH_AT: word of the op | variable << 32
Words = np.ndarray[Any, np.dtype[np.int64]]

_PAIR = struct.Struct("<2q")
_SIZE_BIT = 8  # of OP_KIND


# ---------------------------------------------------------------- carrying one out
def run_program(mem, program, variables):
    """Carry out a program from its current op on, at most PROGRAM_SLICE tasks.

    PROGRAM_AT is then the op that comes next, or that was refused.

    Returns  OK at the end, MORE after a slice; or the code an op was refused with
    """
    left = L.PROGRAM_SLICE
    code = L.OK
    while left > 0 and program[PROGRAM_AT] < len(program):
        at = int(program[PROGRAM_AT])
        kind = int(program[at + OP_KIND]) & 0xFF
        if kind == OP_REPEAT:
            code = run_repeat(mem, program, variables, at, left)
        else:
            code = run_op(mem, program, variables, at, kind)
        if code < 0:
            break
        left -= max(1, code)
        if kind != OP_REPEAT or program[at + OP_DONE] == program[at + OP_TIMES]:
            program[PROGRAM_AT] = following(program, at, kind)
    if code != L.WOULD_BLOCK:  # the wait for room runs passes, and has to see what moves
        pass_after_submit(mem)
    if code < 0:
        return code
    if program[PROGRAM_AT] < len(program):
        return L.MORE
    return L.OK


def following(program, at, kind):
    at += int(program[at + OP_KIND]) >> 8
    if kind == OP_REPEAT:
        at += int(program[at + OP_KIND]) >> 8
    return at


def run_op(mem, program, variables, at, kind):
    if kind == OP_SUBMIT:
        return run_submit(mem, program, variables, at, 0)
    if kind == OP_ALLOC:
        slot = alloc_buffer(mem, program[at + OP_TENSOR : at + OP_ALLOC_WORDS])
        if slot < 0:
            return slot
        variables[program[at + OP_BUFFER]] = mem[tensors_at(mem, slot) + L.TENSOR_DATA]
        return L.OK
    if kind == OP_OPEN_SCOPE:
        return open_scope(mem)
    return close_scope(mem)


def run_repeat(mem, program, variables, at, most):
    """Make the submit after a REPEAT, at most `most` times; return how often, or what refused it."""
    done, step = int(program[at + OP_DONE]), int(program[at + OP_STEP])
    end = min(int(program[at + OP_TIMES]), done + most)
    made = end - done
    while done < end:
        code = run_submit(mem, program, variables, at + OP_REPEAT_WORDS, done * step)
        if code < 0:
            program[at + OP_DONE] = done
            return code
        done += 1
    program[at + OP_DONE] = done
    return made


def run_submit(mem, program, variables, at, shift):
    """Submit a task or a group: patch its words, add it, note where its outputs are.

    `shift` is added to the index of each variable.
    """
    patches = int(program[at + OP_PATCHES])
    end = at + (int(program[at + OP_KIND]) >> 8) - patches * PATCH_WORDS
    for k in range(patches):
        patch = end + k * PATCH_WORDS
        target = int(program[patch + PATCH_AT])
        value = variables[(target >> L.HALF) + shift] + program[patch + PATCH_OFFSET]
        program[at + (target & L.LOW_HALF)] = value
    word, counts = int(program[at + OP_CALLABLE]), int(program[at + OP_COUNTS])
    words = program[at + OP_ARGS : end]
    slot = submit_task(mem, word, counts, int(program[at + OP_MEMBERS]), words)
    if slot < 0:
        return slot
    outputs = int(program[at + OP_OUTPUTS])
    if outputs >= 0 and slot & L.AUTO_OUTPUT:
        note_outputs(mem, slot ^ L.AUTO_OUTPUT, words, variables, outputs + shift)
    pass_in_bulk(mem, slot)
    return L.OK


def note_outputs(mem, slot, words, variables, outputs):
    at = tensors_at(mem, slot)
    for i in range(int(mem[slot + L.S_COUNTS]) & L.LOW_HALF):
        t = i * TENSOR_WORDS
        if is_auto_output(words, t):
            variables[outputs + i] = mem[at + t + L.TENSOR_DATA]


# ---------------------------------------------------------------- writing one
class Patch(NamedTuple):
    """A word of a submit that is the sum of a variable and an offset."""

    at: int
    """The word, by `tensor_at` or `scalar_at`."""
    variable: int
    offset: int


def tensor_at(i: int) -> int:
    """Return which word of a submit is the address of its tensor `i`."""
    return OP_ARGS + i * L.TENSOR_WORDS + L.TENSOR_DATA


def scalar_at(tensors: int, j: int) -> int:
    """Return which word of a submit has the bits of scalar `j`, after `tensors` tensors; kind follows."""
    return OP_ARGS + tensors * L.TENSOR_WORDS + j * L.SCALAR_WORDS + L.SCALAR_BITS


def part_at(at: int, tensors: int) -> tuple[int, int]:
    """Return which argument of a submit a word is of, and the word's first byte in it.

    Arguments are numbered tensors first; there are so many of these.
    """
    which, word = divmod(at - OP_ARGS, L.TENSOR_WORDS)
    if which >= tensors:
        which, word = divmod(at - OP_ARGS - tensors * L.TENSOR_WORDS, L.SCALAR_WORDS)
        which += tensors
    return which, word * L.WORD


class ProgramWriter:
    """A program that is written op after op."""

    def __init__(self) -> None:
        self.callables: list[int] = []
        """Offsets of the callable words of its submits so far."""
        self._parts = [struct.pack("<q", PROGRAM_OPS)]
        self.size = PROGRAM_OPS
        """Words so far."""

    def _write(self, op: int, words: tuple[int, ...] = (), body: bytes = b"") -> None:
        size = 1 + len(words) + len(body) // L.WORD
        self._parts += [struct.pack(f"<{1 + len(words)}q", op | size << _SIZE_BIT, *words), body]
        self.size += size

    def submit(
        self,
        word: int,
        counts: int,
        arguments: bytes,
        members: Sequence[tuple[int, int]],
        patches: Iterable[Patch],
        outputs: int,
    ) -> None:
        """Write a submit; `outputs` is the variable of its first tensor, −1 if outputs are not used."""
        table = [_PAIR.pack(one.at | one.variable << L.HALF, one.offset) for one in patches]
        body = b"".join([arguments, *(_PAIR.pack(*one) for one in members), *table])
        self.callables.append(self.size + OP_CALLABLE)
        self._write(OP_SUBMIT, (word, counts, len(members), len(table), outputs), body)

    def repeat(self, times: int, step: int) -> None:
        """Write that the next submit is made so often, each time with variables `step` further on."""
        self._write(OP_REPEAT, (times, 0, step))

    def alloc(self, variable: int, tensor: bytes) -> None:
        """Write an alloc, which stores the buffer's address in a variable."""
        self._write(OP_ALLOC, (variable,), tensor)

    def open_scope(self) -> None:
        self._write(OP_OPEN_SCOPE)

    def close_scope(self) -> None:
        self._write(OP_CLOSE_SCOPE)

    def words(self) -> Words:
        return np.frombuffer(b"".join(self._parts), np.int64).copy()


def rewind(program: Words) -> None:
    program[PROGRAM_AT] = PROGRAM_OPS


def repeated(
    times: int,
    word: Any,
    tensors: Sequence[tuple[Any, Words]],
    scalars: Sequence[tuple[Any, Any]],
) -> tuple[Words, Words]:
    """Return a program that makes one submit many times, and its variables, (times, words that differ).

    Whatever is an array instead of a number has an entry for each time: the callable word; of each
    tensor its address, and its other four words in the last axis; of each scalar its bits and its
    kind. The first variables of a row are the addresses of its tensors.
    """
    addresses: list[tuple[int, Any]] = []
    others: list[tuple[int, Any]] = [(OP_CALLABLE, word)]
    for i, (data, rest) in enumerate(tensors):
        start = tensor_at(i)
        addresses.append((start, data))
        others += [(start + 1 + k, rest[..., k]) for k in range(L.TENSOR_WORDS - 1)]
    for j, (bits, kind) in enumerate(scalars):
        start = scalar_at(len(tensors), j) - L.SCALAR_BITS
        others += [(start + L.SCALAR_BITS, bits), (start + L.SCALAR_KIND, kind)]
    differ = addresses + [(where, value) for where, value in others if np.ndim(value)]
    op: Words = np.zeros(scalar_at(len(tensors), len(scalars)) - L.SCALAR_BITS, np.int64)
    variables: Words = np.empty((times, len(differ)), np.int64)
    for where, value in others:
        if not np.ndim(value):
            op[where] = value
    for i, (_, value) in enumerate(differ):
        variables[:, i] = value
    patches = [Patch(where, i, 0) for i, (where, _) in enumerate(differ)]
    counts, arguments = len(tensors) | len(scalars) << L.HALF, op[OP_ARGS:].tobytes()
    program = ProgramWriter()
    program.repeat(times, len(differ))
    program.submit(int(op[OP_CALLABLE]), counts, arguments, (), patches, 0)
    return program.words(), variables


def asked_by(program: Words) -> tuple[bytes, int]:
    """Return the tensors of a program's current op, and its counts; none at the end."""
    at = int(program[PROGRAM_AT])
    if at >= len(program):
        return b"", 0
    kind = int(program[at + OP_KIND]) & ((1 << _SIZE_BIT) - 1)
    if kind == OP_REPEAT:
        at += OP_REPEAT_WORDS
    counts, first = int(program[at + OP_COUNTS]), at + OP_ARGS
    if kind == OP_ALLOC:
        counts, first = 1, at + OP_TENSOR
    tensors = counts & L.LOW_HALF
    wire: bytes = program[first : first + tensors * L.TENSOR_WORDS].tobytes()
    return wire, counts
