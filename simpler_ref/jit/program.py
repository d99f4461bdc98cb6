"""Programs: a table of words that says what to submit, and the loop that submits it.

    op            words
    SUBMIT        kind, callable word, counts, members, patches, outputs; arguments; patches
    REPEAT        kind, times, times done, step; it is for the SUBMIT that follows
    ALLOC         kind, variable; the tensor to be
    OPEN_SCOPE    kind
    CLOSE_SCOPE   kind

An array of *variables* goes with a program: what is known only when the program runs, or differs from
one repetition to the next. A patch writes the sum of a variable and an offset into a word of its op, just
before the op is carried out; alloc, and outputs that the runtime provides, store their addresses in
variables.

Each op makes the call that an orchestration function would make.
"""

from __future__ import annotations

from . import layout as L
from .kernel import inlined, kernel
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


@inlined
def run_program(mem, program, variables):
    """Carry out a program from its current op on, at most PROGRAM_SLICE tasks.

    Effects  those of the ops; PROGRAM_AT: the op that comes next, or that was refused
    Returns  OK at the end, MORE after a slice; or the code an op was refused with
    Rule     SPEED-MANY-1; SPEED-REPLAY-2
    """
    left = L.PROGRAM_SLICE
    code = L.OK
    while left > 0 and program[L.PROGRAM_AT] < len(program):
        at = int(program[L.PROGRAM_AT])
        kind = int(program[at + L.OP_KIND]) & 0xFF
        if kind == L.OP_REPEAT:
            code = run_repeat(mem, program, variables, at, left)
        else:
            code = run_op(mem, program, variables, at, kind)
        if code < 0:
            break
        left -= max(1, code)
        if kind != L.OP_REPEAT or program[at + L.OP_DONE] == program[at + L.OP_TIMES]:
            program[L.PROGRAM_AT] = following(program, at, kind)
    if code != L.WOULD_BLOCK:  # the wait for room runs passes, and has to see what moves
        pass_after_submit(mem)
    if code < 0:
        return code
    if program[L.PROGRAM_AT] < len(program):
        return L.MORE
    return L.OK


@kernel
def following(program, at, kind):
    """Return the offset of the op after this one."""
    at += int(program[at + L.OP_KIND]) >> 8
    if kind == L.OP_REPEAT:
        at += int(program[at + L.OP_KIND]) >> 8
    return at


@inlined
def run_op(mem, program, variables, at, kind):
    """Carry out one op that is no REPEAT.

    Returns  OK, or the code it was refused with
    """
    if kind == L.OP_SUBMIT:
        return run_submit(mem, program, variables, at, 0)
    if kind == L.OP_ALLOC:
        slot = alloc_buffer(mem, program[at + L.OP_TENSOR : at + L.OP_ALLOC_WORDS])
        if slot < 0:
            return slot
        variables[program[at + L.OP_BUFFER]] = mem[tensors_at(mem, slot) + L.TENSOR_DATA]
        return L.OK
    if kind == L.OP_OPEN_SCOPE:
        return open_scope(mem)
    return close_scope(mem)


@inlined
def run_repeat(mem, program, variables, at, most):
    """Make the submit after a REPEAT, at most `most` times.

    Effects  OP_DONE
    Returns  how many times, or the code the submit was refused with
    """
    done, step = int(program[at + L.OP_DONE]), int(program[at + L.OP_STEP])
    end = min(int(program[at + L.OP_TIMES]), done + most)
    made = end - done
    while done < end:
        code = run_submit(mem, program, variables, at + L.OP_REPEAT_WORDS, done * step)
        if code < 0:
            program[at + L.OP_DONE] = done
            return code
        done += 1
    program[at + L.OP_DONE] = done
    return made


@inlined
def run_submit(mem, program, variables, at, shift):
    """Submit a task or a group: patch its words, add it, note where its outputs are.

    `shift` is added to the index of each variable.

    Returns  OK, or the code it was refused with
    Rule     SPEED-MANY-5
    """
    patches = int(program[at + L.OP_PATCHES])
    end = at + (int(program[at + L.OP_KIND]) >> 8) - patches * L.PATCH_WORDS
    for k in range(patches):
        patch = end + k * L.PATCH_WORDS
        target = int(program[patch + L.PATCH_AT])
        value = variables[(target >> L.HALF) + shift] + program[patch + L.PATCH_OFFSET]
        program[at + (target & L.LOW_HALF)] = value
    word, counts = int(program[at + L.OP_CALLABLE]), int(program[at + L.OP_COUNTS])
    words = program[at + L.OP_ARGS : end]
    slot = submit_task(mem, word, counts, int(program[at + L.OP_MEMBERS]), words)
    if slot < 0:
        return slot
    outputs = int(program[at + L.OP_OUTPUTS])
    if outputs >= 0 and slot & L.AUTO_OUTPUT:
        note_outputs(mem, slot ^ L.AUTO_OUTPUT, words, variables, outputs + shift)
    pass_in_bulk(mem, slot)
    return L.OK


@kernel
def note_outputs(mem, slot, words, variables, outputs):
    """Store the addresses that the runtime has provided in the variables of their tensors."""
    at = tensors_at(mem, slot)
    for i in range(int(mem[slot + L.S_COUNTS]) & L.LOW_HALF):
        t = i * TENSOR_WORDS
        if is_auto_output(words, t):
            variables[outputs + i] = mem[at + t + L.TENSOR_DATA]
