"""Tensors on their way into submit: five words each, with the tag in the padding."""

from __future__ import annotations

from . import layout as L
from .kernel import kernel

DTYPE_SIZES = L.DTYPE_SIZES


@kernel
def tag_of(words, t):
    """Return the tag that a tensor has in its padding on its way into submit.

    Rule     ORCH-SUBMIT-3; ORCH-INV-2
    """
    return int(words[t + L.TENSOR_KIND]) >> L.TENSOR_TAG_SHIFT & 0xFF


@kernel
def nbytes_of(words, t):
    """Return the bytes of a tensor: product of its dimensions times its element size.

    Of a described one, how many it spans.

    Rule     FLOW-LAYOUT-1
    """
    dims = int(words[t + L.TENSOR_DIMS]) >> L.HALF
    kind = int(words[t + L.TENSOR_KIND]) & L.TENSOR_DTYPE_MASK
    if kind == L.TENSOR_DESCRIBED:
        return int(words[t + L.TENSOR_EXTENT])
    count = DTYPE_SIZES[kind]
    for d in range(L.CONTINUOUS_TENSOR_MAX_DIMS):  # a number that compilers know: they unroll it
        if d < dims:
            count *= int(words[t + L.TENSOR_SHAPE + (d >> 1)]) >> (L.HALF * (d & 1)) & L.LOW_HALF
    return count


@kernel
def is_child_memory(words, t):
    """Say whether a tensor's address is in the memory of a next-level worker, not the host's."""
    return int(words[t + L.TENSOR_KIND]) & L.TENSOR_CHILD != 0


@kernel
def worker_of(words, member, members, callable_word, i):
    """Return the only worker that may have tensor `i` of a task, or -1; its members begin at `member`."""
    for _ in range(members):
        i -= int(words[member + L.MEMBER_COUNTS]) & L.LOW_HALF
        if i < 0:
            return int(words[member + L.MEMBER_WORKER]) - 1
        member += L.MEMBER_WORDS
    return (callable_word >> L.WORD_WORKER & L.WORKER_MASK) - 1


@kernel
def reads(tag):
    """Say whether a tag looks its buffer up: INPUT and INOUT do.

    Rule     ORCH-TAG-1, -3
    """
    return tag == L.INPUT or tag == L.INOUT


@kernel
def writes(tag):
    """Say whether a tag makes the task the producer: OUTPUT, INOUT and OUTPUT_EXISTING do.

    Rule     ORCH-TAG-2 to -4
    """
    return tag == L.OUTPUT or tag == L.INOUT or tag == L.OUTPUT_EXISTING


@kernel
def has_key(words, t, data):
    """Say whether a tensor is a buffer that tasks may wait for: it has an address, and some bytes there.

    Rule     ORCH-AUTO-7; ORCH-MAP-7
    """
    return data != 0 and nbytes_of(words, t) != 0


@kernel
def is_auto_output(words, t):
    """Say whether the runtime must provide the buffer: an OUTPUT without an address.

    Rule     ORCH-AUTO-1, -5 to -7
    """
    return tag_of(words, t) == L.OUTPUT and words[t + L.TENSOR_DATA] == 0
